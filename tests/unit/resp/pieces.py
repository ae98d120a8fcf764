"""Ways to cut a byte stream into pieces."""

from __future__ import annotations


def single_bytes(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]
