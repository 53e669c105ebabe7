"""The compiled data plane of a process."""

# The contract has records and keywords where the module has plain values.
# mypy: disable-error-code="override"

from __future__ import annotations

import weakref
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Self

import urds_native

from urds.common.types import IPAddress
from urds.rds.plane.contract import Event, Interest, Limits, MailboxSettings, Received, Snapshot
from urds.rds.plane.contract import Path as AnyPath
from urds.rds.plane.native.events import event_of
from urds.rds.plane.native.mailbox import Mailbox
from urds.rds.plane.native.path import Path
from urds.rds.plane.native.plain import address_of
from urds.rds.plane.native.snapshots import snapshot_of
from urds.rds.plane.loop_path import LoopPath

_plain_limits: Callable[[Limits], tuple[Any, ...]] = attrgetter(*Limits.__slots__)
_plain_received: Callable[[Received], tuple[Any, ...]] = attrgetter(*Received.__slots__)


class Plane(urds_native.Plane):
    """See `contract.Plane`; calls not defined here are the module's own."""

    limits: Limits
    generation: int | None
    resolve: Callable[[Mailbox, IPAddress], None]
    batches: bool  # the module's own, which only it can set

    def __new__(
        cls,
        *,
        limits: Limits,
        resolve: Callable[[Mailbox, IPAddress], None],
        clock_ns: Callable[[], int] | None = None,
        generation: int | None = None,
    ) -> Self:
        """Create a plane; `clock_ns` is for tests: with it no call ever waits."""
        # The module must not own an object that owns the plane: no collector looks into it.
        itself: weakref.ref[Self]

        def find(mailbox: Mailbox, data: bytes, scope: int) -> None:
            plane = itself()
            if plane is not None:
                plane.resolve(mailbox, address_of(data, scope))

        plane = super().__new__(cls, _plain_limits(limits), find, clock_ns, generation)
        plane.limits, plane.resolve, plane.generation = limits, resolve, generation
        itself = weakref.ref(plane)
        return plane

    def mailbox(self, *, local: IPAddress, port: int, settings: MailboxSettings) -> Mailbox:
        """Bind; the caller has checked that the port is free."""
        return Mailbox(self, local=local, port=port, settings=settings)

    def path(self, *, local: IPAddress, peer: IPAddress, index: int, sequence_first: int) -> Path:
        """Create a path without a stream."""
        return Path(self, local=local, peer=peer, index=index, sequence_first=sequence_first)

    def loop(self, *, local: IPAddress, peer: IPAddress) -> LoopPath:
        """Create a path between two addresses of this process."""
        return LoopPath(local=local, peer=peer)

    def received(self, path: AnyPath) -> Received:
        """Return the peer's numbers on a path."""
        assert isinstance(path, Path), "a path of this plane"
        expected, floor, probe, generation, map_generation, watch_restarts = super().received(path)
        return Received(
            sequence_expected=expected,
            floor=floor,
            probe_sequence=probe,
            generation=generation,
            map_generation=map_generation,
            watch_restarts=watch_restarts,
        )

    def expect(self, path: AnyPath, received: Received) -> None:
        """Have a path continue from an earlier one to the same peer."""
        assert isinstance(path, Path), "a path of this plane"
        super().expect(path, _plain_received(received))

    def watch(self, descriptor: int, interest: Interest) -> None:
        """Report `Ready` once."""
        super().watch(descriptor, int(interest))

    def help(self, deadline_ns: int | None) -> list[Event]:
        """Do the work that no application thread does; return events, or [] at the deadline."""
        return [event_of(report) for report in super().help(deadline_ns)]

    def is_inside(self) -> bool:
        """Return False: no Python instruction runs while the module holds its lock."""
        return False

    def snapshot(self) -> Snapshot:
        """Return counters and tables."""
        return snapshot_of(*super().snapshot())
