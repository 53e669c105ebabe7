"""A connection's core of RDS over RDMA whose peer sends anything, with an application on top.

Whatever comes, the core goes on or names a protocol error. It keeps no more than its limits allow,
posts no more than its ring holds, charges each socket what its messages weigh, and ends each
operation once.
"""

from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from fuzz.script import Script, step
from urds.rds.constants import CONGESTION_MAP_BYTES, ExtensionType, HeaderFlag
from urds.rds.plane.contract import AtomicOperation, Operation, RdmaTransfer
from urds.rds.plane.python.counters import Counters
from urds.rds.transports.rdma.core import ConnectionCore, CoreLimits
from urds.rds.transports.rdma.counters import RdmaCounters
from urds.rds.transports.rdma.credits import CREDITS_MAX
from urds.rds.transports.rdma.frames import FRAGMENT_BYTES, Frame, MessageHeader, Outcome
from urds.rds.wire import extensions as exthdr
from urds.rds.wire.header import HEADER, HEADER_BYTES, Header

STEPS_MAX = 400
MESSAGE_BYTES_MAX = 9000
MESSAGES_MAX = 40
SEND_RING = 8
POSTED = 16  # receives of ours
PORTS = 3
_WORKS_MAX = 200  # that one step can cause: each takes a place of the ring
_CHECKSUM_END = 48 - 16  # the checksum stands in the two bytes before the extension
_SIZES = (0, 1, 100, 4096, 5000, 9000)


class Account:
    """What a socket is to the core."""

    def __init__(self) -> None:
        self.charged_bytes = 0


class Besieged:
    """One core and its surroundings; the peer is the script's."""

    def __init__(self, choices: int) -> None:
        self.has_credits = bool(choices & 1)
        self.limits = CoreLimits(
            send_ring=SEND_RING,
            receive_ring=POSTED,
            message_bytes_max=MESSAGE_BYTES_MAX,
            messages_max=MESSAGES_MAX,
            unacked_packets_max=2,
            unacked_bytes_max=10_000,
            flow_control=self.has_credits,
        )
        self.accounts: list[Any] = [Account(), Account()]  # in place of mailboxes
        self.operations: list[Operation] = []
        self.ended: Counter[int] = Counter()
        self.is_paused = False
        self.core = ConnectionCore(
            self.limits, Counters(), RdmaCounters(), self, sequence_first=1 + (choices >> 4)
        )
        self._answers_pings = bool(choices & 2)
        self._posted: deque[int] = deque()
        self._allowed = 0  # frames that the peer has granted
        self._number_last = 0

    # -- around the core

    def deliver(self, source_port: int, target_port: int, payload: bytes, extension: bytes) -> None:
        """Check what would go into an inbox."""
        assert len(payload) <= MESSAGE_BYTES_MAX
        assert 0 < target_port < 1 << 16 and 0 <= source_port < 1 << 16
        assert len(extension) in (0, 16)

    def take_map(self, data: bytes) -> None:
        """Check a map."""
        assert len(data) == CONGESTION_MAP_BYTES

    def map_bytes(self) -> bytes:
        """Return our map."""
        return bytes(CONGESTION_MAP_BYTES)

    def may_answer_ping(self, port: int) -> bool:
        """Tell whether a pong may go."""
        return self._answers_pings and bool(port)

    def key_used(self, target_port: int, key: int) -> None:
        """Check a key."""
        assert 0 <= key < 1 << 32

    def operation_ended(self, owner: Any, operation: Operation) -> None:
        """Count how often an operation ended."""
        assert owner in self.accounts and operation.status is not None
        self.ended[id(operation)] += 1

    # -- the connection

    def attach(self, acknowledged: int, credits: int) -> None:
        """Begin a connection."""
        if not self.core.is_attached:
            offered = self.core.offer(POSTED)
            assert offered == POSTED * self.has_credits
            self._allowed = min(credits, CREDITS_MAX)
            self.core.attach(acknowledged=acknowledged, credits=credits)

    def detach(self) -> None:
        """End it."""
        self._posted.clear()
        self.core.detach()

    def take(self, data: bytes) -> None:
        """Let a frame come; a protocol error ends the connection, as the shell does."""
        was_attached = self.core.is_attached
        reason = self.core.handle_frame(memoryview(data))
        if reason is not None:
            assert was_attached and reason, "a protocol error has a reason"
            self.detach()
        elif was_attached and len(data) >= HEADER_BYTES:
            self._allowed += HEADER.unpack_from(data)[6]
            self.core.handle_posted(1)

    def complete(self, place: int, outcome: Outcome) -> None:
        """Complete a request, and with it all before it; sometimes one that there is not."""
        if not self._posted:
            self.core.handle_completed(place, outcome)
            return
        wr_id = self._posted[place % len(self._posted)]
        while self._posted and self._posted[0] <= wr_id:
            self._posted.popleft()
        self.core.handle_completed(wr_id, outcome)

    # -- the application

    def queue(self, choice: int, amount: int) -> None:
        """Queue a message, perhaps with operations."""
        if self.core.outgoing.message_count() >= MESSAGES_MAX:
            return
        made = [one for bit, one in enumerate(_operations()) if choice >> bit & 1]
        self.operations += made
        account, payload = self.accounts[amount & 1], bytes(_SIZES[amount % len(_SIZES)])
        account.charged_bytes += len(payload)
        self.core.outgoing.queue(
            account,
            1 + amount % PORTS,
            1 + (amount >> 2) % PORTS,
            payload,
            b"",
            made,
            ack_required=bool(choice & 8),
        )

    def act(self, choice: int, amount: int) -> None:
        """Do something that a shell or an application does."""
        core = self.core
        match choice % 6:
            case 0:
                core.cancel(self.accounts[amount & 1], None if amount & 2 else 1 + amount % PORTS)
            case 1:
                core.map_due = core.is_attached
            case 2:
                core.acknowledge()
            case 3 if not core.is_attached:
                core.restart_peer()
            case 4 if not amount % 16:
                core.drop_all()
            case 5:
                self.detach()

    # -- invariants

    def post(self) -> None:
        """Take all work; check each piece of it."""
        core = self.core
        for _ in range(_WORKS_MAX):
            due = core.wants_work()
            work = core.poll_work()
            assert (work is not None) is due, "`wants_work` and `poll_work` disagree"
            if work is None:
                break
            assert work.wr_id > self._number_last, "numbers of requests rise"
            self._number_last = work.wr_id
            self._posted.append(work.wr_id)
            if isinstance(work, Frame):
                self._allowed -= 1
                assert len(work.data) <= HEADER_BYTES + FRAGMENT_BYTES
                assert Header.parse(work.data[:HEADER_BYTES]).payload_bytes <= MESSAGE_BYTES_MAX
        else:
            raise AssertionError("no end of work")
        self.check()

    def check(self) -> None:
        """Check what the core keeps, and what it charges."""
        core, outgoing = self.core, self.core.outgoing  # no public access to its queues
        assert len(core._posted) <= SEND_RING
        assert core.outgoing.message_count() <= MESSAGES_MAX + 1
        assert sum(map(len, core.incoming._pieces)) <= MESSAGE_BYTES_MAX
        weights: Counter[int] = Counter()
        for message in outgoing._messages():
            if message.owner is not None:
                weights[id(message.owner)] += len(message.payload)
        freed: dict[Any, tuple[int, int]] = outgoing.freed
        for owner, (_, freed_bytes) in freed.items():
            owner.charged_bytes -= freed_bytes
        freed.clear()
        for account in self.accounts:
            assert account.charged_bytes == weights[id(account)], "the account is wrong"
        if core._credits.is_on:
            assert self._allowed >= 0, "a frame without credit"
        for operation in self.operations:
            assert self.ended[id(operation)] == (operation.status is not None)

    def close(self) -> None:
        """End; every operation has ended, every account is empty."""
        self.detach()
        self.core.drop_all()
        self.check()
        assert not self.core.outgoing.holds()
        assert all(one.status is not None for one in self.operations)


def _operations() -> tuple[Operation, ...]:
    data = memoryview(bytearray(64))
    pieces = (data[:32], data[32:])
    return (
        RdmaTransfer(key=5, remote_address=0, is_write=True, pieces=pieces, silent=True),
        RdmaTransfer(key=6, remote_address=8, is_write=False, pieces=pieces[:1], fence=True),
        AtomicOperation(key=7, remote_address=0, is_compare=False, operand=1, result=data[:8]),
    )


def rdma_core(data: bytes) -> None:
    """Let a script be the peer, the device and the application of a core."""
    script = Script(data)
    side = Besieged(script.number())
    side.attach(0, 20)
    outcomes = tuple(Outcome)
    for _ in range(STEPS_MAX):
        if not script:
            break
        action, amount = script.number(), script.number()
        if action & 7 == 0:
            side.take(script.piece())
        elif action & 7 == 1:  # with a checksum that fits: 0 is not looked at
            piece = script.piece()
            side.take(piece[: _CHECKSUM_END - 2] + bytes(2) + piece[_CHECKSUM_END:])
        elif action & 7 == 2:
            side.take(
                _frame(action >> 3, amount, script.number(), side.core.outgoing.sequence_next)
            )
        elif action & 7 == 3:
            side.complete(amount, outcomes[(action >> 3) % len(outcomes)])
        elif action & 7 == 4:
            side.queue(action >> 3, amount)
        elif action & 7 == 5:
            side.act(action >> 3, amount)
        elif action & 7 == 6:
            side.attach(side.core.outgoing.sequence_next - (amount >> 4), amount & 15)
        else:
            side.take(_odd_frame(action >> 3, amount))
        side.post()
    side.close()


def _frame(kind: int, amount: int, sequence: int, next_number: int) -> bytes:
    """Return a frame that is nearly in order."""
    size = _SIZES[amount % len(_SIZES)]
    header = MessageHeader(
        sequence=sequence,
        payload_bytes=size,
        source_port=kind & 1,
        target_port=kind >> 1 & 3,
        flags=int(HeaderFlag.RETRANSMITTED if kind & 8 else 0)
        | int(HeaderFlag.ACK_REQUIRED if kind & 16 else 0),
    )
    acknowledgement = max(0, next_number - (amount >> 3)) if amount & 1 else 0
    due = size % FRAGMENT_BYTES if amount & 4 else min(size, FRAGMENT_BYTES)
    return header.emit(acknowledgement=acknowledgement, credit=amount & 3, payload=bytes(due))


def _odd_frame(kind: int, amount: int) -> bytes:
    """Return a fragment of a map, or a message that reports a used key."""
    if kind & 1:
        size = CONGESTION_MAP_BYTES - (kind >> 4)
        header = MessageHeader(payload_bytes=size, flags=HeaderFlag.CONG_BITMAP)
        due = FRAGMENT_BYTES - (kind >> 4 if amount & 1 else 0)
        return header.emit(acknowledgement=0, credit=0, payload=bytes(due))
    used = exthdr.emit([exthdr.Extension(ExtensionType.RDMA, (amount,))])
    header = MessageHeader(sequence=amount, source_port=1, target_port=2, extension=used)
    return header.emit(acknowledgement=0, credit=kind & 3)


TARGETS: dict[str, Callable[[bytes], None]] = {"rdma_core": rdma_core}

_MESSAGE = MessageHeader(sequence=7, payload_bytes=5, source_port=1, target_port=2)
_WORK = bytes([4, 5, 0x0C, 9, 0x3C, 200, 4 + 0x38, 3])
_DONE = bytes([3, 3, 3, 3, 0x0B, 0, 0x1B, 0])
SEEDS: dict[str, tuple[bytes, ...]] = {
    "rdma_core": (
        b"\0"
        + step(0, 0, data=_MESSAGE.emit(acknowledgement=0, credit=0, payload=b"hello"))
        + _WORK
        + _DONE
        + bytes([2 + 0x20, 4, 1, 2 + 0x20, 8, 1])  # two fragments of a message
        + bytes([2, 1, 0])  # an acknowledgement
        + bytes([5 + 0x28, 0, 6, 0x10])  # another connection
        + _DONE,
        b"\3"
        + _WORK * 4
        + bytes([2, 3, 0]) * 6
        + _DONE
        + step(1, 0, data=_MESSAGE.emit(acknowledgement=9, credit=200, payload=b"hello"))
        + bytes([5, 2, 5 + 0x28, 0, 5 + 0x18, 0, 6, 0])
        + _WORK,
        b"\2" + bytes([2 + 8, 0, 1]) * 50,  # pings
        b"\0" + bytes([15, 0, 15, 1, 7, 9]) + _WORK + bytes([15 + 128, 0, 15 + 128, 1]),  # maps
    ),
}
