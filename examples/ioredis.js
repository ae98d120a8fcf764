// At most 5 hits in any 60 seconds, with ioredis: node ioredis.js [KEY]
const { Redis } = require("ioredis");

const client = new Redis(process.env.REDIS_URL || "redis://127.0.0.1:6380", {
  connectTimeout: 500,
  commandTimeout: 500,
  enableReadyCheck: false, // its INFO would keep hits back while Redis is away
  maxRetriesPerRequest: 0, // a hit that was sent again would count again
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
    reply = await client.call("RL.HIT", key, 5, 60);
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
  for (let turn = 0; turn < 6; turn++) await hit(process.argv[2] || "limit:example:ioredis");
  client.disconnect();
}

main().catch((error) => {
  console.error("RL.HIT:", error.message);
  process.exit(1);
});
