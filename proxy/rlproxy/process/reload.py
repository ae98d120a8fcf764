"""The reload: settings are read again and put in force, or rejected; what changed is logged."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from rlproxy.config.config import Config, ConfigError, differences, reloaded
from rlproxy.net import tls_contexts
from rlproxy.observability import logs
from rlproxy.observability.logs import log
from rlproxy.observability.shared_memory import SharedMemory
from rlproxy.observability.snapshots import Reloaded
from rlproxy.process import admin_process
from rlproxy.ratelimit import policies
from rlproxy.session.command_policy import unknown

MAX_MISTAKES: Final = 10  # published mistakes; the log has all
MAX_NAMES: Final = 10  # policies that one line of the log names


# Puts settings in force. They differ from the present ones only in what SIGHUP may change.
# Raises ConfigError.
Apply = Callable[[Config], None]


def reload(old: Config, apply: Apply, read: Callable[[], Config], memory: SharedMemory) -> Config:
    """Read settings and certificates again, and put them in force.

    old: the settings in force.
    read: returns the settings. Raises ConfigError.
    memory: where the outcome is published.
    Returns the settings in force now: `old` if there is a mistake. Each mistake is logged.
    """
    began = time.monotonic()
    mistakes: list[str] = []
    later: list[str] = []
    try:
        new = read()
        made = reloaded(old, new)
        apply(made)
        later = _log_changes(old, new, made.log_level)
        log_warnings(made)
        logs.set_level(made.log_level)
    except ConfigError as error:
        made, mistakes = old, list(error.mistakes)
        log_rejected(error)
    memory.publish(memory.parent, Reloaded(began, _some(mistakes), later))
    return made


def log_rejected(error: ConfigError) -> None:
    """Log each mistake in settings that are not put in force."""
    for mistake in error.mistakes:
        log.error("settings_rejected", "SIGHUP: {reason}; all stays as it was", reason=mistake)


def _log_changes(old: Config, new: Config, level: str) -> list[str]:
    """Log what differs. Returns the options that take a restart."""
    # The next line is logged if the old or the new level permits it.
    logs.lower_level(level)
    changed, later = differences(old, new)
    names = ", ".join(option.flag for option in changed) or "none"
    text = "SIGHUP: settings and certificates were read again; options changed: {changed}"
    log.info("settings_reloaded", text, changed=names)
    _log_policies(old, new)
    for option in later:
        text = "SIGHUP: {option} has changed; that takes a restart"
        log.warning("restart_needed", text, option=option.flag)
    return [option.flag for option in later]


def _some(mistakes: list[str]) -> list[str]:
    more = len(mistakes) - MAX_MISTAKES
    return mistakes[:MAX_MISTAKES] + [f"{more} more: see the log"] * (more > 0)


def warnings(settings: Config) -> list[str]:
    """Return warnings about settings that are valid but doubtful."""
    denied = (
        f"--deny-command {rule}: {why}" for rule in settings.deny_command if (why := unknown(rule))
    )
    return [
        *tls_contexts.warnings(settings),
        *admin_process.warnings(settings),
        *policies.warnings(settings.policies),
        *denied,
    ]


def log_warnings(settings: Config) -> None:
    """Log warnings(), one line for each."""
    for warning in warnings(settings):
        log.warning("settings_doubtful", "check the settings: {reason}", reason=warning)


def log_shadows(settings: Config) -> None:
    """Log which policies are in shadow, if any."""
    names = sorted(name for name, _, shadow in settings.policies if shadow)
    if names:
        text = "policies in shadow, which admit all hits: {policies}"
        log.info("policies_in_shadow", text, policies=_named(names))


def _log_policies(old: Config, new: Config) -> None:
    """Log which policies differ, if any."""
    found = policies.differences(old.policies, new.policies)
    if any(found):
        text = "SIGHUP: policies added: {added}; removed: {removed}; changed: {changed}"
        added, removed, changed = map(_named, found)
        log.info("policies_reloaded", text, added=added, removed=removed, changed=changed)
        log_shadows(new)
    before, after = (_algorithms(config, found[2]) for config in (old, new))
    other = [name for name in found[2] if before[name] != after[name]]
    if other:
        text = (
            "SIGHUP: policies with another ALGO: {policies}; hits on their live keys get an error"
        )
        log.warning("policies_algo_changed", text, policies=_named(other))


def _algorithms(config: Config, names: Sequence[str]) -> dict[str, bytes]:
    """Return the algorithm of each of these policies."""
    wanted = set(names)
    found, _ = policies.parse(each for each in config.policies if each[0] in wanted)
    return {name.decode(): policy.limiter.algorithm.name for name, policy in found.items()}


def _named(names: Sequence[str]) -> str:
    """Return names as text: the first MAX_NAMES of them."""
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "") or "none"
