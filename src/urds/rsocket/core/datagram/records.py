"""Records of the datagram core: what it is told, what it says, what it counts."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

Address = tuple[str, int]  # numeric IP (IPv6 with %scope if it needs one) and port

SLOT_BYTES: Final = 2048  # of one message at the receiver, header included; rsocket.md section 10
_S: Final = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DatagramSettings:
    """Limits and times of one socket.

    receive_slots: datagrams that wait for the application, and receives of each queue pair; the
    default is the original's 128 KiB in slots.
    """

    receive_slots: int = 64
    send_slots: int = 64  # of each queue pair
    destinations_max: int = 1024  # the least recently used goes
    look_ups_max: int = 64  # under way at one time
    udp_again_ns: int = _S  # so often a datagram goes over UDP though a queue pair is known
    answer_pause_ns: int = _S // 20  # between two answers that say the same to a known peer
    look_up_ns: int = 2 * _S  # one look-up; the original's limit
    look_up_pause_ns: int = _S  # after a look-up in vain, doubling
    look_up_pause_max_ns: int = 60 * _S


@dataclass(frozen=True, slots=True)
class Device:
    """One of our devices, as a socket uses it. Its index among all of them names it."""

    provider: str  # its kind: a peer that has the same kind may be reached over it
    port: int  # at which our look-ups are answered
    qpn: int
    mtu_bytes: int


@dataclass(frozen=True, slots=True)
class QueuePairWay:
    """A way to a peer's queue pair."""

    device: int
    vector: Any  # the device's own word for where it is
    qpn: int
    qkey: int


@dataclass(frozen=True, slots=True)
class ByUdp:
    """Octets for the real UDP socket."""

    octets: bytes
    target: Address
    local_host: str = ""  # leave from this address of ours; empty: as the socket does
    is_data: bool = True


@dataclass(frozen=True, slots=True)
class ByQueuePair:
    """Octets for a queue pair."""

    octets: bytes
    target: Address
    way: QueuePairWay


@dataclass(frozen=True, slots=True)
class LookUp:
    """Ask over a device, at the peer's port for look-ups, which queue pair an opening has there.

    Answer with `handle_found` or `handle_not_found`, and the token.
    """

    token: int
    device: int
    peer: Address
    opening: bytes


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Nobody wants the answer to a look-up any more."""

    token: int


class DestinationState(Enum):
    """How far the way to a destination is known."""

    BY_UDP = auto()  # no way by queue pair is known
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
    look_ups_in_vain: int = 0
    ways_found: int = 0
    ways_lost: int = 0  # changed queue pair, peer started anew, device gone
    destinations_evicted: int = 0
    dropped_malformed: int = 0
    dropped_too_long: int = 0  # longer than a slot
    dropped_queue_full: int = 0  # the application did not take them in time
    dropped_stranger: int = 0  # the socket is connected, and not with the sender
    dropped_unsent: int = 0  # the kernel or the queue pair had no room
    dropped_failed: int = 0  # receives that a device completed with an error
