"""Policies: named rules in front of real servers, in shadow, over reloads, and at their bounds."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rlproxy.ratelimit.policies import MAX_POLICIES

from tests import harness, info, processes
from tests.clusters import Cluster
from tests.harness import (
    ON_ONE_ENGINE,
    Proxy,
    Raw,
    RedisServer,
    ReplyError,
    command,
    numbers,
    wait_until,
)
from tests.integration.started import children, ended
from tests.repeating import RepeatingClients

RULES = """
login = "2 60 PENALTY 300 AND 20 3600"
trial = {rule = "1 60", shadow = true}
bucket = {rule = "1 60 ALGO GCRA PENALTY 100", shadow = true}
shaped = {rule = "1 60 ALGO LEAKY WAIT 50", shadow = true}
quick = "3 60000 MS WAIT 10"
"""
TRIAL = (0, 1, 0, -1, 60)


def settings(path: Path, rules: str = RULES) -> Path:
    file, new = path / "rlproxy.toml", path / "new.toml"
    new.write_text(f"[policies]\n{rules}")
    return new.replace(file)  # at once: the proxy may be reading


class Named:
    """A proxy with policies."""

    def __init__(self, proxy: Proxy, file: Path) -> None:
        self.proxy = proxy
        self.file = file

    def reload(self, rules: str) -> None:
        """Replace the policies, and wait until the log has the reload."""
        settings(self.file.parent, rules)
        lines = self.proxy.read_log().count("SIGHUP")
        os.kill(self.proxy.pid, signal.SIGHUP)
        wait_until(lambda: self.proxy.read_log().count("SIGHUP") > lines, "it has read them")

    def logs(self, text: str) -> None:
        """Wait until the log has `text`."""
        wait_until(lambda: text in self.proxy.read_log(), f"{text} is logged")

    def policies(self) -> dict[bytes, list[object]]:
        with self.proxy.raw() as raw:
            found = raw.ask("RL.POLICIES")
            assert isinstance(found, list)
            return {each[0]: each[1:] for each in found}

    def stats(self) -> dict[str, str]:
        with self.proxy.raw() as raw:
            return info.stats(raw)

    def uncounted(self) -> int:
        """The hits whose admission was not seen, or was one by shadow."""
        found = self.stats()
        return int(found["unseen"]) + int(found["shadow_refused"])

    def settled(self, wanted: dict[bytes, list[object]]) -> None:
        """Wait until RL.POLICIES has these rows. It is made once a second."""
        wait_until(lambda: self.policies() == wanted, f"{wanted}")


@contextlib.contextmanager
def named(
    upstream: str | RedisServer, path: Path, *args: str, rules: str = RULES
) -> Iterator[Named]:
    file = settings(path, rules)
    with harness.proxy(upstream, "--config", str(file), *args) as proxy:
        yield Named(proxy, file)


@pytest.fixture
def made(redis_server: RedisServer, tmp_path: Path) -> Iterator[Named]:
    """A proxy of one test, for what is counted and for reloads."""
    with named(redis_server, tmp_path) as found:
        yield found


@pytest.fixture(scope="module")
def module_named(
    module_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Named]:
    with named(module_server, tmp_path_factory.mktemp("settings")) as found:
        yield found


@pytest.fixture
def shared(redis_server: RedisServer, module_named: Named) -> Named:
    """The module's proxy, in front of the empty server."""
    return module_named


def hit(key: str, policy: str, *more: object) -> bytes:
    return command("RL.HIT", key, "POLICY", policy, *map(str, more))


# -- the commands ----------------------------------------------------------------------------------


def test_a_policy_counts_as_the_written_out_rule(shared: Named, redis_server: RedisServer) -> None:
    rule = ["2", "60", "PENALTY", "300", "AND", "20", "3600"]
    with shared.proxy.raw() as raw:
        for _ in range(4):
            assert raw.ask("RL.HIT", "a", "POLICY", "login") == raw.ask("RL.HIT", "b", *rule)
            assert raw.ask("RL.PEEK", "a", "POLICY", "login") == raw.ask(
                "RL.PEEK", "b", "2", "60", "AND", "20", "3600"
            )
        assert raw.ask("RL.REFUND", "a", "POLICY", "login", 1) == raw.ask(
            "RL.REFUND", "b", "2", "60", "1", "AND", "20", "3600"
        )
        assert raw.ask("RL.HIT", "c", "POLICY", "login", "COST", 2) == [0, 2, 0, -1, 60]
        assert raw.ask("RL.HIT", "q", "POLICY", "quick", "COST", 3) == [0, 3, 0, -1, 60000]
        began = time.monotonic()
        reply = numbers(raw.ask("RL.HIT", "q", "POLICY", "quick", "WAIT", 20))
        assert reply[0] == 1
        assert 50_000 < reply[3] <= 60_000
        assert time.monotonic() - began < harness.DEADLINE_S
        assert raw.ask("RL.HIT", "a", "POLICY", "x") == ReplyError("ERR no such policy 'x'")
        assert raw.ask("GET", "nothing") is None
    with redis_server.raw() as raw:
        assert raw.ask("EXISTS", "a", "b") == 2


def test_a_block_by_a_policy_replies_as_a_peek(shared: Named, redis_server: RedisServer) -> None:
    with shared.proxy.raw() as raw, redis_server.raw() as admin:
        assert raw.ask("RL.BLOCK", "k", 600, "POLICY", "login") == [1, 2, 0, 600, 600]
        assert raw.ask("RL.HIT", "k", "POLICY", "login") == [1, 2, 0, 600, 600]
        assert raw.ask("RL.BLOCK", "k", 0, "POLICY", "login") == [0, 2, 2, -1, 0]
        assert raw.ask("RL.HIT", "k", "POLICY", "login") == [0, 2, 1, -1, 60]
        # The times of the reply are the policy's, that of the command is its own.
        assert raw.ask("RL.BLOCK", "q", 60, "POLICY", "quick") == [1, 3, 0, 60_000, 60_000]
        assert raw.ask("RL.BLOCK", "q", 50, "MS", "POLICY", "quick") == [1, 3, 0, 50, 50]
        wrong = ReplyError("ERR POLICY can't be combined with ALGO")
        assert raw.ask("RL.BLOCK", "q", 5, "ALGO", "LOG", "POLICY", "quick") == wrong
        # In a transaction, and once the script is gone.
        raw.send(command("MULTI") + command("RL.BLOCK", "m", "9", "POLICY", "login"))
        raw.send(command("EXEC"))
        assert [raw.reply() for _ in range(3)] == ["OK", "QUEUED", [[1, 2, 0, 9, 9]]]
        assert admin.ask("SCRIPT", "FLUSH") == "OK"
        assert raw.ask("RL.BLOCK", "m", 0, "POLICY", "login") == [0, 2, 2, -1, 0]


def test_policies_are_listed_by_redis(made: Named) -> None:
    assert made.policies()[b"login"] == [b"2 60 PENALTY 300 AND 20 3600", b"enforced", 0, 0]
    with made.proxy.raw() as raw:
        for policy, times in (("login", 3), ("trial", 4), ("quick", 1)):
            for _ in range(times):
                raw.ask("RL.HIT", policy, "POLICY", policy)
        raw.ask("RL.PEEK", "login", "POLICY", "login")
        made.settled(
            {
                b"bucket": [b"1 60 ALGO GCRA PENALTY 100", b"shadow", 0, 0],
                b"login": [b"2 60 PENALTY 300 AND 20 3600", b"enforced", 3, 1],
                b"quick": [b"3 60000 MS WAIT 10", b"enforced", 1, 0],
                b"shaped": [b"1 60 ALGO LEAKY WAIT 50", b"shadow", 0, 0],
                b"trial": [b"1 60", b"shadow", 4, 3],
            }
        )
        assert list(made.policies()) == sorted(made.policies())
        found = made.stats()
        assert (found["hits"], found["admitted"]) == ("8", "4")
        assert (found["refused"], found["shadow_refused"]) == ("1", "3")
        reply = raw.ask("RL.POLICIES", "RELOAD")
        assert isinstance(reply, ReplyError)
        assert "wrong number of arguments" in str(reply)
        assert raw.ask("MULTI") == "OK"
        assert isinstance(raw.ask("RL.POLICIES"), ReplyError)
        assert isinstance(raw.ask("EXEC"), ReplyError)
        assert raw.ask("ACL", "SETUSER", "guest", "on", ">x", "~*", "+get") == "OK"
        assert raw.ask("AUTH", "guest", "x") == "OK"
        assert str(raw.ask("RL.POLICIES")).startswith("NOPERM ")


@ON_ONE_ENGINE
def test_the_metrics_have_each_policy(redis_server: RedisServer, tmp_path: Path) -> None:
    admin = harness.free_port()
    with (
        named(redis_server, tmp_path, "--admin", f"127.0.0.1:{admin}") as made,
        made.proxy.raw() as raw,
    ):
        for _ in range(3):
            raw.ask("RL.HIT", "k", "POLICY", "trial")
        wanted = 'rlproxy_policy_hits_total{outcome="shadow_refused",policy="trial"} 2.0'
        wait_until(lambda: wanted in metrics(admin), wanted)
        lines = [
            line
            for line in metrics(admin).splitlines()
            if "policy_hits" in line and "#" not in line
        ]
        found = {re.findall(r'"(.*?)"', line)[::-1][0] for line in lines}
        assert found == {"login", "trial", "bucket", "shaped", "quick"}
        zero = 'rlproxy_policy_hits_total{outcome="refused_locally",policy="login"} 0.0'
        assert zero in lines
        assert not any("failed" in line for line in lines)  # only usual outcomes have zeros
        shadows = re.findall(r'^rlproxy_policy_shadow{policy="(.*)"} 1.0$', metrics(admin), re.M)
        assert "trial" in shadows and "login" not in shadows
        algorithm = 'rlproxy_hits_total{algorithm="log",outcome="shadow_refused"} 2.0'
        assert algorithm in metrics(admin)


def metrics(port: int) -> str:
    with contextlib.suppress(OSError), Raw(port) as raw:
        raw.send(b"GET /metrics HTTP/1.0\r\n\r\n")
        raw.closes()
        return raw.quiet().decode()
    return ""


# -- shadow ----------------------------------------------------------------------------------------


def in_shadow(reply: object) -> bool:
    """Whether it admits, and names no time to wait."""
    found = numbers(reply)
    return (found[0], found[3]) == (0, -1)


def shadow_hits(raw: Raw, key: str, policy: str = "trial") -> list[object]:
    return [raw.ask("RL.HIT", key, "POLICY", policy) for _ in range(3)]


@pytest.mark.parametrize("policy", ["trial", "bucket", "shaped"])
def test_a_shadow_hit_is_admitted_by_lane_and_in_place(shared: Named, policy: str) -> None:
    with shared.proxy.raw() as raw:
        began = time.monotonic()
        for _ in range(8):
            (first,) = shadow_hits(raw, "k", policy)[:1]
            assert isinstance(first, list)
            assert (first[0], first[3]) == (0, -1)
        assert time.monotonic() - began < 40  # none has waited for 50 s
        raw.send((hit("k", policy) + command("GET", "x")) * 3)
        for _ in range(3):
            assert in_shadow(raw.reply())
            assert raw.reply() is None
        peek = numbers(raw.ask("RL.PEEK", "k", "POLICY", policy))
        assert peek[0] == 1
        assert peek[3] > 0


IN_PLACE = {
    "MULTI": [command("MULTI")],
    "an unknown command": [command("NO.SUCH", "x")],
    "a subscription in RESP3": [command("HELLO", 3), command("SUBSCRIBE", "c")],
    "MULTI twice": [command("MULTI"), command("SET", "x", 1)],
}


@pytest.mark.parametrize("state", IN_PLACE)
@pytest.mark.parametrize("policy", ["trial", "bucket", "shaped"])
def test_a_shadow_hit_is_admitted_where_replies_are_not_counted(
    shared: Named, state: str, policy: str
) -> None:
    before = shared.uncounted()
    with shared.proxy.raw() as raw:
        for each in IN_PLACE[state]:
            raw.send(each)
            raw.reply()
        replies: list[object] = shadow_hits(raw, "k", policy)
        if "MULTI" in state:
            assert replies == ["QUEUED"] * 3
            executed = raw.ask("EXEC")
            assert isinstance(executed, list)
            replies = executed[-3:]
        for reply in replies:
            assert isinstance(reply, list), reply
            assert (reply[0], reply[1], reply[3]) == (0, 1, -1)
    assert shared.uncounted() >= before + 2


def test_errors_of_a_shadow_hit_are_those_of_redis(shared: Named) -> None:
    with shared.proxy.raw() as raw:
        raw.ask("SET", "k", "x")
        wrong = raw.ask("RL.HIT", "k", "1", "60")
        assert isinstance(wrong, ReplyError)
        assert raw.ask("RL.HIT", "k", "POLICY", "trial") == wrong
        raw.ask("MULTI")
        raw.ask("RL.HIT", "k", "POLICY", "trial")
        assert raw.ask("EXEC") == [wrong]


# -- a cluster -------------------------------------------------------------------------------------


def test_policies_on_a_cluster(one_cluster: Cluster, tmp_path: Path) -> None:
    with named(one_cluster.url, tmp_path) as made, made.proxy.raw() as raw:
        for key in range(12):
            for _ in range(3):
                reply = numbers(raw.ask("RL.HIT", f"k{key}", "POLICY", "trial"))
                assert (reply[0], reply[1], reply[3]) == (0, 1, -1)
            assert raw.ask("MULTI") == "OK"
            raw.ask("RL.HIT", f"k{key}", "POLICY", "trial")
            executed = raw.ask("EXEC")
            assert isinstance(executed, list)
            assert executed[0][:2] == [0, 1]
            assert executed[0][3] == -1
            raw.send(hit(f"k{key}", "trial") + command("GET", f"k-{key}"))
            assert in_shadow(raw.reply())
            assert raw.reply() is None
            for limited in (0, 0, 1):
                assert numbers(raw.ask("RL.HIT", f"e{key}", "POLICY", "login"))[0] == limited
        wait_until(lambda: made.policies()[b"trial"][2] == 60, "all hits are counted")
        made.settled(
            {
                **made.policies(),
                b"login": [b"2 60 PENALTY 300 AND 20 3600", b"enforced", 36, 12],
                b"trial": [b"1 60", b"shadow", 60, 36],
            }
        )


# -- reloads ---------------------------------------------------------------------------------------


@ON_ONE_ENGINE
def test_a_reload_replaces_all_policies_and_logs_them(made: Named) -> None:
    with made.proxy.raw() as raw:
        made.logs("policies in shadow, which admit all hits: bucket, shaped, trial\n")
        assert raw.ask("RL.HIT", "k", "POLICY", "trial") == list(TRIAL)
        made.reload('trial = "1 60"\nfresh = {rule = "7 60", shadow = true}\n')
        made.logs("policies added: fresh; removed: bucket, login, quick, shaped; changed: trial\n")
        made.logs("policies in shadow, which admit all hits: fresh\n")
        assert numbers(raw.ask("RL.HIT", "k", "POLICY", "trial"))[0] == 1
        assert raw.ask("RL.HIT", "n", "POLICY", "fresh") == [0, 7, 6, -1, 60]
        assert raw.ask("RL.HIT", "k", "POLICY", "login") == ReplyError("ERR no such policy 'login'")
        made.settled(
            {
                b"fresh": [b"7 60", b"shadow", 1, 0],
                b"trial": [b"1 60", b"enforced", 2, 1],
            }
        )
        made.reload('trial = "2 60"\nfresh = {rule = "7 60", shadow = true}\n')
        made.logs("policies added: none; removed: none; changed: trial\n")


@ON_ONE_ENGINE
def test_a_reload_warns_of_another_algorithm(made: Named) -> None:
    with made.proxy.raw() as raw:
        assert raw.ask("RL.HIT", "k", "POLICY", "bucket") == [0, 1, 0, -1, 60]
        made.reload('bucket = "1 60 ALGO TOKEN"\nlogin = "3 60"\nnew = "1 60 ALGO GCRA"\n')
        made.logs("policies with another ALGO: bucket; hits on their live keys get an error\n")
        assert isinstance(raw.ask("RL.HIT", "k", "POLICY", "bucket"), ReplyError)


@ON_ONE_ENGINE
def test_a_reload_with_a_mistake_changes_nothing(made: Named) -> None:
    before = made.policies()
    made.reload('login = "9 60"\ntrial = "5 60 GAP x"\nnew = "POLICY login"\n')
    made.logs(f"--config {made.file}: policy 'trial': GAP is not a valid number of seconds")
    made.logs(f"--config {made.file}: policy 'new': a rule can't name a policy")
    assert made.policies() == before
    with made.proxy.raw() as raw:
        assert raw.ask("RL.HIT", "k", "POLICY", "login") == [0, 2, 1, -1, 60]


@ON_ONE_ENGINE
def test_a_remembered_refusal_answers_no_hit_under_a_new_rule(made: Named) -> None:
    with made.proxy.raw() as raw:
        made.reload('p = "1 3600"\n')
        raw.ask("RL.HIT", "k", "POLICY", "p")
        local = "refused_locally"

        def remembered() -> bool:
            assert numbers(raw.ask("RL.HIT", "k", "POLICY", "p"))[0] == 1
            return made.stats()[local] != "0"

        wait_until(remembered, "a refusal is remembered")
        made.reload('p = "2 3600"\n')
        assert numbers(raw.ask("RL.HIT", "k", "POLICY", "p"))[:3] == [0, 2, 0]


# Two rules of a policy. In a reply, max, unit and mode must be those of one rule.
ONE = 'p = "1 100"\n'
TWO = 'p = {rule = "3 7000 MS", shadow = true}\n'


def check_reply(reply: list[int]) -> None:
    limited, limit, remaining, retry, reset = reply
    assert limit in (1, 3), reply
    assert 0 <= remaining < limit, reply
    if limit == 1:
        assert reset <= 100, reply  # seconds
        assert (limited, retry) == (0, -1) or (limited == 1 and 0 < retry <= 100), reply
    else:
        assert (limited, retry) == (0, -1), reply  # in shadow
        assert 100 < reset <= 7000, reply  # milliseconds


def hit_by_policy(raw: Raw, number: int, round_: int) -> None:
    """Send four hits by policy p and check each reply. Each client has another way: by lane, among
    other commands, and in MULTI.
    """
    before, behind = [(b"", b""), (b"", command("GET", "x")), (command("MULTI"), b"")][number % 3]
    one = hit(f"{number}:{round_}", "p")
    raw.send(before + one * 4 + behind + (command("EXEC") if before else b""))
    if before:
        for _ in range(5):
            raw.reply()
        found = raw.reply()
        replies = found if isinstance(found, list) else [found]
    else:
        replies = [raw.reply() for _ in range(4)]
    if behind:
        raw.reply()
    for reply in replies:
        assert isinstance(reply, list), reply
        check_reply(reply)


@ON_ONE_ENGINE
@pytest.mark.parametrize("workers", [1, 2])
def test_reloads_under_load_cost_no_memory(
    redis_server: RedisServer, tmp_path: Path, workers: int
) -> None:
    with named(redis_server, tmp_path, "--workers", str(workers), rules=ONE) as made:
        pids = [made.proxy.pid, *children(made.proxy.pid)]
        sizes: list[tuple[int, int]] = []
        with RepeatingClients(made.proxy.raw, 6, hit_by_policy) as load:
            for number in range(40):
                rules = [ONE, TWO][number % 2]
                others = "".join(f'n{number}-{other} = "5 60"\n' for other in range(50))
                made.reload(rules + others)
                load.wait_rounds(2)
                if number in (15, 39):
                    sizes.append((sum(map(processes.memory, pids)), sum(map(descriptors, pids))))
        (memory, files), (memory_after, files_after) = sizes
        assert memory_after < memory + workers * (6 << 20)
        assert files_after <= files + 2
        assert made.stats()["failed"] == "0"
        wait_until(lambda: len(made.policies()) == 51, "the last policies are in force")


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@ON_ONE_ENGINE
def test_a_reload_reaches_all_workers(redis_server: RedisServer, tmp_path: Path) -> None:
    with named(redis_server, tmp_path, "--workers", "2") as made, contextlib.ExitStack() as opened:
        clients = [opened.enter_context(made.proxy.raw()) for _ in range(8)]
        for client in clients:
            assert client.ask("RL.HIT", "k", "POLICY", "trial") == list(TRIAL)
        made.reload('trial = "9 60"\n')
        for client in clients:
            wait_until(
                lambda client=client: client.ask("RL.PEEK", "k", "POLICY", "trial")[1] == 9,  # type: ignore[misc]
                "each worker has the new rule",
            )
            client.ask("RL.HIT", "k", "POLICY", "trial")
        made.settled({b"trial": [b"9 60", b"enforced", 16, 7]})


@ON_ONE_ENGINE
def test_blanks_in_a_rule_keep_no_worker_from_the_others(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    """The settings that workers take have a bound, 8 MB."""
    blanks = " " * 9_000_000
    with (
        named(redis_server, tmp_path, "--workers", "2", rules=f'a = "1 60{blanks}"\n') as made,
        made.proxy.raw() as raw,
    ):
        made.reload(f'a = "2 60{blanks}"\n')
        wait_until(
            lambda: raw.ask("RL.PEEK", "k", "POLICY", "a") == [0, 2, 2, -1, 0],
            "the worker has the new rule",
        )


# -- bounds, and mistakes at the start -------------------------------------------------------------


@ON_ONE_ENGINE
def test_ten_thousand_policies(redis_server: RedisServer, tmp_path: Path) -> None:
    rules = "".join(
        f'policy-{number:05} = "5 60 PENALTY 300 AND 20 3600"\n' for number in range(MAX_POLICIES)
    )
    with named(redis_server, tmp_path, rules=rules) as made, made.proxy.raw() as raw:
        assert raw.ask("RL.HIT", "k", "POLICY", "policy-09999") == [0, 5, 4, -1, 60]
        wait_until(lambda: made.policies()[b"policy-09999"][2] == 1, "it is counted")
        found = made.policies()
        assert len(found) == MAX_POLICIES
        assert list(found) == sorted(found)
        assert raw.ask("PING") == "PONG"


def test_wrong_policies_are_refused_at_the_start(tmp_path: Path) -> None:
    file = settings(
        tmp_path,
        'login = "5 60 GAP"\n"a b" = "5 60"\nself = "POLICY self"\nnext = {rule = 5}\nok = "5 60"\n'
        '"x\\u001b[31m\\ny" = "5 60"\n',
    )
    for more in ([], ["--check-config"]):
        code, out, err = ended("--upstream", "redis://h", "--config", str(file), *more)
        assert (code, out) == (2, "")
        lines = err.splitlines()
        assert len(lines) == 5
        prefix = f"rlproxy: --config {file}: policy"
        name = "a name is 1 to 64 letters, digits, '_', '.', ':' and '-'"
        assert f"{prefix} 'login': syntax error near 'GAP'" in lines
        assert f"{prefix} 'a b': {name}" in lines
        assert rf"{prefix} 'x\x1b[31m\x0ay': {name}" in lines
        assert f"{prefix} 'self': a rule can't name a policy" in lines
        assert any(line.startswith(f"{prefix} 'next': the rule is not a string") for line in lines)
