"""Streams whose peer a test plays, and a world around one plane; see `tests.support.planes`."""

import fcntl
import socket
import struct
import termios
import threading
from collections.abc import Callable
from contextlib import suppress
from ipaddress import IPv4Address, ip_address

from tests.rds.plane.path_world import Frame, message
from urds.rds.constants import HeaderFlag
from urds.rds.plane.contract import (
    Agreement,
    Event,
    Hold,
    Limits,
    Mailbox,
    MailboxSettings,
    Path,
    Plane,
)
from urds.rds.transports.tcp import TcpStream
from urds.rds.types import AckMode
from urds.rds.wire.header import HEADER_BYTES, Header

LOCAL, PEER, OTHER = (ip_address(f"127.0.83.{number}") for number in (1, 2, 3))
PORT, PEER_PORT = 5000, 4000
MS = 1_000_000
ACK_DELAY_MS = Limits().acknowledge_delay_ns // MS
EMPTY_MAP = bytes(8192)


class PairStream(socket.socket):
    """One end of a socket pair as a `base.Stream`; the test says what TCP acknowledged."""

    unacknowledged_bytes = 0
    expected_bytes = 1

    def waiting(self) -> int:
        return struct.unpack("i", fcntl.ioctl(self, termios.FIONREAD, bytes(4)))[0]

    def unacknowledged(self) -> int:
        return self.unacknowledged_bytes

    def expect(self, byte_count: int, /) -> None:
        self.expected_bytes = byte_count


class Remote:
    """The peer's end of a stream: the test writes and reads bytes there."""

    def __init__(self, buffer_bytes: int | None = None) -> None:
        ours, theirs = socket.socketpair()
        self.stream = PairStream(fileno=ours.detach())
        self.stream.setblocking(False)
        if buffer_bytes is not None:
            self.stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        self.socket = theirs
        self.socket.setblocking(False)
        self.data = b""  # read here and not yet looked at

    def write(self, *data: bytes) -> None:
        self.socket.setblocking(True)
        self.socket.sendall(b"".join(data))
        self.socket.setblocking(False)

    def say(self, sequence: int, payload: bytes = b"", **fields: object) -> None:
        """Write one message; by default to our port from the peer's."""
        fields = {"source_port": PEER_PORT, "target_port": PORT, **fields}
        self.write(message(sequence, payload, **fields))

    def say_map(self, data: bytes = EMPTY_MAP) -> None:
        self.say(0, data, flags=HeaderFlag.CONG_BITMAP, source_port=0, target_port=0)

    def drain(self) -> bytes:
        """Read what is there."""
        with suppress(BlockingIOError):
            while data := self.socket.recv(1 << 20):
                self.data += data
        return self.data

    def frames(self) -> list[Frame]:
        """Read what is there; take the whole frames of it."""
        self.drain()
        found: list[Frame] = []
        while len(self.data) >= HEADER_BYTES:
            header = Header.parse(self.data[:HEADER_BYTES])
            end = HEADER_BYTES + header.payload_bytes
            if len(self.data) < end:
                break
            found.append(Frame(header, self.data[HEADER_BYTES:end]))
            self.data = self.data[end:]
        return found

    def messages(self) -> list[Frame]:
        """Take the frames of sockets."""
        return [frame for frame in self.frames() if frame.header.target_port > 1]

    def ended(self) -> bool:
        """Tell whether the plane has ended its direction; what came before is kept."""
        with suppress(BlockingIOError):
            while True:
                try:
                    data = self.socket.recv(1 << 20)
                except ConnectionResetError:
                    return True
                if not data:
                    return True
                self.data += data
        return False

    def close(self) -> None:
        """Close in order; with bytes unread it would be a reset."""
        if self.socket.fileno() >= 0:
            self.socket.setblocking(False)  # a thread may be writing
            with suppress(OSError):
                self.drain()
            self.socket.close()


class TcpRemote(Remote):
    """The peer's end of a TCP connection, which a plane may read and write as it likes best."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            ours = socket.create_connection(listener.getsockname())
            self.socket, _ = listener.accept()
        self.stream = TcpStream.take(ours)  # type: ignore[assignment]  # another kind of stream
        self.socket.setblocking(False)
        self.data = b""


class World:
    """A plane with a clock of its own, one address, and paths to peers that the test plays."""

    def __init__(self, make_plane: Callable[..., Plane], limits: Limits | None = None) -> None:
        self.now_ns = 1_000 * MS
        self.paths: dict[object, Path] = {}
        self.remotes: list[Remote] = []
        self.was_congested = False  # our port, at the last look
        self.plane = make_plane(
            limits=limits or Limits(), resolve=self.resolve, clock_ns=lambda: self.now_ns
        )

    def resolve(self, mailbox: Mailbox, peer: IPv4Address) -> None:
        """Make a path on the first send, as the control plane does."""
        mailbox.route(peer, self.path(peer))

    def path(self, peer: IPv4Address = PEER, *, sequence_first: int = 1) -> Path:
        path = self.paths.get(peer)
        if path is None:
            path = self.paths[peer] = self.plane.path(
                local=LOCAL, peer=peer, index=0, sequence_first=sequence_first
            )
        return path

    def mailbox(self, port: int = PORT, **settings: object) -> Mailbox:
        return self.plane.mailbox(local=LOCAL, port=port, settings=MailboxSettings(**settings))

    def attach(
        self,
        *,
        path: Path | None = None,
        hold: Hold = Hold.NOTHING,
        ack_mode: AckMode = AckMode.NOT_YET,
        buffer_bytes: int | None = None,
    ) -> Remote:
        """Give the path a stream; return the peer's end of it."""
        path = path or self.path()
        remote = Remote(buffer_bytes)
        self.remotes.append(remote)
        if ack_mode is not AckMode.NOT_YET:
            path.agree(Agreement(ack_mode=ack_mode))
        path.attach(remote.stream, hold=hold)
        self.now_ns += MS  # a pause: the next two sends leave at once
        return remote

    def turn(self, ms: float = 0) -> list[Event]:
        """Let time pass, then one pass of the plane; return what it reports."""
        self.now_ns += round(ms * MS)
        self.plane.progress()
        return self.plane.help(0)

    def counter(self, name: str) -> int:
        return self.plane.snapshot().counters[name]

    def close(self) -> None:
        for remote in self.remotes:
            remote.close()
        self.plane.close(0)
        release = getattr(self.plane, "release", None)
        if release is not None:
            release()


class RealWorld:
    """A plane with the system's clock, a helper, and a peer that acknowledges when told to."""

    def __init__(self, make_plane: Callable[..., Plane], *, tcp: bool = False) -> None:
        self.plane = make_plane(
            limits=Limits(), resolve=lambda box, peer: box.route(peer, self.path)
        )
        self.path = self.plane.path(local=LOCAL, peer=PEER, index=0, sequence_first=1)
        self.remote = TcpRemote() if tcp else Remote()
        self.path.attach(self.remote.stream, hold=Hold.NOTHING)
        self.path.agree(Agreement(ack_mode=AckMode.PEER_ACKNOWLEDGED))
        self.closed = False
        self.thread = threading.Thread(target=self._help, daemon=True)
        self.thread.start()

    def _help(self) -> None:
        while not self.closed:
            self.plane.help(None)

    def mailbox(self, port: int = PORT, **settings: object) -> Mailbox:
        return self.plane.mailbox(local=LOCAL, port=port, settings=MailboxSettings(**settings))

    def acknowledge(self, sequence: int) -> None:
        self.remote.write(message(0, ack=sequence, source_port=0, target_port=0))

    def close(self) -> None:
        self.closed = True
        self.plane.close(0)
        self.plane.wake()
        self.thread.join(5)
        self.remote.close()


def take(mailbox: Mailbox) -> list[bytes]:
    """Take every message that is there."""
    payloads = []
    while (message := mailbox.receive(wait_ns=0)) is not None:
        payloads.append(message.payload)
    return payloads
