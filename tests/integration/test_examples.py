"""The programs in examples/ are run: they limit, and an unreachable limiter does not stop them."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from redis._parsers.base import BaseParser
from rlproxy.session.context import CANNOT_RUN

from tests import documents, harness
from tests.gate import Gate, Pipe
from tests.harness import DEADLINE_S, ROOT, Proxy, Raw, RedisServer
from tests.integration import examples
from tests.integration.examples import EXAMPLES, PROGRAMS, SERVICES, Example
from tests.integration.runtimes import CLIENTS
from tests.integration.test_acl import RULES

PAGE = ROOT / "docs" / "examples.md"
ALL_S = 60.0  # forty processes at once
CUT_S = 0.02  # from a hit to the end of its connection
ATTEMPTS = 5  # a reply that took half a second came from a busy machine
ADMITTED = [f"admitted, {left} left" for left in (4, 3, 2, 1, 0)]
UNCOUNTED = ["admitted, not counted"] * 6
POLICY = {"default": (5, 60)}


@pytest.fixture(scope="module")
def server(one_engine: str) -> Iterator[RedisServer]:
    """`app` has the rights of the line in docs/operations.md and `narrow` the same rights on other
    keys. The user of clients without a password has no rights.
    """
    with harness.server(one_engine) as made:
        with made.raw() as raw:
            assert raw.ask("ACL", "SETUSER", "app", *RULES) == "OK"
            assert raw.ask("ACL", "SETUSER", "narrow", *RULES, "resetkeys", "~other:*") == "OK"
            assert raw.ask("ACL", "SETUSER", "default", "resetpass", ">secret") == "OK"
        yield made


def admin(server: RedisServer) -> Raw:
    """A connection that has every right."""
    raw = server.raw()
    assert raw.ask("AUTH", "secret") == "OK"
    return raw


@pytest.fixture(scope="module")
def front(server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """One proxy for the module."""
    file = tmp_path_factory.mktemp("settings") / "rlproxy.toml"
    file.write_text('[policies]\nlogin = "5 60"\n')
    with harness.proxy(server, "--config", str(file)) as made:
        yield made


@pytest.fixture
def url(front: Proxy, server: RedisServer) -> str:
    """The proxy's URL, in front of an empty server."""
    with admin(server) as raw:
        raw.ask("FLUSHALL")
        raw.ask("SET", "limit:text", "x")
    return f"redis://app:secret@127.0.0.1:{front.port}"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory in which the examples run."""
    return examples.copied(tmp_path_factory.mktemp("run"))


# -- programs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "policy"),
    [*((program, ()) for program in PROGRAMS), (PROGRAMS[1], ("login",))],
    ids=lambda value: value.file if isinstance(value, Example) else " ".join(value),
)
def test_five_are_admitted_and_the_sixth_is_refused(
    program: Example, policy: tuple[str, ...], directory: Path, url: str
) -> None:
    """By the program's rule, and by that of a policy."""
    if missing := program.client.missing():
        pytest.skip(missing)
    program.prepare(directory)
    for attempt in range(1, ATTEMPTS + 1):
        process = program.start(directory, url, f"limit:{attempt}", *policy)
        output, errors = process.communicate(timeout=DEADLINE_S)
        if "not counted" not in output or attempt == ATTEMPTS:
            break
    *admitted, refused = output.splitlines()
    assert (admitted, errors, process.returncode) == (ADMITTED, "", 0)
    assert re.fullmatch(r"refused, again in (59|60) s", refused)


class Cutting(Gate):
    """A gate that cuts a connection after a hit has passed and before its reply."""

    hits = 0

    def sends(self, pipe: Pipe, sent: bytes) -> None:
        """See Gate.sends()."""
        if b"RL.HIT" in sent.upper():
            self.hits += 1
            pipe.hold()
            threading.Timer(CUT_S, pipe.cut).start()


def prepared(directory: Path) -> list[Example]:
    """The programs whose client is installed."""
    programs = [program for program in PROGRAMS if not program.client.missing()]
    assert programs, "no client is installed"
    for program in programs:
        program.prepare(directory)
    return programs


def ended(process: subprocess.Popen[str], end: float) -> tuple[str, str]:
    """The output of a process; a process that runs until `end` is killed, which its stderr
    shows.
    """
    try:
        return process.communicate(timeout=max(0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
        return output, f"{errors}\nnot ended after {ALL_S:g} s"


def test_hits_without_an_answer_are_admitted(
    directory: Path, front: Proxy, one_engine: str
) -> None:
    """Nothing listens (`away`), no reply comes (`silent`), Redis is down behind the proxy (`no
    redis`), Redis has no memory (`full`), or the connection is lost after the hit (`cut`). All
    programs run at once, because they mostly wait. It is one test, so that no two pytest processes
    run them.
    """
    programs = prepared(directory)
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(harness.server(one_engine, "--maxmemory", "1"))
        before = stack.enter_context(harness.proxy(full.url))
        down = stack.enter_context(harness.proxy(f"redis://127.0.0.1:{harness.free_port()}"))
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=128))
        cuts = {program.file: Cutting(front.port) for program in programs}
        for cut in cuts.values():
            stack.callback(cut.close)
        ports = {
            "away": f"127.0.0.1:{harness.free_port()}",
            "silent": f"127.0.0.1:{silent.getsockname()[1]}",
            "no redis": f"app:secret@127.0.0.1:{down.port}",
            "full": f"127.0.0.1:{before.port}",
        }
        running = [
            (program, case, program.start(directory, f"redis://{place}", "limit:k"))
            for program in programs
            for case, place in {
                **ports,
                "cut": f"app:secret@127.0.0.1:{cuts[program.file].port}",
            }.items()
        ]
        wrong = {}
        end = time.monotonic() + ALL_S
        for program, case, process in running:
            output, errors = ended(process, end)
            right = (
                output.splitlines() == UNCOUNTED
                and len(re.findall("^RL.HIT: .", errors, re.MULTILINE)) == 6
                and process.returncode == 0
            )
            if not right:
                wrong[f"{program.file}, {case}"] = (process.returncode, output, errors)
            if cuts[program.file].hits > 6:
                wrong[f"{program.file}, hits sent"] = (cuts[program.file].hits, output, errors)
        assert wrong == {}
        # On a busy machine a program may need more than half a second to connect.
        assert any(cut.hits for cut in cuts.values())


UNABLE = ["UPSTREAMDOWN", *(error[1:].decode().strip() for error in CANNOT_RUN)]


def test_programs_name_the_errors_of_a_redis_that_cannot_run_hits() -> None:
    files = [program.file for program in PROGRAMS] + ["express/rate_limit.js"]
    for file in files:
        text = (EXAMPLES / file).read_text()
        missing = [code for code in UNABLE if not re.search(rf"\b{code}\b", text)]
        assert missing == [] or file.endswith(".py"), file  # redis-py has classes for most of them


def test_redis_py_takes_these_errors_for_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES / "asgi"))
    away = importlib.import_module("rate_limit").away
    parser: Any = BaseParser
    for code in UNABLE:
        assert away(parser.parse_error(f"{code} for a reason")), code
    for code in ("ERR", "NOPERM", "WRONGTYPE", "WRONGPASS", "NOAUTH", "BUSYGROUP"):
        assert not away(parser.parse_error(f"{code} for a reason")), code


# Configuration errors, and the subject of the error reply to each.
MISTAKES = {
    # redis-cli 6 prints no reason
    "wrong password": ("app:wrong@", "invalid username-password pair|AUTH failed"),
    "no password": ("", "(?i)authenticat"),
    "other keys": ("narrow:secret@", "(?i)no permissions|NOPERM"),
    "another type": ("app:secret@", "holding the wrong kind of value"),
    "not the proxy": ("app:secret@", "unknown command"),
}

WRONG_RULE = "max is 1 to 1000000 with ALGO LOG"


def url_with_error(case: str, front: Proxy, server: RedisServer) -> str:
    """The URL with which the program has this configuration error."""
    port = server.port if case == "not the proxy" else front.port
    return f"redis://{MISTAKES[case][0]}127.0.0.1:{port}"


# For each client an error of its login and one of a command.
@pytest.mark.parametrize("case", ["wrong password", "not the proxy"])
def test_configuration_error_ends_a_program(
    case: str, directory: Path, front: Proxy, server: RedisServer, url: str
) -> None:
    """None of its hits is admitted, and one line on stderr gives the reason."""
    programs = prepared(directory)
    wrong: dict[str, tuple[int, str, str]] = {}
    for _ in range(ATTEMPTS):
        running = [
            (program, program.start(directory, url_with_error(case, front, server), "limit:k"))
            for program in programs
        ]
        end = time.monotonic() + ALL_S
        printed = [(*both, *ended(both[1], end)) for both in running]
        programs = []
        for program, process, output, errors in printed:
            reason = re.fullmatch("RL.HIT: .*\n", errors) and re.search(MISTAKES[case][1], errors)
            if "not counted" in output:
                programs.append(program)  # repeat: half a second is short on a busy machine
            elif output or not reason or process.returncode <= 0:
                wrong[program.file] = (process.returncode, output, errors)
    assert (wrong, programs) == ({}, [])


# -- ASGI ------------------------------------------------------------------------------------------


@asynccontextmanager
async def asgi(name: str, url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """The module of an application of examples/asgi, and an HTTP client for it as `http`."""
    httpx = pytest.importorskip("httpx")
    pytest.importorskip(name.removeprefix("app_"))
    monkeypatch.setenv("REDIS_URL", url)
    monkeypatch.syspath_prepend(str(EXAMPLES / "asgi"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for used in ("rate_limit", name):
        monkeypatch.delitem(sys.modules, used, raising=False)
    module: Any = importlib.import_module(name)
    patient = {"socket_timeout": DEADLINE_S, "socket_connect_timeout": DEADLINE_S}
    module.client.connection_pool.connection_kwargs.update(patient)
    transport = httpx.ASGITransport(module.app, client=("203.0.113.9", 4711))
    async with (
        module.app.router.lifespan_context(module.app),
        httpx.AsyncClient(transport=transport, base_url="http://test") as http,
    ):
        module.http = http
        yield module


def fields_of_the_page(reply: list[int]) -> dict[str, str]:
    """The result of the function in http-headers.md, without the fields that the examples lack."""
    _, fields = documents.rate_limit()(reply, POLICY, 0)
    return {name: text for name, text in fields.items() if not name.startswith("X-")}


def limit_fields(headers: Any) -> dict[str, str]:
    """The header fields about limits."""
    names = ("Retry-After", "RateLimit-Policy", "RateLimit")
    return {name: headers[name] for name in names if name in headers}


def expected(number: int, window_s: tuple[int, ...] = (60, 59)) -> list[tuple[int, dict[str, str]]]:
    """Status and fields of request number n, from 0; a second may have passed."""
    if number < 5:
        return [(200, fields_of_the_page([0, 5, 4 - number, -1, left])) for left in window_s]
    return [
        (429, fields_of_the_page([1, 5, 0, wait, left]))
        for wait in window_s
        for left in window_s
        if wait <= left
    ]


@pytest.mark.parametrize("name", ["app_starlette", "app_fastapi"])
async def test_asgi_sends_limit_fields_and_refuses(
    name: str, url: str, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asgi(name, url, monkeypatch) as module:
        for number in range(7):
            answer = await module.http.get("/")
            assert (answer.status_code, limit_fields(answer.headers)) in expected(number)
            if number < 5:
                assert answer.json() == {"hello": "world"}
            else:
                assert answer.headers["Content-Type"] == "application/problem+json"
                assert answer.json()["status"] == 429
                assert answer.json()["violated-policies"] == ["default"]
        with admin(server) as raw:
            raw.ask("DEL", "limit:text")
            assert raw.ask("KEYS", "*") == [b"limit:203.0.113.9"]


def of_policy(
    answers: list[tuple[int, dict[str, str]]],
) -> list[tuple[int, dict[str, str]]]:
    """The same with a policy: its name, and no window, which the reply lacks."""
    return [
        (
            status,
            {
                name: text.replace("default", "login").replace(";w=60", "")
                for name, text in fields.items()
            },
        )
        for status, fields in answers
    ]


async def test_asgi_takes_the_rule_of_a_policy(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with asgi("app_starlette", url, monkeypatch) as module:
        given = module.app.user_middleware[0].kwargs
        del given["max"], given["window"]
        given["policy"] = "login"
        for number in range(7):
            answer = await module.http.get("/")
            found = (answer.status_code, limit_fields(answer.headers))
            assert found in of_policy(expected(number))
        assert answer.json()["violated-policies"] == ["login"]


REPLIES = [[0, 5, 2, -1, 60], [1, 5, 0, 12, 59], [1, 5, 0, 600, 600]]


async def test_asgi_fields_equal_those_of_the_documented_function(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asgi("app_starlette", url, monkeypatch) as module:
        limit = module.RateLimit(module.app, redis=module.client, max=5, window=60)
        for reply in REPLIES:
            assert limit.fields(reply) == fields_of_the_page(reply)


@pytest.mark.parametrize("fail_open", [True, False])
async def test_asgi_without_an_answer_follows_its_setting(
    fail_open: bool,
    own_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Requests pass or get 503, as configured; one log line when that begins and one when it
    ends.
    """
    with harness.proxy(own_server) as proxy:
        url = f"redis://127.0.0.1:{proxy.port}"
        own_server.stop()
        async with asgi("app_starlette", url, monkeypatch) as module:
            module.app.user_middleware[0].kwargs["fail_open"] = fail_open
            for _ in range(3):
                answer = await module.http.get("/")
                assert answer.status_code == (200 if fail_open else 503)
                assert limit_fields(answer.headers) == {}
            own_server.start()
            deadline = time.monotonic() + DEADLINE_S
            while not limit_fields((answer := await module.http.get("/")).headers):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)
            assert (answer.status_code, limit_fields(answer.headers)) in expected(0)
    begun, over = caplog.messages
    how = "not counted" if fail_open else "answered 503"
    assert re.match(f"requests are {how}: UPSTREAMDOWN", begun)
    assert over == "requests are counted again"


@pytest.mark.parametrize("fail_open", [True, False])
@pytest.mark.parametrize("case", [*MISTAKES, "wrong rule"])
async def test_asgi_with_a_configuration_error_fails_every_request(
    case: str,
    fail_open: bool,
    front: Proxy,
    server: RedisServer,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No request passes, and one log line gives the reason."""
    where, why = url, WRONG_RULE
    if case in MISTAKES:
        where, why = url_with_error(case, front, server), MISTAKES[case][1]
    async with asgi("app_starlette", where, monkeypatch) as module:
        given = module.app.user_middleware[0].kwargs
        given["fail_open"] = fail_open
        if case == "another type":
            given["key"] = lambda scope: "limit:text"
        if case == "wrong rule":
            given["max"] = 0
        for _ in range(7):
            answer = await module.http.get("/")
            assert (answer.status_code, limit_fields(answer.headers)) == (500, {})
            assert answer.json() == {"title": "Internal Server Error", "status": 500}
    (line,) = caplog.messages
    assert line.startswith("requests are answered 500, the rate limit is misconfigured: ")
    assert re.search(why, line)


async def test_asgi_without_a_proxy_passes_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"redis://127.0.0.1:{harness.free_port()}"
    async with asgi("app_starlette", url, monkeypatch) as module:
        assert (await module.http.get("/")).json() == {"hello": "world"}


async def test_asgi_does_not_limit_requests_without_a_key(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asgi("app_starlette", url, monkeypatch) as module:
        module.app.user_middleware[0].kwargs["key"] = lambda scope: None
        answers = [await module.http.get("/") for _ in range(6)]
        assert [answer.status_code for answer in answers] == [200] * 6
        assert limit_fields(answers[0].headers) == {}


# -- Express ---------------------------------------------------------------------------------------


@pytest.fixture
def express() -> Iterator[Any]:
    """Starts a script that prints the address it listens on, and returns the address."""
    client = CLIENTS["express"]
    if missing := client.missing() or CLIENTS["node-redis"].missing():
        pytest.skip(missing)
    started = []

    def start(url: str, script: str = "require('./app.js')", errors: Any = None) -> str:
        process = subprocess.Popen(
            [str(client.path()), "-e", script],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=EXAMPLES / "express",
            env=examples.environment(REDIS_URL=url, PORT="0"),
        )
        started.append(process)
        assert process.stdout is not None
        found = re.fullmatch(r"listening on (http://127.0.0.1:\d+)\n", process.stdout.readline())
        assert found is not None
        return found[1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def get(address: str) -> tuple[int, Message, Any]:
    """Status, header fields and body."""
    try:
        with urllib.request.urlopen(address, timeout=DEADLINE_S) as answer:
            return answer.status, answer.headers, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, json.load(error)


def seven_answers(address: str, server: RedisServer) -> list[tuple[int, Message, Any]]:
    """The answers to seven requests on an empty server."""
    for _ in range(ATTEMPTS):
        with admin(server) as raw:
            raw.ask("FLUSHALL")
        answers = [get(address) for _ in range(7)]
        # otherwise half a second was too short
        if all("RateLimit" in headers for _, headers, _ in answers):
            break
    return answers


def test_express_sends_limit_fields_and_refuses(
    express: Any, url: str, server: RedisServer
) -> None:
    for number, (status, headers, body) in enumerate(seven_answers(express(url), server)):
        assert (status, limit_fields(headers)) in expected(number)
        if number < 5:
            assert body == {"hello": "world"}
        else:
            assert headers["Content-Type"].startswith("application/problem+json")
            assert (body["status"], body["violated-policies"]) == (429, ["default"])


def test_express_takes_the_rule_of_a_policy(express: Any, url: str, server: RedisServer) -> None:
    client, rule = NODE_CLIENTS["node-redis"], 'policy: "login"'
    route = ROUTE.format(url=url, client=client, number=0, rule=rule, key="limit:k")
    address = express("", SERVER.format(routes=route))
    answers = seven_answers(f"{address}/0", server)
    for number, (status, headers, _) in enumerate(answers):
        assert (status, limit_fields(headers)) in of_policy(expected(number))


def test_express_without_a_proxy_passes_requests(express: Any) -> None:
    status, headers, body = get(express(f"redis://127.0.0.1:{harness.free_port()}"))
    assert (status, limit_fields(headers), body) == (200, {}, {"hello": "world"})


# As app.js, with the test's own routes.
SERVER = """
const {{ once }} = require("node:events");
const app = require("express")();
const {{ rateLimit }} = require("./rate_limit.js");
const waits = [];
{routes}
Promise.all(waits).then(() => {{
  const server = app.listen(0, "127.0.0.1", () => {{
    console.log(`listening on http://127.0.0.1:${{server.address().port}}`);
  }});
}});
"""
# A route with its own client, rule and key.
ROUTE = """
{{
  const url = "{url}";
  {client}
  app.get("/{number}", rateLimit({{ client, call, {rule}, key: () => "{key}" }}),
          (request, response) => response.json({{ hello: "world" }}));
  waits.push(once(client, "ready", {{ signal: AbortSignal.timeout(5000) }}).catch(() => {{}}));
}}
"""
NODE_CLIENTS = {
    "node-redis": """
const client = require("redis").createClient({ url, disableOfflineQueue: true });
const call = (...words) => client.sendCommand(words);
client.connect().catch(() => {});
""",
    "ioredis": """
const client = new (require("ioredis").Redis)(url, {
  maxRetriesPerRequest: 0, enableReadyCheck: false });
const call = (...words) => client.call(...words);
""",
}


@pytest.mark.parametrize(
    ("client", "cases"),
    [
        ("node-redis", (*MISTAKES, "wrong rule")),
        ("ioredis", ("wrong password", "not the proxy")),
    ],
)
def test_express_with_a_configuration_error_fails_every_request(
    cases: tuple[str, ...],
    client: str,
    front: Proxy,
    server: RedisServer,
    url: str,
    express: Any,
    tmp_path: Path,
) -> None:
    """No request passes, and one log line gives the reason."""
    if missing := CLIENTS[client].missing():
        pytest.skip(missing)
    routes = [
        ROUTE.format(
            url=url_with_error(case, front, server) if case in MISTAKES else url,
            client=NODE_CLIENTS[client],
            number=number,
            rule=f"max: {5 if case in MISTAKES else 0}, window: 60",
            key="limit:text" if case == "another type" else "limit:k",
        )
        for number, case in enumerate(cases)
    ]
    path = tmp_path / "errors"
    with open(path, "wb") as errors:
        address = express("", SERVER.format(routes="".join(routes)), errors)
    for number, case in enumerate(cases):
        for _ in range(7):
            status, headers, body = get(f"{address}/{number}")
            assert (status, limit_fields(headers)) == (500, {})
            assert body == {"title": "Internal Server Error", "status": 500}
        *_, line = lines = path.read_text().splitlines()
        assert len(lines) == number + 1
        assert line.startswith("requests are answered 500, the rate limit is misconfigured: ")
        assert re.search(MISTAKES.get(case, ("", WRONG_RULE))[1], line)


GIVEN = """
const app = require("express")();
const { rateLimit } = require("./rate_limit.js");
const client = new (require("node:events"))();
app.use(rateLimit({ client, call: async (name, key) => JSON.parse(key), max: 5, window: 60,
                    key: (request) => request.query.reply }));
app.get("/", (request, response) => response.json({ hello: "world" }));
const server = app.listen(0, "127.0.0.1", () => {
  console.log(`listening on http://127.0.0.1:${server.address().port}`);
});
"""


def test_express_fields_equal_those_of_the_documented_function(express: Any) -> None:
    address = express("", GIVEN)
    for reply in REPLIES:
        status, headers, _ = get(f"{address}/?reply={quote(json.dumps(reply))}")
        assert (status, limit_fields(headers)) == (
            429 if reply[0] else 200,
            fields_of_the_page(reply),
        )


FAILING = """
const app = require("express")();
const { rateLimit } = require("./rate_limit.js");
const client = new (require("node:events"))();
app.use(rateLimit({ client, call: () => new Promise(() => {}), max: 5, window: 60, timeout: 20,
                    key: (request) => request.query.key ?? null, failOpen: false }));
app.get("/", (request, response) => response.json({ hello: "world" }));
const server = app.listen(0, "127.0.0.1", () => {
  console.log(`listening on http://127.0.0.1:${server.address().port}`);
});
"""


def test_express_can_fail_closed(express: Any) -> None:
    address = express("", FAILING)
    assert get(f"{address}/?key=k")[0] == 503
    assert get(address)[0] == 200


# -- keys by address -------------------------------------------------------------------------------

ADDRESSES = {
    "10.1.2.3": "limit:10.1.2.3",
    "::ffff:10.1.2.3": "limit:10.1.2.3",
    "2001:db8:0:1::7": "limit:2001:0db8:0000:0001",
    "2001:0DB8:0:1:f:e:d:c": "limit:2001:0db8:0000:0001",
    "2001:db8:1:2:3:4:5::": "limit:2001:0db8:0001:0002",
    "fe80::1": "limit:fe80:0000:0000:0000",
    "::1": "limit:0000:0000:0000:0000",
}


def test_asgi_clients_of_one_ipv6_network_share_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES / "asgi"))
    by_address = importlib.import_module("rate_limit").by_address
    keys = {address: by_address({"client": (address, 1)}) for address in ADDRESSES}
    assert keys == ADDRESSES
    assert by_address({"client": None}) is None


def test_express_clients_of_one_ipv6_network_share_a_key() -> None:
    if CLIENTS["express"].missing():
        pytest.skip(CLIENTS["express"].missing())
    program = "console.log(JSON.stringify(process.argv.slice(2).map((ip) => byAddress({ ip }))))"
    words = ["node", "-e", f'const {{ byAddress }} = require("./rate_limit.js"); {program}', "-"]
    done = subprocess.run(
        [*words, *ADDRESSES],
        cwd=EXAMPLES / "express",
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert json.loads(done.stdout) == list(ADDRESSES.values()), done.stderr


# -- the page --------------------------------------------------------------------------------------


def test_every_example_is_run() -> None:
    found = {
        str(path.relative_to(EXAMPLES))
        for path in EXAMPLES.rglob("*.*")
        if "__pycache__" not in path.parts
    }
    known = {example.file for example in (*PROGRAMS, *SERVICES)}
    assert found == known | {"asgi/rate_limit.py", "express/rate_limit.js"}


def test_table_lists_every_example_with_its_version() -> None:
    rows = documents.rows(PAGE.read_text(), "| example | client")
    wanted = documents.rows("\n" + examples.table(), "| example | client")
    versions = r"\d+(\.\d+)+"
    assert [[re.sub(versions, "", cell) for cell in row[::3]] for row in rows] == [
        [re.sub(versions, "", cell) for cell in row[::3]] for row in wanted
    ]
    for row in rows:
        assert re.search(versions, row[1]), f"{row}: run it where it is installed"


def test_number_of_examples_equals_the_documented_one() -> None:
    clients = {program.client.name for program in PROGRAMS}
    languages = {program.client.runtime for program in PROGRAMS}
    assert (len(clients), len(languages)) == (9, 8)
    assert "nine clients in eight languages" in (ROOT / "docs" / "index.md").read_text()
    assert "nine clients" in (ROOT / "docs" / "tutorial.md").read_text()


def test_wrong_usage_of_the_table_command_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert examples.main([]) == 2
    assert "usage" in capsys.readouterr().err
    with pytest.raises(ValueError, match="examples"):
        examples.filled("no markers")
