"""One end of a session: a value machine. Packets, calls and `now_ns` go in, packets come out.

What carries the packets loses none while both processes live, keeps their order, and says nothing
of a peer that is gone. So a session opens with a packet that is repeated until it is answered, ends
with FINISH or RESET, and of its own accord after several unanswered pings, unless the peer is
watched by other means (`handle_peer_gone`).

Credit: an end sends at most `window_bytes` that the peer has not given back. The peer gives back
what it has put into a message, read or not, as long as no more than a window of whole messages
waits to be read. So one message of any length gets through without a reader, and a reader that
stops holds one window and the message after it, whatever comes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import Final

from urds.common.errors import LocalProtocolError, RemoteProtocolError, WireError
from urds.common.records import record
from urds.dask import wire
from urds.dask.stream import Allocate, Cutter, Filler
from urds.dask.wire import Header, Hello, Kind

_MS: Final = 1_000_000
Packet = list[bytes | memoryview]


@record(kw_only=True)
class Limits:
    """The numbers of a session; those of the peer may differ."""

    window_bytes: int = 8 << 20
    fragment_bytes: int = 256 << 10  # of a packet, at most a quarter of the window
    message_bytes_max: int = 1 << 40  # a claim beyond it ends the session
    open_again_ns: int = 50 * _MS  # first wait for an answer; it doubles
    open_again_ns_max: int = 200 * _MS
    ping_ns: int = 6_000 * _MS  # of silence before a ping, and between two
    pings_max: int = 4  # unanswered ones end the session

    def __post_init__(self) -> None:
        """Check what belongs together. Raises ValueError."""
        if not 0 < self.fragment_bytes <= self.window_bytes // 4:
            raise ValueError(
                f"fragment of {self.fragment_bytes} bytes: from 1 to a quarter of the window,"
                f" {self.window_bytes // 4}"
            )


class State(Enum):
    """How far a session is."""

    ASKING = "asking"  # asked for, not answered
    OPEN = "open"
    FINISHING = "finishing"  # what is queued still goes, then FINISH
    OVER = "over"  # here; `reason` tells why


class Session:
    """One end. Not for several threads.

    After each call, `poll_packet` until None and look at `deadline_ns`.
    """

    def __init__(
        self,
        session_id: int,
        *,
        limits: Limits,
        hello: Hello,
        now_ns: int,
        peer_hello: Hello | None = None,
        allocate: Allocate = bytearray,
    ) -> None:
        """Ask for a session, or accept the one that `peer_hello` asked for."""
        self.session_id, self.limits, self.hello = session_id, limits, hello
        self.is_acceptor = peer_hello is not None
        self.peer_hello = peer_hello
        self.state = State.ASKING
        self.reason = ""
        self.peer_is_watched = False  # its death will be told: pings end nothing
        self._control: deque[tuple[Kind, bytes]] = deque()
        self._sequence = self._peer_sequence = 0  # of the last packet
        # Out
        self._messages: deque[Cutter] = deque()
        self._queued = self._sent = 0  # messages, since the beginning
        self._credit_bytes = 0
        # In
        self._filler = Filler(allocate, message_bytes_max=limits.message_bytes_max)
        self._inbox: deque[tuple[list[memoryview], int]] = deque()
        self._inbox_bytes = 0
        self._receivable_bytes = limits.window_bytes  # what the peer may still send
        self._returnable_bytes = self._withheld_bytes = 0
        # Time
        self._heard_ns = now_ns
        self._pings = 0
        self._again_ns = limits.open_again_ns
        self.deadline_ns: int | None = None
        if peer_hello is None:
            self._ask(now_ns)
        else:
            self._begin(peer_hello, now_ns)
            self._control.append((Kind.ACCEPT, wire.emit_hello(hello)))

    # -- what a program does

    def send(self, frames: Sequence[memoryview]) -> int:
        """Queue a message; return its number, for `is_sent`. The buffers must stay until then.

        Raises LocalProtocolError unless the session is open, ValueError for too many frames.
        """
        if not self.is_writable:
            raise LocalProtocolError(f"a session that is {self.state.value} takes no message")
        self._messages.append(Cutter(frames))
        self._queued += 1
        return self._queued

    def is_sent(self, number: int) -> bool:
        """Tell whether all packets of a message were polled."""
        return self._sent >= number

    def receive(self) -> list[memoryview] | None:
        """Take the next whole message, None if there is none."""
        if not self._inbox:
            return None
        frames, message_bytes = self._inbox.popleft()
        self._inbox_bytes -= message_bytes
        self._give_back(0)
        return frames

    def finish(self) -> None:
        """Let what is queued leave, then end the session. Idempotent."""
        if self.state is State.ASKING:
            self.abort("closed before it was open")
        elif self.state is State.OPEN:
            self.state, self.reason = State.FINISHING, "closed here"

    def abort(self, reason: str = "aborted here") -> None:
        """End the session at once, and tell the peer. What was not read is dropped. Idempotent."""
        self._inbox.clear()
        self._inbox_bytes = 0
        self._end(reason, tell=True)

    # -- what happens to it

    def handle(self, header: Header, body: memoryview, now_ns: int) -> None:
        """Take a packet of the peer. A packet that breaks the protocol ends the session."""
        if self.state is State.OVER:
            return
        self._heard_ns, self._pings = now_ns, 0
        try:
            self._handle(header, body, now_ns)
        except (RemoteProtocolError, WireError, MemoryError) as problem:
            self._end(f"{type(problem).__name__}: {problem}", tell=True)

    def handle_time(self, now_ns: int) -> None:
        """Do what is due: ask again, ping, give up."""
        if self.deadline_ns is None or now_ns < self.deadline_ns:
            return
        if self.state is State.ASKING:
            self._ask(now_ns)
        elif now_ns < self._heard_ns + self.limits.ping_ns and not self._pings:
            self.deadline_ns = self._heard_ns + self.limits.ping_ns
        elif self._pings >= self.limits.pings_max and not self.peer_is_watched:
            silent_s = (now_ns - self._heard_ns) / 1e9
            self._end(f"the peer was silent for {silent_s:.0f} s", tell=True)
        else:
            # Each is counted by a timer of this process: one that was stopped itself, and finds
            # a clock that has moved on, sends a ping and waits for its answer.
            self._pings += 1
            self._control.append((Kind.PING, b""))
            self.deadline_ns = now_ns + self.limits.ping_ns

    def handle_peer_gone(self, reason: str) -> None:
        """Take note that the peer is not there any more. What has arrived can still be read."""
        self._end(reason, tell=False)

    # -- what comes out

    def poll_packet(self) -> Packet | None:
        """Return the buffers of the next packet to send, None when there is none for now."""
        if self._control:
            kind, body = self._control.popleft()
            return [self._header(kind), body]
        if self.state is State.OVER or self.state is State.ASKING:
            return None
        if self._returnable_bytes >= self.limits.window_bytes // 4:
            returned, self._returnable_bytes = self._returnable_bytes, 0
            self._receivable_bytes += returned
            return [self._header(Kind.CREDIT), wire.emit_credit(returned)]
        if self._messages:
            return self._poll_data()
        if self.state is State.FINISHING:
            self._end(self.reason, tell=False)
            return [self._header(Kind.FINISH)]
        return None

    def _poll_data(self) -> Packet | None:
        payload_bytes_max = min(self.limits.fragment_bytes, self._credit_bytes)
        if not payload_bytes_max:
            return None
        packet: Packet = [self._header(Kind.DATA)]
        while self._messages and payload_bytes_max:
            message = self._messages[0]
            before = message.bytes_left
            packet += message.take(payload_bytes_max)
            taken = before - message.bytes_left
            payload_bytes_max -= taken
            self._credit_bytes -= taken
            if message.bytes_left:
                break
            self._messages.popleft()
            self._sent += 1
        return packet

    def _header(self, kind: Kind) -> bytes:
        if kind not in (Kind.OPEN, Kind.ACCEPT):
            self._sequence += 1
        sequence = 0 if kind in (Kind.OPEN, Kind.ACCEPT) else self._sequence
        return wire.emit_header(Header(kind, self.session_id, sequence, self.is_acceptor))

    # -- how it is

    @property
    def is_writable(self) -> bool:
        """Tell whether a message may be queued."""
        return self.state is State.OPEN

    @property
    def is_over(self) -> bool:
        """Tell whether nothing will arrive or leave any more; messages may be left to read."""
        return self.state is State.OVER

    @property
    def is_closed(self) -> bool:
        """Tell whether it is over, or finished here, and all that arrived was read."""
        return self.state in (State.OVER, State.FINISHING) and not self._inbox

    @property
    def unread_bytes(self) -> int:
        """Return how many bytes of whole messages wait for `receive`."""
        return self._inbox_bytes

    # -- inside

    def _ask(self, now_ns: int) -> None:
        self._control.append((Kind.OPEN, wire.emit_hello(self.hello)))
        self.deadline_ns = now_ns + self._again_ns
        self._again_ns = min(2 * self._again_ns, self.limits.open_again_ns_max)

    def _begin(self, peer_hello: Hello, now_ns: int) -> None:
        self.peer_hello = peer_hello
        self.state = State.OPEN
        self._credit_bytes = peer_hello.window_bytes
        self.deadline_ns = now_ns + self.limits.ping_ns

    def _handle(self, header: Header, body: memoryview, now_ns: int) -> None:
        kind = header.kind
        if kind is Kind.OPEN:
            return  # asked again before the answer came; that is on its way
        if kind is Kind.ACCEPT:
            if self.state is State.ASKING:
                self._begin(wire.parse_hello(body), now_ns)
            return
        if kind is Kind.RESET:
            refused = self.state is State.ASKING
            self._end("refused by the peer" if refused else "reset by the peer", tell=False)
            return
        if self.state is State.ASKING:
            raise RemoteProtocolError(f"{kind.name} before ACCEPT")
        self._peer_sequence += 1
        if header.sequence != self._peer_sequence & 0xFFFF_FFFF:
            raise RemoteProtocolError(
                f"packet {header.sequence} in place of {self._peer_sequence}: one was lost"
            )
        if kind is Kind.DATA:
            self._handle_data(body)
        elif kind is Kind.CREDIT:
            self._credit_bytes += wire.parse_credit(body)
        elif kind is Kind.PING:
            self._control.append((Kind.PONG, b""))
        elif kind is Kind.FINISH:
            if not self._filler.is_between:
                raise RemoteProtocolError("finished within a message")
            self._end("closed by the peer", tell=False)

    def _handle_data(self, body: memoryview) -> None:
        self._receivable_bytes -= len(body)
        if self._receivable_bytes < 0:
            raise RemoteProtocolError("more bytes than the window has")
        for frames in self._filler.feed(body):
            message_bytes = sum(map(len, frames))
            self._inbox.append((frames, message_bytes))
            self._inbox_bytes += message_bytes
        self._give_back(len(body))

    def _give_back(self, payload_bytes: int) -> None:
        self._withheld_bytes += payload_bytes
        if self._inbox_bytes <= self.limits.window_bytes:
            self._returnable_bytes += self._withheld_bytes
            self._withheld_bytes = 0

    def _end(self, reason: str, *, tell: bool) -> None:
        if self.state is State.OVER:
            return
        self.state, self.reason = State.OVER, reason
        self._control.clear()
        self._messages.clear()
        self.deadline_ns = None
        if tell:
            self._control.append((Kind.RESET, b""))
