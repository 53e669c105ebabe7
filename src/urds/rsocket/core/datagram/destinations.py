"""Where datagrams go: one entry per address that was sent to, in a table with a bound.

Only sending makes an entry. A sender that we never sent to costs no memory, and cannot push out
entries.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from urds.common.types import HostPort
from urds.rsocket.core.datagram.records import DestinationState, QueuePairAddress


@dataclass(slots=True, eq=False)
class DatagramDestination:
    """One address that was sent to, and how it is reached."""

    target: HostPort
    udp_header: bytes  # of data over UDP
    qp_header: bytes  # of data over a queue pair: they name us, and never change
    may_look_up: bool = True
    state: DestinationState = DestinationState.BY_UDP
    qp_address: QueuePairAddress | None = None
    # What the peer said of itself last.
    peer_qpn: int | None = None
    peer_bind_id: bytes | None = None
    # The look-up under way: its number, and devices with ports that were not tried yet.
    token: int = 0
    candidates: list[tuple[int, int]] = field(default_factory=list)
    look_ups_failed: int = 0
    look_up_not_before_ns: int = 0
    udp_sent_ns: int = 0  # data, not answers
    answered_ns: int | None = None

    def forget_queue_pair(self) -> bool:
        """Send by UDP from here on; return whether a queue pair was known."""
        had_queue_pair = self.qp_address is not None
        self.state, self.qp_address = DestinationState.BY_UDP, None
        return had_queue_pair


class DatagramDestinations:
    """The table, and which look-up belongs to which entry."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._by_target: OrderedDict[HostPort, DatagramDestination] = OrderedDict()
        self._by_token: dict[int, DatagramDestination] = {}
        self._token_last = 0

    def __len__(self) -> int:
        return len(self._by_target)

    def __iter__(self) -> Iterator[DatagramDestination]:
        return iter(self._by_target.values())

    @property
    def look_ups(self) -> int:
        """Return how many look-ups are under way."""
        return len(self._by_token)

    def find(self, target: HostPort) -> DatagramDestination | None:
        """Return an entry, which this does not make more recent."""
        return self._by_target.get(target)

    def use(self, target: HostPort) -> DatagramDestination | None:
        """Return an entry as the most recently used one."""
        found = self._by_target.get(target)
        if found is not None:
            self._by_target.move_to_end(target)
        return found

    def add(self, destination: DatagramDestination) -> DatagramDestination | None:
        """Take an entry in; return the least recently used one if that had to go."""
        self._by_target[destination.target] = destination
        if len(self._by_target) <= self.limit:
            return None
        return self._by_target.popitem(last=False)[1]

    def begin_look_up(self, destination: DatagramDestination) -> int:
        """Return a number for a look-up, under which the entry is found from here on."""
        self._token_last += 1
        destination.token = self._token_last
        self._by_token[destination.token] = destination
        return destination.token

    def end_look_up(self, token: int) -> DatagramDestination | None:
        """Return the destination of a look-up, None if none waits for it."""
        found = self._by_token.pop(token, None)
        if found is not None:
            found.token = 0
        return found
