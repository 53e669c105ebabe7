"""What an opened device has beside queue pairs: completion queues, shared receives, keys."""

from __future__ import annotations

from urds.verbs.engine.completions import CompletionQueue, Outbox, Sink
from urds.verbs.engine.keys import KeyTable, MemoryWindow, Region
from urds.verbs.engine.numbers import AccessFlag
from urds.verbs.engine.receives import SharedReceiveQueue


class Objects:
    """Makes queues and registers memory, for the reference engine and for adapters without one."""

    keys: KeyTable
    outbox: Outbox

    # -- queues

    def completion_queue(self, capacity: int, *, sink: Sink | None = None) -> CompletionQueue:
        """Make a completion queue; a sink is given at each pass's end what completed there.

        Raises OSError: EINVAL for a capacity below 1.
        """
        return CompletionQueue(capacity, sink=sink, outbox=self.outbox)

    def shared_receive_queue(
        self, capacity: int, sge_max: int, *, pd: object
    ) -> SharedReceiveQueue:
        """Make a queue of receives for several queue pairs of one domain."""
        return SharedReceiveQueue(capacity, sge_max, pd=pd, outbox=self.outbox)

    # -- memory

    def register(
        self,
        pd: object,
        view: memoryview,
        address: int,
        access: AccessFlag,
        *,
        key: int | None = None,
    ) -> Region:
        """Register memory under an address. Raises OSError: EINVAL, ENOMEM; EEXIST for a `key`."""
        return self.keys.register(pd, view, address, access, key=key)

    def deregister(self, region: Region, *, unbind: bool = False) -> None:
        """Take a registration back, from its windows too with `unbind`.

        Raises OSError: EBUSY while windows are bound to it.
        """
        if unbind:
            self.keys.unbind_all(region)
        self.keys.deregister(region)

    def reregister(
        self,
        region: Region,
        *,
        pd: object | None = None,
        view: memoryview | None = None,
        address: int | None = None,
        access: AccessFlag | None = None,
    ) -> None:
        """Change what is given; see `KeyTable.reregister`. Raises OSError: EBUSY, EINVAL."""
        self.keys.reregister(region, pd=pd, view=view, address=address, access=access)

    def find_region(self, lkey: int) -> Region | None:
        """Return the region of a local key, `None` if there is none."""
        return self.keys.region(lkey)

    @property
    def region_count(self) -> int:
        """How many regions are registered."""
        return self.keys.region_count

    def window(self, pd: object, kind: int) -> MemoryWindow:
        """Make an unbound memory window of type 1 or 2. Raises OSError: EINVAL, ENOMEM."""
        return self.keys.new_window(pd, kind=kind)

    def free_window(self, window: MemoryWindow) -> None:
        """Forget a window; its key is invalid from here on."""
        self.keys.free(window)
