"""Addresses: those of --listen, --admin, --announce and --upstream, parsed from text and shown
without passwords.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from ipaddress import IPv6Address, ip_address
from typing import Final
from urllib.parse import parse_qsl, unquote

DEFAULT_LISTEN: Final = "127.0.0.1:6380"
DEFAULT_REDIS_PORT: Final = 6379
DEFAULT_SENTINEL_PORT: Final = 26379
EMBEDDED_MASTERS: Final = 3  # the least number that a cluster is usually made of
# The parts of a URL behind its scheme: credentials, hosts, path, query, fragment. urllib.parse
# accepts no IPv6 address behind another host.
_PARTS: Final = re.compile(r"://(?:([^/?#]*)@)?([^/?#]*)([^?#]*)(?:\?([^#]*))?(#?)")


@dataclass(frozen=True, slots=True)
class Address:
    """An address to listen at or connect to, or of a client: `host` and `port`, or else `path` of a
    unix socket. Clients of a unix socket have none of these.

    `tls`: clients that connect to this address use TLS.
    """

    host: str = ""
    port: int = 0
    path: str = ""
    tls: bool = False

    @property
    def local(self) -> bool:
        """Whether it is a unix socket or a loopback IP address."""
        if not self.host:
            return True
        try:
            address = ip_address(self.host.partition("%")[0])
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return address.is_loopback

    def dialled(self) -> Address:
        """Return the address to which clients on this machine connect: no wildcard."""
        hosts = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
        return replace(self, host=hosts.get(self.host, self.host))

    def __str__(self) -> str:
        if not self.host:
            return f"unix:{self.path}" if self.path else "unix socket"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls:' if self.tls else ''}{host}:{self.port}"


UNIX_CLIENT: Final = Address()


def peer_of(name: object) -> Address:
    """Return the address of a client by its name from accept(): a tuple for TCP."""
    return Address(name[0], name[1]) if isinstance(name, tuple) else UNIX_CLIENT


@dataclass(frozen=True)
class Sentinels:
    """The Sentinels that name the address of the master `name`, and the credentials for them."""

    addresses: tuple[Address, ...]
    name: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"{','.join(map(str, self.addresses))}/{self.name}"


@dataclass(frozen=True)
class Upstream:
    """The Redis behind the proxy.

    address: None for `embedded:`, with `sentinels` and with `cluster`.
    user, password: credentials of the proxy's own control connection only.
    tls: whether connections to it use TLS.
    cluster: nodes of a Redis Cluster, from which the others are learned; empty without a cluster.
    standalone: `address` may be a node of a Redis Cluster, and is served as one server.
    masters: the number of masters of an embedded cluster; 0: none.
    """

    address: Address | None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    sentinels: Sentinels | None = None
    cluster: tuple[Address, ...] = ()
    standalone: bool = False
    masters: int = 0

    @property
    def embedded(self) -> bool:
        """Whether the proxy starts a private server."""
        return self.address is None and self.sentinels is None and not self.cluster

    @property
    def clustered(self) -> bool:
        """Whether clients get a Redis Cluster."""
        return bool(self.cluster or self.masters)

    def __str__(self) -> str:
        if self.cluster:
            return f"cluster {','.join(map(str, self.cluster))}"
        if self.sentinels is not None:
            return f"sentinel {self.sentinels}"
        if self.address is None:
            return "embedded:cluster" if self.masters else "embedded:"
        return str(self.address)


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
    host, colon, port = text.removeprefix("tls:").rpartition(":")
    if not colon:
        raise ValueError("expected HOST:PORT, such as :6380, tls:HOST:PORT or unix:PATH")
    return Address(_host(host) or "127.0.0.1", _port(port, 0), tls=text.startswith("tls:"))


def parse_running(text: str) -> Address:
    """Parse the address of a running proxy: as for --listen, or the URL of a client.

    Credentials, database and parameters of the URL are left out. Raises ValueError.
    """
    if "://" not in text:
        return parse_listen(text).dialled()
    place = parse_upstream(re.sub(r"^(rediss?://[^/]*)/\d*$", r"\1", text.partition("?")[0]))
    if place.address is None:
        raise ValueError("expected redis://HOST[:PORT], rediss://... or unix:///PATH")
    return replace(place.address.dialled(), tls=place.tls)


def parse_admin(text: str) -> Address | None:
    """Parse an address as parse_listen() does, but without tls:. Empty: None. Raises ValueError."""
    if not text:
        return None
    if text.startswith("tls:") or "://" in text or ":" not in text:
        raise ValueError("it is plain HTTP: expected HOST:PORT, such as :9121, or unix:PATH")
    return parse_listen(text)


def parse_announce(text: str) -> Address | None:
    """Parse HOST:PORT as clients use it. Empty: None. Raises ValueError."""
    if not text:
        return None
    host, colon, port = text.rpartition(":")
    if not (colon and host) or re.search(r"[^!-~]|[/,@]|^(tls|unix):", text):
        raise ValueError("expected HOST:PORT, such as redis.example.com:6380")
    made = Address(_host(host), _port(port, 1))
    if made.host in ("0.0.0.0", "::"):  # noqa: S104
        raise ValueError(f"clients cannot connect to {made.host}: expected the name or IP they use")
    return made


def parse_upstream(url: str) -> Upstream:
    """Parse a URL of --upstream.

    Raises ValueError, whose message contains neither a password nor a part that may be one.
    """
    scheme = url.partition(":")[0].lower()
    if url.lower() in ("embedded:", "embedded://"):
        return Upstream(None)
    if url.lower() == "embedded:cluster":
        return Upstream(None, masters=EMBEDDED_MASTERS)
    parts = _PARTS.match(url, len(scheme))
    kind = scheme.replace("rediss", "redis", 1)
    if kind not in _KINDS or parts is None:
        raise ValueError(
            "expected redis://HOST[:PORT], rediss://HOST[:PORT] with TLS, unix:///PATH, "
            "redis+sentinel://HOST[:PORT],.../MASTER, redis+cluster://HOST[:PORT],..., embedded: "
            "or embedded:cluster"
        )
    login, hosts, path, parameters, fragment = parts.groups("")
    if "@" in path + parameters or fragment:
        raise ValueError("in a password, '/', '?', '#' and '@' are written %2F, %3F, %23 and %40")
    name, colon, secret = login.partition(":")
    if name and not colon:
        raise ValueError("a user without a password")
    try:
        user = unquote(name, errors="strict") or None
        password = unquote(secret, errors="strict") if colon else None
        query = dict(parse_qsl(parameters, keep_blank_values=True, errors="strict"))
        path = unquote(path, errors="strict")
    except UnicodeDecodeError:  # whose text has a byte of the password
        raise ValueError("its bytes written %XX are not UTF-8") from None
    make, known = _KINDS[kind]
    place = make(hosts, path, query)
    if query:
        raise ValueError(f"unknown parameter; this URL may have {known}")
    return replace(place, user=user, password=password, tls=kind != scheme)


# Each returns the upstream without its credentials, and takes the parameters that it uses from
# `query`.


def _server(hosts: str, path: str, query: dict[str, str]) -> Upstream:
    _no_database(path.lstrip("/"))
    address, *more = _hosts(hosts, DEFAULT_REDIS_PORT)
    if more:
        raise ValueError("more than one host; a Redis Cluster has redis+cluster://HOST,...")
    return Upstream(address, standalone=_standalone(query))


def _socket(hosts: str, path: str, query: dict[str, str]) -> Upstream:
    if not path or hosts:
        raise ValueError("expected unix:///PATH")
    return Upstream(Address(path=path), standalone=_standalone(query))


def _standalone(query: dict[str, str]) -> bool:
    text = query.pop("standalone", "no").lower()
    if text not in ("yes", "no"):
        raise ValueError("standalone is yes or no")
    return text == "yes"


def _behind_sentinels(hosts: str, path: str, query: dict[str, str]) -> Upstream:
    name, _, db = path.lstrip("/").partition("/")
    if not name:
        raise ValueError("no name of a master: redis+sentinel://HOST[:PORT],.../MASTER")
    user, password = query.pop("sentinel_user", None), query.pop("sentinel_password", None)
    if user and password is None:
        raise ValueError("a sentinel_user without a sentinel_password")
    addresses = tuple(_hosts(hosts, DEFAULT_SENTINEL_PORT))
    _no_database(db)
    return Upstream(None, sentinels=Sentinels(addresses, name, user, password))


def _cluster(hosts: str, path: str, _query: dict[str, str]) -> Upstream:
    _no_database(path.lstrip("/"))
    return Upstream(None, cluster=tuple(_hosts(hosts, DEFAULT_REDIS_PORT)))


# By scheme, with `redis` for rediss, too: what makes the upstream, and the parameters it takes.
_KINDS: Final = {
    "redis": (_server, "standalone"),
    "unix": (_socket, "standalone"),
    "redis+sentinel": (_behind_sentinels, "sentinel_user and sentinel_password"),
    "redis+cluster": (_cluster, "none"),
}


def _hosts(text: str, default_port: int) -> list[Address]:
    """Parse HOST[:PORT], and further ones after commas."""
    found = []
    for each in text.lower().split(","):
        host, colon, port = each.rpartition(":")
        if not colon or port.endswith("]"):
            host, port = each, ""
        if not host:
            raise ValueError("no host")
        found.append(Address(_host(host), _port(port or str(default_port), 1)))
    return found


def _host(text: str) -> str:
    if text.startswith("[") and text.endswith("]"):
        try:
            return str(IPv6Address(text[1:-1]))
        except ValueError:
            raise ValueError("the host is not valid") from None
    labels = text.removesuffix(".").split(".") if text else []
    if re.search(r"[^!-~]|,", text) or any(not 0 < len(label) < 64 for label in labels):
        raise ValueError("the host is not valid")
    if ":" in text:
        raise ValueError("an IPv6 address goes in brackets: [::1]:6380")
    return text


def _port(text: str, least: int) -> int:
    # The message does not contain the text: without a host, it is a password.
    return whole_number(text, least, 65535, "the port is not a number")


def _no_database(text: str) -> None:
    if text not in ("", "0"):
        raise ValueError("it names a database: clients select theirs, in their own URLs")


def whole_number(text: str, least: int, most: int, wrong: str) -> int:
    """Parse decimal digits. Raises ValueError with the message `wrong` and the range."""
    digits = text.isascii() and text.isdigit() and len(text) < 19
    if not digits or not least <= int(text) <= most:
        raise ValueError(f"{wrong} from {least} to {most}")
    return int(text)


def without_password(text: str) -> str:
    """Return a text that was given, with *** in place of all that may have a password.

    That is what follows ://, and what contains @ before that or without it.
    """
    scheme, found, _ = text.partition("://")
    shown = "***" if "@" in scheme else scheme
    return f"{shown}://***" if found else shown
