"""The reload: the settings are read again and put in force, or rejected."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from rlproxy.config.config import Config, ConfigError, differences, reloaded
from rlproxy.net import tls_contexts
from rlproxy.net.tls_contexts import Contexts
from rlproxy.observability import logs
from rlproxy.observability.logs import log
from rlproxy.observability.published import Reloaded
from rlproxy.observability.shared_memory import SharedMemory
from rlproxy.process.policy_log import log_changes

MAX_MISTAKES: Final = 10  # published mistakes; the log has all


# Puts settings in force. They differ from the present ones only in what SIGHUP may change.
# Raises ConfigError.
Apply = Callable[[Config, Contexts], None]


def reload(
    old: Config, apply: Apply, read: Callable[[], Config], memory: SharedMemory | None
) -> Config:
    """Read settings and certificates again, and put them in force.

    old: the settings in force.
    read: returns the settings. Raises ConfigError.
    memory: where the outcome is published; None in a worker of several, whose supervisor has done
        that, and has logged the changes.
    Returns the settings in force now: `old` if there is a mistake. Each mistake is logged.
    """
    began = time.monotonic()
    mistakes: list[str] = []
    later: list[str] = []
    try:
        new = read()
        made = reloaded(old, new)
        apply(made, tls_contexts.contexts(made))
        if memory is not None:
            later = _log_changes(old, new, made.log_level)
        logs.set_level(made.log_level)
    except ConfigError as error:
        made, mistakes = old, list(error.mistakes)
        for mistake in mistakes:
            text = "SIGHUP: {reason}; all stays as it was"
            log.error("settings_rejected", text, reason=mistake)
    if memory is not None:
        memory.publish(memory.parent, Reloaded(began, _some(mistakes), later))
    return made


def _log_changes(old: Config, new: Config, level: str) -> list[str]:
    """Log what differs. Returns the options that take a restart."""
    # The next line is logged if the old or the new level permits it.
    logs.lower_level(level)
    changed, later = differences(old, new)
    names = ", ".join(option.flag for option in changed) or "none"
    text = "SIGHUP: settings and certificates were read again; options changed: {changed}"
    log.info("settings_reloaded", text, changed=names)
    log_changes(old, new)
    for option in later:
        text = "SIGHUP: {option} has changed; that takes a restart"
        log.warning("restart_needed", text, option=option.flag)
    return [option.flag for option in later]


def _some(mistakes: list[str]) -> list[str]:
    more = len(mistakes) - MAX_MISTAKES
    return mistakes[:MAX_MISTAKES] + [f"{more} more: see the log"] * (more > 0)
