"""Where datagrams go: one entry per address that was sent to, in a table with a bound.

Only sending makes an entry. A stranger who sends to us costs no memory, and cannot push out those
we speak with.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from urds.rsocket.dgram.records import Address, DestinationState, QueuePairWay


@dataclass(slots=True, eq=False)
class Destination:
    """One address that was sent to, and what is known of the way there."""

    target: Address
    udp_header: bytes  # of data over UDP
    qp_header: bytes  # of data over a queue pair: they name us, and never change
    may_look_up: bool = True
    state: DestinationState = DestinationState.BY_UDP
    way: QueuePairWay | None = None
    # What the peer said of itself last.
    peer_qpn: int | None = None
    peer_opening: bytes | None = None
    # The look-up under way: its number, and devices with ports that were not tried yet.
    token: int = 0
    candidates: list[tuple[int, int]] = field(default_factory=list)
    look_ups_in_vain: int = 0
    look_up_not_before_ns: int = 0
    udp_sent_ns: int = 0  # data, not answers
    answered_ns: int | None = None

    def lose_way(self) -> bool:
        """Send by UDP from here on; return whether a queue pair was known."""
        had_way = self.way is not None
        self.state, self.way = DestinationState.BY_UDP, None
        return had_way


class Destinations:
    """The table, and which look-up belongs to which entry."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._by_target: OrderedDict[Address, Destination] = OrderedDict()
        self._by_token: dict[int, Destination] = {}
        self._token_last = 0

    def __len__(self) -> int:
        return len(self._by_target)

    def __iter__(self) -> Iterator[Destination]:
        return iter(self._by_target.values())

    @property
    def look_ups(self) -> int:
        """Return how many look-ups are under way."""
        return len(self._by_token)

    def find(self, target: Address) -> Destination | None:
        """Return an entry, which this does not make more recent."""
        return self._by_target.get(target)

    def use(self, target: Address) -> Destination | None:
        """Return an entry as the most recently used one."""
        found = self._by_target.get(target)
        if found is not None:
            self._by_target.move_to_end(target)
        return found

    def add(self, destination: Destination) -> Destination | None:
        """Take an entry in; return the least recently used one if that had to go."""
        self._by_target[destination.target] = destination
        if len(self._by_target) <= self.limit:
            return None
        return self._by_target.popitem(last=False)[1]

    def begin_look_up(self, destination: Destination) -> int:
        """Return a number for a look-up, under which the entry is found from here on."""
        self._token_last += 1
        destination.token = self._token_last
        self._by_token[destination.token] = destination
        return destination.token

    def end_look_up(self, token: int) -> Destination | None:
        """Return whose look-up this was, None if nobody waits for it."""
        found = self._by_token.pop(token, None)
        if found is not None:
            found.token = 0
        return found
