"""Sending as the original does it: for tests that need such a peer.

Each call posts at once what may be sent, in chunks that double from CHUNK_FIRST_BYTES, and refuses
the rest: nothing waits, gathers or is lent. Source: rdma-core 691953d8 librdmacm/rsocket.c
(rsocket.md 4 and 6).
"""

from typing import Final

from urds.rsocket.stream.records import WRITABLE_BYTES_MIN
from urds.rsocket.stream.sending import Sending

CHUNK_FIRST_BYTES: Final = 2048
CHUNK_LAST_BYTES: Final = 1 << 16


class OriginalSending(Sending):
    """The sending half of an original."""

    __slots__ = ()

    @property
    def is_writable(self) -> bool:
        """Return whether the original's "may send" holds."""
        return self.can_post and self.room >= WRITABLE_BYTES_MIN

    def send(self, data: memoryview, *, may_borrow: bool) -> int:
        """Post what may be sent; copies it."""
        taken, ramp = 0, CHUNK_FIRST_BYTES
        while taken < len(data) and self.is_writable:
            left = len(data) - taken
            # A last piece may be longer than the step before it.
            chunk = min(left if ramp >= left else ramp, self.room, self._spaces[0].byte_count)
            ramp = min(ramp * 2, CHUNK_LAST_BYTES)
            self.buffered_octets += chunk
            self._stats.octets_copied_in += chunk
            self._post(bytes(data[taken : taken + chunk]), chunk, False)
            taken += chunk
        return taken
