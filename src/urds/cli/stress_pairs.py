"""The books of two tasks that talk: what one may send next, and what must come next.

A value machine: no socket, no clock. Each direction of a pair has one sequence from 0, shared by
requests and acks. Requests are numbered round robin below the depth, acks come in the order of
their requests. What arrives is exactly the next message or `StressError` says how it differs:
a loss, a repeat and a swap all show as a wrong sequence.
Source: rds-tools 2.0.7 rds-stress.c; rds.md 5.6.
"""

from __future__ import annotations

from ipaddress import IPv4Address
from struct import Struct
from typing import Final

from urds.cli.stress_wire import (
    BASIC,
    BASIC_BYTES,
    HEADER_BYTES,
    NO_RDMA,
    OPERATION_OFFSET,
    Operation,
    Parameters,
    RdmaPart,
    message_pattern,
)

_SEQUENCE: Final = Struct(">I")
_INDEX: Final = Struct(">HB")
_ENDS: Final = Struct(">IIHH")
_U32_MASK: Final = (1 << 32) - 1
_NO_RDMA_PART: Final = RdmaPart()
_PARTS: Final = ("sequence", "from", "to", "from port", "to port", "index", "operation")

End = tuple[IPv4Address, int]


class StressError(OSError):
    """What arrived is not what was sent, or the other side broke the rules of a run."""


class Pair:
    """One of our tasks and one of the peer's. The index of the pair is the peer's task."""

    def __init__(self, parameters: Parameters, *, ours: End, peer: End) -> None:
        self.peer: Final = (str(peer[0]), peer[1])
        self.pending = 0  # requests of ours without an ack
        self.unacked = 0  # requests of the peer without an ack
        self.send_index = 0
        self.send_sequence = 0
        self.is_congested = False
        self.sent_ns = [0] * parameters.depth
        self.asked = [_NO_RDMA_PART] * parameters.depth  # RDMA that the peer's requests ask for
        self._depth = parameters.depth
        self._bytes = {
            Operation.REQUEST: parameters.request_bytes,
            Operation.ACK: parameters.ack_bytes,
        }
        self._verify = parameters.verify
        self._tails = {
            operation: _tail(count, verify=parameters.verify)
            for operation, count in self._bytes.items()
        }
        self._receive_index = 0
        self._receive_sequence = 0
        self._ends_out = _ends(ours, peer)
        self._ends_in = _ends(peer, ours)

    # -- sending

    @property
    def ack_index(self) -> int:
        """Return the index of the oldest request that has no ack yet."""
        return (self._receive_index - self.unacked) % self._depth

    @property
    def may_request(self) -> bool:
        """Tell whether fewer requests are under way than the depth allows."""
        return self.pending < self._depth

    def request(self, rdma: bytes = NO_RDMA) -> tuple[bytes, bytes]:
        """Return the next request, header and rest. The books change when it is sent."""
        return self._message(self.send_index, Operation.REQUEST, rdma)

    def ack(self, rdma: bytes = NO_RDMA) -> tuple[bytes, bytes]:
        """Return the ack of the oldest request. The books change when it is sent."""
        return self._message(self.ack_index, Operation.ACK, rdma)

    def requested(self, now_ns: int) -> None:
        """Note that a request was sent."""
        self.sent_ns[self.send_index] = now_ns
        self.send_index = (self.send_index + 1) % self._depth
        self.pending += 1
        self.send_sequence = self.send_sequence + 1 & _U32_MASK

    def acked(self) -> None:
        """Note that the ack of the oldest request was sent."""
        self.unacked -= 1
        self.send_sequence = self.send_sequence + 1 & _U32_MASK

    def _message(self, index: int, operation: Operation, rdma: bytes) -> tuple[bytes, bytes]:
        header = _SEQUENCE.pack(self.send_sequence) + self._ends_out + _INDEX.pack(index, operation)
        return header + rdma, self._tails[operation]

    # -- receiving

    def receive(self, payload: bytes) -> tuple[Operation, int]:
        """Check a message and note it; return what it is, and the index of its request.

        Raises StressError: it is not the next one, or with `-v` not what was sent.
        """
        operation, index = self._expected(payload)
        expected = _SEQUENCE.pack(self._receive_sequence) + self._ends_in
        expected += _INDEX.pack(index, operation)
        if payload[:BASIC_BYTES] != expected:
            raise StressError(f"{self._name()}: {_differences(payload, expected)}")
        if len(payload) != self._bytes[operation]:
            raise StressError(
                f"{self._name()}: {operation.name.lower()} of {len(payload)} octets,"
                f" not {self._bytes[operation]}"
            )
        if self._verify and payload[HEADER_BYTES:] != self._tails[operation]:
            raise StressError(
                f"{self._name()}: {_damage(payload[HEADER_BYTES:], self._tails[operation])}"
            )
        self._receive_sequence = self._receive_sequence + 1 & _U32_MASK
        if operation is Operation.ACK:
            self.pending -= 1
        else:
            self.unacked += 1
            self._receive_index = (self._receive_index + 1) % self._depth
        return operation, index

    def _expected(self, payload: bytes) -> tuple[Operation, int]:
        """Return what a message says it is, and the index that it then must have."""
        number = payload[OPERATION_OFFSET] if len(payload) >= HEADER_BYTES else None
        if number == Operation.ACK:
            if not self.pending:
                raise StressError(f"{self._name()}: an ack, and no request is under way")
            return Operation.ACK, (self.send_index - self.pending) % self._depth
        if number == Operation.REQUEST:
            if self.unacked == self._depth:
                raise StressError(f"{self._name()}: more than {self._depth} requests under way")
            return Operation.REQUEST, self._receive_index
        said = f"{len(payload)} octets" if number is None else f"operation {number}"
        raise StressError(f"{self._name()}: no message of rds-stress, {said}")

    def _name(self) -> str:
        return f"message from {self.peer[0]}:{self.peer[1]}"


def _ends(source: End, target: End) -> bytes:
    return _ENDS.pack(int(source[0]), int(target[0]), source[1], target[1])


def _tail(message_bytes: int, *, verify: bool) -> bytes:
    rest_bytes = message_bytes - HEADER_BYTES
    return message_pattern(rest_bytes) if verify else bytes(rest_bytes)


def _differences(payload: bytes, expected: bytes) -> str:
    """Name the fields that differ, as values."""
    both = zip(_PARTS, BASIC.unpack(payload[:BASIC_BYTES]), BASIC.unpack(expected), strict=True)
    return ", ".join(
        f"{name} {_shown(name, got)}, expected {_shown(name, wanted)}"
        for name, got, wanted in both
        if got != wanted
    )


def _shown(name: str, value: int) -> str:
    return str(IPv4Address(value)) if name in ("from", "to") else str(value)


def _damage(octets: bytes, wanted: bytes) -> str:
    wrong = [
        place for place, pair in enumerate(zip(octets, wanted, strict=True)) if pair[0] != pair[1]
    ]
    return f"payload damaged from octet {wrong[0]} on, {len(wrong)} of {len(octets)} are wrong"
