"""The contract of an engine: what an adapter asks of it, whichever makes the packets.

It exists twice: `urds.verbs.engine` is the specification, with all that a link with loss needs;
`urds_native.Engine` the compiled one, for links without loss whose packets name their places. Both
take the same calls and bytes and give the same bytes, completions, events and errors, down to
`str(error)`; `tests/parity` holds them to it.

Rules. The caller serialises the calls on one engine and its objects, but for `recv_query`, which
any thread may call at any time. Nothing here waits, reads a clock or calls a layer above; what
completes in a queue with a sink is given to it by `feed_sinks`, and events by `take_events`.
Objects are handles with plain values. A domain is any object, by its identity, or a
`keys.NestedDomain`; an engine keeps it while something of it is registered. A queue pair is served
from when it is made until it is closed, which is explicit and may be done twice; queues live as
long as their handles.

Errors are OSError, the sentence as its second argument: EINVAL (state, sizes, values), ENOMEM (a
full queue, no more keys), EBUSY (a region with windows), EEXIST (a chosen key), EOPNOTSUPP (the
compiled engine alone: a link with loss, a receive order other than IN_ORDER), EIO (the compiled
engine after a panic: every call).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from urds.common.types import BytesLike
    from urds.verbs.engine.attributes import LinkTraits, QPAttr, QPCap
    from urds.verbs.engine.numbers import (
        AccessFlag,
        QPAttrMask,
        QPState,
        QPType,
        ReceiveOrder,
    )
    from urds.verbs.engine.work import WC, AddressVector, Event, RecvWR, SendWR


class EngineSnapshot(NamedTuple):
    """Counts of an engine: packets since it was made, why some were dropped, and what there is."""

    sent: int
    received: int
    dropped_malformed: int
    dropped_unknown: int  # no such queue pair
    dropped_source: int  # from another place than the queue pair's peer
    queue_pairs: int
    regions: int


class Region(Protocol):
    """Registered memory; `length` is 0 once it is deregistered."""

    @property
    def address(self) -> int:
        """Return the address of its first byte."""

    @property
    def length(self) -> int:
        """Return how many bytes are registered."""

    @property
    def lkey(self) -> int:
        """Return the key for pieces of this side."""

    @property
    def rkey(self) -> int:
        """Return the key for the peer."""

    @property
    def access(self) -> AccessFlag:
        """Return its access rights."""


class MemoryWindow(Protocol):
    """A part of a region with a key of its own; `region` is `None` while it is not bound."""

    @property
    def rkey(self) -> int:
        """Return the key for the peer."""

    @property
    def region(self) -> Any:
        """Return the region that it is bound to."""


class CompletionQueue(Protocol):
    """Completions in the order in which they came."""

    @property
    def capacity(self) -> int:
        """Return how many completions have room."""

    @property
    def overrun(self) -> bool:
        """Return whether a completion was lost for want of room."""

    def __len__(self) -> int:
        """Return how many wait."""

    def poll(self, count: int, /) -> list[WC]:
        """Take up to `count` completions, oldest first."""

    def arm(self, solicited_only: bool = False) -> None:
        """Request one `Completed` for the next completion, or for the next solicited one."""

    def resize(self, capacity: int) -> None:
        """Change the capacity. Raises OSError: EINVAL."""

    def discard(self, qpn: int) -> None:
        """Drop the completions of a queue pair."""

    def drain(self) -> None:
        """Give the sink what is queued, if anything is."""


class SharedReceiveQueue(Protocol):
    """Receives of several queue pairs; `limit` is 0 while none is armed."""

    attached: int
    capacity: int

    @property
    def limit(self) -> int:
        """Return the limit while it is armed."""

    @property
    def max_sge(self) -> int:
        """Return how many pieces a receive may have."""

    def __len__(self) -> int:
        """Return how many wait."""

    def post(self, wr: RecvWR, /) -> None:
        """Queue a receive. Raises OSError: ENOMEM, EINVAL."""

    def arm_limit(self, limit: int) -> None:
        """Request one event when fewer than `limit` receives wait. Raises OSError: EINVAL."""

    def resize(self, capacity: int) -> None:
        """Change the capacity. Raises OSError: EINVAL."""


class QueuePair(Protocol):
    """One queue pair of type RC or UD."""

    gid: bytes
    mtu_bytes: int
    hold_receives: bool
    pd: Any

    @property
    def qpn(self) -> int:
        """Return its number, 24 bits."""

    @property
    def qp_type(self) -> QPType:
        """Return its type."""

    @property
    def state(self) -> QPState:
        """Return its state now."""

    @property
    def attr(self) -> QPAttr:
        """Its attributes; those of a compiled one are a copy."""

    @property
    def peer(self) -> AddressVector | None:
        """Return where its packets go and come from, `None` without a connection."""

    @property
    def outstanding_requests(self) -> int:
        """Return how many posted sends have not completed."""

    @property
    def receives(self) -> object:
        """True while receives wait for its next messages."""

    def modify(self, attr: QPAttr, mask: QPAttrMask, now_ns: int) -> None:
        """Change state and attributes. Raises OSError: EINVAL; then nothing changes."""

    def enter_error(self) -> None:
        """Go to ERR: all posted work completes as flushed."""

    def discard_completions(self) -> None:
        """Drop what has completed and was not polled."""

    def post_send(self, wr: SendWR, now_ns: int, /) -> Any:
        """Queue a request. Raises OSError: EINVAL, ENOMEM."""

    def detach_data(self) -> int:
        """Copy what requests still need of `SendWR.data`, whose owner has it again afterwards.

        Returns how many bytes that were. Call it after the `progress_qp` that sends what can be
        sent at once.
        """

    def post_recv(self, wr: RecvWR, now_ns: int, /) -> None:
        """Queue a receive. Raises OSError: EINVAL, ENOMEM."""

    def recv_query(self) -> tuple[int, int]:
        """Return how many receive buffers are held, and the span of messages that they cover."""

    def set_recv_watermarks(self, soft: int | None, hard: int | None) -> None:
        """Set and arm both watermarks of held receive buffers; `None` is none."""

    def poll_timeout(self) -> int | None:
        """Return when its timer is due, `None` if never."""

    def close(self) -> None:
        """End its service; nothing completes any more. Safe twice."""


class Engine(Protocol):
    """All of one opened device that happens per work request, packet or completion."""

    @property
    def fed(self) -> int:
        """How many queues have sinks that are due."""

    @property
    def events(self) -> int:
        """How many events wait."""

    def completion_queue(
        self, capacity: int, *, sink: Callable[[list[WC]], None] | None = None
    ) -> Any:
        """Make a completion queue. Raises OSError: EINVAL for a capacity below 1."""

    def shared_receive_queue(self, capacity: int, sge_max: int, *, pd: object) -> Any:
        """Make a queue of receives for several queue pairs of one domain."""

    def queue_pair(
        self,
        *,
        qpn: int,
        kind: QPType,
        pd: object,
        send_cq: Any,
        recv_cq: Any,
        cap: QPCap,
        srq: Any = None,
        sq_sig_all: bool = False,
        receive_order: ReceiveOrder = ...,
    ) -> Any:
        """Make a queue pair in RESET. Raises OSError: EINVAL, EOPNOTSUPP."""

    def register(
        self,
        pd: object,
        memory: memoryview,
        address: int,
        access: AccessFlag,
        *,
        key: int | None = None,
    ) -> Any:
        """Register a C-contiguous view. Raises OSError: EINVAL, EEXIST, ENOMEM."""

    def reregister(
        self,
        region: Any,
        *,
        pd: object | None = None,
        view: memoryview | None = None,
        address: int | None = None,
        access: AccessFlag | None = None,
    ) -> None:
        """Change what is given. Raises OSError: EBUSY, EINVAL; then nothing changes."""

    def deregister(self, region: Any, *, unbind: bool = False) -> None:
        """Take a registration back. Raises OSError: EBUSY, EINVAL."""

    def find_region(self, lkey: int) -> Any:
        """Return the region of a local key, `None` if there is none."""

    def window(self, pd: object, kind: int) -> Any:
        """Make an unbound window of kind 1 or 2. Raises OSError: EINVAL, ENOMEM."""

    def free_window(self, window: Any) -> None:
        """Forget a window; its key is invalid from here on."""

    @property
    def region_count(self) -> int:
        """How many regions are registered."""

    def receive(self, data: BytesLike, source: AddressVector, now_ns: int) -> None:
        """Process the bytes of one packet that arrived, laid out as in `engine.packets`."""

    def poll_transmit(self, now_ns: int) -> tuple[AddressVector, bytes] | None:
        """Return the next packet and where it goes, `None` when there is none now."""

    def poll_timeout(self) -> int | None:
        """Return when `handle_timeout` is due, `None` if never."""

    def handle_timeout(self, now_ns: int) -> None:
        """Run the timers that are due."""

    def feed_sinks(self) -> None:
        """Give each sink what has completed in its queue."""

    def take_events(self) -> Sequence[Event]:
        """Return the events, and forget them."""

    def snapshot(self) -> tuple[int, ...]:
        """Return the fields of an `EngineSnapshot`."""


class EngineFactory(Protocol):
    """Makes the engine of one opened device."""

    def __call__(self, link: LinkTraits, *, gid: bytes, checksum: bool = False) -> Engine:
        """Make an engine. Raises OSError: EOPNOTSUPP for a link that it cannot serve."""
