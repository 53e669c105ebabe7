"""What is reported of messages that a peer has not acknowledged when their time is over.

Two numbers, for they mean different things: a message that was never sent did not arrive; one that
was sent and is not acknowledged may have arrived or not.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Protocol

from urds.common.ip_sockets import host_port
from urds.common.logs import LogQueue, messages
from urds.common.types import IPAddress
from urds.rds.plane.contract import LingerOver, Snapshot
from urds.rds.settings import Settings

_PEERS_MAX: Final = 5  # that are named at the end of a process
_SOCKET_PORT_MIN: Final = 2  # what has a lower source port is a ping's answer or a handshake


class Owner(Protocol):
    """The driver, as far as it is needed here."""

    log: LogQueue
    settings: Settings

    def snapshot(self) -> Snapshot:
        """Return counters and tables of the process. Raises OSError."""

    def failure(self, local: IPAddress, peer: IPAddress) -> str:
        """Return why the last attempt to connect to a peer failed, "" if it did not."""


def tell_left(driver: Owner, left: int, drain_s: float) -> None:
    """Log which messages a drain has left, by peer and port; the paths still have them."""
    log, snapshot = driver.log.part("delivery"), driver.snapshot()
    unsent, sent = (
        Counter(
            (row.local, row.peer, row.peer_port)
            for row in rows
            if row.local_port >= _SOCKET_PORT_MIN
        )
        for rows in (snapshot.send_queue, snapshot.retransmit_queue)
    )
    every = unsent + sent
    for name, count in every.most_common(_PEERS_MAX):
        local, peer, port = name
        text = _text(unsent[name], sent[name], drain_s, "drain_s", driver.failure(local, peer))
        log.warning("%s: %s", host_port((str(peer), port)), text)
        left -= count
    if left > 0 and every:
        text = "other peers: %s not acknowledged within %g s (drain_s), or never sent"
        log.warning(text, messages(left), drain_s)


def tell_linger_over(driver: Owner, event: LingerOver) -> None:
    """Log what was cancelled of a closed socket."""
    linger_s = driver.settings.linger_s
    if linger_s:  # a setting of 0 asks for the cancelling
        path = event.path
        failure = driver.failure(path.local, path.peer)
        text = _text(event.unsent, event.unacknowledged, linger_s, "linger_s", failure)
        driver.log.part("delivery").warning("%s: of a closed socket: %s", path.peer, text)


def _text(unsent: int, sent: int, wait_s: float, setting: str, failure: str) -> str:
    why = f" ({failure})" if failure else ""
    if not sent:
        return f"{messages(unsent)} never sent within {wait_s:g} s ({setting}){why}"
    text = f"{messages(sent)} not acknowledged within {wait_s:g} s ({setting})"
    return f"{text}, {unsent} never sent{why}" if unsent else f"{text}{why}"
