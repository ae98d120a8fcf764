// At most 5 hits in any 60 seconds, with node-redis: node node_redis.js [KEY]
const { createClient } = require("redis");

const client = createClient({
  url: process.env.REDIS_URL || "redis://127.0.0.1:6380",
  disableOfflineQueue: true, // no hit waits for a server that is away
  socket: { connectTimeout: 500 },
});
client.on("error", () => {}); // it connects again by itself

async function hit(key) {
  let reply;
  try {
    const late = new Promise((_, reject) => setTimeout(reject, 500, new Error("no answer")).unref());
    reply = await Promise.race([client.sendCommand(["RL.HIT", key, "5", "60"]), late]);
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
  const connected = client.connect().catch(() => {});
  await Promise.race([connected, new Promise((resolve) => setTimeout(resolve, 500))]);
  for (let turn = 0; turn < 6; turn++) await hit(process.argv[2] || "example:node-redis");
  process.exit(); // (a connection would keep it alive)
}

main();
