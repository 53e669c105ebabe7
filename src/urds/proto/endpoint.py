"""One local address: its ports, its peers, and who may become one.

A value machine, as its connections. All of them share one queue of actions and one set of timers,
so the driver polls the endpoint alone, and hands what concerns a peer to `connection(peer)`:

    endpoint.connection(peer).handle_down(index, frames, now_ns)

Sources: rds.md 3.1 for ports; design.md, "Closed by default", for limits.
"""

from collections import deque
from random import Random

from urds.proto.connection import Connection
from urds.proto.events import Action
from urds.proto.paths import Address
from urds.proto.settings import ConnectionSettings, EndpointSettings
from urds.proto.stats import Stats
from urds.proto.strangers import Strangers
from urds.proto.timers import Timers


class Endpoint:
    """The control state of one local address."""

    def __init__(
        self,
        *,
        local: Address,
        settings: EndpointSettings,
        connection_settings: ConnectionSettings,
        random: Random,
        stats: Stats | None = None,
    ) -> None:
        self.local = local
        self.stats = stats if stats is not None else Stats()
        self._settings = settings
        self._connection_settings = connection_settings
        self._random = random
        self._actions: deque[Action] = deque()
        self._timers = Timers()
        self._strangers = Strangers(settings, self._timers)
        self._connections: dict[Address, Connection] = {}
        self._ports: set[int] = set()

    def bind(self, port: int) -> int:
        """Take a port and return it; 0 chooses: a random start, then upwards with wrap from 2.

        Raises OSError: EINVAL for port 1, EADDRINUSE for a port in use or when none is free.
        """
        raise NotImplementedError

    def release(self, port: int) -> None:
        """Give a port back."""

    @property
    def connections(self) -> tuple[Connection, ...]:
        """All connections, those without a stream included."""
        return tuple(self._connections.values())

    def connection(self, peer: Address, now_ns: int) -> Connection:
        """Return the connection to a peer, a new one if need be. For a peer in `find`, the same.

        Raises OSError: EACCES for a peer that is not allowed, EUSERS when there are too many.
        """
        raise NotImplementedError

    def find(self, peer: Address) -> Connection | None:
        """Return the connection to a peer if there is one: for reports, which may come late."""

    def allows(self, peer: Address) -> bool:
        """Tell whether the peer is in the allowed networks."""
        raise NotImplementedError

    def handle_accepted(self, stream: int, peer: Address, source_port: int, now_ns: int) -> None:
        """A TCP connection came in. It is attached, parked or refused."""

    def handle_timeout(self, now_ns: int) -> None:
        """Do what is due on any connection."""

    def poll_timeout(self) -> int | None:
        """Return when `handle_timeout` is due next, None for never."""
        return self._timers.next_ns()

    def poll_event(self) -> Action | None:
        """Return the next action or notice of any connection."""
        return self._actions.popleft() if self._actions else None
