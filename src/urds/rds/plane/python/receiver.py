"""The receive side of a path: bytes to messages, duplicates dropped, restarts detected.

A value machine: no I/O, no clock, no lock. Whole messages go straight into the inbox of their
target port; messages for the control plane are kept until the shell takes them.

A signal handler's exception may come between any two calls. So the changes that belong to a message
are stored right before the one call that puts it into its queue (`interrupts`).

Numbers. A sequence may skip forward (a cancelled message leaves a hole). It falls back only in two
cases: a new stream retransmits messages of the old one, flagged RETRANSMITTED, and those below the
expected number are dropped; or the peer restarted. A urds node sends its generation in the header
of each map, and a map opens each stream: its numbers count afresh, whatever its clock says. A Linux
kernel's restart must be detected *before* the duplicate rule, else its first messages look like old
duplicates (Source: observed with linux v6.1, v6.12, v7.2, see docs/protocol/rds-tcp.md and
docs/adr/0008-the-map-tells-the-life.md):

    a  a number below the expected one without the flag: taken, the expected number follows
    b  a probe with another generation, or without one although a probe was seen before
    c  a retransmission below every number on the last stream with traffic

A message is lost with its stream unless it is complete.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from urds.rds.constants import CONGESTION_MAP_BYTES, PROBE_PORT, HeaderFlag
from urds.rds.plane.contract import DownReason, Limits, Received, SocketAddress
from urds.rds.plane.python.control_budget import ControlBudget
from urds.rds.plane.python.counters import Counters
from urds.rds.plane.python.inbox import Inbox, Item, Sources
from urds.rds.plane.python.partial_message import PartialMessage
from urds.rds.plane.python.peer_generations import Fields, PeerGenerations, extension_of
from urds.rds.wire.checksum import header_intact
from urds.rds.wire.header import HEADER, HEADER_BYTES

_ACK_REQUIRED = int(HeaderFlag.ACK_REQUIRED)
_CONG_BITMAP = int(HeaderFlag.CONG_BITMAP)
_RETRANSMITTED = int(HeaderFlag.RETRANSMITTED)
_CONTROL_PAYLOAD_BYTES = 64


class ControlMessage(NamedTuple):
    """A message for the control plane, as `contract.Control` without its path."""

    sequence: int
    acknowledgement: int
    source_port: int
    target_port: int
    extension: bytes
    payload: bytes


class Receiver:
    """State of the receive direction; every message passes `_take`."""

    def __init__(
        self,
        limits: Limits,
        counters: Counters,
        *,
        inboxes: Mapping[int, Inbox],
        source_of: Callable[[int], SocketAddress],
        wall_ns: Callable[[], int],
    ) -> None:
        self.limits = limits
        self.counters = counters
        self.inboxes = inboxes
        self.sources = Sources(source_of)
        self.wall_ns = wall_ns  # for timestamps
        self._now_ns = 0  # at the last read
        self._control_budget = ControlBudget(
            burst_max=limits.control_events_max, interval_ns=limits.control_interval_ns
        )
        # Handshake results.
        self.checksum = False
        self.acknowledging = False  # a urds node: acks report messages in local inboxes
        self.watch_restarts = True  # a kernel does not announce them
        # Numbers.
        self.sequence_expected = 0
        self._lowest: int | None = None  # on this stream, dropped duplicates included
        self._floor: int | None = None  # lowest of the last stream with traffic
        self.generations = PeerGenerations()
        # The stream.
        self.frames = 0
        self.partial = PartialMessage()
        # Pending acknowledgements.
        self.ack_pending_messages = 0
        self.ack_pending_bytes = 0
        self.ack_due = False
        # Taken by the shell.
        self.controls: deque[ControlMessage] = deque()
        self.peer_map: bytes | None = None
        self.acknowledged = 0
        self.touched: dict[Inbox, int] = {}  # and how many messages came
        self.restarted = False
        self.has_delivered = False  # a message reached a socket, on any stream

    def begin_stream(self) -> None:
        """Reset the state of a stream; it outlives its stream until the next begins."""
        if self._lowest is not None:
            self._floor, self._lowest = self._lowest, None
        self.acknowledged = 0
        self._control_budget.begin_stream()

    def end_stream(self) -> None:
        """Drop the partial message and the stream's pending acknowledgements; numbers stay."""
        self.partial.forget()
        self.sources.clear()  # paths outlive streams: an absent peer costs no memory for them
        self.frames = 0
        self.reset_ack_pending()

    def reset_ack_pending(self) -> None:
        """Clear pending acknowledgements: one left."""
        self.ack_pending_messages = self.ack_pending_bytes = 0
        self.ack_due = False

    def restart_peer(self) -> None:
        """Note the restart of a urds node.

        The expected number stays: it counts the new generation since its first map, and its
        messages may have been arriving for several streams before its hello.
        """
        self._floor = None

    def received(self) -> Received:
        """Return the numbers by which a duplicate is detected: they outlive the path.

        A peer retransmits every unacknowledged message, however long ago it was sent and whatever
        was forgotten in between. So the next path to the same peer gets them with `expect`, and
        decides as if it had existed all the time.
        """
        return Received(
            sequence_expected=self.sequence_expected,
            floor=self._floor if self._lowest is None else self._lowest,
            probe_sequence=self.generations.probe_sequence,
            generation=self.generations.generation,
            map_generation=self.generations.map_generation,
            watch_restarts=self.watch_restarts,
        )

    def expect(self, received: Received) -> None:
        """Continue with the numbers of an earlier path; before the first stream."""
        self.sequence_expected = received.sequence_expected
        self._floor = received.floor
        self.generations.probe_sequence = received.probe_sequence
        self.generations.generation = received.generation
        self.generations.map_generation = received.map_generation
        self.watch_restarts = received.watch_restarts

    def receive_data(self, data: bytes, now_ns: int) -> DownReason | None:
        """Take every whole message off the stream; keep the rest for the next read.

        Return why the stream must end, None while it is intact.
        """
        self._now_ns, partial, offset, reason = now_ns, self.partial, 0, None
        if partial.begun:
            data, partial.begun = partial.begun + data, b""
        elif partial.missing_bytes:
            whole = partial.add(data)
            if whole is None:
                return None
            fields, payload, offset = whole
            reason = self._take(fields, payload)
        unpack, bytes_max, checked = HEADER.unpack_from, self.limits.frame_bytes_max, self.checksum
        while reason is None and offset + HEADER_BYTES <= len(data):
            fields = unpack(data, offset)
            begin, end = offset + HEADER_BYTES, offset + HEADER_BYTES + fields[2]
            if fields[2] > bytes_max:
                reason = DownReason.TOO_LONG
            elif checked and not header_intact(fields):
                reason = DownReason.BAD_CHECKSUM
            elif end > len(data):
                break
            else:
                offset, reason = end, self._take(fields, data[begin:end])
        if offset < len(data):
            partial.keep(data, offset)
        return reason

    def _take(self, fields: Fields, payload: bytes) -> DownReason | None:
        """Take a whole message: into an inbox, for the control plane, or dropped.

        Return why the stream must end, if it must.
        """
        sequence, acknowledgement, _, source_port, target_port, flags = fields[:6]
        self.frames += 1
        if acknowledgement > self.acknowledged:
            self.acknowledged = acknowledgement
        if flags & _ACK_REQUIRED:
            self.ack_due = True
            self.counters.recv_ack_required += 1
        if flags == _CONG_BITMAP:  # exactly this flag: kernel parity
            return self._take_map(fields, payload)
        is_control = not target_port or (not source_port and target_port == PROBE_PORT)
        if is_control and not self._admits_control(source_port, target_port):
            return None  # first, since it may announce a restart
        if is_control and not sequence and not flags & _RETRANSMITTED:
            # A hello, its answer, or an acknowledgement of a urds node: all outside the numbers.
            if source_port or target_port:
                self._keep_control(fields, payload)
            else:
                self.counters.ack_received += 1
            return None
        if self.watch_restarts and self._is_restart(fields):
            self.sequence_expected = 0
            self._floor = None
            self.restarted = True
        # Dropped duplicates count: a stream may be cut before it retransmits the next ones.
        if self._lowest is None or sequence < self._lowest:
            self._lowest = sequence
        if source_port == PROBE_PORT and not target_port:
            self.generations.probe_sequence = sequence
        if flags & _RETRANSMITTED and sequence < self.sequence_expected:
            self.counters.recv_drop_old_seq += 1
        elif not is_control:
            self._deliver(fields, payload)
        else:
            if source_port or target_port:
                self._keep_control(fields, payload)
            self.sequence_expected = sequence + 1  # last: an interrupt may double a ping
        return None

    def _take_map(self, fields: Fields, payload: bytes) -> DownReason | None:
        if len(payload) != CONGESTION_MAP_BYTES:
            return DownReason.BAD_MAP
        self.peer_map = payload
        if fields[9]:
            self._note_generation(fields)
        return None

    def _deliver(self, fields: Fields, payload: bytes) -> None:
        """Put a message into its inbox, or drop it if no socket has the port."""
        sequence, _, payload_bytes, source_port, target_port, _, _, _, _, high, low = fields
        if self.acknowledging:  # a urds node: due at once at the bounds
            limits = self.limits
            self.ack_pending_messages += 1
            self.ack_pending_bytes += payload_bytes
            if (
                self.ack_pending_messages >= limits.acknowledge_messages
                or self.ack_pending_bytes >= limits.acknowledge_bytes
            ):
                self.ack_due = True
        inbox, counters = self.inboxes.get(target_port), self.counters
        if inbox is None:
            counters.recv_drop_no_sock += 1
            self.sequence_expected = sequence + 1
            return
        self.has_delivered = True
        counters.recv_queued += 1
        counters.recv_bytes_added_to_sock += payload_bytes
        self.touched[inbox] = self.touched.get(inbox, 0) + 1
        item: Item = payload, self.sources[source_port]
        if inbox.detailed or high or low:
            extension = extension_of(fields) if high or low else b""
            item = (*item, extension, self.wall_ns(), self._now_ns)
            inbox.detailed_messages += 1
        joined = None if payload else inbox.joined(item)
        inbox.receive_queued_bytes += payload_bytes
        self.sequence_expected = sequence + 1
        if joined is None:
            inbox.queue.append(item)  # one step with the two stores
        else:
            inbox.queue[-1] = joined

    # -- rare cases

    def _note_generation(self, fields: Fields) -> None:
        """Count a urds node's numbers afresh if a map carries another generation."""
        if self.generations.is_new_by_map(extension_of(fields)):
            self.sequence_expected = 0
            self._floor = None

    def _is_restart(self, fields: Fields) -> bool:
        """Return whether a kernel restarted (rules b and c); checked before the duplicates."""
        sequence = fields[0]
        again = fields[5] & _RETRANSMITTED and sequence < self.sequence_expected
        below_floor = self._floor is not None and sequence < self._floor
        return bool(again and below_floor) or self.generations.is_new_by_probe(fields)

    def _admits_control(self, source_port: int, target_port: int) -> bool:
        """Count a ping, pong or probe; return whether it is within the budget."""
        if not source_port and not target_port:
            return True
        if not target_port:
            self.counters.recv_ping += 1
        handshake = PROBE_PORT in (source_port, target_port)
        if self._control_budget.admits(self._now_ns, handshake=handshake):
            return True
        self.counters.recv_drop_control_full += 1
        return False

    def _keep_control(self, fields: Fields, payload: bytes) -> None:
        self.controls.append(
            ControlMessage(
                sequence=fields[0],
                acknowledgement=fields[1],
                source_port=fields[3],
                target_port=fields[4],
                extension=extension_of(fields),
                payload=payload[:_CONTROL_PAYLOAD_BYTES],
            )
        )
