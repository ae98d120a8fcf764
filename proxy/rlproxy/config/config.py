"""The settings: `Config`, whose fields are the options, and the rules between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Final

from rlproxy.config.options import (
    AUTO,
    COMMANDS,
    FILE,
    MODE,
    NAME,
    NO,
    PEM,
    YES,
    Group,
    Option,
    Value,
    choice,
    number,
    seconds,
)
from rlproxy.config.urls import (
    DEFAULT_LISTEN,
    Address,
    Upstream,
    parse_admin,
    parse_announce,
    parse_listen,
    parse_upstream,
)

MAX_PREFIXES: Final = 10_000  # key prefixes that are counted

Policies = tuple[tuple[str, str, bool], ...]  # name, rule and shadow of each

LISTEN: Final[Value[tuple[Address, ...]]] = Value(
    "[tls:]HOST:PORT|unix:PATH", parse_listen, DEFAULT_LISTEN, repeats=True
)
UPSTREAM: Final[Value[Upstream]] = Value("URL", parse_upstream, "embedded:")
ADMIN: Final[Value[Address | None]] = Value("HOST:PORT|unix:PATH", parse_admin)
ANNOUNCE: Final[Value[Address | None]] = Value("HOST:PORT", parse_announce)

SERVING: Final = Group("serving")
CLUSTER: Final = Group("Redis Cluster")
FAULTS: Final = Group("when Redis fails")
ADMISSION: Final = Group("admission")
TLS: Final = Group("TLS")
LIMITS: Final = Group("limits")
SEEING: Final = Group("observability")


class StartError(Exception):
    """The proxy can't start or can't continue; the message states the reason for the operator."""


class ConfigError(StartError):
    """Settings that can't be used; one line for each mistake."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = tuple(mistakes)


@dataclass(frozen=True)
class Config:
    """All settings. Each field but the last is an option: its values, default and help.

    A name's unit, _s for seconds or _ms, is not part of the flag. An empty file name means that
    there is no such file.
    """

    listen: tuple[Address, ...] = SERVING.fixed(
        LISTEN,
        "address where clients connect; without HOST: 127.0.0.1; tls: with TLS; may be given "
        "several times (in the environment: separated by blanks)",
    )
    upstream: Upstream = SERVING.fixed(  # noqa: RUF009
        UPSTREAM,
        "the Redis behind the proxy: redis://HOST[:PORT], unix:///PATH, "
        "redis+sentinel://HOST[:PORT],.../MASTER for the master that these Sentinels name, "
        "redis+cluster://HOST[:PORT],... for the Redis Cluster of these nodes, embedded: for a "
        "private Valkey server that ends with the proxy, or embedded:cluster for three private "
        "masters on ports of 127.0.0.1, which every local user can reach. rediss://, "
        "rediss+sentinel:// and rediss+cluster:// use TLS. USER:PASSWORD@ before the host or path "
        "is for the proxy's control connection only: clients authenticate themselves. "
        "?sentinel_user=U&sentinel_password=P is for the Sentinels. With ?standalone=yes one node "
        "of a Redis Cluster is served as one server. The default applies only at a terminal",
    )
    workers: int = SERVING.fixed(
        number(1, 1, 256),
        "processes that serve the same addresses, each with its own lanes and denial "
        "cache; a worker that dies is replaced",
    )
    share: bool | None = SERVING.fixed(
        AUTO,
        "single ordinary commands (GET, SET, ...) of many clients share connections too, in "
        "order; in front of a cluster also short pipelines. auto: yes in front of a cluster, "
        "else no",
    )
    denial_cache: int = SERVING.fixed(
        number(65536, 0, 100_000_000),
        "refusals remembered at most. A remembered refusal answers the same hit without Redis, "
        "for up to a second. 0: none",
    )
    announce: Address | None = CLUSTER.fixed(  # noqa: RUF009
        ANNOUNCE,
        "with redis+cluster://: the address that cluster-aware clients see, such as that of a load "
        "balancer; without it, the address at which the client reached the proxy",
    )
    present: str = CLUSTER.fixed(
        choice("cluster", "cluster|standalone"),
        "with redis+cluster://: what clients detect: a cluster with one master, or one server "
        "(standalone). Some clients refuse commands over several slots where they detect a cluster",
    )
    cross_slot: str = CLUSTER.fixed(
        choice("split", "split|error"),
        "with redis+cluster://: DEL, UNLINK, EXISTS, TOUCH, MGET and MSET over several slots are "
        "split by slot, which is not atomic (split), or get Redis' CROSSSLOT error (error)",
    )
    on_upstream_failure: str = FAULTS.reloadable(
        choice("error", "error|allow|deny"),
        "the reply to a hit while Redis can't be reached, is too slow, or can't run it (LOADING, "
        "BUSY, READONLY, OOM ...): an error (-UPSTREAMDOWN, or Redis' own), admitted (0 limit "
        "limit -1 0), or refused (1 limit 0 1 1). For allow and deny ioredis needs "
        "enableReadyCheck: false",
    )
    hit_timeout_ms: int = FAULTS.reloadable(
        number(1000, 0, 3_600_000, "MS"),
        "milliseconds until a hit that Redis has not answered gets the reply of "
        "--on-upstream-failure; Redis may still count it. 0: no limit",
    )
    connect_timeout_s: float = FAULTS.fixed(
        seconds("5"),
        "time for opening a connection to Redis, TLS included, until its client gets -UPSTREAMDOWN",
    )
    drain_timeout_s: float = FAULTS.fixed(
        seconds("10"),
        "time for outstanding replies after SIGTERM, until the remaining connections are cut",
    )
    protected_mode: bool = ADMISSION.reloadable(
        YES,
        "while Redis' default user needs no password, turn away clients of other machines",
    )
    local_commands: bool = ADMISSION.reloadable(
        NO,
        "clients of other machines may send commands that Redis may restrict to local clients: "
        "DEBUG, MODULE LOAD and UNLOAD, CONFIG SET of dir and dbfilename",
    )
    deny_command: tuple[str, ...] = ADMISSION.reloadable(
        COMMANDS,
        "a command that no client may send, alone or with a subcommand (KEYS, or config|set for "
        "CONFIG SET); may be given several times",
    )
    unix_mode: int = ADMISSION.fixed(
        MODE, "permissions of the unix sockets of --listen and --admin, octal"
    )
    proxy_protocol: bool = ADMISSION.fixed(
        NO,
        "every TCP client connects through a load balancer that sends the client's address "
        "(PROXY protocol, version 1 or 2); a connection without that header is closed. Only the "
        "load balancer may reach the port",
    )
    tls_cert: str = TLS.reloadable(PEM, "certificate chain (PEM) for clients at tls: addresses")
    tls_key: str = TLS.reloadable(PEM, "its private key (PEM)")
    tls_client_ca: str = TLS.reloadable(
        PEM, "CA certificates (PEM) for clients' certificates; clients must present one"
    )
    tls_client_auth: str = TLS.reloadable(
        choice("required", "required|optional"),
        "with --tls-client-ca: whether clients must present a certificate",
    )
    tls_min_version: str = TLS.reloadable(
        choice("1.2", "1.2|1.3"), "the oldest TLS version accepted, on both sides"
    )
    upstream_tls_ca: str = TLS.reloadable(
        PEM, "CA certificates (PEM) for Redis' certificate; without it, those of this system"
    )
    upstream_tls_cert: str = TLS.reloadable(
        PEM, "the proxy's own certificate chain for Redis (PEM)"
    )
    upstream_tls_key: str = TLS.reloadable(PEM, "its private key (PEM)")
    upstream_tls_name: str = TLS.reloadable(
        NAME, "the name expected in Redis' certificate and sent as SNI; without it, the URL's host"
    )
    upstream_tls_verify: bool = TLS.reloadable(
        YES,
        "verify Redis' certificate; without that, an attacker on the network path can read and "
        "change everything",
    )
    max_clients: int = LIMITS.reloadable(
        number(10000, 1, 10_000_000),
        "clients of each worker at a time; further ones get Redis' error (max number of clients "
        "reached) and are closed",
    )
    max_clients_per_address: int = LIMITS.reloadable(
        number(0, 0, 10_000_000),
        "clients of each worker per IP address; further ones get the same error. 0: no limit",
    )
    max_accept_rate: int = LIMITS.reloadable(
        number(3000, 0, 1_000_000),
        "new clients of each worker per second while other clients are served; the rest wait in "
        "the system's queue. 0: no limit",
    )
    max_client_hits: int = LIMITS.fixed(
        number(64, 1, 1_000_000),
        "unanswered hits of one client; its further hits wait. Clients with longer pipelines share "
        "this number",
    )
    max_lane_hits: int = LIMITS.fixed(
        number(65536, 1, 10_000_000),
        "unanswered hits on one lane, a connection that clients share; further hits use their "
        "client's private connection",
    )
    max_unread: int = LIMITS.fixed(
        number(65536, 1024, 1_073_741_824, "BYTES"),
        "bytes of replies that a client may leave unread until the proxy stops reading from "
        "Redis for it",
    )
    handshake_timeout_s: float = LIMITS.fixed(
        seconds("10"), "time for a new client's TLS handshake and PROXY header"
    )
    idle_timeout_s: float = LIMITS.reloadable(
        seconds("0", zero=True),
        "close a client that sent nothing for this time and is owed no reply (subscribers "
        "stay). 0: never",
    )
    write_timeout_s: float = LIMITS.reloadable(
        seconds("60", zero=True),
        "close a client that read none of its waiting replies for this time. 0: never",
    )
    tcp_keepalive_s: int = LIMITS.fixed(
        number(300, 0, 32767, "SECONDS"),
        "seconds of silence until TCP keepalive probes a client, or Redis. 0: no probes",
    )
    admin: Address | None = SEEING.fixed(  # noqa: RUF009
        ADMIN,
        "address of the live page (/), /metrics, /healthz and /readyz, over plain HTTP; use "
        "127.0.0.1 or a private network, since every visitor can see keys",
    )
    admin_actions: bool = SEEING.fixed(
        NO,
        "requests to --admin may look keys up, block, unblock and reset them, and reload the "
        "settings; they need the token of --admin-token-file and run as the user of --upstream",
    )
    admin_token_file: str = SEEING.fixed(
        FILE,
        "with --admin-actions: a file that other users can't read, whose first line is the token, "
        "at least 16 characters",
    )
    metrics_prefixes: int = SEEING.fixed(
        number(0, 0, MAX_PREFIXES),
        "count hits also by key prefix, up to the first colon, for this number of prefixes",
    )
    log_level: str = SEEING.reloadable(
        choice("info", "debug|info|warning|error"),
        "least severe level that is logged, on standard error",
    )
    log_format: str = SEEING.fixed(
        choice("auto", "auto|text|json"),
        "sentences (text) or one JSON object a line (json); auto: text on a terminal, JSON "
        "elsewhere",
    )

    # In the file's table [policies]; changed by SIGHUP.
    policies: Policies = ()
    # Contents of the files with PEM, by path; a str is the reason why one can't be read. They are
    # read once, so all workers have the same.
    pem: Mapping[str, bytes | str] = field(default_factory=dict, repr=False)

    @property
    def shares(self) -> bool:
        """Whether ordinary commands travel on command lanes: --share, or its default."""
        return self.upstream.clustered if self.share is None else self.share


_CLUSTER_ONLY: Final = ("announce", "present", "cross_slot")  # options of redis+cluster://
OPTIONS: Final = tuple(
    Option(field.name, *field.metadata["row"]) for field in fields(Config) if field.metadata
)


def contradictions(config: Config) -> list[str]:
    """Return the contradictions between settings that are each valid.

    Each text contains the flags of all options that contradict each other.
    """
    found, listen, upstream = [], config.listen, config.upstream
    servers = (upstream.address, *upstream.cluster)
    if any(_same(server, each) for server in servers for each in listen):
        found.append(f"--upstream: {upstream} is where the proxy itself listens (--listen)")
    fixed = [(each.host, each.port, each.path) for each in listen if each.port or each.path]
    if len(set(fixed)) < len(fixed):
        found.append("--listen: one address is given twice")
    if not any(address.tls for address in listen):
        files = ("tls_cert", "tls_key", "tls_client_ca")
        found += _unused(config, files, "no address of --listen has TLS (tls:HOST:PORT)")
    elif not (config.tls_cert and config.tls_key):
        found.append("--listen tls: needs --tls-cert and --tls-key")
    if config.tls_client_auth == "optional" and not config.tls_client_ca:
        found.append("--tls-client-auth optional: it needs --tls-client-ca")
    if bool(config.upstream_tls_cert) != bool(config.upstream_tls_key):
        found.append("--upstream-tls-cert and --upstream-tls-key go together")
    if not upstream.tls:
        names = ("upstream_tls_ca", "upstream_tls_cert", "upstream_tls_name")
        found += _unused(config, names, "the URL of --upstream has no TLS (rediss://...)")
    if not upstream.clustered:
        given = [name for name in _CLUSTER_ONLY if getattr(config, name) != getattr(Config, name)]
        found += _unused(
            config, given, "the URL of --upstream has no cluster (redis+cluster://...)"
        )
    if any(_same(config.admin, each) for each in listen):
        found.append(f"--admin: clients connect at {config.admin} (--listen)")
    found += _admin_contradictions(config)
    if config.proxy_protocol and all(address.path for address in listen):
        found.append("--proxy-protocol: no address of --listen is TCP")
    return found


def _admin_contradictions(config: Config) -> list[str]:
    if not config.admin_actions:
        return _unused(config, ("admin_token_file",), "--admin-actions is not yes")
    needs = [
        f"--admin-actions: it needs --{name.replace('_', '-')}"
        for name in ("admin", "admin_token_file")
        if not getattr(config, name)
    ]
    if not own_addresses(config):
        needs.append(
            "--admin-actions: the admin process can't connect to any address of --listen: each "
            "requires a PROXY header (--proxy-protocol) or a client certificate "
            "(--tls-client-ca). Add a unix socket: --listen unix:PATH"
        )
    return needs


def own_addresses(config: Config) -> list[Address]:
    """Return those of --listen at which the proxy can be its own client, without TLS first.

    Others require a PROXY header or a client certificate.
    """
    certificate = config.tls_client_ca and config.tls_client_auth == "required"
    found = [
        address
        for address in config.listen
        if address.path or not (config.proxy_protocol or (address.tls and certificate))
    ]
    return sorted(found, key=lambda address: address.tls)


def _unused(config: Config, names: Sequence[str], why: str) -> list[str]:
    return [f"--{name.replace('_', '-')}: {why}" for name in names if getattr(config, name)]


def _same(address: Address | None, listen: Address) -> bool:
    """Whether clients connect at `address`, as far as its text shows."""
    if address is None or address.path or listen.path:
        return address is not None and address.path == listen.path
    local = ("127.0.0.1", "localhost", "0.0.0.0", "::", "::1")  # noqa: S104
    same_host = address.host == listen.host or (address.host in local and listen.host in local)
    return same_host and address.port == listen.port != 0  # 0: the system selects a free port


def differences(old: Config, new: Config) -> tuple[list[Option], list[Option]]:
    """Return the options that differ: those that SIGHUP may change, those that need a restart."""
    changed = [each for each in OPTIONS if getattr(old, each.field) != getattr(new, each.field)]
    return [each for each in changed if each.reload], [each for each in changed if not each.reload]


def reloaded(old: Config, new: Config) -> Config:
    """Return `old` with all that SIGHUP may change as in `new`.

    Raises ConfigError if they contradict options that SIGHUP may not change.
    """
    values = {each.field: getattr(new, each.field) for each in OPTIONS if each.reload}
    made = replace(old, **values, policies=new.policies, pem=new.pem)
    mistakes = contradictions(made)
    if mistakes:
        raise ConfigError(mistakes)
    return made
