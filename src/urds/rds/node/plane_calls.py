"""What a node's requests need of the plane and the control plane, for sockets of other processes.

`native_calls` does it with the compiled plane; tests have a stand-in. All calls are made by the
worker's main thread; `on_left` and `on_client_error` tell what the control thread saw.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from urds.common.records import record
from urds.common.types import IPAddress
from urds.rds.plane.contract import MailboxSettings

if TYPE_CHECKING:
    from urds.rds.constants import Transport


@record
class Opened:
    """A new socket: the descriptor for its program, and what the node keeps.

    `kept` begins with the node's end of the control socket and the socket memory; what follows is
    for the plane alone. The supervisor holds a copy of each.
    """

    user_end: int
    kept: tuple[int, ...]

    @property
    def node_end(self) -> int:
        """The other end of the program's descriptor."""
        return self.kept[0]

    @property
    def memory(self) -> int:
        """The memory that program and node share."""
        return self.kept[1]


class Attached(Protocol):
    """A bound socket of another process: what the plane has of it."""

    local: IPAddress
    port: int


class PlaneCalls(Protocol):
    """See the module. Every call may raise OSError with the errno of the answer."""

    on_left: Callable[[Any], None]  # of an `Attached`: its last descriptor was closed; any thread
    on_client_error: Callable[[Any, str], None]  # its program broke the protocol; any thread

    def formats(self) -> Sequence[str]:
        """Name the formats of memory: a worker takes over none that has another one."""

    def begin(self, shared: Sequence[int]) -> Sequence[int]:
        """Begin, with the memories that all sockets share, or without any at the first start.

        Return them: the supervisor keeps a copy of each for the next worker.
        """

    def finish_restore(self) -> None:
        """Go on with connections and sends: every socket of an earlier worker is bound again."""

    def congestion(self) -> tuple[int, int]:
        """Return descriptor and size of the memory of congestion maps; the descriptor stays."""

    def open(self, place: str, *, nonblock: bool, words: bytes = b"") -> Opened:
        """Make control socket and socket memory; `place` is where its program asks.

        `words` are those of its options in the memory, at most 128 bytes.
        """

    def memory_bytes(self, kept: Sequence[int]) -> int:
        """Return the size of a socket memory."""

    def bind(
        self,
        kept: Sequence[int],
        address: IPAddress,
        port: int,
        settings: MailboxSettings,
        transport: Transport | None,
        *,
        was_left: bool = False,
    ) -> Attached:
        """Bind, and have the plane serve the memory.

        A socket that `was_left` when the worker before ended takes no port, for it may be another
        one's by now. `on_left` tells of it again, once all that it sent is on paths.
        """

    def route(self, attached: Any, peer: IPAddress, tos: int) -> tuple[int, int]:
        """Return the number of a route and the generation of the socket's routes."""

    def configure(self, attached: Any, settings: MailboxSettings) -> None:
        """Replace the settings of a bound socket."""

    def cancel(self, attached: Any, peer: IPAddress | None, port: int | None) -> int:
        """Take back messages; return how many."""

    def restrict(self, attached: Any, *, is_over_quota: bool) -> None:
        """Refuse the sends of a socket, and mark its port, while its user is over its memory."""

    def take_rest(self, attached: Any) -> bool:
        """Take what was submitted by a socket that was left; tell whether nothing of it waits."""

    def close(self, attached: Any) -> None:
        """Free the port of a socket that was left; its messages have `linger_s`."""

    def release_unused(self, now_s: float) -> None:
        """Let go of each address that had no socket for `idle_s`; call it now and then."""

    def is_over(self, attached: Any) -> bool:
        """Tell whether nothing of a closed socket is left to send."""

    def info(self, option: int) -> tuple[int, bytes]:
        """Return the size of an element and the whole list of RDS_INFO_*."""

    def report(self) -> bytes:
        """Return the report of this process for `urds info`."""

    def drain(self, drain_ns: int) -> int:
        """Wait for acknowledgements; return the messages left."""

    def break_off(self, *, is_last: bool) -> None:
        """End the control thread and the connections in order; sockets stay as they are.

        With `is_last` no other worker comes: what is queued gets its time to be acknowledged.
        """
