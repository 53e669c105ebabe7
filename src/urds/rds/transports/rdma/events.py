"""What the control core of RDS over RDMA asks its shell to do, and what it tells.

The shell carries actions out in the order in which `poll_event` gives them. A connection has a
number: of an attempt of ours `next_number` drew it, of a request of the peer the shell did.

A number named by `Connect` or `Accept` is ended by exactly one `Abandon` or `Detach`, whatever
happened to it: there the shell gives back what it took for it. One of a request alone is answered
by exactly one `Accept` or `Reject`. Reports about a number that has ended are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from urds.proto.paths import Address


class PeerKey(NamedTuple):
    """Whom a connection leads to: there is one for each peer and type of service."""

    peer: Address
    tos: int
    passive: bool = False  # the accepting end of a connection to ourselves


class Failure(Enum):
    """How an attempt, or an answer to a request, ended without a connection."""

    REJECTED = auto()  # by RDS, with private data
    REFUSED = auto()  # nobody listens
    UNREACHABLE = auto()
    ERROR = auto()


class Reason(Enum):
    """Why a connection was refused for good; races and rests are only counted."""

    NOT_ALLOWED = auto()  # the peer is not in the allowed networks: setting URDS_ALLOW
    TOO_MANY_PEERS = auto()
    VERSION = auto()
    WRONG_ADDRESS = auto()  # the private data names other addresses than the connection


# -- actions


@dataclass(frozen=True, slots=True)
class Connect:
    """Ask the peer for a connection, with the private data of `offer`.

    Answer with `handle_established` or `handle_failed`, once, unless `Abandon` comes first.
    """

    key: PeerKey
    number: int


@dataclass(frozen=True, slots=True)
class Accept:
    """Accept the request, with the private data of `offer`. Answer as to `Connect`."""

    key: PeerKey
    number: int


@dataclass(frozen=True, slots=True)
class Reject:
    """Reject the request."""

    number: int
    private_data: bytes


@dataclass(frozen=True, slots=True)
class Attach:
    """Hand the established connection to the path; there is no other then."""

    key: PeerKey
    number: int
    acknowledged: int  # the highest of our numbers that this life of the peer has; 0: none
    credits: int  # 0: no flow control
    is_own: bool
    long_frames: bool = False  # both sides said that they take them


@dataclass(frozen=True, slots=True)
class Detach:
    """Take the connection from the path, unless it is gone, and close it.

    If the path still holds messages then, say so with `handle_wanted`.
    """

    key: PeerKey
    number: int


@dataclass(frozen=True, slots=True)
class Abandon:
    """Close what was never established: an attempt, or a request that was accepted."""

    key: PeerKey
    number: int


@dataclass(frozen=True, slots=True)
class RestartPeer:
    """The peer began a new life: drop what the old one was handed, forget its numbers."""

    key: PeerKey


@dataclass(frozen=True, slots=True)
class GiveUp:
    """There was no connection for `reconnect_give_up_ns`: drop all messages, log it."""

    key: PeerKey
    down_ns: int


@dataclass(frozen=True, slots=True)
class Forget:
    """The peer was evicted, idle for longest: drop its messages, close its path."""

    key: PeerKey


# -- notices


@dataclass(frozen=True, slots=True)
class PeerKnown:
    """The private data told who the peer is; also when that changed."""

    key: PeerKey
    is_own: bool
    version: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Refused:
    """A connection was refused; the `Reject` or `Abandon` came before."""

    peer: Address
    reason: Reason


Action = (
    Connect
    | Accept
    | Reject
    | Attach
    | Detach
    | Abandon
    | RestartPeer
    | GiveUp
    | Forget
    | PeerKnown
    | Refused
)
