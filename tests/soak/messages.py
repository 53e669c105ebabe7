"""Messages of the soak that can be checked, one by one, and the books that are kept of them.

A message names the life of its sender's socket, its number in that life, and how many empty
messages went before it; what follows is known from the number. An empty message can say nothing,
so the next one tells that it was there. A life is the clock's reading at its start: a later life
of the same address and port is the larger number.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, fields
from enum import IntEnum
from random import Random
from struct import Struct
from typing import Final, Self

from urds.rds.addresses import SocketAddress

_HEAD: Final = Struct("!QQIIB")  # life, number, empties before, bytes in all, kind
HEAD_BYTES: Final = _HEAD.size
MESSAGE_BYTES_MAX: Final = 1 << 20
_TURNS: Final = 4093  # as many bodies of one length differ
_FILLING: Final = Random(2031).randbytes(MESSAGE_BYTES_MAX + _TURNS)
_MISSING_MAX: Final = 10_000  # numbers of which it is remembered that they did not come


class Kind(IntEnum):
    """What the receiver is to do."""

    ONE_WAY = 0
    ASK = 1  # answer with as many bytes
    END = 2  # the same; the socket will be closed
    FILL = 3  # write into the memory that came along, then answer
    SHOW = 4  # answer with memory that may be read
    ANSWER = 5
    EXCUSE = 6  # an answer: what was asked for was not done, a connection broke


@dataclass(slots=True)
class Counters:
    """What one process counted; sums over processes make the summary."""

    messages: int = 0  # received and right; records of a stream too
    byte_count: int = 0
    lost: int = 0
    repeated: int = 0
    reordered: int = 0
    damaged: int = 0
    unanswered: int = 0
    refused: int = 0  # calls that raised something unexpected
    control_faults: int = 0
    stale: int = 0  # for an earlier generation of the socket: no error
    resets: int = 0  # made on purpose
    excused: int = 0  # operations that a reset ended, as documented
    sockets: int = 0  # opened

    @property
    def errors(self) -> int:
        """Return how often something happened that must never happen."""
        return sum(getattr(self, name) for name in ERRORS)

    def add(self, other: Counters) -> None:
        """Add what another process counted."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))

    def as_dict(self) -> dict[str, int]:
        """Return name and value of each."""
        return asdict(self)


ERRORS: Final = (
    "lost", "repeated", "reordered", "damaged", "unanswered", "refused", "control_faults",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Head:
    """What a message says of itself."""

    life: int
    number: int
    empties: int
    byte_count: int
    kind: Kind

    @classmethod
    def parse(cls, payload: bytes) -> Self | None:
        """Read a message; None if a byte of it is wrong."""
        if len(payload) < HEAD_BYTES:
            return None
        life, number, empties, byte_count, kind = _HEAD.unpack_from(payload)
        if kind > max(Kind) or byte_count != len(payload):
            return None
        if payload[HEAD_BYTES:] != body(number, byte_count - HEAD_BYTES):
            return None
        return cls(life, number, empties, byte_count, Kind(kind))

    def emit(self) -> bytes:
        """Return the bytes of the message."""
        head = _HEAD.pack(self.life, self.number, self.empties, self.byte_count, self.kind)
        return head + body(self.number, self.byte_count - HEAD_BYTES)

    def answer(self, kind: Kind = Kind.ANSWER) -> bytes:
        """Return what is sent back."""
        return Head(self.life, self.number, self.empties, self.byte_count, kind).emit()


def body(number: int, byte_count: int) -> bytes:
    """Return what a message of that number carries behind its head."""
    start = number * 7919 % _TURNS
    return _FILLING[start : start + byte_count]


class Writer:
    """Numbers the messages of one socket to one target."""

    def __init__(self) -> None:
        self.life = time.time_ns()
        self._number = 0
        self._empties = 0

    def next(self, kind: Kind, byte_count: int) -> bytes:
        """Return the next message; at least its head."""
        head = Head(self.life, self._number, self._empties, max(byte_count, HEAD_BYTES), kind)
        self._number += 1
        return head.emit()

    def next_empty(self) -> bytes:
        """Return an empty message, which the next one will tell of."""
        self._empties += 1
        return b""

    def is_answer(self, head: Head) -> bool:
        """Tell whether this answers the last message."""
        return (head.life, head.number) == (self.life, self._number - 1)


@dataclass(slots=True)
class _Account:
    life: int
    expected: int = 0
    empties: int = 0
    missing: set[int] = field(default_factory=set)


class MessageLog:
    """What a receiver expects of each source. A source that says END is forgotten."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._accounts: dict[SocketAddress, _Account] = {}

    @property
    def source_count(self) -> int:
        """Return how many sources have not ended."""
        return len(self._accounts)

    def check(self, payload: bytes, source: SocketAddress) -> Head | None:
        """Enter a message; return its head if there is something to do for it."""
        self._counters.byte_count += len(payload)
        if not payload:
            self._count_empty(source)
            return None
        head = Head.parse(payload)
        if head is None:
            self._counters.damaged += 1
            return None
        account = self._account_of(head, source)
        if account is None:
            self._counters.stale += 1
            return None
        if not self._is_due(head, account):
            return None
        self._counters.messages += 1
        if head.kind is Kind.END:
            del self._accounts[source]
        return head

    def _count_empty(self, source: SocketAddress) -> None:
        account = self._accounts.get(source)
        if account is None:  # of a life that has said nothing yet, or has ended
            self._counters.damaged += 1
        else:
            account.empties += 1
            self._counters.messages += 1

    def _account_of(self, head: Head, source: SocketAddress) -> _Account | None:
        account = self._accounts.get(source)
        if account is not None and head.life < account.life:
            return None
        if account is None or head.life > account.life:
            account = self._accounts[source] = _Account(head.life)
        return account

    def _is_due(self, head: Head, account: _Account) -> bool:
        counters, number = self._counters, head.number
        if number < account.expected:
            if number in account.missing:  # counted as lost when a later one came
                account.missing.discard(number)
                counters.lost -= 1
                counters.reordered += 1
            else:
                counters.repeated += 1
            return False
        counters.lost += number - account.expected
        last = min(number, account.expected + _MISSING_MAX - len(account.missing))
        account.missing.update(range(account.expected, last))
        account.expected = number + 1
        counters.lost += max(0, head.empties - account.empties)
        counters.repeated += max(0, account.empties - head.empties)
        account.empties = head.empties
        return True
