"""Grammar: the contract's table of arguments and errors, one row per case."""

from __future__ import annotations

import re

import pytest
from rlproxy.ratelimit import grammar as g
from rlproxy.ratelimit import outcomes as oc
from rlproxy.ratelimit import scripts
from rlproxy.ratelimit.algorithms import ALGORITHMS
from rlproxy.ratelimit.grammar import Grammar, Rule
from rlproxy.ratelimit.scripts import LOADED, SOURCE
from rlproxy.resp import encoding

SCRIPTS = scripts.load()
WAYS = (LOADED, SOURCE)

WINDOW = "window is not a valid number of seconds"
GAP = "GAP is not a valid number of seconds"
PENALTY = "PENALTY is not a valid number of seconds"
WAIT = "WAIT is not a valid number of seconds"
RANGE = "rate or burst out of range"
ARITY = "wrong number of arguments for 'rl.hit' command"


def beyond(what: str) -> str:
    """The error of a number that is malformed, or outside the range named by `what`."""
    return f"value is not an integer or out of range: {what}"


def near(word: str) -> str:
    """The error of a word that is not allowed at its place."""
    return f"syntax error near '{word}'"


MAX = beyond("max is 1 to 1000000 with ALGO LOG")
MAX_ZLOG = beyond("max is 1 to 100000 with ALGO ZLOG")
MAX_ANY = beyond("max is 1 to 1000000000")
COST = beyond("COST is 0 to 100000 with ALGO LOG")
COST_ZLOG = beyond("COST is 0 to 10000 with ALGO ZLOG")
COST_ANY = beyond("COST is 0 to 1000000000")
BURST = beyond("BURST is 1 to 1000000000")
GIVEN_BACK = beyond("n is 1 to 1000000000")
WINDOW_MS = beyond("window is 1 to 315360000000 with MS")
GAP_MS = beyond("GAP is 0 to the longest window with MS")
PENALTY_MS = beyond("PENALTY is 1 to 315360000000 with MS")
WAIT_MS = beyond("WAIT is 1 to 3600000 with MS")
MAX_BURST = beyond("max_burst is 0 to 999999999")
COUNT = beyond("count is 1 to 9223372036854775807")
PERIOD = beyond("period is 1 to 9223372036854775807")
QUANTITY = beyond("quantity is 0 to 9223372036854775807")

YEARS = 315_360_000  # ten years, in seconds
BILLION = 1_000_000_000

# The contract's words: each option as written in a command, and the ALGOs that have it.
EVERY = "LOG ZLOG FIXED COUNTER TOKEN LEAKY GCRA"
SUPPORT = {
    "COST 2": EVERY,
    "BURST 20": "TOKEN LEAKY GCRA",
    "GAP 1": "LOG ZLOG",
    "STRICT": "LOG ZLOG FIXED",
    "PENALTY 5": EVERY,
    "WAIT 5": EVERY,
    "AND 20 90": "LOG ZLOG",
    "MS": EVERY,
}
# The words of each command with a rule, and of all.
OWN = {
    "RL.HIT": "MS ALGO COST BURST GAP STRICT PENALTY WAIT AND",
    "RL.PEEK": "MS ALGO COST BURST GAP AND",
    "RL.REFUND": "MS ALGO BURST AND",
}
WORDS = OWN | {"RL.BLOCK": "MS ALGO"}
BUCKETS = ("TOKEN", "LEAKY", "GCRA")


@pytest.fixture
def grammar() -> Grammar:
    return Grammar(SCRIPTS)


def parse(text: str, name: str = "RL.HIT") -> Rule:
    """The rule of `name key <text>`."""
    words = text.encode().split(b" ") if text else []
    return Grammar(SCRIPTS).rule(text.encode(), name.encode(), [b"key", *words])


def error(text: str, name: str = "RL.HIT") -> str:
    """The error of `name key <text>`; empty if there is none."""
    rule = parse(text, name)
    if rule.error == b"":
        assert rule.script is not None
        return ""
    assert rule.script is None and rule.limiter is None
    assert {rule.words(way) for way in WAYS} == {b""}
    assert rule.tail == b""
    assert not (rule.takes or rule.frees or rule.waits or rule.shapes)
    assert rule.error.startswith(b"-ERR ") and rule.error.endswith(b"\r\n")
    return rule.error[5:-2].decode()


def request(data: bytes) -> list[bytes]:
    """The words of one well-formed multibulk request."""
    head, data = data.split(b"\r\n", 1)
    words = []
    for _ in range(int(head.removeprefix(b"*"))):
        size, data = data.split(b"\r\n", 1)
        length = int(size.removeprefix(b"$"))
        words.append(data[:length])
        assert data[length : length + 2] == b"\r\n"
        data = data[length + 2 :]
    assert data == b""
    return words


def argv(rule: Rule) -> list[bytes]:
    """The words of a rule's ARGV, which must be equal for every way of sending it."""
    script = rule.script
    assert rule.error == b"" and script is not None
    ways = [
        (rule.words(way), verb, body)
        for way, verb, body in (
            (LOADED, b"EVALSHA", script.sha),
            (SOURCE, b"EVAL", script.source + b" "),
        )
    ]
    sent = [request(head + encoding.bulk(b"a\r\nb") + rule.tail) for head, _, _ in ways]
    for words, (_, verb, body) in zip(sent, ways, strict=True):
        assert words[:4] == [verb, body, b"1", b"a\r\nb"]
        assert words[4:] == sent[0][4:]
        assert len(words) <= 10  # a server that requires a password closes on an eleventh word
    return sent[0][4:]


def joined_argv(rule: Rule) -> str:
    """A rule's ARGV as one text, joined by bars."""
    return b"|".join(argv(rule)).decode()


# -- valid commands: the words, by the headers of the scripts --------------------------------------

# RL.HIT's arguments behind the key, and the ARGV.
RIGHT = [
    ("10 60", "10|60000000"),
    # max
    ("1 60", "1|60000000"),
    ("1000000 60", "1000000|60000000"),
    # window in seconds, decimals to microseconds
    ("10 0.5", "10|500000"),
    ("10 1.000001", "10|1000001"),
    ("10 1.5", "10|1500000"),
    ("10 1.05", "10|1050000"),
    ("10 0.001", "10|1000"),
    ("10 0.001001", "10|1001"),
    ("10 315360000", "10|315360000000000"),
    ("10 315360000.000000", "10|315360000000000"),
    ("10 007", "10|7000000"),
    # MS, at any place.
    ("10 60000 MS", "10|60000000|1000"),
    ("10 1 MS", "10|1000|1000"),
    ("10 315360000000 MS", "10|315360000000000|1000"),
    ("10 5 ms COST 2", "10|5000|1000|2"),
    ("10 5 COST 2 Ms", "10|5000|1000|2"),
    ("10 5 ALGO LOG MS COST 2", "10|5000|1000|2"),
    # COST
    ("10 60 COST 1", "10|60000000"),
    ("10 60 COST 0", "10|60000000|1000000|0"),
    ("10 60 COST 11", "10|60000000|1000000|11"),
    ("10 60 COST 100000", "10|60000000|1000000|100000"),
    # Case and order.
    ("10 60 cost 3 algo log", "10|60000000|1000000|3"),
    ("10 60 aLGo LoG CoSt 3", "10|60000000|1000000|3"),
    # GAP, AND: one word for all.
    ("10 60 GAP 0", "10|60000000"),
    ("10 60 GAP 0.000001", "10|60000000|1000000|1|hit|1 0"),
    ("10 60000 GAP 250 MS", "10|60000000|1000|1|hit|250000 0"),
    ("10 60 AND 100 3600", "10|60000000|1000000|1|hit|0 0 100 3600000000"),
    ("10 60 AND 9 5 AND 8 4.5", "10|60000000|1000000|1|hit|0 0 9 5000000 8 4500000"),
    ("10 60000 AND 9 5 and 8 4 MS", "10|60000000|1000|1|hit|0 0 9 5000 8 4000"),
    ("10 60 AND 1000000 0.001", "10|60000000|1000000|1|hit|0 0 1000000 1000"),
    ("10 60 GAP 2 AND 9 5 COST 3", "10|60000000|1000000|3|hit|2000000 0 9 5000000"),
]
# ... and options that only RL.HIT has.
HITS = [
    ("10 60 STRICT", "10|60000000|1000000|1|hit|0 1"),
    ("10 60 strict GAP 2", "10|60000000|1000000|1|hit|2000000 1"),
    ("10 60 PENALTY 600", "10|60000000|1000000|1|600000000"),
    ("10 60 PENALTY 0.0015", "10|60000000|1000000|1|1500"),
    ("10 60 MS PENALTY 600", "10|60000|1000|1|600000"),
    ("10 60 COST 0 PENALTY 600", "10|60000000|1000000|0|600000000"),
    ("10 60 WAIT 5", "10|60000000"),
    ("10 60 WAIT 5 COST 2", "10|60000000|1000000|2"),
    ("10 60 PENALTY 1 STRICT AND 9 5 GAP 3 WAIT 4 COST 2 ALGO LOG",
     "10|60000000|1000000|2|1000000|3000000 1 9 5000000"),
    ("10 60 ALGO FIXED", "10|60000000"),
    ("10 60 ALGO FIXED STRICT", "10|60000000|1000000|1|hit|0 1"),
    ("10 60 STRICT ALGO FIXED COST 2 PENALTY 1", "10|60000000|1000000|2|1000000|0 1"),
    ("1000000000 60 ALGO fixed COST 1000000000", "1000000000|60000000|1000000|1000000000"),
    ("10 60 ALGO COUNTER", "10|60000000"),
    ("10 60 ALGO COUNTER PENALTY 1 COST 3", "10|60000000|1000000|3|1000000"),
    # Buckets: limit, and the emission interval in nanoseconds.
    ("10 60 ALGO TOKEN", "10|6000000000"),
    ("10 60 ALGO TOKEN COST 1", "10|6000000000"),
    ("3 1 ALGO TOKEN", "3|333333333"),
    ("3 1 ALGO GCRA BURST 7", "7|333333333"),
    ("3 1 ALGO GCRA BURST 7 COST 2", "7|333333333|1000000|2"),
    ("10 60 ALGO GCRA COST 2", "10|6000000000|1000000|2"),
    ("10 60 ALGO GCRA COST 0", "10|6000000000|1000000|0"),
    ("10 60 ALGO GCRA PENALTY 600", "10|6000000000|1000000|1|600000000"),
    ("10 6000 MS ALGO LEAKY", "10|600000000|1000"),
    ("10 60 ALGO LEAKY WAIT 5", "10|6000000000"),  # in MULTI: as without WAIT
    ("10 60 ALGO LEAKY WAIT 5 PENALTY 1", "10|6000000000|1000000|1|1000000"),
    ("1000000000 0.001 ALGO TOKEN", "1000000000|1"),  # never less than 1 ns
    ("1 60 ALGO TOKEN BURST 1000", "1000|60000000000"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "words"), RIGHT + HITS)
def test_valid_hits(text: str, words: str) -> None:
    rule = parse(text)
    assert joined_argv(rule) == words
    limiter = rule.limiter
    assert limiter is not None
    assert limiter.limit() == int(words.split("|")[0])
    named = re.search(r"(?i)ALGO (\w+)", text)
    assert limiter.algorithm.name == (named[1].upper() if named else "LOG").encode()
    assert rule.script is SCRIPTS[limiter.algorithm.script]


@pytest.mark.parametrize(("text", "words"), RIGHT)
def test_peek_parses_the_same_arguments(text: str, words: str) -> None:
    given = words.split("|")
    four, more = (given + ["1000000", "1"][len(given) - 2 :])[:4], given[5:]
    assert joined_argv(parse(text, "RL.PEEK")) == "|".join([*four, "peek", *more])


OTHERS = [
    ("RL.REFUND", "10 60 1", "10|60000000|1000000|1|refund"),
    ("RL.REFUND", "10 60 5", "10|60000000|1000000|5|refund"),
    # COST's bound does not apply to n
    ("RL.REFUND", "10 60 1000000000", "10|60000000|1000000|1000000000|refund"),
    ("RL.REFUND", "10 60 5 MS", "10|60000|1000|5|refund"),
    ("RL.REFUND", "10 60 5 AND 9 5 algo zlog", "10|60000000|1000000|5|refund|0 0 9 5000000"),
    ("RL.REFUND", "10 60 5 ALGO FIXED", "10|60000000|1000000|5|refund"),
    ("RL.REFUND", "10 60 5 ALGO COUNTER", "10|60000000|1000000|5|refund"),
    ("RL.REFUND", "3 1 5 ALGO GCRA", "3|333333333|1000000|5|refund"),
    ("RL.REFUND", "3 1 1 BURST 9 ALGO LEAKY", "9|333333333|1000000|1|refund"),
    ("RL.PEEK", "10 60 ALGO GCRA", "10|6000000000|1000000|1|peek"),
    ("RL.PEEK", "3 1 ALGO TOKEN COST 0 BURST 9", "9|333333333|1000000|0|peek"),
    ("RL.PEEK", "10 60 ALGO FIXED COST 4", "10|60000000|1000000|4|peek"),
    ("RL.PEEK", "10 60 ALGO COUNTER", "10|60000000|1000000|1|peek"),
    ("RL.PEEK", "10 60 ALGO ZLOG GAP 2", "10|60000000|1000000|1|peek|2000000 0"),
]


@pytest.mark.parametrize(("name", "text", "words"), OTHERS)
def test_valid_refunds_and_peeks(name: str, text: str, words: str) -> None:
    assert joined_argv(parse(text, name)) == words


# -- bounds: the first and last valid value, those just beyond, and the error of these -------------

BOUNDS = [
    # max
    ("{} 60", "1", "1000000", "0", "1000001", MAX),
    ("{} 60 ALGO LOG", "1", "1000000", "0", "1000001", MAX),
    ("{} 60 ALGO ZLOG", "1", "100000", "0", "100001", MAX_ZLOG),
    *[
        (f"{{}} 1 ALGO {algo}", "1", str(BILLION), "0", str(BILLION + 1), MAX_ANY)
        for algo in ("FIXED", "COUNTER", *BUCKETS)
    ],
    # window
    *[
        (f"28 {{}} ALGO {algo}", "0.001", f"{YEARS}", "0.000999", f"{YEARS}.000001", WINDOW)
        for algo in EVERY.split()
    ],
    ("10 {} MS", "1", f"{YEARS}000", "0", f"{YEARS}001", WINDOW_MS),
    # COST
    ("10 60 COST {}", "0", "100000", "-1", "100001", COST),
    ("10 60 COST {} ALGO ZLOG", "0", "10000", "-1", "10001", COST_ZLOG),
    *[
        (f"10 1 COST {{}} ALGO {algo}", "0", str(BILLION), "-1", str(BILLION + 1), COST_ANY)
        for algo in ("FIXED", "COUNTER", *BUCKETS)
    ],
    # BURST
    *[
        (f"10 1 BURST {{}} ALGO {algo}", "1", str(BILLION), "0", str(BILLION + 1), BURST)
        for algo in BUCKETS
    ],
    # GAP
    ("10 60 GAP {}", "0", "60", "-1", "60.000001", GAP),
    ("10 60 GAP {} ALGO ZLOG", "0.000001", "60.000000", "0.0000001", "60.000001", GAP),
    ("10 60 GAP {} AND 5 3600", "0", "3600", "-1", "3600.000001", GAP),
    ("10 60 AND 5 3600 GAP {} AND 6 3601", "0", "3601", ".1", "3601.000001", GAP),
    ("10 60 GAP {} AND 5 10", "0", "60", "-0", "60.000001", GAP),
    (f"10 {YEARS} GAP {{}}", "0", f"{YEARS}", "", f"{YEARS}.000001", GAP),
    ("10 60 GAP {} MS", "0", "60", "-1", "61", GAP_MS),
    ("10 60 MS GAP {} AND 1 70", "0", "70", "0.5", "71", GAP_MS),
    # PENALTY
    ("10 60 PENALTY {}", "0.001", f"{YEARS}", "0.000999", f"{YEARS}.000001", PENALTY),
    ("10 60 PENALTY {}", "1", "1.5", "0", f"{YEARS + 1}", PENALTY),
    ("10 60 PENALTY {} MS", "1", f"{YEARS}000", "0", f"{YEARS}001", PENALTY_MS),
    ("10 60 PENALTY {} ALGO GCRA", "0.001", f"{YEARS}", "0.000999", f"{YEARS}.000001", PENALTY),
    # WAIT
    ("10 60 WAIT {}", "0.001", "3600", "0.000999", "3600.000001", WAIT),
    ("10 60 WAIT {}", "0.5", "60.5", "0", "3601", WAIT),
    ("10 60 WAIT {} MS", "1", "3600000", "0", "3600001", WAIT_MS),
    ("10 60 ALGO LEAKY WAIT {}", "0.001", "3600", "0.000999", "3600.000001", WAIT),
    # AND
    ("10 60 AND {} 5", "1", "1000000", "0", "1000001", MAX),
    ("10 60 AND {} 5 ALGO ZLOG", "1", "100000", "0", "100001", MAX_ZLOG),
    ("10 60 AND 3 5 AND {} 5", "1", "1000000", "0", "1000001", MAX),
    ("10 60 AND 5 {}", "0.001", f"{YEARS}", "0.000999", f"{YEARS}.000001", WINDOW),
    ("10 60 AND 3 5 AND 5 {}", "0.001", f"{YEARS}", "0", f"{YEARS + 1}", WINDOW),
    ("10 60 AND 5 {} MS", "1", f"{YEARS}000", "0", f"{YEARS}001", WINDOW_MS),
    # Rates: BURST x emission and COST x emission at most ten years.
    *[
        row
        for algo in BUCKETS
        for row in (
            (f"1 {YEARS} ALGO {algo} BURST {{}}", "1", "1", "0", "2", (BURST, RANGE)),
            (f"2 {YEARS} ALGO {algo} BURST {{}}", "1", "2", "0", "3", (BURST, RANGE)),
            (f"1 {YEARS} ALGO {algo} COST {{}}", "0", "1", "-1", "2", (COST_ANY, RANGE)),
            (f"3 3 ALGO {algo} COST {{}}", "0", "315360000", "-1", "315360001", (COST_ANY, RANGE)),
            (f"3 3 ALGO {algo} BURST {{}}", "1", "315360000", "0", "315360001", (BURST, RANGE)),
        )
    ],
    # Less than 1 ns counts as 1 ns.
    ("1000000000 0.001 BURST {} ALGO TOKEN", "1", str(BILLION), "0", "x", BURST),
    # COUNTER: max x window in microseconds below 2^53
    ("8388608 {} ALGO COUNTER", "1", "1073.741823", "0", "1073.741824", (WINDOW, RANGE)),
    ("1000000000 {} ALGO COUNTER", "1", "9.007199", "0", "9.007200", (WINDOW, RANGE)),
    (f"{{}} {YEARS} ALGO COUNTER", "1", "28", "0", "29", (MAX_ANY, RANGE)),
    ("8388608 {} ALGO COUNTER MS", "1", "1073741", "0", "1073742", (WINDOW_MS, RANGE)),
]  # fmt: skip


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize(("text", "first", "last", "below", "above", "errors"), BOUNDS)
def test_values_at_and_beyond_the_bounds(
    name: str,
    text: str,
    first: str,
    last: str,
    below: str,
    above: str,
    errors: str | tuple[str, str],
) -> None:
    used = {word for word in text.split() if word.isalpha() and word not in EVERY.split()}
    if name == "RL.REFUND":
        text = re.sub(r"^(\S+ \S+)", r"\1 1", text)
    if not used <= set(OWN[name].split()):
        lacking = next(word for word in text.split() if word in used - set(OWN[name].split()))
        assert error(text.format(first), name) == near(lacking)
        return
    low, high = (errors, errors) if isinstance(errors, str) else errors
    assert error(text.format(first), name) == ""
    assert error(text.format(last), name) == ""
    assert error(text.format(below), name) == low
    assert error(text.format(above), name) == high


@pytest.mark.parametrize("algo", EVERY.split())
def test_bounds_of_a_refund(algo: str) -> None:
    for most in (1, BILLION):
        assert error(f"10 4 {most} ALGO {algo}", "RL.REFUND") == ""
    for count in ("0", str(BILLION + 1), "-1", "01", "1.0", "x", "", "MS", "ALGO"):
        assert error(f"10 4 {count} ALGO {algo}", "RL.REFUND") == GIVEN_BACK


# -- options and algorithms ------------------------------------------------------------------------


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("algo", EVERY.split())
@pytest.mark.parametrize("option", SUPPORT)
def test_every_option_of_every_algorithm(name: str, algo: str, option: str) -> None:
    word = option.split()[0]
    numbers = "10 60 3" if name == "RL.REFUND" else "10 60"
    expected = ""
    if word not in OWN[name].split():
        expected = near(word)
    elif algo not in SUPPORT[option].split():
        expected = f"{word} is not supported by ALGO {algo}"
    assert error(f"{numbers} {option} ALGO {algo}", name) == expected
    small = expected.lower() if expected == near(word) else expected
    assert error(f"{numbers} algo {algo.lower()} {option.lower()}", name) == small


def test_table_of_words_equals_the_contract() -> None:
    assert {name.decode(): set(row) for name, row in g.OPTIONS.items()} == {
        name: {word.encode() for word in words.split()} for name, words in WORDS.items()
    }
    for row in g.OPTIONS.values():
        for word, values in row.items():
            assert values is g.OPTIONS[b"RL.HIT"][word]
            assert len(values) == {b"MS": 0, b"STRICT": 0, b"AND": 2}.get(word, 1)


@pytest.mark.parametrize("count", range(1, 10))
def test_and_is_allowed_up_to_eight_times(count: int) -> None:
    for algo in ("LOG", "ZLOG"):
        text = "10 60" + " AND 5 5" * count + f" ALGO {algo}"
        assert error(text) == ("" if count <= 8 else near("AND"))
        assert error(text.replace("60", "60 1", 1), "RL.REFUND") == (
            "" if count <= 8 else near("AND")
        )
    text = "10 60" + " AND 5 5" * count + " ALGO TOKEN"
    assert error(text) == ("AND is not supported by ALGO TOKEN" if count <= 8 else near("AND"))


def test_ms_is_allowed_at_any_place() -> None:
    groups = [" COST 2", " AND 9 5", " GAP 7", " ALGO ZLOG", " STRICT", " PENALTY 8", " WAIT 9"]
    expected = "10|60000|1000|2|8000|7000 1 9 5000"
    for index in range(len(groups) + 1):
        mixed = "".join([*groups[:index], " ms", *groups[index:]])
        assert joined_argv(parse("10 60" + mixed)) == expected
        assert error("10 0.5" + mixed) == WINDOW_MS
    # A value is not a word.
    assert error("10 0.5 ALGO ms") == "unknown ALGO 'ms'"
    assert error("10 0.5 COST MS") == COST
    assert error("10 .5 COST MS") == WINDOW
    assert error("10 0.5 AND 5 MS") == WINDOW
    assert error("10 0.5 AND MS MS") == MAX
    assert error("10 0.5 AND 5 MS MS") == WINDOW_MS
    assert error("10 0.5 FOO MS") == WINDOW_MS  # behind an unknown word it is not at its place
    assert error("10 60 FOO MS") == near("FOO")
    assert error("10 60 5 AND 5 MS", "RL.REFUND") == WINDOW
    assert error("10 0.5 MS", "RL.REFUND") == GIVEN_BACK  # there it stands for n
    assert error("10 0.5 MS COST 1", "RL.REFUND") == GIVEN_BACK


# -- invalid commands ------------------------------------------------------------------------------

WRONG = [
    # the number of arguments
    ("", ARITY),
    ("10", ARITY),
    ("x", ARITY),
    # max
    ("-1 60", MAX),
    ("+1 60", MAX),
    ("01 60", MAX),
    ("1.0 60", MAX),
    ("1e3 60", MAX),
    ("ten 60", MAX),
    ("1000000001 60", MAX),
    ("9223372036854775807 60", MAX),
    ("9223372036854775808 60", MAX),
    ("18446744073709551617 60", MAX),
    ("99999999999999999999999 60", MAX),
    ("\u0661 60", MAX),
    ("0x10 60", MAX),
    ("1\n 60", MAX),
    (" 60", MAX),
    # window, seconds
    ("10 0", WINDOW),
    ("10 0.0", WINDOW),
    ("10 0.0009", WINDOW),
    ("10 .5", WINDOW),
    ("10 1.", WINDOW),
    ("10 .", WINDOW),
    ("10 1e3", WINDOW),
    ("10 +5", WINDOW),
    ("10 -5", WINDOW),
    ("10 1.0000001", WINDOW),
    ("10 1.0000000", WINDOW),
    ("10 1.2.3", WINDOW),
    ("10 1,5", WINDOW),
    ("10 inf", WINDOW),
    ("10 nan", WINDOW),
    ("10 60s", WINDOW),
    ("10 60\n", WINDOW),
    ("10 \u0661", WINDOW),
    ("10 99999999999999999999999", WINDOW),
    ("10  60", WINDOW),  # an empty word
    # Window, milliseconds.
    ("10 0.5 MS", WINDOW_MS),
    ("10 05 MS", WINDOW_MS),
    ("10 x COST 2 ms", WINDOW_MS),
    # Other times.
    ("10 60 GAP x", GAP),
    ("10 60 GAP 1e0", GAP),
    ("10 60 gap .5 ms", GAP_MS),
    ("10 60 AND 5 x", WINDOW),
    ("10 60 AND 5 .5", WINDOW),
    ("10 60 AND x 5", MAX),
    # COST, BURST
    ("10 60 COST x", COST),
    ("10 60 COST 01", COST),
    ("10 60 COST 1.5", COST),
    ("10 60 BURST x ALGO GCRA", BURST),
    ("10 60 BURST 1.5 ALGO GCRA", BURST),
    # words
    ("10 60 FOO", near("FOO")),
    ("10 60 60", near("60")),
    ("10 60 COST", near("COST")),
    ("10 60 ALGO", near("ALGO")),
    ("10 60 BURST", near("BURST")),
    ("10 60 GAP", near("GAP")),
    ("10 60 AND", near("AND")),
    ("10 60 AND 5", near("AND")),
    ("10 60 AND 5 5 AND 5", near("AND")),
    ("10 60 COST 2 GAP", near("GAP")),
    ("10 60 MS MS", near("MS")),
    ("10 60 COST 1 COST 1", near("COST")),
    ("10 60 COST 1 cost 2", near("cost")),
    ("10 60 ALGO LOG ALGO LOG", near("ALGO")),
    ("10 60 ALGO LOG algo ZLOG", near("algo")),
    ("10 60 ALGO GCRA BURST 5 BURST 5", near("BURST")),
    ("10 60 GAP 1 gAp 1", near("gAp")),
    ("10 60 ALGO NOPE", "unknown ALGO 'NOPE'"),
    ("10 60 ALGO ", "unknown ALGO ''"),
    ("10 60 ALGO sliding_window_log", "unknown ALGO 'sliding_window_log'"),
    ("10 60 COST 1 2", near("2")),
    ("10 60 AND 5 5 5", near("5")),
    ("10 60 ", near("")),
    ("10 60 COST=1", near("COST=1")),
    # Order of checks: the number of arguments, then left to right.
    ("0 .5", MAX),
    ("0 .5 FOO", MAX),
    ("10 .5 FOO", WINDOW),
    ("10 .5 COST x", WINDOW),
    ("10 60 FOO COST x", near("FOO")),
    ("10 60 COST x FOO", COST),
    ("10 60 COST x COST 1", COST),
    ("10 60 COST 1 COST x", near("COST")),
    ("10 60 ALGO NOPE COST x", "unknown ALGO 'NOPE'"),
    ("10 60 COST x ALGO NOPE", COST_ANY),
    ("10 60 AND x .5", MAX),
    ("10 60 AND 5 .5 COST x", WINDOW),
    ("10 60 COST x GAP", COST),
    ("10 60 GAP COST 1", GAP),  # COST is the value of GAP
    ("10 60" + " AND 5 5" * 8 + " AND x x", near("AND")),
    # ... then the algorithm's bounds, then options it lacks, then GAP and the rates.
    ("1000001 60 FOO", near("FOO")),
    ("1000001 .5", WINDOW),
    ("1000001 60 COST x", COST),
    ("1000001 60 BURST 1", MAX),
    ("10 60 COST 100001 BURST 1", COST),
    ("10 60 AND 1000001 5 BURST 1", MAX),
    ("100001 60 AND 5 5 BURST 1 ALGO ZLOG", MAX_ZLOG),
    ("10 60 GAP 61 BURST 1", "BURST is not supported by ALGO LOG"),
    ("10 60 GAP 315360001 ALGO GCRA", GAP),
    ("10 60 GAP 61 ALGO FIXED", "GAP is not supported by ALGO FIXED"),
    ("1 315360000 BURST 2 GAP 1 ALGO TOKEN", "GAP is not supported by ALGO TOKEN"),
    ("29 315360000 BURST 2 ALGO COUNTER", "BURST is not supported by ALGO COUNTER"),
    ("1000000 9.1 BURST 2 ALGO COUNTER", "BURST is not supported by ALGO COUNTER"),
]  # fmt: skip
# ... and those of the options that only RL.HIT has.
WRONG_HITS = [
    ("10 60 PENALTY", near("PENALTY")),
    ("10 60 WAIT", near("WAIT")),
    ("10 60 STRICT STRICT", near("STRICT")),
    ("10 60 STRICT strict", near("strict")),
    ("10 60 STRICT 1", near("1")),
    ("10 60 PENALTY 1 PENALTY 1", near("PENALTY")),
    ("10 60 WAIT 1 WAIT 1", near("WAIT")),
    ("10 60 PENALTY x", PENALTY),
    ("10 60 PENALTY -1", PENALTY),
    ("10 60 PENALTY 1.5 MS", PENALTY_MS),
    ("10 60 WAIT x", WAIT),
    ("10 60 WAIT .5", WAIT),
    ("10 60 WAIT 0.5 MS", WAIT_MS),
    ("10 0.5 PENALTY MS", PENALTY),
    ("10 0.5 WAIT MS", WAIT),
    ("10 60 WAIT STRICT", WAIT),
    ("10 60 GAP 61 PENALTY x", PENALTY),
    ("10 60 WAIT 3601 FOO", WAIT),
    ("1000001 60 STRICT ALGO LOG", MAX),
    ("10 60 STRICT GAP 61", GAP),
    ("1 315360000 BURST 2 STRICT ALGO TOKEN", "STRICT is not supported by ALGO TOKEN"),
    # The first by name of several options that the algorithm lacks.
    ("10 60 STRICT GAP 1 AND 5 5 ALGO GCRA", "AND is not supported by ALGO GCRA"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), WRONG + WRONG_HITS)
def test_invalid_hits(text: str, expected: str) -> None:
    assert error(text) == expected


@pytest.mark.parametrize(("text", "expected"), WRONG)
def test_invalid_peeks_have_the_same_errors(text: str, expected: str) -> None:
    assert error(text, "RL.PEEK") == expected.replace("rl.hit", "rl.peek")


def test_invalid_refunds() -> None:
    arity = ARITY.replace("rl.hit", "rl.refund")
    for text in ("", "10", "10 60", "x x"):
        assert error(text, "RL.REFUND") == arity
    refunds = [
        (re.sub(r"^([^ ]* [^ ]*)", r"\1 1", text), expected)
        for text, expected in WRONG
        if expected != ARITY and not re.search(r"(?i)COST|GAP", text)
    ]
    assert len(refunds) > 60
    for text, expected in refunds:
        assert error(text, "RL.REFUND") == expected, text
    # Left to right.
    assert error("0 .5 0", "RL.REFUND") == MAX
    assert error("10 .5 0", "RL.REFUND") == WINDOW
    assert error("10 60 0 FOO", "RL.REFUND") == GIVEN_BACK
    assert error("1000001 60 0", "RL.REFUND") == GIVEN_BACK


BLOCKS = [
    # The text behind the key, ARGV.
    ("60", "LOG|60000000|1000000"),
    ("0", "LOG|0|1000000"),
    ("0.0", "LOG|0|1000000"),
    ("0.001", "LOG|1000|1000000"),
    ("1.5 algo zlog", "ZLOG|1500000|1000000"),
    ("315360000 ALGO GCRA", "GCRA|315360000000000|1000000"),
    ("1 MS ALGO TOKEN", "TOKEN|1000|1000"),
    ("0 ALGO LEAKY ms", "LEAKY|0|1000"),
    ("315360000000 ALGO COUNTER MS", "COUNTER|315360000000000|1000"),
]


@pytest.mark.parametrize(("text", "words"), BLOCKS)
def test_valid_blocks(text: str, words: str) -> None:
    rule = parse(text, "RL.BLOCK")
    assert joined_argv(rule) == words
    assert rule.script is SCRIPTS["block"]
    assert rule.frees
    assert rule.limit == 0  # without Redis it is an error
    assert rule.unit_us == int(words.split("|")[2])


BLOCK = "t is not a valid number of seconds"
BLOCK_MS = beyond("t is 0 to 315360000000 with MS")
WRONG_BLOCKS = [
    ("", ARITY.replace("rl.hit", "rl.block")),
    *[(t, BLOCK) for t in ("x", "-1", ".5", "1.", "0.0000001", "0.000999", "0.0001", "+5")],
    *[(t, BLOCK) for t in ("315360001", "315360000.000001", "1e3", "MS")],
    *[(f"{t} MS", BLOCK_MS) for t in ("x", "-1", "0.5", "315360000001", "00", "MS")],
    ("x ALGO FOO", BLOCK),
    ("60 ALGO FOO", "unknown ALGO 'FOO'"),
    ("60 ALGO", near("ALGO")),
    ("60 MS MS", near("MS")),
    ("60 ALGO LOG ALGO LOG", near("ALGO")),
    ("60 ALGO FOO x", "unknown ALGO 'FOO'"),
    ("60 x ALGO FOO", near("x")),
    ("60 60", near("60")),
    *[
        (f"60 {word}", near(word.split()[0]))
        for word in ("COST 1", "PENALTY 5", "WAIT 5", "STRICT")
    ],
]


@pytest.mark.parametrize(("text", "expected"), WRONG_BLOCKS)
def test_invalid_blocks(text: str, expected: str) -> None:
    assert error(text, "RL.BLOCK") == expected


STRANGE_WORDS = [
    ([b"10", b"60", b"\xff\xfe"], near(r"\xff\xfe")),
    ([b"10", b"60", b"ALGO", b"\xff"], r"unknown ALGO '\xff'"),
    ([b"10", b"60", b"cost\0", b"1"], near(r"cost\x00")),
    ([b"10", b"60", b"a\r\n-ERR b"], near(r"a\x0d\x0a-ERR b")),
    ([b"10", b"60", "größe".encode()], near("größe")),
    ([b"10", b"60", b"x" * 32], near("x" * 32)),
    ([b"10", b"60", b"ALGO", b"x" * 33], f"unknown ALGO '{'x' * 32}...'"),
    ([b"10", b"60", b"\xff" * 60000], near(r"\xff" * 32 + "...")),
    ([b"\xff", b"60"], MAX),
    ([b"1\0", b"60"], MAX),
    ([b"10", b"\xff"], WINDOW),
    ([b"10", b"60", b"GAP", b"\xb9"], GAP),
]


@pytest.mark.parametrize(("args", "expected"), STRANGE_WORDS, ids=range(len(STRANGE_WORDS)))
def test_words_in_errors_are_escaped_and_cut(
    grammar: Grammar, args: list[bytes], expected: str
) -> None:
    assert grammar.rule(b"w", b"RL.HIT", [b"k", *args]).error == f"-ERR {expected}\r\n".encode()


# -- CL.THROTTLE and RL.THROTTLE -------------------------------------------------------------------

LARGEST = 9_223_372_036_854_775_807
# max_burst count period [quantity], and the ARGV.
THROTTLES = [
    ("15 30 60", "16|2000000000"),
    ("15 30 60 1", "16|2000000000"),
    ("0 1 2 1", "1|2000000000"),
    ("0 3 60", "1|20000000000"),
    ("4 500000 1 2", "5|2000|1000000|2"),
    ("5 6 1", "6|166666666"),
    ("0 3 1 0", "1|333333333|1000000|0"),
    ("999999999 1 0.3", PERIOD),
    ("0 1 1 2", "1|1000000000|1000000|2"),  # above the limit: the script refuses it
    # The bounds.
    ("999999999 1000 1", "1000000000|1000000"),
    (f"0 {LARGEST} 1", "1|1"),
    (f"0 {LARGEST} {LARGEST}", "1|1000000000"),
    ("0 1 315360000", "1|315360000000000000"),
    ("0 1 315360001", RANGE),
    ("1 1 315360000", RANGE),
    ("1 2 315360000", "2|157680000000000000"),
    ("2 2 315360000", RANGE),
    (f"0 1 {LARGEST}", RANGE),
    ("0 1 315360000 2", RANGE),
    ("0 1 1 315360000", "1|1000000000|1000000|315360000"),
    ("0 1 1 315360001", RANGE),
    (f"0 {LARGEST} 1 315360000000000000", "1|1|1000000|315360000000000000"),
    (f"0 {LARGEST} 1 315360000000000001", RANGE),
    (f"0 {LARGEST} 1 {LARGEST}", RANGE),
    ("1000000000 1 1", MAX_BURST),
    (f"{LARGEST} 1 1", MAX_BURST),
    ("-1 1 1", MAX_BURST),
    ("0 0 1", COUNT),
    ("0 -1 1", COUNT),
    (f"0 {LARGEST + 1} 1", COUNT),
    ("0 1 0", PERIOD),
    ("0 1 -1", PERIOD),
    ("0 1 1.5", PERIOD),
    (f"0 1 {LARGEST + 1}", PERIOD),
    ("0 1 1 -1", QUANTITY),
    (f"0 1 1 {LARGEST + 1}", QUANTITY),
    ("0 1 1 99999999999999999999", QUANTITY),
    # Not such a number.
    ("00 1 1", MAX_BURST),
    ("x 1 1", MAX_BURST),
    ("0 01 1", COUNT),
    ("0 +1 1", COUNT),
    ("0 1 1e3", PERIOD),
    ("0 1 1 MS", QUANTITY),
    ("0 1 1 ", QUANTITY),
    # The number of arguments is checked first.
    ("", "wrong number of arguments for '{}' command"),
    ("1", "wrong number of arguments for '{}' command"),
    ("x 0", "wrong number of arguments for '{}' command"),
    ("15 30 60 1 MS", "wrong number of arguments for '{}' command"),
    ("x 0 0 x x", "wrong number of arguments for '{}' command"),
    # ... the numbers before the rates.
    ("1 1 315360000 x", QUANTITY),
    ("1000000000 1 315360001", MAX_BURST),
]  # fmt: skip


@pytest.mark.parametrize("name", ["CL.THROTTLE", "RL.THROTTLE"])
@pytest.mark.parametrize(("text", "expected"), THROTTLES)
def test_throttle_arguments(name: str, text: str, expected: str) -> None:
    if expected[0].isdigit():
        rule = parse(text, name)
        assert joined_argv(rule) == expected
        assert rule.script is SCRIPTS["gcra"]
        assert rule.limiter is not None and rule.limiter.limit() == int(expected.split("|")[0])
    else:
        assert error(text, name) == expected.format(name.lower())


def test_throttle_is_the_same_call_as_gcra() -> None:
    hit, throttle = parse("30 60 ALGO GCRA BURST 16 COST 3"), parse("15 30 60 3", "CL.THROTTLE")
    assert (hit.words(LOADED), hit.tail) == (throttle.words(LOADED), throttle.tail)


# -- the variants of a hit that waits --------------------------------------------------------------

VARIANTS = [
    # Text, peek, attempt, final.
    ("10 60 WAIT 5", "10|60000000|1|1|peek", "10|60000000|1", "10|60000000|1"),
    ("10 60 MS WAIT 5", "10|60000|1|1|peek", "10|60000|1", "10|60000|1"),
    ("10 60 WAIT 5 COST 3", "10|60000000|1|3|peek", "10|60000000|1|3", "10|60000000|1|3"),
    ("10 60 WAIT 5 STRICT PENALTY 9",
     "10|60000000|1|1|peek", "10|60000000|1", "10|60000000|1|1|9000000|0 1"),
    ("10 60 WAIT 5 STRICT PENALTY 9 GAP 2 AND 9 5 COST 4 ALGO ZLOG",
     "10|60000000|1|4|peek|2000000 0 9 5000000", "10|60000000|1|4|hit|2000000 0 9 5000000",
     "10|60000000|1|4|9000000|2000000 1 9 5000000"),
    ("10 60 WAIT 5 STRICT PENALTY 9 ALGO FIXED",
     "10|60000000|1|1|peek", "10|60000000|1", "10|60000000|1|1|9000000|0 1"),
    ("10 60 WAIT 5 PENALTY 9 ALGO COUNTER",
     "10|60000000|1|1|peek", "10|60000000|1", "10|60000000|1|1|9000000"),
    ("3 1 WAIT 5 PENALTY 9 ALGO GCRA BURST 7",
     "7|333333333|1|1|peek", "7|333333333|1", "7|333333333|1|1|9000000"),
    ("10 60 WAIT 5 ALGO TOKEN", "10|6000000000|1|1|peek", "10|6000000000|1", "10|6000000000|1"),
    # LEAKY's script returns how long a hit is held: the last word is its longest hold.
    ("10 60 WAIT 5 ALGO LEAKY",
     "10|6000000000|1|1|peek", *["10|6000000000|1|1|hit|5000000"] * 2),
    ("3 1 WAIT 3600 PENALTY 9 ALGO LEAKY COST 2 BURST 7",
     "7|333333333|1|2|peek", "7|333333333|1|2|hit|3600000000",
     "7|333333333|1|2|9000000|3600000000"),
    # Without WAIT, or with cost 0, it does not.
    ("10 60 PENALTY 9 ALGO LEAKY",
     "10|6000000000|1|1|peek", "10|6000000000|1", "10|6000000000|1|1|9000000"),
    ("10 60 WAIT 5 COST 0 ALGO LEAKY",
     "10|6000000000|1|0|peek", "10|6000000000|1|0", "10|6000000000|1|0"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "peek", "attempt", "final"), VARIANTS)
def test_variants_of_a_waiting_hit(text: str, peek: str, attempt: str, final: str) -> None:
    rule = parse(text)
    before = joined_argv(rule)
    assert joined_argv(rule.peek()) == peek
    assert joined_argv(rule.attempt()) == attempt
    assert joined_argv(rule.in_microseconds()) == final
    assert joined_argv(rule) == before
    for made in (rule.peek, rule.attempt, rule.in_microseconds):
        assert made() is made()  # created once
        assert made().script is rule.script
        assert made().limiter is not rule.limiter
    assert not rule.peek().takes
    assert rule.attempt().takes == rule.in_microseconds().takes == rule.takes


FLAGS = [
    # Takes, frees, waits, shapes.
    ("RL.HIT", "10 60", (True, False, False, False)),
    ("RL.HIT", "10 60 COST 2", (True, False, False, False)),
    ("RL.HIT", "10 60 COST 0", (False, False, False, False)),
    ("RL.HIT", "10 60 COST 11", (True, False, False, False)),
    ("RL.HIT", "10 60 PENALTY 5 STRICT", (True, False, False, False)),
    ("RL.HIT", "10 60 WAIT 5", (True, False, True, False)),
    ("RL.HIT", "10 60 WAIT 5 COST 0", (False, False, False, False)),
    ("RL.HIT", "10 60 WAIT 5 ALGO GCRA", (True, False, True, False)),
    ("RL.HIT", "10 60 ALGO LEAKY", (True, False, False, False)),
    ("RL.HIT", "10 60 WAIT 5 ALGO LEAKY", (True, False, True, True)),
    ("RL.HIT", "10 60 WAIT 5 COST 0 ALGO LEAKY", (False, False, False, False)),
    ("RL.PEEK", "10 60", (False, False, False, False)),
    ("RL.PEEK", "10 60 COST 0 ALGO LEAKY", (False, False, False, False)),
    ("RL.REFUND", "10 60 1", (False, True, False, False)),
    ("RL.REFUND", "10 60 1 ALGO LEAKY", (False, True, False, False)),
    ("RL.BLOCK", "60 ALGO LEAKY", (False, True, False, False)),
    ("CL.THROTTLE", "15 30 60", (True, False, False, False)),
    ("RL.THROTTLE", "15 30 60 0", (False, False, False, False)),
]


@pytest.mark.parametrize(("name", "text", "flags"), FLAGS)
def test_flags_of_a_rule(name: str, text: str, flags: tuple[bool, bool, bool, bool]) -> None:
    rule = parse(text, name)
    assert (rule.takes, rule.frees, rule.waits, rule.shapes) == flags


# -- cached rules ----------------------------------------------------------------------------------


def test_rule_is_cached_by_its_bytes(grammar: Grammar) -> None:
    assert grammar.known(b"w") is None
    rule = grammar.rule(b"w", b"RL.HIT", [b"k", b"10", b"60"])
    assert grammar.known(b"w") is rule
    assert grammar.known(b"W") is None
    other = grammar.rule(b"W", b"RL.HIT", [b"k", b"10"])
    assert (grammar.known(b"w"), grammar.known(b"W")) == (rule, other)  # also an invalid one


@pytest.mark.heavy
def test_cached_rules_are_bounded(grammar: Grammar) -> None:
    for number in range(3 * g.RULES_KEPT):
        grammar.rule(b"%d" % number, b"RL.HIT", [b"k", b"10", b"60"])
        if number % 2048 > 1:
            continue
        kept = sum(grammar.known(b"%d" % at) is not None for at in range(number + 1))
        assert kept <= g.RULES_KEPT
    assert grammar.known(b"%d" % (3 * g.RULES_KEPT - 1)) is not None


def test_long_commands_are_not_cached(grammar: Grammar) -> None:
    for size, kept in [(g.RULE_BYTES, True), (g.RULE_BYTES + 1, False), (60000, False)]:
        written = b"x" * size
        rule = grammar.rule(written, b"RL.HIT", [b"k", b"10", b"60", written])
        assert rule.error == f"-ERR {near('x' * 32 + '...')}\r\n".encode()
        assert (grammar.known(written) is rule) == kept


# -- policies --------------------------------------------------------------------------------------

TABLE = {
    "login": ("5 60 PENALTY 300 STRICT GAP 2 AND 20 3600", False),
    "quick": ("5 1000 MS ALGO GCRA BURST 9 COST 3 WAIT 50", False),
    "even": ("9 60 ALGO LEAKY WAIT 5", False),
    "trial": ("5 60 ALGO COUNTER WAIT 5", True),
}


@pytest.fixture
def named() -> Grammar:
    """A grammar with the policies of TABLE."""
    made = Grammar(SCRIPTS)
    made.use(
        {
            name.encode(): g.Policy(name.encode(), text.encode(), shadow)
            for name, (text, shadow) in TABLE.items()
        }
    )
    return made


def parsed(grammar: Grammar, text: str) -> Rule:
    name, *args = text.encode().split()
    return grammar.rule(text.encode(), name, args)


# A command with POLICY, and the same one written out.
WRITTEN_OUT = [
    ("RL.HIT k POLICY login", "RL.HIT k 5 60 PENALTY 300 STRICT GAP 2 AND 20 3600"),
    ("RL.HIT k policy login cost 2", "RL.HIT k 5 60 PENALTY 300 STRICT GAP 2 AND 20 3600 COST 2"),
    ("RL.HIT k POLICY login COST 0", "RL.HIT k 5 60 PENALTY 300 STRICT GAP 2 AND 20 3600 COST 0"),
    ("RL.PEEK k POLICY login", "RL.PEEK k 5 60 GAP 2 AND 20 3600"),
    ("RL.PEEK k POLICY login COST 9", "RL.PEEK k 5 60 GAP 2 AND 20 3600 COST 9"),
    ("RL.REFUND k POLICY login 7", "RL.REFUND k 5 60 7 AND 20 3600"),
    ("RL.HIT k POLICY quick", "RL.HIT k 5 1000 MS ALGO GCRA BURST 9 COST 3 WAIT 50"),
    ("RL.HIT k POLICY quick WAIT 7", "RL.HIT k 5 1000 MS ALGO GCRA BURST 9 COST 3 WAIT 7"),
    ("RL.HIT k POLICY quick WAIT 7 COST 1", "RL.HIT k 5 1000 MS ALGO GCRA BURST 9 COST 1 WAIT 7"),
    ("RL.PEEK k POLICY quick", "RL.PEEK k 5 1000 MS ALGO GCRA BURST 9 COST 3"),
    ("RL.REFUND k POLICY quick 1", "RL.REFUND k 5 1000 1 MS ALGO GCRA BURST 9"),
    ("RL.HIT k POLICY even", "RL.HIT k 9 60 ALGO LEAKY WAIT 5"),
    ("RL.HIT k POLICY even WAIT 0.5", "RL.HIT k 9 60 ALGO LEAKY WAIT 0.5"),
    ("RL.HIT k POLICY trial WAIT 9", "RL.HIT k 5 60 ALGO COUNTER"),  # it never waits
    ("RL.PEEK k POLICY trial", "RL.PEEK k 5 60 ALGO COUNTER"),
]


@pytest.mark.parametrize(("named_rule", "written_out"), WRITTEN_OUT)
def test_a_policy_is_the_written_out_rule(
    named: Grammar, named_rule: str, written_out: str
) -> None:
    one, other = parsed(named, named_rule), parsed(named, written_out)
    assert not one.error
    assert not other.error
    fields = [name for name in dir(one) if not name.startswith("_")]
    fields = [name for name in fields if not callable(getattr(one, name))]
    assert {"tail", "denies", "unit_us"} <= set(fields)
    for field in set(fields) - {"limiter", "row"}:
        assert getattr(one, field) == getattr(other, field), field
    for variant in (Rule.peek, Rule.attempt, Rule.in_microseconds) if one.waits else (Rule.peek,):
        assert variant(one).tail == variant(other).tail
    assert one.limiter is not None
    assert other.limiter is not None
    assert one.limiter.wait_us == other.limiter.wait_us


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("RL.HIT k POLICY login", oc.ROWS[b"LOG"]),
        ("RL.HIT k POLICY trial", oc.ROWS[b"COUNTER"] + oc.WIDTH),
        ("RL.HIT k POLICY login COST 0", oc.other(oc.PEEK)),
        ("RL.HIT k POLICY trial COST 0", oc.SHADOW_PEEK),
        ("RL.PEEK k POLICY trial", oc.other(oc.PEEK)),
        ("RL.REFUND k POLICY trial 1", oc.other(oc.REFUND)),
    ],
)
def test_the_row_of_a_policy(named: Grammar, text: str, row: int) -> None:
    assert parsed(named, text).row == row


BLOCKS_BY_POLICY = [
    ("60 POLICY login", "LOG", "5|60000000|1000000|1|60000000|2000000 0 20 3600000000"),
    ("0 policy trial", "COUNTER", "5|60000000|1000000|1|0"),
    # MS beside POLICY is the unit of t; the times of the reply follow the policy.
    ("60 MS POLICY even", "LEAKY", "9|6666666666|1000000|1|60000"),
    ("60 POLICY quick", "GCRA", "9|200000000|1000|3|60000000"),
]


@pytest.mark.parametrize(("text", "algorithm", "words"), BLOCKS_BY_POLICY)
def test_a_block_by_a_policy_peeks_by_its_rule(
    named: Grammar, text: str, algorithm: str, words: str
) -> None:
    rule = parsed(named, f"RL.BLOCK k {text}")
    assert not rule.error
    assert joined_argv(rule) == words
    assert rule.script is SCRIPTS[scripts.blocking(ALGORITHMS[algorithm.encode()].script)]
    assert rule.frees
    assert not rule.takes
    assert rule.limit == 0
    assert rule.row == oc.other(oc.BLOCK)


WRONG_POLICY = [
    ("RL.HIT k POLICY", ARITY),
    ("RL.PEEK k POLICY", ARITY.replace("hit", "peek")),
    ("RL.REFUND k POLICY login", ARITY.replace("hit", "refund")),
    ("RL.HIT k POLICY nope", "no such policy 'nope'"),
    ("RL.HIT k POLICY LOGIN", "no such policy 'LOGIN'"),
    ("RL.HIT k POLICY nope GAP 5", "no such policy 'nope'"),
    ("RL.HIT k POLICY login GAP 5", "POLICY can't be combined with GAP"),
    ("RL.HIT k POLICY login strict", "POLICY can't be combined with STRICT"),
    ("RL.HIT k POLICY login COST 2 ms", "POLICY can't be combined with MS"),
    ("RL.HIT k POLICY login AND POLICY quick", "POLICY can't be combined with AND"),
    ("RL.HIT k POLICY login POLICY quick", near("POLICY")),
    ("RL.HIT k POLICY login 5 60", near("5")),
    ("RL.HIT k POLICY login COST 1 COST 2", near("COST")),
    ("RL.HIT k POLICY login COST", near("COST")),
    ("RL.HIT k POLICY login COST 100001", COST),
    ("RL.HIT k POLICY quick WAIT 0.5", WAIT_MS),
    ("RL.HIT k POLICY login WAIT 3601", WAIT),
    ("RL.HIT k 5 60 POLICY login", "POLICY can't be combined with max"),
    ("RL.HIT k 5 60 GAP 1 POLICY login", "POLICY can't be combined with max"),
    ("RL.HIT k 5 60 AND POLICY login", MAX),
    ("RL.HIT k COST 2 POLICY login", MAX),
    ("RL.PEEK k POLICY login WAIT 5", near("WAIT")),
    ("RL.PEEK k POLICY login GAP 5", "POLICY can't be combined with GAP"),
    ("RL.PEEK k POLICY login STRICT", "POLICY can't be combined with STRICT"),
    ("RL.REFUND k POLICY login 1 PENALTY 5", "POLICY can't be combined with PENALTY"),
    ("RL.REFUND k POLICY login 0", GIVEN_BACK),
    ("RL.REFUND k POLICY login COST 1", GIVEN_BACK),
    ("RL.REFUND k POLICY login 1 COST 1", near("COST")),
    ("RL.REFUND k POLICY login 1 BURST 1", "POLICY can't be combined with BURST"),
    ("RL.BLOCK k 60 POLICY nope", "no such policy 'nope'"),
    ("RL.BLOCK k 60 POLICY", near("POLICY")),
    ("RL.BLOCK k 60 POLICY login POLICY even", near("POLICY")),
    ("RL.BLOCK k 60 POLICY login ALGO LOG", "POLICY can't be combined with ALGO"),
    ("RL.BLOCK k 60 ALGO LOG POLICY login", "POLICY can't be combined with ALGO"),
    ("RL.BLOCK k x POLICY nope", BLOCK),
    ("RL.BLOCK k 60 POLICY login COST 2", near("COST")),
]


@pytest.mark.parametrize(("text", "error"), WRONG_POLICY)
def test_a_wrong_use_of_a_policy(named: Grammar, text: str, error: str) -> None:
    assert parsed(named, text).error == f"-ERR {error}\r\n".encode()


def test_new_policies_take_effect_at_once(named: Grammar) -> None:
    text = "RL.HIT k POLICY login"
    before = parsed(named, text)
    assert named.known(text.encode()) is before
    named.use({b"login": g.Policy(b"login", b"7 60", False)})
    assert named.known(text.encode()) is None
    after = parsed(named, text)
    assert (before.limit, after.limit) == (5, 7)
    assert parsed(named, "RL.HIT k POLICY trial").error


@pytest.mark.parametrize(
    ("args", "error"),
    [
        ([], ""),
        ([b"RELOAD"], "ERR wrong number of arguments for 'rl.policies' command"),
        ([b"x"], "ERR wrong number of arguments for 'rl.policies' command"),
        ([b"RELOAD", b"x"], "ERR wrong number of arguments for 'rl.policies' command"),
    ],
)
def test_a_wrong_policies_command(args: list[bytes], error: str) -> None:
    expected = f"-{error}\r\n".encode() if error else b""
    assert g.wrong_report(b"RL.POLICIES", args) == expected


# -- the other parts -------------------------------------------------------------------------------


def test_wrong_arity_names_the_command_in_small_letters() -> None:
    assert g.wrong_arity(b"RL.RESET") == "ERR wrong number of arguments for 'rl.reset' command"
