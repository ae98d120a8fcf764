// At most 5 hits in any 60 seconds, with node-redis: node node_redis.js [KEY]
const { once } = require("node:events");
const { createClient } = require("redis");

const client = createClient({
  url: process.env.REDIS_URL || "redis://127.0.0.1:6380",
  disableOfflineQueue: true, // no hit waits for a server that is away
  socket: { connectTimeout: 500 },
});
let loginError = null; // what the last attempt to connect ended with, a wrong password for instance
client.on("error", (error) => { loginError = error; }); // it connects again by itself
client.on("ready", () => { loginError = null; });

// Error replies of a Redis that is away, or can't run hits now.
const UNABLE = /^(UPSTREAMDOWN|LOADING|BUSY|OOM|READONLY|MASTERDOWN|CLUSTERDOWN|MISCONF|NOREPLICAS) /;

// Whether nothing decided: no connection, no reply in time, or no Redis that can. Any other error
// reply (they begin with a code in capitals) is a mistake in the configuration, which must not pass
// for an outage.
function away(error) {
  return UNABLE.test(error.message) || !/^[A-Z]+ /.test(error.message);
}

async function hit(key) {
  let reply;
  try {
    const late = new Promise((_, reject) => setTimeout(reject, 500, new Error("no answer")).unref());
    reply = await Promise.race([client.sendCommand(["RL.HIT", key, "5", "60"]), late]);
  } catch (thrown) {
    const error = loginError ?? thrown;
    if (!away(error)) throw error;
    // Fail open: a limiter that is away must not take the service with it. For logins and the
    // like, where an uncounted try is worse than none: return false.
    console.error("RL.HIT:", error.message);
    console.log("admitted, not counted");
    return true;
  }
  const [limited, , remaining, retryAfter] = reply;
  console.log(limited ? `refused, again in ${retryAfter} s` : `admitted, ${remaining} left`);
  return !limited;
}

async function main() {
  client.connect().catch(() => {});
  await once(client, "ready", { signal: AbortSignal.timeout(500) }).catch(() => {});
  for (let turn = 0; turn < 6; turn++) await hit(process.argv[2] || "limit:example:node-redis");
  process.exit(); // (a connection would keep it alive)
}

main().catch((error) => {
  console.error("RL.HIT:", error.message);
  process.exit(1);
});
