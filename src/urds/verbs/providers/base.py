"""The contract of a verbs provider: what the objects of `urds.verbs` stand on.

An *adapter* is one open device. It owns the lock, the keys and the queue pairs of that opening,
moves what the queue pairs say, and makes connections. Everything of an adapter, its engine
objects included, is touched with `lock` held; callbacks run with it held and must not wait.

**Whose octets they are.** Memory behind keys is the device's until its request completes. So are
`SendWR.octets`, unless their owner needs them back before: `QueuePair.post_send` returns the
request, and `Request.detach()` gives them back, after the `kick`. It copies what may be sent still
or again, which is nothing of a WRITE that `shm` has placed. All providers but `tcp` have copied a
packet's octets when `kick` returns; the out-queue of `tcp` holds views of what the connection did
not take yet, and copies those with the detach.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, IntEnum, auto
from typing import Any

from urds.verbs.engine.keys import KeyTable
from urds.verbs.engine.numbers import Acceptance, AccessFlag
from urds.verbs.engine.queue_pair import LinkTraits, QueuePair
from urds.verbs.engine.work import AddressVector, AsyncEvent


@dataclass(frozen=True, slots=True)
class DeviceAttributes:
    """What a device is and can do. Names after `ibv_device_attr`; sizes in octets."""

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
    # Capabilities: the conformance suite runs what is stated and expects a refusal of the rest.
    atomics: bool = True
    masked_atomics: bool = True
    datagrams: bool = True
    send_with_imm: bool = True
    rdma_with_imm: bool = True
    memory_windows: bool = True
    rnr: bool = True  # a missing receive buffer is waited for; else it ends the connection
    remote_errors: bool = True  # the failed request itself completes with the remote's reason
    raw_connect: bool = True  # INIT, RTR, RTS by hand; else by the connection manager only
    acceptance: frozenset[Acceptance] = frozenset({Acceptance.IN_ORDER})


class PortSpace(IntEnum):
    """What kind of connection: reliable, or datagrams. Values of rdma_cm."""

    TCP = 0x0106
    UDP = 0x0111


class ConnectionEventKind(Enum):
    """What a connection tells its owner. Each ends in exactly one of the last six."""

    REQUEST = auto()  # to a listener: `connection` waits for accept or reject
    ESTABLISHED = auto()
    REJECTED = auto()  # by the peer's application: `private_data`
    REFUSED = auto()  # nobody listens there, or its backlog is full
    UNREACHABLE = auto()  # no answer
    ERROR = auto()  # the connection broke before it was established
    DISCONNECTED = auto()  # by either side, in order
    BROKEN = auto()  # peer gone without a word


@dataclass(frozen=True, slots=True)
class ConnectParameters:
    """What either side says when it connects or accepts. Counts of outstanding reads, 0 to 128.

    In an event these are the peer's, seen from here: its depth is what we have to serve. Each side
    says how often the *other* repeats a send that finds no receive (rnr_retry_count), as in
    InfiniBand; retry_count is the requester's for both. Source: verbs-and-roce.md 14.2.
    """

    private_data: bytes = b""
    responder_resources: int = 16  # reads and atomics of the peer that may be outstanding here
    initiator_depth: int = 16  # ours that may be outstanding there
    retry_count: int = 7
    rnr_retry_count: int = 7
    qkey: int = 0  # of a datagram queue pair, in the answer to a UDP connect


@dataclass(slots=True)
class ConnectionEvent:
    """One event of a connection, given to its `on_event`."""

    kind: ConnectionEventKind
    connection: "Connection"
    parameters: ConnectParameters = field(default_factory=ConnectParameters)
    qpn: int = 0  # datagrams: the peer's queue pair
    vector: AddressVector | None = None  # datagrams: where that queue pair is
    reason: str = ""  # for people


Address = tuple[str, int]  # numeric IP (IPv6 with %scope if it needs one) and port
OnConnectionEvent = Callable[[ConnectionEvent], None]


class Connection(ABC):
    """One connection, on either side. All calls with the adapter's lock held; none waits."""

    local: Address
    peer: Address
    space: PortSpace
    on_event: OnConnectionEvent  # the owner sets its own on a REQUEST before it answers
    context: Any = None

    @abstractmethod
    def accept(self, qp: QueuePair | None, parameters: ConnectParameters) -> None:
        """Answer a request with a queue pair in RESET or INIT; it is led to RTS from here.

        With PortSpace.UDP the queue pair only gives its number. Raises OSError: EINVAL in the
        wrong state, ENOMEM for private data beyond the limit. ESTABLISHED follows, or an end.
        """

    @abstractmethod
    def reject(self, private_data: bytes = b"") -> None:
        """Refuse a request. The connection is over without another event."""

    @abstractmethod
    def disconnect(self) -> None:
        """End the connection: the queue pair goes to ERR, DISCONNECTED follows on both sides."""

    @abstractmethod
    def close(self) -> None:
        """Forget the connection now, told or not; no event comes any more."""


class Listener(ABC):
    """One listening address."""

    local: Address

    @abstractmethod
    def close(self) -> None:
        """Stop listening. Requests already given stay valid; later ones are refused."""


class Adapter(ABC):
    """One open device."""

    attributes: DeviceAttributes
    gid: bytes  # 16 octets: names this opening to others
    keys: KeyTable
    lock: threading.RLock
    on_async_event: Callable[[AsyncEvent], None]  # set by the Context; lock held
    port: int = 0  # of this opening, where several share a GID: goes into their AddressVector
    has_own_time: bool = True  # False: the clock stands still unless somebody calls `progress`

    # -- time and progress

    @abstractmethod
    def now_ns(self) -> int:
        """Return this adapter's clock: monotonic, or the virtual one of `sim`."""

    @abstractmethod
    def progress(self) -> None:
        """Take in what has arrived and run what is due, without waiting. Takes the lock."""

    @abstractmethod
    def wait(self, is_ready: Callable[[], bool], timeout_ns: int | None) -> bool:
        """Wait until `is_ready()` (called with the lock held) or the time is over.

        `sim` runs its virtual time instead, and returns at once when nothing can happen any more.
        Call it without the lock. Returns what `is_ready` said last.
        """

    def attend(self) -> None:  # noqa: B027 - where time stands still nobody else drives
        """Count one who sleeps outside, on a descriptor: nobody may count on him to drive.

        Lock held. A device with a thread of its own lets it drive at once whenever nobody waits
        in `wait`, instead of leaving that to the last caller for some milliseconds.
        """

    def unattend(self) -> None:  # noqa: B027 - as `attend`
        """Count one less: each `attend` has its own. Lock held; the device may be closed."""

    def call_soon(self, action: Callable[[], None]) -> None:
        """Run `action` with the lock held once the engine call under way is over; return at once.

        For callbacks, which must not touch queue pairs themselves, and for threads that may not
        wait: with the lock or without. Here a thread waits for the lock; an adapter with a loop
        of its own may run it there.
        """

        def run() -> None:
            with self.lock:
                action()

        threading.Thread(target=run, name="urds-verbs-later", daemon=True).start()

    def notify(self) -> None:  # noqa: B027 - who never sleeps has nobody to wake
        """Let those who `wait` ask again: something changed without a packet. Lock held.

        Event dispatchers of DAT call it, for software events among others. An adapter whose
        `wait` sleeps overrides it.
        """

    # -- queue pairs

    @abstractmethod
    def new_qpn(self) -> int:
        """Return a number for a queue pair that was not used lately."""

    @abstractmethod
    def add(self, qp: QueuePair) -> None:
        """Take a queue pair in: its packets and timers are moved from here on."""

    @abstractmethod
    def remove(self, qp: QueuePair) -> None:
        """Forget a queue pair. Its connection, if it has one, ends."""

    @abstractmethod
    def kick(self, qp: QueuePair) -> None:
        """Carry away what the queue pair has to say and hand on its events; plan its timer.

        Called with the lock held after each call that may have given it something to say.
        """

    # -- memory

    def allocate(self, length: int) -> memoryview:
        """Return zeroed memory that is good to register: what peers can map, if there is such."""
        return memoryview(bytearray(length))

    # -- connections

    @abstractmethod
    def listen(
        self, local: Address, space: PortSpace, *, backlog: int, on_event: OnConnectionEvent
    ) -> Listener:
        """Listen; port 0 takes a free one. Raises OSError: EADDRINUSE, EADDRNOTAVAIL, EACCES."""

    @abstractmethod
    def connect(
        self,
        qp: QueuePair | None,
        peer: Address,
        space: PortSpace,
        parameters: ConnectParameters,
        *,
        on_event: OnConnectionEvent,
        local: Address | None = None,
        timeout_ns: int | None = None,
    ) -> Connection:
        """Ask for a connection of a queue pair in RESET or INIT; an event tells how it went.

        Returns at once, and before the first event: by then its caller knows the connection.
        Raises OSError for what can be told at once: EINVAL, EADDRNOTAVAIL.
        """

    @abstractmethod
    def close(self) -> None:
        """Drop everything, end threads; peers see their connections break. Safe twice."""


__all__ = [
    "AccessFlag", "Adapter", "Address", "AddressVector", "ConnectParameters", "Connection",
    "ConnectionEvent", "ConnectionEventKind", "DeviceAttributes", "Listener", "OnConnectionEvent",
    "PortSpace",
]  # fmt: skip
