// A load client for ioredis: ioredis_client.js PORT SECONDS CONNECTIONS
const Redis = require("ioredis");
const { hit, batch, note, report } = require("./node_common.js");
const [port, seconds, connections] = process.argv.slice(2).map(Number);
const end = Date.now() + 1000 * seconds;

async function work() {
  const client = new Redis({ port, retryStrategy: null });
  client.on("error", (error) => note.errors.push(String(error)));
  let turn = Math.floor(3 * Math.random());
  while (Date.now() < end) {
    turn += 1;
    if (turn % 3 === 0) {
      for (let index = 0; index < 4; index++) {
        const words = hit();
        note(words, await client.call(...words));
      }
      continue;
    }
    const many = turn % 3 === 1 ? batch() : [hit(), hit(), hit(), hit()];
    const pipe = turn % 3 === 1 ? client.pipeline() : client.multi();
    many.forEach((words) => pipe.call(...words));
    (await pipe.exec()).forEach(([error, reply], index) => note(many[index], error || reply));
  }
  client.disconnect();
}

Promise.all(Array.from({ length: connections }, work))
  .catch((error) => note.errors.push(String(error)))
  .then(report);
