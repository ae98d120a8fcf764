"""config: defaults, rules between settings, and the changes that SIGHUP makes."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import rlproxy
from rlproxy.config import config
from rlproxy.config.urls import Address, Upstream

from tests.unit.config.loading import ADMIN, REDISS, TLS, load, mistakes

PACKAGE = Path(rlproxy.__file__).parent
ACTIONS = (*ADMIN, "--admin-actions", "--admin-token-file", "t")


def test_defaults() -> None:
    made = load()
    assert made.listen == (Address("127.0.0.1", 6380),)
    assert made.upstream == Upstream(None)
    assert (made.connect_timeout_s, made.drain_timeout_s) == (5, 10)


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["--listen", "tls::1"], "--listen tls: needs --tls-cert and --tls-key"),
        ([*TLS[:4]], "--listen tls: needs --tls-cert and --tls-key"),
        ([*TLS[2:4]], "--tls-cert: no address of --listen has TLS"),
        (
            [*TLS, "--tls-client-auth", "optional"],
            "--tls-client-auth optional: it needs --tls-client-ca",
        ),
        (["--tls-client-ca", "x"], "--tls-client-ca: no address of --listen has TLS"),
        ([*REDISS[:4]], "--upstream-tls-cert and --upstream-tls-key go together"),
        (["--upstream-tls-ca", "x"], "--upstream-tls-ca: the URL of --upstream has no TLS"),
        (["--announce", "h:1"], "--announce: the URL of --upstream has no cluster"),
        (["--present", "standalone"], "--present: the URL of --upstream has no cluster"),
        (["--cross-slot", "error"], "--cross-slot: the URL of --upstream has no cluster"),
        (["--admin-token-file", "t"], "--admin-token-file: --admin-actions is not yes"),
        (["--admin-actions", "--admin-token-file", "t"], "--admin-actions: it needs --admin"),
        ([*ADMIN, "--admin-actions"], "--admin-actions: it needs --admin-token-file"),
        ([*ACTIONS, "--proxy-protocol"], "--admin-actions: the admin process can't connect to"),
        ([*ACTIONS, *TLS, "--tls-client-ca", "x"], "--admin-actions: the admin process can't"),
        (["--proxy-protocol", "--listen", "unix:/s"], "--proxy-protocol: no address of --listen"),
        (["--listen", "h:1", "--listen", "h:1"], "--listen: one address is given twice"),
        (["--listen", "unix:/s", "--listen", "unix:/s"], "--listen: one address is given twice"),
    ],
)
def test_settings_that_contradict(argv: list[str], why: str) -> None:
    assert mistakes(*argv)[0].startswith(why)


@pytest.mark.parametrize(
    ("listen", "upstream"),
    [
        ("127.0.0.1:7000", "redis://127.0.0.1:7000"),
        ("127.0.0.1:7000", "redis://localhost:7000"),
        ("0.0.0.0:7000", "redis://127.0.0.1:7000"),
        ("unix:/tmp/s", "unix:///tmp/s"),
        ("127.0.0.1:7000", "redis+cluster://h:7000,localhost:7000"),
    ],
)
def test_a_proxy_behind_itself_is_a_mistake(listen: str, upstream: str) -> None:
    (line,) = mistakes("--listen", listen, "--upstream", upstream)
    assert "where the proxy itself listens" in line


@pytest.mark.parametrize(
    ("url", "args", "shares"),
    [
        ("redis://h", [], False),
        ("redis://h", ["--share", "auto"], False),
        ("redis://h?standalone=yes", [], False),
        ("redis+sentinel://h/m", [], False),
        ("embedded:", [], False),
        ("redis://h", ["--share"], True),
        ("redis+cluster://h", [], True),
        ("rediss+cluster://h", [], True),
        ("embedded:cluster", [], True),
        ("embedded:cluster", ["--share", "auto"], True),
        ("redis+cluster://h", ["--share", "no"], False),
        ("redis+cluster://h", ["--share=no"], False),
    ],
)
def test_ordinary_commands_are_shared_by_default_on_a_cluster(
    url: str, args: list[str], shares: bool
) -> None:
    assert load("--upstream", url, *args).shares == shares


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("--proxy-protocol", "--listen", ":1", "--listen", "unix:/s"),
        (*TLS, "--tls-client-ca", "x", "--tls-client-auth", "optional"),
        (*TLS, "--tls-client-ca", "x", "--listen", ":2"),
    ],
)
def test_actions_need_one_address_without_header_and_certificate(argv: tuple[str, ...]) -> None:
    assert load(*ACTIONS, *argv).admin_actions


def test_what_a_reload_may_change() -> None:
    old = load("--workers", "2", "--hit-timeout", "1")
    new = load("--workers", "3", "--hit-timeout", "2")
    may, may_not = config.differences(old, new)
    assert [option.flag for option in may] == ["--hit-timeout"]
    assert [option.flag for option in may_not] == ["--workers"]
    made = config.reloaded(old, new)
    assert (made.workers, made.hit_timeout_ms) == (2, 2)


def test_each_option_is_read_outside_the_package_config() -> None:
    source = "".join(
        path.read_text() for path in PACKAGE.rglob("*.py") if path.parent.name != "config"
    )
    for field in dataclasses.fields(config.Config):
        assert re.search(rf"\.{field.name}s?\b", source), field.name  # `share` as `shares`
