"""Settings of the control core. Durations in nanoseconds."""

from ipaddress import IPv4Network, IPv6Network

from urds.common.records import record
from urds.common.types import IPAddress
from urds.rds.constants import MAX_MESSAGE_BYTES, PATHS_MAX, Capability
from urds.rds.wire.frame_format import FRAME_FORMAT_NEWEST, FrameFormat

Network = IPv4Network | IPv6Network
_MS = 1_000_000
_S = 1_000 * _MS


@record(kw_only=True)
class ReconnectSettings:
    """What connections of a node share, over TCP and over RDMA.

    The process sets them from the tunables `reconnect_min_delay_ms`, `reconnect_max_delay_ms` and
    `reconnect_give_up_s` of `rds.settings`; `reconnect.Backoff` draws delays within these bounds.
    """

    generation: int  # of this start, 1 to 2**32 - 1; another one at each start
    reconnect_delay_min_ns: int = 1 * _MS
    reconnect_delay_max_ns: int = 1 * _S
    # What is lost is reconnected even if no message waits here: one may wait at the peer, or a
    # sender there for a congestion map. Then the delay grows further, up to this: a server does
    # not call departed clients all day.
    reconnect_delay_idle_max_ns: int = 60 * _S
    reconnect_give_up_ns: int = 0  # 0: never

    def __post_init__(self) -> None:
        assert 0 < self.generation < 1 << 32, f"generation {self.generation}"
        assert 0 < self.reconnect_delay_min_ns <= self.reconnect_delay_max_ns
        assert self.reconnect_delay_max_ns <= self.reconnect_delay_idle_max_ns

    def delay_max_ns(self, *, wanted: bool) -> int:
        """Return the longest delay of the back-off; `wanted` if messages wait."""
        return self.reconnect_delay_max_ns if wanted else self.reconnect_delay_idle_max_ns


@record(kw_only=True)
class ConnectionSettings(ReconnectSettings):
    """What every connection of a node over TCP shares."""

    npaths: int = 1  # 1, 2, 4 or 8
    capabilities: Capability = (
        Capability.ACKNOWLEDGEMENTS | Capability.CHECKSUM | Capability.GENERATION_HELLO
    )
    message_bytes_max: int = MAX_MESSAGE_BYTES
    handshake_wait_ns: int = 1 * _S  # after the first frame; then the peer counts as Linux
    liveness_wait_ns: int = _S // 5  # until a second stream of a urds node takes its path
    hello_wait_ns: int = 5 * _S  # the same for a peer that was a urds node before

    def __post_init__(self) -> None:
        ReconnectSettings.__post_init__(self)  # `super` does not work in a class with slots
        assert self.npaths in (1, 2, 4, PATHS_MAX), f"npaths {self.npaths}"


@record(kw_only=True)
class PeerSettings(ReconnectSettings):
    """What every peer of a node over RDMA shares."""

    frame_format: FrameFormat = FRAME_FORMAT_NEWEST  # offered to urds nodes
    # For the device to report how an attempt ended. The slowest of the present connection managers
    # takes 10 s; this is for one that forgot the attempt.
    answer_wait_ns: int = 30 * _S
    # How long the present connection wins against a request of the same generation of a urds node,
    # which may be the older one: the lower address's attempt, an accepted request, a connection.
    # After that it counts as dead: an attempt may have gone to an earlier generation of the peer.
    duel_wait_ns: int = 1 * _S


@record(kw_only=True)
class LocalAddressSettings:
    """What one local address allows."""

    # The subnet of the local address and what URDS_ALLOW adds; `any` is 0.0.0.0/0 and ::/0. A
    # loopback address allows loopback peers without being told.
    allowed: tuple[Network, ...] = ()
    peers_max: int = 4096
    pending_max: int = 64  # accepted, but no frame yet and no earlier acquaintance
    pending_per_address_max: int = 16
    pending_wait_ns: int = 30 * _S

    def allows(self, peer: IPAddress) -> bool:
        """Tell whether the peer is admitted; one of this machine is, whatever the local address."""
        return peer.is_loopback or any(peer in network for network in self.allowed)
