"""The client of `rlproxy top`: it samples a proxy by RL.STATS, RL.TOP and RL.POLICIES."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from typing import Any, Final, NamedTuple

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from rlproxy.config.urls import DEFAULT_LISTEN
from rlproxy.resp.escape import shown

TIMEOUT_S: Final = 3.0  # seconds for connecting, and for a reply
_NUMBER: Final = r"\d{1,15}(\.\d+)?"
Rows = dict[str, tuple[float, float]]  # count and error by escaped key
Policies = dict[str, tuple[str, float, float]]  # mode, hits and refused hits by name


class TopError(Exception):
    """No sample can be had."""


class Sample(NamedTuple):
    """The replies of a proxy at the time `at`, in seconds."""

    at: float
    stats: dict[str, str]  # the lines of RL.STATS, escaped
    numbers: defaultdict[str, float]  # those that are numbers
    calls: dict[float, int]  # calls on lanes, by the class of their round trip in microseconds
    hits: Rows
    refused: Rows
    rules: dict[str, str]  # policy or rule that refused a key, by escaped key
    policies: Policies | None  # None: not requested


class Client:
    """A connection to the proxy at `url`, opened with the first sample. Raises ValueError."""

    def __init__(self, url: str, password: str | None = None) -> None:
        options: dict[str, Any] = {"protocol": 2, "retry": Retry(NoBackoff(), 0)}
        options |= {"password": password, "socket_timeout": TIMEOUT_S}
        if not re.match("(rediss?|unix)://", url):
            raise ValueError("expected redis://HOST:PORT, rediss://HOST:PORT or unix:///PATH")
        if not url.startswith("unix"):
            options |= {"host": "127.0.0.1", "port": int(DEFAULT_LISTEN.rpartition(":")[2])}
        try:  # the URL overrides `options`
            self._redis = redis.Redis.from_url(url, **options)
            self._redis.connection_pool.make_connection()
        except TypeError:
            raise ValueError("it has a parameter that is not known") from None
        at = self._redis.connection_pool.connection_kwargs
        host = f"[{at['host']}]" if ":" in at.get("host", "") else at.get("host")
        self.where: str = at.get("path") or f"{host}:{at['port']}"

    def sample(self, keys: int, by_policy: bool = True) -> Sample:
        """Take a sample, with up to `keys` keys of each kind. Raises TopError.

        by_policy: with the counts of all policies.
        """
        try:
            with self._redis.pipeline(transaction=False) as pipeline:
                tops = ("RL.TOP", keys), ("RL.TOP", keys, "REFUSED")
                for words in ("RL.STATS",), *tops, *[("RL.POLICIES",)] * by_policy:
                    pipeline.execute_command(*words)  # type: ignore[no-untyped-call]
                text, busiest, denied, *named = pipeline.execute()
            lines = [shown(line).partition(":") for line in text.split(b"\r\n")]
            stats = {name: value for name, colon, value in lines if colon}
            found = {name: float(x) for name, x in stats.items() if re.fullmatch(_NUMBER, x)}
            found["hits"], found["uptime_in_seconds"]  # KeyError: another program's reply
            pairs = re.findall(r"([\d.]+|inf)=(\d{1,15})", stats.get("round_trips_us", ""))
            calls = {float(bound): int(count) for bound, count in pairs}
            hits, refused = (
                {shown(k) or '""': (float(n), float(e)) for k, n, e, *_ in rows}
                for rows in (busiest, denied)
            )
            rules = {shown(k) or '""': shown(rule) for k, _, _, rule in denied}
            policies = None
            if by_policy:
                (rows,) = named
                policies = {
                    shown(name): (shown(mode), float(n), float(of)) for name, _, mode, n, of in rows
                }
            at, numbers = time.monotonic(), defaultdict(float, found)
            return Sample(at, stats, numbers, calls, hits, refused, rules, policies)
        except Exception as error:  # the view goes on with the next sample
            raise TopError(_reason(error)) from None


def _reason(error: Exception) -> str:
    text = shown(str(error).strip().encode(errors="replace"))
    text = re.sub(r"^Command # \d+ \(.*?\) of pipeline caused error: ", "", text)
    if text.startswith("UPSTREAMDOWN"):
        return f"{text}; --admin shows the proxy also without Redis"
    if text.startswith("Authentication required"):
        return f"{text} Give --url redis://USER:PASSWORD@HOST:PORT, or REDISCLI_AUTH"
    if "unknown command" in text.lower():
        return "it is a Redis, but no rlproxy: it does not know RL.STATS"
    if isinstance(error, redis.TimeoutError) and "reading" in text:
        return f"no reply within {TIMEOUT_S:g} s; is this the address of --listen, not of --admin?"
    known = isinstance(error, redis.RedisError | OSError)
    return text if known else "its replies have an unexpected form: it may be no rlproxy"
