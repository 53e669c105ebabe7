"""Unknown and broken peers of the tcp provider: each loses its own stream alone."""

import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.support.waiting import BUSY_S
from tests.verbs.plain_peer import REQUEST_KEY, SEND, PlainPeer
from tests.verbs.tcp_ends import ESTABLISHED, End, Server, adapters
from urds.verbs.engine.numbers import QPState, WCStatus, WROpcode
from urds.verbs.providers.base import ConnectionEventKind
from urds.verbs.providers.tcp import TcpAdapter, TcpProviderSettings

OWN = 0x1402  # enhanced, a node of our own, revision 2
HASTY = TcpProviderSettings(pending_ns=100_000_000)
ANSWER, NOTICE, SEND_IMM = 14, 15, 12


@pytest.fixture
def server() -> Iterator[Server]:
    with adapters(HASTY) as (adapter,):
        yield Server(adapter)


@pytest.fixture
def patient() -> Iterator[Server]:
    """Yield one for peers that do connect: a stall between their bytes is no end."""
    with adapters(None) as (adapter,):
        yield Server(adapter)


def is_ended(pending: socket.socket) -> bool:
    pending.settimeout(BUSY_S)
    try:
        return pending.recv(1) == b""
    except ConnectionResetError:
        return True


def still_serves(server: Server) -> None:
    """Show that a well-behaved peer gets through."""
    with adapters(None) as (near,):
        client, served = End(near), End(server.adapter)
        client.connect(server.address)
        served.accept(server.request())
        client.event(ESTABLISHED)
        served.receive(2)
        client.send(b"ok")
        assert served.received()[0].status is WCStatus.SUCCESS


def counts(adapter: TcpAdapter, ready: Callable[[], bool]) -> None:
    assert adapter.wait(ready, 5_000_000_000), adapter.stats


# -- unknown peers


@pytest.mark.parametrize("data", [b"", b"MPA ID Req", b"MPA ID Req Frame\x10\x02\x02\x00xyz"])
def test_a_silent_unknown_peer_is_dropped_in_time(server: Server, data: bytes) -> None:
    with socket.create_connection(server.address) as pending:
        pending.sendall(data)
        assert is_ended(pending)
    counts(server.adapter, lambda: server.adapter.stats.pending_failed == 1)
    assert server.requests == []


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"MPA ID Rep Frame" + bytes(4),
        b"MPA ID Req Frame\x00\x02\x02\x01",  # 513 bytes of private data
        b"MPA ID Req Frame\x00\x09\x00\x00",  # revision 9
        b"MPA ID Req Frame\x80\x02\x00\x00",  # markers
        b"MPA ID Req Frame\x10\x02\x00\x00",  # enhanced, without its counts
        b"\0" * 5000,
    ],
)
def test_an_unknown_peer_that_speaks_otherwise_is_dropped_at_once(
    server: Server, data: bytes
) -> None:
    with socket.create_connection(server.address) as pending:
        pending.sendall(data)
        while not is_ended(pending):
            pass
    counts(server.adapter, lambda: server.adapter.stats.pending_failed == 1)
    still_serves(server)


def test_unknown_peers_are_bounded() -> None:
    settings = TcpProviderSettings(pending_max=6, pending_per_host_max=4)
    with adapters(settings) as (adapter,):
        server = Server(adapter, "0.0.0.0")
        port = server.address[1]
        pending = []
        for host in ("127.0.0.1", "127.0.0.2"):
            for _ in range(6):
                pending.append(
                    socket.create_connection(("127.0.0.1", port), source_address=(host, 0))
                )
        counts(adapter, lambda: adapter.stats.pending_dropped == 6)
        hosts = Counter(each.peer[0] for each in adapter.pending)
        assert hosts == {"127.0.0.1": 4, "127.0.0.2": 2}
        # Those that are in may go on.
        peer = PlainPeer(pending[0])
        peer.send_message(REQUEST_KEY)
        server.request().connection.reject()
        for connection in pending:
            connection.close()
        counts(adapter, lambda: not adapter.pending)
        server.address = ("127.0.0.1", port)
        still_serves(server)


def test_one_host_may_open_many_connections_at_once(server: Server) -> None:
    pending = [socket.create_connection(server.address) for _ in range(40)]
    counts(server.adapter, lambda: len(server.adapter.pending) == 40)
    assert server.adapter.stats.pending_dropped == 0
    for connection in pending:
        connection.close()


@pytest.mark.parametrize("lingers", [False, True])
def test_a_flood_of_connections_leaves_nothing_behind(server: Server, lingers: bool) -> None:
    for _ in range(200):
        pending = socket.create_connection(server.address)
        if lingers:  # the close is a reset: some are gone before they are accepted
            pending.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        pending.close()
    adapter = server.adapter
    stats = adapter.stats
    if not lingers:
        counts(adapter, lambda: stats.pending_failed + stats.pending_dropped == 200)
    counts(adapter, lambda: not adapter.connections and not adapter.pending)
    still_serves(server)


# -- peers with a stream, speaking as one of our own


@contextmanager
def own_peer(server: Server, receive_bytes: int = 0) -> Iterator[tuple[End, PlainPeer]]:
    end, peer = End(server.adapter), PlainPeer.connect(server.address, receive_bytes)
    peer.send_message(REQUEST_KEY, OWN)
    end.init()
    end.receive(64)
    end.accept(server.request())
    end.event(ESTABLISHED)
    assert peer.receive_message(b"MPA ID Rep Frame")[0] == 0x1202
    with peer.socket:
        yield end, peer


def fpdu(control: int, header: bytes, payload: bytes = b"") -> bytes:
    ulpdu = struct.pack(">H", control) + header + payload
    frame = struct.pack(">H", len(ulpdu)) + ulpdu
    return frame + bytes(-len(frame) % 4) + bytes(4)


def untagged(opcode: int, queue: int, number: int, payload: bytes = b"", word: int = 0) -> bytes:
    return fpdu(0x4140 | opcode, struct.pack(">IIII", word, queue, number, 0), payload)


RESUME = untagged(NOTICE, 4, 1, struct.pack(">II", 0xFFFFFF, 0xFFFFFFFF), word=1)
READ_NOTHING = struct.pack(">IQIIQ", 1, 0, 0, 0, 0)
READ_UNKNOWN = struct.pack(">IQIIQ", 1, 0, 8, 0x777, 0)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x00\x01" + bytes(30), 0x2003),
        (bytes.fromhex("0012 0000") + bytes(30), 0x1206),
        (bytes.fromhex("000e 8000") + bytes(30), 0x1104),
        (untagged(ANSWER, 4, 1, b"abc"), 0x02FF),
        (untagged(ANSWER, 4, 2, bytes(4)), 0x1203),
        (untagged(NOTICE, 4, 1, bytes(8), word=99), 0x02FF),
        (untagged(NOTICE, 4, 1, struct.pack(">II", 1 << 24, 0), word=1), 0x02FF),
        (fpdu(0xC142, struct.pack(">IQ", 0x100, 0), b"unasked"), 0x1100),
        (untagged(11, 3, 1, bytes(12)), 0x02FF),
        (fpdu(0xE140, struct.pack(">IQ", 0, 0)) + untagged(SEND, 0, 1), 0x0206),
        (b"".join(untagged(1, 1, n, READ_NOTHING) for n in range(1, 200)), 0x1202),
    ],
)
def test_a_broken_rule_ends_the_stream(patient: Server, data: bytes, code: int) -> None:
    with own_peer(patient) as (end, peer):
        peer.socket.sendall(data)
        assert peer.terminate_code() == code
        assert end.event(ConnectionEventKind.BROKEN).reason
        assert end.qp.state is QPState.ERR
        assert end.received()[0].status is WCStatus.WR_FLUSH_ERR
        assert patient.adapter.stats.streams_broken_by_peer == 1
    still_serves(patient)


def test_a_refused_request_is_answered_before_the_end(patient: Server) -> None:
    with own_peer(patient) as (end, peer):
        peer.socket.sendall(
            b"".join(untagged(1, 1, number, READ_UNKNOWN) for number in range(1, 200))
        )
        answer = peer.next()
        assert (answer.opcode, answer.fields[0]) == (ANSWER, 0x6200_0000)
        assert peer.terminate_code() == 0
        end.event(ConnectionEventKind.BROKEN)


@pytest.mark.parametrize(
    "data",
    [
        untagged(ANSWER, 4, 1, bytes(4), word=0x1F00_0000),  # nothing was asked
        untagged(ANSWER, 4, 1, bytes(4), word=0x62FF_FFFF),
        untagged(ANSWER, 4, 1, b"\xff" * 4, word=0x2000_0005),
        untagged(ANSWER, 4, 1, b"\xff" * 4, word=0xFFFF_FFFF),
        RESUME,
        RESUME + untagged(SEND, 0, 77, b"from nowhere"),
        RESUME + fpdu(0xC140, struct.pack(">IQ", 1, 1), b"middle of nothing"),
        untagged(SEND_IMM, 0, 1, bytes(64), word=5),
    ],
)
def test_a_lie_is_the_engines_to_judge(patient: Server, data: bytes) -> None:
    """It may end the stream or not; the process, and all other streams, go on."""
    with own_peer(patient) as (_end, peer):
        peer.socket.sendall(data)
        peer.socket.shutdown(socket.SHUT_WR)
        assert patient.adapter.wait(lambda: not patient.adapter.connections, 5_000_000_000)
    still_serves(patient)


@pytest.mark.parametrize("count", [1, 2, 3, 19, 25, 60_000])
def test_a_truncated_frame_is_a_break(patient: Server, count: int) -> None:
    with own_peer(patient) as (end, peer):
        peer.socket.sendall(untagged(SEND, 0, 1, bytes(65_000))[:count])
        peer.close()
        end.event(ConnectionEventKind.BROKEN)
        assert end.received()[0].status is WCStatus.WR_FLUSH_ERR
    counts(patient.adapter, lambda: patient.adapter.stats.streams_lost == 1)


def test_frames_byte_by_byte_arrive_whole(patient: Server) -> None:
    with own_peer(patient) as (end, peer):
        for byte in untagged(SEND, 0, 1, b"slowly"):
            peer.socket.sendall(bytes([byte]))
        assert end.received()[0].byte_len == 6


def test_messages_that_no_receive_waits_for_cost_nothing(patient: Server) -> None:
    """The first is answered RNR, all behind it are dropped, however many there are."""
    with own_peer(patient) as (end, peer):
        flood = b"".join(untagged(SEND, 0, number, bytes(1000)) for number in range(2, 2000))
        peer.socket.sendall(untagged(SEND, 0, 1, b"taken"))
        peer.socket.sendall(flood)
        assert end.received()[0].byte_len == 5
        still_serves(patient)
        assert end.qp.state is QPState.RTS


def test_a_peer_that_does_not_read_holds_only_its_own_stream(patient: Server) -> None:
    """We stop asking the engine once 256 KiB wait; others are served meanwhile."""
    with own_peer(patient) as (end, _peer):
        for _ in range(300):
            end.send(bytes(60_000))
        still_serves(patient)
        stream = end.connection.stream
        waiting = stream._encoder.bytes_emitted - stream._out.sent_bytes
        assert 0 < waiting <= 256 * 1024 + 65_536
        end.disconnect()
        end.event(ConnectionEventKind.DISCONNECTED)
        assert len(end.sent(300)) == 300


def test_a_slow_peer_still_gets_what_was_sent_before_a_disconnect() -> None:
    """Also what waits for room; its memory is the application's again after the flush."""
    settings = TcpProviderSettings(send_buffer_bytes=65_536)
    with adapters(settings) as (adapter,), own_peer(Server(adapter), 65_536) as (end, peer):
        memories = [end.memory(b"A" * 60_000) for _ in range(40)]
        for memory in memories:
            end.post(WROpcode.SEND, memory.sge())
        end.disconnect()
        end.event(ConnectionEventKind.DISCONNECTED)
        end.sent(40)
        for memory in memories:
            memory.data[:] = bytes(60_000)
        for number in range(1, 41):
            segment = peer.next()
            assert (segment.opcode, segment.fields[2]) == (SEND, number)
            assert segment.payload == b"A" * 60_000
        farewell = peer.next()
        assert (farewell.opcode, farewell.fields[0]) == (NOTICE, 2)


def test_a_peer_that_never_closes_is_closed() -> None:
    settings = TcpProviderSettings(farewell_ns=50_000_000)
    with adapters(settings) as (adapter,):
        other = Server(adapter)
        with own_peer(other) as (end, _peer):
            end.disconnect()
            end.event(ConnectionEventKind.DISCONNECTED)
            assert adapter.wait(lambda: not is_open(end), 5_000_000_000)


def is_open(end: End) -> bool:
    return end.connection.stream.is_open
