"""The responder of a connected queue pair: it executes requests and answers them.

Requests take effect in the order of their PSNs. A packet at the expected PSN is checked, placed
and executed. One behind it is a duplicate: sends and writes are only acknowledged again, reads
are read again, atomic operations answered from memory and never executed twice. One ahead is
dropped (the requester goes back), or, with a selective receive order, its bytes are placed at once
and the rest waits for what is missing. A packet ahead that breaks a rule counts as not arrived: it
is checked again when it is next.

A request that breaks a rule is answered with a NAK and ends the queue pair; the NAK is repeated
for each further request, since it may get lost.
Source: docs/reference/verbs-and-roce.md 6 and 7.

Of what arrives ahead, the bytes of a send are placed at once: its receive is not visible before it
completes. The record is kept for what must wait: the check of its place in the message, the
completion of a receive, an invalidation. Reads, atomic operations and writes wait as a whole,
since what is missing before them may be written to the same place.

Where packets do not name their places (`LinkTraits.names_places`) the expected packet gets them
from the open message: its number, its offset and, of a write, the target and length that the first
packet named. A refusal or duplicate leaves the open message as it is, since a requester goes on
from the packet that was refused: rxe repeats the last packet of a write alone once the packets
before it were acknowledged. Lengths are exact then: the whole of a write lies in its region when it
begins, packets before the last hold the MTU, and the last one what is left.

Atomics: a plain compare-and-swap is a masked one with all bits in both masks, a plain fetch-and-add
a masked one without boundaries. Source: commit 5e80ba8ff0bd of linux v2.6.35; RFC 7306 section 5.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from urds.verbs.engine.attributes import LinkTraits
from urds.verbs.engine.keys import AccessError
from urds.verbs.engine.numbers import (
    ATOMIC_BYTES,
    CELL_MASK,
    MESSAGE_BYTES_MAX,
    PSN_BITS,
    PSN_MASK,
    AccessFlag,
    AsyncEventType,
    QPState,
    ReceiveOrder,
    WCStatus,
)
from urds.verbs.engine.packets import (
    ANSWERED,
    ATOMICS,
    PACKET_FLAGS,
    SELECTIVE_MAX,
    Packet,
    PacketFlag,
    PacketKind,
    Syndrome,
)
from urds.verbs.engine.receives import IncomingMessages

if TYPE_CHECKING:
    from urds.verbs.engine.queue_pair import QueuePair

ATOMIC_RESULTS_MAX: Final = 128  # as many as a requester may have unacknowledged
ANSWERS_MAX: Final = 256  # that wait to be sent; reads and atomics beyond it count as lost
AHEAD_MAX: Final = 256  # PSNs beyond the expected one; a requester of ours stays within 128
UNACKED_MAX: Final = 32  # packets that an acknowledgement waits for: a quarter of the window

_FIRST: Final = int(PacketFlag.FIRST)
_LAST: Final = int(PacketFlag.LAST)
_ACK_REQUEST: Final = int(PacketFlag.ACK_REQUEST)
_IMMEDIATE: Final = int(PacketFlag.IMMEDIATE)
_INVALIDATE: Final = int(PacketFlag.INVALIDATE)
_PLACED: Final = int(PacketFlag.PLACED)
_ACCESS: Final = {
    PacketKind.WRITE: int(AccessFlag.REMOTE_WRITE),
    PacketKind.READ_REQUEST: int(AccessFlag.REMOTE_READ),
    **dict.fromkeys(ATOMICS, int(AccessFlag.REMOTE_ATOMIC)),
}
_MSN_MASK: Final = (1 << 32) - 1
_ADDRESS_MASK: Final = (1 << 64) - 1
_HALF: Final = 1 << PSN_BITS - 1


class _NotNow(Exception):
    """The packet counts as not arrived: the peer will repeat it."""


class _NoReceive(_NotNow):
    """A message needs a receive and there is none."""


@dataclass(slots=True, eq=False)
class _Reading:
    """A read that is being answered."""

    request: Packet
    psn: int  # of the next answer
    is_duplicate: bool
    offset: int = 0  # of the bytes answered


@dataclass(slots=True, eq=False)
class Responder:
    """The half of a queue pair that serves its peer."""

    _qp: "QueuePair"
    _incoming: IncomingMessages
    _expected: int  # PSN, counted without wrapping
    # What arrived ahead, by PSN, at most AHEAD_MAX beyond the expected one.
    _ahead: dict[int, Packet] = field(default_factory=dict)
    _messages_done: int = 0
    _receives_done: int = 0  # of them those that consumed a receive: the last MSN
    # The message whose packets come next: kind and bytes so far; None between messages.
    _open: PacketKind | None = None
    _open_bytes: int = 0
    _target: tuple[int, int, int] = (0, 0, 0)  # address, key, bytes: of a write without places
    _reported_psn: int = field(init=False)  # the expected PSN when it was last told
    ack_due: bool = False  # one waits: for its turn, or for a packet to ride on
    _unacked: int = 0  # packets that were executed since the last acknowledgement
    _is_hurried: bool = False  # the acknowledgement does not wait for a packet to ride on
    _gap_due: bool = False
    _gap_told: bool = False
    _rnr_psn: int | None = None  # an RNR NAK to send
    _final: Packet | None = None  # what ended this queue pair
    _final_due: bool = False
    _answers: list[_Reading | Packet] = field(default_factory=list)  # no deque: see SendQueue
    _reads_open: int = 0
    _atomic_results: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._reported_psn = self._expected

    # -- packets in

    def receive(self, packet: Packet) -> None:
        """Process one request packet."""
        if self._qp.state is QPState.ERR:
            self._final_due = self._final is not None
            return
        ahead = ((packet.psn - self._expected + _HALF) & PSN_MASK) - _HALF
        if ahead == 0:
            self._accept_in_order(packet)
        elif ahead < 0:
            self._handle_duplicate(packet, self._expected + ahead)
        elif self._qp.receive_order is ReceiveOrder.IN_ORDER:
            # Told once, until the sequence goes on. Without loss it is a resend that is awaited.
            if not self._gap_told and not self._qp.link.lossless:
                self._gap_told = self._gap_due = True
        else:
            self._accept_ahead(packet, self._expected + ahead)

    def _accept_in_order(self, packet: Packet) -> None:
        """Execute the expected packet, then those that waited for it."""
        names_places = self._qp.link.names_places
        try:
            if not names_places:
                self._set_place(packet)
            self._check(packet)
            self._check_place(packet)
            if not names_places:
                _check_length(packet, self._qp.mtu_bytes)
            self._place(packet)
            self._carry_out(packet)
        except _NoReceive:
            self._plan_rnr_nak(self._expected)
        except _NotNow:
            return
        except AccessError as fault:
            self._fail(self._expected, fault)
        else:
            self._carry_out_following()

    def _carry_out_following(self) -> None:
        """Execute what arrived ahead and is next now."""
        while self._ahead:
            packet = self._ahead.pop(self._expected, None)
            if packet is None:
                return
            try:
                self._check_place(packet)
                if packet.kind is PacketKind.WRITE:
                    self._place(packet)
                self._carry_out(packet)
            except AccessError as fault:
                self._fail(self._expected, fault)

    def _accept_ahead(self, packet: Packet, psn: int) -> None:
        """Keep a packet that arrived before others; the bytes of a send are placed at once.

        Those of a write wait: a missing one before it may have the same target.
        """
        self.ack_due = True
        distance = psn - self._expected
        if distance > AHEAD_MAX or psn in self._ahead:
            return
        try:
            self._check(packet)
            if _takes_receive(packet):
                # Each message has a packet at least: one that claims to be farther is not true.
                beyond = self._qp.tracker.unwrap(packet.msn) - self._receives_done
                if not 0 < beyond <= distance + 1:
                    return
                self._place_message(packet)
        except _NoReceive:
            self._plan_rnr_nak(psn)
        except (_NotNow, AccessError):
            return
        else:
            self._ahead[psn] = _to_keep(packet)

    def _handle_duplicate(self, packet: Packet, psn: int) -> None:
        """Answer a packet that was executed before."""
        self.ack_due = True
        if packet.kind not in ANSWERED or len(self._answers) >= ANSWERS_MAX:
            return
        if packet.kind is not PacketKind.READ_REQUEST:
            if (value := self._atomic_results.get(psn)) is not None:
                self._answers.append(self._atomic_answer(psn, value))
            return
        try:
            self._check(packet)
            self._memory(packet, 0, packet.length)
        except (_NotNow, AccessError):
            return
        end = psn + psn_count(packet, self._qp.link, self._qp.mtu_bytes)
        self._answers.append(_Reading(packet, psn, is_duplicate=end <= self._expected))
        self._reads_open += 1
        if end > self._expected:
            # Asked in other portions than before: what is new of this one is done as well.
            self._skip_to(end)
            self._carry_out_following()

    # -- packets that do not name their place

    def _set_place(self, packet: Packet) -> None:
        """Set what the expected packet does not name, from the message that is open."""
        if packet.kind in ANSWERED:
            return
        is_first = bool(int(packet.flags) & _FIRST)
        packet.msn = self._receives_done + 1 & _MSN_MASK
        packet.offset = 0 if is_first else self._open_bytes
        if packet.kind is PacketKind.WRITE and not is_first:
            address, packet.rkey, packet.length = self._target
            packet.address = address + packet.offset & _ADDRESS_MASK

    # -- checks

    def _check(self, packet: Packet) -> None:
        """Check a packet by itself. Raises AccessError, _NotNow."""
        kind, attr = packet.kind, self._qp.attr
        needed = _ACCESS.get(kind, 0)
        if needed and not int(attr.qp_access_flags) & needed:
            raise _invalid(f"{kind.name}, which the queue pair does not allow")
        if kind in ANSWERED:
            if not attr.max_dest_rd_atomic:
                raise _invalid(f"{kind.name} with max_dest_rd_atomic 0")
            # A requester has at most 128 under way: a peer that sends more does not read answers.
            if self._reads_open >= attr.max_dest_rd_atomic or len(self._answers) >= ANSWERS_MAX:
                if self._qp.link.lossless:
                    raise _invalid(
                        f"{self._reads_open} reads and {len(self._answers)} answers outstanding, "
                        f"limits {attr.max_dest_rd_atomic} and {ANSWERS_MAX}"
                    )
                raise _NotNow
            if kind is not PacketKind.READ_REQUEST and packet.address % ATOMIC_BYTES:
                raise _invalid(f"atomic operation at {packet.address:#x}, not a multiple of 8")
            if packet.length > MESSAGE_BYTES_MAX:
                raise _invalid(f"read of {packet.length} bytes, limit {MESSAGE_BYTES_MAX}")
            return
        _check_data(packet, self._qp.mtu_bytes)

    def _check_place(self, packet: Packet) -> None:
        """Check a packet as the next of its message. Raises AccessError."""
        kind, bits = packet.kind, int(packet.flags)
        if kind in ANSWERED:
            if self._open is not None:
                raise _invalid(f"{kind.name} inside a message of kind {self._open.name}")
            return
        if bits & _FIRST:
            if self._open is not None or packet.offset:
                raise _invalid(f"first packet at {packet.offset} inside a message")
        elif self._open is not kind or packet.offset != self._open_bytes:
            raise _invalid(f"{kind.name} packet at {packet.offset}, expected {self._open_bytes}")
        if _takes_receive(packet) and packet.msn != (self._receives_done + 1) & _MSN_MASK:
            raise _invalid(f"message {packet.msn} after {self._receives_done}")
        if bits & _INVALIDATE and (kind is not PacketKind.SEND or not bits & _LAST):
            raise _invalid(f"invalidation in a packet of kind {kind.name}")

    # -- effects

    def _place(self, packet: Packet) -> None:
        """Put the bytes of a packet where they belong. Raises AccessError, _NotNow."""
        if packet.kind in ANSWERED:
            return
        if _takes_receive(packet):
            self._place_message(packet)
        if packet.kind is PacketKind.SEND:
            return
        bits = int(packet.flags)
        if bits & _FIRST and not (bits & _LAST or self._qp.link.names_places):
            self._memory(packet, 0, packet.length, AccessFlag.REMOTE_WRITE)  # the whole
        target = self._memory(packet, 0, _placed_bytes(packet), AccessFlag.REMOTE_WRITE)
        if packet.payload:
            target[:] = packet.payload

    def _place_message(self, packet: Packet) -> None:
        """Take a receive for the message of a packet; put the bytes of a send into it."""
        qp = self._qp
        msn = qp.tracker.unwrap(packet.msn)
        if not self._incoming.take(msn, qp.receive_order):
            raise _NoReceive
        qp.check_marks()
        if qp.state is QPState.ERR:
            raise _NotNow
        if packet.kind is PacketKind.SEND:
            self._incoming.place(packet, msn)

    def _carry_out(self, packet: Packet) -> None:
        """Execute a packet, all before it being done. Raises AccessError."""
        bits = int(packet.flags)
        psn = self._expected
        self._gap_told = False
        self._unacked += 1
        if packet.kind is PacketKind.READ_REQUEST:
            self._memory(packet, 0, packet.length)
            self._answers.append(_Reading(packet, psn, is_duplicate=False))
            self._reads_open += 1
            self._skip_to(self._expected + psn_count(packet, self._qp.link, self._qp.mtu_bytes))
            self._messages_done += 1
        elif packet.kind in ANSWERED:
            self._answers.append(self._atomic_answer(psn, self._change_cell(packet, psn)))
            self._expected += 1
            self._messages_done += 1
        else:
            self._carry_out_data(packet, bits)
        if bits & _ACK_REQUEST:
            self.ack_due = True

    def _carry_out_data(self, packet: Packet, bits: int) -> None:
        """Count a packet of a message, and finish the message with its last one."""
        message_bytes = packet.offset + _placed_bytes(packet)
        if bits & _INVALIDATE:
            self._qp.keys.invalidate(packet.immediate, pd=self._qp.pd, qpn=self._qp.qpn)
        self._expected += 1
        if not bits & _LAST:
            if bits & _FIRST:
                self._target = packet.address, packet.rkey, packet.length
            self._open, self._open_bytes = packet.kind, message_bytes
            return
        self._open = None
        self._messages_done += 1
        if _takes_receive(packet):
            self._receives_done += 1
            self._incoming.finish(packet, self._receives_done, message_bytes)

    def _change_cell(self, packet: Packet, psn: int) -> int:
        """Execute an atomic operation; keep and return the value before."""
        cell = self._memory(packet, 0, ATOMIC_BYTES, AccessFlag.REMOTE_ATOMIC)
        before = int.from_bytes(cell, sys.byteorder)
        cell[:] = value_after(packet, before).to_bytes(ATOMIC_BYTES, sys.byteorder)
        self._atomic_results[psn] = before
        if len(self._atomic_results) > ATOMIC_RESULTS_MAX:
            del self._atomic_results[next(iter(self._atomic_results))]
        return before

    def _memory(
        self, packet: Packet, offset: int, length: int, access: AccessFlag = AccessFlag.REMOTE_READ
    ) -> memoryview:
        """Return the bytes that a packet names, from `offset` on. Raises AccessError."""
        qp = self._qp
        address = packet.address + offset
        return qp.keys.remote(packet.rkey, address, length, pd=qp.pd, access=access, qpn=qp.qpn)

    def _skip_to(self, psn: int) -> None:
        """Expect a PSN behind those that a read has taken for its responses."""
        self._expected = psn
        for stale in [found for found in self._ahead if found < psn]:
            del self._ahead[stale]

    def _plan_rnr_nak(self, psn: int) -> None:
        """Answer a packet with an RNR NAK: its message has no receive."""
        self.ack_due = self.ack_due or self._reported_psn != self._expected
        self._gap_told = True  # the peer goes back to the refused packet anyway
        self._rnr_psn = psn if self._rnr_psn is None else min(psn, self._rnr_psn)

    def _fail(self, psn: int, fault: AccessError) -> None:
        """End the queue pair after a request that breaks a rule."""
        self._final = self._answer(psn, fault.syndrome)
        self._final_due = True
        # A receive that cannot take its message says so itself; anything else is an event.
        if fault.status in (WCStatus.LOC_LEN_ERR, WCStatus.LOC_PROT_ERR):
            self._incoming.fail(self._receives_done + 1, fault)
        elif fault.syndrome == Syndrome.NAK_REMOTE_ACCESS:
            self._qp.emit_event(AsyncEventType.QP_ACCESS_ERR)
        else:
            self._qp.emit_event(AsyncEventType.QP_REQ_ERR)
        self._qp.enter_error()

    # -- answers out

    def poll(self) -> Packet | None:
        """Return the next answer: of reads and atomics, then one for all that came meanwhile."""
        while self._answers:
            if (answer := self._next_answer()) is not None:
                return answer
        if self._final_due:
            self._final_due = self._gap_due = False
            self._note_acked()
            return self._final
        if self._gap_due:
            self._gap_due = False
            self._note_acked()
            return self._answer(self._expected, Syndrome.NAK_SEQUENCE)
        if self.ack_due and not self._ack_waits():
            self._note_acked()
            packet = self._answer(self._expected - 1, Syndrome.ACK)
            if self._ahead:
                packet.selective = _ranges(self._ahead)
            return packet
        if self._rnr_psn is not None:
            psn, self._rnr_psn = self._rnr_psn, None
            return self._answer(psn, Syndrome.RNR_NAK + self._qp.attr.min_rnr_timer)
        return None

    def hurry_ack(self) -> None:
        """Let the acknowledgement that waits go alone."""
        self._is_hurried = self.ack_due

    def add_ack(self, packet: Packet) -> None:
        """Let the acknowledgement that waits ride on a packet to the peer."""
        if self.ack_due:
            self._note_acked()
            packet.acknowledged = self._expected - 1 & PSN_MASK

    def last_ack(self) -> Packet | None:
        """Return the acknowledgement that waits, `None` without one: nothing else is answered."""
        return self._answer(self._expected - 1, Syndrome.ACK) if self.ack_due else None

    def _ack_waits(self) -> bool:
        """Return whether it may be late: a NAK for a missing receive takes it along."""
        if self._is_hurried or not self._qp.link.acks_wait:
            return False
        is_early = self._unacked < UNACKED_MAX and self._qp.state is not QPState.ERR
        return is_early or self._rnr_psn is not None

    def _note_acked(self) -> None:
        """Note that the peer learns now what has been executed."""
        self.ack_due = self._is_hurried = False
        self._unacked, self._reported_psn = 0, self._expected

    def abandon(self) -> None:
        """Drop what is not executed: the queue pair has failed.

        Reads before a request that ended it were good and are answered still.
        """
        if self._final is None:
            self._answers = [answer for answer in self._answers if isinstance(answer, Packet)]
        self._ahead.clear()
        self._rnr_psn = None

    def _next_answer(self) -> Packet | None:
        reading = self._answers[0]
        if isinstance(reading, Packet):
            self._answers.pop(0)
            return reading
        request, offset = reading.request, reading.offset
        end = min(request.length, offset + self._qp.mtu_bytes)
        try:
            data = self._memory(request, offset, end - offset)
        except AccessError as fault:  # the memory went away since the request came
            self._finish_reading()
            if not reading.is_duplicate and self._final is None:
                self._fail(reading.psn, fault)
            return None
        packet = self._answer(reading.psn)
        packet.kind, packet.offset, packet.payload = PacketKind.READ_RESPONSE, offset, data
        is_last = end == request.length
        packet.flags = PACKET_FLAGS[(0 if offset else _FIRST) | (_LAST if is_last else 0)]
        reading.offset = end
        if not self._qp.link.lossless:
            reading.psn += 1
        if is_last:
            self._finish_reading()
        return packet

    def _finish_reading(self) -> None:
        self._answers.pop(0)
        self._reads_open -= 1

    def _atomic_answer(self, psn: int, value: int) -> Packet:
        packet = self._answer(psn)
        packet.kind, packet.compare_add = PacketKind.ATOMIC_RESPONSE, value
        return packet

    def _answer(self, psn: int, syndrome: int = 0) -> Packet:
        return Packet(
            PacketKind.ACK,
            self._qp.attr.dest_qp_num,
            psn & PSN_MASK,
            msn=self._messages_done & _MSN_MASK,
            syndrome=syndrome,
        )


def _check_data(packet: Packet, mtu_bytes: int) -> None:
    """Check the bytes of a packet by itself. Raises AccessError."""
    kind, payload_bytes = packet.kind, len(packet.payload)
    if int(packet.flags) & _PLACED and (payload_bytes or kind is PacketKind.SEND):
        raise _invalid(f"{kind.name} of {payload_bytes} bytes that claims to be placed")
    if payload_bytes > mtu_bytes:
        raise _invalid(f"payload of {payload_bytes} bytes, limit {mtu_bytes}")
    if packet.offset + _placed_bytes(packet) > MESSAGE_BYTES_MAX:
        raise _invalid(f"message beyond {MESSAGE_BYTES_MAX} bytes")


def psn_count(request: Packet, link: LinkTraits, mtu_bytes: int) -> int:
    """Return how many PSNs a read takes: one per packet of its answer."""
    return 1 if link.lossless else max(1, -(-request.length // mtu_bytes))


def _check_length(packet: Packet, mtu_bytes: int) -> None:
    """Check the bytes of a packet in its place, where lengths are exact. Raises AccessError.

    Source: docs/reference/verbs-and-roce.md 6 and 7.
    """
    kind, bits, size = packet.kind, int(packet.flags), len(packet.payload)
    if kind in ANSWERED:
        return
    is_last = bool(bits & _LAST)
    if kind is PacketKind.SEND:
        is_exact = bool(size or bits & _FIRST) if is_last else size == mtu_bytes
    else:
        rest = packet.length - packet.offset
        is_exact = size == min(mtu_bytes, rest) and is_last is (rest <= mtu_bytes)
    if not is_exact or packet.length > MESSAGE_BYTES_MAX:
        raise _invalid(
            f"{kind.name} packet of {size} bytes at {packet.offset}, flags {bits:#x}, "
            f"length {packet.length}, MTU {mtu_bytes}"
        )


def _takes_receive(packet: Packet) -> bool:
    """Return whether a packet needs the receive of its message."""
    if packet.kind is PacketKind.SEND:
        return True
    bits = int(packet.flags)
    return packet.kind is PacketKind.WRITE and bool(bits & _IMMEDIATE) and bool(bits & _LAST)


def _placed_bytes(packet: Packet) -> int:
    """Return how many bytes of its message a packet covers."""
    return packet.length if int(packet.flags) & _PLACED else len(packet.payload)


def _to_keep(packet: Packet) -> Packet:
    """Return what is kept of a packet ahead: of a send just the record, its bytes are placed.

    Those of a write are copied, since the packet's buffer is reused.
    """
    if packet.kind is PacketKind.SEND:
        flags = packet.flags | PacketFlag.PLACED
        return replace(packet, flags=flags, length=len(packet.payload), payload=b"")
    return replace(packet, payload=bytes(packet.payload))


def _invalid(message: str) -> AccessError:
    return AccessError(message, WCStatus.REM_INV_REQ_ERR)


def _ranges(psns: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return PSNs as ranges of wire PSNs, lowest first, at most `SELECTIVE_MAX`.

    Ranges beyond the limit are reported later: the requester may retry them meanwhile.
    """
    found: list[list[int]] = []
    for psn in sorted(psns):
        if found and psn == found[-1][1] + 1:
            found[-1][1] = psn
        elif len(found) == SELECTIVE_MAX:
            break
        else:
            found.append([psn, psn])
    return tuple((first & PSN_MASK, last & PSN_MASK) for first, last in found)


_ADDS: Final = {PacketKind.ATOMIC_ADD, PacketKind.MASKED_ADD}
_TOP: Final = 1 << 63


def value_after(packet: Packet, before: int) -> int:
    """Return the value of the cell after the atomic operation of a packet."""
    if packet.kind in _ADDS:
        return add_in_fields(before, packet.compare_add, boundary=packet.boundary)
    if (before ^ packet.compare_add) & packet.compare_mask:
        return before
    return before & ~packet.swap_mask | packet.swap & packet.swap_mask


def add_in_fields(value: int, addend: int, *, boundary: int) -> int:
    """Add within fields: each bit of `boundary` is the highest of one, and no carry leaves it.

    The highest of all 64 bits always ends a field. All fields are added at once: without their
    highest bits they cannot overflow, and these add to the carry like single digits.
    """
    highest = boundary | _TOP
    others = CELL_MASK & ~highest
    return ((value & others) + (addend & others)) ^ ((value ^ addend) & highest)
