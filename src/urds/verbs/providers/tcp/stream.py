"""One established iWARP stream: a TCP connection, a queue pair, and the codec between them.

Sending happens in the thread that posts while the connection takes bytes; what it does not take
waits here, at most 256 KiB, and the engine keeps the rest (`poll_transmit` is not asked). Reading
goes through the adapter's one buffer, so an idle stream holds no memory but a partial FPDU's. From
there the engine copies each payload once to its place: to read it there at once would take a call
per FPDU, and one call for four costs less than the copies.

A stream ends once, for one reason. Said on purpose: what was sent before leaves, then a FAREWELL
to a node of our own, then the end of the TCP stream, for which both sides wait a bounded time, so
that no reset eats the last bytes. Everything else sends a TERMINATE if it can. The adapter's lock
guards a stream.

An exception of a signal handler may cut anything short. Between the socket and the end of what its
bytes do, either way, neither side could tell where in the stream it is: cut there (`_is_torn`), the
connection is lost. Cut elsewhere, the stream goes on from what it kept.
"""

import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from urds.common.progress import ProgressLoop
from urds.common.timers import Timer
from urds.common.types import BytesLike
from urds.verbs.engine.attributes import QPAttr
from urds.verbs.engine.completions import Outbox
from urds.verbs.engine.numbers import QPAttrMask, QPState
from urds.verbs.engine.packets import ANSWERED, Packet, PacketKind, Syndrome
from urds.verbs.engine.queue_pair import QueuePair
from urds.verbs.providers.base import ConnectionEventKind
from urds.verbs.providers.tcp.codec import Decoder, Encoder, Farewell, Terminated
from urds.verbs.providers.tcp.fpdu import FPDU_BYTES_MAX, StreamBroken, TerminateCode
from urds.verbs.providers.tcp.settings import TcpStats

_TORN: Final = "an exception, of a signal handler perhaps, came amid its bytes"
PIECES_MAX: Final = 512  # of one sendmsg; Linux takes 1,024


class OutQueue:
    """Bytes that wait for room in the connection. `sent_bytes` counts all that TCP has taken."""

    __slots__ = ("pieces", "sent_bytes")

    def __init__(self) -> None:
        self.pieces: list[BytesLike] = []  # the encoder appends here
        self.sent_bytes = 0

    def __bool__(self) -> bool:
        return bool(self.pieces)

    def send(self, connection: socket.socket) -> bool:
        """Send what is here; return whether all of it is gone. Raises OSError from the socket."""
        pieces, gone = self.pieces, 0
        flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
        try:
            while gone < len(pieces):
                count = connection.sendmsg(pieces[gone : gone + PIECES_MAX], (), flags)
                self.sent_bytes += count
                while count:
                    piece = pieces[gone]
                    if count < len(piece):
                        pieces[gone] = memoryview(piece)[count:]
                        break
                    count -= len(piece)
                    gone += 1
        except BlockingIOError:
            return False
        finally:
            del pieces[:gone]
        return True

    def copy(self) -> None:
        """Copy the views among what waits: their memory returns to its owner."""
        self.pieces[:] = [
            bytes(piece) if isinstance(piece, memoryview) else piece for piece in self.pieces
        ]

    def clear(self) -> None:
        """Drop what waits."""
        self.pieces.clear()


OUT_BYTES_MAX: Final = 256 * 1024  # that wait for the connection
READ_BYTES: Final = 256 * 1024  # of one read
BUFFER_BYTES: Final = READ_BYTES + 2 * FPDU_BYTES_MAX  # a partial FPDU, or pair, in front

# What a TERMINATE of a plain peer says of the read that it could not serve.
_SYNDROME_OF: Final = {
    0x1: Syndrome.NAK_REMOTE_ACCESS,  # remote protection, tagged buffer
    0x2: Syndrome.NAK_INVALID_REQUEST,
}


class StreamHost(Protocol):
    """What a stream needs of its adapter."""

    loop: ProgressLoop
    stats: TcpStats
    read_view: memoryview  # BUFFER_BYTES, for one handler at a time
    leaving: "set[IwarpStream]"  # streams that are over, while their last bytes are sent

    outbox: Outbox

    def finish_pass(self) -> None:
        """End a pass: see `Adapter.finish_pass`."""


class IwarpStream:
    """The bytes of one connection in both directions.

    `on_end` is called once, with DISCONNECTED or BROKEN and the reason.
    """

    def __init__(
        self,
        host: StreamHost,
        connection: socket.socket,
        qp: QueuePair,
        encoder: Encoder,
        decoder: Decoder,
        *,
        urds_peer: bool,
        may_send: bool,
        farewell_ns: int,
        on_end: Callable[[ConnectionEventKind, str], None],
    ) -> None:
        self._host = host
        self._socket = connection
        self._qp = qp
        self._encoder = encoder
        self._decoder = decoder
        self._urds_peer = urds_peer
        self._may_send = may_send  # a plain responder waits for the initiator's first frame
        self._farewell_ns = farewell_ns
        self._on_end = on_end
        self._out = OutQueue()
        qp.on_detach = self._out.copy
        self._kept = b""  # a partial FPDU
        self._events = select.EPOLLIN
        self._answer_may_wait = False  # nothing that was read asks for data
        self._is_deferred = False
        self._is_torn = False  # bytes are on their way between socket, codec and engine
        self._is_over = False  # the end was told; only the socket is still being closed
        self._peer_is_done = False
        self._timer: Timer | None = None

    @property
    def is_open(self) -> bool:
        """Return whether the socket is open; it outlives the stream while last bytes are sent."""
        return self._socket.fileno() >= 0

    def start(self, data: bytes, *, first_write: bool) -> None:
        """Take over the connection; `data` came with the set-up's last frame.

        A plain responder may wait for a `first_write`, an empty one, before it sends.
        """
        if first_write:
            self._encoder.emit_empty_write(self._out.pieces)
        self._host.loop.watch(self._socket.fileno(), self._events, self._handle_socket)
        self._kept = data
        if data:
            self._read(0)
        self.progress_qp()

    # -- sending

    def progress_qp(self) -> None:
        """Send what the queue pair has to send, as far as the connection takes it; end the pass."""
        try:
            if not self._is_over:
                self._progress()
            self._host.finish_pass()
        except BaseException:
            self._host.loop.call_soon(self._go_on)
            raise

    def _go_on(self) -> None:
        """Go on after an exception; nothing else may come that would."""
        if self._is_over:
            return
        if not self._is_torn:
            self._read(0)
        self.progress_qp()

    def _progress(self) -> None:
        self._is_deferred = False
        if self._is_torn:
            self._lose(_TORN)
            return
        if self._has_running_queue_pair():
            try:
                self._send()
            except OSError as error:
                self._lose(error.strerror or str(error))
                return
            if self._encoder.is_terminated:
                # The answer to a plain peer's request could be said in no other way.
                self._end(ConnectionEventKind.BROKEN, "no receive for a message of the peer")
                return
            # If it moves away, it looks again when it rings.
            self._timer = self._host.loop.replan(
                self._timer, self._qp.poll_timeout(), self._handle_timer
            )
        if not self._has_running_queue_pair():
            self._end_with_failed_qp()

    def _has_running_queue_pair(self) -> bool:
        return self._qp.state not in (QPState.ERR, QPState.RESET)

    def _send(self) -> None:
        now_ns = time.monotonic_ns()
        self._is_torn = True
        while True:
            is_dry = self._take_packets(now_ns)
            is_empty = self._out.send(self._socket)
            has_confirmed = not self._urds_peer and self._confirm(now_ns)
            if not is_empty or (is_dry and not has_confirmed):
                break
        self._is_torn = False
        self._watch_for_room(not is_empty)

    def _take_packets(self, now_ns: int) -> bool:
        """Encode what the engine wants sent, while there is room; return whether it was all."""
        if not self._may_send:
            return True
        qp, encoder, out = self._qp, self._encoder, self._out
        while encoder.bytes_emitted - out.sent_bytes < OUT_BYTES_MAX:
            packet = qp.poll_transmit(now_ns)
            if packet is None:
                return True
            nak = encoder.emit(packet, out.pieces)
            if nak is not None:
                qp.receive_packet(nak, now_ns)
        return False

    def _confirm(self, now_ns: int) -> bool:
        """Complete what TCP has taken: a plain peer sends no ACKs. Return whether there was any."""
        packet = self._encoder.confirm(self._out.sent_bytes)
        if packet is None:
            return False
        packet.target_qpn = self._qp.qpn
        self._qp.receive_packet(packet, now_ns)
        return True

    def _watch_for_room(self, wanted: bool) -> None:
        events = select.EPOLLIN | (select.EPOLLOUT if wanted else 0)
        if self._peer_is_done:
            events &= ~select.EPOLLIN
        if events != self._events:
            self._events = events
            self._host.loop.change(self._socket.fileno(), events)

    def _handle_timer(self) -> None:
        self._timer = None
        if not self._is_over:
            self._qp.handle_timeout(time.monotonic_ns())
            self.progress_qp()

    # -- receiving

    def _handle_socket(self, events: int) -> None:
        if self._is_over:
            self._finish(events)
            return
        try:
            self._take_events(events)
        except BaseException:
            self._host.loop.call_soon(self._go_on)
            raise

    def _take_events(self, events: int) -> None:
        if events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
            self._handle_readable()
        may_wait = self._answer_may_wait and not events & select.EPOLLOUT
        if may_wait and not self._is_deferred:
            # The application's own answer, if it has one at once, takes the acknowledgement
            # along, which saves a call here and a wake-up there.
            self._is_deferred = True
            self._host.loop.defer(self._kick_deferred)
        self._host.finish_pass()
        if not may_wait:
            self.progress_qp()

    def _kick_deferred(self) -> None:
        if self._is_deferred:
            self.progress_qp()

    def _handle_readable(self) -> None:
        if self._is_torn:
            self._lose(_TORN)
            return
        view, start = self._host.read_view, len(self._kept)
        self._is_torn = True
        try:
            count = self._socket.recv_into(view[start : start + READ_BYTES])
        except BlockingIOError:
            self._is_torn = False
            return
        except OSError as error:
            self._lose(error.strerror or str(error))
            return
        if count:
            self._read(count)
        elif self._urds_peer or self._kept:
            self._lose("the connection ended without a word")
        else:
            self._end(ConnectionEventKind.DISCONNECTED, "the peer closed the connection")

    def _read(self, count: int) -> None:
        """Take in what was kept and the `count` bytes behind it in the buffer.

        One read may bring more messages than there are receives: where they have run dry the pass
        ends, so that a sink can post them again, and the rest is the next pass's.
        """
        self._answer_may_wait = True
        while self._decode(count):
            self._host.finish_pass()
            count = 0

    def _decode(self, count: int) -> bool:
        """Decode as `_read`; return whether receives ran dry, with the rest kept."""
        view = self._host.read_view
        self._is_torn = True
        position, end = 0, len(self._kept) + count
        view[: len(self._kept)] = self._kept
        self._kept = b""
        outbox, is_cut = self._host.outbox, False
        now_ns = time.monotonic_ns()
        try:
            while (
                position < end and not (is_cut or self._is_over) and self._has_running_queue_pair()
            ):
                item, taken_bytes = self._decoder.take(view[position:end])
                if not taken_bytes:
                    break
                position += taken_bytes
                self._may_send = True
                if isinstance(item, Packet):
                    self._answer_may_wait &= item.kind not in ANSWERED
                    self._deliver(item, now_ns)
                    is_cut = bool(outbox.fed) and not self._qp.receives
                elif item is not None:
                    self._handle_end_frame(item)
        except StreamBroken as broken:
            self._break(broken)
        self._kept = bytes(view[position:end]) if not self._is_over else b""
        self._is_torn = False
        return is_cut

    def _deliver(self, packet: Packet, now_ns: int) -> None:
        self._encoder.peer_wrote_last = self._decoder.wrote_last
        self._qp.receive_packet(packet, now_ns)
        if not self._urds_peer and packet.kind == PacketKind.READ_RESPONSE:
            self._confirm(now_ns)

    def _handle_end_frame(self, item: Farewell | Terminated) -> None:
        if isinstance(item, Farewell):
            self._end(ConnectionEventKind.DISCONNECTED, "the peer disconnected")
            return
        self._host.stats.terminates_received += 1
        asked = self._encoder.reads.oldest_outbound()
        if asked is not None and not self._urds_peer:
            # The TERMINATE presumably concerns our oldest read.
            syndrome = _SYNDROME_OF.get(item.code >> 8 & 0xF, Syndrome.NAK_REMOTE_OPERATION)
            nak = Packet(PacketKind.ACK, self._qp.qpn, psn=asked, syndrome=syndrome)
            self._qp.receive_packet(nak, time.monotonic_ns())
        self._end(
            ConnectionEventKind.BROKEN, f"the peer terminated the stream: {_code_name(item.code)}"
        )

    # -- the end

    def disconnect(self) -> None:
        """End the stream in order: what was sent before goes out first, as far as it may.

        The bytes that still wait are copied, at most what the engine may have in flight (128
        packets), for the flush gives their memory back to the application.
        """
        if self._is_over:
            return
        if self._is_torn:
            self._lose(_TORN)
            return
        self._say_the_rest()
        self._encoder.emit_farewell(self._out.pieces)
        self._end(ConnectionEventKind.DISCONNECTED, "disconnected here")
        self._host.finish_pass()

    def abort(self) -> None:
        """Drop the connection without a TERMINATE or an event."""
        self._is_over = True
        self._cancel_timer()
        self._close_socket()

    def _say_the_rest(self) -> None:
        """Encode all that the engine would send now into the out-queue; the end follows."""
        self._is_torn = True
        now_ns = time.monotonic_ns()
        while self._may_send and (packet := self._qp.poll_transmit(now_ns)) is not None:
            self._encoder.emit(packet, self._out.pieces)

    def _end_with_failed_qp(self) -> None:
        """End the stream after its queue pair has failed or was reset."""
        self._say_the_rest()
        self._terminate(TerminateCode.LOCAL_CATASTROPHIC)
        self._end(ConnectionEventKind.BROKEN, f"queue pair went to {self._qp.state.name}")

    def _break(self, broken: StreamBroken) -> None:
        self._host.stats.streams_broken_by_peer += 1
        self._terminate(broken.code, broken.header)
        self._end(ConnectionEventKind.BROKEN, str(broken))

    def _lose(self, reason: str) -> None:
        self._host.stats.streams_lost += 1
        self._out.clear()
        self._peer_is_done = True
        self._end(ConnectionEventKind.BROKEN, reason)

    def _terminate(self, code: TerminateCode, header: bytes = b"") -> None:
        if not self._encoder.is_terminated:
            self._encoder.emit_terminate(code, header, self._out.pieces)

    def _end(self, kind: ConnectionEventKind, reason: str) -> None:
        """Report the end, fail the queue pair, and close the connection when the rest is sent."""
        if self._is_over:
            return
        self._is_over = True
        self._host.stats.terminates_sent += self._encoder.is_terminated
        self._cancel_timer()
        self._out.copy()
        self._qp.on_detach = None
        qp, now_ns = self._qp, time.monotonic_ns()
        if self._has_running_queue_pair():
            qp.modify(QPAttr(qp_state=QPState.ERR), QPAttrMask.STATE, now_ns)
        self._finish(0)
        if self.is_open:
            deadline_ns = now_ns + self._farewell_ns
            self._timer = self._host.loop.call_at(deadline_ns, self._close_socket)
        self._on_end(kind, reason)

    def _finish(self, events: int) -> None:
        """Send the last bytes, close our half, and wait for the peer's."""
        try:
            if not self._out or self._out.send(self._socket):
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_WR)
            if events & select.EPOLLIN:
                self._peer_is_done |= self._discard()
        except OSError:
            self._out.clear()
            self._peer_is_done = True
        if (self._peer_is_done and not self._out) or events & select.EPOLLHUP:
            self._close_socket()
        else:
            self._watch_for_room(bool(self._out))

    def _discard(self) -> bool:
        """Read and drop; return whether the peer has closed its half."""
        try:
            return not self._socket.recv_into(self._host.read_view)
        except BlockingIOError:
            return False

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_socket(self) -> None:
        self._cancel_timer()
        self._out.clear()
        if self.is_open:
            self._host.loop.unwatch(self._socket.fileno())
            self._socket.close()
            self._host.leaving.discard(self)


def _code_name(code: int) -> str:
    try:
        return TerminateCode(code).name
    except ValueError:
        return f"{code:#06x}"
