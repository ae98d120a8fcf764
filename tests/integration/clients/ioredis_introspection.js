// ioredis_introspection.js PORT single|cluster: what ioredis gets, one JSON value a line
const Redis = require("ioredis");
const port = Number(process.argv[2]);

async function main() {
  const client = process.argv[3] === "cluster"
    ? new Redis.Cluster([{ host: "127.0.0.1", port }], { clusterRetryStrategy: null })
    : new Redis({ port, retryStrategy: null });
  const say = async (reply) => console.log(JSON.stringify(await reply));
  await say(client.call("RL.HIT", "io", "5", "60"));
  await say(client.pipeline().call("RL.HIT", "io", "5", "60").call("RL.PEEK", "io", "5", "60").exec());
  await say(client.call("RL.RESET", "io"));
  await say(client.command("GETKEYS", "RL.HIT", "io", "5", "60"));
  await say((await client.command("INFO", "rl.hit"))[0].slice(0, 2));
  await say((await client.command()).filter((entry) => entry[0] === "rl.hit").length);
  client.disconnect();
}

main().catch((error) => {
  console.log("ERROR", error);
  process.exit(1);
});
