"""The command `rlproxy top`: its arguments, and its exit codes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Final

from rlproxy.config.urls import DEFAULT_LISTEN, without_password
from rlproxy.top.client import Client, TopError

_ABOUT: Final = (
    "Show what a running proxy does. Needs an address where clients connect, and a user with the "
    "right to send RL.HIT. The password may be in REDISCLI_AUTH. Keys: h, r and k sort by hits, "
    "refusals and key, / filters, q quits. Rates with ~ may be off by more than a tenth."
)
PARSER: Final = argparse.ArgumentParser("rlproxy top", argparse.SUPPRESS, _ABOUT)
_URL: Final = "redis://[[USER]:PASSWORD@]HOST:PORT, rediss:// or unix:///PATH (default %(default)s)"
PARSER.add_argument("--url", default=f"redis://{DEFAULT_LISTEN}", help=_URL)
PARSER.add_argument("--interval", type=float, default=1.0, help="seconds between two samples")
PARSER.add_argument("--once", action="store_true", help="print the values of one interval")


def main(argv: Sequence[str]) -> int:
    """Run `rlproxy top`. Returns 0 after the user ended it, 1 if it failed; exits with 2."""
    args, more = PARSER.parse_known_args(argv)
    if more:  # not shown: these words may be parts of a password that contains a blank
        PARSER.error("an argument too many; the proxy's address is given with --url URL")
    if not 0.1 <= args.interval <= 3600:
        PARSER.error("argument --interval: expected seconds from 0.1 to 3600")
    try:
        client = Client(args.url, os.environ.get("REDISCLI_AUTH"))
    except ValueError as wrong:
        PARSER.error(f"--url {without_password(args.url)}: {wrong}")
    drawn = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    if not args.once and not drawn:
        PARSER.error("this is no terminal; --once prints one table")
    try:
        from rlproxy.top import screen

        (screen.once if args.once else screen.live)(client, args.interval)
    except ModuleNotFoundError:
        sys.exit("rlproxy top: it needs the package rich: pip install rich")
    except TopError as error:
        print(f"rlproxy top: {client.where}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0
