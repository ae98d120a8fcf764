r"""Actions without a proxy: from the body to the command, tokens, sizes and methods."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from rlproxy.admin import actions
from rlproxy.admin.actions import MAX_BODY, Actions, command_of
from rlproxy.admin.app import Pages, application
from rlproxy.admin.reader import Reader
from rlproxy.config.config import Config
from rlproxy.config.urls import Address, Upstream
from rlproxy.observability.log_throttle import LogThrottle
from rlproxy.observability.shared_memory import SharedMemory
from rlproxy.observability.snapshots import Reloaded
from starlette.exceptions import HTTPException

TOKEN = "0123456789abcdef"
RIGHT = {"authorization": f"Bearer {TOKEN}"}
PEEK = {"action": "peek", "key": "k", "rule": "5 60"}


def words(**body: object) -> list[bytes]:
    return list(command_of(json.dumps(body).encode()).words)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (PEEK, b"RL.PEEK k 5 60"),
        ({**PEEK, "rule": " 5  60\talgo token "}, b"RL.PEEK k 5 60 algo token"),
        ({**PEEK, "rule": "POLICY login"}, b"RL.PEEK k POLICY login"),
        ({**PEEK, "seconds": "9"}, b"RL.PEEK k 5 60"),
        ({"action": "block", "key": "k", "seconds": 600}, b"RL.BLOCK k 600"),
        ({"action": "block", "key": "k", "seconds": 0.5}, b"RL.BLOCK k 0.5"),
        ({"action": "block", "key": "k", "seconds": "600"}, b"RL.BLOCK k 600"),
        (
            {"action": "block", "key": "k", "seconds": 1, "rule": "5 60 BURST 9 algo token MS"},
            b"RL.BLOCK k 1 algo token",
        ),
        (
            {"action": "block", "key": "k", "seconds": 1, "rule": "POLICY login"},
            b"RL.BLOCK k 1 POLICY login",
        ),
        ({"action": "block", "key": "k", "seconds": 1, "rule": "5 60"}, b"RL.BLOCK k 1"),
        ({"action": "unblock", "key": "k"}, b"RL.BLOCK k 0"),
        ({"action": "reset", "key": "k", "rule": "5 60"}, b"RL.RESET k"),
        ({"action": "reload"}, b""),
    ],
)
def test_command_of_a_body(body: dict[str, object], expected: bytes) -> None:
    assert words(**body) == expected.split()


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "the body is no JSON object"),
        (b"[]", "the body is no JSON object"),
        (b"{", "the body is no JSON object"),
        (b"\xff\xfe\xfd", "the body is no JSON object"),
        (b"[" * MAX_BODY, "the body is no JSON object"),
        (b"{}", "action: expected one of peek, block, unblock, reset, reload"),
        (b'{"action": "PEEK"}', "action: expected one of"),
        (b'{"action": null}', "action: expected a text"),
        (b'{"action": ["peek"]}', "action: expected a text"),
        (b'{"action": "peek", "key": "k"}', "the action peek needs the field rule"),
        (b'{"action": "peek", "rule": "5 60"}', "the action peek needs the field key"),
        (b'{"action": "block", "key": "k"}', "the action block needs the field seconds"),
        (b'{"action": "reset"}', "the action reset needs the field key"),
        (b'{"action": "reset", "key": 5}', "key: expected a text"),
        (b'{"action": "reset", "key": "\\ud800"}', "a text contains half of a surrogate pair"),
        (b'{"action": "peek", "key": "k", "rule": "\\ud800"}', "a text contains half"),
        (
            b'{"action": "block", "key": "k", "seconds": true}',
            "seconds: expected a text or a number",
        ),
        (b'{"action": "reset", "keys": "k"}', "unknown field keys; known: action, key, rule, "),
        (b'{"\\n": 1}', "unknown field \\x0a"),
    ],
)
def test_wrong_bodies(body: bytes, why: str) -> None:
    with pytest.raises(HTTPException) as caught:
        command_of(body)
    assert caught.value.status_code == 400
    assert caught.value.detail.startswith(why)


# -- over HTTP -------------------------------------------------------------------------------------


class Site:
    """The application with actions, and its log. Nothing listens where the proxy should be."""

    def __init__(self, tmp_path: Path) -> None:
        self.token_file = tmp_path / "token"
        self.token_file.write_text(f"{TOKEN}\n")
        self.token_file.chmod(0o600)
        nowhere = Address(path=str(tmp_path / "nothing.sock"))
        config = Config(
            (nowhere,), Upstream(None, "bob", "hunter2"), admin_token_file=str(self.token_file)
        )
        self.log: list[str] = []
        throttle = LogThrottle(lambda: 0.0, self.write)
        self.reloaded = Reloaded()
        made = Actions(config, -1, lambda: self.reloaded, throttle)
        self.application = application(Pages(Reader(SharedMemory(1)), made), True, throttle)

    def write(self, _: str, text: str, **fields: object) -> None:
        self.log.append(text.format(**fields))

    async def ask(self, method: str = "POST", path: str = "/actions", **more: Any) -> Any:
        transport = httpx.ASGITransport(self.application, client=("10.0.0.9", 5))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, **more)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(actions, "WRONG_TOKEN_S", 0.0)
    return Site(tmp_path)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (None, "no token: expected the header Authorization: Bearer TOKEN"),
        (f"Basic {TOKEN}", "no token: expected the header Authorization: Bearer TOKEN"),
        (TOKEN, "no token: expected the header Authorization: Bearer TOKEN"),
        ("Bearer", "wrong token"),
        (f"Bearer {TOKEN}x", "wrong token"),
        (f"Bearer {TOKEN[:-1]}", "wrong token"),
        (f"Bearer x {TOKEN}", "wrong token"),
    ],
)
async def test_requests_without_the_token_get_nothing(site: Site, given: Any, why: str) -> None:
    headers = {} if given is None else {"authorization": given}
    for _ in range(3):  # without the token, the body does not matter
        found = await site.ask(headers=headers, content=b"x" * 10 * MAX_BODY)
        assert (found.status_code, found.json()) == (401, {"error": why})
        assert found.headers["www-authenticate"] == "Bearer"
    one = "requests for actions with a wrong token: 1 (the latest: 10.0.0.9:5)"
    assert site.log == ([one] if why == "wrong token" else [])


async def test_long_body_is_refused(site: Site) -> None:
    for size, status in ((MAX_BODY, 400), (MAX_BODY + 1, 413)):
        assert (await site.ask(headers=RIGHT, content=b"x" * size)).status_code == status

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(MAX_BODY):
            yield b"xx"

    found = await site.ask(headers=RIGHT, content=pieces())
    assert (found.status_code, found.json()) == (
        413,
        {"error": "the body has more than 4096 bytes"},
    )


async def test_a_reload_is_answered_by_its_own_outcome(site: Site) -> None:
    site.reloaded = Reloaded(time.monotonic(), ["of a reload before"], [])
    asked = asyncio.create_task(site.ask(headers=RIGHT, json={"action": "reload"}))
    await asyncio.sleep(2 * actions.LOOK_S)
    assert not asked.done()
    site.reloaded = Reloaded(time.monotonic(), [], ["--workers"])
    found = await asked
    assert (found.status_code, found.json()) == (200, {"reply": "OK", "restart": ["--workers"]})
