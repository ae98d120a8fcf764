"""Settings from a command line and an environment, and the mistakes in them."""

from __future__ import annotations

import pytest
from rlproxy.config import loader
from rlproxy.config.config import Config, ConfigError

TLS = ("--listen", "tls::1", "--tls-cert", "c", "--tls-key", "k")
ADMIN = ("--admin", "127.0.0.1:9121")
CLUSTER = ("--upstream", "redis+cluster://h")
REDISS = ("--upstream", "rediss://h", "--upstream-tls-cert", "c", "--upstream-tls-key", "k")


def load(*argv: str, **environ: str) -> Config:
    return loader.load(loader.parser().parse_args(list(argv)), environ)


def mistakes(*argv: str, **environ: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load(*argv, **environ)
    return caught.value.mistakes


def variable(flag: str) -> str:
    return "RLPROXY_" + flag.removeprefix("--").replace("-", "_").upper()
