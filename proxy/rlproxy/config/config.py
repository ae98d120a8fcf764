"""The settings: `Config`, whose fields are the table of options, and the rules between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

from rlproxy.config.options import (
    COMMAND,
    FILE,
    MODE,
    NAME,
    SECONDS,
    SECONDS_OR_ZERO,
    SWITCH,
    Group,
    Kind,
    Option,
    choice,
    number,
)
from rlproxy.config.urls import (
    DEFAULT_LISTEN,
    Address,
    Upstream,
    parse_admin,
    parse_listen,
    parse_upstream,
)

MAX_PREFIXES: Final = 10_000  # key prefixes that are counted

LISTEN: Final = Kind("[tls:]HOST:PORT|unix:PATH", parse_listen)
UPSTREAM: Final = Kind("URL", parse_upstream)
ADMIN: Final = Kind("HOST:PORT|unix:PATH", parse_admin)

SERVING: Final = Group("serving")
FAULTS: Final = Group("when Redis fails")
ADMISSION: Final = Group("admission")
TLS: Final = Group("TLS")
LIMITS: Final = Group("limits")
SEEING: Final = Group("observability")


class ConfigError(Exception):
    """Settings that can't be used; one line for each mistake."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = tuple(mistakes)


@dataclass(frozen=True)
class Config:
    """All settings. Each field is an option: kind, default, help.

    A name's unit, _s for seconds or _ms, is not part of the flag. An empty file name means that
    there is no such file.
    """

    listen: tuple[Address, ...] = SERVING.repeated(
        LISTEN,
        DEFAULT_LISTEN,
        "addresses where clients connect; tls: with TLS; may be given several times (in the "
        "environment: separated by blanks)",
    )
    upstream: Upstream = SERVING.option(  # noqa: RUF009
        UPSTREAM,
        "embedded:",
        "the Redis behind the proxy: redis://[user:password@]host[:port][/db], rediss:// over "
        "TLS, unix://[user:password@]/path[?db=n], "
        "redis+sentinel://[user:password@]host[:port][,host[:port]...]/master[/db]"
        "[?sentinel_user=u&sentinel_password=p] "
        "(rediss+sentinel:// over TLS) for the master that these Sentinels name, or embedded: "
        "for a private Valkey server that ends with the proxy. The default applies only at a "
        "terminal. The credentials are for the proxy's control connection only; clients "
        "authenticate themselves",
    )
    workers: int = SERVING.option(
        number(1, 256),
        "1",
        "processes that serve the same addresses, each with its own shared connections and "
        "denial cache; a worker that dies is replaced",
    )
    share: bool = SERVING.option(
        SWITCH,
        "no",
        "single ordinary commands (GET, SET, ...) of many clients travel on shared connections "
        "too, in order. All other commands use the client's private connection",
    )
    denial_cache: int = SERVING.option(
        number(0, 100_000_000),
        "65536",
        "refusals remembered at most. A remembered refusal answers the same hit without Redis, "
        "for up to a second or until Redis reports that the key was touched. 0: none",
    )
    on_upstream_failure: str = FAULTS.option(
        choice("error|allow|deny"),
        "error",
        "the reply to a hit while Redis can't be reached or is too slow: an error "
        "(-UPSTREAMDOWN), admitted (0 limit limit -1 0), or refused (1 limit 0 1 1). For allow "
        "and deny ioredis needs enableReadyCheck: false: its INFO gets an error while Redis is "
        "away",
        reload=True,
    )
    hit_timeout_ms: int = FAULTS.option(
        number(0, 3_600_000, "MS"),
        "1000",
        "milliseconds until a hit that Redis has not answered gets the reply of "
        "--on-upstream-failure; Redis may still count it. 0: no limit",
        reload=True,
    )
    connect_timeout_s: float = FAULTS.option(
        SECONDS,
        "5",
        "time for opening a connection to Redis, TLS included, until its client gets -UPSTREAMDOWN",
    )
    drain_timeout_s: float = FAULTS.option(
        SECONDS,
        "10",
        "time for outstanding replies after SIGTERM, until the remaining connections are cut",
    )
    protected_mode: bool = ADMISSION.option(
        SWITCH,
        "yes",
        "while Redis' default user needs no password, turn away clients of other machines (to "
        "Redis' own protected mode every client of a proxy is local)",
        reload=True,
    )
    local_commands: bool = ADMISSION.option(
        SWITCH,
        "no",
        "clients of other machines may send commands that Redis may restrict to local clients: "
        "DEBUG, MODULE LOAD and UNLOAD, CONFIG SET of dir and dbfilename",
        reload=True,
    )
    deny_command: tuple[str, ...] = ADMISSION.repeated(
        COMMAND,
        "",
        "a command that no client may send, alone or with a subcommand (KEYS, or config|set for "
        "CONFIG SET); may be given several times (in the environment: separated by blanks)",
        reload=True,
    )
    unix_mode: int = ADMISSION.option(
        MODE,
        "600",
        "permissions of the unix sockets of --listen, octal; set before the sockets listen",
    )
    proxy_protocol: bool = ADMISSION.option(
        SWITCH,
        "no",
        "every TCP client connects through a load balancer that sends the client's address "
        "(PROXY protocol, version 1 or 2); a connection without that header is closed. Only the "
        "load balancer may reach the port",
    )
    tls_cert: str = TLS.option(
        FILE,
        "",
        "certificate chain (PEM) for clients at tls: addresses",
        reload=True,
    )
    tls_key: str = TLS.option(
        FILE,
        "",
        "its private key (PEM)",
        reload=True,
    )
    tls_client_ca: str = TLS.option(
        FILE,
        "",
        "CA certificates (PEM) for clients' certificates; clients must present one",
        reload=True,
    )
    tls_client_auth: str = TLS.option(
        choice("required|optional"),
        "required",
        "with --tls-client-ca: whether clients must present a certificate",
        reload=True,
    )
    tls_min_version: str = TLS.option(
        choice("1.2|1.3"),
        "1.2",
        "the oldest TLS version accepted, on both sides",
        reload=True,
    )
    upstream_tls_ca: str = TLS.option(
        FILE,
        "",
        "CA certificates (PEM) for Redis' certificate; without it, those of this system",
        reload=True,
    )
    upstream_tls_cert: str = TLS.option(
        FILE,
        "",
        "the proxy's own certificate chain for Redis (PEM)",
        reload=True,
    )
    upstream_tls_key: str = TLS.option(
        FILE,
        "",
        "its private key (PEM)",
        reload=True,
    )
    upstream_tls_name: str = TLS.option(
        NAME,
        "",
        "the name expected in Redis' certificate and sent as SNI; without it, the URL's host",
        reload=True,
    )
    upstream_tls_verify: bool = TLS.option(
        SWITCH,
        "yes",
        "verify Redis' certificate; without that, an attacker on the network path can read and "
        "change everything",
        reload=True,
    )
    max_clients: int = LIMITS.option(
        number(1, 10_000_000),
        "10000",
        "clients of each worker at a time; further ones get Redis' error (max number of clients "
        "reached) and are closed",
        reload=True,
    )
    max_clients_per_address: int = LIMITS.option(
        number(0, 10_000_000),
        "0",
        "clients of each worker per IP address; further ones get the same error. 0: no limit",
        reload=True,
    )
    max_accept_rate: int = LIMITS.option(
        number(0, 1_000_000),
        "1000",
        "new clients of each worker per second while other clients are served, so that a flood "
        "of connections does not delay them; the rest wait in the system's queue. 0: no limit",
        reload=True,
    )
    max_client_hits: int = LIMITS.option(
        number(1, 1_000_000),
        "64",
        "unanswered hits of one client; its further hits wait, so that a long pipeline does not "
        "delay other clients. Clients with longer pipelines share this number",
    )
    max_lane_hits: int = LIMITS.option(
        number(1, 10_000_000),
        "65536",
        "unanswered hits of all clients on one shared connection; further hits use their "
        "client's private connection",
    )
    max_unread: int = LIMITS.option(
        number(1024, 1_073_741_824, "BYTES"),
        "65536",
        "bytes of replies that a client may leave unread until the proxy stops reading from "
        "Redis for it (then Redis' own output limits apply)",
    )
    handshake_timeout_s: float = LIMITS.option(
        SECONDS,
        "10",
        "time for a new client's TLS handshake and PROXY header",
    )
    idle_timeout_s: float = LIMITS.option(
        SECONDS_OR_ZERO,
        "0",
        "close a client that sent nothing for this time and is owed no reply (subscribers "
        "stay). 0: never; Redis' own timeout applies as well",
        reload=True,
    )
    write_timeout_s: float = LIMITS.option(
        SECONDS_OR_ZERO,
        "60",
        "close a client that read none of its waiting replies for this time. 0: never",
        reload=True,
    )
    tcp_keepalive_s: int = LIMITS.option(
        number(0, 32767, "SECONDS"),
        "300",
        "seconds of silence until TCP keepalive probes a client. 0: no probes",
    )
    admin: Address | None = SEEING.option(  # noqa: RUF009
        ADMIN,
        "",
        "address of the live page (/), /metrics, /healthz and /readyz, over plain HTTP; use "
        "127.0.0.1 or a private network, since every visitor can see keys",
    )
    metrics_prefixes: int = SEEING.option(
        number(0, MAX_PREFIXES),
        "0",
        "count hits also by key prefix, up to the first colon, for this number of prefixes; "
        "further ones count as (other). 0: none",
    )
    log_level: str = SEEING.option(
        choice("debug|info|warning|error"),
        "info",
        "least severe level that is logged, on standard error",
        reload=True,
    )
    log_format: str = SEEING.option(
        choice("auto|text|json"),
        "auto",
        "sentences (text) or one JSON object a line (json); auto: text on a terminal, JSON "
        "elsewhere",
    )


OPTIONS: Final = tuple(Option(field.name, *field.metadata["row"]) for field in fields(Config))


def contradictions(config: Config) -> list[str]:
    """Return the contradictions between settings that are each valid.

    Each text contains the flags of all options that contradict each other.
    """
    upstream, admin = config.upstream, config.admin
    tls = any(address.tls for address in config.listen)
    certified = bool(config.tls_cert and config.tls_key)
    no_tls = "no address of --listen has TLS (tls:HOST:PORT)"
    no_upstream_tls = "the URL of --upstream has no TLS (rediss://...)"
    own = f"--upstream: {upstream} is where the proxy itself listens (--listen)"
    rules = (
        (_is_listened(config, upstream.address), own),
        (tls and not certified, "--listen tls: needs --tls-cert and --tls-key"),
        (not tls and config.tls_cert, f"--tls-cert: {no_tls}"),
        (not tls and config.tls_key, f"--tls-key: {no_tls}"),
        (not tls and config.tls_client_ca, f"--tls-client-ca: {no_tls}"),
        (
            bool(config.upstream_tls_cert) != bool(config.upstream_tls_key),
            "--upstream-tls-cert and --upstream-tls-key go together",
        ),
        (not upstream.tls and config.upstream_tls_ca, f"--upstream-tls-ca: {no_upstream_tls}"),
        (not upstream.tls and config.upstream_tls_cert, f"--upstream-tls-cert: {no_upstream_tls}"),
        (not upstream.tls and config.upstream_tls_name, f"--upstream-tls-name: {no_upstream_tls}"),
        (_is_listened(config, admin), f"--admin: clients connect at {admin} (--listen)"),
        (
            config.proxy_protocol and all(address.path for address in config.listen),
            "--proxy-protocol: no address of --listen is TCP",
        ),
    )
    return [text for wrong, text in rules if wrong]


def _is_listened(config: Config, address: Address | None) -> bool:
    """Whether clients connect at `address`, as far as its text shows."""
    return address is not None and any(_same(address, listen) for listen in config.listen)


def _same(address: Address, listen: Address) -> bool:
    local = ("127.0.0.1", "localhost", "0.0.0.0", "::", "::1")  # noqa: S104
    if address.path or listen.path:
        return address.path == listen.path
    same_host = address.host == listen.host or (address.host in local and listen.host in local)
    return same_host and address.port == listen.port != 0  # 0: the system selects a free port


def differences(old: Config, new: Config) -> tuple[list[Option], list[Option]]:
    """Return the options that differ: those that SIGHUP may change, those that need a restart."""
    changed = [each for each in OPTIONS if getattr(old, each.field) != getattr(new, each.field)]
    return [each for each in changed if each.reload], [each for each in changed if not each.reload]


def reloaded(old: Config, new: Config) -> Config:
    """Return `old` with the options that SIGHUP may change as they are in `new`.

    Raises ConfigError if they contradict options that SIGHUP may not change.
    """
    values = {each.field: getattr(new, each.field) for each in OPTIONS if each.reload}
    made = replace(old, **values)
    mistakes = contradictions(made)
    if mistakes:
        raise ConfigError(mistakes)
    return made
