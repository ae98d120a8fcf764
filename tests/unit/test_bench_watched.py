"""bench.watched: a quick run, and failing queries."""

from __future__ import annotations

import pytest

from bench import redis_benchmark, watched
from bench.errors import BenchError
from bench.parts import Part

needs_load = pytest.mark.skipif(
    redis_benchmark.executable() is None, reason="redis-benchmark is not installed"
)


@needs_load
def test_quick_run_is_watched(capsys: pytest.CaptureFixture[str]) -> None:
    assert watched.main(["--requests", "500", "--turns", "1", "--clients", "5"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["/s", "alone", "watched", "ratio", "us", "alone", "watched"]
    assert [row[:14].strip() for row in rows] == [row[0] for row in watched.ROWS]
    for row in rows:
        figures = [float(word.replace(",", "")) for word in row[14:].split()]
        assert len(figures) == 5
        assert min(figures[:3]) > 0


def test_wrong_usage_is_an_error() -> None:
    for words in (["--turns", "0"], ["--engine", "nosuch-1.0"]):
        with pytest.raises(SystemExit) as ended:
            watched.main(words)
        assert ended.value.code == 2


class Silent:
    """A process that has logged nothing."""

    def log(self) -> str:
        return "  listening on  127.0.0.1:1\n"


def test_proxy_without_an_admin_address_is_not_watched() -> None:
    part = Part("watched", 1, Silent(), 0.0)  # type: ignore[arg-type]
    with pytest.raises(BenchError, match="logged no admin address"), watched.watching(part):
        pass
