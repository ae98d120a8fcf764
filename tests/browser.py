"""A headless Chromium, driven over a pipe, for the picture of the live page."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.harness import DEADLINE_S

# The browser communicates on descriptors 3 and 4.
_BECOME = """
import fcntl, os, sys
high = [fcntl.fcntl(int(each), fcntl.F_DUPFD, 10) for each in sys.argv[1:3]]
for target, each in zip((3, 4), high):
    os.dup2(each, target)
    os.close(each)
os.execv(sys.argv[3], sys.argv[3:])
"""
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def executable() -> str | None:
    """The path of this machine's browser; empty if it has none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class BrowserError(Exception):
    """The browser returned an error or did not answer."""


class Browser:
    """One page of a browser."""

    def __init__(self, path: str) -> None:
        self._profile = tempfile.mkdtemp(prefix="rlproxy-browser-")
        self._ask_in, self._ask_out = os.pipe()
        self._tell_in, self._tell_out = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BECOME, str(self._ask_in), str(self._tell_out), path]
            + ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
            + ["--hide-scrollbars", "--no-first-run", "--disable-background-networking"]
            + [f"--user-data-dir={self._profile}", "--remote-debugging-pipe", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(self._ask_in, self._tell_out),
            start_new_session=True,
        )
        os.close(self._ask_in)
        os.close(self._tell_out)
        self._last = 0
        self._buffer = b""
        self._session = ""
        try:
            self._attach()
        except (BrowserError, OSError):
            self.close()
            raise

    def _attach(self) -> None:
        targets = self.ask("Target.getTargets")["targetInfos"]
        page = next(each for each in targets if each["type"] == "page")
        answer = self.ask("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = answer["sessionId"]
        self.ask("Page.enable")

    def ask(self, method: str, **params: object) -> dict[str, Any]:
        """Return the result of one call of the DevTools protocol. Raises BrowserError."""
        self._last += 1
        message: dict[str, object] = {"id": self._last, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._ask_out, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + DEADLINE_S
        while True:
            for found in self._messages(end - time.monotonic()):
                if found.get("id") == self._last:
                    if "error" in found:
                        raise BrowserError(f"{method}: {found['error']['message']}")
                    result: dict[str, Any] = found["result"]
                    return result
            if time.monotonic() > end:
                raise BrowserError(f"no answer to {method}")

    def _messages(self, timeout_s: float) -> list[dict[str, Any]]:
        """Read its messages."""
        if not select.select([self._tell_in], [], [], max(0.0, timeout_s))[0]:
            return []
        data = os.read(self._tell_in, 1 << 20)
        if not data:
            raise BrowserError("the browser has ended")
        *texts, self._buffer = (self._buffer + data).split(b"\0")
        return [json.loads(text) for text in texts]

    def open(self, url: str) -> None:
        """Open the URL."""
        answer = self.ask("Page.navigate", url=url)
        if answer.get("errorText"):
            raise BrowserError(answer["errorText"])

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression on the page. Raises BrowserError."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise BrowserError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def text(self, selector: str) -> str:
        """The visible text of the element; empty where there is none or it is hidden."""
        return str(
            self.value(
                "(found => found && found.getClientRects().length ? found.innerText : '')"
                f"(document.querySelector({json.dumps(selector)}))"
            )
        )

    def look(self, width: int) -> None:
        """Set the window's width in pixels."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.ask("Emulation.setDeviceMetricsOverride", **size)

    def picture(self, path: Path) -> None:
        """A picture of the whole page, as PNG."""
        answer = self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def close(self) -> None:
        """End the browser."""
        os.close(self._ask_out)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._tell_in)
        shutil.rmtree(self._profile, ignore_errors=True)


@contextlib.contextmanager
def browser(path: str) -> Iterator[Browser]:
    """Run a browser and end it afterwards."""
    made = Browser(path)
    try:
        yield made
    finally:
        made.close()
