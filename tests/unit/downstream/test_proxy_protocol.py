"""PROXY headers of both versions, whole and in pieces, and invalid ones."""

from __future__ import annotations

import ipaddress
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlproxy.config.urls import Address
from rlproxy.downstream.proxy_protocol import MAX_V1, MAX_V2, HeaderError, parse

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"


def version_2(command: int, family: int, body: bytes) -> bytes:
    return SIGNATURE + bytes([0x20 | command, family]) + struct.pack(">H", len(body)) + body


INET = bytes([10, 0, 0, 9, 10, 0, 0, 1]) + struct.pack(">HH", 40000, 6380)
INET6 = ipaddress.ip_address("2001:db8::9").packed * 2 + struct.pack(">HH", 40000, 6380)
LONGEST = b"PROXY UNKNOWN " + b"f" * (MAX_V1 - 16) + b"\r\n"
GOOD = [
    (b"PROXY TCP4 10.0.0.9 10.0.0.1 40000 6380\r\n", Address("10.0.0.9", 40000)),
    (
        b"PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n",
        Address("255.255.255.255", 65535),
    ),
    (b"PROXY TCP6 2001:db8::9 ::1 0 1\r\n", Address("2001:db8::9", 0)),
    (b"PROXY UNKNOWN\r\n", None),
    (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", None),
    (LONGEST, None),
    (version_2(1, 0x11, INET), Address("10.0.0.9", 40000)),
    (version_2(1, 0x12, INET), Address("10.0.0.9", 40000)),
    (version_2(1, 0x21, INET6), Address("2001:db8::9", 40000)),
    (version_2(1, 0x11, INET + b"\x04\x00\x02xx"), Address("10.0.0.9", 40000)),
    (version_2(1, 0x31, bytes(216)), None),
    (version_2(1, 0x00, b""), None),
    (version_2(0, 0x00, b""), None),
    (version_2(0, 0x11, INET), None),
    (version_2(0, 0xFF, b"anything"), None),
    (version_2(1, 0x11, INET + bytes(MAX_V2 - 16 - len(INET))), Address("10.0.0.9", 40000)),
]
BAD = [
    b"PING\r\n",
    b"*1\r\n$4\r\nPING\r\n",
    b"\x16\x03\x01",
    b"proxy TCP4",
    b"PROXY\r\n",
    b"PROXY TCP4\r\n",
    b"PROXY TCP5 1.1.1.1 1.1.1.1 1 1\r\n",
    b"PROXY TCP4 1.1.1.1 1.1.1.1 1\r\n",
    b"PROXY TCP4 1.1.1.1 1.1.1.1 1 1 1\r\n",
    b"PROXY TCP4  1.1.1.1 1.1.1.1 1 1\r\n",
    b"PROXY TCP4 1.1.1.1 1.1.1.256 1 1\r\n",
    b"PROXY TCP4 ::1 ::1 1 1\r\n",
    b"PROXY TCP6 1.1.1.1 1.1.1.1 1 1\r\n",
    b"PROXY TCP4 1.1.1.1 1.1.1.1 65536 1\r\n",
    b"PROXY TCP4 1.1.1.1 1.1.1.1 -1 1\r\n",
    b"PROXY TCP4 1.1.1.1 1.1.1.1 1 000001\r\n",
    b"PROXY TCP4 \xff.1.1.1 1.1.1.1 1 1\r\n",
    b"PROXY TCP4 1.1.1.1 1.1.1.1 1 1\n",
    b"PROXY UNKNOWN " + b"f" * MAX_V1,
    SIGNATURE + b"\x11\x11\x00\x0c",
    SIGNATURE + b"\x22\x11\x00\x0c",
    version_2(1, 0x41, INET),
    version_2(1, 0x13, INET),
    version_2(1, 0x11, INET[:-1]),
    version_2(1, 0x21, INET),
    SIGNATURE + b"\x21\x11\xff\xff",
]


@pytest.mark.parametrize(("header", "peer"), GOOD)
def test_a_header_byte_by_byte(header: bytes, peer: Address | None) -> None:
    for size in range(len(header)):
        assert parse(header[:size]) is None
    for behind in (b"", b"*1\r\n$4\r\nPING\r\n", b"\x16\x03\x01", b"\r\n"):
        assert parse(header + behind) == (len(header), peer)


@pytest.mark.parametrize("data", BAD)
def test_what_is_none(data: bytes) -> None:
    with pytest.raises(HeaderError):
        parse(data)


@given(
    st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)),
    st.integers(0, 65535),
    st.binary(max_size=300),
    st.booleans(),
)
def test_every_address(
    host: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int, extra: bytes, text: bool
) -> None:
    if text:
        header = f"PROXY TCP{host.version} {host} {host} {port} 1\r\n".encode()
    else:
        ports = struct.pack(">HH", port, 1)
        family = 0x11 if host.version == 4 else 0x21
        header = version_2(1, family, host.packed * 2 + ports + extra)
    assert parse(header) == (len(header), Address(str(host), port))
