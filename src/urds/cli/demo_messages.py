"""Messages that prove themselves: numbered per pair of hosts, content checked by a hash.

A message is the number, the hash, and a body that differs from message to message. The hash
covers who sent it to whom, the number and the body, so that a message in the wrong place is as
damaged as one with a changed octet.
"""

from __future__ import annotations

from hashlib import blake2b
from random import Random
from struct import Struct
from typing import Final

_HASH_BYTES: Final = 16
_FRONT: Final = Struct(f">Q{_HASH_BYTES}s")
_NUMBER: Final = Struct(">Q")
_POOL_BYTES: Final = 1 << 16
_STEP: Final = 131  # prime, so that bodies repeat late
_GAP_MAX: Final = 1 << 20

PAYLOAD_BYTES_MIN: Final = _FRONT.size
PAYLOAD_BYTES_MAX: Final = _POOL_BYTES


def digest(source: str, target: str, number: int, body: bytes) -> bytes:
    """Return the hash of one message."""
    route = f"{source} {target} ".encode()
    return blake2b(route + _NUMBER.pack(number) + body, digest_size=_HASH_BYTES).digest()


class Writer:
    """Makes the messages from one host to another, numbers from 0."""

    def __init__(self, source: str, target: str, *, payload_bytes: int, random: Random) -> None:
        self.sent = 0
        self._source = source
        self._target = target
        self._body_bytes = payload_bytes - _FRONT.size
        self._pool = random.randbytes(_POOL_BYTES + self._body_bytes)

    def payload(self) -> bytes:
        """Return the next message; the same again until `count_sent`."""
        start = self.sent * _STEP % _POOL_BYTES
        body = self._pool[start : start + self._body_bytes]
        return _FRONT.pack(self.sent, digest(self._source, self._target, self.sent, body)) + body

    def count_sent(self) -> None:
        """Go on to the next number: the socket took the message."""
        self.sent += 1


class Ledger:
    """What came from one host to another: each number once and in order, or it is told."""

    def __init__(self, source: str, target: str) -> None:
        self.delivered = 0  # different messages, whole ones
        self.duplicated = 0
        self.reordered = 0
        self.damaged = 0
        self._source = source
        self._target = target
        self._next = 0
        self._missing: set[int] = set()

    def missing(self, sent: int) -> list[int]:
        """Return the numbers below `sent` that did not come, in order."""
        return sorted(self._missing) + list(range(self._next, sent))

    def check(self, payload: bytes) -> None:
        """Judge one message."""
        if len(payload) < _FRONT.size:
            self.damaged += 1
            return
        number, expected = _FRONT.unpack_from(payload)
        if digest(self._source, self._target, number, payload[_FRONT.size :]) != expected:
            self.damaged += 1
        elif self._next <= number <= self._next + _GAP_MAX:
            self._missing.update(range(self._next, number))
            self._next = number + 1
            self.delivered += 1
        elif number in self._missing:
            self._missing.discard(number)
            self.delivered += 1
            self.reordered += 1
        else:
            self.duplicated += 1
