"""One or two value machines of a path, with inboxes and an account, without a plane around them."""

from collections.abc import Iterable
from typing import NamedTuple

from urds.rds.constants import Capability, HeaderFlag
from urds.rds.plane.contract import (
    DownReason,
    Hold,
    Limits,
)
from urds.rds.plane.python.counters import Counters
from urds.rds.plane.python.inbox import Inbox
from urds.rds.plane.python.path import PathCore
from urds.rds.types import AckMode
from urds.rds.wire.extensions import Handshake, Mark, emit_handshake
from urds.rds.wire.header import HEADER_BYTES, Header

SOURCE, TARGET = 4000, 5000
MS = 1_000_000
NO_MAP = bytes(8192)


class Account:
    """What a socket is to its paths."""

    def __init__(self) -> None:
        self.send_queued_bytes = 0
        self.given_up = 0


class Frame(NamedTuple):
    """A header with what follows it."""

    header: Header
    payload: bytes


class Side:
    """A path core with an inbox at `TARGET` and an account that sends from `SOURCE`."""

    def __init__(
        self,
        *,
        sequence_first: int = 1,
        generation: int | None = None,
        limits: Limits | None = None,
        ack_mode: AckMode = AckMode.NOT_YET,
        checksum: bool = False,
    ) -> None:
        self.counters = Counters()
        self.account = Account()
        self.inbox = Inbox(port=TARGET, buffer_bytes=1 << 20)
        self.map_bytes = NO_MAP
        self.core = PathCore(
            limits or Limits(),
            self.counters,
            sequence_first=sequence_first,
            generation=generation,
            inboxes={TARGET: self.inbox},
            source_of=lambda port: ("peer", port),
            map_bytes=lambda: self.map_bytes,
        )
        self.core.agree(ack_mode=ack_mode, checksum=checksum)

    @property
    def sender(self):
        return self.core.sender

    @property
    def receiver(self):
        return self.core.receiver

    def attach(self, hold: Hold = Hold.NOTHING) -> None:
        self.core.attach(hold)

    def begin(self, hold: Hold = Hold.NOTHING) -> None:
        """Attach and let the map go."""
        self.core.attach(hold)
        assert [frame.header.flags for frame in self.frames()[:1]] == [HeaderFlag.CONG_BITMAP]

    def send(self, *payloads: bytes, target_port: int = TARGET, extension: bytes = b"") -> None:
        for payload in payloads:
            self.core.send(self.account, SOURCE, target_port, payload, extension)

    def write(self, bytes_max: int | None = None) -> bytes:
        """Take bytes for the stream, all that there are or at most so many."""
        written = b""
        while bytes_max is None or len(written) < bytes_max:
            data = b"".join(self.core.poll_transmit())
            if not data:
                break
            if bytes_max is not None:
                data = data[: bytes_max - len(written)]
            self.core.transmitted(len(data))
            written += data
        return written

    def frames(self) -> list[Frame]:
        return parse_frames(self.write())

    def messages(self) -> list[Frame]:
        """Write everything; return the frames of sockets, no maps and nothing of control."""
        return [frame for frame in self.frames() if frame.header.target_port > 1]

    def receive(self, data: bytes | memoryview, now_ns: int = 0) -> DownReason | None:
        return self.core.receive_data(data, now_ns)

    def got(self) -> list[bytes]:
        """Take what lies in the inbox."""
        payloads = [item[0] for item in self.inbox.queue]
        self.inbox.queue.clear()
        return payloads


def parse_frames(data: bytes) -> list[Frame]:
    """Read whole frames and nothing else."""
    found, offset = [], 0
    while offset < len(data):
        header = Header.parse(data[offset : offset + HEADER_BYTES])
        offset += HEADER_BYTES
        found.append(Frame(header, data[offset : offset + header.payload_bytes]))
        offset += header.payload_bytes
    assert offset == len(data), "the last frame is not whole"
    return found


def message(
    sequence: int,
    payload: bytes = b"",
    *,
    flags: HeaderFlag = HeaderFlag(0),  # noqa: B008 - a constant
    ack: int = 0,
    source_port: int = SOURCE,
    target_port: int = TARGET,
    checksum: bool = False,
    **fields: object,
) -> bytes:
    """Return the bytes of one frame."""
    header = Header(
        sequence=sequence,
        ack=ack,
        payload_bytes=len(payload),
        source_port=source_port,
        target_port=target_port,
        flags=flags,
        **fields,
    )
    return header.emit(checksum=checksum) + payload


def map_message(generation: int | None = None, ports_bytes: bytes = NO_MAP) -> bytes:
    """Return the map of a urds node's life, or with None a kernel's."""
    extension = bytes(16)
    if generation is not None:
        extension = emit_handshake(Handshake(generation=generation, mark=Mark(Capability(0))))
    return message(
        0,
        ports_bytes,
        flags=HeaderFlag.CONG_BITMAP,
        source_port=0,
        target_port=0,
        extension=extension,
    )


def messages(numbers: Iterable[int], *, flags: HeaderFlag = HeaderFlag(0)) -> bytes:  # noqa: B008 - a flag is immutable
    """Return frames whose payload is their number in decimal."""
    return b"".join(message(number, b"%d" % number, flags=flags) for number in numbers)
