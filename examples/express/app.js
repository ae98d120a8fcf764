// Express with 5 requests in any 60 seconds for each client: node app.js
const { once } = require("node:events");
const express = require("express");
const { createClient } = require("redis");
const { rateLimit } = require("./rate_limit.js");

const client = createClient({
  url: process.env.REDIS_URL || "redis://127.0.0.1:6380",
  disableOfflineQueue: true, // no hit waits for a server that is away
  socket: { connectTimeout: 500 },
});

const app = express();
const call = (...words) => client.sendCommand(words);
app.use(rateLimit({ client, call, max: 5, window: 60 }));
app.get("/", (request, response) => response.json({ hello: "world" }));

// After the first attempt to connect, successful or not: the client goes on trying.
client.connect().catch(() => {});
once(client, "ready", { signal: AbortSignal.timeout(500) }).catch(() => {}).finally(() => {
  const server = app.listen(process.env.PORT ?? 8000, "127.0.0.1", () => {
    console.log(`listening on http://127.0.0.1:${server.address().port}`);
  });
});
