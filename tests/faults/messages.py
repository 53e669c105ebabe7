"""Messages that prove themselves, and the log that judges what came of them.

A message is a number and a hash over sender, receiver, number and body, as in `urds demo`; the
number also says which life of its sender it is from. Sizes follow from the index alone: mostly
short ones, some of 64 KiB and a byte more or less, a few of 1 MiB. Every sixteenth is empty and
has no number: it is known by its place, which is never beside another empty one.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from random import Random
from struct import Struct
from typing import Final

from urds.cli.rds.demo_host import PAYLOAD_BYTES_MIN, digest

LONGEST_BYTES: Final = 1 << 20
_FRONT: Final = Struct(">Q16s")
_LIFE_SHIFT: Final = 40  # of the number; the index is below it
_EMPTY_EVERY, _EMPTY_AT = 16, 5
_LONG_EVERY, _LONG_AT = 2003, 1000
_BORDER_EVERY, _BORDER_AT = 101, 50  # 64 KiB, a byte less, a byte more
_KIB_64: Final = 1 << 16
_STEP: Final = 131  # prime, so that bodies repeat late
_SCATTER: Final = 2_654_435_761  # Knuth's multiplier, which spreads neighbours
_GAP_MAX: Final = 1 << 20


class Sizes(StrEnum):
    """Which lengths the messages of a run have."""

    MIXED = "mixed"  # 0 bytes to 1 MiB, 6 KiB in the mean
    SHORT = "short"  # 0 bytes to 1 KiB


class DamagedError(Exception):
    """A message is not as it was sent."""


def is_empty(index: int) -> bool:
    """Tell whether the message of this index has no bytes."""
    return index % _EMPTY_EVERY == _EMPTY_AT


def payload_bytes(index: int, sizes: Sizes) -> int:
    """Return how long the message of this index is."""
    if is_empty(index):
        return 0
    drawn = index * _SCATTER % (1 << 32)
    kind, filling = drawn % 100, drawn >> 8
    if sizes is Sizes.SHORT:
        return PAYLOAD_BYTES_MIN + filling % 1000
    if index % _LONG_EVERY == _LONG_AT:
        return LONGEST_BYTES
    if index % _BORDER_EVERY == _BORDER_AT:
        return _KIB_64 - 1 + index % 3
    span = 200 if kind < 60 else 4096 if kind < 85 else _KIB_64
    return PAYLOAD_BYTES_MIN + filling % span


class Writer:
    """Makes the messages of one life of a host to another host, from index 0."""

    def __init__(
        self, source: str, target: str, *, life: int, sizes: Sizes, random: Random
    ) -> None:
        self.sent = 0
        self._source, self._target = source, target
        self._life = life
        self._sizes = sizes
        self._pool = random.randbytes(LONGEST_BYTES + _KIB_64)

    def payload(self) -> bytes:
        """Return the next message; the same again until `count_sent`."""
        whole_bytes = payload_bytes(self.sent, self._sizes)
        if not whole_bytes:
            return b""
        start = self.sent * _STEP % _KIB_64
        body = self._pool[start : start + whole_bytes - PAYLOAD_BYTES_MIN]
        number = self._life << _LIFE_SHIFT | self.sent
        return _FRONT.pack(number, digest(self._source, self._target, number, body)) + body

    def count_sent(self) -> None:
        """Go on to the next index: the socket took the message."""
        self.sent += 1


def parse(payload: bytes, source: str, target: str) -> tuple[int, int]:
    """Return life and index of a message that is not empty. Raises DamagedError."""
    if len(payload) < PAYLOAD_BYTES_MIN:
        raise DamagedError(f"{len(payload)} bytes")
    number, expected = _FRONT.unpack_from(payload)
    if digest(source, target, number, payload[PAYLOAD_BYTES_MIN:]) != expected:
        raise DamagedError(f"{len(payload)} bytes with the wrong hash")
    return number >> _LIFE_SHIFT, number & (1 << _LIFE_SHIFT) - 1


class MessageLog:
    """What one life of a receiver took from one life of a sender.

    The first message may have any index: earlier ones were taken by an earlier generation, or given
    up. From there on each is due once and in order. `remark` hears of each that is not.
    """

    def __init__(self, remark: Callable[[str], None]) -> None:
        self.first = -1  # index, -1 before any
        self.next = 0
        self.delivered = 0  # different ones
        self.duplicated = 0
        self.reordered = 0
        self._early_empty = 0  # before the first index was known
        self._missing: set[int] = set()
        self._remark = remark

    def take(self, index: int) -> None:
        """Judge a message with a number."""
        if self.first < 0:
            self._begin(index)
        if self.next <= index <= self.next + _GAP_MAX:
            if index > self.next:
                self._remark(f"{index} came where {self.next} was due")
            self._missing.update(range(self.next, index))
            self.next = index + 1
            self.delivered += 1
        else:
            self._take_old(index)

    def take_empty(self) -> None:
        """Judge a message without bytes."""
        if self.first < 0:
            self._early_empty += 1
        elif is_empty(self.next):
            self.next += 1
            self.delivered += 1
        else:
            late = min(filter(is_empty, self._missing), default=-1)
            self._take_old(late)

    def _take_old(self, index: int) -> None:
        if index in self._missing:
            self._missing.discard(index)
            self.delivered += 1
            self.reordered += 1
            self._remark(f"{index} came late, {self.next} is due")
        else:
            self.duplicated += 1
            name = "an empty message" if index < 0 else str(index)
            self._remark(f"{name} came again, {self.next} is due")

    def _begin(self, index: int) -> None:
        before = int(self._early_empty > 0 and is_empty(index - 1))
        self.first, self.delivered = index - before, before
        self.next = index
        self.duplicated += self._early_empty - before
