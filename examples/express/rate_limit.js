// An Express middleware that limits requests with rlproxy:
//
//   app.use(rateLimit({ call: (...words) => client.sendCommand(words), max: 100, window: 60 }));
//
// call: sends a command and promises its reply (ioredis: (...words) => client.call(...words)).
// max requests in any window seconds (a whole number) for each key; 429 for the rest.
// key: request -> the key, or null for what is not to be limited. (Behind a load balancer
//   request.ip is the balancer's address, unless the application sets "trust proxy".)
// timeout: milliseconds to wait for the reply.
// failOpen: without a reply requests pass, uncounted; false: they get 503.
const PROBLEM = "https://iana.org/assignments/http-problem-types#quota-exceeded";

function rateLimit({ call, max, window, key = (request) => `rate:${request.ip}`, name = "default",
                     timeout = 500, failOpen = true }) {
  let failing = false;

  return async function limit(request, response, next) {
    const used = key(request);
    if (used === null) return next();
    let reply, timer;
    try {
      const late = new Promise((_, reject) => {
        timer = setTimeout(reject, timeout, new Error("no answer"));
      });
      const words = ["RL.HIT", used, String(max), String(window)];
      reply = await Promise.race([call(...words), late]);
    } catch (error) {
      // One line when it begins, one when it is over.
      const how = failOpen ? "not counted" : "answered 503";
      if (!failing) console.warn(`requests are ${how}: ${error.message}`);
      failing = true;
      if (failOpen) return next();
      return problem(response, { title: "Service Unavailable", status: 503 });
    } finally {
      clearTimeout(timer);
    }
    if (failing) console.warn("requests are counted again");
    failing = false;
    const [limited, , remaining, retryAfter, resetAfter] = reply;
    response.set("RateLimit-Policy", `"${name}";q=${max};w=${window}`);
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

module.exports = { rateLimit };
