"""Messages both ways between a node on the left and one on the right, at a steady pace."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.rds.transports.tcp.nodes import PORT, Node
from tests.support.places import Place
from urds.rds.constants import MSG_DONTWAIT

_PACE_S = 0.002
_FULL = (errno.EAGAIN, errno.ENOBUFS)
_SMALL_BYTES, _LARGE_BYTES = 100, 20_000  # every tenth is several segments long


@dataclass(slots=True)
class Way:
    """One direction: what is sent is numbered, what comes must be the next number."""

    source: Node
    target: Node
    sent: int = 0
    taken: int = 0
    last_s: float = field(default_factory=time.monotonic)  # when a message came

    def send(self) -> None:
        """Send the next message if there is room."""
        try:
            self.source.mailbox.sendto(
                payload_of(self.sent), MSG_DONTWAIT, (self.target.address, PORT)
            )
        except OSError as error:
            if error.errno not in _FULL:
                raise
        else:
            self.sent += 1

    def take(self) -> None:
        """Take what is here: none may be lost, doubled or out of order."""
        for payload in self.target.take():
            assert payload == payload_of(self.taken), f"not message {self.taken}"
            self.taken += 1
            self.last_s = time.monotonic()


def payload_of(number: int) -> bytes:
    """Return the message of a number."""
    payload_bytes = _LARGE_BYTES if number % 10 == 9 else _SMALL_BYTES
    return b"%d " % number + bytes([number % 256]) * payload_bytes


class Traffic:
    """Two nodes at hosts 0 and 1, and what goes between them."""

    def __init__(self, place: Place, *, addresses: tuple[str, str] | None = None) -> None:
        self.nodes: list[Node] = []
        for address in addresses or (place.address(0), place.address(1)):
            with place.inside(place.address(len(self.nodes))):
                self.nodes.append(Node(address, reconnect_max_delay_ms=200))
        left, right = self.nodes
        self.ways = (Way(left, right), Way(right, left))

    def run(self, run_s: float) -> None:
        """Send and take for so long."""
        self._run_until(lambda: False, run_s)

    def recover(self, *, wait_s: float) -> float:
        """Send until a message of now has come each way; return how many seconds that took."""
        began_s = time.monotonic()
        goals = [way.sent for way in self.ways]

        def is_whole() -> bool:
            return all(way.taken > goal for way, goal in zip(self.ways, goals, strict=True))

        assert self._run_until(is_whole, wait_s), f"no recovery within {wait_s:g} s: {self}"
        return time.monotonic() - began_s

    def finish(self, *, wait_s: float = 10.0) -> None:
        """Take what is under way; all that was sent must come, and nothing more."""
        deadline_s = time.monotonic() + wait_s
        while any(way.taken < way.sent for way in self.ways):
            assert time.monotonic() < deadline_s, f"lost: {self}"
            self._take()
        time.sleep(0.1)  # one too many would come now
        self._take()

    def silence_s(self, host: int) -> float:
        """Return for how long nothing of what a host sent has come."""
        return time.monotonic() - self.ways[host].last_s

    def break_connection(self, host: int) -> None:
        """Reset the connection at one end; the other does not hear of it if the link is silent."""
        assert self.nodes[host].backend.break_connections()

    def close(self) -> None:
        """End both nodes."""
        for node in self.nodes:
            node.close()

    def __str__(self) -> str:
        return ", ".join(f"sent {way.sent}, taken {way.taken}" for way in self.ways)

    def _run_until(self, condition: Callable[[], bool], run_s: float) -> bool:
        deadline_s = time.monotonic() + run_s
        while not condition():
            if time.monotonic() > deadline_s:
                return False
            for way in self.ways:
                way.send()
            self._take()
            time.sleep(_PACE_S)
        return True

    def _take(self) -> None:
        for way in self.ways:
            way.take()
