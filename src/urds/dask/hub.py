"""All sessions of one socket: which packet is whose, which peer may open one. A value machine.

A packet for a session that is not here is answered with RESET, so that a peer whose session was
lost with a process learns it as soon as it says anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, TypeAlias

from urds.common.errors import WireError
from urds.dask import wire
from urds.dask.session import Limits, Packet, Session
from urds.dask.stream import Allocate
from urds.dask.wire import Header, Hello, Kind

Address: TypeAlias = "tuple[str, int]"
SESSIONS_MAX: Final = 1 << 16
_ANSWERS_MAX: Final = 1024  # RESETs that wait to be sent; a peer asks again
_ANSWERED: Final = frozenset({Kind.OPEN, Kind.ACCEPT, Kind.DATA, Kind.PING})


class Hub:
    """The sessions of one socket, by peer, number and end."""

    def __init__(
        self,
        *,
        limits: Limits,
        hello: Hello,
        allocate: Allocate = bytearray,
        sessions_max: int = SESSIONS_MAX,
    ) -> None:
        self.limits, self.hello, self._allocate = limits, hello, allocate
        self.sessions_max = sessions_max
        self.is_listening = False
        self._sessions: dict[tuple[Address, int, bool], Session] = {}
        self._accepted: deque[tuple[Address, Session]] = deque()
        self._answers: deque[tuple[Address, Packet]] = deque()

    def __len__(self) -> int:
        """Count the sessions."""
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        """Iterate over a copy of the sessions."""
        return iter(tuple(self._sessions.values()))

    def open(self, peer: Address, session_id: int, now_ns: int) -> Session:
        """Ask a peer for a session; `session_id` is 64 random bits. Raises ValueError if taken."""
        key = (peer, session_id, False)
        if key in self._sessions or len(self._sessions) >= self.sessions_max:
            raise ValueError(f"session {session_id:#x} exists, or there are {len(self)}")
        session = Session(
            session_id,
            limits=self.limits,
            hello=self.hello,
            now_ns=now_ns,
            allocate=self._allocate,
        )
        self._sessions[key] = session
        return session

    def forget(self, peer: Address, session: Session) -> None:
        """Remove a session that is over."""
        self._sessions.pop((peer, session.session_id, session.is_acceptor), None)

    def has_others(self, peer: Address, session: Session) -> bool:
        """Tell whether another session with a peer is here."""
        return any(key[0] == peer and other is not session for key, other in self._sessions.items())

    def handle(self, payload: bytes, peer: Address, now_ns: int) -> Session | None:
        """Take a packet; return the session that it concerned, a new one too.

        Then poll what that has to send, `poll_accepted` and `poll_answer`. What is no packet is
        dropped: anything can reach a port.
        """
        try:
            header = wire.parse_header(payload)
        except WireError:
            return None
        body = memoryview(payload)[wire.HEADER_BYTES :]
        session = self._sessions.get((peer, header.session_id, not header.from_acceptor))
        if session is not None:
            session.handle(header, body, now_ns)
        elif header.kind is Kind.OPEN and not header.from_acceptor:
            return self._accept(header, body, peer, now_ns)
        elif header.kind in _ANSWERED:
            self._refuse(header, peer)
        return session

    def poll_accepted(self) -> tuple[Address, Session] | None:
        """Return the next session that a peer opened, with its peer."""
        return self._accepted.popleft() if self._accepted else None

    def poll_answer(self) -> tuple[Address, Packet] | None:
        """Return the next packet that belongs to no session, with its peer."""
        return self._answers.popleft() if self._answers else None

    def handle_time(self, now_ns: int) -> None:
        """Tell every session the time."""
        for session in self:
            session.handle_time(now_ns)

    def deadline_ns(self) -> int | None:
        """Return when `handle_time` is due, None without a session."""
        times = (session.deadline_ns for session in self._sessions.values())
        return min((one for one in times if one is not None), default=None)

    def _accept(
        self, header: Header, body: memoryview, peer: Address, now_ns: int
    ) -> Session | None:
        if not self.is_listening or len(self._sessions) >= self.sessions_max:
            self._refuse(header, peer)
            return None
        try:
            peer_hello = wire.parse_hello(body)
        except WireError:
            self._refuse(header, peer)
            return None
        session = Session(
            header.session_id,
            limits=self.limits,
            hello=self.hello,
            now_ns=now_ns,
            peer_hello=peer_hello,
            allocate=self._allocate,
        )
        self._sessions[peer, header.session_id, True] = session
        self._accepted.append((peer, session))
        return session

    def _refuse(self, header: Header, peer: Address) -> None:
        if len(self._answers) < _ANSWERS_MAX:
            answer = Header(Kind.RESET, header.session_id, 0, not header.from_acceptor)
            self._answers.append((peer, [wire.emit_header(answer)]))
