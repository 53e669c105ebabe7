"""The bytes of rds-stress: the options that open a run, and the header of every message.

A value module: no socket, no clock. The active side dictates all options in one record of 59
bytes; one with a version before and a type of service behind has 77. Each message begins with 63
bytes, of which the first 19 the receiver compares exactly; `-v` adds a pattern.
Everything is big-endian. IPv4 only, as rds-stress 2.0.7 is.
Source: rds-tools 2.0.7 rds-stress.c; its messages in a capture of linux v6.1;
docs/reference/rds.md 5.6.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from enum import IntEnum
from functools import lru_cache
from ipaddress import IPv4Address
from struct import Struct
from typing import Final, Self

from urds.common.errors import WireError
from urds.rds.constants import MAX_MESSAGE_BYTES

VERSION: Final = "2.0.7"  # of the rds-stress whose long form this is; it knows only its own
VERSION_BYTES: Final = 16
SHORT_BYTES: Final = 59
LONG_BYTES: Final = 77
HEADER_BYTES: Final = 63
BASIC_BYTES: Final = 19  # the part of a header that is compared
OPERATION_OFFSET: Final = 18
NOWHERE: Final = IPv4Address(0)
GO: Final = b"\0"  # one byte each way: my tasks are ready; its value means nothing
RDMA_VECTOR_MAX: Final = 512
ALIGNMENT_MAX: Final = 4096
TASKS_MAX: Final = 256
UNDER_WAY_MAX: Final = 16_384  # requests of one task; each costs memory here that a peer asks for
MEMORY_BYTES_MAX: Final = 4 << 30  # for buffers of one side, messages and RDMA alike

_SHORT: Final = Struct(">IIIIIIHHI15BIII")
_TAIL: Final = Struct(">BB")
BASIC: Final = Struct(">IIIHHHB")
_RDMA: Final = Struct(">BQQQQII3B")
_DIGITS: Final = range(ord("0"), ord("9") + 1)
_SEQUENCE: Final = Struct(">I")
_INDEX: Final = Struct(">HB")
_ENDS: Final = Struct(">IIHH")
_U32_MASK: Final = (1 << 32) - 1
_PARTS: Final = ("sequence", "from", "to", "from port", "to port", "index", "operation")

End = tuple[IPv4Address, int]

assert _SHORT.size == SHORT_BYTES
assert VERSION_BYTES + _SHORT.size + _TAIL.size == LONG_BYTES
assert BASIC.size == BASIC_BYTES
assert BASIC.size + _RDMA.size == HEADER_BYTES


class Operation(IntEnum):
    """What a message is."""

    REQUEST = 1
    ACK = 2


class Rdma(IntEnum):
    """What a request asks the peer to do with the requester's memory."""

    NONE = 0
    READ = 1
    WRITE = 2


class Mode(IntEnum):
    """Which of them requests ask for: `-M`."""

    BOTH = 0
    READ_ONLY = 1
    WRITE_ONLY = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """The active side's options for the passive one. Fields in the order of the bytes."""

    depth: int = 1
    request_bytes: int = 1024
    ack_bytes: int = HEADER_BYTES
    rdma_bytes: int = 0
    send_address: IPv4Address = NOWHERE
    receive_address: IPv4Address = NOWHERE
    base_port: int = 4000
    tasks: int = 1
    run_s: int = 0  # 0: without end
    summary_only: bool = False
    realtime: bool = False
    tracing: bool = False
    verify: bool = False
    show_params: bool = False
    show_perfdata: bool = False
    use_congestion_monitor: bool = True
    rdma_use_once: bool = False
    rdma_use_get_mr: bool = False
    rdma_use_fence: bool = True
    rdma_cache_mrs: bool = False
    rdma_key_o_meter: bool = False
    suppress_warnings: bool = False
    simplex: bool = False
    rdma_mode: int = Mode.BOTH
    rdma_vector: int = 1
    rdma_alignment: int = 0
    connect_retries: int = 0
    type_of_service: int = 0  # the long form only, as what follows
    is_async: bool = False

    @property
    def rdma_total_bytes(self) -> int:
        """Return the bytes of one RDMA operation."""
        return self.rdma_bytes * self.rdma_vector

    @property
    def buffer_bytes(self) -> int:
        """Return what a task asks for with SO_SNDBUF and SO_RCVBUF."""
        return self.tasks * self.depth * (self.request_bytes + self.ack_bytes) * 2

    def emit(self) -> bytes:
        """Return the short form, or the long one where it says more."""
        *values, type_of_service, is_async = (getattr(self, one.name) for one in fields(self))
        data = _SHORT.pack(*map(int, values))
        if not type_of_service and not is_async:
            return data
        version = VERSION.encode().ljust(VERSION_BYTES, b"\0")
        return version + data + _TAIL.pack(type_of_service, is_async)

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read either form. Raises WireError for another size or values that cannot be."""
        begun = data[:VERSION_BYTES]
        if len(data) < VERSION_BYTES or len(data) != form_bytes(begun):
            raise WireError(f"options of {len(data)} bytes, not {SHORT_BYTES} or {LONG_BYTES}")
        tail = (0, 0)
        if len(data) == LONG_BYTES:
            tail = _TAIL.unpack(data[-_TAIL.size :])
            data = data[VERSION_BYTES : -_TAIL.size]
        names = (one.name for one in fields(cls))
        read = dict(zip(names, (*_SHORT.unpack(data), *tail), strict=True))
        for one in fields(cls):
            if one.type == "bool":
                read[one.name] = bool(read[one.name])
            elif one.type == "IPv4Address":
                read[one.name] = IPv4Address(read[one.name])
        found = cls(**read)
        found.check()
        return found

    def check(self) -> None:
        """Raise WireError for wrong values; the text names the option of the command line."""
        for name, value, low, high in (
            ("-q", self.request_bytes, HEADER_BYTES, MAX_MESSAGE_BYTES),
            ("-a", self.ack_bytes, HEADER_BYTES, MAX_MESSAGE_BYTES),
            ("-t", self.tasks, 1, TASKS_MAX),
            ("-d", self.depth, 1, UNDER_WAY_MAX),
            ("-t times -d", self.tasks * self.depth, 1, UNDER_WAY_MAX),
            ("-p", self.base_port, 1, 65_535 - self.tasks),
            ("-Q", self.type_of_service, 0, 255),
            ("-M", self.rdma_mode, Mode.BOTH, Mode.WRITE_ONLY),
            ("-I", self.rdma_vector, 1, RDMA_VECTOR_MAX),
            ("-D times -I", self.rdma_total_bytes, 0, MAX_MESSAGE_BYTES),
            ("--rdma-alignment", self.rdma_alignment, 0, ALIGNMENT_MAX),
            ("bytes of all buffers", self._memory_bytes(), 0, MEMORY_BYTES_MAX),
        ):
            if not low <= value <= high:
                raise WireError(f"{name} {value}: must be from {low} to {high}")
        if self.is_async:
            raise WireError("--async needs the RDS of UEK")
        if self.rdma_cache_mrs and self.rdma_use_once:
            raise WireError("--rdma-cache-mrs and --rdma-use-once exclude each other")
        if self.rdma_cache_mrs and not self.rdma_use_get_mr:
            raise WireError("--rdma-cache-mrs needs --rdma-use-get-mr 1")

    def _memory_bytes(self) -> int:
        """Return what all tasks of one side need at most."""
        pairs = self.tasks * self.tasks
        return self.tasks * self.buffer_bytes + pairs * self.depth * 2 * self.rdma_total_bytes


def form_bytes(begun: bytes) -> int:
    """Return how long options are that begin with these 16 bytes.

    rds-stress compares them with its own version. Any version begins with a digit, which as the
    first byte of the depth would be 800 million: impossible, so no version need be known.
    """
    return LONG_BYTES if begun[0] in _DIGITS else SHORT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaPart:
    """What a header says about RDMA; an ack has the contents of its request."""

    operation: int = Rdma.NONE
    address: int = 0  # of the requester's buffer: means something to the requester only
    offset: int = 0  # where in the region the operation begins
    pattern: int = 0  # 64 bits that fill the buffer with `-v`
    key: int = 0  # the cookie; 0 in a request whose message brings it
    rdma_bytes: int = 0
    vector: int = 0
    retry: int = 0  # these three are of asynchronous sends, and of the long form
    remote_error: int = 0
    pending: int = 0

    def emit(self) -> bytes:
        """Return the 44 bytes behind the basic ones."""
        return _RDMA.pack(*(getattr(self, one.name) for one in fields(self)))

    @classmethod
    def parse(cls, payload: bytes) -> Self:
        """Read the part from a whole message. Raises WireError: it is shorter than a header."""
        if len(payload) < HEADER_BYTES:
            raise WireError(f"message of {len(payload)} bytes, a header has {HEADER_BYTES}")
        names = (one.name for one in fields(cls))
        return cls(**dict(zip(names, _RDMA.unpack_from(payload, BASIC_BYTES), strict=True)))


NO_RDMA: Final = RdmaPart().emit()


@lru_cache(maxsize=4)
def message_pattern(pattern_bytes: int) -> bytes:
    """Return the bytes that follow the header of a message with `-v`."""
    data = bytearray(pattern_bytes)
    value = 11
    for index in range(pattern_bytes):
        data[index] = value
        value = (41 * (value + 3) + (index + 1 >> 8)) & 0xFF
    return bytes(data)


def rdma_pattern(pattern: int, rdma_bytes: int) -> bytes:
    """Return what fills memory with `-v`: 64 bits in host order, as often as they fit."""
    return pattern.to_bytes(8, sys.byteorder) * (rdma_bytes // 8)


# -- two tasks that talk


class StressError(OSError):
    """The bytes received are not those sent, or the other side broke the rules of a run."""


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
        self.asked = [RdmaPart()] * parameters.depth  # RDMA that the peer's requests ask for
        self._depth = parameters.depth
        self._bytes = {
            Operation.REQUEST: parameters.request_bytes,
            Operation.ACK: parameters.ack_bytes,
        }
        self._verify = parameters.verify
        self._bodies = {
            operation: (message_pattern if parameters.verify else bytes)(count - HEADER_BYTES)
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
        """Return the next request, header and rest. The pair's state changes when it is sent."""
        return self._message(self.send_index, Operation.REQUEST, rdma)

    def ack(self, rdma: bytes = NO_RDMA) -> tuple[bytes, bytes]:
        """Return the ack of the oldest request. The pair's state changes when it is sent."""
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
        return header + rdma, self._bodies[operation]

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
                f"{self._name()}: {operation.name.lower()} of {len(payload)} bytes,"
                f" not {self._bytes[operation]}"
            )
        if self._verify and payload[HEADER_BYTES:] != self._bodies[operation]:
            raise StressError(
                f"{self._name()}: {_damage(payload[HEADER_BYTES:], self._bodies[operation])}"
            )
        self._receive_sequence = self._receive_sequence + 1 & _U32_MASK
        if operation is Operation.ACK:
            self.pending -= 1
        else:
            self.unacked += 1
            self._receive_index = (self._receive_index + 1) % self._depth
        return operation, index

    def _expected(self, payload: bytes) -> tuple[Operation, int]:
        """Return the operation of a message, and the index that it then must have."""
        number = payload[OPERATION_OFFSET] if len(payload) >= HEADER_BYTES else None
        if number == Operation.ACK:
            if not self.pending:
                raise StressError(f"{self._name()}: an ack, and no request is under way")
            return Operation.ACK, (self.send_index - self.pending) % self._depth
        if number == Operation.REQUEST:
            if self.unacked == self._depth:
                raise StressError(f"{self._name()}: more than {self._depth} requests under way")
            return Operation.REQUEST, self._receive_index
        said = f"{len(payload)} bytes" if number is None else f"operation {number}"
        raise StressError(f"{self._name()}: no message of rds-stress, {said}")

    def _name(self) -> str:
        return f"message from {self.peer[0]}:{self.peer[1]}"


def _ends(source: End, target: End) -> bytes:
    return _ENDS.pack(int(source[0]), int(target[0]), source[1], target[1])


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


def _damage(data: bytes, wanted: bytes) -> str:
    wrong = [
        place for place, pair in enumerate(zip(data, wanted, strict=True)) if pair[0] != pair[1]
    ]
    return f"payload damaged from byte {wrong[0]} on, {len(wrong)} of {len(data)} are wrong"
