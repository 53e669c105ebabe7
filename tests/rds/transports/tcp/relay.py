"""A wire between two urds nodes that a test can look into, spoil and cut.

The nodes differ in their TCP port: the lower one has 16385, the higher one 16386. So each believes
to reach the other where the relay listens, and the relay connects on with the address and, for the
sake of multipath, the source port that the other end expects.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from enum import Enum, auto

from tests.rds.transports.tcp.faults import reset
from tests.rds.transports.tcp.frames import Frame, FrameReader
from tests.support.places import Inside, family_of
from urds.rds.constants import RDS_TCP_PORT

LOWER_PORT, HIGHER_PORT = RDS_TCP_PORT, RDS_TCP_PORT + 1
_TURN_S = 0.05


class Way(Enum):
    """A direction."""

    UP = auto()  # from the lower address
    DOWN = auto()


Tamper = Callable[[Way, Frame, bytes], bytes]


def pass_on(way: Way, frame: Frame, data: bytes) -> bytes:
    """Leave a frame as it is."""
    return data


@dataclass(slots=True)
class _Link:
    """One connection and its continuation."""

    ends: dict[Way, socket.socket]  # by the way on which they are read
    readers: dict[Way, FrameReader] = field(
        default_factory=lambda: {way: FrameReader() for way in Way}
    )

    def close(self) -> None:
        for end in self.ends.values():
            reset(end)


class Relay:
    """Forwards whole frames in a thread of its own; `tamper` sees each on its way."""

    def __init__(
        self, lower: str, higher: str, *, inside: Inside = lambda _address: nullcontext()
    ) -> None:
        self.lower, self.higher = lower, higher
        self._inside = inside
        self.frames: list[tuple[Way, Frame]] = []
        self.tamper: Tamper = pass_on
        self._links: list[_Link] = []
        self._listeners = {
            Way.UP: self._listen(higher, LOWER_PORT),
            Way.DOWN: self._listen(lower, HIGHER_PORT),
        }
        self._cut = threading.Event()
        self._stop = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def cut_all(self) -> None:
        """Reset every connection at both ends, soon."""
        self._cut.set()

    def sent(self, way: Way) -> list[Frame]:
        """Return the frames that went one way, congestion maps left out."""
        return [frame for one, frame in list(self.frames) if one is way and not frame.is_map]

    def close(self) -> None:
        """End the thread and every connection."""
        self._stop = True
        self._thread.join(2.0)
        for listener in self._listeners.values():
            listener.close()

    def _listen(self, address: str, port: int) -> socket.socket:
        with self._inside(address):
            return socket.create_server((address, port), family=family_of(address), backlog=64)

    def _run(self) -> None:
        while not self._stop:
            self._turn()
        for link in self._links:
            link.close()

    def _turn(self) -> None:
        listeners = {listener: way for way, listener in self._listeners.items()}
        ends = {end: (link, way) for link in self._links for way, end in link.ends.items()}
        ready, _, _ = select.select([*listeners, *ends], [], [], _TURN_S)
        if self._cut.is_set():
            self._cut.clear()
            for link in self._links:
                link.close()
            self._links.clear()
            return
        for one in ready:
            if one in listeners:
                self._accept(listeners[one])
            else:
                link, way = ends[one]
                if link in self._links:
                    self._forward(link, way)

    def _accept(self, way: Way) -> None:
        connection, name = self._listeners[way].accept()
        source, target, target_port = (
            (self.lower, self.higher, HIGHER_PORT)
            if way is Way.UP
            else (self.higher, self.lower, LOWER_PORT)
        )
        with self._inside(source):
            onward = socket.socket(family_of(source))
        onward.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            onward.bind((source, name[1]))
            onward.connect((target, target_port))
        except OSError:
            reset(connection)
            onward.close()
            return
        back = Way.DOWN if way is Way.UP else Way.UP
        for end in (connection, onward):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._links.append(_Link({way: connection, back: onward}))

    def _forward(self, link: _Link, way: Way) -> None:
        back = Way.DOWN if way is Way.UP else Way.UP
        try:
            data = link.ends[way].recv(1 << 18)
            if not data:
                raise ConnectionResetError
            for frame in link.readers[way].feed(data):
                self.frames.append((way, frame))
                raw = frame.header.emit() + frame.payload
                link.ends[back].sendall(self.tamper(way, frame, raw))
        except OSError:
            self._links.remove(link)
            with suppress(OSError):
                link.close()
