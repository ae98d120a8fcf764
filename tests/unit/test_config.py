"""config: every option from both places, every mistake at once, no password in any message."""

from __future__ import annotations

import dataclasses

import pytest

from proxy import config
from proxy.config import Address, Config, ConfigError, Upstream


def load(*argv: str, **environ: str) -> Config:
    return config.load(config.parser().parse_args(list(argv)), environ)


def mistakes(*argv: str, **environ: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load(*argv, **environ)
    return caught.value.mistakes


def test_defaults() -> None:
    made = load()
    assert made.listen == (Address("127.0.0.1", 6380),)
    assert made.upstream == Upstream(None)
    assert not made.upstream_given
    assert (made.connect_timeout_s, made.drain_timeout_s, made.private_refresh_s) == (5, 10, 30)


REDIS = Upstream(Address("h", 6379))

OPTIONS = [
    ("--listen", ":1", "listen", (Address("127.0.0.1", 1),)),
    ("--upstream", "redis://h", "upstream", REDIS),
    ("--connect-timeout", "0.25", "connect_timeout_s", 0.25),
    ("--drain-timeout", "7", "drain_timeout_s", 7.0),
    ("--private-refresh", "1e2", "private_refresh_s", 100.0),
    ("--denial-cache", "0", "denial_cache", 0),
    ("--share", "yes", "share", True),
    ("--workers", "2", "workers", 2),
]


def variable(flag: str) -> str:
    return "RLPROXY_" + flag.removeprefix("--").replace("-", "_").upper()


def test_the_table_above_is_complete() -> None:
    assert [row[0] for row in OPTIONS] == [option.flag for option in config.OPTIONS]
    assert [variable(row[0]) for row in OPTIONS] == [option.variable for option in config.OPTIONS]


@pytest.mark.parametrize(("flag", "text", "field", "value"), OPTIONS)
def test_option(flag: str, text: str, field: str, value: object) -> None:
    assert getattr(load(flag, text), field) == value
    assert getattr(load(f"{flag}={text}"), field) == value
    assert getattr(load(**{variable(flag): text}), field) == value
    # an empty variable is none, and the others keep their defaults
    assert load(**{variable(flag): ""}) == load()
    others = {each.name for each in dataclasses.fields(Config)} - {field, "upstream_given"}
    for other in others:
        assert getattr(load(flag, text), other) == getattr(load(), other)


@pytest.mark.parametrize("flag", [row[0] for row in OPTIONS])
def test_the_command_line_wins(flag: str) -> None:
    text = next(row[1] for row in OPTIONS if row[0] == flag)
    assert load(flag, text, **{variable(flag): "nonsense"}) == load(flag, text)


def test_a_switch_needs_no_word() -> None:
    assert load("--share").share
    assert load("--share", "--listen", ":1").listen == (Address("127.0.0.1", 1),)
    assert not load("--share=no", RLPROXY_SHARE="yes").share
    assert load(RLPROXY_SHARE="YES").share


@pytest.mark.parametrize(
    ("flag", "text", "why"),
    [
        ("--denial-cache", "-1", "expected a whole number from 0 to 100000000"),
        ("--denial-cache", "1e3", "expected a whole number from 0 to 100000000"),
        ("--denial-cache", "9" * 5000, "expected a whole number from 0 to 100000000"),
        ("--workers", "0", "expected a whole number from 1 to 256"),
        ("--workers", "257", "expected a whole number from 1 to 256"),
        ("--workers", "auto", "expected a whole number from 1 to 256"),
        ("--share", "perhaps", "expected yes or no"),
    ],
)
def test_a_wrong_number_or_switch(flag: str, text: str, why: str) -> None:
    assert mistakes(f"{flag}={text}") == (f"{flag} {text}: {why}",)
    assert mistakes(**{variable(flag): text}) == (f"{variable(flag)} {text}: {why}",)


def test_several_listeners() -> None:
    both = (Address("127.0.0.1", 1), Address(path="/s"))
    assert load("--listen", ":1", "--listen", "unix:/s").listen == both
    assert load(RLPROXY_LISTEN=" :1  unix:/s ").listen == both
    assert load("--listen", ":2", RLPROXY_LISTEN=":1").listen == (Address("127.0.0.1", 2),)


def test_a_blank_variable_is_none() -> None:
    assert load(RLPROXY_LISTEN=" ").listen == load().listen


def test_upstream_given() -> None:
    assert load("--upstream", "embedded:").upstream_given
    assert load(RLPROXY_UPSTREAM="embedded:").upstream_given


def test_version() -> None:
    assert config.parser().parse_args(["--version"]).version
    assert not config.parser().parse_args([]).version


def test_all_mistakes_at_once() -> None:
    found = mistakes(
        *("--listen", "a", "--listen", ":1", "--listen", "b", "--upstream", "http://h"),
        *("--connect-timeout", "0", "--drain-timeout", "x"),
        RLPROXY_PRIVATE_REFRESH="-1",
    )
    starts = ["--listen a:", "--listen b:", "--upstream http://h:", "--connect-timeout 0:"]
    starts += ["--drain-timeout x:", "RLPROXY_PRIVATE_REFRESH -1:"]
    assert len(found) == len(starts)
    for line, start in zip(found, starts, strict=True):
        assert line.startswith(start)
        assert "\n" not in line


@pytest.mark.parametrize(
    "argv", [["--nope"], ["--listen"], ["extra"], ["--list", ":1"], ["--version=1"]]
)
def test_wrong_usage_is_one_line(argv: list[str]) -> None:
    assert len(mistakes(*argv)) == 1


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "1e9", "x", "1 s"])
def test_wrong_seconds(text: str) -> None:
    for flag in ("--connect-timeout", "--drain-timeout", "--private-refresh"):
        (line,) = mistakes(f"{flag}={text}")
        assert line.startswith(f"{flag} {text}:")
        assert "seconds" in line


@pytest.mark.parametrize(
    ("listen", "upstream"),
    [
        ("127.0.0.1:7000", "redis://127.0.0.1:7000"),
        ("127.0.0.1:7000", "redis://localhost:7000/3"),
        ("0.0.0.0:7000", "redis://127.0.0.1:7000"),
        ("unix:/tmp/s", "unix:///tmp/s"),
    ],
)
def test_a_proxy_behind_itself_is_a_mistake(listen: str, upstream: str) -> None:
    (line,) = mistakes("--listen", listen, "--upstream", upstream)
    assert "where the proxy itself listens" in line


def test_tls_is_told_to_be_missing() -> None:
    (line,) = mistakes("--upstream", "rediss://h")
    assert "TLS to Redis is not supported yet" in line


def test_help_tells_every_option_and_variable() -> None:
    text = " ".join(config.parser().format_help().split())
    for option in config.OPTIONS:
        assert option.flag in text
        assert option.variable in text
        assert f"(default {option.default};" in text


LISTEN = [
    ("127.0.0.1:6380", Address("127.0.0.1", 6380)),
    (":6380", Address("127.0.0.1", 6380)),
    ("0.0.0.0:0", Address("0.0.0.0", 0)),
    ("localhost:65535", Address("localhost", 65535)),
    ("[::1]:6380", Address("::1", 6380)),
    ("unix:/tmp/s", Address(path="/tmp/s")),
    ("unix:///tmp/s", Address(path="/tmp/s")),
    ("unix:s", Address(path="s")),
]


@pytest.mark.parametrize(("text", "address"), LISTEN)
def test_listen(text: str, address: Address) -> None:
    assert config.parse_listen(text) == address


@pytest.mark.parametrize(
    "text",
    ["", "h", "h:", ":", "h:x", "h:65536", "h:-1", "h:+1", "h: 1", "::1:6380", "unix:", "h:\u0661"],
)
def test_wrong_listen(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        config.parse_listen(text)


URLS = [
    ("embedded:", Upstream(None)),
    ("EMBEDDED:", Upstream(None)),
    ("embedded://", Upstream(None)),
    ("redis://h", REDIS),
    ("REDIS://h", REDIS),
    ("redis://h/", REDIS),
    ("redis://h:7000", Upstream(Address("h", 7000))),
    ("redis://h:7000/5", Upstream(Address("h", 7000), 5)),
    ("redis://h?db=5", Upstream(Address("h", 6379), 5)),
    ("redis://h/0", REDIS),
    ("redis://[::1]:7000", Upstream(Address("::1", 7000))),
    ("redis://:pw@h", Upstream(Address("h", 6379), 0, None, "pw")),
    ("redis://bob:pw@h", Upstream(Address("h", 6379), 0, "bob", "pw")),
    ("redis://bob:@h", Upstream(Address("h", 6379), 0, "bob", "")),
    ("redis://b%40b:p%3A%2F%23%3Fw@h", Upstream(Address("h", 6379), 0, "b@b", "p:/#?w")),
    ("redis://h/2147483647", Upstream(Address("h", 6379), 2147483647)),
    ("unix:///tmp/s", Upstream(Address(path="/tmp/s"))),
    ("unix:///tmp/s?db=3", Upstream(Address(path="/tmp/s"), 3)),
    ("unix://bob:pw@/tmp/s", Upstream(Address(path="/tmp/s"), 0, "bob", "pw")),
    ("unix:///tmp/a%20b", Upstream(Address(path="/tmp/a b"))),
]


@pytest.mark.parametrize(("url", "upstream"), URLS)
def test_upstream(url: str, upstream: Upstream) -> None:
    assert config.parse_upstream(url) == upstream
    assert load("--upstream", url).upstream == upstream


WRONG_URLS = [
    "",
    "h",
    "h:6379",
    "redis:",
    "redis:h",
    "redis://",
    "redis:///5",
    "redis://:6379",
    "http://h",
    "redis://h:0",
    "redis://h:65536",
    "redis://h:x",
    "redis://h/x",
    "redis://h/-1",
    "redis://h/1/2",
    "redis://h/2147483648",
    "redis://h/1?db=2",
    "redis://h?x=1",
    "redis://h#x",
    "redis://bob@h",
    "redis://[::1",
    "unix://",
    "unix://h/tmp/s",
    "unix:///s?db=x",
    "embedded:x",
    "embedded://h",
]


@pytest.mark.parametrize("url", WRONG_URLS)
def test_wrong_upstream(url: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        config.parse_upstream(url)
    (line,) = mistakes("--upstream", url)
    assert line.startswith("--upstream")


SECRETS = [
    ["--upstream", "http://bob:secret@h"],
    ["--upstream", "redis://bob:secret@h:x"],
    ["--upstream", "redis://bob:secret@h/x"],
    ["--upstream", "redis://bob:secret@h?x=1"],
    ["--upstream", "redis://bob:secret@h#x"],
    ["--upstream", "redis://bob:12#secret@h"],
    ["--upstream", "redis://:12#secret@h"],
    ["--upstream", "redis://:12?secret@h"],
    ["--upstream", "redis://bob:12?secret=x@h"],
    ["--upstream", "redis://:12/secret@h"],
    ["--upstream", "redis://bob:12/secret@h"],
    ["--upstream", "redis://bob:a/secret@h"],
    ["--upstream", "redis://bob:12@secret@h:x"],
    ["--upstream", "redis://bob:secret@"],
    ["--upstream", "redis:/bob:secret@h"],
    ["--upstream", "redis:bob:secret@h"],
    ["--upstream", "bob:secret@h:6379"],
    ["--upstream", "secret@h"],
    ["--upstream", "unix://bob:secret@h/s"],
    ["--upstream", "unix://bob:12/secret@/s?db=x"],
    ["--upstream", "embedded:secret@h"],
    ["--upstrem", "redis://bob:secret@h"],
    ["redis://bob:secret@h"],
    ["--upstrem=redis://bob:secret@h"],
]


@pytest.mark.parametrize("argv", SECRETS, ids=lambda argv: argv[-1])
def test_no_password_in_a_message(argv: list[str]) -> None:
    assert "secret" not in "\n".join(mistakes(*argv))
    if argv[0] == "--upstream":
        assert "secret" not in "\n".join(mistakes(RLPROXY_UPSTREAM=argv[1]))


def test_no_password_in_what_is_shown() -> None:
    made = load("--upstream", "redis://bob:secret@h:7000/5")
    for text in (repr(made), str(made), str(made.upstream), repr(made.upstream)):
        assert "secret" not in text
    assert str(made.upstream) == "h:7000"


ADDRESSES = [
    (Address("h", 1), "h:1"),
    (Address("::1", 1), "[::1]:1"),
    (Address(path="/s"), "unix:/s"),
]


@pytest.mark.parametrize(("address", "text"), ADDRESSES)
def test_address_as_text(address: Address, text: str) -> None:
    assert str(address) == text
    assert config.parse_listen(text) == address


def test_config_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        load().listen = ()  # type: ignore[misc]
