"""Compile the hot modules with mypyc where a C compiler is present; install their source anyway.

RLPROXY_COMPILE=0 leaves compilation out, RLPROXY_COMPILE=1 makes a failed one an error.
"""

import os
import shutil
import sysconfig

from setuptools import setup
from setuptools.command.build_ext import build_ext

HOT = {
    "downstream": ["connection"],
    "fairness": ["concurrency_limit"],
    "net": ["tls_stream"],
    "observability": ["counters"],
    "ratelimit": ["algorithms", "denial_cache", "grammar", "scripts", "wait_queue"],
    "resp": ["commands", "encoding", "framing"],
    "session": [
        "circuit_breaker",
        "command_replies",
        "connection_state",
        "context",
        "reply_slots",
        "session",
        "timeouts",
    ],
    "upstream": ["lane", "script_calls", "script_loading"],
}

WISH = os.environ.get("RLPROXY_COMPILE", "")


def compiler() -> str | None:
    """The C compiler that extensions would be built with, if it is there."""
    words = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()
    return shutil.which(words[0])


class OptionalBuild(build_ext):
    """A machine without headers or with a broken compiler gets the interpreted modules."""

    def run(self) -> None:
        """See setuptools."""
        try:
            super().run()
        except Exception as error:
            if WISH == "1":
                raise
            print(f"rlproxy: not compiled ({error}); it will run interpreted")
            self.extensions = []


extensions = []
if WISH != "0" and (WISH == "1" or compiler()):
    try:
        from mypyc.build import mypycify

        paths = [f"proxy/rlproxy/{role}/{name}.py" for role, names in HOT.items() for name in names]
        # (the build environment has mypy, not the packages that rlproxy runs with)
        options = ["--strict", "--ignore-missing-imports", *paths]
        extensions = mypycify(options, opt_level="3", group_name="rlproxy")
    except (Exception, SystemExit) as error:  # mypyc exits on what it doesn't like
        if WISH == "1":
            raise
        print(f"rlproxy: not compiled ({error}); it will run interpreted")

setup(ext_modules=extensions, cmdclass={"build_ext": OptionalBuild})
