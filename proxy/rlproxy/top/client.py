"""The client of `rlproxy top`: it samples a proxy by RL.STATS, RL.TOP and RL.POLICIES."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any, Final, NamedTuple

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from rlproxy.config.urls import Address, parse_running
from rlproxy.resp.escape import shown

TIMEOUT_S: Final = 3.0  # seconds for connecting, and for a reply
KEYS: Final = 300  # keys requested of each kind; a filter searches these
_NOT_ADMIN: Final = "is this an address of --listen, not of --admin?"
Rows = dict[str, tuple[float, float, str]]  # count, error and what refused it, by key


class Sample(NamedTuple):
    """The replies of a proxy at the time `at`, in seconds. All texts are escaped."""

    at: float
    stats: dict[str, str]  # the lines of RL.STATS
    numbers: defaultdict[str, float]  # those that are numbers, "POLICY hits", "POLICY refused"
    hits: Rows
    refused: Rows
    modes: dict[str, str]  # by policy: enforced or shadow


class Client:
    """The proxy at a URL or an address as for --listen; TypeError or ValueError if it is wrong."""

    def __init__(self, url: str, password: str | None = None) -> None:
        options: dict[str, Any] = {"protocol": 2, "password": password}
        options |= {"socket_timeout": TIMEOUT_S, "retry": Retry(NoBackoff(), 0)}
        if "://" in url:
            self._redis = redis.Redis.from_url(url, **options)  # the URL overrides `options`
        else:
            at = parse_running(url)
            options |= {"unix_socket_path": at.path or None, "ssl": at.tls}
            self._redis = redis.Redis(at.host, at.port, **options)
        to: Any = self._redis.connection_pool.make_connection()
        path = getattr(to, "path", "")
        self.where = str(Address(path=path) if path else Address(to.host, to.port))

    def sample(self) -> Sample:
        """Take a sample, with up to KEYS keys of each kind. Raises ConnectionError."""
        call: Any = self._redis.execute_command
        try:
            lines = [shown(line).partition(":") for line in call("RL.STATS").split(b"\r\n")]
            stats = {name: value for name, _, value in lines}
            numbers = {n: float(x) for n, x in stats.items() if x.replace(".", "", 1).isdecimal()}
            numbers["hits"]  # KeyError: another program's reply
            hits, refused = map(_rows, (call("RL.TOP", KEYS), call("RL.TOP", KEYS, "REFUSED")))
            modes = {}
            for name, _, mode, n, of in call("RL.POLICIES"):
                modes[shown(name)] = shown(mode)
                numbers |= {f"{shown(name)} hits": float(n), f"{shown(name)} refused": float(of)}
        except Exception as error:  # the view goes on with the next sample
            if isinstance(error, redis.TimeoutError):
                text = f"no reply within {TIMEOUT_S:g} s; does Redis answer? {_NOT_ADMIN}"
            elif isinstance(error, redis.AuthenticationError):
                text = f"{error} Use --url redis://USER:PASSWORD@HOST:PORT"
            elif not isinstance(error, redis.RedisError | OSError):
                text = f"unexpected replies; {_NOT_ADMIN}"
            elif (text := str(error).strip()).startswith("unknown command"):
                text = "a Redis answers there, and no rlproxy: it does not know RL.STATS"
            raise ConnectionError(shown(text.encode(errors="replace"))) from None
        return Sample(time.monotonic(), stats, defaultdict(float, numbers), hits, refused, modes)


def _rows(top: Any) -> Rows:
    named = ((shown(key) or '""', n, e, shown(b"".join(by))) for key, n, e, *by in top)
    return {key: (float(n), float(e), by) for key, n, e, by in named}
