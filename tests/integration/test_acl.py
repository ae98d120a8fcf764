"""The one line of rights that README.md gives suffices, and none of it is too much."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from tests.harness import ROOT, Proxy, Raw, RedisServer, ReplyError, wait_until

LINE = re.search(r"^ACL SETUSER app .*$", (ROOT / "README.md").read_text(), re.MULTILINE)
assert LINE is not None
RULES = LINE[0].split()[3:]
RIGHTS = [rule for rule in RULES if rule.startswith("+")]


PEEKS_BEFORE = ([0, 10, 7, -1, 1],)  # while the hits are in their window of 50 ms


@pytest.fixture
def admin(redis_server: RedisServer) -> Iterator[Raw]:
    with redis_server.raw() as raw:
        yield raw
        raw.ask("ACL", "DELUSER", "app")


def everything(raw: Raw, admin: Raw) -> list[object]:
    """Every way a script or command of the family can go; the replies."""
    admin.ask("DEL", "limit:a", "limit:b", "limit:c")
    replies = [raw.ask("AUTH", "app", "secret")]
    for _ in range(4):
        replies.append(raw.ask("RL.HIT", "limit:a", 3, 60))
    replies.append(raw.ask("RL.HIT", "limit:b", 10, "0.05", "COST", 3))
    end = time.monotonic() + 5
    while raw.ask("RL.PEEK", "limit:b", 10, "0.05") in PEEKS_BEFORE:
        assert time.monotonic() < end
    # stamps that have left the window, and one that is an hour ahead
    seconds = int(time.time())
    admin.ask("RPUSH", "limit:b", f"{seconds - 3600}000000", f"{seconds - 1}000000")
    replies.append(raw.ask("RL.HIT", "limit:b", 10, 60))
    admin.ask("RPUSH", "limit:c", f"{seconds + 3600}000000")
    replies.append(raw.ask("RL.HIT", "limit:c", 10, 60))
    replies.append(raw.ask("RL.RESET", "limit:a", "limit:b"))
    replies.append(raw.ask("RL.HELP"))
    return replies


def on_a_lane(raw: Raw, admin: Raw) -> bool:
    raw.ask("RL.HIT", "limit:a", 1000, 60)
    clients = str(admin.ask("CLIENT", "LIST")).split("\\n")
    return any("name=rlproxy-lane" in line and "user=app" in line for line in clients)


def refused(replies: list[object]) -> list[object]:
    return [reply for reply in replies if isinstance(reply, ReplyError)]


def test_the_line_suffices(proxy: Proxy, admin: Raw) -> None:
    assert admin.ask("ACL", "SETUSER", "app", "reset", *RULES) == "OK"
    with proxy.raw() as raw:
        assert refused(everything(raw, admin)) == []
        # and on a lane, where a user needs no more
        wait_until(lambda: on_a_lane(raw, admin), "a lane of the user")
        assert refused([raw.ask("RL.HIT", "limit:a", 1000, 60)]) == []


@pytest.mark.parametrize("missing", [right for right in RIGHTS if right != "+evalsha"])
def test_each_right_is_needed(proxy: Proxy, admin: Raw, missing: str) -> None:
    rules = [rule for rule in RULES if rule != missing]
    assert admin.ask("ACL", "SETUSER", "app", "reset", *rules) == "OK"
    with proxy.raw() as raw:
        found = refused(everything(raw, admin))
        assert found
        for error in found:
            assert "user_script" not in str(error)


def test_other_keys_are_refused(proxy: Proxy, admin: Raw) -> None:
    assert admin.ask("ACL", "SETUSER", "app", "reset", *RULES) == "OK"
    with proxy.raw() as raw:
        assert raw.ask("AUTH", "app", "secret") == "OK"
        reply = raw.ask("RL.HIT", "other:a", 3, 60)
        assert str(reply).startswith("NOPERM")
