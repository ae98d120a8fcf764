"""One frozen settings object from command line and environment; all mistakes reported at once."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

DEFAULT_LISTEN: Final = "127.0.0.1:6380"
DEFAULT_REDIS_PORT: Final = 6379


class ConfigError(Exception):
    """Settings that can't be used; one line for each mistake."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = tuple(mistakes)


@dataclass(frozen=True)
class Address:
    """Where to listen or connect: `path` of a unix socket, or else `host` and `port`."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True)
class Upstream:
    """The Redis behind the proxy. The credentials are for the proxy's own control connection;
    `db` is the database that clients start in. `address` is None for `embedded:`.
    """

    address: Address | None
    db: int = 0
    user: str | None = None
    password: str | None = None

    def __str__(self) -> str:
        return "embedded:" if self.address is None else str(self.address)

    def __repr__(self) -> str:
        return f"Upstream({self})"


@dataclass(frozen=True)
class Config:
    """Everything a process is told. Times in seconds."""

    listen: tuple[Address, ...]
    upstream: Upstream
    connect_timeout_s: float = 5.0
    drain_timeout_s: float = 10.0
    private_refresh_s: float = 30.0
    denial_cache: int = 65536
    share: bool = False
    workers: int = 1
    upstream_given: bool = True


@dataclass(frozen=True)
class Option:
    """One setting: command line, environment and help in one row."""

    flag: str
    metavar: str
    default: str
    help: str
    repeats: bool = False
    switch: bool = False  # by itself it means yes

    @property
    def variable(self) -> str:
        """The environment variable of the same meaning."""
        return "RLPROXY_" + self.flag.lstrip("-").replace("-", "_").upper()


OPTIONS: Final = (
    Option(
        "--listen",
        "HOST:PORT|unix:PATH",
        DEFAULT_LISTEN,
        "where clients connect; may be given several times (in the environment: separated by "
        "blanks)",
        repeats=True,
    ),
    Option(
        "--upstream",
        "URL",
        "embedded:",
        "the Redis behind the proxy: redis://[user:password@]host[:port][/db], "
        "unix://[user:password@]/path[?db=n], or embedded: for a private Valkey server that lives "
        "as long as the proxy. Credentials are for the proxy's own control connection only; "
        "clients authenticate themselves",
    ),
    Option(
        "--connect-timeout",
        "SECONDS",
        "5",
        "how long opening a connection to Redis may take before its client gets -UPSTREAMDOWN",
    ),
    Option(
        "--drain-timeout",
        "SECONDS",
        "10",
        "on SIGTERM: how long outstanding replies may take before connections are cut",
    ),
    Option(
        "--private-refresh",
        "SECONDS",
        "30",
        "a client's own connection to Redis that was silent for so long carries its next hit, so "
        "that Redis doesn't take the client for idle (lowered by itself where Redis has a shorter "
        "timeout)",
    ),
    Option(
        "--denial-cache",
        "N",
        "65536",
        "how many refusals are remembered at most: the same hit is refused again without asking "
        "Redis, for up to a second or until Redis tells that the key was touched. 0: none",
    ),
    Option(
        "--share",
        "yes|no",
        "no",
        "ordinary commands (GET, SET, ...) of many clients travel on shared connections too, and "
        "keep their order. Each client still has a connection of its own for everything else",
        switch=True,
    ),
    Option(
        "--workers",
        "N",
        "1",
        "processes that serve the same addresses, each with its own shared connections and "
        "remembered refusals; one that dies is replaced",
    ),
)
MAX_DENIALS: Final = 100_000_000
MAX_WORKERS: Final = 256

EPILOG: Final = """\
example:
  rlproxy --listen 127.0.0.1:6380 --upstream redis://127.0.0.1:6379
  redis-cli -p 6380 RL.HIT user:42 5 60      at most 5 hits in any 60 seconds

Every option is also an environment variable (RLPROXY_UPSTREAM, ...); the command line wins.
Exit codes: 0 a clean stop, 1 could not start or failed, 2 wrong usage.
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise ConfigError([" ".join(_without_password(word) for word in message.split(" "))])


def parser(prog: str = "rlproxy") -> argparse.ArgumentParser:
    """The command line."""
    made = _Parser(
        prog=prog,
        description="A Redis-protocol proxy that adds exact, shared rate limits (RL.HIT) to any "
        "Redis and passes every other command on untouched.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for option in OPTIONS:
        made.add_argument(
            option.flag,
            metavar=option.metavar,
            action="append" if option.repeats else "store",
            nargs="?" if option.switch else None,
            const="yes" if option.switch else None,
            help=f"{option.help} (default {option.default}; environment {option.variable})",
        )
    made.add_argument("--version", action="store_true", help="print version and build, and exit")
    return made


def load(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> Config:
    """The settings of a parsed command line over the environment.

    Raises ConfigError naming every mistake.
    """
    mistakes: list[str] = []
    given: dict[str, list[str]] = {}
    named: dict[str, str] = {}  # what a person has to change
    for option in OPTIONS:
        value = getattr(args, option.flag.lstrip("-").replace("-", "_"))
        named[option.flag] = option.flag
        if value is not None:
            given[option.flag] = value if option.repeats else [value]
        elif environ.get(option.variable, "").strip():
            text = environ[option.variable].strip()
            given[option.flag] = text.split() if option.repeats else [text]
            named[option.flag] = option.variable
    listen: list[Address] = []
    for text in given.get("--listen", [DEFAULT_LISTEN]):
        try:
            listen.append(parse_listen(text))
        except ValueError as wrong:
            mistakes.append(f"{named['--listen']} {text}: {wrong}")
    upstream = Upstream(None)
    url = given.get("--upstream", ["embedded:"])[0]
    try:
        upstream = parse_upstream(url)
    except ValueError as wrong:
        mistakes.append(f"{named['--upstream']} {_without_password(url)}: {wrong}")
    times: dict[str, float] = {}
    for option in OPTIONS:
        if option.metavar == "SECONDS":
            text = given.get(option.flag, [option.default])[0]
            try:
                times[option.flag] = _positive(text)
            except ValueError as wrong:
                mistakes.append(f"{named[option.flag]} {text}: {wrong}")
    numbers: dict[str, int] = {}
    for flag, least, most in (("--denial-cache", 0, MAX_DENIALS), ("--workers", 1, MAX_WORKERS)):
        text = given.get(flag, [_default(flag)])[0]
        try:
            numbers[flag] = _number(text, least, most)
        except ValueError as wrong:
            mistakes.append(f"{named[flag]} {text}: {wrong}")
    share = given.get("--share", [_default("--share")])[0].lower()
    if share not in ("yes", "no"):
        mistakes.append(f"{named['--share']} {share}: expected yes or no")
    if upstream.address is not None and any(_same(upstream.address, own) for own in listen):
        mistakes.append(f"{named['--upstream']}: {upstream} is where the proxy itself listens")
    if mistakes:
        raise ConfigError(mistakes)
    return Config(
        tuple(listen),
        upstream,
        times["--connect-timeout"],
        times["--drain-timeout"],
        times["--private-refresh"],
        numbers["--denial-cache"],
        share == "yes",
        numbers["--workers"],
        "--upstream" in given,
    )


def _same(upstream: Address, listen: Address) -> bool:
    local = ("127.0.0.1", "localhost", "0.0.0.0", "::", "::1")  # noqa: S104
    if upstream.path or listen.path:
        return upstream.path == listen.path
    same_host = upstream.host == listen.host or (upstream.host in local and listen.host in local)
    return same_host and upstream.port == listen.port


def parse_listen(text: str) -> Address:
    """HOST:PORT, [IPV6]:PORT, :PORT or unix:PATH. Raises ValueError."""
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        path = "/" + path.lstrip("/") if path.startswith("//") else path
        if not path:
            raise ValueError("no path")
        return Address(path=path)
    host, colon, port = text.rpartition(":")
    if not colon:
        raise ValueError("expected HOST:PORT or unix:PATH")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("an IPv6 address goes in brackets: [::1]:6380")
    return Address(host or "127.0.0.1", _port(port, least=0))


def parse_upstream(url: str) -> Upstream:
    """One of the URLs that --upstream takes. Raises ValueError."""
    scheme = url.partition(":")[0].lower()
    if scheme == "embedded":
        if url.lower() not in ("embedded:", "embedded://"):
            raise ValueError("embedded: takes nothing more")
        return Upstream(None)
    if scheme == "rediss":
        raise ValueError("TLS to Redis is not supported yet")
    if scheme not in ("redis", "unix") or "://" not in url:
        raise ValueError("expected redis://HOST[:PORT][/DB], unix:///PATH[?db=N] or embedded:")
    parts = urlsplit(url)
    if "@" in parts.path or "@" in parts.query or parts.fragment:
        raise ValueError("in a password, '/', '?', '#' and '@' are written %2F, %3F, %23 and %40")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    user = unquote(parts.username) if parts.username else None
    password = unquote(parts.password) if parts.password is not None else None
    if user is not None and password is None:
        raise ValueError("a user without a password")
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
    return Upstream(address, _db(in_path or db), user, password)


def _db(text: str) -> int:
    if text == "":
        return 0
    if not (text.isascii() and text.isdigit()) or int(text) > 2**31 - 1:
        raise ValueError(f"the database {text} is not a number")
    return int(text)


def _port(text: str, least: int) -> int:
    if not (text.isascii() and text.isdigit()) or not least <= int(text) <= 65535:
        raise ValueError(f"the port {text or '(none)'} is not a number from {least} to 65535")
    return int(text)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise ValueError("expected a number of seconds above 0")
    return value


def _number(text: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19) or not least <= int(text) <= most:
        raise ValueError(f"expected a whole number from {least} to {most}")
    return int(text)


def _default(flag: str) -> str:
    return next(option.default for option in OPTIONS if option.flag == flag)


def _without_password(url: str) -> str:
    head, at, tail = url.rpartition("@")
    if not at:
        return url
    scheme, separator, _ = head.partition("://")
    return f"{scheme}://***@{tail}" if separator else f"***@{tail}"
