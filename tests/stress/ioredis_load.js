// Load by ioredis whose every reply is judged: ioredis_load.js PORT CONNECTIONS [open], until stdin
// ends. With `open` hits may be admitted without Redis (--on-upstream-failure allow).
// Writes one JSON object a line: a violation with its evidence, or a key of hits with its counts.
const Redis = require("ioredis");
const [port, connections] = process.argv.slice(2, 4).map(Number);
const open = process.argv[4] === "open";
let stopped = false;
let number = 0;
let answered = 0;
process.stdout.on("error", () => process.exit(0));
process.stdin.on("end", () => { stopped = true; }).resume();

const tell = (found) => process.stdout.write(JSON.stringify(found) + "\n");
const wrong = (violation, evidence) => tell({ violation, evidence });
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const away = (error) => /UPSTREAMDOWN|LOADING|max number of clients|Connection is closed|closed|Command aborted|ECONN|EPIPE/
  .test(String(error));

function judgeHit(key, max, reply, tally) {
  answered += 1;
  if (reply instanceof Error) {
    if (!away(reply)) wrong("an error nobody expects", `${key}: ${reply}`);
  } else if (!Array.isArray(reply) || reply.length !== 5 || reply[1] !== max) {
    wrong("another's reply", `hit on ${key} with max ${max} got ${JSON.stringify(reply)}`);
  } else if (open && reply[0] === 0 && reply[2] === max) {
    tally.without += 1; // outcome unknown: it stays so
  } else {
    tally.unknown -= 1;
    if (reply[0] === 0) tally.admitted += 1;
  }
}

async function epoch(client, name, count) {
  const max = 1000 + (count % 19000);
  const key = `io:${process.pid}:${name}:${count}`;
  const tally = { key, sent: 0, admitted: 0, unknown: 0, without: 0 };
  const began = Date.now();
  const words = ["RL.HIT", key, String(max), "3600", "ALGO", "ZLOG"];
  while (!stopped && Date.now() - began < 1000 && tally.sent < max / 2) {
    const many = [1, 1, 5, 40][number % 4];
    number += 1;
    tally.sent += many;
    tally.unknown += many;
    const id = `io:${name}:${number}`;
    let got;
    if (many === 1) {
      got = [await client.call(...words).catch((error) => error)];
    } else {
      const pipe = client.pipeline();
      for (let index = 0; index < many; index++) pipe.call(...words);
      pipe.echo(id);
      got = (await pipe.exec()).map(([error, reply]) => error || reply);
      const last = got.pop();
      if (!(last instanceof Error) && last !== id) wrong("order", `ECHO ${id} got ${last}`);
    }
    got.forEach((reply) => judgeHit(key, max, reply, tally));
    const echoed = await client.echo(id).catch((error) => error);
    if (!(echoed instanceof Error) && echoed !== id) wrong("another's reply", `ECHO ${id} got ${echoed}`);
    if (got.some((reply) => reply instanceof Error)) await pause(20);
  }
  tell({ ...tally, answered, began_s: began / 1000 });
  answered = 0;
}

async function work(name) {
  let count = 0;
  while (!stopped) {
    const client = new Redis({
      port, retryStrategy: null, maxRetriesPerRequest: 0, enableOfflineQueue: true,
      autoResendUnfulfilledCommands: false, enableReadyCheck: false, commandTimeout: 12000,
    });
    client.on("error", () => {});
    while (!stopped && client.status !== "end") {
      count += 1;
      await epoch(client, name, count);
    }
    client.disconnect();
    await pause(20);
  }
}

Promise.all(Array.from({ length: connections }, (_, index) => work(index)))
  .then(() => setTimeout(() => process.exit(0), 100));
