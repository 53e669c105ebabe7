"""What a link carries: octets between a stream core and its queue pair.

Calls of the application take the adapter's lock, change the core, and post what it has to say;
completions come in through the opening. Nothing here waits. The life of a link is in `link`.
"""

import errno
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import Enum, auto
from functools import partial
from typing import NamedTuple

from urds.errors import RemoteProtocolError
from urds.rsocket.opening import Opening
from urds.rsocket.stream import Post, Shut, Stream, StreamSettings
from urds.verbs.engine.numbers import QPState, WCOpcode, WCStatus, WROpcode
from urds.verbs.engine.queue_pair import QueuePair
from urds.verbs.engine.requests import Request
from urds.verbs.engine.work import WC, SendWR
from urds.verbs.providers.base import Address


class LinkState(Enum):
    """The life of a link. OVER is where it stays."""

    IDLE = auto()
    CONNECTING = auto()
    CONNECTED = auto()
    OVER = auto()


class Readiness(NamedTuple):
    """What poll would say: POLLIN, POLLOUT, POLLHUP, POLLERR."""

    readable: bool
    writable: bool
    hung_up: bool
    failed: bool


class LinkData(ABC):
    """The carrying half of a link."""

    def __init__(self, openings: Sequence[Opening], settings: StreamSettings) -> None:
        self.openings = list(openings)
        self.opening = self.openings[0]
        self.settings = settings
        self.state = LinkState.IDLE
        self.error = 0
        self.reason = ""  # of the end, for people
        self.local: Address | None = None
        self.peer: Address | None = None
        self.on_change: Callable[[], None] | None = None
        self.stream: Stream | None = None
        self._qp: QueuePair | None = None
        self._borrowed: list[tuple[Request, Post]] = []
        self._early: list[int] = []  # words of the peer before its offer

    # -- data

    def send(self, data: memoryview, *, may_borrow: bool = True) -> int:
        """Take octets to send and return how many: 0 if there is no room. Never waits.

        From 16 KiB up octets are written from the caller's memory, which is his again on return.
        Raises OSError: ECONNRESET, ENOTCONN.
        """
        with self.opening.adapter.lock:
            stream = self._connected()
            taken = stream.send(data, may_borrow=may_borrow)
            self._carry(stream)  # what gathered before may go even if nothing was taken
            return taken

    def receive_into(self, view: memoryview, *, peek: bool = False) -> int:
        """Copy octets that are there and return how many: 0 for none, or at the end. Never waits.

        Raises OSError: ENOTCONN; what broke the connection, once all that arrived was taken.
        """
        with self.opening.adapter.lock:
            stream = self._connected()
            taken = stream.receive_into(view, peek=peek)
            if taken:
                self._carry(stream)
            elif len(view):
                self._check_whole(stream)
            return taken

    def receive(self, byte_count_max: int, *, peek: bool = False) -> bytes:
        """Return octets that are there, in one copy; otherwise as `receive_into`."""
        with self.opening.adapter.lock:
            stream = self._connected()
            octets = stream.receive(byte_count_max, peek=peek)
            if octets:
                self._carry(stream)
            elif byte_count_max:
                self._check_whole(stream)
            return octets

    def _check_whole(self, stream: Stream) -> None:
        """Raise OSError if the connection broke and nothing is left of what arrived."""
        if stream.error and not stream.readable_bytes:
            raise OSError(stream.take_error(), self.reason or "the connection is broken")

    def shut_down(self, how: Shut) -> None:
        """End one direction or both. Raises OSError: ENOTCONN."""
        with self.opening.adapter.lock:
            stream = self._connected()
            stream.shut_down(how)
            self._carry(stream)
            self._tell()

    def carry(self) -> None:
        """Post what calls to `stream` gave it to say. Lock held."""
        if self.stream is not None:
            self._carry(self.stream)

    def _connected(self) -> Stream:
        stream = self.stream
        if self.opening.is_abandoned:
            raise OSError(errno.EBADF, "the socket belongs to the parent of this process")
        if stream is None or self.state in (LinkState.IDLE, LinkState.CONNECTING):
            raise OSError(errno.ENOTCONN, f"the socket is not connected ({self.state.name})")
        return stream

    def _carry(self, stream: Stream) -> None:
        qp = self._qp
        if qp is None or qp.state is not QPState.RTS or self.state is LinkState.CONNECTING:
            return
        posted = False
        while (post := stream.poll_transmit()) is not None:
            self._post(qp, post)
            posted = True
        if not posted:
            return
        self.opening.adapter.kick(qp)
        if self._borrowed:
            for request, post in self._borrowed:
                stream.stats.octets_copied_in += request.detach()
                post.octets = b""
            self._borrowed.clear()

    def _post(self, qp: QueuePair, post: Post) -> None:
        wr = SendWR(
            0,
            WROpcode.RDMA_WRITE if post.word is None else WROpcode.RDMA_WRITE_WITH_IMM,
            imm_data=post.word or 0,
            remote_addr=post.address,
            rkey=post.rkey,
            octets=post.octets,
        )
        request = qp.post_send(wr, 0)  # only datagrams and timers look at the time
        if post.is_borrowed and request is not None:
            self._borrowed.append((request, post))

    # -- readiness

    def readiness(self) -> Readiness:
        """Tell what may be done without waiting. Safe without the lock."""
        stream = self.stream
        if self.state is LinkState.CONNECTING or self.state is LinkState.IDLE:
            return Readiness(False, False, self.state is LinkState.IDLE, False)
        if stream is None:
            return Readiness(True, True, True, bool(self.error))
        failed = bool(stream.error or self.error)
        is_over = self.state is LinkState.OVER
        return Readiness(
            stream.is_readable or is_over or failed,
            stream.is_writable or is_over or failed,
            is_over or not (stream.can_read or stream.can_write),
            failed,
        )

    @property
    def is_ended(self) -> bool:
        """Return whether no more octets will come and all were taken."""
        return self.stream is None or self.stream.is_ended

    def take_error(self) -> int:
        """Return the errno of what went wrong and forget it: SO_ERROR."""
        with self.opening.adapter.lock:
            error, self.error = self.error, 0
            if not error and self.stream is not None:
                error = self.stream.take_error()
            return error

    def _tell(self) -> None:
        if self.on_change is not None:
            self.on_change()

    # -- what the device says; lock held

    def handle_received(self, wc: WC) -> None:
        """Take the completion of a receive."""
        stream = self.stream
        if stream is None or wc.status is not WCStatus.SUCCESS:
            return  # the connection tells
        if wc.opcode is not WCOpcode.RECV_RDMA_WITH_IMM:
            self._spoil(f"{wc.opcode.name} where a write with immediate data was due")
            return
        if not stream.is_connected:
            # The peer may be there first: its words wait until the event brings its offer.
            if len(self._early) == self.settings.receive_queue:
                self._spoil("more words before the offer than there are credits")
                return
            self._early.append(wc.imm_data)
            return
        self._take_word(stream, wc.imm_data)

    def _take_word(self, stream: Stream, word: int) -> None:
        try:
            stream.receive_data(word)
        except RemoteProtocolError as error:
            self._spoil(str(error))

    def handle_sent(self, wc: WC) -> None:
        """Take the completion of a request."""
        stream = self.stream
        if stream is None:
            return
        if wc.status is WCStatus.SUCCESS:
            stream.handle_sent()
        elif wc.status is not WCStatus.WR_FLUSH_ERR:
            self._spoil(f"a write failed: {wc.status.name}")

    def _spoil(self, reason: str) -> None:
        """Note that the link is to be cut: inside the engine nothing can be."""
        self.opening.adapter.call_soon(partial(self.cut, reason))

    @abstractmethod
    def cut(self, reason: str) -> None:
        """Break the connection off: the peer broke the protocol. Lock held, outside the engine."""
