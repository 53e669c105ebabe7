"""RDMA of a task: buffers, regions and cookies, as the structures of rds-rdma(7) name them.

Of each slot of a pair there are two buffers: one that the peer's program writes or reads, named by
a cookie that goes with the request, and one that this side writes from or reads into when it
answers the peer's request. An operation leaves with its ack; a notification with a token reports
its end. The address in a header is an offset into this side's memory: the peer only returns it.
Source: rds-tools 2.0.7 rds-stress.c; rds-rdma(7); docs/reference/rds.md 4.3, 5.6.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from struct import Struct
from typing import Final

import urds
from urds.cli.output import complain
from urds.cli.rds.stress.wire import Mode, Parameters, Rdma, RdmaPart, StressError, rdma_pattern

Ancillary = list[tuple[int, int, bytes]]

FIRST_SEQUENCE: Final = 11  # messages before that are plain: they bring the connection up
_GET_MR: Final = Struct("=QQQQ")
_FREE_MR: Final = Struct("=QQ")
_IOVEC: Final = Struct("=QQ")
_ARGS: Final = Struct("=QQQQQQQ")
_COOKIE: Final = Struct("=Q")
_STATUS: Final = Struct("=Qi4x")
_KEY_MASK: Final = (1 << 32) - 1
_KEYS_MAX: Final = 32_768
_NOTHING: Final = RdmaPart()


class Memory:
    """The buffers of one task, page-aligned but for the alignment that the user asked for."""

    def __init__(self, parameters: Parameters) -> None:
        self.slot_bytes: Final = parameters.rdma_total_bytes
        self._depth = parameters.depth
        self._start = parameters.rdma_alignment
        buffers = 2 * parameters.tasks * parameters.depth
        self._mapping = mmap.mmap(-1, self._start + buffers * self.slot_bytes)
        self._bytes = memoryview(self._mapping)
        # What ctypes exports keeps the mapping; regions may outlive the task.
        self._first = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))

    def offset(self, pair: int, index: int, *, is_local: bool) -> int:
        """Return where the buffer of a slot begins."""
        return self._start + (2 * (pair * self._depth + index) + is_local) * self.slot_bytes

    def address(self, offset: int) -> int:
        """Return an offset as C knows it."""
        return self._first + offset

    def fill(self, offset: int, data: bytes) -> None:
        """Write bytes into a buffer."""
        self._bytes[offset : offset + len(data)] = data

    def holds(self, offset: int, data: bytes) -> bool:
        """Tell whether a buffer begins with these bytes."""
        return self._bytes[offset : offset + len(data)] == data


class KeyMeter:
    """Counts keys that come again, and how soon: `--rdma-key-o-meter`."""

    def __init__(self) -> None:
        self.reissued = 0
        self.distance_ns_min = 0
        self.distance_ns_sum = 0
        self._seen_ns: dict[int, int] = {}

    def add(self, key: int) -> None:
        """Note a key that was just issued; the oldest of 32,768 is forgotten."""
        now_ns = time.monotonic_ns()
        before_ns = self._seen_ns.pop(key, None)
        self._seen_ns[key] = now_ns
        if before_ns is not None:
            distance_ns = now_ns - before_ns
            least_ns = min(self.distance_ns_min, distance_ns) if self.reissued else distance_ns
            self.distance_ns_min = least_ns
            self.distance_ns_sum += distance_ns
            self.reissued += 1
        elif len(self._seen_ns) > _KEYS_MAX:
            del self._seen_ns[next(iter(self._seen_ns))]


class PairRdma:
    """RDMA between one of our tasks and one of the peer's."""

    def __init__(
        self,
        parameters: Parameters,
        sock: urds.Socket,
        memory: Memory,
        pair: int,
        meter: KeyMeter | None,
    ) -> None:
        self.is_ending = False  # from here on the peer may leave, and operations may fail
        self._parameters = parameters
        self._sock = sock
        self._memory = memory
        self._pair = pair
        self._meter = meter
        self._read_next = not pair & 1  # a half of the pairs begins with reads, the other writes
        self._cookies = [0] * parameters.depth
        self._requests = [_NOTHING] * parameters.depth
        self._answers = [_NOTHING] * parameters.depth
        self._under_way = [False] * parameters.depth
        self._fetched = [False] * parameters.depth  # without a fence: read before the ack
        self._cookie = ctypes.c_uint64()
        self._pieces = ctypes.create_string_buffer(_IOVEC.size * parameters.rdma_vector)

    # -- our requests

    def request(self, index: int, sequence: int) -> tuple[RdmaPart, Ancillary]:
        """Return what goes with a request: its part of the header and its control messages.

        Raises OSError: no region can be had.
        """
        parameters = self._parameters
        mode = parameters.rdma_mode
        is_read = self._read_next if mode == Mode.BOTH else mode == Mode.READ_ONLY
        offset = self._memory.offset(self._pair, index, is_local=False)
        if parameters.rdma_use_get_mr and not self._cookies[index]:
            self._sock.setsockopt(urds.SOL_RDS, urds.RDS_GET_MR, self._region(offset))
            self._cookies[index] = self._cookie.value
        part = RdmaPart(
            operation=Rdma.READ if is_read else Rdma.WRITE,
            address=offset,
            pattern=(sequence << 32) | os.getpid() & _KEY_MASK,
            key=self._cookies[index],
            rdma_bytes=parameters.rdma_bytes,
            vector=parameters.rdma_vector,
        )
        self._requests[index] = part
        if parameters.verify:
            wanted = rdma_pattern(part.pattern, part.rdma_bytes)
            self._memory.fill(offset, wanted if is_read else bytes(len(wanted)))
        if part.key:
            return part, [(urds.SOL_RDS, urds.RDS_CMSG_RDMA_DEST, _COOKIE.pack(part.key))]
        return part, [(urds.SOL_RDS, urds.RDS_CMSG_RDMA_MAP, self._region(offset))]

    def requested(self, index: int) -> None:
        """Note that the request of a slot was sent, and with it the cookie."""
        self._read_next = not self._read_next
        if not self._requests[index].key:
            self._cookies[index] = self._cookie.value
        if self._meter:
            self._meter.add(self._cookies[index] & _KEY_MASK)

    def acknowledged(self, index: int, part: RdmaPart) -> None:
        """Check the ack of a request: with `-v` what the peer wrote. Frees the region.

        Raises StressError: it is not the ack of this request, or the memory is not as it says.
        """
        asked = self._requests[index]
        cookie = self._cookies[index]
        if part.key != cookie or part.pattern != asked.pattern:
            raise StressError(
                f"{self._name()}: the ack of another request, key {part.key:#x}"
                f" pattern {part.pattern:#x}, expected {cookie:#x} {asked.pattern:#x}"
            )
        if not self._parameters.rdma_cache_mrs:
            self._cookies[index] = 0
            # A read without a fence had no message, so nothing used the region up.
            is_unfenced = asked.operation == Rdma.READ and not self._parameters.rdma_use_fence
            if is_unfenced or not self._parameters.rdma_use_once:
                self._sock.setsockopt(urds.SOL_RDS, urds.RDS_FREE_MR, _FREE_MR.pack(cookie, 0))
        if asked.operation == Rdma.WRITE:
            self._check(asked, self._memory.offset(self._pair, index, is_local=False), "written")

    def _region(self, offset: int) -> bytes:
        flags = urds.RDS_RDMA_READWRITE
        if self._parameters.rdma_use_once:
            flags |= urds.RDS_RDMA_USE_ONCE
        self._cookie.value = 0
        where = ctypes.addressof(self._cookie)
        return _GET_MR.pack(self._memory.address(offset), self._memory.slot_bytes, where, flags)

    # -- the peer's requests

    def asked(self, part: RdmaPart) -> None:
        """Check a request. Raises StressError: it differs from the options."""
        wanted = (self._parameters.rdma_bytes, self._parameters.rdma_vector)
        if (part.rdma_bytes, part.vector) != wanted or part.operation not in (1, 2):
            raise StressError(
                f"{self._name()}: RDMA operation {part.operation} of {part.vector} times"
                f" {part.rdma_bytes} bytes, expected 1 or 2, {wanted[1]} times {wanted[0]}"
            )

    def is_to_fetch(self, index: int, part: RdmaPart) -> bool:
        """Tell whether a read has to end before its ack may leave, because nothing fences it."""
        is_unfenced = part.operation == Rdma.READ and not self._parameters.rdma_use_fence
        return is_unfenced and not self._fetched[index]

    def operation(self, index: int, part: RdmaPart) -> Ancillary | None:
        """Return the control message that makes a message do what a request asked for.

        None: the last operation of this slot has not ended. It happens: notifications may come
        later than the next request.
        """
        if self._fetched[index]:
            return []
        if self._under_way[index]:
            return None
        offset = self._memory.offset(self._pair, index, is_local=True)
        flags = urds.RDS_RDMA_NOTIFY_ME
        if part.operation == Rdma.WRITE:
            flags |= urds.RDS_RDMA_READWRITE
            if self._parameters.verify:
                self._memory.fill(offset, rdma_pattern(part.pattern, part.rdma_bytes))
        elif self._parameters.rdma_use_fence:
            flags |= urds.RDS_RDMA_FENCE
        else:
            flags |= urds.RDS_RDMA_SILENT
        for number in range(part.vector):
            piece = self._memory.address(offset + number * part.rdma_bytes)
            _IOVEC.pack_into(self._pieces, number * _IOVEC.size, piece, part.rdma_bytes)
        token = self._pair * self._parameters.depth + index
        data = _ARGS.pack(
            *(part.key, part.offset, part.rdma_bytes * part.vector),
            *(ctypes.addressof(self._pieces), part.vector, flags, token),
        )
        return [(urds.SOL_RDS, urds.RDS_CMSG_RDMA_ARGS, data)]

    def begun(self, index: int, part: RdmaPart) -> None:
        """Note that the operation of a slot was sent."""
        self._answers[index] = part
        self._under_way[index] = True

    def acked(self, index: int) -> None:
        """Note that the ack of a slot was sent."""
        self._fetched[index] = False

    def ended(self, index: int, status: int) -> None:
        """Note the end of an operation; the text names operations that a lost connection dropped.

        Raises StressError: it brought wrong bytes.
        """
        part = self._answers[index]
        self._under_way[index] = False
        self._fetched[index] = self.is_to_fetch(index, part)
        if status:
            if self.is_ending:
                return
            name = urds.RdmaStatus(status).name.lower().replace("_", " ")
            complain("urds stress", f"{self._name()}: RDMA operation of slot {index} ended: {name}")
        elif part.operation == Rdma.READ:
            self._check(part, self._memory.offset(self._pair, index, is_local=True), "read")

    def _check(self, part: RdmaPart, offset: int, done: str) -> None:
        if self._parameters.verify:
            wanted = rdma_pattern(part.pattern, part.rdma_bytes)
            if not self._memory.holds(offset, wanted):
                raise StressError(f"{self._name()}: memory {done} is not filled with its pattern")

    def _name(self) -> str:
        return f"task {self._pair} of the peer"


def ended_operations(ancillary: Ancillary) -> list[tuple[int, int]]:
    """Return token and status of each notification among control messages."""
    return [
        _STATUS.unpack(data)
        for level, kind, data in ancillary
        if level == urds.SOL_RDS and kind == urds.RDS_CMSG_RDMA_STATUS
    ]


def cookie_of(ancillary: Ancillary) -> int:
    """Return the cookie that came with a message, 0 without one."""
    for level, kind, data in ancillary:
        if level == urds.SOL_RDS and kind == urds.RDS_CMSG_RDMA_DEST:
            return int(_COOKIE.unpack(data)[0])
    return 0
