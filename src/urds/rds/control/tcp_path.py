"""One path over TCP: its state, its search for a stream, and what is known of its stream.

`PeerContext` is what all paths of one peer share, and what its local address gives to all peers.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from urds.common.records import record
from urds.common.types import IPAddress
from urds.rds.control.events import PeerAction, Reason, Refused
from urds.rds.control.pending import PendingConnections
from urds.rds.control.reconnect import Quarantine, Reconnector
from urds.rds.control.settings import ConnectionSettings
from urds.rds.control.state import (
    ConnectionReport,
    ConnectionState,
    PathInput,
    PathState,
    next_state,
)
from urds.rds.control.stats import Stats
from urds.rds.control.timers import OwnTimers, TimerKind, Timers

if TYPE_CHECKING:
    from random import Random


@record(kw_only=True, eq=False)
class PeerContext:
    """What the parts of one peer's control state share."""

    peer: IPAddress
    lower: bool  # whether this side connects
    settings: ConnectionSettings
    stats: Stats
    actions: deque[PeerAction]
    timers: Timers
    pending: PendingConnections
    quarantine: Quarantine
    random: Random

    def emit(self, action: PeerAction) -> None:
        """Ask an action of the driver, or give it notice."""
        self.actions.append(action)

    def refused(self, reason: Reason) -> None:
        """Count and tell that a stream was refused."""
        self.stats.count_refused(reason)
        self.emit(Refused(self.peer, reason))

    def new_path(self, index: int) -> TcpPath:
        """Make a path that has no stream."""
        timers = OwnTimers(self.timers, self.peer, index)
        search = Reconnector(
            self.settings,
            self.peer,
            timers=timers,
            quarantine=self.quarantine,
            random=self.random,
        )
        return TcpPath(index, timers, search)


@record(frozen=False, eq=False)
class TcpPath:
    """What is known of one path."""

    index: int
    timers: OwnTimers
    search: Reconnector
    state: PathState = PathState.DOWN
    connects: int = 0  # attempts of this side to connect
    attachment: int = 0  # streams so far
    since_ns: int | None = None  # when its stream came, came up, or was lost
    generation_told: bool = False  # a map of the peer told one: no kernel's does
    # Left of the wait for a probe's answer; None: all of it. Streams that are cut again and again
    # share one wait, or a kernel whose answers never come would stay unknown, and free nothing.
    wait_left_ns: int | None = None
    # Of the current stream:
    stream: int | None = None
    source_port: int = 0  # the peer's; 0 where this side connected
    hello_sent: bool = False
    probe_sent: bool = False
    held: bool = False  # until `Release`
    # The stream itself shows that the peer is a urds node, of whatever generation.
    is_urds: bool = False
    acquainted: bool = False  # the peer was known as a urds node when the stream began
    confirmed: bool = False  # the peer showed on this stream that it knows this node
    answered: bool = False  # an answer to a handshake of this side has come

    def move(self, event: PathInput) -> None:
        """Change the state by the table. Raises LocalProtocolError for a missing transition."""
        self.state = next_state(self.state, event)

    def report(self) -> ConnectionReport:
        """Tell how the path is."""
        state = ConnectionState.DOWN
        if self.state is PathState.UP:
            state = ConnectionState.UP
        elif self.state is PathState.ATTACHED:
            state = ConnectionState.SILENT
        return self.search.report(state, self.since_ns)

    def begin_stream(self, stream: int, source_port: int, *, is_urds: bool, now_ns: int) -> None:
        """Take a stream; what the last one taught about its end is void."""
        self.move(PathInput.ATTACH)
        self.attachment += 1
        self.since_ns = now_ns
        self.stream, self.source_port, self.is_urds = stream, source_port, is_urds
        self.hello_sent = self.probe_sent = self.held = False
        self.acquainted = self.confirmed = self.answered = False

    def await_answer(self, wait_ns: int, now_ns: int) -> None:
        """Set when the peer counts as silent: in `wait_ns`, or what earlier streams left of it."""
        if self.wait_left_ns is not None:
            wait_ns = self.wait_left_ns
        self.timers.set(TimerKind.ANSWER, now_ns + wait_ns)

    def suspend_wait(self, now_ns: int) -> None:
        """Stop the wait for an answer: the stream ends. A urds node gets all of it again."""
        deadline_ns = self.timers.get(TimerKind.ANSWER)
        if deadline_ns is not None and not (self.acquainted or self.generation_told):
            self.wait_left_ns = max(0, deadline_ns - now_ns)
        self.timers.cancel(TimerKind.ANSWER)

    def end_wait(self) -> None:
        """Wait no more: the peer answered, or was silent to the end."""
        self.wait_left_ns = None
        self.timers.cancel(TimerKind.ANSWER)

    def end_stream(self, now_ns: int) -> None:
        """Forget the stream: it is gone."""
        self.move(PathInput.LOSE)
        self.since_ns = now_ns
        self.stream = None
        self.held = self.confirmed = False
