"""The receiving half of a path: octets to messages, repeats dropped, restarts noticed.

A value machine: no I/O, no clock, no lock. Whole messages go straight into the inbox of their
target port; what is for the control plane is kept for the shell to fetch.

Numbers. A sequence may skip forward (a cancelled message leaves a hole). It falls back only in two
cases: a new stream repeats what the old one carried, flagged RETRANSMITTED, and such repeats below
the expected number are dropped; or the peer began a new life. A new life of an own node says so in
the header of each map, and a map opens each stream: its numbers count afresh, whatever its clock
says. A new life of a Linux kernel must be recognised *before* the duplicate rule, else its first
messages look like old repeats (Source: observed with linux v6.1, v6.12, v7.2, see
docs/protocol/rds-tcp.md):

    a  a number below the expected one without the flag: taken, the expected number follows
    b  a probe with another generation, or without one although a probe was seen before
    c  a repeat below everything that the last stream with traffic carried

A message dies with its stream unless it is complete.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple, cast

from urds.constants import CONGESTION_MAP_BYTES, HeaderFlag
from urds.dataplane.base import DownReason, Limits, SocketAddress
from urds.dataplane.reference.alike import RUN_MIN, payloads_of_run
from urds.dataplane.reference.control_budget import ControlBudget
from urds.dataplane.reference.counters import Counters
from urds.dataplane.reference.inbox import Inbox
from urds.dataplane.reference.peer_lives import (
    PROBE_PORT,
    RETRANSMITTED,
    Fields,
    PeerLives,
    extension_of,
)
from urds.dataplane.reference.runs import Run
from urds.dataplane.reference.sources import Sources
from urds.wire.header import HEADER, HEADER_BYTES

_ACK_REQUIRED = int(HeaderFlag.ACK_REQUIRED)
_CONG_BITMAP = int(HeaderFlag.CONG_BITMAP)
_FIRST_PORT = 2
_NO_NUMBER = 1 << 64  # above every sequence number
_CONTROL_PAYLOAD_BYTES = 64
# A message that is not wholly here is collected apart from this length on; below it, it is
# carried to the next read with its header.
_BODY_BYTES = 8192
_LIKE_FROM, _LIKE_TO = 16, 24  # length and ports in a header: the same in like messages
_LOOK_MESSAGES = 4  # that follow a look at a message which is not like its neighbour
_READ_BYTES = 65536
# From this length on a payload is read alone and in one piece, so that what the system call
# returns is the payload, uncopied; while such messages come, headers are read alone as well.
# Between the two lengths several are read at once into warm memory (`stream_reading`).
_ALONE_BYTES = 262144
_READ_BYTES_MAX = 4 << 20


class ControlMessage(NamedTuple):
    """A message for the control plane, as `base.Control` without its path."""

    sequence: int
    acknowledgement: int
    source_port: int
    target_port: int
    extension: bytes
    payload: bytes


class Incoming:
    """State of one receiving direction; `receive_data` is the way of every message."""

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
        self._wall_ns = wall_ns
        self._now_ns = 0  # at the last read
        self._control_budget = ControlBudget(
            burst_max=limits.control_events_max, interval_ns=limits.control_interval_ns
        )
        # What the handshake agreed.
        self.checksum = False
        self.acknowledging = False  # an own node: it wants to know what lies in our inboxes
        self.watch_restarts = True  # a kernel does not tell
        # Numbers.
        self.sequence_expected = 0
        self._lowest: int | None = None  # on this stream, dropped repeats included
        self._accepted = False  # a number on this stream
        self._floor: int | None = None  # lowest of the last stream with traffic
        self.lives = PeerLives()
        # The stream.
        self.frames = 0
        self._carry = b""
        self._long: Fields | None = None  # header of the long message being collected
        self._body: list[bytes | memoryview] = []
        self._body_missing = 0
        self._long_before = False  # the last payload was long, the next one may be
        self._bulk = False  # what came last was longer than `_BODY_BYTES` on the average
        # What we owe.
        self.messages_owed = 0
        self.bytes_owed = 0
        self.acknowledgement_due = False
        # For the shell to fetch.
        self.controls: deque[ControlMessage] = deque()
        self.peer_map: bytes | None = None
        self.acknowledged = 0
        self.touched: list[tuple[Inbox, int]] = []
        self.restarted = False
        self.has_delivered = False  # a message reached a socket, on any stream

    @property
    def is_counting(self) -> bool:
        """Whether a number below the expected one is old: one was accepted on this stream."""
        return self.acknowledging and self._lowest is not None

    def octets_wanted(self) -> int:
        """Return how much to read at once."""
        if self._body_missing >= _ALONE_BYTES:
            return min(self._body_missing, _READ_BYTES_MAX)
        if self._long_before and not self._carry and not self._body_missing:
            return HEADER_BYTES
        return self._body_missing + _READ_BYTES

    def wants_plain_read(self) -> bool:
        """Tell whether nothing is begun and no long payload expected."""
        return not (self._carry or self._body_missing or self._long_before or self._bulk)

    def wants_warm_memory(self) -> bool:
        """Tell whether to read as much as there is into memory that is used again."""
        return self._bulk and not self._long_before and self._body_missing < _ALONE_BYTES

    def octets_expected(self) -> int:
        """Return how much of a long payload must arrive before reading is worth a wake-up."""
        return min(self._body_missing, _READ_BYTES_MAX) if self._long_before else 0

    def remaining(self) -> tuple[int, int]:
        """Return the octets still missing of a begun header and of a begun payload."""
        carried = len(self._carry)
        if not carried:
            return 0, self._body_missing
        if carried < HEADER_BYTES:
            return HEADER_BYTES - carried, 0
        payload_bytes: int = HEADER.unpack_from(self._carry)[2]
        return 0, HEADER_BYTES + payload_bytes - carried

    def begin_stream(self) -> None:
        """Begin anew what is known of a stream; it outlives the stream until the next one."""
        if self._lowest is not None:
            self._floor, self._lowest = self._lowest, None
        self._accepted = False
        self._control_budget.begin_stream()

    def end_stream(self) -> None:
        """Forget the partial message and what was owed on the stream; the numbers stay."""
        self._carry = b""
        self._forget_body()
        self.sources.clear()  # paths outlive streams: a peer that is gone costs no memory for them
        self.frames = 0
        self.acknowledged = 0
        self.reset_owed()

    def reset_owed(self) -> None:
        """Owe nothing any more: an acknowledgement left."""
        self.messages_owed = self.bytes_owed = 0
        self.acknowledgement_due = False

    def restart_peer(self) -> None:
        """Begin a new life of an own node.

        The expected number stays: it is the new life's since its first map, and its messages may
        have been arriving for several streams before it could say hello.
        """
        self._floor = None

    def remember_generation(self, generation: int | None) -> None:
        """Note a kernel's generation; None if it sends none (up to linux v6.19)."""
        self.lives.generation = generation

    def receive_data(self, data: bytes | memoryview, now_ns: int) -> DownReason | None:
        """Take octets off the stream; return why the stream must end, None while it is well.

        A `memoryview` is memory of the reader's: what is kept of it is copied.
        """
        self._now_ns = now_ns
        offset = 0
        if self._long is not None:
            offset = self._body_missing
            if len(data) < offset:
                self._body.append(bytes(data))
                self._body_missing -= len(data)
                return None
            self._body.append(data if len(data) == offset else data[:offset])
            fields, payload = self._long, b"".join(self._body)
            self._forget_body()
            self.frames += 1
            if fields[5] == _ACK_REQUIRED:
                self.acknowledgement_due = True
                self.counters.recv_ack_required += 1
            verdict = self._judge(fields, payload)
            if isinstance(verdict, DownReason):
                return verdict
            if verdict:
                self._deliver(fields, payload, now_ns)
        elif self._carry:
            data = self._carry + data
            self._carry = b""
        # A memoryview is unpacked and cut as bytes are.
        return self._parse(cast("bytes", data), offset, now_ns) if offset < len(data) else None

    def _forget_body(self) -> None:
        self._long = None
        self._body = []
        self._body_missing = 0

    def _parse(self, data: bytes, offset: int, now_ns: int) -> DownReason | None:
        """Take every whole message from `offset` on; keep the rest for the next read."""
        unpack, end, checked = HEADER.unpack_from, len(data) - HEADER_BYTES, self.checksum
        bytes_max, acknowledged, reason = self.limits.frame_bytes_max, self.acknowledged, None
        run, run_target, run_source, run_from, required = Run(self), -1, -1, 0, 0
        expected, frames, is_view = self._expected(), self.frames, type(data) is not bytes
        while offset <= end:
            (
                sequence, acknowledgement, payload_bytes, source_port, target_port,
                flags, credit, padding, checksum, high, low,
            ) = fields = unpack(data, offset)  # fmt: skip
            if payload_bytes > bytes_max:
                reason = DownReason.TOO_LONG
                break
            if checked and checksum and (
                sequence + acknowledgement + payload_bytes + source_port + target_port
                + (flags << 8) + credit + padding + checksum + high + low
            ) % 65535:  # fmt: skip
                reason = DownReason.BAD_CHECKSUM
                break
            following = offset + HEADER_BYTES + payload_bytes
            if following > end + HEADER_BYTES:
                break
            payload = data[offset + HEADER_BYTES : following]
            payload = bytes(payload) if is_view else payload
            offset, frames = following, frames + 1
            if acknowledgement > acknowledged:
                acknowledged = acknowledgement
            if flags == _ACK_REQUIRED:
                required, flags = required + 1, 0
            if flags or source_port < _FIRST_PORT or not target_port or sequence < expected:
                run.settle(expected)
                verdict, expected = self._judge(fields, payload), self._expected()
                if verdict is not True:
                    if verdict:
                        reason = verdict
                        break
                    continue
            if target_port != run_target or source_port != run_source:
                run_target, run_source = target_port, source_port
                run.begin(target_port, source_port, expected)
            if payload and run.plain and not high and not low:
                run.append((payload, run.source))
                run.octets += payload_bytes
            else:
                run.settle(expected)
                run.put_rare(payload, high, low, now_ns, sequence + 1)
            expected = sequence + 1
            if offset >= run_from and run.plain:
                count, run_from = self._take_run(run, data, offset, fields)
                offset += count * (HEADER_BYTES + payload_bytes)
                expected, frames = expected + count, frames + count
        run.settle(expected)
        if required:
            self.acknowledgement_due = True
            self.counters.recv_ack_required += required
        self.acknowledged = acknowledged
        self._keep_rest(data, offset, frames)
        return reason

    def _take_run(self, run: Run, data: bytes, offset: int, fields: Fields) -> tuple[int, int]:
        """Take the run of like messages that goes on at `offset` after one with header `fields`.

        Return how many there are, and the offset from which it is worth to look for another.
        """
        payload_bytes = fields[2]
        step = HEADER_BYTES + payload_bytes
        like, following = (data[at + _LIKE_FROM : at + _LIKE_TO] for at in (offset - step, offset))
        if like != following or len(data) - offset < RUN_MIN * step:
            return 0, offset + _LOOK_MESSAGES * step
        payloads, asking = payloads_of_run(data, offset, fields, bool(fields[8]))
        count = len(payloads)
        if count:
            run.extend(payloads, fields[0] + 1 + count)
            run.octets += count * payload_bytes
        if asking:
            self.acknowledgement_due = True
            self.counters.recv_ack_required += asking
        return count, offset + (count + RUN_MIN) * step  # a look in vain has its price

    def _expected(self) -> int:
        """Return the number below which `_judge` decides: all of them before one was accepted."""
        return self.sequence_expected if self._accepted else _NO_NUMBER

    def _keep_rest(self, data: bytes, offset: int, frames: int) -> None:
        """Keep an incomplete message; a long one is collected apart, without more copies."""
        self._bulk = len(data) >= _BODY_BYTES * max(1, frames - self.frames)
        self.frames = frames
        self._long_before = False
        rest = len(data) - offset
        if rest >= HEADER_BYTES:
            fields = HEADER.unpack_from(data, offset)
            if fields[2] >= _BODY_BYTES:
                self._long = fields
                self._body = [bytes(data[offset + HEADER_BYTES :])] if rest > HEADER_BYTES else []
                self._body_missing = HEADER_BYTES + fields[2] - rest
                self._long_before = fields[2] >= _ALONE_BYTES
                return
        self._carry = bytes(data[offset:]) if rest else b""

    def _deliver(self, fields: Fields, payload: bytes, now_ns: int) -> None:
        """Put one long message into its inbox."""
        run = Run(self)
        run.begin(fields[4], fields[3], self.sequence_expected)
        if run.plain and not any(fields[9:]):
            run.append((payload, run.source))
            run.octets = len(payload)
            run.settle(fields[0] + 1)
        else:
            run.put_rare(payload, fields[9], fields[10], now_ns, fields[0] + 1)

    def owe(self, messages: int, octets: int) -> None:
        """Count what an own node's acknowledgement will cover; make it due at the bounds."""
        self.messages_owed += messages
        self.bytes_owed += octets
        limits = self.limits
        if (
            self.messages_owed >= limits.acknowledge_messages
            or self.bytes_owed >= limits.acknowledge_bytes
        ):
            self.acknowledgement_due = True

    def count(self, inbox: Inbox | None, messages: int, octets: int) -> None:
        """Count messages that are about to be in their queue, or have no socket."""
        if self.acknowledging:
            self.owe(messages, octets)
        counters = self.counters
        if inbox is None:
            counters.recv_drop_no_sock += messages
            return
        self.has_delivered = True
        counters.recv_queued += messages
        counters.recv_bytes_added_to_sock += octets
        self.touched.append((inbox, messages))

    def wall_ns(self) -> int:
        """Return the wall clock, for timestamps."""
        return self._wall_ns()

    # -- what is rare

    def _judge(self, fields: Fields, payload: bytes) -> DownReason | bool:
        """Decide on a message that is not plainly next: true if it is for an inbox.

        Its number then counts as received once it lies there, which the caller sees to.
        """
        sequence, acknowledgement, _, source_port, target_port, flags = fields[:6]
        if acknowledgement > self.acknowledged:
            self.acknowledged = acknowledgement
        if flags & _ACK_REQUIRED and flags != _ACK_REQUIRED:  # alone, it is counted already
            self.acknowledgement_due = True
            self.counters.recv_ack_required += 1
        if flags == _CONG_BITMAP:  # exactly this flag: kernel parity
            if len(payload) != CONGESTION_MAP_BYTES:
                return DownReason.BAD_MAP
            self.peer_map = payload
            if fields[9]:
                self._note_life(fields)
            return False
        flagged = bool(flags & RETRANSMITTED)
        is_control = not target_port or (not source_port and target_port == PROBE_PORT)
        if (
            is_control
            and (source_port or target_port)
            and not self._admits_control(source_port, target_port)
        ):
            return False  # before anything else, for it may tell of another life
        if not sequence and not flagged and is_control:
            # A hello, its answer, or an acknowledgement of an own node: all outside the numbers.
            if source_port or target_port:
                self._keep_control(fields, payload)
            else:
                self.counters.ack_received += 1
            return False
        if self.watch_restarts and self._is_new_life(fields):
            self.sequence_expected = 0
            self._floor = None
            self.restarted = True
        # Dropped repeats count: a stream may be cut before it repeats what the next one repeats.
        self._lowest = sequence if self._lowest is None else min(self._lowest, sequence)
        if source_port == PROBE_PORT and not target_port:
            self.lives.probe_sequence = sequence
        if flagged and sequence < self.sequence_expected:
            self.counters.recv_drop_old_seq += 1
            return False
        self._accepted = True
        if not is_control:
            return True
        if source_port or target_port:
            self._keep_control(fields, payload)
        self.sequence_expected = sequence + 1  # last: an interrupt may double a ping, not lose it
        return False

    def _note_life(self, fields: Fields) -> None:
        """Count the numbers of an own node afresh if a map tells another life of it."""
        if self.lives.is_new_by_map(extension_of(fields)):
            self.sequence_expected = 0
            self._floor = None

    def _is_new_life(self, fields: Fields) -> bool:
        """Tell whether a kernel began anew (rules b and c); looked at before the duplicates."""
        sequence = fields[0]
        repeated = fields[5] & RETRANSMITTED and sequence < self.sequence_expected
        below_floor = self._floor is not None and sequence < self._floor
        return bool(repeated and below_floor) or self.lives.is_new_by_probe(fields)

    def _admits_control(self, source_port: int, target_port: int) -> bool:
        """Count a ping, pong or probe; tell whether it is within the budget."""
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
