"""One plane with peers that a test plays, and everything of it that can be told from another.

What a call gives is made plain: refusals become values, objects of the plane their names. Wall
clocks, inodes and the number of reads are no part of it.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from ipaddress import IPv4Address, ip_address
from typing import Any

from tests.parity.planes import LOCAL, MS, OTHER, PEER, PairStream
from urds.common.errors import ErrorReason, os_error
from urds.rds.constants import HeaderFlag
from urds.rds.plane.contract import (
    Buffer,
    FirstFrame,
    Limits,
    Mailbox,
    MailboxSettings,
    Message,
    Path,
    PathRow,
    Plane,
)
from urds.rds.wire.header import HEADER_BYTES, Header

SECOND = ip_address("127.0.83.4")  # of this process, as `LOCAL`
REFUSED = ip_address("127.0.83.9")  # the control plane refuses to resolve it
PEERS = {"a": PEER, "b": OTHER, "a1": PEER}
# How often is asked for readiness and what was read at once are the plane's own affair.
UNCOMPARED = {
    "tcp_data_ready_calls",
    "tcp_write_space_calls",
    "tcp_sndbuf_full",
    "progress_thread_passes",
    "recv_immediate_retry",
    "send_queue_empty",
    "mprds_catchup_tx0_retries",
    "send_ack_required",  # this and what follows: see `Link.seen`
    "ack_sent",
    "cong_update_queued",
    "cong_update_received",  # see `Side.events`
    "send_lock_contention",
}
_PUMPS_MAX = 12
_READ_BYTES = 1 << 20
_BRIEF_BYTES = 16


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call gave, or how it refused."""

    value: object = None
    failure: str = ""
    errno: int = 0


class MeteredStream(PairStream):
    """Takes so many bytes and no more, wherever writes begin and end."""

    room_bytes: int | None = None
    failure = 0

    def sendmsg(self, buffers: Sequence[Buffer], /, *_: object) -> int:
        if self.failure:
            raise OSError(self.failure, os.strerror(self.failure))
        if self.room_bytes is None:
            return super().sendmsg(buffers)
        if not self.room_bytes:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        taken = super().send(b"".join(buffers)[: self.room_bytes])
        self.room_bytes -= taken
        return taken


class DescriptorStream(PairStream):
    """A stream that a compiled plane takes for TCP: it reads and writes the descriptor itself."""

    family = socket.AF_INET  # type: ignore[assignment]  # a property of `socket`


class Link:
    """The peer's end of one stream."""

    def __init__(self, *, by_descriptor: bool) -> None:
        ours, theirs = socket.socketpair()
        kind = DescriptorStream if by_descriptor else MeteredStream
        self.stream = kind(fileno=ours.detach())
        self.stream.setblocking(False)
        self.socket = theirs
        self.socket.setblocking(False)
        self.ended = False
        self._unwritten = b""
        self._unparsed = b""

    def write(self, data: bytes = b"") -> None:
        """Write what the stream takes; the rest goes with the next write."""
        self._unwritten += data
        with suppress(OSError):
            while self._unwritten:
                self._unwritten = self._unwritten[self.socket.send(self._unwritten) :]

    def unread_bytes(self) -> int:
        """Return what the plane has yet to read."""
        return self.stream.waiting() if self.stream.fileno() >= 0 else 0

    def read(self) -> bytes:
        """Read everything that is there."""
        data = b""
        try:
            while not self.ended:
                some = self.socket.recv(_READ_BYTES)
                data += some
                self.ended = not some
        except BlockingIOError:
            pass
        except OSError:
            self.ended = True  # with bytes that the plane did not read
        return data

    def seen(self, data: bytes) -> object:
        """Return what is compared of bytes: whole frames, and the beginning of one.

        Whether a message asks for an acknowledgement depends on when it left, so that is no part
        of it. Of maps, and of acknowledgements without a message, only the newest ones are: how
        many there are depends on how much was read at once.
        """
        frames: list[tuple[Header, bytes]] = []
        newest: dict[int, tuple[Header, bytes]] = {}
        self._unparsed += data
        while len(self._unparsed) >= HEADER_BYTES:
            header = Header.parse(self._unparsed[:HEADER_BYTES])
            end = HEADER_BYTES + header.payload_bytes
            if len(self._unparsed) < end:
                break
            payload, self._unparsed = self._unparsed[HEADER_BYTES:end], self._unparsed[end:]
            flags = header.flags & ~HeaderFlag.ACK_REQUIRED
            header = replace(header, flags=flags, checksum=bool(header.checksum))
            if header.sequence or header.source_port or header.target_port:
                frames.append((header, payload))
            else:
                newest[flags] = header, payload
        return frames, newest, len(self._unparsed)

    def close(self) -> None:
        """End both directions; what was not read is lost."""
        self.read()
        self.socket.close()


class Side:
    """A plane, its mailboxes and paths by name, and what the test has of them."""

    def __init__(
        self,
        make_plane: Callable[..., Plane],
        limits: Limits,
        *,
        by_descriptor: bool,
    ) -> None:
        self.now_ns = 1_000 * MS
        self.plane = make_plane(
            limits=limits, resolve=self.resolve, clock_ns=lambda: self.now_ns, generation=0x5EED
        )
        self.paths: dict[str, Path] = {}
        self.links: dict[str, Link] = {}
        self.old_links: list[Link] = []
        self.mailboxes: dict[str, Mailbox] = {}
        self.descriptors: dict[str, int] = {}
        self._by_descriptor = by_descriptor
        for name in PEERS:
            self.make_path(name, 1)

    def resolve(self, mailbox: Mailbox, peer: IPv4Address) -> None:
        """Route as the control plane does: by stream, within the process, or not at all."""
        if peer == REFUSED:
            raise os_error(ErrorReason.PEER_NOT_ALLOWED, "not on the list", peer=peer)
        if peer in {LOCAL, SECOND}:
            mailbox.route(peer, self.plane.loop(local=mailbox.local, peer=peer))
        for name in ("a", "b"):
            if peer == PEERS[name]:
                mailbox.route(peer, self.paths[name])

    def make_path(self, name: str, sequence_first: int) -> None:
        self.paths[name] = self.plane.path(
            local=LOCAL, peer=PEERS[name], index=int(name == "a1"), sequence_first=sequence_first
        )

    def bind(self, name: str, local: IPv4Address, port: int, settings: MailboxSettings) -> None:
        self.mailboxes[name] = self.plane.mailbox(local=local, port=port, settings=settings)

    def connect(self, name: str) -> Link:
        """Make a stream for a path; the one before goes on until the plane closes it."""
        before = self.links.pop(name, None)
        if before is not None:
            self.old_links.append(before)
        link = self.links[name] = Link(by_descriptor=self._by_descriptor)
        return link

    def unbind(self, name: str, linger_ns: int | None) -> None:
        self.descriptors.pop(name, None)
        self.mailboxes[name].close(linger_ns)

    def show(self, name: str) -> None:
        """Have a mailbox show its state on a descriptor."""
        self.descriptors[name] = self.mailboxes[name].fileno()

    # -- what can be seen

    def attempt(self, call: Callable[[Side], object]) -> Outcome:
        """Make a call; return what it gave as a plain value."""
        try:
            return Outcome(self.plain(call(self)))
        except OSError as failure:
            return Outcome(failure.strerror, type(failure).__name__, failure.errno or 0)
        except (TypeError, ValueError, OverflowError, AssertionError) as failure:
            return Outcome(failure=type(failure).__name__)

    def settle(self) -> None:
        """Make passes until nothing is left to do at this time."""
        for _ in range(_PUMPS_MAX):
            for link in self.links.values():
                link.write()
            if not self.plane.progress():
                break

    def read(self) -> dict[str, bytes]:
        """Return the bytes that came out of the plane since the last look."""
        return {name: link.read() for name, link in self.links.items()}

    def seen(self, data: dict[str, bytes]) -> dict[str, object]:
        """Return what is compared after a step."""
        arrived: dict[str, object] = {
            name: (link.seen(data[name]), link.ended) for name, link in self.links.items()
        }
        arrived["before"] = [link.seen(link.read()) for link in self.old_links]
        for name, descriptor in self.descriptors.items():
            arrived[f"poll {name}"] = _readiness(descriptor)
        return arrived

    def events(self) -> dict[object, list[object]]:
        """Return what the plane reports of each object; the order between them is not told."""
        told: dict[object, list[object]] = {}
        for event in self.plane.help(0):
            about = getattr(event, "path", None) or getattr(event, "port", None)
            told.setdefault(self.plain(about), []).append(self.plain(event))
        return told

    def tables(self) -> dict[str, object]:
        """Return counters and rows; the order of rows is not told."""
        snapshot = self.plane.snapshot()
        counters = {
            name: count for name, count in snapshot.counters.items() if name not in UNCOMPARED
        }
        mailboxes = [replace(row, inode=bool(row.inode)) for row in snapshot.mailboxes]
        paths = [_without_bytes(row) for row in snapshot.paths]
        return {
            **counters,
            "mailboxes": sorted(mailboxes, key=str),
            "paths": sorted(paths, key=str),
            "send queue": sorted(snapshot.send_queue),
            "retransmit queue": sorted(snapshot.retransmit_queue),
            "receive queue": sorted(snapshot.receive_queue),
        }

    def plain(self, value: object) -> object:
        """Return a value with names in place of what belongs to the plane."""
        for name, path in self.paths.items():
            if value is path:
                return f"path {name}"
        if hasattr(value, "restart_peer"):
            return f"old path to {value.peer}"
        if isinstance(value, Message):
            return value._replace(time_ns=bool(value.time_ns))
        if isinstance(value, FirstFrame):  # whether a map of the same read counts is not told
            value = replace(value, generation=None)
        if is_dataclass(value) and not isinstance(value, type):
            told = [self.plain(getattr(value, field.name)) for field in fields(value)]
            return (type(value).__name__, *told)
        if isinstance(value, socket.socket):
            value.close()
            return "stream"
        return value

    def close(self) -> Outcome:
        """End everything; return how that went."""
        for link in [*self.links.values(), *self.old_links]:
            link.close()
        left = self.attempt(lambda side: side.plane.close(0))
        for mailbox in self.mailboxes.values():
            self.attempt(lambda _, mailbox=mailbox: mailbox.close(0))
        self.plane.release()
        return left


def brief(value: object) -> object:
    """Return a value for people: long bytes as frames, their beginning, length and sum."""
    if isinstance(value, bytes) and len(value) >= HEADER_BYTES:
        headers = " ".join(_headers(value))
        return f"{value[:_BRIEF_BYTES].hex()}.. {len(value)} {zlib.crc32(value):08x} {headers}"
    if isinstance(value, Header):
        return " ".join(_headers(value.emit()))
    if isinstance(value, dict):
        return {key: brief(one) for key, one in value.items()}
    if isinstance(value, Outcome):
        return (brief(value.value), value.failure, value.errno)
    if isinstance(value, tuple | list):
        return [brief(one) for one in value]
    return value


def _without_bytes(row: PathRow) -> PathRow:
    """Return a row without what follows from how many maps and acknowledgements there were."""
    return replace(row, stream_sent_bytes=0, stream_expected_bytes=0, stream_acknowledged_bytes=0)


def _headers(data: bytes) -> Iterator[str]:
    """Yield number, acknowledgement, ports, flags and length of what may be frames."""
    while len(data) >= HEADER_BYTES:
        header = Header.parse(data[:HEADER_BYTES], verify=False)
        ports = f"{header.source_port}>{header.target_port}"
        yield f"{header.sequence}/{header.ack}/{ports}/{header.flags}/{header.payload_bytes}"
        data = data[HEADER_BYTES + header.payload_bytes :]


def _readiness(descriptor: int) -> int:
    poll: Any = select.poll()
    poll.register(descriptor, select.POLLIN | select.POLLOUT)
    with suppress(OSError):
        return sum(mask for _, mask in poll.poll(0))
    return -1
