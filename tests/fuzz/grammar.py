"""Fuzz target of the command grammar: any words are an error or a call within its bounds."""

from __future__ import annotations

import re

from rlproxy.ratelimit import algorithms, scripts
from rlproxy.ratelimit import grammar as g
from rlproxy.ratelimit.grammar import Grammar, Rule
from rlproxy.ratelimit.outcomes import shadow
from rlproxy.ratelimit.scripts import LOADED, SHADOW, SOURCE
from rlproxy.resp import commands, encoding
from rlproxy.resp.escape import quoted
from rlproxy.resp.requests import COMMAND
from rlproxy.session.call import Call
from rlproxy.session.client_requests import ClientRequests
from rlproxy.session.context import ServerFacts, WorkerContext
from rlproxy.session.session import Session

from tests.contexts import worker_context
from tests.fuzz import reference
from tests.fuzz.choices import Choices
from tests.fuzz.model import POLICIES

SCRIPTS = scripts.load()
NAMES = (
    b"RL.HIT",
    b"RL.PEEK",
    b"RL.REFUND",
    b"CL.THROTTLE",
    b"RL.THROTTLE",
    b"rl.hit",
    b"RL.BLOCK",
)
OTHERS = (b"RL.RESET", *commands.REPORTS)
POLICY_NAMES = (*POLICIES, b"absent")
WORDS = (
    *(b"10", b"60", b"1", b"0", b"0.5", b"1000", b"1e3", b"-1", b"nan", b"0x10", b"", b"\0"),
    *(b"1000000000", b"1000000001", b"100000", b"9223372036854775807", b"9223372036854775808"),
    *(b"315360000", b"315360001", b"0.000001", b"0.0000001", b"86400", b"3600000", b"007"),
    *(b"MS", b"ALGO", b"COST", b"BURST", b"GAP", b"STRICT", b"PENALTY", b"WAIT", b"AND"),
    *(b"ms", b"Algo", b"strict", b"and", b"\xff", b"10 60", b"$1", b"*1\r\n", b"10\r\n"),
    *algorithms.ALGORITHMS,
    b"gcra",
    b"log",
    b"POLICY",
    b"policy",
    *POLICY_NAMES,
    b"RELOAD",
    b"refused",
)
MAX_US = g.MAX_WINDOW_US
QUOTING = re.compile(r"-ERR (?:syntax error near|unknown ALGO) '(.*)'\r\n")


def words(choices: Choices) -> list[bytes]:
    """Random words: known ones, numbers, and literal bytes."""
    found: list[bytes] = []
    while choices.more() and len(found) < 40:
        kind = choices.below(256)
        if kind < 192:
            found.append(WORDS[kind % len(WORDS)])
        elif kind < 208:
            found.append(b"%d" % choices.below(65536))
        elif kind < 216:
            found.append(b"%d.%d" % (choices.below(65536), choices.below(65536)))
        else:
            found.append(choices.take(kind % 16))
    return found


def calls(data: bytes) -> None:
    """A command of the family with any arguments."""
    choices = Choices(data)
    kind = choices.below(32)
    at, policy = 1 + choices.below(2), POLICY_NAMES[choices.below(len(POLICY_NAMES))]
    args = words(choices)
    if kind >= 28:
        _reads((OTHERS[choices.below(len(OTHERS))], *args))
        return
    if kind >= 14:
        args[at:at] = [b"POLICY", policy]
    name = NAMES[kind % len(NAMES)].upper()
    written = b"".join(map(encoding.bulk, [name, *args]))
    grammar = _grammar()
    rule = grammar.rule(written, name, args)
    _check(rule, name, args)
    again = _grammar().rule(b"else", name, args)
    assert (again.error, again.words(LOADED), again.tail) == (
        rule.error,
        rule.words(LOADED),
        rule.tail,
    )
    assert (grammar.known(written) is rule) == (len(written) <= g.RULE_BYTES)
    _reads((NAMES[kind % len(NAMES)], *args))


def _grammar() -> Grammar:
    made = Grammar(SCRIPTS)
    made.use(POLICIES)
    return made


def _check(rule: Rule, name: bytes, args: list[bytes]) -> None:
    if rule.error:
        assert rule.script is None
        assert rule.error.startswith(b"-ERR ")
        assert rule.error.endswith(b"\r\n")
        assert b"\r" not in rule.error[:-2]
        assert b"\n" not in rule.error[:-2]
        assert len(rule.error) < 200
        assert rule.error.decode().removesuffix("\r\n").isprintable()
        quote = QUOTING.fullmatch(rule.error.decode())
        assert quote is None or f"'{quote[1]}'" in [quoted(word) for word in args[1:]]
        return
    limiter = rule.limiter
    assert rule.script is not None
    if name == b"RL.BLOCK":
        assert rule.frees
        if limiter is None:
            assert rule.script is SCRIPTS["block"]
        else:
            assert rule.script is SCRIPTS[scripts.blocking(limiter.algorithm.script)]
            _call(rule, args[0])
        return
    assert limiter is not None
    if name not in g.THROTTLES and args[1].upper() == b"POLICY":
        _written_out(rule, name, args)
    throttle = name in g.THROTTLES
    most = g.MAX_CELL if throttle else algorithms.MAX_HITS
    assert 1 <= limiter.max <= most
    assert 0 <= limiter.cost <= most
    assert 0 <= limiter.burst <= (g.MAX_CELL + 1 if throttle else algorithms.MAX_HITS)
    if not throttle:
        assert 1000 <= limiter.window_us <= MAX_US
        assert limiter.max <= limiter.algorithm.bounds["max"]
        windows = [limiter.window_us, *(window for _, window in limiter.limits)]
        assert 0 <= limiter.gap_us <= max(windows)
        assert limiter.penalty_us == 0 or 1000 <= limiter.penalty_us <= MAX_US
        assert limiter.wait_us == 0 or 1000 <= limiter.wait_us <= g.MAX_WAIT_US
        assert len(limiter.limits) <= g.MAX_LIMITS
        for others, window_us in limiter.limits:
            assert 1 <= others <= limiter.algorithm.bounds["max"]
            assert 1000 <= window_us <= MAX_US
    assert limiter.exact()
    assert not (rule.denies and rule.waits)
    assert not (rule.takes and rule.frees)
    variants = [rule]
    if rule.takes:
        variants += [rule.peek(), rule.attempt(), rule.in_microseconds(), rule.attempt().peek()]
    for variant in variants:
        _call(variant, args[0])


def _written_out(rule: Rule, name: bytes, args: list[bytes]) -> None:
    """A command that names a policy is the call of its written-out rule. Options of the command
    replace those of the policy; those that the command lacks, and WAIT under shadow, are left out.
    """
    policy = POLICIES[args[2]]
    text = policy.text.split()
    first = 4 if name == b"RL.REFUND" else 3
    options = g.OPTIONS[b"RL.HIT"]
    unused = {b"WAIT"} if policy.shadow else set()
    given = [args[at : at + 2] for at in range(first, len(args), 2)]
    given = [each for each in given if each[0].upper() not in unused]
    unused |= {*options} - {*g.OPTIONS[name]} | {word.upper() for word, _ in given}
    whole = [args[0], *text[:2], *args[3:first]]
    at = 2
    while at < len(text):
        end = at + 1 + len(options[text[at]])
        whole += text[at:end] if text[at] not in unused else []
        at = end
    whole += [word for each in given for word in each]
    other = Grammar(SCRIPTS).rule(b"", name, whole)
    assert _decisions(rule) == _decisions(other), whole
    assert shadow(rule.row) == (policy.shadow and name == b"RL.HIT")
    assert not rule.takes or rule.label() == policy.name


def _decisions(rule: Rule) -> tuple[object, ...]:
    waits = (rule.waits, rule.shapes, rule.denies, rule.frees)
    return (rule.error, rule.words(LOADED), rule.tail, rule.unit_us, rule.limit, waits)


def _call(rule: Rule, key: bytes) -> None:
    """Each form of the call is one whole request with one key and arguments in the script's
    order.
    """
    assert rule.script is not None
    forms = [rule.words(way) for way in (LOADED, SOURCE, SHADOW)]
    for form in forms:
        sent = form + encoding.bulk(key) + rule.tail
        one = reference.request(sent, 0)
        assert one.end == len(sent)
        assert one.words[0] in (b"EVAL", b"EVALSHA", b"EVAL_RO", b"EVALSHA_RO")
        assert one.words[2:4] == (b"1", key)
        argv = one.words[4:]
        assert 2 <= len(argv) <= 7
        for word in argv[:4]:
            assert 0 <= int(word) <= g.MAX_CELL + 1, argv
        assert all(len(word) < 400 for word in argv)
        assert len(sent) - len(key) < 8192


def _reads(request: tuple[bytes, ...]) -> None:
    """Each form of a request parses to the same call."""
    settings = worker_context(
        grammar=_grammar(), server=ServerFacts("redis:1"), lane_of=lambda *_: None
    )
    strict = encoding.bulks(*request)
    lenient = strict.replace(b"\r\n", b"\rX", 1)
    made = [_read(form, settings) for form in (strict, lenient)]
    one, two = made
    if one is None or two is None:
        assert one is two
        assert request[0].upper() in commands.REPORTS
        return
    assert (one.key, one.reply, one.rule.words(LOADED), one.rule.tail) == (
        *(two.key, two.reply, two.rule.words(LOADED), two.rule.tail),
    )
    if not one.reply:
        sent = one.rule.words(LOADED) + one.key + one.rule.tail
        assert reference.request(sent, 0).end == len(sent)


def _read(form: bytes, settings: WorkerContext) -> Call | None:
    framer = ClientRequests()
    framer.feed(form)
    assert framer.next() == COMMAND
    return framer.call(Session(settings), settings)
