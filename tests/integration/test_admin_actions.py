"""--admin-actions of real proxies: what an action does, and what it takes to send one."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rlproxy.admin.actions import TIMEOUT_S, WRONG_TOKEN_S

from tests.harness import DEADLINE_S, Raw, RedisServer, wait_until
from tests.integration.started import Started, children, ended, started
from tests.integration.test_admin import HERE, TWO, admin_pid, answers, get, port
from tests.processes import paused
from tests.tlsparts import Certificates

TOKEN = "a-token-of-the-tests-0123456789"
SECRET = "hunter2-of-the-proxy"
USER = ("ACL", "SETUSER", "operator", "on", f">{SECRET}", "~*", "+@all")
KEY = b"user:\x00\xff\r\n\xe2\x80\xae\xc3\xa9 '"
SHOWN = "user:\\x00\\xff\\x0d\\x0a\\xe2\\x80\\xaeé '"  # as the page shows it


def options(directory: Path) -> list[str]:
    """The options of actions, with a token file in this directory."""
    path = directory / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    return ["--admin-actions", "--admin-token-file", str(path)]


@pytest.fixture
def actions(tmp_path: Path) -> list[str]:
    """The options of actions, for a proxy of one test."""
    return options(tmp_path)


@pytest.fixture(scope="module")
def shared(one_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """A proxy with actions and three policies, which logs in with a password."""
    directory = tmp_path_factory.mktemp("actions")
    file = directory / "rlproxy.toml"
    file.write_text('[policies]\nlogin = "5 60"\nfast = "9 60000 ms"\nms = "7 60"\n')
    more = (*options(directory), "--config", str(file))
    with started(*HERE, "--upstream", with_user(one_server), *more) as made:
        yield made


@pytest.fixture
def made(shared: Started, one_server: RedisServer) -> Started:
    """The module's proxy, in front of an empty server."""
    one_server.ask("FLUSHALL")
    return shared


def post(
    made: Started,
    body: object,
    token: str | None = TOKEN,
    data: bytes | None = None,
    half_closes: bool = False,
) -> tuple[int, Any]:
    """Status and answer to a request for an action."""
    connection = http.client.HTTPConnection("127.0.0.1", port(made), timeout=DEADLINE_S)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    with contextlib.closing(connection):
        connection.request("POST", "/actions", data or json.dumps(body), headers)
        if half_closes:
            connection.sock.shutdown(socket.SHUT_WR)
        found = connection.getresponse()
        return found.status, json.loads(found.read())


def send(made: Started, action: str, **fields: object) -> Any:
    """The reply to an action that succeeds."""
    status, found = post(made, {"action": action, **fields})
    assert status == 200, found
    return found["reply"]


def with_user(server: RedisServer) -> str:
    """The URL of the server with the name and password of a user that it creates."""
    with server.raw() as raw:
        assert raw.ask(*USER) == "OK"
    return f"redis://operator:{SECRET}@127.0.0.1:{server.port}"


# -- what they do ----------------------------------------------------------------------------------


def test_look_and_reset(own_server: RedisServer, actions: list[str]) -> None:
    with started(*HERE, "--upstream", own_server.url, *actions, *TWO) as made, made.raw() as raw:
        for left in (4, 3, 2):
            assert raw.ask("RL.HIT", KEY, 5, 60) == [0, 5, left, -1, 60]
        reply = send(made, "peek", key=SHOWN, rule="5 60")
        assert reply[:4] == [0, 5, 2, -1]
        assert 0 < reply[4] <= 60
        fields = {"action": "peek", "key": SHOWN, "rule": " 3\t60000  algo log ms "}
        status, found = post(made, fields)
        assert (status, found["unit"], found["reply"][:3]) == (200, "ms", [1, 3, 0])
        assert post(made, {**fields, "rule": "3 60"})[1]["unit"] == "s"
        assert raw.ask("LLEN", KEY) == 3
        assert send(made, "reset", key=SHOWN) == 1
        assert send(made, "reset", key=SHOWN) == 0
        assert raw.ask("EXISTS", KEY) == 0
        assert raw.ask("RL.HIT", KEY, 5, 60) == [0, 5, 4, -1, 60]
        one = r"INFO 127\.0\.0\.1:\d+ requests reset of the key user:\\x00\\xff\\x0d.*é ': done\n"
        made.logged(one)
        assert made.log().count(" requests reset of the key ") == 2
        assert "peek" not in made.log()


def test_look_by_policy(made: Started) -> None:
    for name, limit, unit in (("login", 5, "s"), ("fast", 9, "ms"), ("ms", 7, "s")):
        status, found = post(made, {"action": "peek", "key": "k", "rule": f"policy {name}"})
        assert (status, found) == (200, {"reply": [0, limit, limit, -1, 0], "unit": unit})
    for rule in ("POLICY nothing", "POLICY"):
        status, found = post(made, {"action": "peek", "key": "k", "rule": rule})
        assert (status, bool(found["error"])) == (400, True)


def test_block_and_unblock(made: Started) -> None:
    rule = "5 60 ALGO GCRA"
    with made.raw() as raw:
        assert send(made, "block", key=SHOWN, seconds=600, rule=rule)[0] == 1
        limited, _, left, retry_after, _ = send(made, "peek", key=SHOWN, rule=rule)
        assert (limited, left) == (1, 0)
        assert 0 < retry_after <= 600
        refused = raw.ask("RL.HIT", KEY, *rule.split())
        assert isinstance(refused, list) and refused[:3] == [1, 5, 0]
        assert send(made, "unblock", key=SHOWN, rule=rule)[0] == 0
        admitted = raw.ask("RL.HIT", KEY, *rule.split())
        assert isinstance(admitted, list) and admitted[:3] == [0, 5, 4]
        status, found = post(made, {"action": "block", "key": "k", "seconds": "soon"})
        assert (status, found) == (400, {"error": "t is not a valid number of seconds"})
        for action in ("block", "unblock"):
            made.logged(rf"requests {action} of the key user:\\x00.*: done\n")


def test_a_client_that_sends_no_more_gets_the_reply(made: Started) -> None:
    body = {"action": "block", "key": "k", "rule": "5 60", "seconds": 60}
    assert post(made, body, half_closes=True)[0] == 200


def test_errors_of_the_proxy_are_passed_on(made: Started, one_server: RedisServer) -> None:
    one_server.ask("SET", "text", "x")
    for rule, why in (
        ("", "wrong number of arguments for 'rl.peek' command"),
        ("5 60 STRICT", "STRICT"),
        ("0 60", "value is not an integer or out of range: max is 1 to 1000000 with ALGO LOG"),
    ):
        status, found = post(made, {"action": "peek", "key": "k", "rule": rule})
        assert (status, why in found["error"]) == (400, True), found
    status, found = post(made, {"action": "peek", "key": "text", "rule": "5 60"})
    assert (status, "wrong kind of value" in found["error"]) == (400, True), found
    status, found = post(made, {"action": "peek", "key": "k"})
    assert (status, found) == (400, {"error": "the action peek needs the field rule"})
    status, found = post(made, None, data=b"x" * 5000)
    assert (status, found) == (413, {"error": "the body has more than 4096 bytes"})
    assert get(made, "/actions").status == 405


def test_denied_command_is_logged_as_an_error(own_server: RedisServer, actions: list[str]) -> None:
    denied = ("--deny-command", "rl.reset")
    with started(*HERE, "--upstream", own_server.url, *actions, *denied) as made:
        status, found = post(made, {"action": "reset", "key": "k"})
        assert status == 403
        assert "rl.reset" in found["error"].lower()
        made.logged(r"requests reset of the key k: .*(?i:rl\.reset)")


def test_reload(own_server: RedisServer, actions: list[str], tmp_path: Path) -> None:
    file = tmp_path / "rlproxy.toml"
    file.write_text("hit-timeout = 700\n")
    config = ("--config", str(file))
    with started(*HERE, "--upstream", own_server.url, *actions, *config, *TWO) as made:
        answers(made, "/readyz", 200, r"ok\n")
        file.write_text("hit-timeout = 800\n")
        assert send(made, "reload") == "OK"
        made.logged(r"INFO 127\.0\.0\.1:\d+ requests a reload of the settings\n")
        made.logged("INFO SIGHUP: .* changed: --hit-timeout\n")
        rejected = "rlproxy_settings_rejected 0.0\n"
        assert rejected in get(made, "/metrics").text
        file.write_text("hit-timeout = 900\n[policies]\na = '5 60 GAP'\nb = 1\n")
        status, found = post(made, {"action": "reload"})
        why = "the settings are rejected, and all stays as it was:"
        first, *mistakes = found["error"].split("\n")
        assert (status, first) == (409, why)
        assert [line.removeprefix(f"--config {file}: policy ") for line in mistakes] == [
            """'b': the rule is not a string: expected "RULE" or {rule = "RULE", shadow = true}""",
            "'a': syntax error near 'GAP'",
        ]
        answers(made, "/metrics", 200, rejected.replace("0.0", r"1\.0"))
        file.write_text("hit-timeout = 900\n")
        assert send(made, "reload") == "OK"
        answers(made, "/metrics", 200, rejected)


# -- the way to the proxy --------------------------------------------------------------------------


def test_commands_run_as_the_user_of_the_url(
    own_server: RedisServer, actions: list[str], tmp_path: Path
) -> None:
    upstream = with_user(own_server)
    environment = {"RLPROXY_UPSTREAM": upstream}
    with started(*HERE, *actions, *TWO, env=environment, fresh=True) as made:
        answers(made, "/readyz", 200, r"ok\n")
        with own_server.raw() as raw:
            assert (
                raw.ask("ACL", "SETUSER", "default", "nopass", "-@all", "+acl", "+ping", "+select")
                == "OK"
            )
        with made.raw() as raw:
            assert raw.ask("AUTH", "operator", SECRET) == "OK"
            assert raw.ask("RL.HIT", "k", 5, 60) == [0, 5, 4, -1, 60]
        assert send(made, "peek", key="k", rule="5 60")[2] == 4
        assert send(made, "reset", key="k") == 1
        # No secret can be seen.
        read = [Path(f"/proc/{pid}/cmdline") for pid in (made.pid, *children(made.pid))]
        assert len(read) == 4
        shown = b"".join(path.read_bytes() for path in read).decode()
        shown += made.log() + made.output() + get(made, "/live.json").text + get(made, "/").text
        shown += get(made, "/metrics").text
        for secret in (SECRET, TOKEN):
            assert secret not in shown
        with own_server.raw() as raw:
            assert raw.ask("ACL", "SETUSER", "operator", "-eval", "-evalsha") == "OK"
        status, found = post(made, {"action": "peek", "key": "k", "rule": "5 60"})
        assert status == 403
        assert "permissions" in found["error"]


def test_unix_and_tls_listeners(
    own_server: RedisServer, actions: list[str], certificates: Certificates, tmp_path: Path
) -> None:
    unix = f"unix:{tmp_path}/rlproxy.sock"
    tls = ("tls:127.0.0.1:0", *certificates.server_args(), "--tls-client-ca", certificates.ca)
    admin = ("--admin", "127.0.0.1:0", "--upstream", own_server.url)
    for way in ((unix,), (*tls, "--tls-client-auth", "optional")):
        with started("--listen", *way, *admin, *actions) as made:
            assert send(made, "peek", key="k", rule="5 60") == [0, 5, 5, -1, 0]
            assert send(made, "reset", key="k") == 0


def test_restarted_admin_process_has_actions(made: Started) -> None:
    answers(made, "/healthz", 200)
    first = admin_pid(made)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: admin_pid(made) != first, "there is another one")
    answers(made, "/healthz", 200)
    assert send(made, "peek", key="k", rule="5 60") == [0, 5, 5, -1, 0]


# -- failures --------------------------------------------------------------------------------------


def test_absent_redis_is_an_error(made: Started, one_server: RedisServer) -> None:
    answers(made, "/readyz", 200, r"ok\n")
    one_server.stop()
    try:
        answers(made, "/readyz", 503)
        status, found = post(made, {"action": "reset", "key": "k"})
        assert (status, found["error"].startswith("UPSTREAMDOWN")) == (502, True), found
        made.logged(r"requests reset of the key k: UPSTREAMDOWN .*\n")
    finally:
        one_server.start()
        with_user(one_server)


def test_hung_redis_delays_an_action_for_two_seconds_at_most(
    made: Started, one_server: RedisServer
) -> None:
    answers(made, "/readyz", 200, r"ok\n")
    with paused(one_server.pid):
        before = time.monotonic()
        status, found = post(made, {"action": "reset", "key": "k"})
        assert time.monotonic() - before < DEADLINE_S / 2
        assert status == 504
        why = f"no reply within {TIMEOUT_S:g} s; whether it takes effect is unknown"
        assert found == {"error": why}
        made.logged(f"requests reset of the key k: {why}\n")
    answers(made, "/readyz", 200, r"ok\n")
    assert send(made, "reset", key="k") == 0


def test_wrong_tokens_are_answered_late_and_logged_once(
    made: Started, one_server: RedisServer
) -> None:
    body = {"action": "reset", "key": "k"}
    one_server.ask("SET", "k", "v")
    assert post(made, body, token=None)[0] == 401
    for _ in range(3):
        before = time.monotonic()
        assert post(made, body, token=TOKEN[:-1]) == (401, {"error": "wrong token"})
        assert time.monotonic() - before >= WRONG_TOKEN_S
    assert one_server.ask("GET", "k") == b"v"
    where = r"\(the latest: 127\.0\.0\.1:\d+\)"
    made.logged(rf"ERROR requests for actions with a wrong token: 1 {where}\n")
    assert made.log().count("wrong token") == 1
    assert TOKEN[:-1] not in made.log()
    # The body of a request without a token is not awaited.
    with Raw(port(made)) as slow:
        slow.send(b"POST /actions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999\r\n\r\n")
        assert slow.line() == b"HTTP/1.1 401 Unauthorized\r\n"


def test_unusable_settings_are_errors_at_start(
    own_server: RedisServer, actions: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "token"
    always = (*HERE, "--upstream", own_server.url)
    path.chmod(0o644)
    code, out, log = ended(*always, *actions)
    assert (code, out) == (2, "")
    why = "other users can read or change it; permit that to its"
    assert log.startswith(f"rlproxy: --admin-token-file {path}: {why}")
    path.chmod(0o600)
    for args, why in (
        (actions[:1], "--admin-actions: it needs --admin-token-file"),
        ((*actions, "--proxy-protocol"), "--admin-actions: the admin process can't connect to any"),
    ):
        code, _, log = ended(*always, *args)
        assert (code, log.startswith(f"rlproxy: {why}")) == (2, True), log
