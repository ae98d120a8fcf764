"""loader: every option from each source, precedence, and every mistake at once."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path

import pytest
from rlproxy.config import loader
from rlproxy.config.config import OPTIONS, Config, ConfigError, reloaded
from rlproxy.config.urls import Address, Upstream

from tests.unit.config.loading import ADMIN, CLUSTER, REDISS, TLS, load, mistakes, variable

WITH_CA = (*TLS, "--tls-client-ca", "x")
REPEATED = ("--listen", "--deny-command")
TOO_LONG = "a number is too long, or arrays are nested too deeply"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "f.toml"


GIVEN: list[tuple[str, str, str, object, tuple[str, ...]]] = [
    ("--listen", ":1", "listen", (Address("127.0.0.1", 1),), ()),
    ("--upstream", "redis://h", "upstream", Upstream(Address("h", 6379)), ()),
    ("--workers", "2", "workers", 2, ()),
    ("--share", "yes", "share", True, ()),
    ("--denial-cache", "0", "denial_cache", 0, ()),
    ("--announce", "h:1", "announce", Address("h", 1), CLUSTER),
    ("--present", "standalone", "present", "standalone", CLUSTER),
    ("--cross-slot", "error", "cross_slot", "error", CLUSTER),
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
    ("--tls-client-auth", "optional", "tls_client_auth", "optional", WITH_CA),
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
    ("--admin-actions", "yes", "admin_actions", True, ADMIN + ("--admin-token-file", "t")),
    ("--admin-token-file", "t", "admin_token_file", "t", ADMIN + ("--admin-actions", "yes")),
    ("--metrics-prefixes", "9", "metrics_prefixes", 9, ()),
    ("--log-level", "error", "log_level", "error", ()),
    ("--log-format", "json", "log_format", "json", ()),
]


@pytest.mark.parametrize(
    ("flag", "text"), [("--listen", "127.0.0.1:1,127.0.0.1:2"), ("--deny-command", "keys,flushall")]
)
def test_several_values_are_given_without_a_comma(flag: str, text: str) -> None:
    (mistake,) = mistakes(flag, text)
    assert mistake.startswith(f"{flag} {text}: ")
    assert mistake.endswith(f"; several are {flag} A {flag} B, or {variable(flag)}='A B'")


def test_the_table_above_is_complete() -> None:
    assert [row[0] for row in GIVEN] == [option.flag for option in OPTIONS]
    assert [variable(row[0]) for row in GIVEN] == [option.variable for option in OPTIONS]


@pytest.mark.parametrize(("flag", "text", "field", "value", "also"), GIVEN)
def test_option(
    file: Path, flag: str, text: str, field: str, value: object, also: tuple[str, ...]
) -> None:
    assert getattr(load(flag, text, *also), field) == value
    assert getattr(load(f"{flag}={text}", *also), field) == value
    assert getattr(load(*also, **{variable(flag): text}), field) == value
    for name in (flag[2:], flag[2:].replace("-", "_")):
        for written in (f'"{text}"', f'["{text}"]') if flag in REPEATED else (f'"{text}"',):
            file.write_text(f"{name} = {written}\n")
            assert getattr(load(*also, "--config", str(file)), field) == value
            assert getattr(load(*also, RLPROXY_CONFIG=str(file)), field) == value
    # an empty variable is none (of --upstream it is a mistake), and the others keep their defaults
    if flag != "--upstream":
        assert load(**{variable(flag): ""}) == load()
    others = {each.name for each in dataclasses.fields(Config)} - {field}
    made, default = load(flag, text, *also), load()
    for option in OPTIONS:
        if option.field in others and option.flag not in also:
            assert getattr(made, option.field) == getattr(default, option.field)


@pytest.mark.parametrize("flag", [row[0] for row in GIVEN])
def test_the_command_line_wins(flag: str) -> None:
    text, also = next((row[1], row[4]) for row in GIVEN if row[0] == flag)
    assert load(flag, text, *also, **{variable(flag): "nonsense"}) == load(flag, text, *also)


def test_a_switch_needs_no_word() -> None:
    assert load("--share").share
    assert load("--share", "--listen", ":1").listen == (Address("127.0.0.1", 1),)
    assert not load("--share=no", RLPROXY_SHARE="yes").share
    assert load(RLPROXY_SHARE="YES").share


def test_the_environment_wins_over_the_file(file: Path) -> None:
    file.write_text("workers = 3\nshare = true\ndrain-timeout = 2.5\nlisten = [':1', ':2']\n")
    made = load("--config", str(file), "--drain-timeout", "4", RLPROXY_WORKERS="2")
    assert (made.workers, made.share, made.drain_timeout_s) == (2, True, 4.0)
    assert made.listen == (Address("127.0.0.1", 1), Address("127.0.0.1", 2))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nope = 1", "there is no option nope"),
        ("[rlproxy]\nworkers = 2", "there is no option rlproxy; its options stand above any"),
        ("[polices]\na = '5 60'", "there is no option polices; did you mean policies?"),
        ("[policies]\nupstream = ':1'", "policy 'upstream': it is an option: its place is above ["),
        ("[policies]\nworkers = 2", "policy 'workers': it is an option: its place is above ["),
        ("policies = 5", "policies is a section: [policies]"),
        ("[policies]\na = 5", "policy 'a': the rule is not a string: expected "),
        ("[policies]\na.b = '5 60'", "policy 'a': there is no key 'b'; a name with a dot stands"),
        ("[policies]\na = ['5 60']", "policy 'a': the rule is not a string: expected "),
        ("[policies]\na = {shadow = true}", "policy 'a': there is no rule: expected "),
        ("[policies]\na = {rule = 5}", "policy 'a': the rule is not a string: expected "),
        (
            "[policies]\na = {rule = '5 60', shadow = 'yes'}",
            "policy 'a': shadow: expected true or false, without quotes",
        ),
        (
            "[policies]\na = {rule = '5 60', shadov = true}",
            "policy 'a': there is no key 'shadov'; did you mean shadow?",
        ),
        ("[policies]\na = '5 60'\na = '5 60'", "not valid TOML: Cannot overwrite a value"),
        ("workers = [1]", "workers takes one value"),
        ("[workers]\nx = 1", "workers takes one value"),
        ("workers = 0", "workers (in the file) 0: expected a whole number from 1 to 256"),
        ('listen = "unix:/a\\u0000"', "it has a NUL character, or bytes"),
        ('admin-token-file = "/a\\u0000"', "it has a NUL character, or bytes"),
        ("workers = ", "not valid TOML: Invalid value (at end of document)"),
        ("upstrem = 1", "there is no option upstrem; did you mean upstream?"),
        ("hit-timeout = 1\nhit_timeout = 2", "hit-timeout is given twice, with - and with _"),
        ("hit_timout = 1", "there is no option hit_timout; did you mean hit-timeout?"),
    ],
)
def test_a_wrong_file(file: Path, text: str, why: str) -> None:
    file.write_text(text)
    (line,) = mistakes("--config", str(file))
    assert why in line
    assert "\n" not in line


def test_a_policy_with_a_rule_has_no_name_with_a_dot(file: Path) -> None:
    file.write_text("[policies]\na = {rule = '5 60', x = 1}")
    (line,) = mistakes("--config", str(file))
    assert line.endswith("policy 'a': there is no key 'x'")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            b"upstream = redis://h\nshare = yes\nworkers = 0\n",
            "not valid TOML: Invalid value (at line 1, column 12)",
        ),
        (
            b"workers = 0\nlisten = [\n ':1',\n :2,\n]",
            "not valid TOML: Invalid value (at line 4, column 2)",
        ),
        (b"workers = " + 5000 * b"1", TOO_LONG),
        (b"[policies]\na = " + 5000 * b"1", TOO_LONG),
        (b"workers = " + 3000 * b"[" + 3000 * b"]", TOO_LONG),
        (b"# \xff", "line 1 is not UTF-8"),
        (b"workers = 2\n# \xff", "line 2 is not UTF-8"),
    ],
)
def test_a_syntax_error_is_the_only_mistake_of_a_file(file: Path, text: bytes, why: str) -> None:
    file.write_bytes(text)
    assert mistakes("--config", str(file)) == (f"--config {file}: {why}",)
    both = mistakes("--config", str(file), "--workers", "0", "--tls-cert", "x")
    assert [line.partition(":")[0] for line in both] == [f"--config {file}", "--workers 0"]


def test_a_file_may_begin_with_a_byte_order_mark(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbfworkers = 3\n")
    assert load("--config", str(file)).workers == 3


def test_a_byte_that_is_not_utf_8() -> None:
    (line,) = mistakes("--upstream", "redis://:p\udcffw@h")
    assert line == "--upstream redis://***: it has a NUL character, or bytes that are not UTF-8"


def test_a_reload_reads_no_pipe(tmp_path: Path) -> None:
    config, ca = tmp_path / "config", tmp_path / "ca"
    os.mkfifo(config)
    os.mkfifo(ca)
    words = ["--upstream", "rediss://h", "--upstream-tls-ca", str(ca)]
    args = loader.parser().parse_args(words)
    settings = loader.load(args, {})
    with pytest.raises(ConfigError) as caught:
        loader.check_reload(args, settings, {"RLPROXY_CONFIG": str(config)})
    why = "a pipe can be read at the start only: use a regular file"
    named = (f"--config {config}", f"--upstream-tls-ca {ca}")
    assert caught.value.mistakes == tuple(f"{each}: {why}" for each in named)


@pytest.mark.parametrize("flag", ["--config", "--tls-key", "--admin-token-file"])
def test_a_url_where_a_file_is_expected_shows_no_password(flag: str) -> None:
    why = "expected a file; the URL of Redis is given with --upstream"
    assert mistakes(flag, "redis://:secret@h")[0] == f"{flag} redis://***: {why}"


def test_a_missing_file() -> None:
    assert mistakes("--config", "/nowhere/f") == ("--config /nowhere/f: No such file or directory",)


def test_known_variables_are_no_mistake() -> None:
    known = {option.variable: "" for option in OPTIONS}
    others = {"HOME": "", "RLPROXY_CONFIG": "", "RLPROXY_COMPILE": "0", "RLPROXY_INTERPRETED": "1"}
    assert loader.unknown_variables({**known, **others}) == []


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
        # like those of a Service, but written by a person
        ("RLPROXY_PORT", "6380", "see rlproxy --help"),
        ("RLPROXY_PORT", "redis://h:6379", "see rlproxy --help"),
        ("RLPROXY_SERVICE_HOSTS", "h", "see rlproxy --help"),
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
        (["--upsteam", "redis://h"], "--upsteam redis://***; did you mean --upstream?"),
        (["redis://h"], "redis://***; the URL of Redis is given with --upstream"),
        (["--drain-timout=5"], "--drain-timout=5; did you mean --drain-timeout?"),
        (["--check-confg"], "--check-confg; did you mean --check-config?"),
        (["--nothing-of-the-kind"], "--nothing-of-the-kind"),
        (["upstream"], "upstream; rlproxy --help lists the options and subcommands"),
    ],
)
def test_which_flag_was_meant(argv: list[str], told: str) -> None:
    assert mistakes(*argv) == (f"unrecognized arguments: {told}",)


def away_from_a_terminal(*argv: str, **environ: str) -> Config:
    return loader.load(loader.parser().parse_args(list(argv)), environ, terminal=False)


def test_no_upstream_is_a_mistake_away_from_a_terminal(file: Path) -> None:
    for words, environ in (((), {}), (("--workers", "2"), {"RLPROXY_UPSTREAM": " "})):
        with pytest.raises(ConfigError) as caught:
            away_from_a_terminal(*words, **environ)
        assert caught.value.mistakes == (loader.NO_UPSTREAM,)
    file.write_text('upstream = "embedded:"\n')
    for made in (
        away_from_a_terminal("--upstream", "embedded:"),
        away_from_a_terminal(RLPROXY_UPSTREAM="embedded:"),
        away_from_a_terminal("--config", str(file), RLPROXY_UPSTREAM=""),
    ):
        assert made.upstream.embedded


def test_all_mistakes_at_once() -> None:
    found = mistakes(
        *("--listen", "a", "--listen", ":1", "--listen", "b", "--upstream", "http://h"),
        *("--connect-timeout", "0", "--drain-timeout", "x"),
        RLPROXY_HANDSHAKE_TIMEOUT="-1",
    )
    starts = ["--listen a:", "--listen b:", "--upstream http://***:"]
    starts += ["--connect-timeout 0:", "--drain-timeout x:"]
    starts += ["RLPROXY_HANDSHAKE_TIMEOUT -1:"]
    assert len(found) == len(starts)
    for line, start in zip(found, starts, strict=True):
        assert line.startswith(start)
        assert "\n" not in line


def test_help_has_every_option_and_breaks_no_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    found = loader.parser().format_help()
    text = " ".join(found.split())
    for option in OPTIONS:
        assert option.flag in text
        assert not option.value.default or f"(default {option.value.default})" in text
        assert all(word in found for word in option.help.split())
    assert {"RLPROXY_HIT_TIMEOUT", "RLPROXY_CONFIG"} <= set(re.findall(r"RLPROXY_\w+", text))


POLICIES = """
workers = 2
[policies]
search = {rule = "100 60 ALGO COUNTER", shadow = true}
login = "5 60"
"a.b" = {rule = "1 1"}
[policies."c:d"]
rule = "2 2"
"""


def test_policies_are_those_of_the_file(file: Path) -> None:
    file.write_text(POLICIES)
    made = load("--config", str(file))
    assert made.workers == 2
    assert made.policies == (
        ("search", "100 60 ALGO COUNTER", True),
        ("login", "5 60", False),
        ("a.b", "1 1", False),
        ("c:d", "2 2", False),
    )
    assert load().policies == ()


def test_wrong_rules_are_among_all_mistakes(file: Path) -> None:
    file.write_text("workers = 0\n[policies]\na = '5 60'\nb = 5\n")
    args = loader.parser().parse_args(["--config", str(file)])
    with pytest.raises(ConfigError) as caught:
        loader.load(args, {}, check=lambda policies: [f"policy {policies[0][0]}: wrong"])
    found = caught.value.mistakes
    assert len(found) == 3
    assert f"--config {file}: policy a: wrong" in found


def test_a_reload_replaces_the_policies() -> None:
    old = dataclasses.replace(load(), policies=(("a", "5 60", False),))
    new = dataclasses.replace(old, policies=(("b", "5 60", False),), workers=2)
    made = reloaded(old, new)
    assert (made.policies, made.workers) == (new.policies, 1)
