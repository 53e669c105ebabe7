"""All of a process's data plane, compiled."""

# The contract has records and keywords where the module has plain values.
# mypy: disable-error-code="override"

from __future__ import annotations

import weakref
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Self

import urds_native

from urds.dataplane.base import (
    Address,
    Event,
    Interest,
    Limits,
    MailboxSettings,
    Received,
    Snapshot,
)
from urds.dataplane.base import Path as AnyPath
from urds.dataplane.compiled.events import event_of
from urds.dataplane.compiled.mailbox import Mailbox
from urds.dataplane.compiled.path import Path
from urds.dataplane.compiled.plain import address_of
from urds.dataplane.compiled.snapshots import snapshot_of
from urds.dataplane.loop_path import LoopPath

_plain_limits: Callable[[Limits], tuple[Any, ...]] = attrgetter(*Limits.__slots__)
_plain_received: Callable[[Received], tuple[Any, ...]] = attrgetter(*Received.__slots__)


class Plane(urds_native.Plane):
    """See `dataplane.base.Plane`; calls that are not here are the module's own."""

    limits: Limits
    generation: int | None
    resolve: Callable[[Mailbox, Address], None]
    tails: bool  # the module's own, which only it can set

    def __new__(
        cls,
        *,
        limits: Limits,
        resolve: Callable[[Mailbox, Address], None],
        clock_ns: Callable[[], int] | None = None,
        generation: int | None = None,
    ) -> Self:
        """Make a plane; `clock_ns` is for tests: with it nothing ever waits."""
        # The module must not keep alive what in turn has the plane: no collector looks into it.
        itself: weakref.ref[Self]

        def find(mailbox: Mailbox, octets: bytes, scope: int) -> None:
            plane = itself()
            if plane is not None:
                plane.resolve(mailbox, address_of(octets, scope))

        plane = super().__new__(cls, _plain_limits(limits), find, clock_ns, generation)
        plane.limits, plane.resolve, plane.generation = limits, resolve, generation
        itself = weakref.ref(plane)
        return plane

    def mailbox(self, *, local: Address, port: int, settings: MailboxSettings) -> Mailbox:
        """Bind; the caller has checked that the port is free."""
        return Mailbox(self, local=local, port=port, settings=settings)

    def path(self, *, local: Address, peer: Address, index: int, sequence_first: int) -> Path:
        """Make a path without a stream."""
        return Path(self, local=local, peer=peer, index=index, sequence_first=sequence_first)

    def loop(self, *, local: Address, peer: Address) -> LoopPath:
        """Make a path between two addresses of this process."""
        return LoopPath(local=local, peer=peer)

    def received(self, path: AnyPath) -> Received:
        """Return what a path knows of its peer's numbers."""
        assert isinstance(path, Path), "a path of this plane"
        expected, floor, probe, generation, life, watch_restarts = super().received(path)
        return Received(
            sequence_expected=expected,
            floor=floor,
            probe_sequence=probe,
            generation=generation,
            life=life,
            watch_restarts=watch_restarts,
        )

    def expect(self, path: AnyPath, received: Received) -> None:
        """Have a path go on where an earlier one to the same peer ended."""
        assert isinstance(path, Path), "a path of this plane"
        super().expect(path, _plain_received(received))

    def watch(self, descriptor: int, interest: Interest) -> None:
        """Report `Ready` once."""
        super().watch(descriptor, int(interest))

    def help(self, deadline_ns: int | None) -> list[Event]:
        """Do what no application thread does; return events, or [] at the deadline."""
        return [event_of(report) for report in super().help(deadline_ns)]

    def is_inside(self) -> bool:
        """Return False: no instruction of Python runs while the module holds its lock."""
        return False

    def snapshot(self) -> Snapshot:
        """Return counters and tables."""
        return snapshot_of(*super().snapshot())
