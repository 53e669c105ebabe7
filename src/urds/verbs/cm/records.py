"""Records of the connection manager: settings, counters, connections, events."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum, IntEnum, auto
from typing import Any, Final

from urds.common.types import HostPort
from urds.verbs.cm.messages import CmMessage, Offer

Route = Hashable  # where a provider sends to; the core only compares it

DATAGRAM_SPACE: Final = 0x0111  # port space of rdma_cm whose connections are look-ups


@dataclass(frozen=True, slots=True)
class CmSettings:
    """Times and limits of one connection manager.

    Linux retries after 6.1 s, 15 times (docs/reference/verbs-and-roce.md 14.3). Duplicates are
    harmless, so this retries sooner and gives up after 9.4 s.
    """

    retry_first_ns: int = 200_000_000  # doubles with each try
    retry_max_ns: int = 3_200_000_000
    tries_max: int = 6
    request_wait_ns: int = 30_000_000_000  # for the listener's owner to answer
    past_max: int = 4096  # ended requests that are remembered
    pending_max: int = 4096  # unanswered requests of all listeners
    connections_max: int = 65_536
    error_grace_ns: int = 20_000_000  # lets the queue pair's last answer go first
    alive_idle_ns: int | None = 2_000_000_000  # silence before a probe; None: the link reports ends
    alive_retry_ns: int = 1_000_000_000
    alive_suspect_ns: int = 100_000_000  # after a hint that the peer is gone
    # Ten seconds in all, so that a queue pair with work under way fails first and says why.
    alive_tries_max: int = 8


@dataclass(slots=True)
class CmStats:
    """Counts since the start, one per rare event and one per reason of a drop."""

    requests_sent: int = 0
    requests_received: int = 0
    requests_duplicate: int = 0  # duplicates received
    retries: int = 0  # messages sent again
    established: int = 0
    established_by_data: int = 0  # the RTU was late or lost
    rejected_no_listener: int = 0
    rejected_backlog: int = 0
    rejected_pending: int = 0
    rejected_connections: int = 0
    stale: int = 0  # connections replaced by a new one of the same queue pair
    broken: int = 0
    dropped_malformed: int = 0
    dropped_unknown: int = 0  # about unknown connections
    dropped_misplaced: int = 0  # kind that does not fit the state
    alive_sent: int = 0
    alive_received: int = 0


class CmState(IntEnum):
    """States of a connection, as one side sees it."""

    REQ_SENT = 1
    REQUESTED = 2  # the owner has it and has not answered
    REP_SENT = 3
    ESTABLISHED = 4
    DREQ_SENT = 5  # DREQ sent
    OVER = 6


class CmEventKind(Enum):
    """Events of a connection. All but the first two end it."""

    REQUEST = auto()
    ESTABLISHED = auto()
    REJECTED = auto()
    REFUSED = auto()
    UNREACHABLE = auto()
    ERROR = auto()
    DISCONNECTED = auto()
    BROKEN = auto()


@dataclass(slots=True, eq=False)
class CmListener:
    """One listening port of one space; `host` may be the wildcard address."""

    space: int
    host: str
    port: int
    backlog: int
    owner: Any = None
    pending: int = 0


@dataclass(slots=True, eq=False)
class CmPeer:
    """One peer's device context that has connections here, and when it was heard last."""

    route: Route
    context_guid: bytes
    heard_ns: int
    connections: set["CmConnection"] = field(default_factory=set)
    tries: int = 0
    nonce: int = 0
    is_suspect: bool = False


@dataclass(slots=True, eq=False)
class CmConnection:
    """One side of a connection. Only the core changes it; `owner` belongs to the owner."""

    local_id: int
    route: Route
    space: int
    is_requester: bool
    local: HostPort
    peer: HostPort
    state: CmState
    offer: Offer = field(default_factory=Offer)
    peer_offer: Offer = field(default_factory=Offer)
    remote_id: int = 0
    context_guid: bytes = b""  # the peer's; empty while unknown
    listener: CmListener | None = None
    owner: Any = None
    is_silent: bool = False  # forgotten by its owner: no events
    monitored_peer: CmPeer | None = None
    data: bytes = b""  # what is repeated until the peer answers
    tries: int = 0
    give_up_ns: int | None = None

    @property
    def is_datagram(self) -> bool:
        """Whether this only looks up a datagram queue pair."""
        return self.space == DATAGRAM_SPACE


@dataclass(frozen=True, slots=True)
class CmEvent:
    """One event. `message` is the peer's message that caused it, if any."""

    kind: CmEventKind
    connection: CmConnection
    message: CmMessage | None = None
    reason: str = ""
