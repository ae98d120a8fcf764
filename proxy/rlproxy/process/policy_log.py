"""The log of policies: what a reload changed, and which are in shadow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rlproxy.config.config import Config
from rlproxy.observability.logs import log
from rlproxy.ratelimit import policies

MAX_NAMES: Final = 10  # policies that one line of the log names


def log_shadows(settings: Config) -> None:
    """Log which policies are in shadow, if any."""
    names = sorted(name for name, _, shadow in settings.policies if shadow)
    if names:
        text = "policies in shadow, which admit all hits: {policies}"
        log.info("policies_in_shadow", text, policies=_some(names))


def log_changes(old: Config, new: Config) -> None:
    """Log which policies differ, if any."""
    found = policies.differences(old.policies, new.policies)
    if any(found):
        text = "SIGHUP: policies added: {added}; removed: {removed}; changed: {changed}"
        added, removed, changed = map(_some, found)
        log.info("policies_reloaded", text, added=added, removed=removed, changed=changed)
        log_shadows(new)
    before, after = (_algorithms(config, found[2]) for config in (old, new))
    other = [name for name in found[2] if before[name] != after[name]]
    if other:
        text = (
            "SIGHUP: policies with another ALGO: {policies}; hits on their live keys get an error"
        )
        log.warning("policies_algo_changed", text, policies=_some(other))


def _algorithms(config: Config, names: Sequence[str]) -> dict[str, bytes]:
    """Return the algorithm of each of these policies."""
    found, _ = policies.parse(each for each in config.policies if each[0] in names)
    return {name.decode(): policy.limiter.algorithm.name for name, policy in found.items()}


def _some(names: Sequence[str]) -> str:
    """Return names as text: the first MAX_NAMES of them."""
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "") or "none"
