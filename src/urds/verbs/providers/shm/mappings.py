"""Memory that peers map: a peer writes into a region without a copy by the owner.

**Files.** A process that maps a file gets SIGBUS when another one truncates it. So every memory
file here is sealed against a change of its size before it is shared, and no other file is mapped.
Source: memfd_create(2), fcntl(2), Linux 3.17. An allocation is one file: a control page, then the
application's bytes. One file each and not a pool, because a mapping of a file covers all of it. The
control page holds the *generation*: a peer may write while it is the one that came with its
mapping.

A peer that holds a remote key requests the memory behind it. The owner checks what a responder
would check for a write: the queue pair is the peer's and receives, the key is valid, of its
protection domain, with REMOTE_WRITE; and further that the region is one whole allocation of the
adapter, since a mapping of a file covers all of it. Then it sends the file's descriptor.

**Revocation.** When the region, its keys or the queue pair go, the owner increments the generation
and then waits until no peer is marked as copying. A peer sets that mark first, then checks the
generation, then copies. With the fences of `slots` one of both sees the other, so after a
`deregister` no peer that keeps the rules writes any more. The mark of a peer that was killed
stays: its end ends the wait, and that it was killed, which is known before (`urds.common.ending`).

**A hostile peer of the same user** keeps its mapping as long as it lives: it can read and write
that one allocation after revocation, read it although the key allowed writing only, and write
between the bytes of its packets. It cannot reach any other memory, nor make a process lose pages.
The same peer could attach a debugger; the provider serves one user only.
"""

import fcntl
import mmap
import os
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol

from urds.common.buffers import address_of
from urds.common.errors import RemoteProtocolError
from urds.common.passed_files import sealed_file
from urds.common.types import BytesLike
from urds.verbs.engine.keys import KeyTable, Region, reaches
from urds.verbs.engine.numbers import AccessFlag
from urds.verbs.providers.shm.messages import MapReject, MapReply, MapRequest
from urds.verbs.providers.shm.slots import MemoryFence, SlotWriter

CONTROL_BYTES: Final = 4096  # before an allocation's bytes, which begin on a page of their own
MAPPABLE_BYTES_MIN: Final = 4096  # smaller memory is not worth two descriptors
ALLOCATIONS_MAX: Final = 256  # each holds two descriptors; the rest gets plain memory
_SIZE_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_F_SEAL_FUTURE_WRITE: Final = 0x10  # Linux 5.1; without a name in Python
_WRITE_SEALS: Final = fcntl.F_SEAL_WRITE | _F_SEAL_FUTURE_WRITE
REVOKE_WAIT_NS: Final = 1_000_000_000  # a copy takes far below a millisecond of running time
KILLED_AFTER_NS: Final = 1_000_000  # whose copy takes longer may have been killed
_REVOKE_STEP_S: Final = 0.000_05
MAPPINGS_MAX: Final = 4096  # that one peer remembers, asked and declined ones too
COPY_BYTES: Final = 1 << 22  # at once; a longer copy looks at the generation in between
_ADDRESS_END: Final = 1 << 64


def map_sealed(descriptor: int, file_bytes: int) -> mmap.mmap:
    """Map a file of a peer, to read and write; the descriptor stays the caller's.

    Raises RemoteProtocolError if it is shorter, may still shrink, or cannot be mapped.
    """
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        given_bytes = os.fstat(descriptor).st_size
        if seals & _SIZE_SEALS != _SIZE_SEALS or seals & _WRITE_SEALS:
            raise RemoteProtocolError(f"memory file with seals {seals:#x}")
        if given_bytes < file_bytes:
            raise RemoteProtocolError(f"memory file of {given_bytes} bytes, not {file_bytes}")
        return mmap.mmap(descriptor, file_bytes)
    except OSError as error:
        raise RemoteProtocolError(f"memory file cannot be mapped: {error}") from error


class SharedAllocation:
    """Memory that peers may map. It lives as long as a view of it."""

    def __init__(self, descriptor: int, mapping: mmap.mmap, view_bytes: int) -> None:
        self.descriptor = descriptor
        self.view_bytes = view_bytes
        self.generation = 1
        self.is_mapped = False
        self._mapping = weakref.ref(mapping)
        self._write_generation(mapping)

    def revoke(self) -> None:
        """Revoke every mapping of this memory: honest peers do not write any more."""
        self.generation += 1
        self.is_mapped = False
        if (mapping := self._mapping()) is not None:
            self._write_generation(mapping)

    def _write_generation(self, mapping: mmap.mmap) -> None:
        with memoryview(mapping) as whole, whole[:8] as data, data.cast("Q") as cell:
            cell[0] = self.generation


class Allocations:
    """All memory that one adapter allocated, by the address of its first byte."""

    def __init__(
        self,
        *,
        make_file: Callable[[str, int], int] = sealed_file,
        allocations_max: int = ALLOCATIONS_MAX,
    ) -> None:
        self._make_file = make_file
        self._allocations_max = allocations_max
        self._by_address: dict[int, SharedAllocation] = {}
        self.plain = 0  # allocations that peers cannot map: small ones, beyond the limit, no file

    def __len__(self) -> int:
        return len(self._by_address)

    def allocate(self, view_bytes: int) -> memoryview:
        """Return zeroed memory: mappable if it is large enough, and a file can be had."""
        if view_bytes >= MAPPABLE_BYTES_MIN and len(self) < self._allocations_max:
            try:
                return self._mappable(view_bytes)
            except OSError:
                pass  # no descriptors or no memory for a file: plain memory works as well
        self.plain += 1
        return memoryview(bytearray(view_bytes))

    def find(self, view: memoryview) -> SharedAllocation | None:
        """Return the allocation that a view covers from end to end, however it was wrapped."""
        if view.readonly or not view.nbytes:
            return None
        allocation = self._by_address.get(address_of(view))
        if allocation is None or allocation.view_bytes != view.nbytes:
            return None
        return allocation

    def _mappable(self, view_bytes: int) -> memoryview:
        descriptor = self._make_file("urds-verbs-memory", CONTROL_BYTES + view_bytes)
        try:
            mapping = mmap.mmap(descriptor, CONTROL_BYTES + view_bytes)
        except OSError:
            os.close(descriptor)
            raise
        view = memoryview(mapping)[CONTROL_BYTES:]
        address = address_of(view)
        self._by_address[address] = SharedAllocation(descriptor, mapping, view_bytes)
        weakref.finalize(mapping, _forget, self._by_address, address, descriptor)
        return view


def _forget(by_address: dict[int, SharedAllocation], address: int, descriptor: int) -> None:
    # CPython unmaps before it tells: meanwhile another thread may have memory at this address.
    if (found := by_address.get(address)) is not None and found.descriptor == descriptor:
        del by_address[address]
    os.close(descriptor)


class MappingPeer(Protocol):
    """A peer that may have mapped memory of ours."""

    @property
    def is_placing(self) -> bool:
        """Whether it says that it is copying into our memory."""

    @property
    def is_gone(self) -> bool:
        """Whether its process has ended: it copies nothing any more, whatever it says."""

    def look_for_end(self) -> bool:
        """Return whether its process was killed: it copies nothing more, and may end much later.

        One look is not enough: look again after a pause.
        """


class MappableKeys(KeyTable):
    """The keys of an adapter whose memory peers may map. Lock: the adapter's."""

    def __init__(
        self,
        allocations: Allocations,
        mapping_peers: Callable[[], Iterable[MappingPeer]],
        *,
        rng: Random | None = None,
        on_overdue: Callable[[MappingPeer], None],
        pause: Callable[[], None] = lambda: time.sleep(_REVOKE_STEP_S),
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Map from `allocations`; `mapping_peers` returns all peers.

        Keys are drawn from `rng`, as in every key table. `on_overdue` gets a peer that lives and
        is marked as copying for a second.
        """
        super().__init__(rng=rng)
        self._allocations = allocations
        self._mapping_peers = mapping_peers
        self._on_overdue = on_overdue
        self._pause, self._now_ns = pause, now_ns
        self._fence = MemoryFence()
        self._whole: dict[int, Region] = {}  # remote key to region that is one allocation
        # Own queue pair to what its peer has.
        self._mapped_by_peer_of: dict[int, set[SharedAllocation]] = {}
        self.mappings_made = 0
        self.mappings_rejected = 0
        self.revocations = 0
        self.revocations_overdue = 0  # peers that still said "copying" after the wait

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

    def note_new(self, region: Region) -> None:
        """Note whether peers may map a region."""
        if region.access & AccessFlag.REMOTE_WRITE:
            region.tag = self._allocations.find(region.view)
            if region.tag is not None:
                self._whole[region.rkey] = region

    def note_gone(self, rkey: int) -> None:
        """Revoke the mappings of a region."""
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
        waited_ns, began_ns = 0, self._now_ns()
        copying = list(self._mapping_peers())
        while copying := [peer for peer in copying if _may_copy(peer, waited_ns)]:
            waited_ns = self._now_ns() - began_ns
            if waited_ns >= REVOKE_WAIT_NS:
                self.revocations_overdue += len(copying)
                for peer in copying:
                    self._on_overdue(peer)
                return
            self._pause()


def _may_copy(peer: MappingPeer, waited_ns: int) -> bool:
    """Return whether a peer may be copying still after a wait."""
    if not peer.is_placing or peer.is_gone:
        return False
    return waited_ns < KILLED_AFTER_NS or not peer.look_for_end()


@dataclass(slots=True)
class _MappedFile:
    """One file of the peer, mapped for one of its keys."""

    mapping: mmap.mmap
    current: memoryview  # one cell, the owner's: the generation that is valid
    data: memoryview
    address: int
    generation: int

    @classmethod
    def make(cls, descriptor: int, reply: MapReply) -> "_MappedFile":
        mapping = map_sealed(descriptor, CONTROL_BYTES + reply.region_bytes)
        whole = memoryview(mapping)
        current, data = whole[:8].cast("Q"), whole[CONTROL_BYTES:]
        return cls(mapping, current, data, reply.address, reply.generation)

    def close(self) -> None:
        self.current.release()
        self.data.release()
        self.mapping.close()


class PeerMappings:
    """What one context has mapped from one peer. Lock: the adapter's."""

    def __init__(self, writer: SlotWriter) -> None:
        self._writer = writer
        # By queue pair and key: what was asked, or the peer's answer.
        self._mappings: dict[tuple[int, int], MapRequest | MapReject | _MappedFile] = {}
        self.placed = 0  # writes that were copied straight into the peer's memory
        self.ended = 0  # loans that the owner had ended when they were used

    def place(self, qpn: int, rkey: int, address: int, payload: BytesLike) -> bool | MapRequest:
        """Copy bytes into the peer's region and return True.

        Returns False if that cannot be, and the request for the peer if it may be later on.
        """
        known = self._mappings.get((qpn, rkey))
        if known is None:
            if len(self._mappings) >= MAPPINGS_MAX and not self._forget_rejected():
                return False
            known = self._mappings[qpn, rkey] = MapRequest(qpn, rkey)
            return known
        if not isinstance(known, _MappedFile):
            return False
        start = address - known.address
        # What is out of range goes to the owner as a packet, to be refused there.
        if not 0 <= start <= len(known.data) - len(payload):
            return False
        for first in range(0, len(payload), COPY_BYTES):
            if not self._copy(known, start + first, payload[first : first + COPY_BYTES]):
                self._end(qpn, rkey)
                return False
        self.placed += 1
        return True

    def _copy(self, mapping: _MappedFile, start: int, data: BytesLike) -> bool:
        """Copy unless the mapping was revoked; return whether it was done."""
        self._writer.begin_placing()
        try:
            if mapping.current[0] != mapping.generation:
                return False
            mapping.data[start : start + len(data)] = data
            return True
        finally:
            self._writer.end_placing()

    def take(self, reply: MapReply, descriptor: int) -> None:
        """Map what the peer's reply brings; a reply without a request is a protocol error.

        The descriptor stays the caller's. Raises RemoteProtocolError.
        """
        if self._is_asked(reply):
            if not reply.region_bytes or reply.address + reply.region_bytes > _ADDRESS_END:
                raise RemoteProtocolError(
                    f"mapping of {reply.region_bytes} bytes at {reply.address:#x}"
                )
            self._mappings[reply.qpn, reply.rkey] = _MappedFile.make(descriptor, reply)

    def reject(self, answer: MapReject) -> None:
        """Remember that this key is for packets. Raises RemoteProtocolError as `take`."""
        if self._is_asked(answer):
            self._mappings[answer.qpn, answer.rkey] = answer

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
        return sum(isinstance(known, _MappedFile) for known in self._mappings.values())

    def _is_asked(self, answer: MapReply | MapReject) -> bool:
        """Return whether this answer is waited for, or was forgotten with its queue pair."""
        known = self._mappings.get((answer.qpn, answer.rkey))
        if known is not None and not isinstance(known, MapRequest):
            raise RemoteProtocolError(f"answer on key {answer.rkey:#x} without a request")
        return known is not None

    def _forget_rejected(self) -> bool:
        rejected = [key for key, known in self._mappings.items() if isinstance(known, MapReject)]
        for key in rejected:
            del self._mappings[key]
        return bool(rejected)

    def _end(self, qpn: int, rkey: int) -> None:
        known = self._mappings.pop((qpn, rkey))
        if isinstance(known, _MappedFile):
            known.close()
            self.ended += 1
