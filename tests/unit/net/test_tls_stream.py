"""One TLS connection in memory: the work of one tick, and reading that the protocol pauses."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import cast

from rlproxy.net.tls_stream import PIECE, TlsStream

from tests.tlsparts import Certificates

SENT = b"PING\r\n" * 500  # each byte in a record: 69 KB


class Plain:
    """The plain transport below: what was written to it, and whether it is read."""

    def __init__(self) -> None:
        self.written = b""
        self.reading = True
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self.closed = True


class App(asyncio.Protocol):
    """The protocol above: what it got."""

    def __init__(self) -> None:
        self.got = b""

    def data_received(self, data: bytes) -> None:
        self.got += data


class Dry(ssl.SSLObject):
    """A connection that carries key updates alone: it takes input, and has no content."""

    def __init__(self, incoming: ssl.MemoryBIO) -> None:
        self._incoming = incoming
        self.taken = 0  # bytes

    def read(self, *_: object) -> bytes:
        self.taken += self._incoming.pending
        self._incoming.read()
        raise ssl.SSLWantReadError

    def pending(self) -> int:
        return 0


class Bench:
    """A server's stream after the handshake with a client, of which nothing is read yet.

    early: what the client sends together with the end of the handshake, each byte in a record.
    """

    def __init__(self, directory: Path, early: bytes = b"") -> None:
        certificates = Certificates(directory)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.cert, certificates.key)
        self.app = App()
        self.plain = Plain()
        self.stream = TlsStream(context, lambda _: self.app)
        self.stream.connection_made(cast("asyncio.Transport", self.plain))
        self._to_client, self._to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = certificates.client().wrap_bio(
            self._to_client, self._to_server, server_hostname="localhost"
        )
        for _ in range(2):
            try:
                self.client.do_handshake()
            except ssl.SSLWantReadError:
                self.stream.data_received(self._to_server.read())
                self._to_client.write(self.plain.written)
        end = self._to_server.read()
        self.stream.data_received(end + self.records(early))

    def records(self, data: bytes) -> bytes:
        """Return `data` with each byte in a record."""
        for at in range(len(data)):
            self.client.write(data[at : at + 1])
        return self._to_server.read()


async def tick() -> None:
    await asyncio.sleep(0)


async def test_many_records_take_many_ticks(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.stream.data_received(bench.records(SENT))
    got = [len(bench.app.got)]
    while not bench.plain.reading:
        await tick()
        got.append(len(bench.app.got))
    assert got == [1424, 2849, 3000]  # two pieces of input are above MAX_OVERHEAD
    assert bench.app.got == SENT
    bench.stream.data_received(bench.records(b"more"))
    assert bench.app.got == SENT + b"more"
    assert bench.plain.reading


async def test_records_right_behind_the_handshake_take_many_ticks(tmp_path: Path) -> None:
    bench = Bench(tmp_path, SENT)
    got = [len(bench.app.got)]
    while not bench.plain.reading:
        await tick()
        got.append(len(bench.app.got))
    assert len(got) == 2
    assert got[0] < 2200  # three pieces of input, the first of which has the end of the handshake
    assert bench.app.got == SENT


async def test_input_without_content_takes_many_ticks(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    stream = bench.stream
    stream._tls = dry = Dry(stream._incoming)
    stream.data_received(b"x" * 5 * PIECE)
    taken = [dry.taken]
    while not bench.plain.reading:
        await tick()
        taken.append(dry.taken)
    assert taken == [2 * PIECE, 4 * PIECE, 5 * PIECE]


async def test_paused_protocol_gets_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.stream.data_received(bench.records(SENT))
    bench.stream.pause_reading()
    got = bench.app.got
    await tick()
    await tick()
    assert bench.app.got == got != SENT
    bench.stream.resume_reading()
    assert not bench.plain.reading
    while not bench.plain.reading:
        await tick()
    assert bench.app.got == SENT


async def test_closed_connection_decrypts_nothing_more(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.stream.data_received(bench.records(SENT))
    got = bench.app.got
    bench.stream.close()
    await tick()
    assert bench.app.got == got != SENT
    assert bench.plain.closed
    assert not bench.plain.reading
