"""A shared-memory stream to another process of this host; see `rds.transports.shm`."""

from __future__ import annotations

from typing import Self

import urds_native

from urds.common.types import IPAddress
from urds.rds.plane.native.plain import plain

Place = tuple[IPAddress, int]  # an RDS address and a port, as TCP would have them


class ShmStream(urds_native.ShmStream):
    """A `contract.Stream` that the compiled plane reads and writes without Python."""

    def __new__(
        cls, line: int, memory: int, ring_bytes: int, *, dials: bool, local: Place, peer: Place
    ) -> Self:
        """Make the local end on a control socket and sealed memory; the caller keeps both.

        Raises OSError if the memory is not as agreed, or there is no room for it.
        """
        ends = [(*plain(address), port) for address, port in (local, peer)]
        return super().__new__(cls, line, memory, ring_bytes, dials, *ends)

    def recv_into(self, memory: memoryview, /) -> int:
        """Read once into memory; return the bytes, 0 at the end."""
        data = self.recv(len(memory))
        memory[: len(data)] = data
        return len(data)

    def unanswered_retransmits(self) -> int:
        """Return 0: the kernel reports a dead peer at once.

        The periodic check for dead streams calls this; the call also releases idle ring pages.
        """
        self.rest_memory()
        return 0

    def abort_on_close(self) -> None:
        """Do nothing: neither end of a shm stream waits for anything."""

    def reset(self) -> None:
        """Close."""
        self.close()
