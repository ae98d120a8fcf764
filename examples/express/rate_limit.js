// An Express middleware that limits requests with rlproxy:
//
//   const call = (...words) => client.sendCommand(words);
//   app.use(rateLimit({ client, call, max: 100, window: 60 }));
//   app.use(rateLimit({ client, call, policy: "login" }));
//
// client: a node-redis or ioredis client; its events report a login that Redis refuses.
// call: sends a command and promises its reply (ioredis: (...words) => client.call(...words)).
// max requests in any window seconds (a whole number) for each key; 429 for the rest.
// policy: in place of max and window, a policy of the proxy's settings; its times are in seconds. The
//   reply has the quota, but no window, so RateLimit-Policy has no w.
// key: request -> the key, or null for what is not to be limited. byAddress() has one for each
//   client. (Behind a load balancer request.ip is the balancer's address, unless the application
//   sets "trust proxy".)
// timeout: milliseconds to wait for the reply.
// failOpen: while Redis is away, or can't run hits, requests pass, uncounted; false: they get 503.
//   After another error reply (a wrong password, a missing right, a wrong rule) they get 500.
const PROBLEM = "https://iana.org/assignments/http-problem-types#quota-exceeded";

// Error replies of a Redis that is away, or can't run hits now.
const UNABLE = /^(UPSTREAMDOWN|LOADING|BUSY|OOM|READONLY|MASTERDOWN|CLUSTERDOWN|MISCONF|NOREPLICAS) /;

// Whether nothing decided: no connection, no reply in time, or no Redis that can. Any other error
// reply (they begin with a code in capitals) is a mistake in the configuration, which must not pass
// for an outage.
function away(error) {
  return UNABLE.test(error.message) || !/^[A-Z]+ /.test(error.message);
}

// A key for each client address, of IPv6 for its first 64 bits: one client has all the rest.
function byAddress({ ip }) {
  const mapped = /^::ffff:([\d.]+)$/i.exec(ip);
  if (mapped || !ip.includes(":")) return `limit:${mapped?.[1] ?? ip}`;
  const [head, tail] = ip.split("::").map((part) => part.split(":").filter(Boolean));
  const zeros = Array(tail ? 8 - head.length - tail.length : 0).fill("0");
  const groups = [...head, ...zeros, ...(tail ?? [])].slice(0, 4);
  return `limit:${groups.map((group) => group.padStart(4, "0")).join(":").toLowerCase()}`;
}

function rateLimit({ client, call, max, window, policy, key = byAddress,
                     name = policy ?? "default", timeout = 500, failOpen = true }) {
  const rule = policy ? ["POLICY", policy] : [String(max), String(window)];
  const length = policy ? "" : `;w=${window}`;
  let failing = ""; // how requests are treated without an answer; empty: they are counted
  let loginError = null; // what the last attempt to connect ended with
  client.on("error", (error) => { loginError = error; });
  client.on("ready", () => { loginError = null; });

  return async function limit(request, response, next) {
    const used = key(request);
    if (used === null) return next();
    let reply, timer;
    try {
      const late = new Promise((_, reject) => {
        timer = setTimeout(reject, timeout, new Error("no answer"));
      });
      reply = await Promise.race([call("RL.HIT", used, ...rule), late]);
    } catch (thrown) {
      const error = loginError ?? thrown;
      const how = !away(error) ? "answered 500, the rate limit is misconfigured"
        : failOpen ? "not counted" : "answered 503";
      // One line when it begins, and when it changes.
      if (failing !== how) console.error(`requests are ${how}: ${error.message}`);
      failing = how;
      if (!away(error)) {
        return problem(response, { title: "Internal Server Error", status: 500 });
      }
      if (failOpen) return next();
      return problem(response, { title: "Service Unavailable", status: 503 });
    } finally {
      clearTimeout(timer);
    }
    if (failing) console.warn("requests are counted again");
    failing = "";
    const [limited, quota, remaining, retryAfter, resetAfter] = reply;
    response.set("RateLimit-Policy", `"${name}";q=${quota}${length}`);
    response.set("RateLimit", `"${name}";r=${remaining};t=${limited ? retryAfter : resetAfter}`);
    if (!limited) return next();
    response.set("Retry-After", String(retryAfter));
    return problem(response, {
      type: PROBLEM, title: "Quota Exceeded", status: 429, "violated-policies": [name],
    });
  };
}

function problem(response, body) {
  response.status(body.status).type("application/problem+json").send(JSON.stringify(body));
}

module.exports = { byAddress, rateLimit };
