"""The picture of the live page in the docs: `python -m tests.page_picture docs/page.png`.

It runs a server and a proxy under two minutes of load, and needs a Chromium.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests import harness
from tests.browser import browser, executable
from tests.harness import Raw, command, wait_until

POLICIES: Final = """\
[policies]
login = "5 60 PENALTY 300"
"api:free" = "100 60 ALGO COUNTER"
"api:pro" = "1000 60 ALGO COUNTER"
search = {rule = "30 60 ALGO TOKEN", shadow = true}
"""
WIDTH: Final = 1100  # pixels
TICK_S: Final = 0.05  # seconds between two pipelines of hits
SEED: Final = 7


def hits(chance: random.Random, at: float) -> list[bytes]:
    """The hits of one tick, `at` seconds after the start: an attack on the login begins late."""
    found = []
    for _ in range(chance.randrange(20, 30)):
        user = int(chance.paretovariate(0.7)) % 500
        plan = "api:pro" if user % 9 == 0 else "api:free"
        found.append(command("RL.HIT", f"api:{user}", "POLICY", plan))
        if user % 4 == 0:
            found.append(command("RL.HIT", f"search:{user}", "POLICY", "search"))
        if user % 7 == 0:
            found.append(command("RL.HIT", f"export:{user}", 5, 3600, "ALGO", "TOKEN"))
    attack = 20 if at > 80 else 1
    found += [command("RL.HIT", "login:203.0.113.7", "POLICY", "login")] * attack
    return found


def load(raw: Raw, seconds: float) -> None:
    """Send hits for some seconds."""
    chance, began = random.Random(SEED), time.monotonic()
    while (at := time.monotonic() - began) < seconds:
        made = hits(chance, at)
        raw.send(b"".join(made))
        for _ in made:
            raw.reply()
        time.sleep(TICK_S)


def draw(path: Path, program: str, seconds: float) -> None:
    """Write the picture after some seconds of load."""
    admin = harness.free_port()
    with tempfile.TemporaryDirectory() as directory, harness.server("valkey-9.1") as server:
        file = Path(directory) / "rlproxy.toml"
        file.write_text(POLICIES)
        words = ("--config", str(file), "--admin", f"127.0.0.1:{admin}", "--metrics-prefixes", "9")
        with (
            harness.proxy(server, *words) as proxy,
            browser(program) as page,
            proxy.raw() as raw,
        ):
            load(raw, seconds)
            page.look(WIDTH)
            page.open(f"http://127.0.0.1:{admin}/")
            wait_until(lambda: page.text("#policies"), "the page shows policies")
            load(raw, 2.5)  # the lag and CPU of workers need two samples
            page.picture(path)


def main(argv: Sequence[str]) -> int:
    """Return exit code 0, or 1 without a browser."""
    parser = argparse.ArgumentParser("python -m tests.page_picture", description=__doc__)
    parser.add_argument("path", type=Path, help="the PNG file")
    parser.add_argument("--seconds", type=float, default=125.0, help="length of the load")
    given = parser.parse_args(argv)
    program = executable()
    if program is None:
        print("no Chromium on this machine", file=sys.stderr)
        return 1
    draw(given.path, program, given.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
