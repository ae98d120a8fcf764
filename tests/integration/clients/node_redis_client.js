// A load client for node-redis: node_redis_client.js PORT SECONDS CONNECTIONS
const { createClient } = require("redis");
const { hit, batch, note, report } = require("./node_common.js");
const [port, seconds, connections] = process.argv.slice(2).map(Number);
const end = Date.now() + 1000 * seconds;

async function work() {
  const client = createClient({ socket: { port, reconnectStrategy: false } });
  client.on("error", (error) => note.errors.push(String(error)));
  await client.connect();
  let turn = Math.floor(3 * Math.random());
  while (Date.now() < end) {
    turn += 1;
    if (turn % 3 === 0) {
      for (let index = 0; index < 4; index++) {
        const words = hit();
        note(words, await client.sendCommand(words));
      }
    } else if (turn % 3 === 1) {
      // node-redis pipelines what is sent in one tick
      const many = batch();
      const got = await Promise.all(many.map((words) => client.sendCommand(words)));
      many.forEach((words, index) => note(words, got[index]));
    } else {
      const many = [hit(), hit(), hit(), hit()];
      const multi = client.multi();
      many.forEach((words) => multi.addCommand(words));
      const got = await multi.exec();
      many.forEach((words, index) => note(words, got[index]));
    }
  }
  client.destroy ? client.destroy() : await client.disconnect();
}

Promise.all(Array.from({ length: connections }, work))
  .catch((error) => note.errors.push(String(error)))
  .then(report);
