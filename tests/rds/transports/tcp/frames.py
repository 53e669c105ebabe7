"""Frames as a test writes and reads them: one header and its payload, back to back."""

from __future__ import annotations

from typing import NamedTuple

from urds.constants import CONGESTION_MAP_BYTES, HeaderFlag
from urds.wire.congestion_map import CongestionMap
from urds.wire.header import HEADER_BYTES, Header

NO_EXTENSION = bytes(16)


class Frame(NamedTuple):
    """One message of the wire."""

    header: Header
    payload: bytes

    @property
    def is_map(self) -> bool:
        """Tell whether Linux takes this for a congestion map: exactly the one flag."""
        return self.header.flags == HeaderFlag.CONG_BITMAP

    @property
    def ports(self) -> tuple[int, int]:
        """Return source and target port."""
        return self.header.source_port, self.header.target_port


class FrameReader:
    """Octets in, whole frames out; also keeps the octets as they came."""

    def __init__(self) -> None:
        self._rest = b""

    @property
    def partial_octets(self) -> int:
        """Return how much of an incomplete frame is here."""
        return len(self._rest)

    def feed(self, data: bytes) -> list[Frame]:
        """Take octets, return the frames that they complete."""
        octets = self._rest + data
        frames, offset = [], 0
        while len(octets) - offset >= HEADER_BYTES:
            header = Header.parse(octets[offset : offset + HEADER_BYTES], verify=False)
            end = offset + HEADER_BYTES + header.payload_bytes
            if end > len(octets):
                break
            frames.append(Frame(header, octets[offset + HEADER_BYTES : end]))
            offset = end
        self._rest = octets[offset:]
        return frames


def emit_frame(
    payload: bytes = b"",
    *,
    sequence: int = 0,
    source_port: int = 0,
    target_port: int = 0,
    flags: int = 0,
    ack: int = 0,
    extension: bytes = NO_EXTENSION,
    payload_bytes: int | None = None,
) -> bytes:
    """Write one frame; `payload_bytes` lies about the length if a test wants it."""
    header = Header(
        sequence=sequence,
        ack=ack,
        payload_bytes=len(payload) if payload_bytes is None else payload_bytes,
        source_port=source_port,
        target_port=target_port,
        flags=HeaderFlag(flags),
        extension=extension,
    )
    return header.emit() + payload


def emit_map(*ports: int) -> bytes:
    """Write a congestion map frame that marks `ports`."""
    octets = CongestionMap(set(ports)).emit()
    assert len(octets) == CONGESTION_MAP_BYTES
    return emit_frame(octets, flags=HeaderFlag.CONG_BITMAP)
