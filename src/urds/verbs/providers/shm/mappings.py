"""Loans of memory: an owner lets a peer write into a region without a copy by the owner.

A peer that holds a remote key asks for the memory behind it. The owner checks what a responder
would check for a write: the queue pair is the peer's and receives, the key is valid, of its
protection domain, with REMOTE_WRITE; and beyond that, that the region is one whole allocation of
the adapter, for who maps a file has all of it. Then the file's descriptor goes over.

**The end of a loan.** When the region, its keys or the queue pair go, the owner moves the
generation on and then waits until no borrower says that it is copying. A borrower says so first,
then looks at the generation, then copies. With the fences of `ring` one of both sees the other,
so after a `deregister` nobody who keeps the rules writes any more.

**What a peer of the same user can do who does not.** It keeps its mapping as long as it lives:
it can read and write that one allocation after its loan ended, read it although the key allowed
writing only, and write between the octets of its packets. It cannot reach any other memory, nor
make anybody lose pages. The same peer could attach a debugger; the provider serves one user only.
"""

import mmap
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from urds.errors import RemoteProtocolError
from urds.verbs.engine.keys import KeyTable, Region, reaches
from urds.verbs.engine.numbers import AccessFlag
from urds.verbs.providers.shm.memory import (
    CONTROL_BYTES,
    Allocation,
    Allocations,
    map_sealed,
)
from urds.verbs.providers.shm.messages import Borrow, Decline, Lend
from urds.verbs.providers.shm.ring import Fence, Octets, RingReader, RingWriter

if TYPE_CHECKING:
    from random import Random

REVOKE_WAIT_NS: Final = 1_000_000_000  # a copy takes far below a millisecond of running time
_REVOKE_STEP_S: Final = 0.000_05
LOANS_MAX: Final = 4096  # that one borrower remembers, asked and declined ones too
COPY_BYTES: Final = 1 << 22  # at once; a longer copy looks at the generation in between
_ADDRESS_END: Final = 1 << 64


class LendingKeys(KeyTable):
    """The keys of an adapter whose memory peers may borrow. Lock: the adapter's."""

    def __init__(
        self,
        allocations: Allocations,
        borrowers: Callable[[], Iterable[RingReader]],
        *,
        chance: "Random | None" = None,
        on_overdue: Callable[[RingReader], None],
        pause: Callable[[], None] = lambda: time.sleep(_REVOKE_STEP_S),
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Lend from `allocations`; `borrowers` gives the rings of all peers that are there.

        Keys are drawn from `chance`, as in every key table. `on_overdue` gets the ring of a peer
        that says for a second that it is copying.
        """
        super().__init__(chance=chance)
        self._allocations = allocations
        self._borrowers = borrowers
        self._on_overdue = on_overdue
        self._pause, self._now_ns = pause, now_ns
        self._fence = Fence()
        self._whole: dict[int, Region] = {}  # remote key to region that is one allocation
        self._lent_to: dict[int, set[Allocation]] = {}  # own queue pair to what its peer has
        self.loans = 0
        self.loans_declined = 0
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
        """Register as KeyTable does, and remember what peers may borrow."""
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
        """Change a region as KeyTable does; loans of it end."""
        rkey = region.rkey
        super().reregister(region, pd=pd, view=view, address=address, access=access)
        self._forget(rkey)
        self._remember(region)

    def deregister(self, region: Region) -> None:
        """Forget a region as KeyTable does; loans of it end."""
        super().deregister(region)
        self._forget(region.rkey)

    # -- loans

    def lend(self, borrow: Borrow, *, pd: object) -> tuple[Lend, int] | Decline:
        """Answer a peer of the queue pair `borrow.qpn`, which has `pd` and allows writes.

        Returns the loan and the descriptor to send beside it, which stays the allocation's.
        """
        region = self._whole.get(borrow.rkey)
        if region is None or not reaches(pd, region.pd):
            self.loans_declined += 1
            return Decline(borrow.qpn, borrow.rkey)
        allocation: Allocation = region.tag
        allocation.is_lent = True
        self._lent_to.setdefault(borrow.qpn, set()).add(allocation)
        self.loans += 1
        loan = Lend(borrow.qpn, borrow.rkey, region.address, region.length, allocation.generation)
        return loan, allocation.descriptor

    def has_lent(self, qpn: int) -> bool:
        """Tell whether the peer of a queue pair has a loan."""
        return qpn in self._lent_to

    def end_loans(self, qpn: int) -> None:
        """End the loans to the peer of a queue pair that does not receive any more."""
        if (allocations := self._lent_to.pop(qpn, None)) is not None:
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

    def _revoke(self, allocations: set[Allocation]) -> None:
        lent = [allocation for allocation in allocations if allocation.is_lent]
        if not lent:
            return
        for allocation in lent:
            allocation.revoke()
        self.revocations += len(lent)
        self._fence()
        self._wait_for_copies()

    def _wait_for_copies(self) -> None:
        """Wait until each borrower was seen not copying once: its next look sees the end."""
        end_ns = self._now_ns() + REVOKE_WAIT_NS
        copying = list(self._borrowers())
        while copying := [reader for reader in copying if reader.is_placing]:
            if self._now_ns() >= end_ns:
                self.revocations_overdue += len(copying)
                for reader in copying:
                    self._on_overdue(reader)
                return
            self._pause()


@dataclass(slots=True)
class _Mapping:
    """One borrowed file, mapped."""

    mapping: mmap.mmap
    generation: memoryview  # one cell, the owner's
    octets: memoryview

    @classmethod
    def make(cls, descriptor: int, region_bytes: int) -> "_Mapping":
        mapping = map_sealed(descriptor, CONTROL_BYTES + region_bytes)
        whole = memoryview(mapping)
        return cls(mapping, whole[:8].cast("Q"), whole[CONTROL_BYTES:])

    def close(self) -> None:
        self.generation.release()
        self.octets.release()
        self.mapping.close()


@dataclass(slots=True)
class _Loan:
    """What a key of the peer stands for; no `mapping`: asked for, or declined."""

    mapping: _Mapping | None = None
    is_declined: bool = False
    address: int = 0
    generation: int = 0


class Borrowings:
    """What one context has borrowed from one peer. Lock: the adapter's."""

    def __init__(self, writer: RingWriter) -> None:
        self._writer = writer
        self._loans: dict[tuple[int, int], _Loan] = {}
        self.placed = 0  # writes that were copied straight into the peer's memory
        self.ended = 0  # loans that the owner had ended when they were used

    def place(self, qpn: int, rkey: int, address: int, payload: Octets) -> bool | Borrow:
        """Copy octets into the peer's region and return True.

        Returns False if that cannot be, and the question for the peer if it may be later on.
        """
        loan = self._loans.get((qpn, rkey))
        if loan is None:
            if len(self._loans) >= LOANS_MAX and not self._forget_declined():
                return False
            self._loans[qpn, rkey] = _Loan()
            return Borrow(qpn, rkey)
        mapping = loan.mapping
        if mapping is None:
            return False
        start = address - loan.address
        # What is out of range goes to the owner as a packet, to be refused there.
        if not 0 <= start <= len(mapping.octets) - len(payload):
            return False
        for first in range(0, len(payload), COPY_BYTES):
            piece = payload[first : first + COPY_BYTES]
            if not self._copy(mapping, loan.generation, start + first, piece):
                self._end(qpn, rkey)
                return False
        self.placed += 1
        return True

    def _copy(self, mapping: _Mapping, generation: int, start: int, octets: Octets) -> bool:
        """Copy unless the loan has ended; return whether it was done."""
        self._writer.begin_placing()
        try:
            if mapping.generation[0] != generation:
                return False
            mapping.octets[start : start + len(octets)] = octets
            return True
        finally:
            self._writer.end_placing()

    def take(self, loan: Lend, descriptor: int) -> None:
        """Map what the peer lends; an answer that nobody asked for is a mistake of the peer.

        The descriptor stays the caller's. Raises RemoteProtocolError.
        """
        known = self._asked(loan)
        if known is None:
            return
        if not loan.region_bytes or loan.address + loan.region_bytes > _ADDRESS_END:
            raise RemoteProtocolError(f"loan of {loan.region_bytes} octets at {loan.address:#x}")
        known.mapping = _Mapping.make(descriptor, loan.region_bytes)
        known.address, known.generation = loan.address, loan.generation

    def decline(self, answer: Decline) -> None:
        """Remember that this key is for the ring. Raises RemoteProtocolError as `take`."""
        if (known := self._asked(answer)) is not None:
            known.is_declined = True

    def withdraw(self, question: Borrow) -> None:
        """Forget a question that did not go."""
        del self._loans[question.qpn, question.rkey]

    def forget(self, qpn: int) -> None:
        """Release what was borrowed from a queue pair of the peer."""
        for key in [key for key in self._loans if key[0] == qpn]:
            self._end(*key)

    def close(self) -> None:
        """Release everything."""
        for key in list(self._loans):
            self._end(*key)

    def __len__(self) -> int:
        return sum(loan.mapping is not None for loan in self._loans.values())

    def _asked(self, answer: Lend | Decline) -> _Loan | None:
        """Return what waits for this answer, `None` if it was forgotten with its queue pair."""
        known = self._loans.get((answer.qpn, answer.rkey))
        if known is not None and (known.mapping is not None or known.is_declined):
            raise RemoteProtocolError(f"answer on key {answer.rkey:#x} that nobody asked for")
        return known

    def _forget_declined(self) -> bool:
        declined = [key for key, loan in self._loans.items() if loan.is_declined]
        for key in declined:
            del self._loans[key]
        return bool(declined)

    def _end(self, qpn: int, rkey: int) -> None:
        loan = self._loans.pop((qpn, rkey))
        if loan.mapping is not None:
            loan.mapping.close()
            self.ended += 1
