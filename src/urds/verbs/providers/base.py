"""The contract of a verbs provider, which the objects of `urds.verbs` use.

An *adapter* is one open device. It owns the lock, the keys and the queue pairs of that context,
moves their packets, and makes connections. An adapter and its engine objects are used with `lock`
held; callbacks run with it held and must not wait.

**Passes.** The engine calls no layer. What packets, timers and calls bring is told when the pass is
over: `finish_pass` gives each sink what has completed, then the owner its events.

**Ownership of data.** Memory behind keys is the device's until its request completes. So is
`SendWR.data`, unless its owner needs it earlier: `QueuePair.post_send` returns the request, and
`SendRequest.detach()` gives the data back, after the `progress_qp`. The compiled engine returns no
record; there `QueuePair.detach_data()` does so for all requests. It copies what may still be
sent or retried, which is nothing of a WRITE that `shm` has placed. All providers but `tcp` have
copied a packet's bytes when `progress_qp` returns; the out-queue of `tcp` holds views of what the
connection did not take yet, and copies those with the detach.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, IntEnum, auto
from typing import Any

from urds.common.progress import ProgressLoop
from urds.common.types import HostPort
from urds.verbs.engine.completions import CompletionQueue
from urds.verbs.engine.numbers import QPType, ReceiveOrder
from urds.verbs.engine.objects import Objects
from urds.verbs.engine.queue_pair import LinkTraits, QPCap, QueuePair
from urds.verbs.engine.receives import SharedReceiveQueue
from urds.verbs.engine.work import AddressVector, Event


@dataclass(frozen=True, slots=True)
class DeviceAttributes:
    """Attributes and capabilities of a device. Names after `ibv_device_attr`; sizes in bytes."""

    name: str
    provider: str
    link: LinkTraits
    vendor: str = "urds"
    hw_ver: int = 1
    fw_ver: str = "1.0"
    max_qp: int = 65_536
    max_qp_wr: int = 16_384
    max_sge: int = 32
    max_cq: int = 65_536
    max_cqe: int = 1 << 20
    max_mr: int = 1 << 20
    max_mr_size: int = 1 << 47
    max_mw: int = 1 << 20
    max_pd: int = 65_536
    max_ah: int = 65_536
    max_srq: int = 65_536
    max_srq_wr: int = 1 << 20
    max_srq_sge: int = 32
    max_qp_rd_atom: int = 128
    max_qp_init_rd_atom: int = 128
    max_inline_data: int = 65_536
    max_msg_sz: int = 1 << 31
    max_private_data: int = 196
    # Capabilities: the conformance suite runs what is stated and expects errors for the rest.
    atomics: bool = True
    masked_atomics: bool = True
    datagrams: bool = True
    send_with_imm: bool = True
    rdma_with_imm: bool = True
    memory_windows: bool = True
    rnr: bool = True  # a missing receive buffer is waited for; else it ends the connection
    remote_errors: bool = True  # the failed request itself completes with the remote's reason
    raw_connect: bool = True  # INIT, RTR, RTS by hand; else by the connection manager only
    receive_order: frozenset[ReceiveOrder] = frozenset({ReceiveOrder.IN_ORDER})


class PortSpace(IntEnum):
    """Kind of connection: reliable, or datagrams. Values of rdma_cm."""

    TCP = 0x0106
    UDP = 0x0111


class ConnectionEventKind(Enum):
    """Events of a connection. Each connection ends with exactly one of the last six."""

    REQUEST = auto()  # to a listener: `connection` waits for accept or reject
    ESTABLISHED = auto()
    REJECTED = auto()  # by the peer's application: `private_data`
    REFUSED = auto()  # no listener there, or its backlog is full
    UNREACHABLE = auto()  # no answer
    ERROR = auto()  # the connection broke before it was established
    DISCONNECTED = auto()  # by either side, in order
    BROKEN = auto()  # peer gone without DREQ


@dataclass(frozen=True, slots=True)
class ConnectParameters:
    """What either side says when it connects or accepts. Counts of outstanding reads, 0 to 128.

    In an event these are the peer's, converted: its depth is what this side has to serve. Each side
    says how often the *other* retries a send that finds no receive (rnr_retry_count), as in
    InfiniBand; retry_count is the requester's for both.
    Source: docs/reference/verbs-and-roce.md 14.2.
    """

    private_data: bytes = b""
    responder_resources: int = 16  # reads and atomics of the peer that may be outstanding here
    initiator_depth: int = 16  # ours that may be outstanding there
    retry_count: int = 7
    rnr_retry_count: int = 7
    qkey: int = 0  # of a datagram queue pair, in the answer to a UDP connect


@dataclass(slots=True)
class VerbsConnectionEvent:
    """One event of a connection, given to its `on_event`."""

    kind: ConnectionEventKind
    connection: "VerbsConnection"
    parameters: ConnectParameters = field(default_factory=ConnectParameters)
    qpn: int = 0  # datagrams: the peer's queue pair
    vector: AddressVector | None = None  # datagrams: where that queue pair is
    reason: str = ""  # for people


OnConnectionEvent = Callable[[VerbsConnectionEvent], None]


class VerbsConnection(ABC):
    """One connection, on either side. All calls with the adapter's lock held; none waits."""

    local: HostPort
    peer: HostPort
    space: PortSpace
    on_event: OnConnectionEvent  # the owner sets its own on a REQUEST before it answers
    context: Any = None

    @abstractmethod
    def accept(self, qp: QueuePair | None, parameters: ConnectParameters) -> None:
        """Accept a request with a queue pair in RESET or INIT, which goes to RTS.

        With PortSpace.UDP the queue pair only gives its number. Raises OSError: EINVAL in the
        wrong state, ENOMEM for private data beyond the limit. ESTABLISHED follows, or an end.
        """

    @abstractmethod
    def reject(self, private_data: bytes = b"") -> None:
        """Reject a request. The connection is over without another event."""

    @abstractmethod
    def disconnect(self) -> None:
        """End the connection: the queue pair goes to ERR, DISCONNECTED follows on both sides."""

    @abstractmethod
    def close(self) -> None:
        """Forget the connection now; no event follows."""


class Listener(ABC):
    """One listening address."""

    local: HostPort

    @abstractmethod
    def close(self) -> None:
        """Stop listening. Requests already given stay valid; later ones are rejected."""


class Adapter(Objects, ABC):
    """One open device."""

    attributes: DeviceAttributes
    gid: bytes  # 16 bytes: names this device context to others
    lock: threading.RLock
    on_events: Callable[[list[Event]], None] | None = None  # set by the owner; lock held
    port: int = 0  # of this context, where several share a GID: goes into their AddressVector
    has_own_time: bool = True  # False: the clock moves only in `progress` and `wait`
    has_public_calls: bool = False  # the engine's `public_*` methods may stand in verbs objects
    has_native_waits: bool = False  # threads wait in the engine itself
    _is_finishing_pass = False

    # -- time and progress

    @abstractmethod
    def now_ns(self) -> int:
        """Return this adapter's clock: monotonic, or the virtual one of `sim`."""

    @abstractmethod
    def progress(self) -> None:
        """Process what has arrived and run what is due, without waiting. Takes the lock."""

    def look(self, cq: CompletionQueue) -> None:
        """Make progress for a thread that polls `cq`, a queue with a sink; without the lock.

        An adapter that can tell cheaply that nothing has arrived overrides it.
        """
        self.progress()

    @abstractmethod
    def wait(self, is_ready: Callable[[], bool], timeout_ns: int | None) -> bool:
        """Wait until `is_ready()` (called with the lock held) or the time is over.

        `sim` runs its virtual time instead, and returns at once when nothing can happen any more.
        Call it without the lock. Returns the last result of `is_ready`.
        """

    def wait_fed(
        self, cq: CompletionQueue, is_ready: Callable[[], bool], timeout_ns: int | None
    ) -> bool:
        """Wait as `wait` does, for what the sink of `cq` or a call with `notify` brings about.

        An adapter that can give the sink its part without a pass overrides it.
        """
        return self.wait(is_ready, timeout_ns)

    def add_external_waiter(self) -> None:
        """Count a thread that sleeps on a descriptor in its own poll set and makes no progress.

        Lock held. A device with a progress thread lets it run at once whenever no thread is in
        `wait`, instead of leaving progress to the last caller for some milliseconds.
        """

    def remove_external_waiter(self) -> None:
        """Remove one `add_external_waiter`. Lock held; the device may be closed."""

    @abstractmethod
    def call_soon(self, action: Callable[[], None]) -> None:
        """Run `action` with the lock held after the pass under way; return at once.

        For threads that may not wait, and for what shall come after all that has completed: with
        the lock or without.
        """

    def finish_pass(self) -> None:
        """End a pass: feed the sinks, then give the owner the events.

        Lock held, while no queue pair is at work. Sinks and the owner may post, and begin passes of
        their own: what completes in those is told by the first call, once they have returned.
        """
        outbox = self.outbox
        if self._is_finishing_pass:
            return
        self._is_finishing_pass = True
        try:
            while outbox.fed or outbox.events:
                outbox.feed_sinks()
                if outbox.events:
                    events = outbox.take_events()
                    if self.on_events is not None:
                        self.on_events(events)
        finally:
            self._is_finishing_pass = False

    def notify(self) -> None:
        """Wake threads in `wait` to check again: something changed without a packet. Lock held.

        Event dispatchers of DAT call it, for software events among others. An adapter whose
        `wait` sleeps overrides it.
        """

    # -- queues and queue pairs

    def completion_channel(self, on_taken: Callable[[], None]) -> Any:
        """Return the engine's completion channel, None without `has_native_waits`. Lock held.

        `on_taken` is called when an event was taken there that the owner was told of.
        """
        return None

    def queue_pair(
        self,
        *,
        kind: QPType,
        pd: object,
        send_cq: CompletionQueue,
        recv_cq: CompletionQueue,
        cap: QPCap,
        srq: SharedReceiveQueue | None = None,
        sq_sig_all: bool = False,
        receive_order: ReceiveOrder = ReceiveOrder.IN_ORDER,
    ) -> QueuePair:
        """Make a queue pair in RESET and serve it until `remove`. Raises OSError: ENOMEM."""
        qp = QueuePair(
            qpn=self.new_qpn(),
            qp_type=kind,
            pd=pd,
            send_cq=send_cq,
            recv_cq=recv_cq,
            srq=srq,
            cap=cap,
            sq_sig_all=sq_sig_all,
            keys=self.keys,
            link=self.attributes.link,
            receive_order=receive_order,
            outbox=self.outbox,
        )
        qp.gid = self.gid
        self.add(qp)
        return qp

    @abstractmethod
    def new_qpn(self) -> int:
        """Return a queue pair number that was not used recently."""

    @abstractmethod
    def add(self, qp: QueuePair) -> None:
        """Register a queue pair: its packets and timers are served from here on."""

    @abstractmethod
    def remove(self, qp: QueuePair) -> None:
        """Remove a queue pair. Its connection, if it has one, ends."""

    @abstractmethod
    def progress_qp(self, qp: QueuePair) -> None:
        """Send what a queue pair has to send, deliver its events, and plan its timer.

        Called with the lock held after each call that may have given it something to send.
        """

    def finish_post(self, qp: QueuePair, cq: CompletionQueue) -> None:
        """Send what was posted to a queue pair that completes in `cq`, a queue with a sink.

        As `progress_qp`, after nothing but posts: an adapter whose posts send overrides it.
        """
        self.progress_qp(qp)

    # -- memory

    def allocate(self, length: int) -> memoryview:
        """Return zeroed memory that is good to register: what peers can map, if possible."""
        return memoryview(bytearray(length))

    # -- connections

    @abstractmethod
    def listen(
        self, local: HostPort, space: PortSpace, *, backlog: int, on_event: OnConnectionEvent
    ) -> Listener:
        """Listen; port 0 takes a free one. Raises OSError: EADDRINUSE, EADDRNOTAVAIL, EACCES."""

    @abstractmethod
    def connect(
        self,
        qp: QueuePair | None,
        peer: HostPort,
        space: PortSpace,
        parameters: ConnectParameters,
        *,
        on_event: OnConnectionEvent,
        local: HostPort | None = None,
        timeout_ns: int | None = None,
    ) -> VerbsConnection:
        """Connect a queue pair in RESET or INIT; an event gives the result.

        Returns at once, and before the first event, so that the caller knows the connection.
        Raises OSError for immediate failures: EINVAL, EADDRNOTAVAIL.
        """

    @abstractmethod
    def close(self) -> None:
        """Drop everything, end threads; peers see their connections break. Safe twice."""


class LoopAdapter(Adapter):
    """An adapter in real time: its loop has the descriptors, the timers and the waiting threads."""

    loop: ProgressLoop
    _loop_kind: type[ProgressLoop] = ProgressLoop

    def now_ns(self) -> int:
        """Return the monotonic clock."""
        return time.monotonic_ns()

    def progress(self) -> None:
        """Process what has arrived and run what is due, without waiting."""
        self.loop.progress()

    def wait(self, is_ready: Callable[[], bool], timeout_ns: int | None) -> bool:
        """Wait until `is_ready()`, and make progress meanwhile unless another thread does."""
        return self.loop.wait(is_ready, timeout_ns)

    def go_on(self) -> None:
        """Finish a pass that an exception has cut short. Lock held."""
        self.call_soon(self.finish_pass)

    def add_external_waiter(self) -> None:
        """See `Adapter.add_external_waiter`."""
        self.loop.add_external_waiter()

    def remove_external_waiter(self) -> None:
        """See `Adapter.remove_external_waiter`."""
        self.loop.remove_external_waiter()

    def notify(self) -> None:
        """Wake waiting threads to check again."""
        self.loop.tell()
