// cluster_client.js: reads lines of JSON, each a library, a kind (single or cluster) and options. For
// each it prints what the client gets that uses a cluster through the proxy, as one line of JSON.
const { readFileSync } = require("fs");
const { createInterface } = require("readline");
let host, port, protocol, ca, more, inCluster, tls; // of the present line
const HIT = ["RL.HIT", "limit", "5", "60"];
const IN_TAG = ["RL.HIT", "{tag}limit", "5", "60"];
const VALUES = Object.fromEntries([..."012345"].map((each) => [`key:${each}`, each]));
const KEYS = Object.keys(VALUES);
const SHARDED = ["shard:1", "shard:2", "shard:3"];
const SCRIPT = "return redis.call('GET', KEYS[1])";
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

async function refused(promise) {
  try {
    return await promise;
  } catch (error) {
    if (/slot|EXECABORT/i.test(error.message)) return "one slot";
    throw error;
  }
}

function ioredis() {
  const Redis = require("ioredis");
  const fail = { retryStrategy: null, clusterRetryStrategy: null };
  const inAll = { ...fail, shardedSubscribers: true, redisOptions: { protocol, tls } };
  const made = inCluster
    ? new Redis.Cluster([{ host, port }], { ...inAll, ...more })
    : new Redis({ host, port, protocol, tls, ...fail, ...more });
  made.on("error", () => {}); // its commands fail
  return made;
}

async function useIoredis() {
  const client = ioredis();
  const values = (replies) => replies.map(([error, reply]) => error || reply);
  const out = {};
  await client.flushall();
  out.hit = await client.call(...HIT);
  out.set = await Promise.all(KEYS.map((key) => client.set(key, VALUES[key])));
  out.get = await Promise.all(KEYS.map((key) => client.get(key)));
  out.mset = await refused(client.mset(VALUES));
  out.mget = await refused(client.mget(KEYS));
  const pipe = client.pipeline();
  KEYS.forEach((key) => pipe.get(key));
  out.pipeline = values(await pipe.call(...HIT).exec());
  out.pipelinedMget = await refused(client.pipeline().mget(KEYS).exec());
  const multi = client.multi().set("{tag}a", 1).incr("{tag}a");
  out.transaction = values(await multi.call(...IN_TAG).exec());
  out.crossing = await refused(client.multi().set(KEYS[0], 0).set(KEYS[1], 1).exec());
  out.keys = (await client.keys("key:*")).sort();
  out.dbsize = await client.dbsize();
  out.scan = [];
  const [node] = inCluster ? client.nodes("master") : [client];
  for await (const some of node.scanStream({ count: 2, match: "key:*" })) out.scan.push(...some);
  out.scan.sort();
  client.defineCommand("script", { numberOfKeys: 1, lua: SCRIPT });
  out.script = await Promise.all(KEYS.map((key) => client.script(key)));
  const other = ioredis();
  const popped = other.blpop("list", 10);
  await pause(50);
  await client.rpush("list", "x");
  out.popped = await popped;
  other.disconnect();
  out.messages = [];
  const sub = ioredis();
  sub.on("message", (...each) => out.messages.push(each));
  sub.on("pmessage", (_, ...each) => out.messages.push(each));
  await sub.subscribe("news");
  await sub.psubscribe("new*");
  await client.publish("news", "m");
  await until(() => out.messages.length === 2);
  sub.disconnect();
  out.sharded = [];
  const shard = ioredis();
  shard.on("smessage", (channel, message) => out.sharded.push([channel, message]));
  await Promise.all(SHARDED.map((channel) => shard.ssubscribe(channel)));
  for (const channel of SHARDED) await client.spublish(channel, "m");
  await until(() => out.sharded.length === 3);
  await Promise.all(SHARDED.map((channel) => shard.sunsubscribe(channel)));
  out.behind = await shard.get(KEYS[1]); // it subscribes to nothing any more
  shard.disconnect();
  out.mode = /_mode:(\w+)/.exec(await client.info())[1];
  out.del = await refused(client.del(KEYS));
  out.reset = await client.call("RL.RESET", "limit");
  if ((out.pipelinedMget === "one slot") !== inCluster) throw Error("MGET in a pipeline");
  delete out.pipelinedMget;
  if (inCluster) {
    out.nodes = client.nodes("all").map(({ options }) => `${options.host}:${options.port}`);
  }
  client.disconnect();
  return out;
}

async function nodeRedis() {
  const { createClient, createCluster } = require("redis");
  const socket = { reconnectStrategy: false, ...(ca ? { tls: true, ...tls } : {}) };
  const made = inCluster
    ? createCluster({
        rootNodes: [{ socket: { host, port, ...socket } }],
        defaults: { RESP: protocol, socket },
        ...more,
      })
    : createClient({ socket: { host, port, ...socket }, RESP: protocol, ...more });
  made.on("error", () => {}); // its commands fail
  await made.connect();
  return made;
}

async function useNodeRedis() {
  const client = await nodeRedis();
  const place = (key) => (inCluster ? [key, false] : []); // where a cluster client sends a command
  const send = (words) => client.sendCommand(...place(words[1]), words);
  const out = {};
  const node = inCluster ? await client.nodeClient(client.masters[0]) : client;
  await node.flushAll();
  out.hit = await send(HIT);
  out.set = await Promise.all(KEYS.map((key) => client.set(key, VALUES[key])));
  out.get = await Promise.all(KEYS.map((key) => client.get(key)));
  out.mset = await refused(client.mSet(VALUES));
  out.mget = await refused(client.mGet(KEYS));
  const pipe = client.multi();
  KEYS.forEach((key) => pipe.get(key));
  out.pipeline = await pipe.addCommand(...place("limit"), HIT).execAsPipeline();
  const multi = client.multi().set("{tag}a", "1").incr("{tag}a");
  out.transaction = await multi.addCommand(...place("{tag}a"), IN_TAG).exec();
  out.crossing = await refused(client.multi().set(KEYS[0], "0").set(KEYS[1], "1").exec());
  out.keys = (await node.keys("key:*")).sort();
  out.dbsize = await node.dbSize();
  out.scan = [];
  for await (const some of node.scanIterator({ COUNT: 2, MATCH: "key:*" })) out.scan.push(...some);
  out.scan.sort();
  const sha = await node.scriptLoad(SCRIPT);
  out.script = await Promise.all(KEYS.map((key) => client.evalSha(sha, { keys: [key] })));
  const other = await nodeRedis();
  const popped = other.blPop("list", 10);
  await pause(50);
  await client.rPush("list", "x");
  out.popped = Object.values(await popped);
  other.destroy();
  out.messages = [];
  const sub = await nodeRedis();
  await sub.subscribe("news", (message, channel) => out.messages.push([channel, message]));
  await sub.pSubscribe("new*", (message, channel) => out.messages.push([channel, message]));
  await client.publish("news", "m");
  await until(() => out.messages.length === 2);
  out.sharded = [];
  const take = (message, channel) => out.sharded.push([channel, message]);
  await Promise.all(SHARDED.map((channel) => sub.sSubscribe(channel, take)));
  for (const channel of SHARDED) await client.sPublish(channel, "m");
  await until(() => out.sharded.length === 3);
  await Promise.all(SHARDED.map((channel) => sub.sUnsubscribe(channel)));
  await sub.unsubscribe();
  await sub.pUnsubscribe();
  out.behind = String(await sub.get(KEYS[1])); // it subscribes to nothing any more
  sub.destroy();
  out.mode = /_mode:(\w+)/.exec(await node.info())[1];
  out.del = await refused(client.del(KEYS));
  out.reset = await send(["RL.RESET", "limit"]);
  if (inCluster) out.nodes = [...client.masters, ...client.replicas].map(({ address }) => address);
  client.destroy();
  return out;
}

async function until(condition) {
  const end = Date.now() + 10_000;
  while (!condition() && Date.now() < end) await pause(5);
}

async function main() {
  for await (const line of createInterface({ input: process.stdin })) {
    const given = JSON.parse(line);
    ({ host, port, protocol, ca, more } = given);
    inCluster = given.kind === "cluster";
    tls = ca ? { ca: readFileSync(ca) } : undefined;
    const used = given.library === "ioredis" ? useIoredis() : useNodeRedis();
    console.log(JSON.stringify(await used.catch((error) => ({ error: error.stack }))));
  }
}

main().finally(() => process.exit());
