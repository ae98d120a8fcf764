"""Policies: the named rules of the settings file, from text to rules or mistakes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from rlproxy.ratelimit.arguments import GrammarError
from rlproxy.ratelimit.grammar import POLICY, Policy
from rlproxy.resp.escape import quoted

MAX_POLICIES: Final = 10_000  # policies in a settings file
ENFORCED: Final = "enforced"
SHADOW: Final = "shadow"
_NAME: Final = re.compile(rb"[A-Za-z0-9_.:-]{1,64}")

# Name, rule and shadow of each policy. The words of a rule have one blank between them.
Texts = Iterable[tuple[str, str, bool]]


def parse(texts: Texts) -> tuple[dict[bytes, Policy], list[str]]:
    """Parse the table of policies.

    Returns the policies by name, sorted, and a line for each mistake.
    """
    found: dict[bytes, Policy] = {}
    mistakes: list[str] = []
    for name, text, shadow in texts:
        encoded = name.encode()
        try:
            found[encoded] = _policy(encoded, text.encode(), shadow)
        except GrammarError as error:
            mistakes.append(f"policy {quoted(encoded)}: {str(error).removeprefix('ERR ')}")
    if len(found) > MAX_POLICIES:
        mistakes.append(f"{len(found)} policies, more than {MAX_POLICIES}")
    return dict(sorted(found.items())), mistakes


def _policy(name: bytes, text: bytes, shadow: bool) -> Policy:
    if _NAME.fullmatch(name) is None:
        raise GrammarError("a name is 1 to 64 letters, digits, '_', '.', ':' and '-'")
    words = text.split()
    if len(words) < 2:
        raise GrammarError("expected max, window and options, such as '5 60'")
    if POLICY in [word.upper() for word in words]:
        raise GrammarError("a rule can't name a policy")
    return Policy(name, text, shadow)


def mistakes(texts: Texts) -> list[str]:
    """Return a line for each mistake in the table of policies."""
    return parse(texts)[1]


def warnings(texts: Texts) -> list[str]:
    """Return a line for each policy that refuses every hit, as its COST is above a limit."""
    found, _ = parse(each for each in texts if "COST" in each[1].upper())
    lines = []
    for name, policy in found.items():
        rule = policy.limiter
        limit = min([rule.limit(), *(most for most, _ in rule.limits)])
        if rule.cost > limit:
            cost = f"policy {quoted(name)}: COST {rule.cost} is above its limit {limit}"
            lines.append(f"{cost}: it refuses every hit without a COST of its own")
    return lines


def mode(shadow: bool) -> str:
    """Return how refusals of a policy are treated: ENFORCED or SHADOW."""
    return SHADOW if shadow else ENFORCED


def differences(old: Texts, new: Texts) -> tuple[list[str], list[str], list[str]]:
    """Return the names that were added, removed, and whose rule or mode changed."""
    before, after = _by_name(old), _by_name(new)
    return (
        [name for name in after if name not in before],
        [name for name in before if name not in after],
        [name for name in after if name in before and after[name] != before[name]],
    )


def _by_name(texts: Texts) -> Mapping[str, Sequence[object]]:
    return {name: (rule, shadow) for name, rule, shadow in sorted(texts)}
