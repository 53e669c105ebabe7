"""One ordered stream to a peer, as a value machine: bytes and calls go in, bytes come out.

`PathCore` joins the two directions: a received frame acknowledges sent messages, a sent frame
acknowledges received ones. It knows nothing of sockets, threads or clocks; the shell
(`rds.plane.python.plane`) and the simulator make the same calls:

    attach, detach         a stream came, a stream went
    receive_data           bytes off the stream
    poll_transmit, transmitted
                           bytes for the stream, and how many of them it took
    handle_stream_acknowledged, handle_timeout at `ack_at_ns`

Order on a fresh stream: local congestion map; hello, if any; then, once not held, retransmissions
and new messages. Acknowledgements and maps are not numbered and stand between messages only.

Numbers belong to a generation of the node that gave them. The header of a map has it, so that the
first bytes of a stream identify the numbers that follow; and nothing acknowledges before the peer's
first frame, which carries its generation. See docs/adr/0008-the-map-tells-the-life.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from urds.rds.constants import PROBE_PORT, Capability, HeaderFlag
from urds.rds.plane.contract import (
    Buffer,
    DownReason,
    Limits,
    SocketAddress,
)
from urds.rds.plane.python.counters import Counters
from urds.rds.plane.python.framing import emit_header
from urds.rds.plane.python.inbox import Inbox
from urds.rds.plane.python.queued_messages import Fence, Owner
from urds.rds.plane.python.receiver import Receiver
from urds.rds.plane.python.sender import REFERENCE_BYTES, WRITE_BYTES, Sender
from urds.rds.types import AckMode, Hold
from urds.rds.wire.extensions import Handshake, Mark, emit_handshake

_NO_EXTENSION = b""
_CONG_BITMAP = int(HeaderFlag.CONG_BITMAP)
_NO_CAPABILITY = Capability(0)


class PathCore:
    """State of one path; no locks: the caller serialises the calls."""

    def __init__(
        self,
        limits: Limits,
        counters: Counters,
        *,
        sequence_first: int,
        generation: int | None = None,
        inboxes: Mapping[int, Inbox],
        source_of: Callable[[int], SocketAddress],
        map_bytes: Callable[[], bytes],
        wall_ns: Callable[[], int] = lambda: 0,
    ) -> None:
        self.limits = limits
        self.counters = counters
        self.sender = Sender(limits, counters, sequence_first=sequence_first)
        self.receiver = Receiver(
            limits, counters, inboxes=inboxes, source_of=source_of, wall_ns=wall_ns
        )
        self._map_bytes = map_bytes
        # Else a second message fills the path, or each requests an acknowledgement.
        self._has_place_for_two = (
            limits.path_messages_max > 1
            and limits.unacked_packets_max > 1
            and limits.unacked_bytes_max > REFERENCE_BYTES
        )
        self._own_generation = _NO_EXTENSION
        if generation is not None:
            self._own_generation = emit_handshake(
                Handshake(generation=generation, mark=Mark(_NO_CAPABILITY))
            )
        self.attached = False
        self.hold = Hold.NOTHING
        self.map_due = False
        self._hellos: dict[tuple[int, int], bytes] = {}  # ports to extension
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self.bytes_written = 0  # to the current stream
        self.ack_at_ns: int | None = None  # when `handle_timeout` has something to do

    # -- the stream comes and goes

    def attach(self, hold: Hold) -> None:
        """Begin a stream with the local congestion map; nothing else leaves while held."""
        assert not self.attached, "the shell detaches first"
        self.attached = True
        self.hold = hold
        self.map_due = True
        self._hellos.clear()
        self.bytes_written = 0
        self.receiver.begin_stream()

    def detach(self) -> None:
        """End the stream: queue unacknowledged messages to retransmit, drop partial ones."""
        self.attached = False
        self.hold = Hold.NOTHING
        self.map_due = False
        self._hellos.clear()
        self._out.clear()
        self._out_bytes = 0
        self.ack_at_ns = None
        self.sender.end_stream()
        self.receiver.end_stream()
        self.counters.conn_reset += 1

    def end_hold(self, received_by_peer: int | None) -> None:
        """End `Hold.HELLO`; messages that the peer reports received are not retransmitted."""
        if received_by_peer is not None:
            self.sender.forget_retransmits(received_by_peer)
        if self.hold is Hold.HELLO:
            self.hold = Hold.NOTHING

    def agree(self, *, ack_mode: AckMode, checksum: bool) -> None:
        """Set what the handshake agreed with the peer."""
        urds_node = ack_mode is AckMode.PEER_ACKNOWLEDGED
        self.sender.ack_mode = ack_mode
        self.sender.checksum = checksum
        self.receiver.checksum = checksum
        self.receiver.acknowledging = urds_node
        self.receiver.watch_restarts = not urds_node
        # Messages that arrived before the agreement did not count as pending acknowledgement; send
        # it at once. The peer may have done so already, and ended the stream since.
        self.receiver.ack_due = urds_node and self.receiver.frames > 0
        if urds_node and self.receiver.acknowledged:
            self.sender.handle_peer_acknowledged(self.receiver.acknowledged)
            self.sender.forget_retransmits(self.receiver.acknowledged)

    def restart_peer(self) -> int:
        """Note the peer's restart; return how many sent messages are lost with it."""
        self.receiver.restart_peer()
        return self.sender.drop_handed_over()

    # -- sending

    def send(
        self,
        owner: Owner,
        source_port: int,
        target_port: int,
        payload: Buffer,
        extension: bytes = b"",
    ) -> None:
        """Queue a message of a socket; the caller has checked every bound."""
        self.sender.queue(owner, source_port, target_port, payload, extension)

    def control(self, *, source_port: int, target_port: int, extension: bytes, hello: bool) -> None:
        """Queue a message of the control plane.

        A hello waits for the peer's first frame; it replaces an unsent one of its ports.
        """
        if hello:
            self._hellos[source_port, target_port] = extension
        else:
            if PROBE_PORT in (source_port, target_port):
                self.sender.forget_probes()
            self.sender.queue(None, source_port, target_port, b"", extension, ahead=True)
            self.counters.send_pong += 1

    def hold_behind(self, fence: Fence) -> None:
        """Hold new messages back until another path's fence is open."""
        self.sender.blocked_by = fence

    def wants_to_write(self) -> bool:
        """Return whether `poll_transmit` would return bytes."""
        if not self.attached:
            return False
        if self._out or self.map_due or self.receiver.ack_due:
            return True
        sender = self.sender
        if sender.ack_request_due and sender.wants_ack():
            return True
        if self._hellos and self.receiver.frames:
            return True
        if self.hold is not Hold.NOTHING:
            return False
        return bool(sender.retransmits) or (bool(sender.unsent) and not self.is_gated())

    def is_plain(self) -> bool:
        """Return whether a message may leave alone if none is queued or unacknowledged."""
        sender = self.sender
        return (
            self.attached
            and self.hold is Hold.NOTHING
            and sender.ack_mode is AckMode.PEER_ACKNOWLEDGED
            and sender.blocked_by is None
            and not (self._out or self.map_due or self._hellos)
            and not (sender.retransmits or sender.fences)
            and not (sender.ack_wanted or sender.ack_request_due)
            and self._has_place_for_two
        )

    def is_gated(self) -> bool:
        """Return whether new messages wait for another path's fence."""
        fence = self.sender.blocked_by
        return fence is not None and not fence.open

    def poll_transmit(self) -> list[Buffer]:
        """Return buffers for the stream, 64 KiB or some long messages; [] if there is nothing.

        It returns the same buffers until `transmitted` reports that they were taken.
        """
        if self.attached and self._out_bytes < WRITE_BYTES:
            if self.map_due:
                self._frame_map()
            if self._hellos and self.receiver.frames:
                self._frame_hellos()
            if self.hold is Hold.NOTHING and (self.sender.unsent or self.sender.retransmits):
                self._frame_messages()
            if self.receiver.ack_due or (self.sender.ack_request_due and self.sender.wants_ack()):
                self._frame_acknowledgement()
        return self._out

    def _frame_map(self) -> None:
        """Frame the local map: number 0, ports 0, exactly the flag CONG_BITMAP.

        It has the generation unless the peer is known to be a kernel.
        """
        self.map_due = False
        to_kernel = self.sender.ack_mode is AckMode.STREAM_ACKNOWLEDGED
        extension = _NO_EXTENSION if to_kernel else self._own_generation
        data = self._map_bytes()
        self._append_frame(0, flags=_CONG_BITMAP, extension=extension, payload=data)
        self.counters.cong_update_queued += 1

    def _frame_hellos(self) -> None:
        for ports, extension in self._hellos.items():
            self._append_frame(self._last_received(), ports=ports, extension=extension)
        self._hellos.clear()

    def _frame_messages(self) -> None:
        sender, receiver = self.sender, self.receiver
        acknowledgement = max(0, receiver.sequence_expected - 1) if receiver.acknowledging else 0
        made = sender.frame(self._out, self._out_bytes, acknowledgement)
        self._out_bytes += made
        if made and receiver.acknowledging:
            receiver.reset_ack_pending()  # every data header carries it
            self.ack_at_ns = None

    def _frame_acknowledgement(self) -> None:
        """Frame one acknowledgement at most: the newest number, sent once it is bytes.

        It requests the peer's if a thread waits for that.
        """
        if self.receiver.acknowledging:
            flags = 0
            if self.sender.wants_ack():
                self.sender.ack_request_due = False
                flags = HeaderFlag.ACK_REQUIRED
                self.counters.send_ack_required += 1
            self._append_frame(self._last_received(), flags=flags)
            self.counters.ack_sent += 1
        self.receiver.reset_ack_pending()
        self.ack_at_ns = None

    def _last_received(self) -> int:
        return max(0, self.receiver.sequence_expected - 1)

    def _append_frame(
        self,
        acknowledgement: int,
        *,
        ports: tuple[int, int] = (0, 0),
        flags: int = 0,
        extension: bytes = _NO_EXTENSION,
        payload: bytes = b"",
    ) -> None:
        """Append a frame without a number; `ports` are its source and its target."""
        header = emit_header(
            0,
            acknowledgement,
            len(payload),
            *ports,
            flags,
            extension,
            self.sender.checksum,
        )
        data = header + payload
        self._out.append(data)
        self._out_bytes += len(data)
        # Unnumbered frames count as stream bytes: Linux frees by the stream's count.
        self.sender.position += len(data)

    def transmitted(self, byte_count: int) -> bool:
        """Note that the stream took the first `byte_count` bytes; return whether it took all."""
        self.bytes_written += byte_count
        self._out_bytes -= byte_count
        if not self._out_bytes:
            self._out = []
            return True
        taken = 0
        for buffer in self._out:
            if byte_count < len(buffer):
                break
            byte_count -= len(buffer)
            taken += 1
        del self._out[:taken]
        if byte_count:
            self._out[0] = memoryview(self._out[0])[byte_count:]
        return False

    # -- receiving

    def receive_data(self, data: bytes, now_ns: int) -> DownReason | None:
        """Take bytes off the stream; return why it must end, None while it is intact."""
        receiver = self.receiver
        reason = receiver.receive_data(data, now_ns)
        if receiver.frames and self.hold is Hold.FIRST_FRAME:
            self.hold = Hold.NOTHING
        if receiver.acknowledging:
            if receiver.ack_pending_messages and self.ack_at_ns is None:
                self.ack_at_ns = now_ns + self.limits.acknowledge_delay_ns
            if receiver.acknowledged and not self.sender.handle_peer_acknowledged(
                receiver.acknowledged
            ):
                return reason or DownReason.BAD_ACKNOWLEDGEMENT
        return reason

    def handle_stream_acknowledged(self, byte_count: int) -> None:
        """Free messages within the first `byte_count` bytes, which the peer's TCP has.

        Nothing is freed before the peer's first frame: TCP also acknowledges bytes that a peer
        which then rejects the connection never reads.
        """
        if self.receiver.frames and self.sender.ack_mode is AckMode.STREAM_ACKNOWLEDGED:
            self.sender.handle_stream_acknowledged(byte_count)

    def acknowledge(self) -> None:
        """Make a pending acknowledgement due at once: later there may be no stream."""
        receiver = self.receiver
        receiver.ack_due |= self.attached and receiver.ack_pending_messages > 0

    def request_ack(self) -> None:
        """Request acknowledgement of every message here as soon as the peer has it."""
        self.sender.ack_request_due = self.sender.message_count() > 0

    # -- time

    def is_held(self) -> bool:
        """Return whether messages wait for the peer's first frame or hello."""
        return self.hold is not Hold.NOTHING

    def handle_timeout(self, now_ns: int) -> None:
        """Make an acknowledgement due that no message carried."""
        if self.ack_at_ns is not None and now_ns >= self.ack_at_ns:
            self.receiver.ack_due = True
