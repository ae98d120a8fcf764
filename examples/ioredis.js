// At most 5 hits in any 60 seconds, with ioredis: node ioredis.js [KEY]
const { Redis } = require("ioredis");

const client = new Redis(process.env.REDIS_URL || "redis://127.0.0.1:6380", {
  connectTimeout: 500,
  commandTimeout: 500,
  maxRetriesPerRequest: 0, // a hit that was sent again would count again
});
client.on("error", () => {}); // it connects again by itself

async function hit(key) {
  let reply;
  try {
    reply = await client.call("RL.HIT", key, 5, 60);
  } catch (error) {
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
  for (let turn = 0; turn < 6; turn++) await hit(process.argv[2] || "example:ioredis");
  client.disconnect();
}

main();
