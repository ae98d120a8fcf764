"""Ways to cut a byte stream into pieces."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st

cut_places = st.lists(st.integers(0, 2000), max_size=30)


def single_bytes(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


def sliced(data: bytes, places: list[int]) -> list[bytes]:
    marks = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in pairwise(marks)]
