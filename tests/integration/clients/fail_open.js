// A client that connects while Redis is away: `node fail_open.js PORT ioredis|node-redis`. Prints the
// reply to its first hit, and with Redis back (stdin has a line then) those to a SET and a second hit.
// `ioredis-ready-check` prints the error of its ready check instead.
"use strict";

const readline = require("readline");

const port = Number(process.argv[2]);

async function connected(name) {
  if (name === "ioredis-ready-check") {
    const client = new (require("ioredis"))({ port, password: "pw" });
    client.on("error", (error) => {
      console.log(JSON.stringify(error.message));
      process.exit(0);
    });
    return (...words) => client.call(...words);
  }
  if (name === "ioredis") {
    const Redis = require("ioredis");
    const client = new Redis({ port, password: "pw", db: 2, enableReadyCheck: false });
    return (...words) => client.call(...words);
  }
  const { createClient } = require("redis");
  const client = createClient({ socket: { port }, password: "pw", database: 2, RESP: 3 });
  client.on("error", () => {});
  await client.connect();
  return (...words) => client.sendCommand(words);
}

async function main() {
  const call = await connected(process.argv[3]);
  console.log(JSON.stringify(await call("RL.HIT", "k", "5", "60")));
  for await (const _ of readline.createInterface({ input: process.stdin })) {
    console.log(JSON.stringify(await call("SET", "s", "v")));
    console.log(JSON.stringify(await call("RL.HIT", "k", "5", "60")));
    process.exit(0);
  }
}

main().catch((error) => {
  console.error(error.message);
  process.exit(1);
});
