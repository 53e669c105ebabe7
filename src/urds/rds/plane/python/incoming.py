"""The receive side of a path: bytes to messages, duplicates dropped, restarts detected.

A value machine: no I/O, no clock, no lock. Whole messages go straight into the inbox of their
target port; messages for the control plane are kept until the shell takes them.

A signal handler's exception may come between any two calls. So neighbouring messages of one read
are collected apart (`Run`), and their changes are stored right before the one call that puts them
into the queue (`interrupts`).

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

import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from urds.common.named_tuples import NamedTuple
from urds.rds.constants import CONGESTION_MAP_BYTES, PROBE_PORT, HeaderFlag
from urds.rds.plane.contract import DownReason, Limits, Received, SocketAddress
from urds.rds.plane.python.alike import RUN_MIN, payloads_of_run
from urds.rds.plane.python.counters import Counters
from urds.rds.plane.python.inbox import Inbox, Item
from urds.rds.wire.extensions import parse_handshake
from urds.rds.wire.header import HEADER, HEADER_BYTES

_ACK_REQUIRED = int(HeaderFlag.ACK_REQUIRED)
_CONG_BITMAP = int(HeaderFlag.CONG_BITMAP)
_RETRANSMITTED = int(HeaderFlag.RETRANSMITTED)
_FIRST_PORT = 2
_NO_NUMBER = 1 << 64  # above every sequence number
_CONTROL_PAYLOAD_BYTES = 64
# An incomplete message of this length or more is collected apart; a shorter one is kept, with its
# header, for the next read.
_BODY_BYTES = 8192
_LIKE_FROM, _LIKE_TO = 16, 24  # length and ports in a header: the same in like messages
_LOOK_MESSAGES = 4  # that follow a check of a message unlike the previous one
_READ_BYTES = 65536
# A payload of this length or more is read alone and in one piece, so that the system call returns
# it uncopied; while such messages arrive, headers are read alone as well. Between the two lengths
# several are read at once into warm memory (`stream_reading`).
_ALONE_BYTES = 262144
_READ_BYTES_MAX = 4 << 20
_HANDSHAKES_OF_STREAM = 4  # the peer's own and its answer to the local one, each once more
SOURCES_MAX = 1024  # a peer may send from 65,534 ports: 228 bytes each

# Header fields in the order of wire.header.HEADER.
Fields = tuple[int, int, int, int, int, int, int, int, int, int, int]


class ControlMessage(NamedTuple):
    """A message for the control plane, as `contract.Control` without its path."""

    sequence: int
    acknowledgement: int
    source_port: int
    target_port: int
    extension: bytes
    payload: bytes


class Incoming:
    """State of the receive direction; every message passes `receive_data`."""

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
        self._accepted = False  # a number on this stream
        self._floor: int | None = None  # lowest of the last stream with traffic
        self.generations = PeerGenerations()
        # The stream.
        self.frames = 0
        self._carry = b""
        self._long: Fields | None = None  # header of the long message being collected
        self._body: list[bytes | memoryview] = []
        self._body_missing = 0
        self._long_before = False  # the last payload was long, the next one may be
        self._bulk = False  # what came last was longer than `_BODY_BYTES` on the average
        # Pending acknowledgements.
        self.ack_pending_messages = 0
        self.ack_pending_bytes = 0
        self.acknowledgement_due = False
        # Taken by the shell.
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

    def bytes_wanted(self) -> int:
        """Return how much to read at once."""
        if self._body_missing >= _ALONE_BYTES:
            return min(self._body_missing, _READ_BYTES_MAX)
        if self._long_before and not self._carry and not self._body_missing:
            return HEADER_BYTES
        return self._body_missing + _READ_BYTES

    def wants_plain_read(self) -> bool:
        """Return whether nothing is begun and no long payload expected."""
        return not (self._carry or self._body_missing or self._long_before or self._bulk)

    def wants_warm_memory(self) -> bool:
        """Return whether to read all available bytes into reused memory."""
        return self._bulk and not self._long_before and self._body_missing < _ALONE_BYTES

    def bytes_expected(self) -> int:
        """Return how much of a long payload must arrive before a read is worth a wake-up."""
        return min(self._body_missing, _READ_BYTES_MAX) if self._long_before else 0

    def remaining(self) -> tuple[int, int]:
        """Return the bytes still missing of a begun header and of a begun payload."""
        carry_bytes = len(self._carry)
        if not carry_bytes:
            return 0, self._body_missing
        if carry_bytes < HEADER_BYTES:
            return HEADER_BYTES - carry_bytes, 0
        payload_bytes: int = HEADER.unpack_from(self._carry)[2]
        return 0, HEADER_BYTES + payload_bytes - carry_bytes

    def begin_stream(self) -> None:
        """Reset the state of a stream; it outlives its stream until the next begins."""
        if self._lowest is not None:
            self._floor, self._lowest = self._lowest, None
        self._accepted = False
        self.acknowledged = 0
        self._control_budget.begin_stream()

    def end_stream(self) -> None:
        """Drop the partial message and the stream's pending acknowledgements; numbers stay."""
        self._carry = b""
        self._forget_body()
        self.sources.clear()  # paths outlive streams: an absent peer costs no memory for them
        self.frames = 0
        self.reset_ack_pending()

    def reset_ack_pending(self) -> None:
        """Clear pending acknowledgements: one left."""
        self.ack_pending_messages = self.ack_pending_bytes = 0
        self.acknowledgement_due = False

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

    def receive_data(self, data: bytes | memoryview, now_ns: int) -> DownReason | None:
        """Take bytes off the stream; return why the stream must end, None while it is intact.

        A `memoryview` is memory of the reader's: parts that are kept are copied.
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
            verdict = self._accept_or_drop(fields, payload)
            if isinstance(verdict, DownReason):
                return verdict
            if verdict:
                self._deliver(fields, payload, now_ns)
        elif self._carry:
            data = self._carry + data
            self._carry = b""
        # A memoryview is unpacked and sliced as bytes are.
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
                run.finish_pass(expected)
                verdict, expected = self._accept_or_drop(fields, payload), self._expected()
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
                run.byte_count += payload_bytes
            else:
                run.finish_pass(expected)
                run.put_rare(payload, high, low, now_ns, sequence + 1)
            expected = sequence + 1
            if offset >= run_from and run.plain:
                count, run_from = self._take_run(run, data, offset, fields)
                offset += count * (HEADER_BYTES + payload_bytes)
                expected, frames = expected + count, frames + count
        run.finish_pass(expected)
        if required:
            self.acknowledgement_due = True
            self.counters.recv_ack_required += required
        self.acknowledged = acknowledged
        self._keep_rest(data, offset, frames)
        return reason

    def _take_run(self, run: Run, data: bytes, offset: int, fields: Fields) -> tuple[int, int]:
        """Take the like messages from `offset` on after one with header `fields`.

        Return how many there are, and the offset from which to look for more.
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
            run.byte_count += count * payload_bytes
        if asking:
            self.acknowledgement_due = True
            self.counters.recv_ack_required += asking
        return count, offset + (count + RUN_MIN) * step  # a failed check has its price

    def _expected(self) -> int:
        """Return the number below which `_accept_or_drop` decides."""
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
            run.byte_count = len(payload)
            run.finish_pass(fields[0] + 1)
        else:
            run.put_rare(payload, fields[9], fields[10], now_ns, fields[0] + 1)

    def count(self, inbox: Inbox | None, messages: int, byte_count: int) -> None:
        """Count messages about to be queued, or without a socket."""
        if self.acknowledging:  # a urds node: due at once at the bounds
            self.ack_pending_messages += messages
            self.ack_pending_bytes += byte_count
            self.acknowledgement_due |= (
                self.ack_pending_messages >= self.limits.acknowledge_messages
                or self.ack_pending_bytes >= self.limits.acknowledge_bytes
            )
        counters = self.counters
        if inbox is None:
            counters.recv_drop_no_sock += messages
            return
        self.has_delivered = True
        counters.recv_queued += messages
        counters.recv_bytes_added_to_sock += byte_count
        self.touched.append((inbox, messages))

    # -- rare cases

    def _accept_or_drop(self, fields: Fields, payload: bytes) -> DownReason | bool:
        """Check a message that is not plainly next: true if it is for an inbox.

        The caller counts its number as received once it is in the inbox.
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
                self._note_generation(fields)
            return False
        flagged = bool(flags & _RETRANSMITTED)
        is_control = not target_port or (not source_port and target_port == PROBE_PORT)
        if (
            is_control
            and (source_port or target_port)
            and not self._admits_control(source_port, target_port)
        ):
            return False  # first, since it may announce a restart
        if not sequence and not flagged and is_control:
            # A hello, its answer, or an acknowledgement of a urds node: all outside the numbers.
            if source_port or target_port:
                self._keep_control(fields, payload)
            else:
                self.counters.ack_received += 1
            return False
        if self.watch_restarts and self._is_restart(fields):
            self.sequence_expected = 0
            self._floor = None
            self.restarted = True
        # Dropped duplicates count: a stream may be cut before it retransmits the next ones.
        self._lowest = sequence if self._lowest is None else min(self._lowest, sequence)
        if source_port == PROBE_PORT and not target_port:
            self.generations.probe_sequence = sequence
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

    def _note_generation(self, fields: Fields) -> None:
        """Count a urds node's numbers afresh if a map carries another generation."""
        if self.generations.is_new_by_map(extension_of(fields)):
            self.sequence_expected = 0
            self._floor = None

    def _is_restart(self, fields: Fields) -> bool:
        """Return whether a kernel restarted (rules b and c); checked before the duplicates."""
        sequence = fields[0]
        repeated = fields[5] & _RETRANSMITTED and sequence < self.sequence_expected
        below_floor = self._floor is not None and sequence < self._floor
        return bool(repeated and below_floor) or self.generations.is_new_by_probe(fields)

    def _admits_control(self, source_port: int, target_port: int) -> bool:
        """Count a ping, pong or probe; return whether it is within the budget."""
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


class ControlBudget:
    """Limit on a path's control messages that become events: a burst, then a rate.

    Each ping, pong or handshake costs the control thread a wake-up, a pass under the control lock
    and an answer. A peer's messages beyond its budget are dropped and counted before any of that,
    so that a flood costs its neighbours no more than the same bytes in messages to unbound ports.

    Two kinds are never dropped. The first handshake messages of a stream: without them a urds node
    is taken for a kernel, and what a reset then interrupts is lost; a new stream costs far more
    than they do, and streams have limits of their own. Congestion maps: the plane itself puts the
    newest one of a read into force, and without it a sender could wait for good.

    A leaky bucket. It outlives streams, so that a reconnect gains no pings.

    Source: the generic cell rate algorithm, ITU-T I.371 annex A.
    """

    def __init__(self, *, burst_max: int, interval_ns: int) -> None:
        self._interval_ns = interval_ns
        self._ahead_max_ns = (burst_max - 1) * interval_ns
        self._due_ns = 0  # when the next one is due at the steady rate
        self._handshakes_left = _HANDSHAKES_OF_STREAM

    def begin_stream(self) -> None:
        """Admit the handshake of a new stream."""
        self._handshakes_left = _HANDSHAKES_OF_STREAM

    def admits(self, now_ns: int, *, handshake: bool) -> bool:
        """Return whether one more control message is within the budget; charge it if so."""
        if handshake and self._handshakes_left:
            self._handshakes_left -= 1
            return True
        if self._due_ns - now_ns > self._ahead_max_ns:
            return False
        self._due_ns = max(self._due_ns, now_ns) + self._interval_ns
        return True


class PeerGenerations:
    """The known present generation of the peer, by which a restart is detected.

    A urds node sends its generation in each map; a kernel sends one in each probe from linux v7.0
    on, and none before: then a second probe is a restart, unless it is the first one retransmitted.
    """

    __slots__ = ("generation", "map_generation", "probe_sequence")

    def __init__(self) -> None:
        self.probe_sequence: int | None = None  # of the last probe
        self.generation: int | None = None  # of a kernel
        self.map_generation: int | None = None  # in a urds node's maps

    def is_new_by_map(self, extension: bytes) -> bool:
        """Return whether a map carries another generation of a urds node; note it.

        The first one sent is no restart: towards a supposed kernel a node sends none.
        """
        handshake = parse_handshake(extension)
        if handshake.mark is None or handshake.generation is None:
            return False
        known, self.map_generation = self.map_generation, handshake.generation
        return known not in (None, handshake.generation)

    def is_new_by_probe(self, fields: Fields) -> bool:
        """Return whether a message is a probe of a restarted kernel; note its generation."""
        sequence, _, _, source_port, target_port, flags = fields[:6]
        if source_port != PROBE_PORT or target_port:
            return False
        handshake = parse_handshake(extension_of(fields))
        if handshake.mark is not None:
            return False  # a urds node sends it in its maps
        if handshake.generation is not None:
            # Noted here too: the next probe may come before the control plane has read this one.
            known, self.generation = self.generation, handshake.generation
            return known not in (None, handshake.generation)
        if self.probe_sequence is None:
            return False
        return not (flags & _RETRANSMITTED and sequence == self.probe_sequence)


def extension_of(fields: Fields) -> bytes:
    """Return the extension header of a frame, 16 bytes."""
    return (fields[9] << 64 | fields[10]).to_bytes(16, "big")


class Sources(dict[int, SocketAddress]):
    """The address of each port of a peer, created on first use; cleared when full."""

    def __init__(self, source_of: Callable[[int], SocketAddress]) -> None:
        super().__init__()
        self._source_of = source_of

    def __missing__(self, port: int) -> SocketAddress:
        """Create the address of a port."""
        if len(self) >= SOURCES_MAX:
            self.clear()
        source = self[port] = self._source_of(port)
        return source


class Run:
    """Neighbouring messages from one socket to one socket."""

    __slots__ = ("_inbox", "_incoming", "_items", "append", "byte_count", "plain", "source")

    def __init__(self, incoming: Incoming) -> None:
        self._incoming = incoming
        self._inbox: Inbox | None = None
        self._items: list[Item] = []
        self.append: Callable[[Item], None] = self._items.append
        self.plain = False
        self.source: SocketAddress = ("", 0)
        self.byte_count = 0

    def begin(self, target_port: int, source_port: int, expected: int) -> None:
        """Finish the previous run and look up both ends of the next."""
        self.finish_pass(expected)
        inbox = self._incoming.inboxes.get(target_port)
        self._inbox = inbox
        if inbox is None:  # a port without a socket: its sources cost nothing
            self.plain = True
            return
        self.source = self._incoming.sources[source_port]
        self.plain = not inbox.detailed

    def put_rare(self, payload: bytes, high: int, low: int, now_ns: int, expected: int) -> None:
        """Put in an empty message, or one with its extension and times; no run is open.

        `expected` is the number that follows it.
        """
        inbox, incoming = self._inbox, self._incoming
        if inbox is not None and not payload and self.plain and not high and not low:
            self._put_empty(inbox, 1, expected)
            return
        payload_bytes = len(payload)
        extension = (high << 64 | low).to_bytes(16, "big") if high or low else b""
        item = (payload, self.source, extension, incoming.wall_ns(), now_ns)
        incoming.count(inbox, 1, payload_bytes)
        if inbox is None:
            incoming.sequence_expected = expected
            return
        inbox.unplain = inbox.special = True
        inbox.detailed_messages += 1
        inbox.receive_queued_bytes += payload_bytes
        incoming.sequence_expected = expected
        inbox.queue.append(item)  # one step with the stores

    def extend(self, payloads: Sequence[bytes], expected: int) -> None:
        """Append messages of one length; `expected` is the number that follows the last."""
        inbox = self._inbox
        if inbox is not None and not payloads[0]:
            self._put_empty(inbox, len(payloads), expected)
        else:
            self._items.extend(zip(payloads, itertools.repeat(self.source)))

    def _put_empty(self, inbox: Inbox, messages: int, expected: int) -> None:
        new, last = inbox.empty_items(self.source, messages)
        self._incoming.count(inbox, messages, 0)
        if last is not None or len(new[-1]) == 3:
            inbox.unplain = inbox.special = True
        self._incoming.sequence_expected = expected
        if last is None:
            inbox.queue.extend(new)  # one step with the stores
        else:
            inbox.queue[-1] = last

    def finish_pass(self, expected: int) -> None:
        """Put the run into its inbox, update accounts and numbers.

        `expected` is the number that follows its last message.
        """
        items, data, inbox, incoming = self._items, self.byte_count, self._inbox, self._incoming
        if not items:
            return
        fresh: list[Item] = []
        self._items = fresh
        self.append, self.byte_count = fresh.append, 0
        incoming.count(inbox, len(items), data)
        if inbox is None:
            incoming.sequence_expected = expected
            return
        inbox.receive_queued_bytes += data
        incoming.sequence_expected = expected
        inbox.queue.extend(items)  # one step with the two stores
