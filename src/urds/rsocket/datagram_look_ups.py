"""Who answers look-ups: one listener per device and address, for all datagram sockets of a process.

The port of a datagram socket belongs to the kernel's UDP socket, and a device that listens in UDP
too cannot have the same. So sockets share a listener at a port of its own, say that port to their
peers, and are told apart by their openings, which a look-up carries as private data. A listener
stays with its device: the next socket at the address needs it again.

Everything here needs the adapter's lock.
"""

from contextlib import suppress
from weakref import WeakKeyDictionary

from urds.rsocket.opening import Opening
from urds.rsocket.wire.datagram_ways import OPENING_BYTES
from urds.verbs.cm_parameters import UD_QKEY
from urds.verbs.engine.queue_pair import QueuePair
from urds.verbs.providers.base import (
    ConnectionEvent,
    ConnectionEventKind,
    ConnectParameters,
    Listener,
    PortSpace,
)


class LookUps:
    """The listeners of one device, and which queue pair each opening of a socket has there."""

    def __init__(self) -> None:
        self.refused = 0  # look-ups for an opening that is not here, or no more
        self._listeners: dict[str, Listener] = {}  # by address of ours
        self._queue_pairs: dict[bytes, QueuePair] = {}

    def serve(self, opening: Opening, host: str, name: bytes, qp: QueuePair) -> int:
        """Answer look-ups for `name` with this queue pair; return the port where they go.

        Raises OSError: the device does not listen at this address.
        """
        listener = self._listeners.get(host)
        if listener is None:
            listener = opening.adapter.listen(
                (host, 0), PortSpace.UDP, backlog=0, on_event=self._handle_event
            )
            self._listeners[host] = listener
        self._queue_pairs[name] = qp
        return listener.local[1]

    def forget(self, name: bytes) -> None:
        """Answer no more for `name`."""
        self._queue_pairs.pop(name, None)

    def _handle_event(self, event: ConnectionEvent) -> None:
        if event.kind is not ConnectionEventKind.REQUEST:
            return  # the answer is on its way: nothing follows from a look-up
        connection = event.connection
        qp = self._queue_pairs.get(event.parameters.private_data[:OPENING_BYTES])
        with suppress(OSError):  # who asked has given up meanwhile
            if qp is None:
                self.refused += 1
                connection.reject()
            else:
                connection.accept(qp, ConnectParameters(qkey=UD_QKEY))


_by_opening: WeakKeyDictionary[Opening, LookUps] = WeakKeyDictionary()


def look_ups_of(opening: Opening) -> LookUps:
    """Return the look-ups of a device."""
    found = _by_opening.get(opening)
    if found is None:
        found = _by_opening.setdefault(opening, LookUps())
    return found
