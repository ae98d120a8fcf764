"""The parser of PROXY headers, versions 1 and 2: bytes to the client's address. No I/O."""

from __future__ import annotations

import ipaddress
from typing import Final

from rlproxy.config.urls import Address

MAX_V1: Final = 107  # bytes with CRLF: the maximum of the protocol
MAX_V2: Final = 4096  # bytes: addresses, and a load balancer's additions (names, a certificate)

_V1: Final = b"PROXY "
_V2: Final = b"\r\n\r\n\x00\r\nQUIT\n"
_V2_FIXED: Final = 16
_TCP: Final = {b"TCP4": ipaddress.IPv4Address, b"TCP6": ipaddress.IPv6Address}
_IPV4: Final = 1
_IPV6: Final = 2
_UNIX: Final = 3


class HeaderError(ValueError):
    """The bytes are no header of the PROXY protocol; the message is the reason."""


Header = tuple[int, Address | None]  # length in bytes, the client's address


def parse(data: bytes) -> Header | None:
    """Parse the header at the beginning of `data`.

    Its address is None if that of the connection applies: in a health check by the load balancer
    itself, or for an unknown kind of address.
    Returns None if the header is valid as far as it goes, but not complete yet.
    Raises HeaderError.
    """
    if data[: len(_V1)] == _V1[: len(data)]:
        return _version_1(data)
    if data[: len(_V2)] == _V2[: len(data)]:
        return _version_2(data)
    raise HeaderError("no PROXY header")


def _version_1(data: bytes) -> Header | None:
    end = data.find(b"\r\n", 0, MAX_V1)
    if end < 0:
        if len(data) >= MAX_V1:
            raise HeaderError("a PROXY header without an end")
        if b"\n" in data:
            raise HeaderError("a PROXY header whose line ends without a CR")
        return None
    words = data[len(_V1) : end].split(b" ")
    if words[0] == b"UNKNOWN":
        return end + 2, None
    if words[0] not in _TCP or len(words) != 5:
        raise HeaderError("a PROXY header with a protocol other than TCP4, TCP6 or UNKNOWN")
    kind = _TCP[words[0]]
    try:
        source, _ = (kind(word.decode("ascii")) for word in words[1:3])
    except ValueError:  # includes UnicodeDecodeError
        raise HeaderError("a PROXY header with an address that is none") from None
    for word in words[3:]:
        if not (word.isdigit() and len(word) <= 5 and int(word) <= 65535):
            raise HeaderError("a PROXY header with a port that is none")
    return end + 2, Address(str(source), int(words[3]))


def _version_2(data: bytes) -> Header | None:
    if len(data) > 12 and data[12] not in (0x20, 0x21):
        raise HeaderError("a PROXY header of another version")
    if len(data) < _V2_FIXED:
        return None
    length = _V2_FIXED + int.from_bytes(data[14:16], "big")
    if length > MAX_V2:
        raise HeaderError(f"a PROXY header of {length} bytes")
    if len(data) < length:
        return None
    if data[12] == 0x20:
        return length, None
    family, transport = data[13] >> 4, data[13] & 15
    if family > _UNIX or transport > 2:
        raise HeaderError("a PROXY header with an unknown kind of address")
    if family not in (_IPV4, _IPV6):
        return length, None
    size = 4 if family == _IPV4 else 16
    if length < _V2_FIXED + 2 * size + 4:
        raise HeaderError("a PROXY header too short for its addresses")
    packed = data[_V2_FIXED : _V2_FIXED + size]
    port = int.from_bytes(data[_V2_FIXED + 2 * size :][:2], "big")
    return length, Address(str(ipaddress.ip_address(packed)), port)
