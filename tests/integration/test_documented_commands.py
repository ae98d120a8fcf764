"""Every fenced block and every command line in the project's pages is accounted for: run, checked
against its purpose, or listed here with a reason. A new block that is none of these fails.

Sessions and programs are run by test_docs.py; shell commands are run here.
"""

from __future__ import annotations

import argparse
import configparser
import contextlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from rlproxy.config import config, loader
from rlproxy.observability import metrics
from rlproxy.top import app

from tests import documents, harness
from tests.documents import EVERY_PAGE, Block
from tests.harness import ROOT, Proxy, Raw, RedisServer
from tests.integration import shell, test_acl, test_docs
from tests.integration.shell import Shell
from tests.integration.started import started
from tests.tlsparts import NAMES, Certificates, secure, tls_relay

ATTEMPTS = 5  # times in replies differ on a busy machine

# Blocks that are no input: the page, the first line, and what the block shows.
FIGURES = {
    ("ARCHITECTURE.md", "  cli\n"): "the packages, one layer a line",
    ("hot-keys.md", '1) 1) "login:203.0.113.7"'): "a reply of RL.TOP",
}
# Blocks with a dedicated test: the page, the block's first words, and the test.
ELSEWHERE = {
    ("operations.md", "ACL SETUSER app "): "tests/integration/test_acl.py",
    ("SECURITY.md", "ACL SETUSER rlproxy "): "a test below",
    ("hot-keys.md", "rlproxy 0.1.0 at "): "tests/unit/top/test_screen.py",
}
# Options of other programs.
OTHERS = {
    "--forwarded-allow-ips": "uvicorn",
    "--profile": "docker compose",
    "--save": "redis-server",
    "--engine": "python -m tests.cluster_chaos",
    "--only": "python -m tests.cluster_chaos",
    "--seed": "python -m tests.cluster_chaos",
}
LOG_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,\d]* [A-Z]+ ")
SHELLS = ("", "sh", "bash", "shell", "console")

BLOCKS = [block for page in EVERY_PAGE for block in documents.blocks(page)]


def drawing(block: Block) -> bool:
    return not block.language and re.search("[─│┌└]", block.text) is not None


def listed(table: dict[tuple[str, str], str], block: Block) -> list[tuple[str, str]]:
    """The rows of FIGURES or ELSEWHERE that describe this block."""
    return [row for row in table if block.page.name == row[0] and block.text.startswith(row[1])]


def typed_blocks() -> Iterator[tuple[Block, str]]:
    """The commands typed into a shell, and the output shown below them ("" if none)."""
    run = [str(program) for program, _ in test_docs.PROGRAMS]
    for block in BLOCKS:
        known = drawing(block) or listed(FIGURES, block) or listed(ELSEWHERE, block)
        if block.language in SHELLS and str(block) not in run and not known:
            shown = documents.below(block, BLOCKS)
            yield block, shown.text if shown else ""


TYPED = list(typed_blocks())
SETTINGS = {"toml", "yaml", "yml", "json", "ini", "promql"}


def how_checked(block: Block) -> str:
    """How a block is checked; empty if it is not."""
    if drawing(block) or listed(FIGURES, block):
        return "a figure"
    if listed(ELSEWHERE, block):
        return "a dedicated test"
    if block.language == "redis" and block in test_docs.SESSIONS:
        return "a session, run"
    if block in [program for program, _ in test_docs.PROGRAMS]:
        return "a program, run"
    if block in [each for each, _ in TYPED]:
        return "typed"
    if block.language in SETTINGS:
        return "settings, read"
    if block.language == "http" and block.text in [shown for _, shown in test_docs.answers()]:
        return "an answer, made by the function"
    if block.language == "text":
        if all(LOG_LINE.match(line) for line in block.text.splitlines()):
            return "lines of the log"
        above = [program for program, _ in (*test_docs.PROGRAMS, *TYPED)]
        if any(documents.below(program, [block]) for program in above):
            return "what the program above prints"
    return ""


@pytest.mark.parametrize("page", EVERY_PAGE, ids=lambda page: page.name)
def test_every_block_is_accounted_for(page: Path) -> None:
    found = documents.blocks(page)
    fences = re.findall(r"^[ \t>]*(?:```|~~~)", page.read_text(), re.MULTILINE)
    assert len(fences) == 2 * len(found), (
        "a fence that is indented, not closed, or has unknown words"
    )
    for block in found:
        assert how_checked(block), (
            f"{block}, a block of {block.language or 'no language'}: how such blocks are written "
            "is described in tests/documents.py and tests/integration/test_documented_commands.py"
        )


def test_tables_list_existing_blocks() -> None:
    for table in (FIGURES, ELSEWHERE):
        for row in table:
            found = [block for block in BLOCKS if row in listed(table, block)]
            assert len(found) == 1, row
    assert len(TYPED) > 8


# -- typed into a shell ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def admin_port() -> int:
    """The admin port for port 9121 of the pages."""
    return harness.free_port()


@pytest.fixture(scope="module")
def admin_token(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file admin-token of the pages."""
    made = tmp_path_factory.mktemp("token") / "admin-token"
    made.write_text("a-token-of-the-pages\n")
    made.chmod(0o600)
    return made


@pytest.fixture(scope="module")
def front(one_server: RedisServer, admin_port: int, admin_token: Path) -> Iterator[Proxy]:
    """The proxy for port 6380 of the pages, where a block starts no proxy."""
    actions = ("--admin-actions", "--admin-token-file", str(admin_token))
    with harness.proxy(one_server, "--admin", f"127.0.0.1:{admin_port}", *actions) as made:
        yield made


@pytest.fixture(scope="module")
def tls_files(certificates: Certificates) -> list[Path]:
    """The CA and the certificates that the page about deployment makes, with their keys."""
    made = [Path(certificates.ca)]
    for owner in ("rlproxy", "app"):
        made += map(Path, certificates.issue(owner, *NAMES))
    return made


@pytest.fixture(scope="module")
def tls_port(one_server: RedisServer, certificates: Certificates) -> Iterator[int]:
    """The port for rediss:// of the pages. It requires a client certificate."""
    with tls_relay(certificates, one_server.port) as port:
        yield port


@cache
def redis_cli_has_tls() -> bool:
    done = subprocess.run(["redis-cli", "--help"], capture_output=True, text=True, timeout=20)
    return "--cacert" in done.stdout + done.stderr


# Machines that a block names: its command lines are checked, and not run.
ELSEWHERE_HOSTS = re.compile(r"10\.0\.0\.1|node-1")


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@harness.needs_redis_cli()
@pytest.mark.parametrize(("block", "below"), TYPED, ids=[str(block) for block, _ in TYPED])
def test_typed_commands_work_as_shown(
    block: Block,
    below: str,
    one_server: RedisServer,
    front: Proxy,
    admin_port: int,
    admin_token: Path,
    certificates: Certificates,
    tls_files: list[Path],
    tls_port: int,
    tmp_path: Path,
) -> None:
    words, session = shell.commands(block.text)
    shown = below or session
    if ELSEWHERE_HOSTS.search(words):
        words = re.sub(r"^(rlproxy|scripts/run) ", r"\1 --check-config ", words, flags=re.MULTILINE)
    if not redis_cli_has_tls():
        words = re.sub(r"^redis-cli --tls .*\n", "", words, flags=re.MULTILINE)
    for attempt in range(1, ATTEMPTS + 1):
        one_server.ask("FLUSHALL")
        ports = {"6379": tls_port if "rediss://127.0.0.1:6379" in words else one_server.port}
        if not shell.starts_a_proxy(block.text):
            ports |= {"6380": front.port, "9121": admin_port}
            if "9121" in block.text:
                harness.wait_until(lambda: listens(admin_port), "something listens at --admin")
        terminal = Shell(tmp_path / str(attempt), ports)
        for file in (admin_token, *tls_files):
            shutil.copy(file, terminal.directory)
        try:
            output = checked_output(words, terminal)
            for _, log in terminal.started():
                serves(log, certificates.client((certificates.cert, certificates.key)))
        finally:
            terminal.close()
        if shown is None or as_shown(shown, output) or attempt == ATTEMPTS:
            break
    if shown is not None:
        assert as_shown(shown, output), output


def checked_output(words: str, terminal: Shell) -> str:
    """The output of typing `words`, with the stand-ins' calls checked."""
    output = terminal.type(words)
    for name, *args in terminal.calls():
        CHECKS[name](args, terminal)
    return output


def as_shown(shown: str, output: str) -> bool:
    """Whether each line is as shown; a remark may follow two blanks."""
    lines, wanted = output.splitlines(), shown.splitlines()
    return len(lines) == len(wanted) and all(
        line == want or want.startswith(f"{line}  ")
        for line, want in zip(lines, wanted, strict=True)
    )


def serves(log: str, client: ssl.SSLContext) -> None:
    """Whether a started proxy admits a hit."""
    found = re.search(r"listening on +(tls:)?[\w.]+:(\d+)", log)
    assert found is not None, log
    with Raw(int(found[2])) as raw:
        if found[1]:
            secure(raw, client)
        assert raw.ask("RL.HIT", f"typed:{found[2]}", 5, 60) == [0, 5, 4, -1, 60], log


# -- programs that are only checked ----------------------------------------------------------------


class Strict(argparse.ArgumentParser):
    """An argument parser whose error is a failed assertion."""

    def error(self, message: str) -> Any:
        """See argparse."""
        raise AssertionError(f"{self.prog}: {message}")


def accepted(words: list[str], variables: dict[str, str]) -> config.Config:
    """The configuration that a command line and an environment of the proxy produce."""
    try:
        if words[:1] == ["top"]:
            app.PARSER.parse_args(words[1:])
            words = []
        if words[:1] == ["health"]:
            assert len(words) <= 2, words
            words = []
        if words[:1] == ["docs"]:
            words = []
        return loader.load(loader.parser().parse_args(words), variables)
    except SystemExit:
        raise AssertionError(f"rlproxy {shlex.join(words)}") from None


def docker(args: list[str], terminal: Shell) -> None:
    parser = Strict("docker")
    verbs = parser.add_subparsers(dest="verb", required=True)
    build = verbs.add_parser("build")
    build.add_argument("-t")
    build.add_argument("context")
    run = verbs.add_parser("run")
    run.add_argument("-p", action="append", default=[])
    run.add_argument("-e", action="append", default=[])
    run.add_argument("-d", "--rm", action="store_true")
    run.add_argument("image")
    run.add_argument("words", nargs=argparse.REMAINDER)
    compose = verbs.add_parser("compose")
    compose.add_argument("-f", required=True)
    compose.add_argument("--profile")
    compose.add_argument("command", choices=["up", "down", "ps", "logs"])
    compose.add_argument("--build", action="store_true")
    compose.add_argument("--detach", action="store_true")
    compose.add_argument("service", nargs="*")
    found = parser.parse_args(args)
    if found.verb == "build":
        assert (terminal.directory / found.context / "Dockerfile").exists()
    elif found.verb == "run":
        built = [call for call in terminal.calls() if call[:2] == ["docker", "build"]]
        assert found.image in [word for call in built for word in call], "an image that is built"
        (exposed,) = re.findall(r"^EXPOSE (\d+)$", (ROOT / "Dockerfile").read_text(), re.M)
        assert [published.rpartition(":")[2] for published in found.p] == [exposed]
        accepted(found.words, dict(each.split("=", 1) for each in found.e))
    else:
        services = yaml.safe_load((terminal.directory / found.f).read_text())["services"]
        assert set(found.service) <= set(services)


def arguments(pattern: str) -> Callable[[list[str], Shell], None]:
    """Return a check of arguments by a pattern. The files, units, users and extras that its groups
    name must exist.
    """

    def check(args: list[str], terminal: Shell) -> None:
        found = re.fullmatch(pattern, " ".join(args))
        assert found is not None, args
        named, deploy = found.groupdict(), terminal.directory / "deploy"
        if file := named.get("file"):
            manifests = yaml.safe_load_all((terminal.directory / file).read_text())
            assert all({"apiVersion", "kind"} <= set(each) for each in manifests)
        if unit := named.get("unit"):
            assert (deploy / f"{unit}.service").exists()
        if user := named.get("user"):
            assert f"\nUser={user}\n" in (deploy / "rlproxy.service").read_text()
        if extras := named.get("extras"):
            project = tomllib.loads((terminal.directory / "pyproject.toml").read_text())["project"]
            assert set(extras.split(",")) <= set(project["optional-dependencies"])

    return check


CHECKS: dict[str, Callable[[list[str], Shell], None]] = {
    "dmesg": arguments("((--ctime|-T|--human|-H) ?)*"),
    "docker": docker,
    "journalctl": arguments(r"(-u|--unit) (?P<unit>\S+)( -f| (-o|-n|--since|--output) \S+)*"),
    "kubectl": arguments(r"apply -f (?P<file>\S+)"),
    "pip": arguments(r"install (\.|rlproxy)(\[(?P<extras>[\w,]+)\])?"),
    "ps": arguments(r"-o \S+ -C rlproxy|-C rlproxy -o \S+"),
    "systemctl": arguments(r"daemon-reload|(enable( --now)?|reload|restart|status) (?P<unit>\S+)"),
    "useradd": arguments(r".* (?P<user>\S+)"),
}


def test_every_stand_in_is_checked() -> None:
    assert CHECKS.keys() == shell.STAND_INS.keys()


@pytest.mark.parametrize(
    "line",
    [
        "docker build -t rlproxy nowhere",
        "docker build -t a . ; docker run -p 6380:6380 a --workers none",
        "docker compose -f deploy/docker-compose.yml up nobody",
        "kubectl apply -f deploy/nothing.yaml",
        "systemctl enable --now nothing",
        "pip install '.[nothing]'",
        "no-such-program",
        "rlproxy --no-such-option",
        "redis-cli -p 1 PING",
    ],
)
def test_wrong_line_is_found(line: str, tmp_path: Path) -> None:
    terminal = Shell(tmp_path / "terminal", {"6379": 1, "6380": 2})
    with contextlib.closing(terminal), pytest.raises((AssertionError, OSError, config.ConfigError)):
        checked_output(line, terminal)


# -- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.language in SETTINGS], ids=str
)
def test_settings_in_blocks_are_valid(
    block: Block, certificates: Certificates, tmp_path: Path
) -> None:
    if block.language == "toml":
        file = tmp_path / "rlproxy.toml"
        text = re.sub(r'"[^"]*/(\w+)\.(?:pem|key|crt)"', rf'"{tmp_path}/\1.pem"', block.text)
        file.write_text(text)
        for name in re.findall(rf'"{tmp_path}/(\w+)\.pem"', text):
            made = certificates.key if "key" in name else certificates.cert
            (tmp_path / f"{name}.pem").write_bytes(Path(made).read_bytes())
        accepted(["--config", str(file)], {})
    elif block.language == "json":
        for text in block.text.splitlines() if "}\n{" in block.text else [block.text]:
            json.loads(text)
    elif block.language == "promql":
        names = {row.name for row in metrics.TABLE}
        for name in re.findall(r"\brlproxy_\w+", block.text):
            assert name in names or re.sub("_(bucket|count|sum)$", "", name) in names, name
    elif block.language == "ini":
        configparser.ConfigParser(strict=False).read_string(block.text)
    else:
        assert list(yaml.safe_load_all(block.text))
    known = {"RLPROXY_CONFIG", *(option.variable for option in config.OPTIONS)}
    assert set(re.findall(r"\bRLPROXY_[A-Z_]+", block.text)) <= known


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """The proxy's command lines in deploy/ and the Dockerfile, without its name."""
    for path in sorted((ROOT / "deploy").rglob("*")):
        text = path.read_text() if path.is_file() else ""
        if path.suffix in (".yml", ".yaml"):
            for document in yaml.safe_load_all(text):
                for container in containers(document):
                    words = [*_list(container.get("command")), *_list(container.get("args"))]
                    if words:
                        yield path.name, words[words[0].endswith("rlproxy") :]
        for line in re.findall(r"^Exec\w+=(\S*/rlproxy.*)$", text, re.MULTILINE):
            yield path.name, shlex.split(line)[1:]
    for line in re.findall(r"^(?:ENTRYPOINT|CMD) (.*)$", (ROOT / "Dockerfile").read_text(), re.M):
        yield "Dockerfile", json.loads(line)[1:]


def containers(node: Any) -> Iterator[dict[str, Any]]:
    """All containers that run the proxy's image."""
    if isinstance(node, dict):
        if re.search(r"(^|/)rlproxy(:|$)", str(node.get("image", ""))):
            yield node
        for each in node.values():
            yield from containers(each)
    elif isinstance(node, list):
        for each in node:
            yield from containers(each)


def _list(words: str | list[str] | None) -> list[str]:
    return shlex.split(words) if isinstance(words, str) else list(words or [])


def test_command_lines_in_deploy_are_valid() -> None:
    found = list(command_lines())
    assert len(found) >= 2
    for _, words in found:
        accepted(words, {})


# -- in the text -----------------------------------------------------------------------------------


def inline() -> Iterator[tuple[str, str]]:
    """The text between backquotes outside of blocks: (page, text) pairs without duplicates."""
    seen = set()
    for page in EVERY_PAGE:
        for found in re.findall(r"`([^`]+)`", documents.outside(page)):
            text = re.sub(r"\s+", " ", found.replace("\\|", "|"))
            if (page, text) not in seen:
                seen.add((page, text))
                yield page.name, text


def test_options_in_the_text_are_valid() -> None:
    options = {option.flag: option for option in config.OPTIONS}
    more = {*OTHERS, "--config", "--check-config", "--help", "--version"}
    more |= {flag for action in app.PARSER._actions for flag in action.option_strings}
    records = {path.name for path in documents.RECORDS}
    checked = 0
    for page, text in inline():
        # records also name options of other programs
        if not text.startswith("--") or page in records:
            continue
        words = shlex.split(text)
        flags = {word for word in words if word.startswith("--")}
        assert flags <= {*options, *more}, f"{page}: {text}"
        if len(words) == 1 or flags & more or words[1] == options[words[0]].value.takes:
            continue
        wrong = mistakes(words)
        # A placeholder (`--listen tls:HOST:PORT`) may be no valid value.
        if wrong and not re.search(r"\b[A-Z]{1,}\b|\.\.\.$|:$", words[1]):
            raise AssertionError(f"{page}: {text}: {wrong}")
        checked += not wrong
    assert checked > 8


def mistakes(words: list[str]) -> list[str]:
    """The errors in these options, ignoring options they would require."""
    if words[0] in ("--announce", "--cross-slot", "--present"):
        words = [*words, "--upstream", "redis+cluster://node-1"]
    try:
        accepted(words, {})
    except config.ConfigError as error:
        return [each for each in error.mistakes if each.startswith(words[0])]
    return []


def test_programs_in_the_text_exist() -> None:
    checked = 0
    for page, text in inline():
        if re.match(r"scripts/[\w-]+( |$)", text):
            assert os.access(ROOT / text.split()[0], os.R_OK), f"{page}: {text}"
        elif found := re.match(r"python -m ([\w.]+)", text):
            assert importlib.util.find_spec(found[1]) is not None, f"{page}: {text}"
        elif re.fullmatch(r"(docs|deploy|examples|tests|bench|proxy|lua)/[\w./-]*", text):
            assert (ROOT / text).exists(), f"{page}: {text}"
        elif text.startswith("rlproxy "):
            words = shlex.split(text)[1:]
            if not {"--version", "--help"} & set(words):
                accepted(words, {})
        else:
            continue
        checked += 1
    assert checked > 20


# -- rights ----------------------------------------------------------------------------------------


def test_line_of_rights_equals_the_tested_one() -> None:
    found = [block for block in BLOCKS if listed(ELSEWHERE, block)]
    (block,) = [block for block in found if block.page == test_acl.PAGE]
    assert test_acl.LINE is not None
    assert block.text.strip() == test_acl.LINE[0]


def test_documented_rights_suffice_for_the_proxys_user(engine: str) -> None:
    """SECURITY.md's line: the control connection logs in, loads the scripts and logs no warning."""
    (block,) = [block for block in BLOCKS if block.text.startswith("ACL SETUSER rlproxy ")]
    with harness.server(engine) as one_server:
        with one_server.raw() as raw:
            assert raw.ask(*shlex.split(block.text)) == "OK"
            assert raw.ask("ACL", "SETUSER", "default", "-script") == "OK"
        url = f"redis://rlproxy:secret@127.0.0.1:{one_server.port}"
        with started("--listen", "127.0.0.1:0", "--upstream", url) as made:
            made.port()
            with one_server.raw() as raw, made.raw() as client:
                loaded = "number_of_cached_scripts:0"
                harness.wait_until(
                    lambda: loaded not in str(raw.ask("INFO", "memory")), "the scripts are loaded"
                )
                assert client.ask("RL.HIT", "k", 5, 60) == [0, 5, 4, -1, 60]
            assert not re.search(r"NOPERM|WARNING", made.log()), made.log()
