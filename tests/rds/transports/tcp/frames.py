"""Frames as a test writes and reads them: one header and its payload, back to back."""

from __future__ import annotations

from typing import NamedTuple

from urds.rds.constants import CONGESTION_MAP_BYTES, HeaderFlag
from urds.rds.wire.congestion_map import CongestionMap
from urds.rds.wire.header import HEADER_BYTES, Header

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
    """Bytes in, whole frames out; also keeps the bytes as they came."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Frame]:
        """Take bytes, return the frames that they complete."""
        raw = self._rest + data
        frames, offset = [], 0
        while len(raw) - offset >= HEADER_BYTES:
            header = Header.parse(raw[offset : offset + HEADER_BYTES], verify=False)
            end = offset + HEADER_BYTES + header.payload_bytes
            if end > len(raw):
                break
            frames.append(Frame(header, raw[offset + HEADER_BYTES : end]))
            offset = end
        self._rest = raw[offset:]
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
    data = CongestionMap(set(ports)).emit()
    assert len(data) == CONGESTION_MAP_BYTES
    return emit_frame(data, flags=HeaderFlag.CONG_BITMAP)
