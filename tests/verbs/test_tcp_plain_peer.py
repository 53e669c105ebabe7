"""Against a plain iWARP peer: what Linux siw, or a network card, would say and hear."""

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.verbs.plain_peer import (
    ENHANCED,
    READ_REQUEST,
    READ_RESPONSE,
    REPLY_KEY,
    REQUEST_KEY,
    SEND,
    SEND_INV,
    SEND_SE,
    WRITE,
    PlainPeer,
)
from tests.verbs.tcp_ends import ESTABLISHED, End, Server, adapters
from urds.verbs.engine.numbers import (
    AccessFlag,
    QPState,
    SendFlag,
    WCFlag,
    WCOpcode,
    WCStatus,
    WROpcode,
)
from urds.verbs.providers.base import ConnectionEventKind

KNOWN_BITS = 0xFC00 & ~0x0400 | 0xFF


@contextmanager
def we_connect(
    *, flags: int = ENHANCED | 2, ird: int = 4, ord_: int = 4
) -> Iterator[tuple[End, PlainPeer]]:
    """Yield an end of ours that connected to the plain peer."""
    with adapters(None) as (adapter,), socket.create_server(("127.0.0.1", 0)) as listener:
        end = End(adapter)
        end.connect(listener.getsockname(), private_data=b"from us")
        peer = PlainPeer.accept(listener)
        heard, data = peer.receive_message(REQUEST_KEY)
        assert heard & KNOWN_BITS == ENHANCED | 2 and data[4:] == b"from us"
        peer.send_message(REPLY_KEY, flags, b"from the peer", ird=ird, ord_=ord_)
        assert end.event(ESTABLISHED).parameters.private_data == b"from the peer"
        with peer.socket:
            yield end, peer


@contextmanager
def peer_connects(*, flags: int = ENHANCED | 2) -> Iterator[tuple[End, PlainPeer]]:
    """Yield an end of ours that the plain peer connected to; three receives wait."""
    with adapters(None) as (adapter,):
        server, end = Server(adapter), End(adapter)
        peer = PlainPeer.connect(server.address)
        peer.send_message(REQUEST_KEY, flags, b"from the peer")
        end.init()
        end.memories = [end.receive(64, wr_id=index) for index in range(3)]
        request = server.request()
        assert request.parameters.private_data == b"from the peer"
        end.accept(request, private_data=b"from us")
        end.event(ESTABLISHED)
        heard, data = peer.receive_message(REPLY_KEY)
        # Not one of the bits that are reserved, or siw's own, comes back.
        assert heard == flags
        assert data.endswith(b"from us")
        with peer.socket:
            yield end, peer


# -- we connect


def test_our_requests_are_plain() -> None:
    with we_connect() as (end, peer):
        end.send(b"hello", send_flags=SendFlag.SIGNALED | SendFlag.SOLICITED)
        (wc,) = end.sent()
        assert (wc.status, wc.opcode) == (WCStatus.SUCCESS, WCOpcode.SEND)
        segment = peer.next()
        assert (segment.control, segment.fields) == (0x4145, (0, 0, 1, 0))
        assert segment.payload == b"hello"
        end.post(WROpcode.RDMA_WRITE, end.memory(b"octets").sge(), rkey=77, remote_addr=1 << 40)
        assert end.sent()[0].status is WCStatus.SUCCESS
        segment = peer.next()
        assert (segment.control, segment.fields) == (0xC140, (77, 1 << 40))
        end.post(WROpcode.SEND_WITH_INV, end.memory(b"x").sge(), invalidate_rkey=0xABCD)
        segment = peer.next()
        assert (segment.control, segment.fields) == (0x4144, (0xABCD, 0, 2, 0))


def test_a_long_message_keeps_one_opcode() -> None:
    """Linux siw refuses a message whose segments differ; each fits one TCP segment."""
    with we_connect() as (end, peer):
        data = bytes(range(256)) * 800
        end.send(data, send_flags=SendFlag.SIGNALED | SendFlag.SOLICITED)
        found, offset = b"", 0
        while len(found) < len(data):
            segment = peer.next()
            assert segment.opcode == SEND_SE
            assert segment.fields == (0, 0, 1, offset)
            found += segment.payload
            offset += len(segment.payload)
            assert segment.is_last == (len(found) == len(data))
        assert found == data
        assert end.sent()[0].status is WCStatus.SUCCESS


def test_what_follows_a_read_waits_for_it() -> None:
    with we_connect() as (end, peer):
        target = end.memory(10)
        end.post(WROpcode.RDMA_READ, target.sge(), rkey=5, remote_addr=6, wr_id=1)
        end.send(b"after", wr_id=2)
        request = peer.next()
        assert (request.opcode, request.fields[1:]) == (READ_REQUEST, (1, 1, 0))
        stag, offset, count, source, source_offset = struct.unpack(">IQIIQ", request.payload)
        assert (count, source, source_offset) == (10, 5, 6)
        assert peer.next().opcode == SEND
        assert not end.adapter.wait(lambda: len(end.scq) > 0, 30_000_000)
        peer.tagged(READ_RESPONSE, stag, offset, b"01234", last=False)
        peer.tagged(READ_RESPONSE, stag, offset + 5, b"56789")
        assert [(wc.wr_id, wc.status) for wc in end.sent(2)] == [
            (1, WCStatus.SUCCESS), (2, WCStatus.SUCCESS)
        ]  # fmt: skip
        assert target.data == b"0123456789"


def test_reads_at_once_are_as_many_as_the_peer_serves() -> None:
    with we_connect(ird=2) as (end, peer):
        for index in range(3):
            end.post(WROpcode.RDMA_READ, end.memory(1).sge(), rkey=5, wr_id=index)
        requests = [peer.next(), peer.next()]
        peer.socket.settimeout(0.05)
        with pytest.raises(TimeoutError):
            peer.next()
        peer.socket.settimeout(5)
        for request in requests:
            peer.tagged(READ_RESPONSE, *struct.unpack_from(">IQ", request.payload), b"x")
        third = peer.next()
        peer.tagged(READ_RESPONSE, *struct.unpack_from(">IQ", third.payload), b"x")
        assert {wc.status for wc in end.sent(3)} == {WCStatus.SUCCESS}


@pytest.mark.parametrize(
    "opcode",
    [
        WROpcode.SEND_WITH_IMM,
        WROpcode.RDMA_WRITE_WITH_IMM,
        WROpcode.ATOMIC_FETCH_AND_ADD,
        WROpcode.ATOMIC_CMP_AND_SWP,
        WROpcode.MASKED_ATOMIC_CMP_AND_SWP,
        WROpcode.MASKED_ATOMIC_FETCH_AND_ADD,
    ],
)
def test_what_the_peer_does_not_know_fails_here(opcode: WROpcode) -> None:
    with we_connect() as (end, peer):
        end.send(b"before")
        assert end.sent()[0].status is WCStatus.SUCCESS
        end.post(opcode, end.memory(8).sge(), rkey=1, remote_addr=8)
        assert end.sent()[0].status is WCStatus.REM_INV_REQ_ERR
        end.event(ConnectionEventKind.BROKEN)
        assert peer.next().payload == b"before"
        assert peer.terminate_code() == 0


def test_a_terminate_of_the_peer_names_our_read() -> None:
    with we_connect() as (end, peer):
        end.post(WROpcode.RDMA_READ, end.memory(4).sge(), rkey=5, wr_id=1)
        end.send(b"x", wr_id=2)
        peer.next()
        peer.untagged(7, 2, 1, bytes.fromhex("0100 0000"))
        assert [(wc.wr_id, wc.status) for wc in end.sent(2)] == [
            (1, WCStatus.REM_ACCESS_ERR), (2, WCStatus.WR_FLUSH_ERR)
        ]  # fmt: skip
        assert "REMOTE_INVALID_STAG" in end.event(ConnectionEventKind.BROKEN).reason


def test_a_peer_of_revision_1_is_spoken_to() -> None:
    with we_connect(flags=1) as (end, peer):
        end.send(b"abc")
        assert peer.next().payload == b"abc"


def test_a_peer_to_peer_reply_gets_its_first_write() -> None:
    """RFC 6581: only then may the side that accepted send."""
    with we_connect(ird=0x8004, ord_=0x8004) as (_end, peer):
        segment = peer.next()
        assert (segment.opcode, segment.payload) == (WRITE, b"")


# -- the peer connects


def test_its_requests_are_served() -> None:
    with peer_connects() as (end, peer):
        end_memory = end.memory(b"0123456789")
        stag, address = end_memory.region.rkey, end_memory.region.address
        peer.untagged(SEND, 0, 1, b"hel", last=False)
        peer.untagged(SEND, 0, 1, b"lo", offset=3)
        peer.untagged(SEND_SE, 0, 2, b"")
        first, second = end.received(2)
        assert (first.byte_len, second.byte_len, first.status) == (5, 0, WCStatus.SUCCESS)
        assert end.memories[0].data[:5] == b"hello"
        peer.tagged(WRITE, stag, address + 2, b"AB", last=False)
        peer.tagged(WRITE, stag, address + 4, b"CD")
        request = struct.pack(">IQIIQ", 0x55, 0x66, 8, stag, address + 1)
        peer.untagged(READ_REQUEST, 1, 1, request)
        answer = peer.next()
        assert (answer.control, answer.fields) == (0xC142, (0x55, 0x66))
        assert answer.payload == b"1ABCD678"
        peer.untagged(READ_REQUEST, 1, 2, struct.pack(">IQIIQ", 0x56, 0, 0, 0, 0))
        assert peer.next().fields == (0x56, 0)


def test_we_are_silent_until_it_has_spoken() -> None:
    with peer_connects() as (end, peer):
        end.send(b"eager")
        peer.socket.settimeout(0.05)
        with pytest.raises(TimeoutError):
            peer.next()
        peer.socket.settimeout(5)
        peer.untagged(SEND, 0, 1, b"go")
        assert peer.next().payload == b"eager"
        assert end.sent()[0].status is WCStatus.SUCCESS


def test_an_invalidation_reaches_the_engine() -> None:
    with peer_connects() as (end, peer):
        with end.adapter.lock:
            window = end.adapter.keys.new_window(end.pd, kind=2)
            region = end.memory(8, AccessFlag.LOCAL_WRITE | AccessFlag.MW_BIND).region
            rkey = end.adapter.keys.bind(
                window, region, region.address, 8, AccessFlag.REMOTE_READ, qpn=end.qp.qpn
            )
        peer.untagged(SEND_INV, 0, 1, b"x", word=rkey)
        (wc,) = end.received()
        assert (wc.wc_flags, wc.imm_data) == (WCFlag.WITH_INV, rkey)


def test_its_plain_end_is_a_disconnect() -> None:
    with peer_connects() as (end, peer):
        peer.untagged(SEND, 0, 1, b"bye")
        peer.socket.shutdown(socket.SHUT_WR)
        assert end.received()[0].status is WCStatus.SUCCESS
        end.event(ConnectionEventKind.DISCONNECTED)
        assert end.qp.state is QPState.ERR
        with pytest.raises(EOFError):
            peer.next()


def test_our_disconnect_is_a_plain_end() -> None:
    with peer_connects() as (end, peer):
        peer.untagged(SEND, 0, 1, b"x")
        end.received()
        end.send(b"last words")
        end.disconnect()
        assert peer.next().payload == b"last words"
        with pytest.raises(EOFError):
            peer.next()
        end.event(ConnectionEventKind.DISCONNECTED)


def test_an_end_inside_a_frame_is_a_break() -> None:
    with peer_connects() as (end, peer):
        peer.socket.sendall(bytes.fromhex("0017 4143 0000"))
        peer.socket.shutdown(socket.SHUT_WR)
        end.event(ConnectionEventKind.BROKEN)


READ = struct.pack(">IQIIQ", 1, 0, 8, 0x99999, 0)


@pytest.mark.parametrize(
    ("opcode", "queue", "number", "payload", "code"),
    [
        (SEND, 0, 1, bytes(65), 0x1205),  # longer than the receive
        (SEND, 0, 2, b"x", 0x1203),  # a number left out
        (SEND, 1, 1, b"x", 0x1201),  # the wrong queue
        (READ_REQUEST, 1, 1, READ, 0x01FF),  # no such key
        (READ_REQUEST, 1, 1, READ[:-1], 0x02FF),  # no whole request
        (8, 0, 1, bytes(8), 0x0206),  # immediate data: not negotiated
        (10, 1, 1, bytes(52), 0x0206),  # nor atomic operations
        (14, 4, 1, bytes(4), 0x0206),  # nor our own manners
    ],
)
def test_a_fault_ends_the_stream_with_its_code(
    opcode: int, queue: int, number: int, payload: bytes, code: int
) -> None:
    with peer_connects() as (end, peer):
        peer.untagged(opcode, queue, number, payload)
        assert peer.terminate_code() == code
        end.event(ConnectionEventKind.BROKEN)
        assert end.qp.state is QPState.ERR
        assert end.adapter.stats.terminates_sent == 1


def test_a_message_without_a_receive_ends_the_stream() -> None:
    with peer_connects() as (end, peer):
        for number in range(1, 5):
            peer.untagged(SEND, 0, number, b"x")
        assert peer.terminate_code() == 0x1202
        assert [wc.status for wc in end.received(3)] == [WCStatus.SUCCESS] * 3
        end.event(ConnectionEventKind.BROKEN)


@pytest.mark.parametrize(
    ("stag_step", "start", "count"), [(256, 0, 1), (0, 10, 1), (0, -1, 2), (0, (1 << 64) - 1, 2)]
)
def test_a_write_outside_ends_the_stream(stag_step: int, start: int, count: int) -> None:
    with peer_connects() as (end, peer):
        memory = end.memory(b"0123456789")
        offset = (memory.region.address + start) % (1 << 64)
        peer.tagged(WRITE, memory.region.rkey + stag_step, offset, b"!" * count)
        assert peer.terminate_code() == 0x1101
        end.event(ConnectionEventKind.BROKEN)
        assert memory.data == b"0123456789"
