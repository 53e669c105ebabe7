"""Mappings of remote memory: a peer writes into a region without a copy by the owner.

A peer that holds a remote key requests the memory behind it. The owner checks what a responder
would check for a write: the queue pair is the peer's and receives, the key is valid, of its
protection domain, with REMOTE_WRITE; and further that the region is one whole allocation of the
adapter, since a mapping of a file covers all of it. Then it sends the file's descriptor.

**Revocation.** When the region, its keys or the queue pair go, the owner increments the generation
and then waits until no peer is marked as copying. A peer sets that mark first, then checks the
generation, then copies. With the fences of `ring` one of both sees the other, so after a
`deregister` no peer that keeps the rules writes any more.

**A hostile peer of the same user** keeps its mapping as long as it lives: it can read and write
that one allocation after revocation, read it although the key allowed writing only, and write
between the bytes of its packets. It cannot reach any other memory, nor make a process lose pages.
The same peer could attach a debugger; the provider serves one user only.
"""

import mmap
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from urds.common.errors import RemoteProtocolError
from urds.common.types import BytesLike
from urds.verbs.engine.keys import KeyTable, Region, reaches
from urds.verbs.engine.numbers import AccessFlag
from urds.verbs.providers.shm.memory import (
    CONTROL_BYTES,
    Allocations,
    SharedAllocation,
    map_sealed,
)
from urds.verbs.providers.shm.messages import MapReject, MapReply, MapRequest
from urds.verbs.providers.shm.ring import MemoryFence, RingReader, RingWriter

if TYPE_CHECKING:
    from random import Random

REVOKE_WAIT_NS: Final = 1_000_000_000  # a copy takes far below a millisecond of running time
_REVOKE_STEP_S: Final = 0.000_05
MAPPINGS_MAX: Final = 4096  # that one borrower remembers, asked and declined ones too
COPY_BYTES: Final = 1 << 22  # at once; a longer copy looks at the generation in between
_ADDRESS_END: Final = 1 << 64


class MappableKeys(KeyTable):
    """The keys of an adapter whose memory peers may map. Lock: the adapter's."""

    def __init__(
        self,
        allocations: Allocations,
        peer_readers: Callable[[], Iterable[RingReader]],
        *,
        rng: "Random | None" = None,
        on_overdue: Callable[[RingReader], None],
        pause: Callable[[], None] = lambda: time.sleep(_REVOKE_STEP_S),
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Map from `allocations`; `peer_readers` returns the rings of all peers.

        Keys are drawn from `rng`, as in every key table. `on_overdue` gets the ring of a peer that
        is marked as copying for a second.
        """
        super().__init__(rng=rng)
        self._allocations = allocations
        self._peer_readers = peer_readers
        self._on_overdue = on_overdue
        self._pause, self._now_ns = pause, now_ns
        self._fence = MemoryFence()
        self._whole: dict[int, Region] = {}  # remote key to region that is one allocation
        self._mapped_by_peer_of: dict[
            int, set[SharedAllocation]
        ] = {}  # own queue pair to what its peer has
        self.mappings_made = 0
        self.mappings_rejected = 0
        self.revocations = 0
        self.revocations_overdue = 0  # borrowers that still said "copying" after the wait

    # -- as KeyTable

    def register(
        self,
        pd: object,
        view: memoryview,
        address: int,
        access: AccessFlag,
        *,
        key: int | None = None,
    ) -> Region:
        """Register as KeyTable does, and note whether peers may map the region."""
        region = super().register(pd, view, address, access, key=key)
        self._remember(region)
        return region

    def reregister(
        self,
        region: Region,
        *,
        pd: object | None = None,
        view: memoryview | None = None,
        address: int | None = None,
        access: AccessFlag | None = None,
    ) -> None:
        """Change a region as KeyTable does; mappings of it are revoked."""
        rkey = region.rkey
        super().reregister(region, pd=pd, view=view, address=address, access=access)
        self._forget(rkey)
        self._remember(region)

    def deregister(self, region: Region) -> None:
        """Remove a region as KeyTable does; mappings of it are revoked."""
        super().deregister(region)
        self._forget(region.rkey)

    # -- mappings

    def map_remote(self, request: MapRequest, *, pd: object) -> tuple[MapReply, int] | MapReject:
        """Answer a peer of the queue pair `request.qpn`, which has `pd` and allows writes.

        Returns the reply and the descriptor to send with it, which stays the allocation's.
        """
        region = self._whole.get(request.rkey)
        if region is None or not reaches(pd, region.pd):
            self.mappings_rejected += 1
            return MapReject(request.qpn, request.rkey)
        allocation: SharedAllocation = region.tag
        allocation.is_mapped = True
        self._mapped_by_peer_of.setdefault(request.qpn, set()).add(allocation)
        self.mappings_made += 1
        mapping_reply = MapReply(
            request.qpn, request.rkey, region.address, region.length, allocation.generation
        )
        return mapping_reply, allocation.descriptor

    def has_mappings(self, qpn: int) -> bool:
        """Return whether the peer of a queue pair has a mapping."""
        return qpn in self._mapped_by_peer_of

    def revoke_mappings(self, qpn: int) -> None:
        """Revoke the mappings of the peer of a queue pair that does not receive any more."""
        if (allocations := self._mapped_by_peer_of.pop(qpn, None)) is not None:
            self._revoke(allocations)

    def _remember(self, region: Region) -> None:
        if region.access & AccessFlag.REMOTE_WRITE:
            region.tag = self._allocations.find(region.view)
            if region.tag is not None:
                self._whole[region.rkey] = region

    def _forget(self, rkey: int) -> None:
        if (region := self._whole.pop(rkey, None)) is not None:
            self._revoke({region.tag})
            region.tag = None

    def _revoke(self, allocations: set[SharedAllocation]) -> None:
        mapped = [allocation for allocation in allocations if allocation.is_mapped]
        if not mapped:
            return
        for allocation in mapped:
            allocation.revoke()
        self.revocations += len(mapped)
        self._fence()
        self._wait_for_copies()

    def _wait_for_copies(self) -> None:
        """Wait until each peer was seen not copying once: its next check sees the revocation."""
        end_ns = self._now_ns() + REVOKE_WAIT_NS
        copying = list(self._peer_readers())
        while copying := [reader for reader in copying if reader.is_placing]:
            if self._now_ns() >= end_ns:
                self.revocations_overdue += len(copying)
                for reader in copying:
                    self._on_overdue(reader)
                return
            self._pause()


@dataclass(slots=True)
class _MappedFile:
    """One file of the peer, mapped."""

    mapping: mmap.mmap
    generation: memoryview  # one cell, the owner's
    data: memoryview

    @classmethod
    def make(cls, descriptor: int, region_bytes: int) -> "_MappedFile":
        mapping = map_sealed(descriptor, CONTROL_BYTES + region_bytes)
        whole = memoryview(mapping)
        return cls(mapping, whole[:8].cast("Q"), whole[CONTROL_BYTES:])

    def close(self) -> None:
        self.generation.release()
        self.data.release()
        self.mapping.close()


@dataclass(slots=True)
class _PeerMapping:
    """The mapping of one key of the peer; no `mapping`: requested, or rejected."""

    mapping: _MappedFile | None = None
    is_rejected: bool = False
    address: int = 0
    generation: int = 0


class PeerMappings:
    """What one context has mapped from one peer. Lock: the adapter's."""

    def __init__(self, writer: RingWriter) -> None:
        self._writer = writer
        self._mappings: dict[tuple[int, int], _PeerMapping] = {}
        self.placed = 0  # writes that were copied straight into the peer's memory
        self.ended = 0  # loans that the owner had ended when they were used

    def place(self, qpn: int, rkey: int, address: int, payload: BytesLike) -> bool | MapRequest:
        """Copy bytes into the peer's region and return True.

        Returns False if that cannot be, and the request for the peer if it may be later on.
        """
        mapping_reply = self._mappings.get((qpn, rkey))
        if mapping_reply is None:
            if len(self._mappings) >= MAPPINGS_MAX and not self._forget_rejected():
                return False
            self._mappings[qpn, rkey] = _PeerMapping()
            return MapRequest(qpn, rkey)
        mapping = mapping_reply.mapping
        if mapping is None:
            return False
        start = address - mapping_reply.address
        # What is out of range goes to the owner as a packet, to be refused there.
        if not 0 <= start <= len(mapping.data) - len(payload):
            return False
        for first in range(0, len(payload), COPY_BYTES):
            piece = payload[first : first + COPY_BYTES]
            if not self._copy(mapping, mapping_reply.generation, start + first, piece):
                self._end(qpn, rkey)
                return False
        self.placed += 1
        return True

    def _copy(self, mapping: _MappedFile, generation: int, start: int, data: BytesLike) -> bool:
        """Copy unless the mapping was revoked; return whether it was done."""
        self._writer.begin_placing()
        try:
            if mapping.generation[0] != generation:
                return False
            mapping.data[start : start + len(data)] = data
            return True
        finally:
            self._writer.end_placing()

    def take(self, mapping_reply: MapReply, descriptor: int) -> None:
        """Map what the peer's reply brings; a reply without a request is a protocol error.

        The descriptor stays the caller's. Raises RemoteProtocolError.
        """
        known = self._asked(mapping_reply)
        if known is None:
            return
        if (
            not mapping_reply.region_bytes
            or mapping_reply.address + mapping_reply.region_bytes > _ADDRESS_END
        ):
            raise RemoteProtocolError(
                f"loan of {mapping_reply.region_bytes} bytes at {mapping_reply.address:#x}"
            )
        known.mapping = _MappedFile.make(descriptor, mapping_reply.region_bytes)
        known.address, known.generation = mapping_reply.address, mapping_reply.generation

    def reject(self, answer: MapReject) -> None:
        """Remember that this key is for the ring. Raises RemoteProtocolError as `take`."""
        if (known := self._asked(answer)) is not None:
            known.is_rejected = True

    def forget_request(self, question: MapRequest) -> None:
        """Forget a request that was not sent."""
        del self._mappings[question.qpn, question.rkey]

    def forget(self, qpn: int) -> None:
        """Release the mappings of a queue pair of the peer."""
        for key in [key for key in self._mappings if key[0] == qpn]:
            self._end(*key)

    def close(self) -> None:
        """Release everything."""
        for key in list(self._mappings):
            self._end(*key)

    def __len__(self) -> int:
        return sum(mapping_reply.mapping is not None for mapping_reply in self._mappings.values())

    def _asked(self, answer: MapReply | MapReject) -> _PeerMapping | None:
        """Return what waits for this answer, `None` if it was forgotten with its queue pair."""
        known = self._mappings.get((answer.qpn, answer.rkey))
        if known is not None and (known.mapping is not None or known.is_rejected):
            raise RemoteProtocolError(f"answer on key {answer.rkey:#x} without a request")
        return known

    def _forget_rejected(self) -> bool:
        rejected = [
            key for key, mapping_reply in self._mappings.items() if mapping_reply.is_rejected
        ]
        for key in rejected:
            del self._mappings[key]
        return bool(rejected)

    def _end(self, qpn: int, rkey: int) -> None:
        mapping_reply = self._mappings.pop((qpn, rkey))
        if mapping_reply.mapping is not None:
            mapping_reply.mapping.close()
            self.ended += 1
