"""The settings: option table, parsing of command line, environment and file, and one frozen
object. All mistakes are reported at once.
"""

from __future__ import annotations

import argparse
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

DEFAULT_LISTEN: Final = "127.0.0.1:6380"
DEFAULT_REDIS_PORT: Final = 6379
DEFAULT_SENTINEL_PORT: Final = 26379
LIKE: Final = (
    0.75  # least similarity (1: equal) of a misspelt name and the name that is suggested for it
)
MAX_MISTAKES: Final = 20  # syntax errors of the file that are reported
PREFIX: Final = "RLPROXY_"  # of environment variables
NO_UPSTREAM: Final = (
    "--upstream: no Redis is given. Write --upstream redis://HOST:PORT (or RLPROXY_UPSTREAM, or "
    "upstream in the file of --config), or --upstream embedded: for a private server whose data "
    "ends with the proxy"
)
MAX_COMMAND: Final = 64  # bytes of a command's name; the same as framing.MAX_NAME


class ConfigError(Exception):
    """Settings that can't be used; one line for each mistake."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = tuple(mistakes)


@dataclass(frozen=True)
class Address:
    """An address to listen at or connect to: `path` of a unix socket, or else `host` and `port`.

    `tls`: clients that connect to this address use TLS.
    """

    host: str = ""
    port: int = 0
    path: str = ""
    tls: bool = False

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls:' if self.tls else ''}{host}:{self.port}"


@dataclass(frozen=True)
class Sentinels:
    """The Sentinels that name the address of the master `name`, and the credentials for them."""

    addresses: tuple[Address, ...]
    name: str
    user: str | None = None
    password: str | None = None

    def __str__(self) -> str:
        return f"{','.join(map(str, self.addresses))}/{self.name}"

    def __repr__(self) -> str:
        return f"Sentinels({self})"


@dataclass(frozen=True)
class Upstream:
    """The Redis behind the proxy.

    address: None for `embedded:` and with `sentinels`.
    db: the database in which clients start.
    user, password: credentials of the proxy's own control connection only.
    tls: whether connections to it use TLS.
    """

    address: Address | None
    db: int = 0
    user: str | None = None
    password: str | None = None
    tls: bool = False
    sentinels: Sentinels | None = None

    @property
    def embedded(self) -> bool:
        """Whether the proxy starts a private server."""
        return self.address is None and self.sentinels is None

    def __str__(self) -> str:
        if self.sentinels is not None:
            return f"sentinel {self.sentinels}"
        return "embedded:" if self.address is None else str(self.address)

    def __repr__(self) -> str:
        return f"Upstream({self})"


@dataclass(frozen=True)
class Config:
    """All settings, one field per option.

    Names of durations end in their unit: `_s` for seconds, `_ms` for milliseconds. An empty file
    name means that there is no such file.
    """

    listen: tuple[Address, ...]
    upstream: Upstream
    workers: int = 1
    share: bool = False
    denial_cache: int = 65536
    # when Redis fails
    on_upstream_failure: str = "error"
    hit_timeout_ms: int = 1000
    connect_timeout_s: float = 5.0
    drain_timeout_s: float = 10.0
    # admission and permitted commands
    protected_mode: bool = True
    local_commands: bool = False
    deny_command: tuple[str, ...] = ()
    unix_mode: int = 0o600
    proxy_protocol: bool = False
    # TLS
    tls_cert: str = ""
    tls_key: str = ""
    tls_client_ca: str = ""
    tls_client_auth: str = "required"
    tls_min_version: str = "1.2"
    upstream_tls_ca: str = ""
    upstream_tls_cert: str = ""
    upstream_tls_key: str = ""
    upstream_tls_name: str = ""
    upstream_tls_verify: bool = True
    # limits
    max_clients: int = 10000
    max_clients_per_address: int = 0
    max_accept_rate: int = 1000
    max_client_hits: int = 64
    max_lane_hits: int = 65536
    max_unread: int = 65536
    handshake_timeout_s: float = 10.0
    idle_timeout_s: float = 0.0
    write_timeout_s: float = 60.0
    tcp_keepalive_s: int = 300
    # observability
    admin: Address | None = None
    metrics_prefixes: int = 0
    log_level: str = "info"
    log_format: str = "auto"

    def __post_init__(self) -> None:
        assert self.unix_mode <= 0o777


# kinds of option values
SECONDS: Final = "SECONDS"
NUMBER: Final = "N"
SWITCH: Final = "yes|no"
CHOICE: Final = "choice"
FILE: Final = "FILE"
OTHER: Final = "other"

SERVING: Final = "serving"
FAULTS: Final = "when Redis fails"
ADMISSION: Final = "admission"
TLS: Final = "TLS"
LIMITS: Final = "limits"
SEEING: Final = "observability"
GROUPS: Final = (SERVING, FAULTS, ADMISSION, TLS, LIMITS, SEEING)


@dataclass(frozen=True)
class Option:
    """One option: its flag, value, bounds and help; environment variable and file key follow."""

    group: str
    flag: str
    kind: str
    default: str
    help: str
    metavar: str = ""  # the value as shown in help, if not the kind
    field: str = ""  # the field of Config, if its name has a unit that the flag lacks
    least: float = 0
    most: float = 0
    repeats: bool = False
    reload: bool = False  # takes effect on SIGHUP

    @property
    def name(self) -> str:
        """The key in the file: the flag without its leading dashes."""
        return self.flag.removeprefix("--")

    @property
    def variable(self) -> str:
        """The environment variable of this option."""
        return PREFIX + self.name.replace("-", "_").upper()

    @property
    def attribute(self) -> str:
        """The field of Config."""
        return self.field or self.name.replace("-", "_")

    @property
    def takes(self) -> str:
        """The value as shown in help and docs, such as SECONDS."""
        return self.metavar or self.kind


OPTIONS: Final = (
    Option(
        SERVING,
        "--listen",
        OTHER,
        DEFAULT_LISTEN,
        "addresses where clients connect; tls: with TLS; may be given several times (in the "
        "environment: separated by blanks)",
        metavar="[tls:]HOST:PORT|unix:PATH",
        repeats=True,
    ),
    Option(
        SERVING,
        "--upstream",
        OTHER,
        "embedded:",
        "the Redis behind the proxy: redis://[user:password@]host[:port][/db], rediss:// over "
        "TLS, unix://[user:password@]/path[?db=n], "
        "redis+sentinel://[user:password@]host[:port][,host[:port]...]/master[/db]"
        "[?sentinel_user=u&sentinel_password=p] "
        "(rediss+sentinel:// over TLS) for the master that these Sentinels name, or embedded: "
        "for a private Valkey server that ends with the proxy. The default applies only at a "
        "terminal. The credentials are for the proxy's control connection only; clients "
        "authenticate themselves",
        metavar="URL",
    ),
    Option(
        SERVING,
        "--workers",
        NUMBER,
        "1",
        "processes that serve the same addresses, each with its own shared connections and "
        "denial cache; a worker that dies is replaced",
        least=1,
        most=256,
    ),
    Option(
        SERVING,
        "--share",
        SWITCH,
        "no",
        "single ordinary commands (GET, SET, ...) of many clients travel on shared connections "
        "too, in order. All other commands use the client's private connection",
    ),
    Option(
        SERVING,
        "--denial-cache",
        NUMBER,
        "65536",
        "refusals remembered at most. A remembered refusal answers the same hit without Redis, "
        "for up to a second or until Redis reports that the key was touched. 0: none",
        most=100_000_000,
    ),
    Option(
        FAULTS,
        "--on-upstream-failure",
        CHOICE,
        "error",
        "the reply to a hit while Redis can't be reached or is too slow: an error "
        "(-UPSTREAMDOWN), admitted (0 limit limit -1 0), or refused (1 limit 0 1 1). For allow "
        "and deny ioredis needs enableReadyCheck: false: its INFO gets an error while Redis is "
        "away",
        metavar="error|allow|deny",
        reload=True,
    ),
    Option(
        FAULTS,
        "--hit-timeout",
        NUMBER,
        "1000",
        "milliseconds until a hit that Redis has not answered gets the reply of "
        "--on-upstream-failure; Redis may still count it. 0: no limit",
        metavar="MS",
        field="hit_timeout_ms",
        most=3_600_000,
        reload=True,
    ),
    Option(
        FAULTS,
        "--connect-timeout",
        SECONDS,
        "5",
        "time for opening a connection to Redis, TLS included, until its client gets -UPSTREAMDOWN",
        field="connect_timeout_s",
    ),
    Option(
        FAULTS,
        "--drain-timeout",
        SECONDS,
        "10",
        "time for outstanding replies after SIGTERM, until the remaining connections are cut",
        field="drain_timeout_s",
    ),
    Option(
        ADMISSION,
        "--protected-mode",
        SWITCH,
        "yes",
        "while Redis' default user needs no password, turn away clients of other machines (to "
        "Redis' own protected mode every client of a proxy is local)",
        reload=True,
    ),
    Option(
        ADMISSION,
        "--local-commands",
        SWITCH,
        "no",
        "clients of other machines may send commands that Redis may restrict to local clients: "
        "DEBUG, MODULE LOAD and UNLOAD, CONFIG SET of dir and dbfilename",
        reload=True,
    ),
    Option(
        ADMISSION,
        "--deny-command",
        OTHER,
        "",
        "a command that no client may send, alone or with a subcommand (KEYS, or config|set for "
        "CONFIG SET); may be given several times (in the environment: separated by blanks)",
        metavar="NAME[|SUB]",
        repeats=True,
        reload=True,
    ),
    Option(
        ADMISSION,
        "--unix-mode",
        OTHER,
        "600",
        "permissions of the unix sockets of --listen, octal; set before the sockets listen",
        metavar="MODE",
    ),
    Option(
        ADMISSION,
        "--proxy-protocol",
        SWITCH,
        "no",
        "every TCP client connects through a load balancer that sends the client's address "
        "(PROXY protocol, version 1 or 2); a connection without that header is closed. Only the "
        "load balancer may reach the port",
    ),
    Option(
        TLS,
        "--tls-cert",
        FILE,
        "",
        "certificate chain (PEM) for clients at tls: addresses",
        reload=True,
    ),
    Option(TLS, "--tls-key", FILE, "", "its private key (PEM)", reload=True),
    Option(
        TLS,
        "--tls-client-ca",
        FILE,
        "",
        "CA certificates (PEM) for clients' certificates; clients must present one",
        reload=True,
    ),
    Option(
        TLS,
        "--tls-client-auth",
        CHOICE,
        "required",
        "with --tls-client-ca: whether clients must present a certificate",
        metavar="required|optional",
        reload=True,
    ),
    Option(
        TLS,
        "--tls-min-version",
        CHOICE,
        "1.2",
        "the oldest TLS version accepted, on both sides",
        metavar="1.2|1.3",
        reload=True,
    ),
    Option(
        TLS,
        "--upstream-tls-ca",
        FILE,
        "",
        "CA certificates (PEM) for Redis' certificate; without it, those of this system",
        reload=True,
    ),
    Option(
        TLS,
        "--upstream-tls-cert",
        FILE,
        "",
        "the proxy's own certificate chain for Redis (PEM)",
        reload=True,
    ),
    Option(TLS, "--upstream-tls-key", FILE, "", "its private key (PEM)", reload=True),
    Option(
        TLS,
        "--upstream-tls-name",
        OTHER,
        "",
        "the name expected in Redis' certificate and sent as SNI; without it, the URL's host",
        metavar="NAME",
        reload=True,
    ),
    Option(
        TLS,
        "--upstream-tls-verify",
        SWITCH,
        "yes",
        "verify Redis' certificate; without that, an attacker on the network path can read and "
        "change everything",
        reload=True,
    ),
    Option(
        LIMITS,
        "--max-clients",
        NUMBER,
        "10000",
        "clients of each worker at a time; further ones get Redis' error (max number of clients "
        "reached) and are closed",
        least=1,
        most=10_000_000,
        reload=True,
    ),
    Option(
        LIMITS,
        "--max-clients-per-address",
        NUMBER,
        "0",
        "clients of each worker per IP address; further ones get the same error. 0: no limit",
        most=10_000_000,
        reload=True,
    ),
    Option(
        LIMITS,
        "--max-accept-rate",
        NUMBER,
        "1000",
        "new clients of each worker per second while other clients are served, so that a flood "
        "of connections does not delay them; the rest wait in the system's queue. 0: no limit",
        most=1_000_000,
        reload=True,
    ),
    Option(
        LIMITS,
        "--max-client-hits",
        NUMBER,
        "64",
        "unanswered hits of one client; its further hits wait, so that a long pipeline does not "
        "delay other clients. Clients with longer pipelines share this number",
        least=1,
        most=1_000_000,
    ),
    Option(
        LIMITS,
        "--max-lane-hits",
        NUMBER,
        "65536",
        "unanswered hits of all clients on one shared connection; further hits use their "
        "client's private connection",
        least=1,
        most=10_000_000,
    ),
    Option(
        LIMITS,
        "--max-unread",
        NUMBER,
        "65536",
        "bytes of replies that a client may leave unread until the proxy stops reading from "
        "Redis for it (then Redis' own output limits apply)",
        metavar="BYTES",
        least=1024,
        most=1 << 30,
    ),
    Option(
        LIMITS,
        "--handshake-timeout",
        SECONDS,
        "10",
        "time for a new client's TLS handshake and PROXY header",
        field="handshake_timeout_s",
    ),
    Option(
        LIMITS,
        "--idle-timeout",
        SECONDS,
        "0",
        "close a client that sent nothing for this time and is owed no reply (subscribers "
        "stay). 0: never; Redis' own timeout applies as well",
        field="idle_timeout_s",
        reload=True,
    ),
    Option(
        LIMITS,
        "--write-timeout",
        SECONDS,
        "60",
        "close a client that read none of its waiting replies for this time. 0: never",
        field="write_timeout_s",
        reload=True,
    ),
    Option(
        LIMITS,
        "--tcp-keepalive",
        NUMBER,
        "300",
        "seconds of silence until TCP keepalive probes a client. 0: no probes",
        metavar="SECONDS",
        field="tcp_keepalive_s",
        most=32767,
    ),
    Option(
        SEEING,
        "--admin",
        OTHER,
        "",
        "address of the live page (/), /metrics, /healthz and /readyz, over plain HTTP; use "
        "127.0.0.1 or a private network, since every visitor can see keys",
        metavar="HOST:PORT|unix:PATH",
    ),
    Option(
        SEEING,
        "--metrics-prefixes",
        NUMBER,
        "0",
        "count hits also by key prefix, up to the first colon, for this number of prefixes; "
        "further ones count as (other). 0: none",
        most=10_000,
    ),
    Option(
        SEEING,
        "--log-level",
        CHOICE,
        "info",
        "least severe level that is logged, on standard error",
        metavar="debug|info|warning|error",
        reload=True,
    ),
    Option(
        SEEING,
        "--log-format",
        CHOICE,
        "auto",
        "sentences (text) or one JSON object a line (json); auto: text on a terminal, JSON "
        "elsewhere",
        metavar="auto|text|json",
    ),
)
_ZERO_IS_NONE: Final = ("--idle-timeout", "--write-timeout")
_BY_NAME: Final = {option.name: option for option in OPTIONS}

EPILOG: Final = """\
example:
  rlproxy --listen 127.0.0.1:6380 --upstream redis://127.0.0.1:6379
  redis-cli -p 6380 RL.HIT user:42 5 60      at most 5 hits in any 60 seconds

Subcommands:
  rlproxy top [--url URL]        shows a running proxy in the terminal: see rlproxy top --help
  rlproxy health [HOST:PORT]     exits with 0 if a proxy answers there
  rlproxy docs FILE ...          writes the generated tables into the pages of docs/

Every option is also an environment variable (RLPROXY_UPSTREAM, ...) and a key of the file that
--config names (upstream = "redis://127.0.0.1:6379"). The command line wins over the environment,
the environment over the file. On SIGHUP the file and all certificates are read again.
Exit codes: 0 a clean stop, 1 could not start or failed, 2 wrong usage.
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        # A password that contains a blank spans several words.
        starred = without_password(message) if "@" in message else message
        told = " ".join(without_password(word) for word in starred.split(" "))
        raise ConfigError([told + _meant_flag(message)])


def parser(prog: str = "rlproxy") -> argparse.ArgumentParser:
    """Build the parser of the command line. On wrong usage it raises ConfigError."""
    made = _Parser(
        prog=prog,
        description="A Redis-protocol proxy that adds exact, shared rate limits (RL.HIT) to any "
        "Redis and passes every other command on untouched.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for title in GROUPS:
        group = made.add_argument_group(title)
        for option in OPTIONS:
            if option.group == title:
                default = f"default {option.default}; " if option.default else ""
                group.add_argument(
                    option.flag,
                    metavar=option.takes,
                    action="append" if option.repeats else "store",
                    nargs="?" if option.kind == SWITCH else None,
                    const="yes" if option.kind == SWITCH else None,
                    help=f"{option.help} ({default}environment {option.variable})",
                )
    made.add_argument(
        "--config",
        metavar="FILE",
        help="a TOML file whose keys are the options above without their dashes in front "
        "(environment RLPROXY_CONFIG)",
    )
    made.add_argument(
        "--check-config",
        action="store_true",
        help="report mistakes in the settings and the files they name, and exit (code 0 or 2)",
    )
    made.add_argument("--version", action="store_true", help="print version and build, and exit")
    return made


@dataclass(frozen=True)
class _Given:
    """The values of one option, and the name of the source that an error refers to."""

    named: str
    values: list[str]


def load(
    args: argparse.Namespace, environ: Mapping[str, str] = os.environ, terminal: bool = True
) -> Config:
    """Combine the command line, the environment and the file, in order of precedence.

    args: the parsed command line.
    terminal: whether the proxy is started at a terminal. Otherwise an upstream is required.
    Raises ConfigError naming every mistake.
    """
    mistakes: list[str] = []
    path = args.config or environ.get("RLPROXY_CONFIG", "").strip()
    in_file = _read_file(path, mistakes) if path else {}
    for name in unknown_variables(environ):
        near = _meant(name, _VARIABLES, PREFIX) or "; see rlproxy --help"
        mistakes.append(f"{name}: no option has this environment variable{near}")
    all_known = not mistakes  # a misspelt name makes the setting that it means look absent
    wrong_flags: set[str] = set()
    values: dict[str, Any] = {}
    for option in OPTIONS:
        given = _given(option, args, environ, in_file)
        if option.flag == "--upstream" and given is None and all_known:
            # The Docker image sets the variable empty, so that a terminal makes no difference.
            mistakes += [NO_UPSTREAM] if not terminal or option.variable in environ else []
        default = [option.default] if option.default or not option.repeats else []
        texts = given.values if given is not None else default
        parsed: list[Any] = []
        for text in texts:
            try:
                parsed.append(_parsed(option, text))
            except ValueError as wrong:
                wrong_flags.add(option.flag)
                named = given.named if given is not None else option.flag
                shown = without_password(text)
                mistakes.append(f"{named} {shown}: {wrong}" if shown else f"{named}: {wrong}")
        if option.repeats:
            values[option.attribute] = tuple(parsed)
        else:
            values[option.attribute] = parsed[0] if parsed else _parsed(option, option.default)
    made = Config(**values)
    if all_known and not wrong_flags & {"--listen", "--upstream"}:
        found = _contradictions(made)
        mistakes += [one for one in found if not any(flag in one for flag in wrong_flags)]
    if mistakes:
        raise ConfigError(mistakes)
    return made


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Return the variables that begin with PREFIX and belong to no option, sorted."""
    return sorted(
        name
        for name, value in environ.items()
        if name.startswith(PREFIX)
        and name not in _VARIABLES
        and name not in _OTHER_VARIABLES
        and not _of_a_service(name, value)
    )


def _of_a_service(name: str, value: str) -> bool:
    """Whether Kubernetes sets the variable, for a Service named rlproxy or rlproxy-..."""
    if _SERVICE.fullmatch(name):
        return True
    return _SERVICE_PORT.fullmatch(name) is not None and _ENDPOINT.fullmatch(value) is not None


def _meant_flag(message: str) -> str:
    """Return a suggestion to append to argparse's message about an unknown flag, or ""."""
    _, unknown, words = message.partition("unrecognized arguments: ")
    flags = [option.flag for option in OPTIONS] + ["--config", "--check-config", "--version"]
    first = words.split(" ")[0].partition("=")[0]
    return _meant(first, flags, "--") if unknown and first.startswith("--") else ""


def _meant(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return a suggestion with the known name most similar to `name`, or "".

    The common `prefix` is not compared: it would make all names similar.
    """
    import difflib  # imported here because it is rarely needed

    bare = [each.removeprefix(prefix) for each in known]
    close = difflib.get_close_matches(name.removeprefix(prefix), bare, n=1, cutoff=LIKE)
    return f"; did you mean {prefix}{close[0]}?" if close else ""


_VARIABLES: Final = (*(option.variable for option in OPTIONS), f"{PREFIX}CONFIG")
_OTHER_VARIABLES: Final = ("RLPROXY_COMPILE", "RLPROXY_INTERPRETED")  # for build and tests
_SERVICE: Final = re.compile(
    rf"{PREFIX}(?:[A-Z0-9_]+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?"
    r"|PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)
# Such a name could be a misspelt option: the value decides.
_SERVICE_PORT: Final = re.compile(rf"{PREFIX}(?:[A-Z0-9_]+_)?PORT")
_ENDPOINT: Final = re.compile(r"(?:tcp|udp|sctp)://.+:\d+")


def differences(old: Config, new: Config) -> tuple[list[Option], list[Option]]:
    """Return the options that differ: those that SIGHUP may change, those that need a restart."""
    changed = [
        option
        for option in OPTIONS
        if getattr(old, option.attribute) != getattr(new, option.attribute)
    ]
    return [one for one in changed if one.reload], [one for one in changed if not one.reload]


def reloaded(old: Config, new: Config) -> Config:
    """Return `old` with the options that SIGHUP may change as they are in `new`.

    Raises ConfigError if they contradict options that SIGHUP may not change.
    """
    may = {option.attribute for option in OPTIONS if option.reload}
    values = {
        field.name: getattr(new if field.name in may else old, field.name)
        for field in fields(Config)
    }
    made = Config(**values)
    mistakes = _contradictions(made)
    if mistakes:
        raise ConfigError(mistakes)
    return made


def _given(
    option: Option, args: argparse.Namespace, environ: Mapping[str, str], in_file: Mapping[str, Any]
) -> _Given | None:
    """Return the values of `option` from the source of highest precedence; None if not given."""
    value = getattr(args, option.name.replace("-", "_"))
    if value is not None:
        return _Given(option.flag, value if option.repeats else [value])
    text = environ.get(option.variable, "").strip()
    if text:
        return _Given(option.variable, text.split() if option.repeats else [text])
    if option.name not in in_file:
        return None
    found = in_file[option.name]
    named = f"{option.name} (in the file)"
    if isinstance(found, bool):
        return _Given(named, ["yes" if found else "no"])
    if option.repeats and isinstance(found, list):
        return _Given(named, [str(each) for each in found])
    return _Given(named, [str(found)])


def _read_file(path: str, mistakes: list[str]) -> dict[str, Any]:
    """Read the file: values by option name. Mistakes are appended to `mistakes`."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        mistakes.append(f"--config {path}: {error.strerror or error}")
        return {}
    except UnicodeDecodeError as error:
        mistakes.append(f"--config {path}: {error}")
        return {}
    found, wrong = _read_toml(text)
    mistakes += [f"--config {path}: {each}" for each in wrong]
    made: dict[str, Any] = {}
    for key, value in found.items():
        name = key.replace("_", "-")
        option = _BY_NAME.get(name)
        if option is None:
            near = _meant(name, _BY_NAME)
            if isinstance(value, dict):
                near = "; the file has no sections, its options stand above any [...]"
            mistakes.append(f"--config {path}: there is no option {key}{near}")
        elif isinstance(value, dict) or (isinstance(value, list) and not option.repeats):
            mistakes.append(f"--config {path}: {key} takes one value")
        else:
            made[name] = value
    return made


def _read_toml(text: str) -> tuple[dict[str, Any], list[str]]:
    """Parse `text` as TOML. Returns the values and the syntax errors.

    A line that is wrong on its own is left out, so that the others can be read.
    """
    wrong: list[str] = []
    lines = re.split(r"\r?\n", text)
    while True:
        try:
            return tomllib.loads("\n".join(lines)), wrong
        except tomllib.TOMLDecodeError as error:
            wrong.append(str(error))
            number = _wrong_line(str(error), lines)
            if number is None or len(wrong) == MAX_MISTAKES:
                return {}, wrong
            lines[number] = ""


def _wrong_line(error: str, lines: Sequence[str]) -> int | None:
    """Return the index of the line that `error` refers to.

    Returns None unless that line is wrong on its own, or repeats a key.
    """
    place = re.search(r"\(at line (\d+), column \d+\)$", error)
    if place is None and error.startswith(("Unclosed", "Unterminated")):
        return None  # the line where it begins is not known
    # tomllib may report a missing end of a value at the next line, or at the end of the text.
    last = int(place[1]) - 1 if place else len(lines) - 1
    for number in (last, last - 1):
        if 0 <= number < len(lines) and lines[number].strip():
            if error.startswith("Cannot overwrite"):
                return number if "=" in lines[number] else None
            try:
                tomllib.loads(lines[number])
            except tomllib.TOMLDecodeError:
                return number
    return None


def _parsed(option: Option, text: str) -> Any:
    """Parse the value of `option`. Raises ValueError."""
    if option.kind == SECONDS:
        return _seconds(text, zero=option.flag in _ZERO_IS_NONE)
    if option.kind == NUMBER:
        return _number(text, int(option.least), int(option.most))
    if option.kind == SWITCH:
        if text.lower() not in ("yes", "no"):
            raise ValueError("expected yes or no")
        return text.lower() == "yes"
    if option.kind == CHOICE:
        choices = option.metavar.split("|")
        if text.lower() not in choices:
            raise ValueError(f"expected {', '.join(choices[:-1])} or {choices[-1]}")
        return text.lower()
    if option.flag == "--listen":
        return parse_listen(text)
    if option.flag == "--upstream":
        return parse_upstream(text)
    if option.flag == "--admin":
        return _admin(text)
    if option.flag == "--unix-mode":
        return _mode(text)
    if option.flag == "--deny-command":
        return _command(text)
    return text


def _contradictions(made: Config) -> list[str]:
    """Return the contradictions between settings that are each valid."""
    found: list[str] = []
    upstream = made.upstream
    if upstream.address is not None and any(_same(upstream.address, own) for own in made.listen):
        found.append(f"--upstream: {upstream} is where the proxy itself listens")
    tls = any(address.tls for address in made.listen)
    if tls and not (made.tls_cert and made.tls_key):
        found.append("--listen tls: needs --tls-cert and --tls-key")
    if not tls:
        for flag, value in (
            ("--tls-cert", made.tls_cert),
            ("--tls-key", made.tls_key),
            ("--tls-client-ca", made.tls_client_ca),
        ):
            if value:
                found.append(f"{flag}: no address of --listen has TLS (tls:HOST:PORT)")
    if bool(made.upstream_tls_cert) != bool(made.upstream_tls_key):
        found.append("--upstream-tls-cert and --upstream-tls-key go together")
    if not upstream.tls:
        for flag, value in (
            ("--upstream-tls-ca", made.upstream_tls_ca),
            ("--upstream-tls-cert", made.upstream_tls_cert),
            ("--upstream-tls-name", made.upstream_tls_name),
        ):
            if value:
                found.append(f"{flag}: the URL of --upstream has no TLS (rediss://...)")
    if made.admin is not None and any(_same(made.admin, own) for own in made.listen):
        found.append(f"--admin: clients connect at {made.admin} (--listen)")
    if made.proxy_protocol and all(address.path for address in made.listen):
        found.append("--proxy-protocol: no address of --listen is TCP")
    return found


def _same(upstream: Address, listen: Address) -> bool:
    local = ("127.0.0.1", "localhost", "0.0.0.0", "::", "::1")  # noqa: S104
    if upstream.path or listen.path:
        return upstream.path == listen.path
    same_host = upstream.host == listen.host or (upstream.host in local and listen.host in local)
    return same_host and upstream.port == listen.port != 0  # 0: the system selects a free port


def parse_listen(text: str) -> Address:
    """Parse HOST:PORT, [IPV6]:PORT or :PORT, each optionally after tls:, or unix:PATH.

    Raises ValueError.
    """
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        path = "/" + path.lstrip("/") if path.startswith("//") else path
        if not path:
            raise ValueError("no path")
        return Address(path=path)
    tls = text.startswith("tls:")
    host, colon, port = text.removeprefix("tls:").rpartition(":")
    if not colon:
        raise ValueError("expected HOST:PORT, tls:HOST:PORT or unix:PATH")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("an IPv6 address goes in brackets: [::1]:6380")
    return Address(host or "127.0.0.1", _port(port, least=0), tls=tls)


def _admin(text: str) -> Address | None:
    if not text:
        return None
    if text.startswith("tls:"):
        raise ValueError("it is plain HTTP: expected HOST:PORT or unix:PATH")
    if "://" in text or (":" not in text and text):
        raise ValueError("expected HOST:PORT, such as 127.0.0.1:9121, or unix:PATH")
    return parse_listen(text)


_SCHEMES: Final = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel")


def parse_upstream(url: str) -> Upstream:
    """Parse a URL of --upstream. Raises ValueError."""
    scheme = url.partition(":")[0].lower()
    if scheme == "embedded":
        if url.lower() not in ("embedded:", "embedded://"):
            raise ValueError("expected embedded: with its colon and nothing behind it")
        return Upstream(None)
    if scheme not in _SCHEMES or "://" not in url:
        raise ValueError(
            "expected redis://HOST[:PORT][/DB], rediss://..., unix:///PATH[?db=N], "
            "redis+sentinel://HOST[:PORT],.../MASTER[/DB] or embedded:"
        )
    parts = urlsplit(url)
    if "@" in parts.path or "@" in parts.query or parts.fragment:
        raise ValueError("in a password, '/', '?', '#' and '@' are written %2F, %3F, %23 and %40")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    user = unquote(parts.username) if parts.username else None
    password = unquote(parts.password) if parts.password is not None else None
    if user is not None and password is None:
        raise ValueError("a user without a password")
    tls = scheme.startswith("rediss")
    if scheme.endswith("+sentinel"):
        return _sentinel(parts.netloc.rpartition("@")[2], parts.path, query, user, password, tls)
    db = query.pop("db", "")
    if query:
        raise ValueError(f"unknown parameter {next(iter(query))}")
    if scheme == "unix":
        path = unquote(parts.path)
        if not path or parts.hostname:
            raise ValueError("expected unix:///PATH")
        return Upstream(Address(path=path), _db(db), user, password)
    in_path = parts.path.lstrip("/")
    if in_path and db:
        raise ValueError("the database is given twice")
    if not parts.hostname:
        raise ValueError("no host")
    try:
        port = parts.port
    except ValueError:
        raise ValueError("the port is not a number from 1 to 65535") from None
    if port == 0:
        raise ValueError("the port is not a number from 1 to 65535")
    address = Address(parts.hostname, port or DEFAULT_REDIS_PORT)
    return Upstream(address, _db(in_path or db), user, password, tls)


def _sentinel(
    hosts: str, path: str, query: dict[str, str], user: str | None, password: str | None, tls: bool
) -> Upstream:
    name, _, db = unquote(path.lstrip("/")).partition("/")
    if not name:
        raise ValueError("no name of a master: redis+sentinel://HOST[:PORT],.../MASTER")
    addresses = []
    for text in hosts.split(","):
        has_port = ":" in text.rpartition("]")[2]
        try:
            found = parse_listen(text if has_port else f"{text}:{DEFAULT_SENTINEL_PORT}")
        except ValueError as wrong:
            port = text.rpartition(":")[2]  # a password, if the host was left out
            shown, why = (text.replace(port, "***"), str(wrong).replace(port, "***"))
            raise ValueError(f"{shown}: {why}" if port else f"{text}: {wrong}") from None
        if not text or text.startswith(":") or found.port == 0:
            raise ValueError(f"{text or '(nothing)'}: no host and port")
        addresses.append(found)
    sentinel_user = query.pop("sentinel_user", None)
    sentinel_password = query.pop("sentinel_password", None)
    if sentinel_user and sentinel_password is None:
        raise ValueError("a sentinel_user without a sentinel_password")
    if query:
        raise ValueError(f"unknown parameter {next(iter(query))}")
    sentinels = Sentinels(tuple(addresses), name, sentinel_user, sentinel_password)
    return Upstream(None, _db(db), user, password, tls, sentinels)


def _db(text: str) -> int:
    if text == "":
        return 0
    if not (text.isascii() and text.isdigit()) or int(text) > 2**31 - 1:
        raise ValueError(f"the database {text} is not a whole number from 0 to 2147483647")
    return int(text)


def _port(text: str, least: int) -> int:
    if not (text.isascii() and text.isdigit()) or not least <= int(text) <= 65535:
        raise ValueError(f"the port {text or '(none)'} is not a number from {least} to 65535")
    return int(text)


def _seconds(text: str, zero: bool) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not (0 < value < 1e9 or (zero and value == 0)):
        raise ValueError(f"expected a number of seconds{', or 0' if zero else ' above 0'}")
    return value


def _number(text: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19) or not least <= int(text) <= most:
        raise ValueError(f"expected a whole number from {least} to {most}")
    return int(text)


def _mode(text: str) -> int:
    if not 1 <= len(text) <= 4 or not set(text) <= set("01234567") or int(text, 8) > 0o777:
        raise ValueError("expected permissions such as 600 or 660")
    return int(text, 8)


def _command(text: str) -> str:
    words = text.replace(" ", "|").lower().split("|")
    if not 1 <= len(words) <= 2 or not all(word and word.isascii() for word in words):
        raise ValueError("expected the name of a command, or NAME|SUB")
    if len(words[0]) > MAX_COMMAND or not text.isprintable():
        raise ValueError(f"no command has such a name (printable, at most {MAX_COMMAND} bytes)")
    return "|".join(words)


def without_password(url: str) -> str:
    """Return `url` with every part that may be a secret replaced by ***."""
    scheme, found, rest = url.partition("://")
    if not found:
        _, at, tail = url.rpartition("@")
        return f"***@{tail}" if at else url
    place, mark, query = rest.partition("?")
    if "@" in query:  # a password that contains a question mark
        return f"{scheme}://***"
    _, at, tail = place.rpartition("@")
    if at:
        place = f"***@{tail}"
    else:  # the host may have been left out
        authority, slash, path = place.partition("/")
        host, colon, port = authority.rpartition(":")
        if colon and not port.isdigit() and "]" not in port:
            place = f"{host}:***{slash}{path}"
    name, equals, value = query.partition("=")
    if equals and not (name == "db" and value.isdigit()):
        query = f"{name}=***"
    return f"{scheme}://{place}{mark}{query}"
