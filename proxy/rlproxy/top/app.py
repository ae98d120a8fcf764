"""The command `rlproxy top`: its arguments, and its exit codes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Final

from rlproxy.config.urls import DEFAULT_LISTEN
from rlproxy.top.client import Client

_ABOUT: Final = (
    "Show what a running proxy does, to a user with the right to send RL.HIT; the password may be "
    "in REDISCLI_AUTH. Keys: h, r and k sort by hits, refusals and key, / filters, q quits. Rates "
    "with ~ may be off by more than a tenth."
)
_URL: Final = "redis[s]://[[USER]:PASSWORD@]HOST:PORT, unix:///PATH, [tls:]HOST:PORT or unix:PATH"
PARSER: Final = argparse.ArgumentParser("rlproxy top", description=_ABOUT)
PARSER.add_argument(
    "--url",
    default=f"redis://{DEFAULT_LISTEN}",
    help=f"{_URL} (default %(default)s); rediss://HOST:PORT?ssl_ca_certs=FILE for a private CA",
)
PARSER.add_argument("--interval", type=float, default=1.0, help="seconds per sample (default 1)")
PARSER.add_argument("--once", action="store_true", help="print one table, as without a terminal")


def main(argv: Sequence[str]) -> int:
    """Run `rlproxy top`. Returns 0 after the user ended it, 1 if it failed; exits with 2."""
    args, more = PARSER.parse_known_args(argv)
    if more:  # not shown: these words may be parts of a password that contains a blank
        PARSER.error("unknown argument; the options are --url URL, --interval SECONDS and --once")
    if not 0.1 <= args.interval <= 3600:
        PARSER.error("argument --interval: expected seconds from 0.1 to 3600")
    try:
        client = Client(args.url, os.environ.get("REDISCLI_AUTH"))
    except (TypeError, ValueError):  # not shown: it may contain a part of the password
        PARSER.error(f"argument --url: expected {_URL}")
    try:
        from rlproxy.top import screen

        terminal = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        (screen.live if terminal and not args.once else screen.once)(client, args.interval)
    except ModuleNotFoundError:
        sys.exit("rlproxy top: it needs the package rich: pip install rich")
    except ConnectionError as error:
        print(f"rlproxy top: {client.where}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0
