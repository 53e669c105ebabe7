"""Peers that have more to say than a plane can take in: streams with a backlog, without a network.

A stream of a backlog gives as much as is asked for, as that of a peer does who is faster than we
are; so what is read in one pass is the plane's own choice, on every machine.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, ip_address
from typing import Final

from tests.parity.planes import LOCAL, PORT, PairStream
from tests.rds.plane.path_world import message
from urds.rds.plane.contract import Buffer, Hold, Limits, Mailbox, MailboxSettings, Plane

PEERS: Final = 32
SHORT_BYTES: Final = 64
LONG_BYTES: Final = 1 << 20
HEADER_BYTES: Final = 48
COUNTED_BYTES: Final = 96  # of each message beside its payload


def backlog(count: int, payload_bytes: int) -> bytes:
    """Return so many messages as bytes; each peer numbers its own from 1."""
    payload = b"\xa5" * payload_bytes
    return b"".join(
        message(number, payload, source_port=PORT, target_port=PORT)
        for number in range(1, count + 1)
    )


class BacklogStream(PairStream):
    """A stream whose peer has written all of its backlog."""

    data = b""
    given = 0  # bytes of it

    @classmethod
    def make(cls, data: bytes) -> tuple[BacklogStream, socket.socket]:
        """Return a stream, and the far end that keeps it open."""
        near, far = socket.socketpair()
        stream = cls(fileno=near.detach())
        stream.setblocking(False)
        stream.data = data
        far.send(b"r")  # it is readable, and `recv` leaves that alone
        return stream, far

    def _next(self, bytes_max: int) -> bytes:
        some = self.data[self.given : self.given + bytes_max]
        if not some:
            super().recv(1)  # from here on it is not readable
            raise BlockingIOError
        self.given += len(some)
        return some

    def recv(self, bytes_max: int, /) -> bytes:  # type: ignore[override]  # no flags
        return self._next(bytes_max)

    def recv_into(self, memory: memoryview, /) -> int:  # type: ignore[override]  # no flags
        some = self._next(len(memory))
        memory[: len(some)] = some
        return len(some)

    def sendmsg(self, buffers: Sequence[Buffer], /, *_: object) -> int:
        return sum(map(len, buffers))  # a peer that heeds no map, nor anything else

    def waiting(self) -> int:
        return len(self.data) - self.given


class Flooded:
    """A plane on a clock of its own, one mailbox, and peers that flood it."""

    def __init__(
        self, make_plane: Callable[..., Plane], backlogs: Sequence[bytes], *, receive_bytes: int
    ) -> None:
        self.now_ns = 1_000_000_000
        self.plane = make_plane(
            limits=Limits(), resolve=lambda _mailbox, _peer: None, clock_ns=lambda: self.now_ns
        )
        settings = MailboxSettings(receive_bytes_max=receive_bytes)
        self.mailbox: Mailbox = self.plane.mailbox(local=LOCAL, port=PORT, settings=settings)
        self.streams: dict[str, BacklogStream] = {}
        self._ends = [self._attach(host, data) for host, data in enumerate(backlogs)]

    def _attach(self, host: int, data: bytes) -> socket.socket:
        peer: IPv4Address = ip_address(f"127.0.83.{host + 100}")
        path = self.plane.path(local=LOCAL, peer=peer, index=0, sequence_first=1)
        stream, far = BacklogStream.make(data)
        path.attach(stream, hold=Hold.NOTHING)
        self.streams[str(peer)] = stream
        return far

    @property
    def peers(self) -> list[str]:
        """Return the addresses of all peers."""
        return list(self.streams)

    def turn(self) -> None:
        """Make one pass, a millisecond after the last one."""
        self.now_ns += 1_000_000
        self.plane.help(0)

    def take(self, count: int) -> Counter[str]:
        """Take messages, at most so many; return how many of each peer."""
        taken: Counter[str] = Counter()
        for _ in range(count):
            found = self.mailbox.receive(wait_ns=0)
            if found is None:
                break
            taken[str(found.source[0])] += 1
        return taken

    def weight(self) -> int:
        """Return what lies in the mailbox as its hard bound counts it."""
        (row,) = self.plane.snapshot().mailboxes
        return row.receive_queued_bytes + COUNTED_BYTES * row.receive_queued_messages

    def close(self) -> None:
        """End everything."""
        self.plane.close(0)
        for end in self._ends:
            end.close()
        for stream in self.streams.values():
            stream.close()
        release = getattr(self.plane, "release", None)
        if release is not None:
            release()
