"""The fuzz targets: corpus and mutated inputs pass, and each target can fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import __main__ as command
from tests.fuzz import grammar, mutate, reference, session
from tests.fuzz.model import Context, Model
from tests.fuzz.mutate import Target
from tests.fuzz.targets import TARGETS

# Mutated inputs per target: some seconds in total.
INPUTS = {"requests": 5000, "replies": 5000, "inline": 5000, "grammar": 2000, "session": 700}


@pytest.mark.parametrize("name", TARGETS)
def test_corpus_and_mutated_inputs_pass(name: str) -> None:
    seeds = mutate.corpus(name)
    assert seeds
    ran = mutate.run(TARGETS[name], seeds, 1, max(INPUTS[name], len(seeds)), 0)
    assert ran.inputs >= INPUTS[name]
    assert [(crash.data.hex(), repr(crash.error)) for crash in ran.crashes] == []


# -- each of them can fail -------------------------------------------------------------------------


def fails(target: Target, seeds: list[bytes], inputs: int = 3000) -> bool:
    return bool(mutate.run(target, seeds, 1, inputs, 0, most_crashes=1).crashes)


def test_requests_target_detects_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    real = reference.integer
    monkeypatch.setattr(reference, "integer", lambda text: 1 if text == b"2" else real(text))
    with pytest.raises(AssertionError):
        TARGETS["requests"](b"\0*2\r\n$4\r\nECHO\r\n$1\r\na\r\n")


def test_replies_target_detects_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    real = reference.frame
    monkeypatch.setattr(reference, "frame", lambda data, pos: real(data, pos) - (pos > 0))
    with pytest.raises(AssertionError):
        TARGETS["replies"](b"\0+OK\r\n+OK\r\n")


def test_inline_target_detects_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(reference._ESCAPES, b"n", b"N")
    with pytest.raises(AssertionError):
        TARGETS["inline"](b'"\\n"\n')


def test_grammar_target_detects_a_wrong_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "MAX_US", 1)
    assert fails(TARGETS["grammar"], mutate.corpus("grammar"))


class _WrongModel(Model):
    """A server whose connection behaves differently from the reference's."""

    how = ""

    def ordinary(
        self, name: bytes, args: tuple[bytes, ...], context: Context, protocol: int
    ) -> bytes:
        reply = super().ordinary(name, args, context, protocol)
        if self.native:
            return reply
        if self.how == "reply":
            return b"+other\r\n"
        if self.how == "twice":
            super().ordinary(name, args, context, protocol)
            super().ordinary(b"GET", (b"another",), context, protocol)
        if self.how == "context" and self.log:
            self.log[-1] = (*self.log[-1][:-1], (None, None, 9))
        return reply

    def hit(
        self,
        key: bytes,
        argv: tuple[bytes, ...],
        context: Context,
        attempt: bool,
        admits: bool = False,
    ) -> bytes:
        admits = admits and (self.native or self.how != "shadow")
        reply = super().hit(key, argv, context, attempt, admits)
        if not self.native and self.how == "hit":
            super().hit(key, argv, context, attempt)
            super().hit(key + b"x", argv, context, attempt)
        return reply


@pytest.mark.parametrize("how", ["reply", "twice", "context", "hit", "shadow"])
def test_session_target_detects_a_difference(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "Model", _WrongModel)
    monkeypatch.setattr(_WrongModel, "how", how)
    assert fails(TARGETS["session"], mutate.corpus("session"), 400)


def test_session_target_detects_swapped_lane_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    def swapped(self: session.Walk, lane: session.FakeLane, calls: int) -> None:
        self.run(lane, calls)
        done, lane.written = lane.written[:calls], lane.written[calls:]
        answers = [reply for _, reply in done][::-1]
        for (call, _), reply in zip(done, answers, strict=True):
            self.session.lane_answered(call, reply)
        self.session.resume()
        self.move()

    monkeypatch.setattr(session.Walk, "lane_answers", swapped)
    assert fails(TARGETS["session"], mutate.corpus("session"))


# -- the command -----------------------------------------------------------------------------------


def test_failing_input_is_minimised_saved_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def target(data: bytes) -> None:
        assert b"\r\n" not in data, "found"

    monkeypatch.setitem(TARGETS, "inline", target)
    arguments = ["--target", "inline", "--inputs", "5000", "--seed", "1", "--found", str(tmp_path)]
    assert command.main(arguments) == 1
    out = capsys.readouterr().out
    saved = sorted(tmp_path.iterdir())
    assert saved
    assert {path.read_bytes() for path in saved} == {b"\r\n"}
    assert f"replay inline {saved[0]}" in out
    assert command.main(["replay", "inline", str(saved[0])]) == 1
    monkeypatch.undo()
    assert command.main(["replay", "inline", str(saved[0])]) == 0
