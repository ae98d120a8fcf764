"""config: every option from both places, every mistake at once, no password in any message."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from rlproxy.config import config
from rlproxy.config.config import Address, Config, ConfigError, Sentinels, Upstream


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
    assert (made.connect_timeout_s, made.drain_timeout_s) == (5, 10)


REDIS = Upstream(Address("h", 6379))
REPEATED = ("--listen", "--deny-command")

TLS = ("--listen", "tls::1", "--tls-cert", "c", "--tls-key", "k")
REDISS = ("--upstream", "rediss://h", "--upstream-tls-cert", "c", "--upstream-tls-key", "k")

# flag, text, field, value, and what else it takes for that to be sensible
OPTIONS: list[tuple[str, str, str, object, tuple[str, ...]]] = [
    ("--listen", ":1", "listen", (Address("127.0.0.1", 1),), ()),
    ("--upstream", "redis://h", "upstream", REDIS, ()),
    ("--workers", "2", "workers", 2, ()),
    ("--share", "yes", "share", True, ()),
    ("--denial-cache", "0", "denial_cache", 0, ()),
    ("--on-upstream-failure", "allow", "on_upstream_failure", "allow", ()),
    ("--hit-timeout", "0", "hit_timeout_ms", 0, ()),
    ("--connect-timeout", "0.25", "connect_timeout_s", 0.25, ()),
    ("--drain-timeout", "7", "drain_timeout_s", 7.0, ()),
    ("--protected-mode", "no", "protected_mode", False, ()),
    ("--local-commands", "yes", "local_commands", True, ()),
    ("--deny-command", "CONFIG|Set", "deny_command", ("config|set",), ()),
    ("--unix-mode", "660", "unix_mode", 0o660, ()),
    ("--proxy-protocol", "yes", "proxy_protocol", True, ()),
    ("--tls-cert", "x", "tls_cert", "x", TLS[:2] + TLS[4:]),
    ("--tls-key", "x", "tls_key", "x", TLS[:4]),
    ("--tls-client-ca", "x", "tls_client_ca", "x", TLS),
    ("--tls-client-auth", "optional", "tls_client_auth", "optional", ()),
    ("--tls-min-version", "1.3", "tls_min_version", "1.3", ()),
    ("--upstream-tls-ca", "x", "upstream_tls_ca", "x", REDISS),
    ("--upstream-tls-cert", "x", "upstream_tls_cert", "x", REDISS[:2] + REDISS[4:]),
    ("--upstream-tls-key", "x", "upstream_tls_key", "x", REDISS[:4]),
    ("--upstream-tls-name", "x", "upstream_tls_name", "x", REDISS),
    ("--upstream-tls-verify", "no", "upstream_tls_verify", False, ()),
    ("--max-clients", "5", "max_clients", 5, ()),
    ("--max-clients-per-address", "5", "max_clients_per_address", 5, ()),
    ("--max-accept-rate", "0", "max_accept_rate", 0, ()),
    ("--max-client-hits", "5", "max_client_hits", 5, ()),
    ("--max-lane-hits", "5", "max_lane_hits", 5, ()),
    ("--max-unread", "1024", "max_unread", 1024, ()),
    ("--handshake-timeout", "5", "handshake_timeout_s", 5.0, ()),
    ("--idle-timeout", "5", "idle_timeout_s", 5.0, ()),
    ("--write-timeout", "0", "write_timeout_s", 0.0, ()),
    ("--tcp-keepalive", "0", "tcp_keepalive_s", 0, ()),
    ("--admin", "[::1]:9", "admin", Address("::1", 9), ()),
    ("--metrics-prefixes", "9", "metrics_prefixes", 9, ()),
    ("--log-level", "error", "log_level", "error", ()),
    ("--log-format", "json", "log_format", "json", ()),
]


def variable(flag: str) -> str:
    return "RLPROXY_" + flag.removeprefix("--").replace("-", "_").upper()


def test_the_table_above_is_complete() -> None:
    assert [row[0] for row in OPTIONS] == [option.flag for option in config.OPTIONS]
    assert [variable(row[0]) for row in OPTIONS] == [option.variable for option in config.OPTIONS]


@pytest.mark.parametrize(("flag", "text", "field", "value", "also"), OPTIONS)
def test_option(
    tmp_path: Path, flag: str, text: str, field: str, value: object, also: tuple[str, ...]
) -> None:
    assert getattr(load(flag, text, *also), field) == value
    assert getattr(load(f"{flag}={text}", *also), field) == value
    assert getattr(load(*also, **{variable(flag): text}), field) == value
    for name in (flag[2:], flag[2:].replace("-", "_")):
        for written in (f'"{text}"', f'["{text}"]') if flag in REPEATED else (f'"{text}"',):
            file = tmp_path / "rlproxy.toml"
            file.write_text(f"{name} = {written}\n")
            assert getattr(load(*also, "--config", str(file)), field) == value
            assert getattr(load(*also, RLPROXY_CONFIG=str(file)), field) == value
    # an empty variable is none (of --upstream it is a mistake), and the others keep their defaults
    if flag != "--upstream":
        assert load(**{variable(flag): ""}) == load()
    others = {each.name for each in dataclasses.fields(Config)} - {field}
    default = dict(zip(also[::2], also[1::2], strict=True))
    for option in config.OPTIONS:
        if option.attribute in others and option.flag not in default:
            made = load(flag, text, *also)
            assert getattr(made, option.attribute) == getattr(load(), option.attribute)


@pytest.mark.parametrize("flag", [row[0] for row in OPTIONS])
def test_the_command_line_wins(flag: str) -> None:
    text, also = next((row[1], row[4]) for row in OPTIONS if row[0] == flag)
    assert load(flag, text, *also, **{variable(flag): "nonsense"}) == load(flag, text, *also)


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


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "f.toml"
    file.write_text("workers = 3\nshare = true\ndrain-timeout = 2.5\nlisten = [':1', ':2']\n")
    made = load("--config", str(file), "--drain-timeout", "4", RLPROXY_WORKERS="2")
    assert (made.workers, made.share, made.drain_timeout_s) == (2, True, 4.0)
    assert made.listen == (Address("127.0.0.1", 1), Address("127.0.0.1", 2))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nope = 1", "there is no option nope"),
        ("[rlproxy]\nworkers = 2", "there is no option rlproxy; the file has no sections"),
        ("workers = [1]", "workers takes one value"),
        ("[workers]\nx = 1", "workers takes one value"),
        ("workers = 0", "workers (in the file) 0: expected a whole number from 1 to 256"),
        ("workers = ", "Invalid value"),
        ("upstrem = 1", "there is no option upstrem; did you mean upstream?"),
        ("hit_timout = 1", "there is no option hit_timout; did you mean hit-timeout?"),
    ],
)
def test_a_wrong_file(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "f.toml"
    file.write_text(text)
    (line,) = mistakes("--config", str(file))
    assert why in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("workers = 0\nnope = 1", ["there is no option nope", "workers (in the file) 0: "]),
        (
            "upstream = redis://h\nshare = yes\nworkers = 0\nlisten = ':1'\n",
            ["(at line 1, column 12)", "(at line 2, column 9)", "workers (in the file) 0: "],
        ),
        (
            "upstream = redis://h\r\nshare =",
            ["Invalid value (at line 1, column 12)", "Invalid value (at end of document)"],
        ),
        (
            "workers = 2\nworkers = 3\nshare\n",
            ["Cannot overwrite a value (at line 2", "Expected '=' after a key"],
        ),
        ("listen = [\n ':1',\n :2,\n]\nshare = on", ["(at line 3,", "(at line 5,"]),
        ("listen = [':1'\nworkers = 2\nshare = true", ["Unclosed array (at line 2,"]),
        ('listen = """\n:1\nshare = perhaps', ["Unterminated string (at end of document)"]),
        ("workers = 0\ntls-cert = 'x'", ["workers (in the file) 0: ", "--tls-cert: no address"]),
        # (what may only be missing is not told to be)
        ("tls-cert = 'c'\nlisten = 'tls::1'\ntls-key = k", ["Invalid value (at line 3,"]),
        ("tls-cert = 'c'\nlisten = 'tls:1'", ["listen (in the file) tls:1: "]),
        ("a =\n" * 40, ["Invalid value (at line "] * config.MAX_MISTAKES),
    ],
)
def test_all_mistakes_of_a_file_are_told(tmp_path: Path, text: str, told: list[str]) -> None:
    file = tmp_path / "f.toml"
    file.write_text(text)
    found = mistakes("--config", str(file))
    assert len(found) == len(told), found
    assert all(each in line and "\n" not in line for each, line in zip(told, found, strict=True))


def test_a_missing_file() -> None:
    assert mistakes("--config", "/nowhere/f") == ("--config /nowhere/f: No such file or directory",)


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["--listen", "tls::1"], "--listen tls: needs --tls-cert and --tls-key"),
        ([*TLS[:4]], "--listen tls: needs --tls-cert and --tls-key"),
        ([*TLS[2:4]], "--tls-cert: no address of --listen has TLS"),
        (["--tls-client-ca", "x"], "--tls-client-ca: no address of --listen has TLS"),
        ([*REDISS[:4]], "--upstream-tls-cert and --upstream-tls-key go together"),
        (["--upstream-tls-ca", "x"], "--upstream-tls-ca: the URL of --upstream has no TLS"),
        (["--proxy-protocol", "--listen", "unix:/s"], "--proxy-protocol: no address of --listen"),
    ],
)
def test_settings_that_contradict(argv: list[str], why: str) -> None:
    assert mistakes(*argv)[0].startswith(why)


def test_what_a_reload_may_change() -> None:
    old = load("--workers", "2", "--hit-timeout", "1")
    new = load("--workers", "3", "--hit-timeout", "2")
    may, may_not = config.differences(old, new)
    assert [option.flag for option in may] == ["--hit-timeout"]
    assert [option.flag for option in may_not] == ["--workers"]
    made = config.reloaded(old, new)
    assert (made.workers, made.hit_timeout_ms) == (2, 2)


def test_known_variables_are_no_mistake() -> None:
    known = {option.variable: "" for option in config.OPTIONS}
    others = {"HOME": "", "RLPROXY_CONFIG": "", "RLPROXY_COMPILE": "0", "RLPROXY_INTERPRETED": "1"}
    assert config.unknown_variables({**known, **others}) == []


# What Kubernetes sets in every pod beside a Service of the name, here with the port `redis` of TCP.
SERVICE = {
    "{}_SERVICE_HOST": "10.96.3.7",
    "{}_SERVICE_PORT": "6380",
    "{}_SERVICE_PORT_REDIS": "6380",
    "{}_PORT": "tcp://10.96.3.7:6380",
    "{}_PORT_6380_TCP": "tcp://10.96.3.7:6380",
    "{}_PORT_6380_TCP_PROTO": "tcp",
    "{}_PORT_6380_TCP_PORT": "6380",
    "{}_PORT_6380_TCP_ADDR": "10.96.3.7",
    "{}_PORT_53_UDP": "udp://[fd00::7]:53",
}


@pytest.mark.parametrize("service", ["RLPROXY", "RLPROXY_ADMIN", "RLPROXY_2"])
def test_the_variables_of_a_kubernetes_service_are_no_mistake(service: str) -> None:
    made = load(**{name.format(service): value for name, value in SERVICE.items()})
    assert made == load()


@pytest.mark.parametrize(
    ("name", "value", "near"),
    [
        ("RLPROXY_UPSTREM", "redis://h", "did you mean RLPROXY_UPSTREAM?"),
        ("RLPROXY_SHARES", "yes", "did you mean RLPROXY_SHARE?"),
        ("RLPROXY_DRAIN_TIMOUT", "1", "did you mean RLPROXY_DRAIN_TIMEOUT?"),
        ("RLPROXY_CONFG", "f", "did you mean RLPROXY_CONFIG?"),
        ("RLPROXY_REDIS", "", "see rlproxy --help"),
        ("RLPROXY_", "", "see rlproxy --help"),
        # like those of a Service, but written by a person
        ("RLPROXY_PORT", "6380", "see rlproxy --help"),
        ("RLPROXY_UPSTREAM_PORT", "6379", "did you mean RLPROXY_UPSTREAM?"),
        ("RLPROXY_HOST", "10.0.0.1", "see rlproxy --help"),
        ("RLPROXY_PORT_TCP", "tcp://h:1", "see rlproxy --help"),
    ],
)
def test_an_unknown_variable_is_a_mistake(name: str, value: str, near: str) -> None:
    line = f"{name}: no option has this environment variable; {near}"
    assert mistakes(**{name: value}) == (line,)
    found = mistakes("--workers", "0", **{name: value})
    assert found[0] == line
    assert found[1].startswith("--workers 0:")


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--upsteam", "redis://h"], "--upsteam redis://h; did you mean --upstream?"),
        (["--drain-timout=5"], "--drain-timout=5; did you mean --drain-timeout?"),
        (["--check-confg"], "--check-confg; did you mean --check-config?"),
        (["--nothing-of-the-kind"], "--nothing-of-the-kind"),
        (["upstream"], "upstream"),
    ],
)
def test_which_flag_was_meant(argv: list[str], told: str) -> None:
    assert mistakes(*argv) == (f"unrecognized arguments: {told}",)


def test_several_listeners() -> None:
    both = (Address("127.0.0.1", 1), Address(path="/s"))
    assert load("--listen", ":1", "--listen", "unix:/s").listen == both
    assert load(RLPROXY_LISTEN=" :1  unix:/s ").listen == both
    assert load("--listen", ":2", RLPROXY_LISTEN=":1").listen == (Address("127.0.0.1", 2),)


def test_a_blank_variable_is_none() -> None:
    assert load(RLPROXY_LISTEN=" ").listen == load().listen


def away_from_a_terminal(*argv: str, **environ: str) -> config.Config:
    return config.load(config.parser().parse_args(list(argv)), environ, terminal=False)


def test_no_upstream_is_a_mistake_away_from_a_terminal(tmp_path: Path) -> None:
    for words, environ in (((), {}), (("--workers", "2"), {"RLPROXY_UPSTREAM": " "})):
        with pytest.raises(ConfigError) as caught:
            away_from_a_terminal(*words, **environ)
        assert caught.value.mistakes == (config.NO_UPSTREAM,)
    file = tmp_path / "f.toml"
    file.write_text('upstream = "embedded:"\n')
    for made in (
        away_from_a_terminal("--upstream", "embedded:"),
        away_from_a_terminal(RLPROXY_UPSTREAM="embedded:"),
        away_from_a_terminal("--config", str(file), RLPROXY_UPSTREAM=""),
    ):
        assert made.upstream.embedded


def test_a_blank_upstream_is_a_mistake_at_a_terminal_too() -> None:
    assert mistakes(RLPROXY_UPSTREAM="") == (config.NO_UPSTREAM,)
    assert load("--upstream", "embedded:", RLPROXY_UPSTREAM="").upstream.embedded


def test_a_misspelt_upstream_is_one_mistake() -> None:
    with pytest.raises(ConfigError) as caught:
        away_from_a_terminal(RLPROXY_UPSTREM="redis://h")
    assert len(caught.value.mistakes) == 1


def test_version() -> None:
    assert config.parser().parse_args(["--version"]).version
    assert not config.parser().parse_args([]).version


def test_all_mistakes_at_once() -> None:
    found = mistakes(
        *("--listen", "a", "--listen", ":1", "--listen", "b", "--upstream", "http://h"),
        *("--connect-timeout", "0", "--drain-timeout", "x"),
        RLPROXY_HANDSHAKE_TIMEOUT="-1",
    )
    starts = ["--listen a:", "--listen b:", "--upstream http://h:"]
    starts += ["--connect-timeout 0:", "--drain-timeout x:"]
    starts += ["RLPROXY_HANDSHAKE_TIMEOUT -1:"]
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
    for flag in ("--connect-timeout", "--drain-timeout"):
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


SENTINEL = (
    (
        "redis+sentinel://a,b:1,[::1]/m",
        Upstream(
            None,
            sentinels=Sentinels((Address("a", 26379), Address("b", 1), Address("::1", 26379)), "m"),
        ),
    ),
    (
        "rediss+sentinel://u:p@a/m/3?sentinel_user=x&sentinel_password=y%26",
        Upstream(None, 3, "u", "p", True, Sentinels((Address("a", 26379),), "m", "x", "y&")),
    ),
)


@pytest.mark.parametrize(("url", "upstream"), SENTINEL)
def test_sentinel(url: str, upstream: Upstream) -> None:
    assert config.parse_upstream(url) == upstream
    assert not upstream.embedded


def test_help_tells_every_option_and_variable() -> None:
    text = " ".join(config.parser().format_help().split())
    for option in config.OPTIONS:
        assert option.flag in text
        assert option.variable in text
        assert not option.default or f"(default {option.default};" in text


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
    "redis+sentinel://h",
    "redis+sentinel:///m",
    "redis+sentinel://h,/m",
    "redis+sentinel://h:0/m",
    "redis+sentinel://h:x/m",
    "redis+sentinel://h/m/x",
    "redis+sentinel://h/m?sentinel_user=x",
    "redis+sentinel://h/m?x=1",
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
    ["--upstream", "redis+sentinel://h/m?x=1&sentinel_password=secret"],
    ["--upstream", "redis+sentinel://u:secret@h/m?sentinel_password=a@secret"],
    ["--upstream", "redis+sentinel://h/m?x&sentinel_password=a&secret"],
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
    for url, shown in (
        ("redis://bob:secret@h:7000/5", "h:7000"),
        ("redis+sentinel://bob:secret@h/m?sentinel_password=secret", "sentinel h:26379/m"),
    ):
        made = load("--upstream", url)
        for text in (repr(made), str(made), str(made.upstream), repr(made.upstream)):
            assert "secret" not in text
        assert str(made.upstream) == shown


ADDRESSES = [
    (Address("h", 1), "h:1"),
    (Address("::1", 1), "[::1]:1"),
    (Address(path="/s"), "unix:/s"),
    (Address("::1", 1, tls=True), "tls:[::1]:1"),
]


@pytest.mark.parametrize(("address", "text"), ADDRESSES)
def test_address_as_text(address: Address, text: str) -> None:
    assert str(address) == text
    assert config.parse_listen(text) == address


def test_config_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        load().listen = ()  # type: ignore[misc]
