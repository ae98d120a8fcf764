"""Changes of a user while its client is connected: a hit gets the reply that EVALSHA of its script
gets.

A history is a row of steps: commands of the client, its hits, and an administrator's changes in
between. It is run on a connection to the server, where a hit is the script itself, and twice
through the proxy: once unchanged, and once with the client's hits on a lane wherever its user may
have one (WARM). Users differ from row to row, so that each row begins with new lanes.

TESTS_ACL_HISTORIES=5000 runs that number of random histories (15 otherwise, for each server);
TESTS_ACL_SEED repeats one.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import pytest
from rlproxy.ratelimit import scripts
from rlproxy.ratelimit.grammar import Grammar
from rlproxy.ratelimit.scripts import LOADED, SOURCE
from rlproxy.resp import encoding

from tests.conformance.compare import SCRIPT_NAMES, Bench, rewritten
from tests.harness import Raw, ReplyError, command, wait_until
from tests.info import lane_calls, script_calls

Word = bytes | str | int

SCRIPTS: Final = scripts.load()
GRAMMAR: Final = Grammar(SCRIPTS)
RULE: Final = (1000, 3600)
FULL: Final = (1, 3600)
OUT: Final = "the connection is closed"
LANE_S: Final = 0.2  # a hit that has not gone by lane after this time may not
PAUSE_S: Final = 0.008  # between two hits until then
SLOW_S: Final = 5.0  # the delay allowed on a busy machine
HISTORIES: Final = int(os.environ.get("TESTS_ACL_HISTORIES", "15"))
SEED: Final = os.environ.get("TESTS_ACL_SEED", "")
RIGHTS: Final = "+eval +evalsha +lpush +rpush +lindex +lrange +lpop +llen +pexpire +time +pttl"
USERS: Final = 20  # names used in rotation: a lane whose user was deleted reopens after a pause
_rows = itertools.count()


@dataclass(frozen=True)
class Step:
    """`kind`: say, admin, hit (on a key), warm."""

    kind: str
    words: tuple[Word, ...] = ()


@dataclass(frozen=True)
class History:
    """A row. `by` is the way the script is called directly."""

    name: str
    steps: tuple[Step, ...]
    by: str = "evalsha"


def say(*words: Word) -> Step:
    return Step("say", words)


def admin(text: str) -> Step:
    return Step("admin", tuple(text.split()))


def hit(key: str = "b") -> Step:
    return Step("hit", (key,))


WARM: Final = Step("warm")
HIT: Final = hit()
TWICE: Final = (hit(), hit("c"))  # a key that BOB may touch, and one that he may not
WHO: Final = say("ACL", "WHOAMI")
BOB: Final = "ACL SETUSER $u on >pw ~b* +@all"
EVE: Final = "ACL SETUSER $v on >pv ~c* +@all"
AS_BOB: Final = say("AUTH", "$u", "pw")
AS_EVE: Final = say("AUTH", "$v", "pv")


def history(name: str, *steps: Step | Sequence[Step], by: str = "evalsha") -> History:
    flat: list[Step] = []
    for step in steps:
        flat += [step] if isinstance(step, Step) else step
    return History(name, tuple(flat), by)


# -- rights of a user ------------------------------------------------------------------------------

MAY: Final = {
    "all": "~* +@all",
    "nothing": "",
    "all keys and no commands": "~*",
    "all commands and no keys": "+@all",
    "the script's commands": f"~* {RIGHTS}",
    "some keys": f"~b* {RIGHTS}",
    "without the script's commands": "~* +eval +evalsha",
    "without one of the script's commands": f"~* {RIGHTS} -rpush -lpush",
    "no tracking": "~* +@all -client",
    "neither EVAL nor EVALSHA": "~* +@all -eval -evalsha",
    "no SELECT": "~b* +@all -select",
    "no HELLO": "~b* +@all -hello",
    "no RESET": "~b* +@all -reset",
    "no AUTH": "~b* +@all -auth",
    "no PTTL": f"~* {RIGHTS} -pttl",
    "no TIME": "~* +@all -time",
}
ALONE: Final = {"EVAL alone": "~* +@all -evalsha", "EVAL alone of keys": "~b* +@all -evalsha"}


def allowed(name: str, rights: str, by: str = "evalsha") -> History:
    return history(
        f"may {name}", admin(f"ACL SETUSER $u on >pw {rights}"), AS_BOB, WARM, *TWICE, *TWICE,
        say("SELECT", 1), WARM, *TWICE, say("SELECT", 0), say("RESET"), WARM, *TWICE,
        say("HELLO", 3, "AUTH", "$u", "pw"), WARM, *TWICE, WHO, by=by,
    )  # fmt: skip


# -- identity of a connection ----------------------------------------------------------------------

ANY: Final = {
    "blanks": b"a b  c",
    "quotes": b'"\'"\\x00\\',
    "CRLF": b"p\r\n*1\r\n$4\r\nPING\r\n",
    "UTF-8": "pässwörd€".encode(),
    "binary": bytes(range(256)),
    "500 bytes": b"x" * 500,
    "513 bytes": b"y" * 513,
    "20000 bytes": b"z" * 20_000,
    "empty": b"",
    "like an option": b">pw",
}

WHOSE: Final = [
    history("default user", WARM, *TWICE, WHO),
    history("wrong passwords", admin(BOB), say("AUTH", "$u", "no"), WARM, *TWICE, say("AUTH", "no"),
            *TWICE, AS_BOB, WARM, *TWICE, say("AUTH", "$u", "no"), *TWICE, say("AUTH", "no"),
            say("AUTH", "nobody", "pw"), *TWICE, WHO),
    history("one argument", admin("CONFIG SET requirepass s3"), HIT, say("AUTH", "no"), HIT,
            say("AUTH", "s3"), WARM, HIT, WHO, say("AUTH", "default", "s3"), WARM, HIT,
            say("AUTH"), say("AUTH", 1, 2, 3), HIT),
    history("to and fro", admin(BOB), admin(EVE), AS_BOB, WARM, *TWICE, AS_EVE, WARM, *TWICE,
            AS_BOB, WARM, *TWICE, AS_EVE, *TWICE, WHO, say("RESET"), *TWICE, WHO),
    history("back to the default user", admin(BOB), WARM, *TWICE, AS_BOB, WARM, *TWICE,
            say("AUTH", "default", "whatever"), WARM, *TWICE, WHO),
    *(history(f"HELLO {version}", admin(BOB), admin(EVE), WARM,
              say("HELLO", version, "AUTH", "$u", "pw"), WARM, *TWICE,
              say("HELLO", version, "AUTH", "$u", "no"), WARM, *TWICE, WHO,
              say("HELLO", version, "SETNAME", "n", "AUTH", "$v", "pv"), WARM, *TWICE, WHO,
              say("HELLO", version), WARM, *TWICE, WHO) for version in (2, 3)),
    *(history(f"HELLO that fails {how}", admin(BOB), admin(EVE), AS_EVE, WARM, *TWICE,
              say("HELLO", *words), WARM, *TWICE, WHO, AS_EVE, WARM, *TWICE, WHO)
      for how, words in {
          "by its name": (3, "AUTH", "$u", "pw", "SETNAME", "a b"),
          "by a word too many": (3, "AUTH", "$u", "pw", "FOO"),
          "by its version": (4, "AUTH", "$u", "pw"),
          "by its password": (3, "AUTH", "$u", "no"),
          "by the second AUTH": (3, "AUTH", "$u", "pw", "AUTH", "$u", "no"),
          "by half an AUTH": (3, "AUTH", "$u"),
      }.items()),
    history("HELLO without AUTH and password", admin("CONFIG SET requirepass s3"), say("HELLO", 3),
            HIT, say("HELLO", 3, "AUTH", "default", "s3"), WARM, HIT, WHO),
    history("AUTH in MULTI", admin(BOB), admin(EVE), AS_EVE, WARM, *TWICE, say("MULTI"), AS_BOB,
            HIT, say("EXEC"), *TWICE, WHO, WARM, *TWICE),
    history("AUTH in MULTI that is discarded", admin(BOB), WARM, HIT, say("MULTI"), AS_BOB,
            say("DISCARD"), WARM, *TWICE, WHO),
    history("AUTH under REPLY SKIP", admin(BOB), WARM, HIT, say("CLIENT", "REPLY", "ON"), WARM,
            *TWICE, AS_BOB, *TWICE, WHO),
    history("databases", admin(BOB), AS_BOB, say("SELECT", 2), WARM, *TWICE, say("AUTH", "$u", "x"),
            *TWICE, say("SELECT", 99), *TWICE, say("SELECT", 1), WARM, *TWICE, say("RESET"), WARM,
            *TWICE),
    history("a database is kept by AUTH", admin(BOB), admin(EVE), say("SELECT", 3), AS_BOB, WARM,
            *TWICE, AS_EVE, WARM, *TWICE, say("SELECT", 0), AS_BOB, WARM, *TWICE),
    history("RESET", admin("CONFIG SET requirepass s3"), say("RESET"), HIT, say("AUTH", "s3"), WARM,
            HIT, say("RESET"), HIT, WHO, say("AUTH", "s3"), WARM, HIT),
    history("nopass", admin("ACL SETUSER $u on nopass ~b* +@all"), say("AUTH", "$u", "one"), WARM,
            *TWICE, say("AUTH", "$u", "two"), WARM, *TWICE, say("AUTH", "$u", ""), WARM, *TWICE),
    *(history(f"password of {name}", admin(BOB), Step("admin", ("ACL", "SETUSER", "$u", b">" + pw)),
              AS_BOB, say("AUTH", "$u", pw), WARM, *TWICE, say("AUTH", "$u", pw + b"x"), *TWICE,
              say("AUTH", "$u", pw[:-1]), *TWICE, say("RESET"),
              say("HELLO", 3, "AUTH", "$u", pw), WARM, *TWICE, WHO, HIT)
      for name, pw in ANY.items()),
]  # fmt: skip

# -- rights revoked from a connected client --------------------------------------------------------

TAKEN: Final = {
    "all commands": ("ACL SETUSER $u -@all", "ACL SETUSER $u +@all"),
    "scripts": ("ACL SETUSER $u -evalsha -eval", "ACL SETUSER $u +@all"),
    "commands of the script": ("ACL SETUSER $u -rpush -lindex", "ACL SETUSER $u +@all"),
    "keys": ("ACL SETUSER $u resetkeys ~x*", "ACL SETUSER $u ~b*"),
    "tracking": ("ACL SETUSER $u -client", "ACL SETUSER $u +@all"),
    "everything": ("ACL SETUSER $u reset", "ACL SETUSER $u on >pw ~b* +@all"),
    "enabled": ("ACL SETUSER $u off", "ACL SETUSER $u on"),
    "one password": ("ACL SETUSER $u resetpass >other", "ACL SETUSER $u >pw"),
    "all passwords": ("ACL SETUSER $u resetpass", "ACL SETUSER $u >pw"),
    "the user": ("ACL DELUSER $u", "ACL SETUSER $u on >pw ~b* +@all"),
}
DEFAULT_TAKEN: Final = {
    "no password": ("CONFIG SET requirepass s3", "CONFIG SET requirepass ''"),
    "enabled": ("ACL SETUSER default off", "ACL SETUSER default on nopass"),
    "keys": ("ACL SETUSER default resetkeys ~x*", "ACL SETUSER default ~*"),
    "commands": ("ACL SETUSER default -eval -evalsha", "ACL SETUSER default +@all"),
    "commands of the script": ("ACL SETUSER default -rpush", "ACL SETUSER default +@all"),
}
LIVES: Final = [
    *(history(f"{name}: revoked and granted again", admin(BOB), AS_BOB, HIT, WARM, *TWICE,
              admin(taken), *TWICE, *TWICE, say("GET", "b:none"), *TWICE, admin(given), *TWICE,
              AS_BOB, WARM, *TWICE, WHO) for name, (taken, given) in TAKEN.items()),
    *(history(f"{name}: revoked in another database", admin(BOB), AS_BOB, say("SELECT", 4), WARM,
              *TWICE, admin(taken), *TWICE, say("SELECT", 0), *TWICE, WHO)
      for name, (taken, _) in TAKEN.items()),
    *(history(f"{name}: revoked before AUTH", admin(BOB), WARM, HIT, admin(taken), HIT, AS_BOB,
              WARM, *TWICE, WHO) for name, (taken, _) in TAKEN.items()),
    *(history(f"{name}: revoked from the default user", WARM, HIT, admin(taken), *TWICE, WARM,
              *TWICE, admin(given), *TWICE, WARM, HIT) for name, (taken, given)
      in DEFAULT_TAKEN.items()),
    *(history(f"{name}: revoked from the default user before RESET", WARM, HIT, admin(taken),
              say("RESET"), *TWICE, WHO, admin(given), *TWICE)
      for name, (taken, given) in DEFAULT_TAKEN.items()),
    history("SELECT of the database: revoked", admin(BOB), AS_BOB, say("SELECT", 2), WARM, *TWICE,
            admin("ACL SETUSER $u -select"), *TWICE, say("SELECT", 1), *TWICE),
    history("rights in MULTI", admin(BOB), AS_BOB, WARM, HIT, say("MULTI"), HIT,
            admin("ACL SETUSER $u -rpush"), HIT, say("EXEC"), HIT, admin("ACL SETUSER $u +@all"),
            WARM, *TWICE),
]  # fmt: skip


# -- running --------------------------------------------------------------------------------------


def shown(reply: object) -> object:
    """A reply without the parts that differ by nature or with time."""
    if isinstance(reply, ReplyError):
        text = rewritten(b"-" + str(reply).encode().replace(b"'evalsha'", b"'eval'"), SCRIPT_NAMES)
        text = re.sub(rb"^-(?:@user_script: \d+: )*", b"", text)
        return text if re.match(rb"[A-Z]+ ", text) else b"ERR " + text  # 6.2 has no code in scripts
    if isinstance(reply, dict) or (isinstance(reply, list) and b"server" in reply):
        return "the reply to HELLO"
    if isinstance(reply, list):
        if len(reply) == 5 and all(isinstance(one, int) for one in reply):
            return reply[:3]
        return [shown(each) for each in reply]
    return reply


def answer(raw: Raw) -> object:
    """The next reply, or OUT."""
    try:
        found = raw.reply()
    except (ValueError, AssertionError):
        assert raw.closed
        return OUT
    if str(found).startswith("UPSTREAMDOWN"):
        assert raw.closes(), found  # a hit on its lane when the server closed that
        return OUT
    return shown(found)


def direct_hit(key: str, rule: tuple[int, int], by: str) -> bytes:
    written = command("RL.HIT", key, *rule)
    args = [key.encode(), *(b"%d" % number for number in rule)]
    found = GRAMMAR.rule(written, b"RL.HIT", args)
    head = found.words(LOADED if by == "evalsha" else SOURCE)
    return head + encoding.bulk(key.encode()) + found.tail


class Run:
    """A history on one connection."""

    def __init__(self, bench: Bench, row: History, users: tuple[str, str]) -> None:
        self.bench = bench
        self.row = row
        self.users = users
        self.replies: list[object] = []

    def words(self, step: Step) -> tuple[Word, ...]:
        names = {"$u": self.users[0], "$v": self.users[1], "''": ""}
        return tuple(names.get(word, word) if isinstance(word, str) else word
                     for word in step.words)  # fmt: skip

    def begin(self) -> None:
        """Restore the initial state."""
        bench = self.bench
        bench.look.ask("ACL", "SETUSER", "default", "on", "nopass", "~*", "+@all")
        bench.reset()
        bench.look.ask("ACL", "DELUSER", *self.users)
        for script in SCRIPTS.values():
            bench.look.ask("SCRIPT", "LOAD", script.source)

    def admin(self, step: Step) -> None:
        found = self.bench.look.ask(*self.words(step))
        assert not isinstance(found, Exception) or b"" in step.words, (step, found)

    def direct(self) -> list[object]:
        """Run on a connection to the server."""
        self.begin()
        with self.bench.server.raw() as raw:
            raw.ask("PING")
            for step in self.row.steps:
                if step.kind == "warm":
                    continue
                if step.kind == "admin":
                    self.admin(step)
                    continue
                if step.kind == "say":
                    raw.send(command(*self.words(step)))
                else:
                    raw.send(direct_hit(str(step.words[0]), RULE, self.row.by))
                self.replies.append(answer(raw))
                if self.replies[-1] == OUT:
                    break
        return self.replies

    def proxied(self, warm: bool) -> list[object]:
        """Run through the proxy; hits by lane where they may."""
        self.begin()
        with self.bench.proxy.raw() as raw:
            raw.ask("PING")  # opens the private connection
            for step in self.row.steps:
                if step.kind == "admin":
                    self.admin(step)
                    continue
                if step.kind == "warm":
                    if warm:
                        self.warm(raw)
                    continue
                if step.kind == "hit":
                    raw.send(command("RL.HIT", step.words[0], *RULE))
                    self.replies.append(answer(raw))
                else:
                    raw.send(command(*self.words(step)))
                    self.replies.append(answer(raw))
                if self.replies[-1] == OUT:
                    break
        return self.replies

    def warm(self, raw: Raw) -> None:
        """Send hits until they go by lane, on a key that the user may touch, if there is one."""
        if self.in_multi():
            return
        keys = ["bwarm", "cwarm"]
        end = time.monotonic() + LANE_S
        while time.monotonic() < end:
            before = lane_calls(self.bench.look)
            raw.send(command("RL.HIT", keys[0], 1_000_000, 3600))
            found = answer(raw)
            if not isinstance(found, list):
                del keys[0]
                if found == OUT or not keys:
                    return
            elif lane_calls(self.bench.look) > before:
                return
            time.sleep(PAUSE_S)
        # Its user was disabled, or its credential is too long to be tracked.

    def in_multi(self) -> bool:
        """Whether a hit may be queued now."""
        words = [step.words[:1] for step in self.row.steps if step.kind in ("say", "hit")]
        multi = False
        for word, reply in zip(words, self.replies, strict=False):
            if word == ("MULTI",) and reply == "OK":
                multi = True
            elif reply == "RESET" or (word == ("DISCARD",) and reply == "OK"):
                multi = False
            else:
                multi = multi and (word != ("EXEC",) or str(reply).startswith("b'NO"))
        return multi


def compare(bench: Bench, row: History, modes: Sequence[bool] = (False, True)) -> None:
    number = next(_rows) % USERS
    users = (f"u{number}", f"v{number}")
    expected = Run(bench, row, users).direct()
    for warm in modes:
        got = Run(bench, row, users).proxied(warm)
        if got != expected:
            lines = []
            sent = [step for step in row.steps if step.kind not in ("admin", "warm")]
            at = next(
                (n for n, (one, two) in enumerate(zip(expected, got, strict=False)) if one != two),
                min(len(expected), len(got)),
            )
            for n, step in enumerate(sent[: at + 1]):
                lines.append(f"{step.kind} {step.words}: {[*expected, '-'][n]} {[*got, '-'][n]}")
            how = "warm" if warm else "cold"
            raise AssertionError(f"{row.name}, {how}, {row.steps}:\n" + "\n".join(lines))


@pytest.fixture(autouse=True)
def _as_it_was(bench: Bench) -> Iterator[None]:
    yield
    Run(bench, WHOSE[0], ("u", "v")).begin()


def name_of(row: object) -> str:
    return row.name.replace(" ", "-") if isinstance(row, History) else str(row)


@pytest.mark.parametrize("name", MAY)
def test_hits_follow_the_users_rights(bench: Bench, name: str) -> None:
    compare(bench, allowed(name, MAY[name]))


@pytest.mark.parametrize("name", ALONE)
def test_eval_alone_suffices(bench: Bench, name: str) -> None:
    compare(bench, allowed(name, ALONE[name], by="eval"))


@pytest.mark.parametrize("row", WHOSE, ids=name_of)
def test_hits_follow_the_connections_user(bench: Bench, row: History) -> None:
    compare(bench, row)


@pytest.mark.parametrize("row", LIVES, ids=name_of)
def test_revoked_rights_apply_to_the_next_hit(bench: Bench, row: History) -> None:
    compare(bench, row)


def test_revoked_rights_apply_to_cached_refusals_within_a_second(bench: Bench) -> None:
    """Every right that can be revoked, each from another user, at the same time."""
    Run(bench, WHOSE[0], ("u", "v")).begin()
    full = command("RL.HIT", "bfull", *FULL)
    users = {f"r{n}": taken.replace("$u", f"r{n}") for n, (taken, _) in enumerate(TAKEN.values())}
    with contextlib.ExitStack() as stack:
        proxied, direct = {}, {}
        for name in users:
            stack.callback(bench.look.ask, "ACL", "DELUSER", name)
            bench.look.ask(*BOB.replace("$u", name).split())
            direct[name] = stack.enter_context(bench.server.raw())
            proxied[name] = stack.enter_context(bench.proxy.raw())
            for raw in (proxied[name], direct[name]):
                assert raw.ask("AUTH", name, "pw") == "OK"
        for raw in proxied.values():
            wait_until(partial(from_cache, bench, raw, full), "its refusal is cached")
        expected = {}
        for name, taken in users.items():
            assert not isinstance(bench.look.ask(*taken.split()), Exception)
            direct[name].send(direct_hit("bfull", FULL, "evalsha"))
            expected[name] = answer(direct[name])
        late = time.monotonic() + 1 + SLOW_S
        for name, taken in users.items():
            found: object = None
            while found != expected[name]:
                proxied[name].send(full)
                found = answer(proxied[name])
                assert found in ([1, 1, 0], expected[name]), taken
                assert found == expected[name] or time.monotonic() < late, taken


def from_cache(bench: Bench, raw: Raw, written: bytes) -> bool:
    """Whether a refusal came from the denial cache."""
    before = script_calls(bench.look)
    raw.send(written)
    return answer(raw) == [1, 1, 0] and script_calls(bench.look) == before


def test_new_client_does_not_use_a_lane_older_than_the_password(bench: Bench) -> None:
    """Its hits would be those of a client that Redis has never authenticated."""
    for change, back in DEFAULT_TAKEN.values():
        Run(bench, WHOSE[0], ("u", "v")).begin()
        with bench.proxy.raw() as old, bench.server.raw() as direct_old:
            direct_old.ask("PING")
            Run(bench, WHOSE[0], ("u", "v")).warm(old)
            bench.look.ask(*[word.strip("'") for word in change.split()])
            for who, by in ((bench.proxy, ""), (bench.server, "evalsha")):
                with who.raw() as new:
                    for _ in range(3):
                        hit = command("RL.HIT", "b", *RULE)
                        new.send(direct_hit("b", RULE, by) if by else hit)
                        assert isinstance(new.reply(), ReplyError)
                        old.ask("RL.HIT", "b", *RULE)
            bench.look.ask(*[word.strip("'") for word in back.split()])


# -- random histories ------------------------------------------------------------------------------

CHANGES: Final = [
    *(change for pair in TAKEN.values() for change in pair),
    *(change for pair in DEFAULT_TAKEN.values() for change in pair),
    "ACL SETUSER $v on >pv ~c* +@all",
    "ACL SETUSER $v nopass",
    "ACL SETUSER $v -@all",
    "ACL SETUSER $v off",
    "ACL DELUSER $v",
]
SAYS: Final = [
    *(AS_BOB, AS_BOB, AS_EVE, AS_EVE, say("AUTH", "$u", "no"), say("AUTH", "s3")),
    *(say("AUTH", "$u", "other"), say("AUTH", "$v", "anything"), say("AUTH", "default", "s3")),
    *(say("HELLO", 2, "AUTH", "$u", "pw"), say("HELLO", 3, "AUTH", "$v", "pv"), say("HELLO", 3)),
    *(say("HELLO", 3, "AUTH", "$v", "pv", "SETNAME", "a b"), say("HELLO", 2), say("RESET")),
    *(say("SELECT", 0), say("SELECT", 1), say("SELECT", 2), say("MULTI"), say("EXEC")),
    *(say("DISCARD"), WHO, say("PING"), say("GET", "b:none"), say("SET", "b:x", 1)),
]


def random_history(seed: str) -> History:
    """A random history of changes, commands and hits, each equally likely."""
    chance = random.Random(seed)
    steps = [admin(BOB), admin(EVE)]
    for _ in range(chance.randrange(6, 24)):
        kind = chance.randrange(10)
        if kind < 2:
            steps.append(admin(chance.choice(CHANGES)))
        elif kind < 5:
            steps.append(chance.choice(SAYS))
        elif kind < 6:
            steps.append(WARM)
        else:
            steps.append(hit(chance.choice("bc")))
    return History(f"seed {seed}", tuple(steps))


def test_random_histories(bench: Bench) -> None:
    engine = bench.server.engine
    for number in range(1 if SEED else HISTORIES):
        row = random_history(SEED or f"{engine} {number}")
        compare(bench, row, modes=(bool(number & 1),) if HISTORIES < 100 else (False, True))
