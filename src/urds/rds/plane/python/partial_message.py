"""The message of which a read brought the beginning, until the rest of it comes: a value machine.

A short one is kept with its header and stands before the next read. The payload of a long one is
collected apart, without more copies, and a very long one is read apart as well.
"""

from __future__ import annotations

from urds.rds.plane.python.peer_generations import Fields
from urds.rds.wire.header import HEADER, HEADER_BYTES

# A payload of this length or more is collected apart.
_BODY_BYTES = 8192
_READ_BYTES = 65536
# A payload of this length or more is read apart and in one piece, so that the system call returns
# it uncopied; while such messages arrive, headers are read apart as well.
_ALONE_BYTES = 262144
_READ_BYTES_MAX = 4 << 20


class PartialMessage:
    """Header and bytes of an incomplete message, and how much to read next."""

    __slots__ = ("_body", "_fields", "begun", "is_very_long", "missing_bytes")

    def __init__(self) -> None:
        self.is_very_long = False  # the last payload was, the next one may be
        self.forget()

    def forget(self) -> None:
        """Drop it: its stream has ended, or the rest has come."""
        self.begun = b""  # of a short message, from the header on
        self._fields: Fields | None = None  # of a long one
        self._body: list[bytes] = []
        self.missing_bytes = 0  # of its payload

    def keep(self, data: bytes, offset: int) -> None:
        """Keep the incomplete message that begins at an offset."""
        rest_bytes = len(data) - offset
        self.is_very_long = False
        if rest_bytes >= HEADER_BYTES:
            fields = HEADER.unpack_from(data, offset)
            if fields[2] >= _BODY_BYTES:
                self._fields = fields
                self._body = [data[offset + HEADER_BYTES :]]
                self.missing_bytes = HEADER_BYTES + fields[2] - rest_bytes
                self.is_very_long = fields[2] >= _ALONE_BYTES
                return
        self.begun = data[offset:]

    def add(self, data: bytes) -> tuple[Fields, bytes, int] | None:
        """Add a read to a long message; once whole, return it and the bytes that it took."""
        assert self._fields is not None, "bytes are missing of it"
        taken_bytes = self.missing_bytes
        self._body.append(data[:taken_bytes])
        if len(data) < taken_bytes:
            self.missing_bytes -= len(data)
            return None
        fields, payload = self._fields, b"".join(self._body)
        self.forget()
        return fields, payload, taken_bytes

    # -- the next read

    def bytes_wanted(self) -> int:
        """Return how much to read at once."""
        if self.missing_bytes >= _ALONE_BYTES:
            return min(self.missing_bytes, _READ_BYTES_MAX)
        if self.is_very_long and not self.begun and not self.missing_bytes:
            return HEADER_BYTES
        return self.missing_bytes + _READ_BYTES

    def bytes_expected(self) -> int:
        """Return how much of a very long payload must arrive before a read is worth a wake-up."""
        return min(self.missing_bytes, _READ_BYTES_MAX) if self.is_very_long else 0

    def remaining(self) -> tuple[int, int]:
        """Return the bytes still missing of a begun header and of a begun payload."""
        begun_bytes = len(self.begun)
        if not begun_bytes:
            return 0, self.missing_bytes
        if begun_bytes < HEADER_BYTES:
            return HEADER_BYTES - begun_bytes, 0
        payload_bytes: int = HEADER.unpack_from(self.begun)[2]
        return 0, HEADER_BYTES + payload_bytes - begun_bytes
