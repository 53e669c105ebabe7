"""Which side connects, and when: the attempts to get a stream for each path of one peer.

The lower address connects for data. The higher one *requests a call-back*: it opens a connection
that carries nothing, which the lower side rejects and takes as a request to connect. Both sides
reconnect a lost path, at once and then with back-off. Linux leaves that to the lower side, and a
higher one requests a call-back with its next message only; here it does so without one, since the
message before may wait for a peer that restarted and knows nothing of this node. Where no message
waits, the back-off grows further: a server need not call departed clients every second. The first
frame on a new stream resets it, not TCP's handshake: TCP accepts before RDS does, and a peer that
closes at once would get thousands of attempts a second.

The lower side opens paths 1 and up, and only while path 0 is *confirmed*: the peer showed on its
stream that it knows this node. So a peer that restarted sees path 0 first. Source:
docs/reference/rds.md 2.1, 2.2, 2.4, 2.5 (linux v6.12, v7.0 net/rds/tcp_listen.c, threads.c);
docs/reference/linux-peer-notes.md 3 rules 1 and 2 (observed with linux v6.1, v6.12, v7.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from urds.rds.control.events import Connect, GiveUp, ProbeDeadStream, RequestCallBack
from urds.rds.control.paths import SourcePortRule
from urds.rds.control.reconnect import ATTEMPT_GAP_NS
from urds.rds.control.state import PathInput, PathState
from urds.rds.control.tcp_path import PeerContext, TcpPath

_CALL_BACK_NS: Final = 20_000_000  # the lower side has this time before the next call-back request


class Connector:
    """The attempts for the paths of one peer, which it does not change in number."""

    __slots__ = ("_call_back_requested_ns", "_context", "_paths")

    def __init__(self, context: PeerContext, paths: Sequence[TcpPath]) -> None:
        self._context = context
        self._paths = paths
        self._call_back_requested_ns = -ATTEMPT_GAP_NS  # by the peer

    # -- when

    def want(self, path: TcpPath, now_ns: int) -> None:
        """Connect because messages wait."""
        if path.search.want(now_ns):
            self.retry_now(path, now_ns)

    def retry_now(self, path: TcpPath, now_ns: int) -> None:
        """Connect without back-off, unless an attempt is under way."""
        if path.state in (PathState.DOWN, PathState.WAITING):
            path.move(PathInput.RECONNECT)
            if path.search.retry_now(now_ns):
                self._attempt(path, now_ns)

    def retry_later(self, path: TcpPath, now_ns: int) -> None:
        """Connect after the back-off's delay."""
        path.move(PathInput.RECONNECT)
        extra_ns = 0 if self._context.lower else _CALL_BACK_NS
        if path.search.retry_later(now_ns, extra_ns=extra_ns):
            self._attempt(path, now_ns)

    def handle_due(self, path: TcpPath, now_ns: int) -> None:
        """Make the attempt of the timer."""
        if path.search.is_due(now_ns):
            self._attempt(path, now_ns)

    def open_paths(self, now_ns: int) -> None:
        """Let the other paths connect: path 0 is confirmed."""
        for path in self._paths[1:]:
            self.retry_now(path, now_ns)

    def give_up(self, path: TcpPath, now_ns: int) -> None:
        """Stop the attempts; the next message starts anew."""
        self._context.stats.gave_up += 1
        self._context.emit(GiveUp(self._context.peer, path.index, path.search.give_up(now_ns)))
        path.move(PathInput.GIVE_UP)

    # -- attempts

    def _attempt(self, path: TcpPath, now_ns: int) -> None:
        if not self._context.lower:
            self._request_call_back(path, now_ns)
        elif not path.index or self._paths[0].confirmed:
            self._connect(path, now_ns)
        elif self._paths[0].state is PathState.DOWN:
            # This path stays WAITING without a timer, until path 0 is confirmed.
            self.retry_now(self._paths[0], now_ns)

    def _connect(self, path: TcpPath, now_ns: int) -> None:
        path.move(PathInput.CONNECT)
        path.search.begin_attempt(now_ns)
        path.connects += 1
        self._context.stats.connects += 1
        rule = SourcePortRule(path.index, path.connects)
        self._context.emit(Connect(self._context.peer, path.index, rule))

    def _request_call_back(self, path: TcpPath, now_ns: int) -> None:
        """Ask the peer to connect; one call-back request serves all paths."""
        requested = any(other.state is PathState.CALL_BACK_REQUESTED for other in self._paths)
        path.move(PathInput.REQUEST_CALL_BACK)
        path.search.begin_attempt(now_ns)
        if not requested:
            self._context.stats.call_back_requests += 1
            self._context.emit(RequestCallBack(self._context.peer))

    def end_attempt(self, path: TcpPath | None, now_ns: int) -> None:
        """Note an attempt without a stream. The path may have been given up, or closed, since."""
        if not self._context.lower:
            self.end_call_back_request(now_ns)
        elif path is not None and path.state is PathState.CONNECTING:
            path.move(PathInput.ANSWERED)
            if path.search.is_active:
                self.retry_later(path, now_ns)

    def end_call_back_request(self, now_ns: int) -> None:
        """Note that a call-back request was answered; the next one has its delay."""
        for path in self._paths:
            if path.state is PathState.CALL_BACK_REQUESTED:
                path.move(PathInput.ANSWERED)
                self.retry_later(path, now_ns)

    # -- the other side

    def handle_call_back_request(self, now_ns: int) -> None:
        """Connect what is down, and probe what seems up.

        A peer that requests a call-back has no stream. The stream here is then dead at the other
        end, and would seem up until keepalive ends it.
        """
        self._context.stats.call_back_requests_received += 1
        if now_ns < self._call_back_requested_ns + ATTEMPT_GAP_NS:
            return
        self._call_back_requested_ns = now_ns
        for path in self._paths:
            if path.stream is None:
                path.search.reset_backoff(span_ns=ATTEMPT_GAP_NS)
                self.retry_now(path, now_ns)
            else:
                self.probe_dead_stream(path)

    def probe_dead_stream(self, path: TcpPath) -> None:
        """Have a stream end that is dead at the other end."""
        self._context.stats.dead_stream_probes += 1
        self._context.emit(ProbeDeadStream(self._context.peer, path.index))
