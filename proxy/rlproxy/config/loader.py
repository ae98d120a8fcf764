"""The settings from their sources: the command line, the environment and the file of --config, in
this order of precedence. All mistakes are reported at once.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import textwrap
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from rlproxy.config.config import OPTIONS, Config, ConfigError, Policies, contradictions
from rlproxy.config.options import NO_FILE, PEM, PREFIX, SWITCHES, Option
from rlproxy.config.urls import without_password

SIMILAR: Final = 0.75  # least similarity of a misspelt name and the suggested one; 1: equal
NO_UPSTREAM: Final = (
    "--upstream: no Redis is given. Write --upstream redis://HOST:PORT (or RLPROXY_UPSTREAM, or "
    "upstream in the file of --config), or --upstream embedded: for a private server whose data "
    "ends with the proxy"
)
EPILOG: Final = """\
example:
  rlproxy --listen 127.0.0.1:6380 --upstream redis://127.0.0.1:6379
  redis-cli -p 6380 RL.HIT user:42 5 60      at most 5 hits in any 60 seconds

Subcommands:
  rlproxy top [--url ADDRESS]    shows a running proxy in the terminal: see rlproxy top --help
  rlproxy health [ADDRESS]       exits with 0 if that address accepts clients
  rlproxy docs FILE ...          writes the generated tables into the pages of docs/

Every option is also an environment variable (--hit-timeout: RLPROXY_HIT_TIMEOUT) and a key of the
file that --config names (hit-timeout = 500). The command line wins over the environment, the
environment over the file. The file's section [policies] names rules: login = "5 60 PENALTY 300" is
for RL.HIT user:42 POLICY login. On SIGHUP the file and all certificates are read again.
Exit codes: 0 a clean stop, 1 could not start or failed, 2 wrong usage.
"""


POLICIES: Final = "policies"  # section of the file
MAX_SHOWN: Final = 64  # characters of a policy's name in an error
_POLICY_KEYS: Final = ("rule", "shadow")
_POLICY_FORM: Final = 'expected "RULE" or {rule = "RULE", shadow = true}'
_ONLY_SECTION: Final = f"; its options stand above any [...], and [{POLICIES}] is the only section"
_MISPLACED: Final = f"it is an option: its place is above [{POLICIES}]"
_BY_NAME: Final = {option.name: option for option in OPTIONS}
_FLAGS: Final = (*(option.flag for option in OPTIONS), "--config", "--check-config", "--version")
_CONFIG: Final = f"{PREFIX}CONFIG"
_VARIABLES: Final = (
    *(option.variable for option in OPTIONS),
    *(_CONFIG, "RLPROXY_COMPILE", "RLPROXY_INTERPRETED"),  # the last two: for build and tests
)
# A surrogate stands for a byte of the command line or the environment that is not UTF-8.
_NO_TEXT: Final = re.compile("[\0\ud800-\udfff]")
# NAME=VALUE that Kubernetes sets for a Service named rlproxy or rlproxy-... The name with PORT
# alone could be a misspelt option, so that its value decides.
_OF_A_SERVICE: Final = re.compile(
    rf"{PREFIX}(?:[A-Z0-9_]+_)?(?:(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?"
    r"|PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)=.*"
    r"|PORT=(?:tcp|udp|sctp)://.+:\d+)",
    re.DOTALL,
)


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Help whose URLs and hyphenated words are not broken."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        what, colon, given = message.partition(": ")
        shown = what + colon + without_password(given)
        _, _, unknown = message.partition("unrecognized arguments: ")
        first = unknown.split(" ")[0].partition("=")[0]
        hint = ""
        if first.startswith("--"):
            hint = _similar(first, _FLAGS, "--")
        elif "://" in first:
            hint = "; the URL of Redis is given with --upstream"
        elif first:
            hint = "; rlproxy --help lists the options and subcommands"
        raise ConfigError([shown + hint])


def parser() -> argparse.ArgumentParser:
    """Build the parser of the command line. On wrong usage it raises ConfigError."""
    made = _Parser(
        prog="rlproxy",
        description="A Redis-protocol proxy that adds exact, shared rate limits (RL.HIT) to any "
        "Redis and passes every other command on untouched.",
        epilog=EPILOG,
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    groups = {option.group: made.add_argument_group(option.group) for option in OPTIONS}
    for option in OPTIONS:
        default = f" (default {option.value.default})" if option.value.default else ""
        groups[option.group].add_argument(
            option.flag,
            dest=option.field,
            metavar=option.value.takes,
            action="append" if option.value.repeats else "store",
            nargs="?" if option.value in SWITCHES else None,
            const="yes" if option.value in SWITCHES else None,
            help=f"{option.help}{default}",
        )
    made.add_argument(
        "--config",
        metavar="FILE",
        help="a TOML file whose keys are the options above without their dashes in front, and "
        f"whose section [policies] has named rules (environment {_CONFIG})",
    )
    made.add_argument(
        "--check-config",
        action="store_true",
        help="report mistakes in the settings and the files they name, and exit (code 0 or 2)",
    )
    made.add_argument("--version", action="store_true", help="print version and build, and exit")
    return made


def _config_file(args: argparse.Namespace, environ: Mapping[str, str]) -> str:
    return args.config or environ.get(_CONFIG, "").strip()


def check_reload(
    args: argparse.Namespace, config: Config, environ: Mapping[str, str] = os.environ
) -> None:
    """Check that the files of `config` can be read again.

    A pipe can't: it would be empty, or the proxy would wait for a writer.
    Raises ConfigError.
    """
    named = [("--config", _config_file(args, environ))]
    named += [(each.flag, getattr(config, each.field)) for each in OPTIONS if each.value is PEM]
    pipes = [f"{flag} {path}" for flag, path in named if path and Path(path).is_fifo()]
    if pipes:
        why = "a pipe can be read at the start only: use a regular file"
        raise ConfigError([f"{pipe}: {why}" for pipe in pipes])


def load(
    args: argparse.Namespace,
    environ: Mapping[str, str] = os.environ,
    terminal: bool = True,
    check: Callable[[Policies], list[str]] = lambda _policies: [],
) -> Config:
    """Combine the command line, the environment and the file, in order of precedence.

    args: the parsed command line.
    terminal: whether the proxy is started at a terminal. Otherwise an upstream is required.
    check: returns a line for each mistake in the policies of the file.
    Raises ConfigError naming every mistake.
    """
    path = _config_file(args, environ)
    in_file, policies, mistakes = _read_file(path) if path else ({}, (), [])
    for name in unknown_variables(environ):
        near = _similar(name, _VARIABLES, PREFIX) or "; see rlproxy --help"
        mistakes.append(f"{name}: no option has this environment variable{near}")
    all_known = not mistakes  # a misspelt name makes the setting that it means look absent
    wrong: list[str] = []  # flags
    values: dict[str, Any] = {}
    for option in OPTIONS:
        named, texts = _given(option, args, environ, in_file)
        # The Docker image sets the variable empty, so that a terminal makes no difference.
        required = option.field == "upstream" and (not terminal or option.variable in environ)
        if required and all_known and not texts:
            mistakes.append(NO_UPSTREAM)
        found = _parse(option, named, texts, mistakes)
        if len(found) < len(texts):
            wrong.append(option.flag)
        if found:
            values[option.field] = tuple(found) if option.value.repeats else found[0]
    mistakes += [f"--config {path}: {mistake}" for mistake in check(policies)]
    made = Config(**values, policies=policies)
    if all_known:
        found = contradictions(made)
        mistakes += [each for each in found if not any(flag in each for flag in wrong)]
    if mistakes:
        raise ConfigError(mistakes)
    return made


def _given(
    option: Option,
    args: argparse.Namespace,
    environ: Mapping[str, str],
    in_file: Mapping[str, list[str]],
) -> tuple[str, list[str]]:
    """Return the name of the source of highest precedence, and its texts: empty if not given."""
    value = getattr(args, option.field)
    if value is not None:
        return option.flag, value if option.value.repeats else [value]
    text = environ.get(option.variable, "").strip()
    if text:
        return option.variable, text.split() if option.value.repeats else [text]
    return f"{option.name} (in the file)", in_file.get(option.name, [])


def _parse(option: Option, named: str, texts: Iterable[str], mistakes: list[str]) -> list[Any]:
    """Return the values of the valid texts. The others are appended to `mistakes`."""
    found = []
    for text in texts:
        try:
            if _NO_TEXT.search(text):
                raise ValueError("it has a NUL character, or bytes that are not UTF-8")
            found.append(option.value.parse(text))
        except ValueError as error:
            shown = without_password(text)
            if option.value.repeats and "," in text:
                also = f"{option.flag} A {option.flag} B, or {option.variable}='A B'"
                error = ValueError(f"{error}; several are {also}")
            mistakes.append(f"{named} {shown}: {error}" if shown else f"{named}: {error}")
    return found


def _read_file(path: str) -> tuple[dict[str, list[str]], Policies, list[str]]:
    """Read the file. Returns the texts of each option by its name, the policies, and the mistakes.

    A syntax error is one mistake. Then nothing of the file is used.
    """
    if "://" in path:
        return {}, (), [f"--config {without_password(path)}: {NO_FILE}"]
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        return {}, (), [f"--config {path}: {error.strerror or error}"]
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        return {}, (), [f"--config {path}: line {line} is not UTF-8"]
    except tomllib.TOMLDecodeError as error:
        return {}, (), [f"--config {path}: not valid TOML: {error}"]
    except (RecursionError, ValueError):
        return {}, (), [f"--config {path}: a number is too long, or arrays are nested too deeply"]
    found, mistakes = {}, []
    policies, wrong = _policies(content.pop(POLICIES, {}))
    mistakes += [f"--config {path}: {mistake}" for mistake in wrong]
    for key, value in content.items():
        option = _BY_NAME.get(key.replace("_", "-"))
        if option is None:
            near = _similar(key.replace("_", "-"), _BY_NAME)
            if isinstance(value, dict):
                near = _similar(key, (POLICIES,)) or _ONLY_SECTION
            mistakes.append(f"--config {path}: there is no option {key}{near}")
        elif isinstance(value, dict) or (isinstance(value, list) and not option.value.repeats):
            mistakes.append(f"--config {path}: {key} takes one value")
        elif option.name in found:
            mistakes.append(f"--config {path}: {option.name} is given twice, with - and with _")
        else:
            values = value if isinstance(value, list) else [value]
            found[option.name] = [_text(each) for each in values]
    return found, policies, mistakes


def _policies(table: object) -> tuple[Policies, list[str]]:
    """Return the policies in a value of the file, and the mistakes.

    The rules are not parsed. Their blanks are reduced to one each, which bounds a correct rule.
    """
    if not isinstance(table, dict):
        return (), [f"{POLICIES} is a section: [{POLICIES}]"]
    found: list[tuple[str, str, bool]] = []
    mistakes: list[str] = []
    for name, value in table.items():
        given = value if isinstance(value, dict) else {"rule": value}
        why = _mistake_in(name, given)
        if why:
            mistakes.append(f"policy {name[:MAX_SHOWN]!r}: {why}")
        else:
            words = given["rule"].encode().split()
            found.append((name, b" ".join(words).decode(), given.get("shadow", False)))
    return tuple(found), mistakes


def _mistake_in(name: str, given: Mapping[str, object]) -> str:
    """Return what is wrong with the keys of a policy, or with the types of their values, or ""."""
    rule, shadow = given.get("rule"), given.get("shadow", False)
    # an option below the section looks like a policy without a window
    if name.replace("_", "-") in _BY_NAME and not (isinstance(rule, str) and " " in rule):
        return _MISPLACED
    for key in given:
        if key not in _POLICY_KEYS:
            dotted = "; a name with a dot stands in quotes" if rule is None else ""
            return f"there is no key {key[:MAX_SHOWN]!r}{_similar(key, _POLICY_KEYS) or dotted}"
    if not isinstance(rule, str):
        return (
            f"{'there is no rule' if rule is None else 'the rule is not a string'}: {_POLICY_FORM}"
        )
    return "" if isinstance(shadow, bool) else "shadow: expected true or false, without quotes"


def _text(value: object) -> str:
    """Return a value of the file as it is written elsewhere."""
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Return the variables that begin with PREFIX and belong to no option, sorted."""
    return sorted(
        name
        for name, value in environ.items()
        if name.startswith(PREFIX)
        and name not in _VARIABLES
        and not _OF_A_SERVICE.fullmatch(f"{name}={value}")
    )


def _similar(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return a suggestion with the known name most similar to `name`, or "".

    The common `prefix` is not compared: it would make all names similar.
    """
    bare = [each.removeprefix(prefix) for each in known]
    close = difflib.get_close_matches(name.removeprefix(prefix), bare, n=1, cutoff=SIMILAR)
    return f"; did you mean {prefix}{close[0]}?" if close else ""
