"""The line of rights in docs/operations.md suffices, and each right in it is needed."""

from __future__ import annotations

import re
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rlproxy.ratelimit.algorithms import ALGORITHMS

from tests.harness import (
    ROOT,
    Proxy,
    Raw,
    RedisServer,
    ReplyError,
    needs_redis_cli,
    wait_until,
)
from tests.info import clients
from tests.integration.started import by_lane_of

PAGE = ROOT / "docs" / "operations.md"
LINE = re.search(r"^ACL SETUSER app .*$", PAGE.read_text(), re.MULTILINE)
assert LINE is not None
RULES = shlex.split(LINE[0])[3:]
RIGHTS = [rule for rule in RULES if rule.startswith("+")]
SPARES_BYTES = ["+evalsha"]  # without it the script's source is sent
# Without these no refusal is cached.
REMEMBERS = ["+client|tracking", "+client|caching"]


@pytest.fixture
def admin(redis_server: RedisServer) -> Iterator[Raw]:
    with redis_server.raw() as raw:
        yield raw
        raw.ask("ACL", "DELUSER", "app")


def everything(raw: Raw, admin: Raw) -> list[object]:
    """Send every script and command of the family in every way they can travel; return the
    replies.
    """
    admin.ask("FLUSHALL")
    seconds = int(time.time())
    old, late = f"{seconds - 3600}000000", f"{seconds + 3600}000000"
    replies = [raw.ask("AUTH", "app", "secret"), raw.ask("RL.PEEK", "limit:new", 3, 60)]

    def each(*commands: str) -> None:
        replies.extend(raw.ask(*command.split()) for command in commands)

    # Stamps that have left the window, one that is an hour ahead; a penalty that is over.
    admin.ask("RPUSH", "limit:log", f"-{old}", old, f"{seconds - 1}000000")
    admin.ask("RPUSH", "limit:late", late)
    admin.ask(
        "ZADD", "limit:zlog", old, f"{old}-000000", f"{seconds}000000", f"{seconds}000000-000000"
    )
    admin.ask("ZADD", "limit:zlate", late, f"{late}-000000")
    each("RL.HIT limit:log 3 60", "RL.HIT limit:late 3 60")
    each("RL.HIT limit:zlog 3 60 ALGO ZLOG", "RL.HIT limit:zlate 3 60 ALGO ZLOG")
    for name in ALGORITHMS:
        algo = f"ALGO {name.decode()}"
        key = f"limit:{name.decode()}"
        each(*[f"RL.HIT {key} 2 60 {algo} PENALTY 1"] * 3)
        each(f"RL.PEEK {key} 2 60 {algo}", f"RL.REFUND {key} 2 60 1 {algo}")
        each(f"RL.BLOCK {key} 60 {algo}", f"RL.BLOCK {key} 0 {algo}")
    each("RL.HIT limit:and 2 60 GAP 1 STRICT AND 5 600", "RL.HIT limit:wait 5 1 WAIT 1")
    each("CL.THROTTLE limit:cell 1 10 60", "RL.THROTTLE limit:cell 1 10 60")
    each("RL.RESET limit:log limit:LOG", "RL.HELP")
    # Commands that client libraries send besides.
    each("PING", "INFO server", "MULTI", "RL.HIT limit:m 5 60", "EXEC", "MULTI", "DISCARD")
    return replies


def rules(missing: str = "") -> list[str]:
    """The page's line without the right `missing`."""
    return [rule for rule in RULES if rule != missing]


def on_a_lane(raw: Raw, admin: Raw) -> bool:
    raw.ask("RL.HIT", "limit:a", 1000, 60)
    return any((row["name"], row["user"]) == ("rlproxy-lane", "app") for row in clients(admin))


def refused(replies: list[object]) -> list[object]:
    return [reply for reply in replies if isinstance(reply, ReplyError)]


def test_documented_rights_suffice(proxy: Proxy, redis_server: RedisServer, admin: Raw) -> None:
    assert admin.ask("ACL", "SETUSER", "app", "reset", *rules()) == "OK"
    with proxy.raw() as raw:
        assert refused(everything(raw, admin)) == []
        # And on a lane, where a user needs no further rights.
        wait_until(lambda: on_a_lane(raw, admin), "a lane of the user")
        assert refused([raw.ask("RL.HIT", "limit:a", 1000, 60)]) == []
        assert refused([raw.ask("RL.PEEK", "limit:a", 1000, 60)]) == []


@pytest.mark.parametrize(
    "missing", [right for right in RIGHTS if right not in SPARES_BYTES + REMEMBERS]
)
def test_hits_fail_without_any_one_right(
    proxy: Proxy, redis_server: RedisServer, admin: Raw, missing: str
) -> None:
    made = rules(missing)
    assert admin.ask("ACL", "SETUSER", "app", "reset", *made) == "OK"
    with proxy.raw() as raw:
        found = refused(everything(raw, admin))
        assert found
        for error in found:
            assert "user_script" not in str(error)


def test_without_pttl_keys_without_hits_can_be_blocked(
    proxy: Proxy, redis_server: RedisServer, admin: Raw
) -> None:
    assert admin.ask("ACL", "SETUSER", "app", "reset", *rules("+pttl")) == "OK"
    with proxy.raw() as raw:
        raw.ask("AUTH", "app", "secret")
        for name in ALGORITHMS:
            block = ("RL.BLOCK", f"limit:{name.decode()}", 60, "ALGO", name)
            assert raw.ask(*block) == [1, 0, 0, 60, 60]
            assert raw.ask(block[0], block[1], 0, *block[3:]) == [0, 0, 0, -1, 0]
            assert str(raw.ask("RL.HIT", block[1], 2, 3600, *block[3:])).startswith("[0, 2, 1")
            assert refused([raw.ask(*block)]) != []
            assert str(raw.ask("RL.HIT", block[1], 2, 3600, *block[3:])).startswith("[0, 2, 0")


@pytest.mark.parametrize("missing", ["", *REMEMBERS])
def test_without_client_rights_hits_work_but_are_not_cached(
    proxy: Proxy, redis_server: RedisServer, admin: Raw, missing: str
) -> None:
    made = rules(missing)
    assert admin.ask("ACL", "SETUSER", "app", "reset", *made) == "OK"
    admin.ask("FLUSHALL")
    with proxy.raw() as raw:
        assert raw.ask("AUTH", "app", "secret") == "OK"
        by_lane_of(redis_server, raw, "limit:a", admin)
        assert raw.ask("RL.HIT", "limit:r", 1, 60) == [0, 1, 0, -1, 60]
        admin.ask("CONFIG", "RESETSTAT")
        for _ in range(50):
            found = raw.ask("RL.HIT", "limit:r", 1, 60)
            assert isinstance(found, list)
            assert found[:3] == [1, 1, 0]
        stats = str(admin.ask("INFO", "commandstats"))
        match = re.search(r"cmdstat_evalsha:calls=(\d+)", stats)
        assert match is not None
        calls = int(match[1])
        assert calls == 50 if missing else calls < 10


def test_hits_on_other_keys_are_refused(
    proxy: Proxy, redis_server: RedisServer, admin: Raw
) -> None:
    assert admin.ask("ACL", "SETUSER", "app", "reset", *rules()) == "OK"
    with proxy.raw() as raw:
        assert raw.ask("AUTH", "app", "secret") == "OK"
        reply = raw.ask("RL.HIT", "other:a", 3, 60)
        assert str(reply).startswith("NOPERM")


OWN = re.search(r"^ACL SETUSER rlproxy .*$", (ROOT / "SECURITY.md").read_text(), re.MULTILINE)
assert OWN is not None
LINES = [LINE[0], OWN[0]]


def requires_its_password(server: RedisServer, admin: Raw, user: str) -> None:
    with server.raw() as raw:
        for wrong in ("", "nothing"):
            assert str(raw.ask("AUTH", user, wrong)).startswith("WRONGPASS")
        assert raw.ask("AUTH", user, "secret") == "OK"
    assert admin.ask("ACL", "DELUSER", user) == 1


@needs_redis_cli()
@pytest.mark.parametrize("line", LINES, ids=["operations", "SECURITY"])
def test_line_pasted_into_a_shell_creates_a_user_with_a_password(
    redis_server: RedisServer, admin: Raw, tmp_path: Path, line: str
) -> None:
    done = subprocess.run(
        ["sh", "-c", f"redis-cli -p {redis_server.port} {line}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert (done.stdout.strip(), done.stderr) == ("OK", "")
    assert list(tmp_path.iterdir()) == []  # a redirection would have made a file
    requires_its_password(redis_server, admin, line.split()[2])
