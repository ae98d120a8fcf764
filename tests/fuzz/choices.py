"""Bytes as decisions: a fuzzer's input is consumed from the front, and zeros follow its end."""

from __future__ import annotations

from itertools import pairwise


class Choices:
    """Small numbers and strings out of `data`; zeros once it is used up."""

    __slots__ = ("data", "pos")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.pos = 0

    def more(self) -> bool:
        """Whether any byte is left."""
        return self.pos < len(self.data)

    def below(self, limit: int) -> int:
        """A number from 0 to limit - 1; limit at most 65536."""
        value = self._byte()
        if limit > 256:
            value = 256 * value + self._byte()
        return value % limit

    def _byte(self) -> int:
        pos = self.pos
        if pos >= len(self.data):
            return 0
        self.pos = pos + 1
        return self.data[pos]

    def take(self, size: int) -> bytes:
        """The next `size` bytes, or fewer at the end."""
        out = self.data[self.pos : self.pos + size]
        self.pos += size
        return out

    def rest(self) -> bytes:
        """All remaining bytes."""
        return self.take(len(self.data))


def pieces(data: bytes, places: list[int]) -> list[bytes]:
    """`data` cut at `places` (modulo its length + 1); no piece is empty."""
    marks = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[one:two] for one, two in pairwise(marks)]
