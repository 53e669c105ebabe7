"""Settings of connections over RDMA. Durations in nanoseconds."""

from dataclasses import dataclass
from typing import Final

_MS: Final = 1_000_000
_S: Final = 1_000 * _MS


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSettings:
    """What every peer of a node shares."""

    generation: int  # of this start, 1 to 2**32 - 1; another one at each start
    reconnect_delay_min_ns: int = 1 * _MS
    reconnect_delay_max_ns: int = 1 * _S
    long_frames: bool = True  # offered to own nodes
    # A lost connection is reconnected even if no message waits here: a sender may wait at the peer
    # for a congestion map. Then the delay grows further, up to this.
    reconnect_delay_idle_max_ns: int = 60 * _S
    reconnect_give_up_ns: int = 0  # 0: never
    # For the device to report how an attempt ended. The slowest of the present connection managers
    # takes 10 s; this is for one that forgot the attempt.
    answer_wait_ns: int = 30 * _S
    # How long the present connection wins against a request of the same generation of an own node,
    # which may be the older one: the lower address's attempt, an accepted request, a connection.
    # After that it counts as dead: an attempt may have gone to an earlier generation of the peer.
    duel_wait_ns: int = 1 * _S

    def __post_init__(self) -> None:
        assert 0 < self.generation < 1 << 32, f"generation {self.generation}"
        assert 0 < self.reconnect_delay_min_ns <= self.reconnect_delay_max_ns
        assert self.reconnect_delay_max_ns <= self.reconnect_delay_idle_max_ns
