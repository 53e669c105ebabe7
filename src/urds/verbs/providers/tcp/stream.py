"""One established iWARP stream: a TCP connection, a queue pair, and the codec between them.

Sending happens in the thread that posts while the connection takes octets; what it does not take
waits here, at most 256 KiB, and the engine keeps the rest (`poll_transmit` is not asked). Reading
goes through the adapter's one buffer, so an idle stream holds no memory but a partial FPDU's. From
there the engine copies each payload once to its place: to read it there at once would take a call
per FPDU, and one call for four costs less than the copies.

A stream ends once, for one reason. Said on purpose: what was sent before leaves, then a FAREWELL
to a node of our own, then the end of the TCP stream, for which both sides wait a bounded time, so
that no reset eats the last octets. Everything else sends a TERMINATE if it can. The adapter's lock
guards a stream.
"""

import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from typing import Final, Protocol

from urds.verbs.engine.attributes import QPAttr
from urds.verbs.engine.numbers import QPAttrMask, QPState
from urds.verbs.engine.packets import ANSWERED, Packet, PacketKind, Syndrome
from urds.verbs.engine.queue_pair import QueuePair
from urds.verbs.providers.tcp.decoder import Decoder, Farewell, Terminated
from urds.verbs.providers.tcp.encoder import Encoder
from urds.verbs.providers.tcp.frames import FPDU_BYTES_MAX, StreamBroken, TerminateCode
from urds.verbs.providers.tcp.out_queue import OutQueue
from urds.verbs.providers.tcp.reactor import Reactor, Timer
from urds.verbs.providers.tcp.settings import TcpStats

OUT_BYTES_MAX: Final = 256 * 1024  # that wait for the connection
READ_BYTES: Final = 256 * 1024  # of one read
BUFFER_BYTES: Final = READ_BYTES + 2 * FPDU_BYTES_MAX  # a partial FPDU, or pair, in front

# What a TERMINATE of a plain peer says of the read that it could not serve.
_SYNDROME_OF: Final = {
    0x1: Syndrome.NAK_REMOTE_ACCESS,  # remote protection, tagged buffer
    0x2: Syndrome.NAK_INVALID_REQUEST,
}


class StreamEnd(Enum):
    """How a stream ended."""

    DISCONNECTED = auto()
    BROKEN = auto()


class Host(Protocol):
    """What a stream needs of its adapter."""

    reactor: Reactor
    stats: TcpStats
    read_view: memoryview  # BUFFER_BYTES, for one handler at a time

    def pump_events(self, qp: QueuePair) -> None:
        """Hand on the asynchronous events of a queue pair."""

    def forget_stream(self, stream: "Stream") -> None:
        """Forget a stream that is closed."""


class Stream:
    """The octets of one connection in both directions. `on_end` is called once."""

    def __init__(
        self,
        host: Host,
        connection: socket.socket,
        qp: QueuePair,
        encoder: Encoder,
        decoder: Decoder,
        *,
        own: bool,
        may_send: bool,
        farewell_ns: int,
        on_end: Callable[[StreamEnd, str], None],
    ) -> None:
        self._host = host
        self._socket = connection
        self._qp = qp
        self._encoder = encoder
        self._decoder = decoder
        self._own = own
        self._may_send = may_send  # a plain responder waits for the initiator's first frame
        self._farewell_ns = farewell_ns
        self._on_end = on_end
        self._out = OutQueue()
        qp.on_detach = self._out.copy
        self._kept = b""  # a partial FPDU
        self._events = select.EPOLLIN
        self._is_reading = False
        self._answer_may_wait = False  # nothing that was read asks for data
        self._is_deferred = False
        self._is_over = False  # the end was told; only the socket is still being closed
        self._peer_is_done = False
        self._timer: Timer | None = None

    @property
    def is_reading(self) -> bool:
        """Tell whether this is the inside of a packet's delivery: the queue pair is at work."""
        return self._is_reading

    @property
    def is_open(self) -> bool:
        """Tell whether the socket is; it outlives the stream while last octets leave."""
        return self._socket.fileno() >= 0

    def start(self, octets: bytes, *, first_write: bool) -> None:
        """Take over the connection; `octets` came with the set-up's last frame.

        A plain responder may wait for a `first_write`, an empty one, before it speaks.
        """
        if first_write:
            self._encoder.emit_empty_write(self._out.pieces)
        self._host.reactor.watch(self._socket.fileno(), self._events, self._handle_socket)
        self._kept = octets
        if octets:
            self._read(0)
        self.kick()

    # -- sending

    def kick(self) -> None:
        """Carry away what the queue pair has to say, as far as the connection takes it."""
        if self._is_reading or self._is_over:
            return
        self._is_deferred = False
        if self._has_running_queue_pair():
            try:
                self._send()
            except OSError as error:
                self._lose(str(error))
                return
            if self._encoder.is_terminated:
                # The answer to a plain peer's request could be said in no other way.
                self._end(StreamEnd.BROKEN, "no receive for a message of the peer")
                return
            self._plan_timer()
            self._host.pump_events(self._qp)
        if not self._has_running_queue_pair():
            self._end_with_queue_pair()

    def _has_running_queue_pair(self) -> bool:
        return self._qp.state not in (QPState.ERR, QPState.RESET)

    def _send(self) -> None:
        now_ns = time.monotonic_ns()
        while True:
            is_dry = self._take_packets(now_ns)
            is_empty = self._out.send(self._socket)
            has_confirmed = not self._own and self._confirm(now_ns)
            if not is_empty or (is_dry and not has_confirmed):
                break
        self._watch_for_room(not is_empty)

    def _take_packets(self, now_ns: int) -> bool:
        """Take what the engine wants sent, as far as there is room; tell whether it was all."""
        if not self._may_send:
            return True
        qp, encoder, out = self._qp, self._encoder, self._out
        while encoder.octets_emitted - out.sent_bytes < OUT_BYTES_MAX:
            packet = qp.poll_transmit(now_ns)
            if packet is None:
                return True
            refusal = encoder.emit(packet, out.pieces)
            if refusal is not None:
                qp.receive_packet(refusal, now_ns)
        return False

    def _confirm(self, now_ns: int) -> bool:
        """Complete what TCP has taken: a plain peer acknowledges nothing. Tell if it was any."""
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
            self._host.reactor.change(self._socket.fileno(), events)

    def _plan_timer(self) -> None:
        deadline_ns = self._qp.poll_timeout()
        if deadline_ns is None:
            return
        if self._timer is not None:
            if self._timer.deadline_ns <= deadline_ns:
                return  # it looks again when it rings
            self._timer.cancel()
        self._timer = self._host.reactor.call_at(deadline_ns, self._handle_timer)

    def _handle_timer(self) -> None:
        self._timer = None
        if not self._is_over:
            self._qp.handle_timeout(time.monotonic_ns())
            self.kick()

    # -- receiving

    def _handle_socket(self, events: int) -> None:
        if self._is_over:
            self._finish(events)
            return
        if events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
            self._handle_readable()
        if self._is_over:
            return
        if self._answer_may_wait and not events & select.EPOLLOUT:
            # The application's own answer, if it has one at once, takes the acknowledgement
            # along, which saves a call here and a wake-up there.
            if not self._is_deferred:
                self._is_deferred = True
                self._host.reactor.defer(self._kick_deferred)
            self._host.pump_events(self._qp)
        else:
            self.kick()

    def _kick_deferred(self) -> None:
        if self._is_deferred:
            self.kick()

    def _handle_readable(self) -> None:
        view, start = self._host.read_view, len(self._kept)
        try:
            count = self._socket.recv_into(view[start : start + READ_BYTES])
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(str(error))
            return
        if count:
            self._read(count)
        elif self._own or self._kept:
            self._lose("the connection ended without a word")
        else:
            self._end(StreamEnd.DISCONNECTED, "the peer closed the connection")

    def _read(self, count: int) -> None:
        """Take the frames of what was kept and of `count` octets behind it in the buffer."""
        view = self._host.read_view
        position, end = 0, len(self._kept) + count
        view[: len(self._kept)] = self._kept
        self._kept = b""
        self._is_reading = True
        self._answer_may_wait = True
        now_ns = time.monotonic_ns()
        try:
            while position < end and not self._is_over and self._has_running_queue_pair():
                item, taken_bytes = self._decoder.take(view[position:end])
                if not taken_bytes:
                    break
                position += taken_bytes
                self._may_send = True
                if isinstance(item, Packet):
                    self._answer_may_wait &= item.kind not in ANSWERED
                    self._deliver(item, now_ns)
                elif item is not None:
                    self._handle_end_frame(item)
        except StreamBroken as broken:
            self._break(broken)
        finally:
            self._is_reading = False
        self._kept = bytes(view[position:end]) if not self._is_over else b""

    def _deliver(self, packet: Packet, now_ns: int) -> None:
        self._encoder.peer_wrote_last = self._decoder.wrote_last
        self._qp.receive_packet(packet, now_ns)
        if not self._own and packet.kind == PacketKind.READ_RESPONSE:
            self._confirm(now_ns)

    def _handle_end_frame(self, item: Farewell | Terminated) -> None:
        if isinstance(item, Farewell):
            self._end(StreamEnd.DISCONNECTED, "the peer disconnected")
            return
        self._host.stats.terminates_received += 1
        asked = self._encoder.oldest_asked()
        if asked is not None and not self._own:
            # The peer ends the stream over a read of ours, as far as anybody can tell.
            syndrome = _SYNDROME_OF.get(item.code >> 8 & 0xF, Syndrome.NAK_REMOTE_OPERATION)
            refusal = Packet(PacketKind.ACK, self._qp.qpn, psn=asked, syndrome=syndrome)
            self._qp.receive_packet(refusal, time.monotonic_ns())
        self._end(StreamEnd.BROKEN, f"the peer terminated the stream: {_code_name(item.code)}")

    # -- the end

    def disconnect(self) -> None:
        """End the stream on purpose: what was sent before leaves first, as far as it may.

        The octets that still wait are copied, at most what the engine may have under way (128
        packets), for the flush gives their memory back to the application.
        """
        if self._is_over:
            return
        self._say_the_rest()
        self._encoder.emit_farewell(self._out.pieces)
        self._end(StreamEnd.DISCONNECTED, "disconnected here")

    def abort(self) -> None:
        """Drop the connection without a word; nothing is told."""
        self._is_over = True
        self._cancel_timer()
        self._close_socket()

    def _say_the_rest(self) -> None:
        """Take all that the engine would say now into the out-queue."""
        now_ns = time.monotonic_ns()
        while self._may_send and (packet := self._qp.poll_transmit(now_ns)) is not None:
            self._encoder.emit(packet, self._out.pieces)

    def _end_with_queue_pair(self) -> None:
        """End the stream of a queue pair that has failed, or was taken back, by itself."""
        self._say_the_rest()
        self._terminate(TerminateCode.LOCAL_CATASTROPHIC)
        self._end(StreamEnd.BROKEN, f"queue pair went to {self._qp.state.name}")

    def _break(self, broken: StreamBroken) -> None:
        self._host.stats.streams_broken_by_peer += 1
        self._host.stats.crc_errors += broken.code is TerminateCode.MPA_CRC
        self._terminate(broken.code, broken.header)
        self._end(StreamEnd.BROKEN, str(broken))

    def _lose(self, reason: str) -> None:
        self._host.stats.streams_lost += 1
        self._out.clear()
        self._peer_is_done = True
        self._end(StreamEnd.BROKEN, reason)

    def _terminate(self, code: TerminateCode, header: bytes = b"") -> None:
        if not self._encoder.is_terminated:
            self._encoder.emit_terminate(code, header, self._out.pieces)

    def _end(self, end: StreamEnd, reason: str) -> None:
        """Tell the end, fail the queue pair, and close the connection when the rest is out."""
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
        self._host.pump_events(qp)
        self._finish(0)
        if self.is_open:
            deadline_ns = now_ns + self._farewell_ns
            self._timer = self._host.reactor.call_at(deadline_ns, self._close_socket)
        self._on_end(end, reason)

    def _finish(self, events: int) -> None:
        """Send the last octets, close our half, and wait for the peer's."""
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
            self._host.reactor.unwatch(self._socket.fileno())
            self._socket.close()
            self._host.forget_stream(self)


def _code_name(code: int) -> str:
    try:
        return TerminateCode(code).name
    except ValueError:
        return f"{code:#06x}"
