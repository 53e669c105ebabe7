"""A stream to another process of this host through shared memory; see `transport.lane`."""

from __future__ import annotations

from typing import Self

import urds_native

from urds.dataplane.base import Address
from urds.dataplane.compiled.plain import plain

Place = tuple[Address, int]  # an RDS address and a port, as TCP would have them


class Lane(urds_native.Lane):
    """A `dataplane.base.Stream` that the compiled plane reads and writes without Python."""

    def __new__(
        cls, line: int, memory: int, ring_bytes: int, *, dials: bool, local: Place, peer: Place
    ) -> Self:
        """Make our end of a connected line and sealed memory; both descriptors stay the caller's.

        Raises OSError if the memory is not what was agreed, or there is no room for it.
        """
        ends = [(*plain(address), port) for address, port in (local, peer)]
        return super().__new__(cls, line, memory, ring_bytes, dials, *ends)

    def recv_into(self, memory: memoryview, /) -> int:
        """Read once into memory; return the octets, 0 at the end."""
        octets = self.recv(len(memory))
        memory[: len(octets)] = octets
        return len(octets)

    def unanswered_repeats(self) -> int:
        """Return 0: the system tells at once that the other process is gone, and of nothing else.

        Who looks for dead streams comes by once in a while; an idle lane rests then.
        """
        self.rest_memory()
        return 0

    def abort_on_close(self) -> None:
        """Do nothing: no end of a lane waits for anything."""

    def reset(self) -> None:
        """Close."""
        self.close()
