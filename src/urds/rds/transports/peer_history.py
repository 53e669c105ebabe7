"""What is told of connections to peers: log lines, events, and why an attempt failed last.

Common to all transports: their control planes report here what happened. Nothing here decides
anything, and nothing calls the program: lines and events are queued. The control lock is held.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from urds.common.logs import LogQueue
from urds.common.named_tuples import NamedTuple
from urds.common.records import record
from urds.common.types import IPAddress
from urds.rds.plane.contract import Carrier

_S: Final = 1_000_000_000
TURNED_AWAY: Final = (
    "the peer accepts and closes at once: it may not allow this address (its setting allow)"
)
_HANGS: Final = "the peer's host accepts, and nothing answers: its process may hang or be stopped"
_CALL_BACKS_MAX: Final = 3  # without a connection; one or two may cross with it
_HINTS: Final = {
    errno.ECONNREFUSED: "nothing listens there: no urds or RDS has bound that address",
    errno.EINVAL: "the local address cannot reach it, as one of 127/8 cannot reach the network",
    errno.ETIMEDOUT: "the host is down, or a firewall drops what is sent to it",
}


class PeerEventKind(StrEnum):
    """What happened to a connection, or to its peer."""

    CONNECTED = "connected"  # for the first time
    LOST = "lost"
    RESTORED = "restored"  # connected again
    FAILED = "failed"  # an attempt: the first of an outage, and each that fails for another reason
    REFUSED = "refused"  # a connection of the peer, by this side
    RESTARTED = "restarted"  # the peer is another process than before
    GIVEN_UP = "given up"  # messages were dropped after `reconnect_give_up_s`


@record
class PeerEvent:
    """One thing that happened; what `on_peer_event` passes on."""

    kind: PeerEventKind
    local: IPAddress
    peer: IPAddress
    transport: Carrier
    tos: int  # type of service; over TCP 0
    reason: str  # in words; empty for CONNECTED and RESTARTED
    time_ns: int  # wall clock


class PeerName(NamedTuple):
    """The connection that a report is about."""

    local: IPAddress
    peer: IPAddress
    tos: int = 0


@record(frozen=False)
class PeerHistory:
    """What is remembered of one connection."""

    carrier: Carrier
    connect_errno: int = 0  # of the last attempt; 0 while it was good
    error: str = ""  # why an attempt failed or a connection ended last
    error_ns: int | None = None
    told: str = ""  # the failure that the last event of this outage named
    loss: str = ""  # why the connection is about to be lost
    call_backs: int = 0  # asked for since the last connection
    is_up: bool = False
    was_up: bool = False
    lost_ns: int = 0


class Peers:
    """The connections of one transport."""

    def __init__(
        self,
        log: LogQueue,
        carrier: Carrier,
        *,
        now_ns: Callable[[], int],
        on_event: Callable[[PeerEvent], None],
    ) -> None:
        self._log = log
        self._carrier = carrier
        self._now_ns = now_ns
        self._on_event = on_event
        self._histories: dict[PeerName, PeerHistory] = {}

    def of(self, name: PeerName) -> PeerHistory:
        """Return what is remembered of a connection."""
        history = self._histories.get(name)
        if history is None:
            history = self._histories[name] = PeerHistory(self._carrier)
        return history

    # -- attempts

    def note_attempt(self, name: PeerName, how: str) -> None:
        """Log that this side begins to connect."""
        self._log.debug("%s: %s %s", name.local, how, name.peer)

    def note_failed(self, name: PeerName, number: int, reason: str = "") -> None:
        """Note that an attempt failed, by an errno or for a reason."""
        history = self.of(name)
        history.connect_errno = number
        text = reason or describe(number)
        self._note_error(history, text)
        self._log.debug("%s: no connection to %s: %s", name.local, name.peer, text)
        if text != history.told:
            history.told = text
            self._tell(PeerEventKind.FAILED, name, text)

    def note_called_back(self, name: PeerName, *, closed: bool) -> None:
        """Note that the peer took a call-back request: it closed it, or left it to time out.

        It connects a moment later; if it does not, again and again, that is a failure.
        """
        history = self.of(name)
        history.call_backs += 1
        if history.call_backs >= _CALL_BACKS_MAX:
            number = errno.ECONNRESET if closed else errno.ETIMEDOUT
            self.note_failed(name, number, TURNED_AWAY if closed else _HANGS)

    def note_attached(self, name: PeerName, carrier: Carrier | None = None) -> None:
        """Note that a connection is made; whether the peer talks on it is still to be seen."""
        history = self.of(name)
        history.connect_errno = history.call_backs = 0
        history.carrier = carrier or self._carrier

    # -- connections

    def note_up(self, name: PeerName) -> None:
        """Tell that messages flow."""
        history = self.of(name)
        carrier = history.carrier
        if history.was_up:
            seconds = (self._now_ns() - history.lost_ns) / _S
            text = "%s: connection to %s restored after %.1f s, over %s"
            self._log.info(text, name.local, name.peer, seconds, carrier)
            self._tell(PeerEventKind.RESTORED, name, f"after {seconds:.1f} s")
        else:
            self._log.info("%s: connected to %s over %s", name.local, name.peer, carrier)
            self._tell(PeerEventKind.CONNECTED, name)
        history.is_up = history.was_up = True
        history.told = history.loss = ""

    def expect_loss(self, name: PeerName, reason: str) -> None:
        """Note why a connection ends, before it is known whether that is a loss."""
        self.of(name).loss = reason

    def note_lost(self, name: PeerName, reason: str) -> None:
        """Tell that a connection is lost: for the reason that was expected, else for this one."""
        history = self.of(name)
        text, history.loss = history.loss or reason, ""
        if not history.is_up:
            return
        history.is_up, history.lost_ns = False, self._now_ns()
        self._note_error(history, text)
        self._log.info("%s: connection to %s lost: %s", name.local, name.peer, text)
        self._tell(PeerEventKind.LOST, name, text)

    def forget(self, name: PeerName) -> None:
        """Forget an evicted peer; its connection, if it has one, ends."""
        if name in self._histories:
            self.note_lost(name, "evicted, idle for longest: there are too many peers")
            del self._histories[name]

    # -- peers

    def note_refused(self, name: PeerName, reason: str) -> None:
        """Tell that a connection of the peer was refused here; the caller has logged it."""
        self._tell(PeerEventKind.REFUSED, name, reason)

    def note_restarted(self, name: PeerName) -> None:
        """Tell that the peer restarted."""
        self._log.info("%s restarted", name.peer)
        self._tell(PeerEventKind.RESTARTED, name)

    def note_given_up(self, name: PeerName, reason: str) -> None:
        """Tell that messages were dropped; the caller has logged it."""
        self._tell(PeerEventKind.GIVEN_UP, name, reason)

    def _note_error(self, history: PeerHistory, text: str) -> None:
        history.error, history.error_ns = text, self._now_ns()

    def _tell(self, kind: PeerEventKind, name: PeerName, reason: str = "") -> None:
        history = self._histories.get(name)
        carrier = self._carrier if history is None else history.carrier
        self._on_event(
            PeerEvent(kind, name.local, name.peer, carrier, name.tos, reason, time.time_ns())
        )


def describe(number: int) -> str:
    """Return an errno of connecting in words, with what it means there."""
    text = os.strerror(number)
    hint = _HINTS.get(number)
    return f"{text}: {hint}" if hint else text
