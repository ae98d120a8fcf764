"""grammar: the contract's table of arguments and errors, one row a case."""

from __future__ import annotations

import pytest

from proxy import grammar as g
from proxy import replies, scripts
from proxy.grammar import Grammar, GrammarError, Rule

SCRIPTS = scripts.load()
LOG = SCRIPTS["sliding_window_log"]

INTEGER = b"-ERR value is not an integer or out of range\r\n"
WINDOW = b"-ERR window is not a valid number of seconds\r\n"
SYNTAX = b"-ERR syntax error\r\n"
ARITY = b"-ERR wrong number of arguments for 'rl.hit' command\r\n"


@pytest.fixture
def grammar() -> Grammar:
    return Grammar(SCRIPTS)


def parse(text: str, name: bytes = b"RL.HIT") -> Rule:
    """The rule of `name key <text>`."""
    words = text.encode().split(b" ") if text else []
    return Grammar(SCRIPTS).rule(text.encode(), name, [b"key", *words])


def argv(rule: Rule) -> list[bytes]:
    """The words of a rule's ARGV."""
    assert rule.error == b""
    return rule.tail.split(b"\r\n")[1::2]


# arguments behind the key -> ARGV: max, window in microseconds, unit[, cost]
RIGHT = [
    ("10 60", [b"10", b"60000000", b"1000000"]),
    # max
    ("1 60", [b"1", b"60000000", b"1000000"]),
    ("1000000 60", [b"1000000", b"60000000", b"1000000"]),
    # window in seconds, decimals to microseconds
    ("10 0.5", [b"10", b"500000", b"1000000"]),
    ("10 1.000001", [b"10", b"1000001", b"1000000"]),
    ("10 1.5", [b"10", b"1500000", b"1000000"]),
    ("10 1.05", [b"10", b"1050000", b"1000000"]),
    ("10 0.001", [b"10", b"1000", b"1000000"]),
    ("10 0.001001", [b"10", b"1001", b"1000000"]),
    ("10 315360000", [b"10", b"315360000000000", b"1000000"]),
    ("10 315360000.000000", [b"10", b"315360000000000", b"1000000"]),
    ("10 007", [b"10", b"7000000", b"1000000"]),
    # MS, wherever it stands
    ("10 60000 MS", [b"10", b"60000000", b"1000"]),
    ("10 1 MS", [b"10", b"1000", b"1000"]),
    ("10 315360000000 MS", [b"10", b"315360000000000", b"1000"]),
    ("10 5 ms COST 2", [b"10", b"5000", b"1000", b"2"]),
    ("10 5 COST 2 Ms", [b"10", b"5000", b"1000", b"2"]),
    ("10 5 ALGO LOG MS COST 2", [b"10", b"5000", b"1000", b"2"]),
    # COST
    ("10 60 COST 1", [b"10", b"60000000", b"1000000"]),
    ("10 60 COST 0", [b"10", b"60000000", b"1000000", b"0"]),
    ("10 60 COST 11", [b"10", b"60000000", b"1000000", b"11"]),
    ("10 60 COST 100000", [b"10", b"60000000", b"1000000", b"100000"]),
    # case and order
    ("10 60 cost 3 algo log", [b"10", b"60000000", b"1000000", b"3"]),
    ("10 60 aLGo LoG CoSt 3", [b"10", b"60000000", b"1000000", b"3"]),
]


@pytest.mark.parametrize(("text", "words"), RIGHT)
def test_right(text: str, words: list[bytes]) -> None:
    rule = parse(text)
    assert argv(rule) == words
    assert rule.script is LOG
    assert rule.limit == int(words[0])


@pytest.mark.parametrize(("text", "words"), RIGHT)
def test_peek_reads_the_same(text: str, words: list[bytes]) -> None:
    assert argv(parse(text, b"RL.PEEK")) == [*(words + [b"1"])[:4], b"peek"]


WRONG = [
    # the number of arguments
    ("", ARITY),
    ("10", ARITY),
    ("x", ARITY),
    # max
    ("0 60", INTEGER),
    ("-1 60", INTEGER),
    ("+1 60", INTEGER),
    ("01 60", INTEGER),
    ("1.0 60", INTEGER),
    ("1e3 60", INTEGER),
    ("ten 60", INTEGER),
    ("1000000001 60", INTEGER),
    ("99999999999999999999999 60", INTEGER),
    ("\u0661 60", INTEGER),
    ("0x10 60", INTEGER),
    ("1\n 60", INTEGER),
    # window, seconds
    ("10 0", WINDOW),
    ("10 0.0", WINDOW),
    ("10 0.0009", WINDOW),
    ("10 0.000999", WINDOW),
    ("10 .5", WINDOW),
    ("10 1.", WINDOW),
    ("10 1e3", WINDOW),
    ("10 +5", WINDOW),
    ("10 -5", WINDOW),
    ("10 1.0000001", WINDOW),
    ("10 1.2.3", WINDOW),
    ("10 1,5", WINDOW),
    ("10 inf", WINDOW),
    ("10 nan", WINDOW),
    ("10 60s", WINDOW),
    ("10 60\n", WINDOW),
    ("10 315360000.000001", WINDOW),
    ("10 315360001", WINDOW),
    ("10 99999999999999999999999", WINDOW),
    ("10  60", WINDOW),  # an empty word
    # window, milliseconds
    ("10 0 MS", INTEGER),
    ("10 0.5 MS", INTEGER),
    ("10 05 MS", INTEGER),
    ("10 315360000001 MS", INTEGER),
    ("10 x COST 2 ms", INTEGER),
    # COST
    ("10 60 COST -1", INTEGER),
    ("10 60 COST x", INTEGER),
    ("10 60 COST 01", INTEGER),
    ("10 60 COST 1.5", INTEGER),
    ("10 60 COST 1000000001", INTEGER),
    # words
    ("10 60 FOO", SYNTAX),
    ("10 60 60", SYNTAX),
    ("10 60 COST", SYNTAX),
    ("10 60 ALGO", SYNTAX),
    ("10 60 MS MS", SYNTAX),
    ("10 60 COST 1 COST 1", SYNTAX),
    ("10 60 COST 1 cost 2", SYNTAX),
    ("10 60 ALGO LOG ALGO LOG", SYNTAX),
    ("10 60 ALGO NOPE", SYNTAX),
    ("10 60 COST 1 2", SYNTAX),
    ("10 60 ", SYNTAX),
    # the algorithm's own bounds
    ("1000001 60", INTEGER),
    ("1000000000 60", INTEGER),
    ("10 60 COST 100001", INTEGER),
    ("10 60 COST 1000000000", INTEGER),
    # what is checked first: left to right, then the algorithm
    ("0 .5", INTEGER),
    ("0 .5 FOO", INTEGER),
    ("10 .5 FOO", WINDOW),
    ("10 .5 COST x", WINDOW),
    ("10 60 FOO COST x", SYNTAX),
    ("10 60 COST x FOO", INTEGER),
    ("1000001 60 FOO", SYNTAX),
    ("1000001 .5", WINDOW),
    # a value is never taken for a word
    ("10 .5 COST MS", WINDOW),
    ("10 60 COST MS", INTEGER),
    ("10 0.5 ALGO MS", SYNTAX),
]


@pytest.mark.parametrize(("text", "error"), WRONG)
def test_wrong(text: str, error: bytes) -> None:
    rule = parse(text)
    assert rule.error == error
    assert (rule.eval, rule.evalsha) == (b"", b"")


@pytest.mark.parametrize(("text", "error"), WRONG)
def test_peek_is_wrong_likewise(text: str, error: bytes) -> None:
    assert parse(text, b"RL.PEEK").error == error.replace(b"rl.hit", b"rl.peek")


@pytest.mark.parametrize("word", ["WAIT 1", "STRICT", "PENALTY 1"])
def test_options_that_peek_lacks(word: str) -> None:
    assert parse("10 60 " + word, b"RL.PEEK").error == SYNTAX


def test_a_word_of_bytes_that_are_no_text() -> None:
    made = Grammar(SCRIPTS)
    assert made.rule(b"1", b"RL.HIT", [b"k", b"10", b"60", b"\xff\xfe"]).error == SYNTAX
    assert made.rule(b"2", b"RL.HIT", [b"k", b"\xff", b"60"]).error == INTEGER
    assert made.rule(b"3", b"RL.HIT", [b"k", b"10", b"\xff"]).error == WINDOW


def test_a_call_is_one_request_with_the_key_between_head_and_tail() -> None:
    rule = parse("10 60 COST 3")
    key = replies.bulk(b"a\r\nb")
    words = [b"10", b"60000000", b"1000000", b"3"]
    assert rule.evalsha + key + rule.tail == replies.bulks(
        b"EVALSHA", LOG.sha, b"1", b"a\r\nb", *words
    )
    assert rule.eval + key + rule.tail == replies.bulks(
        b"EVAL", LOG.source, b"1", b"a\r\nb", *words
    )


def test_a_rule_is_remembered_by_its_bytes(grammar: Grammar) -> None:
    assert grammar.known(b"w") is None
    rule = grammar.rule(b"w", b"RL.HIT", [b"k", b"10", b"60"])
    assert grammar.known(b"w") is rule
    assert grammar.known(b"W") is None


def test_remembered_rules_are_bounded(grammar: Grammar) -> None:
    for number in range(3 * g.RULES_KEPT):
        grammar.rule(b"%d" % number, b"RL.HIT", [b"k", b"10", b"60"])
        if number > g.RULES_KEPT and number % 512:
            continue
        kept = sum(grammar.known(b"%d" % at) is not None for at in range(number + 1))
        assert kept <= g.RULES_KEPT
    assert grammar.known(b"%d" % (3 * g.RULES_KEPT - 1)) is not None


def test_what_is_remembered_is_short(grammar: Grammar) -> None:
    written = b"x" * 60000
    rule = grammar.rule(written, b"RL.HIT", [b"k", b"10", b"60", written])
    assert rule.error == SYNTAX
    assert grammar.known(written) is None


INTEGERS = [
    (b"0", 0),
    (b"7", 7),
    (b"1000", 1000),
    (b"1001", None),
    (b"00", None),
    (b"-0", None),
    (b"", None),
    (b" 1", None),
    (b"1 ", None),
    (b"1_0", None),
    (b"1\0", None),
]


@pytest.mark.parametrize(("word", "value"), INTEGERS)
def test_integer(word: bytes, value: int | None) -> None:
    if value is None:
        with pytest.raises(GrammarError, match="not an integer or out of range"):
            g.integer(word, 0, 1000)
    else:
        assert g.integer(word, 0, 1000) == value


def test_integer_bounds() -> None:
    assert g.integer(b"2", 2, 2) == 2
    for word in (b"1", b"3"):
        with pytest.raises(GrammarError):
            g.integer(word, 2, 2)


def test_seconds_tells_what_is_wrong() -> None:
    assert g.seconds("GAP", b"0", 0, 10) == 0
    assert g.seconds("GAP", b"0.000001", 0, 10) == 1
    assert g.seconds("GAP", b"10", 0, 10) == 10_000_000
    with pytest.raises(GrammarError, match=r"^ERR GAP is not a valid number of seconds$"):
        g.seconds("GAP", b"10.000001", 0, 10)


def test_wrong_arity_names_the_command_in_small_letters() -> None:
    assert g.wrong_arity(b"RL.RESET") == "ERR wrong number of arguments for 'rl.reset' command"


def test_help_names_every_command_and_option() -> None:
    text = "\n".join(g.HELP)
    assert g.HELP[0] == "RL.<subcommand> key [<arg> [value] [opt] ...]. Subcommands are:"
    for name, options in g.OPTIONS.items():
        assert name.decode() in text
        for option in options:
            assert option.decode() in text
    for algorithm in g.ALGORITHMS:
        assert algorithm.decode() in text
    assert "RL.RESET" in text
    assert "RL.HELP" in text


def test_help_is_a_script_of_simple_strings(grammar: Grammar) -> None:
    words = grammar.help_call.split(b"\r\n")
    assert words[2] == b"EVAL"
    assert words[4].count(b"{ok='") == len(g.HELP)
    for line in g.HELP:
        assert line.replace("'", "\\'").encode() in words[4]
        assert "\r" not in line
        assert "\n" not in line
        assert "\\" not in line
    assert words[6] == b"0"


def test_every_algorithm_runs_a_script_that_is_there() -> None:
    for name, algorithm in g.ALGORITHMS.items():
        assert algorithm.name == name == name.upper()
        assert algorithm.script in SCRIPTS
        assert 1 <= algorithm.max_hits <= g.MAX_HITS
        assert 1 <= algorithm.max_cost <= g.MAX_HITS
    assert g.DEFAULT_ALGORITHM in g.ALGORITHMS
