"""The two ends that `benches.verbs` measures: a queue pair, or a plain stream socket.

An end sends and receives messages of one size at a time; the first byte tells the other side
whether more come. Both kinds have the same three calls, so the same loops measure them.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from urds import verbs
from urds.verbs.cm_parameters import RAI_PASSIVE, AddrInfo, ConnParam
from urds.verbs.cmid import CMID

SIZE_MAX: Final = 16 << 20
DEPTH_MAX: Final = 64  # messages under way
_UNDER_WAY_BYTES: Final = 32 << 20
_STRIDE: Final = 64  # bytes of a receive that are its own; the rest is one place for all
MORE: Final = 1
LAST: Final = 0


class End(Protocol):
    """One side."""

    def prepare(self, size_bytes: int) -> None:
        """Get ready for messages of this size; nothing is under way."""

    def send(self, first: int = MORE) -> None:
        """Send a message whose first byte is `first`; waits while too many are under way."""

    def flush(self) -> None:
        """Wait until everything sent has left this side."""

    def receive(self) -> int:
        """Wait for a message and return its first byte."""


class StreamEnd:
    """A stream socket, TCP or AF_UNIX: what a Python program would use without any of this."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        if sock.family == socket.AF_INET:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._out = {first: memoryview(bytearray([first]) * SIZE_MAX) for first in (MORE, LAST)}
        self._in = memoryview(bytearray(SIZE_MAX))
        self._size_bytes = 0

    def prepare(self, size_bytes: int) -> None:
        """Get ready for messages of this size."""
        self._size_bytes = size_bytes

    def send(self, first: int = MORE) -> None:
        """Send a message."""
        self._socket.sendall(self._out[first][: self._size_bytes])

    def flush(self) -> None:
        """Do nothing: `sendall` has waited."""

    def receive(self) -> int:
        """Wait for a message and return its first byte."""
        place = self._in[: self._size_bytes]
        while place:
            count = self._socket.recv_into(place)
            if not count:
                raise ConnectionError("the other side is gone")
            place = place[count:]
        return self._in[0]

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class VerbsEnd:
    """A reliable queue pair with completion queues of its own."""

    def __init__(self, identifier: CMID) -> None:
        context = identifier.context
        assert identifier.qp is not None, "made with one"
        self.identifier = identifier
        self.qp = identifier.qp
        self.scq, self.rcq = self.qp.init_attr.scq, self.qp.init_attr.rcq
        access = verbs.AccessFlag.LOCAL_WRITE | verbs.AccessFlag.REMOTE_WRITE
        pd = identifier.pd
        self._out = {
            first: verbs.MR(pd, context.adapter.allocate(SIZE_MAX), access)
            for first in (MORE, LAST)
        }
        for first, region in self._out.items():
            region.view[0] = first
        room = SIZE_MAX + DEPTH_MAX * _STRIDE
        self.place = verbs.MR(pd, context.adapter.allocate(room), access)
        self._size_bytes = self._depth = self._under_way = self._posted = 0

    def prepare(self, size_bytes: int) -> None:
        """Get ready for messages of this size, receives included."""
        assert self._under_way == 0, f"{self._under_way} messages are under way"
        self._size_bytes = size_bytes
        self._depth = max(2, min(DEPTH_MAX, _UNDER_WAY_BYTES // size_bytes))
        while self._posted < DEPTH_MAX:
            self._post_receive(self._posted)

    def _post_receive(self, slot: int) -> None:
        # Each receive has room for any size. Of what it gets only the first byte is read, so the
        # places may overlap as long as nothing of a later message lands on it: a short first piece.
        pieces = [
            self.place.sge(SIZE_MAX + slot * _STRIDE, _STRIDE),
            self.place.sge(0, SIZE_MAX),
        ]
        self.qp.post_recv(verbs.RecvWR(wr_id=slot, sg=pieces))
        self._posted += 1

    def send(self, first: int = MORE) -> None:
        """Send a message."""
        self._post(verbs.SendWR(sg=[self._out[first].sge(0, self._size_bytes)]))

    def write(self, rkey: int, address: int) -> None:
        """Write a message's bytes into the peer's memory."""
        request = verbs.SendWR(
            opcode=verbs.WROpcode.RDMA_WRITE, sg=[self._out[MORE].sge(0, self._size_bytes)]
        )
        request.set_wr_rdma(rkey, address)
        self._post(request)

    def _post(self, request: verbs.SendWR) -> None:
        if self._under_way >= self._depth:
            self._reap(1)
        self.qp.post_send(request)
        self._under_way += 1

    def flush(self) -> None:
        """Wait until every request has completed."""
        while self._under_way:
            self._reap(self._under_way)

    def _reap(self, count: int) -> None:
        assert self.scq is not None, "made with one"
        for completion in self.scq.wait_for(count):
            _check(completion)
            self._under_way -= 1

    def receive(self) -> int:
        """Wait for a message and return its first byte."""
        assert self.rcq is not None, "made with one"
        [completion] = self.rcq.wait_for(1)
        _check(completion)
        first = self.place.view[SIZE_MAX + completion.wr_id * _STRIDE]
        self._posted -= 1
        self._post_receive(completion.wr_id)
        return first


def _check(completion: verbs.WC) -> None:
    if completion.status is not verbs.WCStatus.SUCCESS:
        raise OSError(f"a work request ended with {completion.status.name}")


def _init_attr(context: verbs.Context) -> verbs.QPInitAttr:
    return verbs.QPInitAttr(
        scq=verbs.CQ(context, 2 * DEPTH_MAX),
        rcq=verbs.CQ(context, 2 * DEPTH_MAX),
        cap=verbs.QPCap(max_send_wr=DEPTH_MAX, max_recv_wr=DEPTH_MAX),
    )


@contextmanager
def listening(context: verbs.Context) -> Iterator[CMID]:
    """Listen at a free port of loopback."""
    with CMID(AddrInfo("127.0.0.1", 0, flags=RAI_PASSIVE), context=context) as listener:
        listener.listen()
        yield listener


def accepted(listener: CMID) -> VerbsEnd:
    """Wait for a peer and return this side, with receives posted for any size."""
    request = listener.get_request(30.0)
    request.create_qp(_init_attr(listener.context))
    end = VerbsEnd(request)
    end.prepare(SIZE_MAX)
    request.accept(ConnParam(rnr_retry=7, retry=7))
    return end


def connected(context: verbs.Context, port: int) -> VerbsEnd:
    """Connect to a peer and return this side."""
    target = AddrInfo(dst="127.0.0.1", dst_service=port)
    identifier = CMID(target, context=context)
    identifier.create_qp(_init_attr(context))
    end = VerbsEnd(identifier)
    end.prepare(SIZE_MAX)
    identifier.connect(ConnParam(rnr_retry=7, retry=7), 30.0)
    return end
