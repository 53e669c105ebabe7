"""A plain iWARP peer on a raw socket, written from the RFCs and knowing nothing of the package.

Revision 2 of MPA with IRD and ORD, no CRC, no markers, as linux siw has it by default (source:
docs/reference/verbs-and-roce.md 16). Each call is one frame; nothing is automatic.
"""

import socket
import struct
from dataclasses import dataclass

REQUEST_KEY, REPLY_KEY = b"MPA ID Req Frame", b"MPA ID Rep Frame"
ENHANCED, REJECT, CRC = 0x1000, 0x2000, 0x4000
WRITE, READ_REQUEST, READ_RESPONSE, SEND, SEND_INV, SEND_SE, SEND_SE_INV, TERMINATE = range(8)


@dataclass
class Segment:
    opcode: int
    is_last: bool
    fields: tuple[int, ...]  # STag and offset, or word, queue, number and offset
    payload: bytes
    control: int


class PlainPeer:
    """One connection. Raises TimeoutError after five seconds of silence."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        connection.settimeout(5)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @classmethod
    def connect(cls, address: tuple[str, int], receive_bytes: int = 0) -> "PlainPeer":
        connection = socket.socket(socket.AF_INET)
        if receive_bytes:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        connection.connect(address)
        return cls(connection)

    @classmethod
    def accept(cls, listener: socket.socket) -> "PlainPeer":
        listener.settimeout(5)
        return cls(listener.accept()[0])

    def close(self) -> None:
        self.socket.close()

    def data(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            more = self.socket.recv(count - len(found))
            if not more:
                raise EOFError(f"{len(found)} of {count} bytes, then the end")
            found += more
        return found

    # -- set-up

    def send_message(
        self, key: bytes, flags: int = ENHANCED | 2, data: bytes = b"", ird: int = 4, ord_: int = 4
    ) -> None:
        if flags & ENHANCED:
            data = struct.pack(">HH", ird, ord_) + data
        self.socket.sendall(key + struct.pack(">HH", flags, len(data)) + data)

    def receive_message(self, key: bytes) -> tuple[int, bytes]:
        heard, flags, count = struct.unpack(">16sHH", self.data(20))
        assert heard == key
        return flags, self.data(count)

    # -- FPDUs

    def segment(self, control: int, header: bytes, payload: bytes = b"") -> None:
        ulpdu = struct.pack(">H", control) + header + payload
        frame = struct.pack(">H", len(ulpdu)) + ulpdu
        self.socket.sendall(frame + bytes(-len(frame) % 4) + bytes(4))

    def tagged(
        self, opcode: int, stag: int, offset: int, payload: bytes = b"", last: bool = True
    ) -> None:
        control = 0x8140 | opcode | (0x4000 if last else 0)
        self.segment(control, struct.pack(">IQ", stag, offset), payload)

    def untagged(
        self,
        opcode: int,
        queue: int,
        number: int,
        payload: bytes = b"",
        *,
        offset: int = 0,
        word: int = 0,
        last: bool = True,
    ) -> None:
        control = 0x0140 | opcode | (0x4000 if last else 0)
        self.segment(control, struct.pack(">IIII", word, queue, number, offset), payload)

    def next(self) -> Segment:
        count, control = struct.unpack(">HH", self.data(4))
        rest = self.data(count - 2)
        self.data(-(count + 2) % 4 + 4)
        layout = ">IQ" if control & 0x8000 else ">IIII"
        size = struct.calcsize(layout)
        fields = struct.unpack(layout, rest[:size])
        return Segment(control & 15, bool(control & 0x4000), fields, rest[size:], control)

    def terminate_code(self) -> int:
        """Read on to the TERMINATE; return its layer, type and code."""
        for _ in range(1000):
            segment = self.next()
            if segment.opcode == TERMINATE:
                assert segment.fields[1:] == (2, 1, 0) and segment.is_last
                return int.from_bytes(segment.payload[:2], "big")
        raise AssertionError("no TERMINATE")
