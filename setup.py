"""Compile the hot modules with mypyc where a C compiler is present; install their source as well.

RLPROXY_COMPILE=0 leaves compilation out, and mypy is not installed for the build.
RLPROXY_COMPILE=1 makes a failed compilation an error.
MYPYC_OPT_LEVEL is the C compiler's level of optimisation, 2 by default.
"""

import os
import shutil
import sys
import sysconfig
import tomllib
from concurrent.futures import ThreadPoolExecutor
from glob import glob

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# The modules on the path of a command: patterns of their paths in proxy/rlproxy.
HOT = """
    downstream/connection fairness/* net/tls_stream ratelimit/* resp/* session/*
    observability/counters observability/hot_keys observability/policy_counters
    upstream/call_times upstream/command_lane upstream/hit_lane upstream/lane
    upstream/lane_denials upstream/lane_pool
    upstream/cluster/cluster_circuit upstream/cluster/command_splitter
    upstream/cluster/connection upstream/cluster/connection_setup upstream/cluster/dispatcher
    upstream/cluster/exchange upstream/cluster/face upstream/cluster/gather
    upstream/cluster/info_reply upstream/cluster/lanes upstream/cluster/link
    upstream/cluster/links upstream/cluster/node_lane upstream/cluster/redirects
    upstream/cluster/request upstream/cluster/routes upstream/cluster/slot_map
    upstream/cluster/subscriptions upstream/cluster/transaction
"""

WISH = os.environ.get("RLPROXY_COMPILE", "")
# The commands that need the extensions. A build runs setup.py several times, mypyc only for these.
BUILDS = {"bdist_wheel", "build", "build_ext", "editable_wheel", "install"}


def requirements() -> list[str]:
    """The packages that compilation needs."""
    with open("pyproject.toml", "rb") as file:
        return tomllib.load(file)["project"]["optional-dependencies"]["compile"]


def compiler() -> str | None:
    """The C compiler that extensions would be built with, if it is there."""
    words = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()
    return shutil.which(words[0])


def extensions() -> list[Extension]:
    """The hot modules as C; none where that fails, unless RLPROXY_COMPILE=1."""
    matches = (path for each in HOT.split() for path in glob(f"proxy/rlproxy/{each}.py"))
    paths = sorted(path for path in matches if not path.endswith("__init__.py"))
    # The build environment has mypy, but not the packages that rlproxy runs with.
    options = ["--strict", "--ignore-missing-imports", "--explicit-package-bases", *paths]
    os.environ["MYPYPATH"] = "proxy"
    try:
        from mypyc.build import mypycify

        found = mypycify(
            options,
            opt_level=os.environ.get("MYPYC_OPT_LEVEL", "2"),
            debug_level="0",
            multi_file=True,
            target_dir="build",
            group_name="rlproxy.compiled",  # the modules' common code lies inside the package
        )
    except (Exception, SystemExit) as error:  # mypyc exits on errors in the source
        if WISH == "1":
            raise
        print(f"rlproxy: mypyc failed ({error}); it will run interpreted")
        return []
    for extension in found:
        # mypyc writes the group's header to the directory of its package.
        extension.include_dirs.append("build/rlproxy")
        # Without it every call between the files goes through the table of exported symbols.
        # (mypyc gives all extensions one list)
        extension.extra_compile_args = [*extension.extra_compile_args, "-fvisibility=hidden"]
    return found


class ParallelBuild(build_ext):
    """Compile one C file per core at a time.

    A machine without headers or with a broken compiler gets the interpreted modules.
    """

    def build_extensions(self) -> None:
        """See setuptools."""
        compile_all = self.compiler.compile

        def compile_each(sources: list[str], **options: object) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                found = pool.map(lambda source: compile_all([source], **options), sources)
                return [name for names in found for name in names]

        self.compiler.compile = compile_each
        super().build_extensions()

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
    setup_requires=requirements() if compiles and "egg_info" in sys.argv else [],
    ext_modules=extensions() if compiles and BUILDS & set(sys.argv) else [],
    cmdclass={"build_ext": ParallelBuild},
)
