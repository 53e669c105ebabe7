"""Records of the datagram core: what it is told, what it says, what it counts."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from urds.common.types import HostPort

# Of one message at the receiver, header included. Source: docs/reference/rsocket.md 10.
SLOT_BYTES: Final = 2048
_S: Final = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DatagramSettings:
    """Limits and times of one socket.

    receive_slots: datagrams that wait for the application, and receives of each queue pair; the
    default is librdmacm's 128 KiB in slots.
    """

    receive_slots: int = 64
    send_slots: int = 64  # of each queue pair
    destinations_max: int = 1024  # the least recently used goes
    look_ups_max: int = 64  # under way at one time
    udp_again_ns: int = _S  # so often a datagram goes over UDP though a queue pair is known
    answer_pause_ns: int = _S // 20  # between two answers that say the same to a known peer
    look_up_ns: int = 2 * _S  # one look-up; librdmacm's limit
    look_up_pause_ns: int = _S  # after a look-up that failed, doubling
    look_up_pause_max_ns: int = 60 * _S


@dataclass(frozen=True, slots=True)
class LocalDevice:
    """One of our devices, as a socket uses it. Its index among all of them names it."""

    provider: str  # its kind: a peer that has the same kind may be reached over it
    port: int  # at which our look-ups are answered
    qpn: int
    mtu_bytes: int


@dataclass(frozen=True, slots=True)
class QueuePairAddress:
    """The address of a peer's queue pair."""

    device: int
    vector: Any  # where it is, as the device has it
    qpn: int
    qkey: int


@dataclass(frozen=True, slots=True)
class ByUdp:
    """Bytes for the real UDP socket."""

    data: bytes
    target: HostPort
    local_host: str = ""  # leave from this address of ours; empty: as the socket does
    is_data: bool = True


@dataclass(frozen=True, slots=True)
class ByQueuePair:
    """Bytes for a queue pair."""

    data: bytes
    target: HostPort
    qp_address: QueuePairAddress


@dataclass(frozen=True, slots=True)
class LookUp:
    """Ask over a device, at the peer's port for look-ups, which queue pair a bind id has there.

    Answer with `handle_found` or `handle_not_found`, and the token.
    """

    token: int
    device: int
    peer: HostPort
    bind_id: bytes


@dataclass(frozen=True, slots=True)
class CancelLookUp:
    """The answer to a look-up is not wanted any more."""

    token: int


class DestinationState(Enum):
    """How a destination is reached."""

    BY_UDP = auto()  # no queue pair is known
    LOOKING_UP = auto()  # by UDP, while a device is asked
    BY_QUEUE_PAIR = auto()


@dataclass(slots=True)
class DatagramStats:
    """Counts since the socket was bound; one per reason of a drop."""

    sent_by_udp: int = 0
    sent_by_queue_pair: int = 0
    sent_by_udp_again: int = 0  # of those by UDP: to learn whether the peer was started anew
    received_by_udp: int = 0
    received_by_queue_pair: int = 0
    controls_sent: int = 0
    controls_received: int = 0
    controls_stray: int = 0  # from where we never sent to
    look_ups: int = 0
    look_ups_failed: int = 0
    queue_pairs_found: int = 0
    queue_pairs_lost: int = 0  # changed queue pair, peer started anew, device gone
    destinations_evicted: int = 0
    dropped_malformed: int = 0
    dropped_too_long: int = 0  # longer than a slot
    dropped_queue_full: int = 0  # the application did not take them in time
    dropped_not_from_peer: int = 0  # the socket is connected, and not with the sender
    dropped_unsent: int = 0  # the kernel or the queue pair had no room
    dropped_failed: int = 0  # receives that a device completed with an error
