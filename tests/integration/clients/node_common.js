// What the two load clients for Node share.
const seen = new Map();

function hit() {
  const number = Math.floor(20 * Math.random());
  return ["RL.HIT", `exact:${number}`, String(2 + 3 * number), String(40 + 25 * number), "MS"];
}

function batch() {
  return Array.from({ length: 12 }, (_, i) => (i % 3 === 2 ? [hit(), ["PING"]] : [hit()])).flat();
}

function note(words, reply) {
  if (words[0] === "PING") {
    if (reply !== "PONG") note.errors.push(`PING got ${reply}`);
  } else if (!Array.isArray(reply) || reply.length !== 5 || (reply[0] === 0) !== (reply[3] === -1) ||
             reply[3] === 0) {
    note.errors.push(`${words} got ${reply}`);
  } else {
    const kind = [words[1], ...reply.slice(0, 3)].join(" ");
    seen.set(kind, (seen.get(kind) || 0) + 1);
  }
}
note.errors = [];

function report() {
  for (const [kind, count] of seen) console.log(kind, count);
  for (const text of note.errors.slice(0, 20)) console.log("ERROR", text);
}

module.exports = { hit, batch, note, report };
