"""Compile the hot modules with mypyc where a C compiler is present; install their source as well.

RLPROXY_COMPILE=0 leaves compilation out, and mypy is not installed for the build.
RLPROXY_COMPILE=1 makes a failed compilation an error.
"""

import os
import shutil
import sys
import sysconfig

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HOT = {
    "downstream": ["clients", "connection", "private_connection"],
    "fairness": ["budget", "scheduler"],
    "net": ["tls_stream"],
    "observability": ["counters"],
    "ratelimit": [
        "algorithms",
        "command_entries",
        "denial_cache",
        "entry_form",
        "grammar",
        "scripts",
        "wait_queue",
    ],
    "resp": ["commands", "encoding", "inline", "replies", "request_buffer", "requests"],
    "session": [
        "call",
        "circuit_breaker",
        "client_requests",
        "command_replies",
        "connection_state",
        "context",
        "fail_open",
        "held_hit",
        "identity",
        "key_queue",
        "lane_calls",
        "private_stream",
        "reply_order",
        "reply_slots",
        "lane_hits",
        "router",
        "session",
        "sharing",
        "slots",
        "timeouts",
        "wait_cover",
        "waits",
    ],
    "upstream": [
        "call_times",
        "lane",
        "lane_denials",
        "lane_pool",
        "script_calls",
        "script_loading",
    ],
}

WISH = os.environ.get("RLPROXY_COMPILE", "")
MYPYC = "mypy[mypyc]>=2.1,<3"
# The commands that need the extensions. A build runs setup.py several times, mypyc only for these.
BUILDS = {"bdist_wheel", "build", "build_ext", "editable_wheel", "install"}


def compiler() -> str | None:
    """The C compiler that extensions would be built with, if it is there."""
    words = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()
    return shutil.which(words[0])


def extensions() -> list[Extension]:
    """The hot modules as C; none where that fails, unless RLPROXY_COMPILE=1."""
    paths = [f"proxy/rlproxy/{role}/{name}.py" for role, names in HOT.items() for name in names]
    # (the build environment has mypy, not the packages that rlproxy runs with)
    options = ["--strict", "--ignore-missing-imports", "--explicit-package-bases", *paths]
    os.environ["MYPYPATH"] = "proxy"
    try:
        from mypyc.build import mypycify

        # The name puts the code that the modules share inside the package.
        return mypycify(options, opt_level="3", debug_level="0", group_name="rlproxy.compiled")
    except (Exception, SystemExit) as error:  # mypyc exits on what it doesn't like
        if WISH == "1":
            raise
        print(f"rlproxy: not compiled ({error}); it will run interpreted")
        return []


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


compiles = WISH == "1" or (WISH != "0" and compiler() is not None)
setup(
    setup_requires=[MYPYC] if compiles and "egg_info" in sys.argv else [],
    ext_modules=extensions() if compiles and BUILDS & set(sys.argv) else [],
    cmdclass={"build_ext": OptionalBuild},
)
