"""The receiving half of a connection: frames to messages, retransmits dropped, pending acks.

A value machine: no I/O, no clock, no lock. A message counts as received once it is in its inbox.

Numbers. A number may skip forward (a cancelled message leaves a hole). A message that carries
RETRANSMITTED and a number below the expected one is dropped; without the flag it is taken, and the
expected number follows it, even backwards: the peer began anew. Maps have no number.

Acknowledgements are about this connection: as in Linux, frames name no number before one has come
on it. Until then the private data names it. Source: linux v6.12 net/rds/ib_recv.c
(rds_ib_process_recv), net/rds/recv.c (rds_recv_incoming); docs/reference/rds.md 1.6, 4.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from urds.rds.constants import CONGESTION_MAP_BYTES, ExtensionType, HeaderFlag
from urds.rds.transports.rdma.frames import FRAGMENT_BYTES, Fields
from urds.rds.wire import extensions as exthdr
from urds.rds.wire.header import EXTENSION_BYTES

if TYPE_CHECKING:
    from urds.rds.plane.python.counters import Counters
    from urds.rds.transports.rdma.core import Around, CoreLimits
    from urds.rds.transports.rdma.counters import RdmaCounters

# What an acknowledgement waits for a message to ride on, towards a peer that waits for it.
ACK_DELAY_NS: Final = 1_000_000
_RETRANSMITTED = int(HeaderFlag.RETRANSMITTED)
_ACK_REQUIRED = int(HeaderFlag.ACK_REQUIRED)
_CONG_BITMAP = int(HeaderFlag.CONG_BITMAP)
_NO_EXTENSION = b""


class Incoming:
    """State of one receiving direction."""

    def __init__(
        self,
        limits: CoreLimits,
        counters: Counters,
        rdma: RdmaCounters,
        around: Around,
        *,
        answer_ping: Callable[[int], None],
    ) -> None:
        self._limits = limits
        self._counters = counters
        self._rdma = rdma
        self._around = around
        self._answer_ping = answer_ping
        self.sequence_expected = 0
        self.acknowledgement = 0  # the number that sent frames name; 0 before one came
        self.acknowledgement_asked = False  # the peer waits for one
        self._ack_sent = 0  # the acknowledgement that the last frame sent named
        self.fragment_bytes = FRAGMENT_BYTES  # of this connection: all but the last have so many
        self._header: Fields | None = None  # of the message whose fragments are being collected
        self._pieces: list[bytes] = []
        self._missing_bytes = 0

    def end_connection(self) -> None:
        """Forget the partial message and pending acknowledgements; the numbers stay."""
        self._forget_partial()
        self.acknowledgement = self._ack_sent = 0
        self.acknowledgement_asked = False

    @property
    def has_ack_pending(self) -> bool:
        """Whether messages lie in inboxes that no acknowledgement has named yet."""
        return self.acknowledgement != self._ack_sent

    def note_ack_sent(self) -> None:
        """Note that a frame names the acknowledgement."""
        self._ack_sent = self.acknowledgement
        self.acknowledgement_asked = False

    def numbers(self) -> tuple[int, int, bool, int]:
        """Return what a courier goes on from, and `take_back` takes."""
        expected, acknowledgement = self.sequence_expected, self.acknowledgement
        return expected, acknowledgement, self.acknowledgement_asked, self._ack_sent

    def take_back(self, numbers: tuple[int, int, bool, int]) -> None:
        """Go on from the numbers of a courier."""
        self.sequence_expected, self.acknowledgement = numbers[:2]
        self.acknowledgement_asked, self._ack_sent = numbers[2:]

    def restart_peer(self) -> None:
        """Begin another generation of the peer, whose numbers count afresh."""
        self.sequence_expected = 0

    @property
    def is_partial(self) -> bool:
        """Whether fragments of a message are missing."""
        return self._header is not None

    def _forget_partial(self) -> None:
        self._header = None
        self._pieces = []
        self._missing_bytes = 0

    def take_fragment(self, fields: Fields, payload: memoryview) -> str | None:
        """Take one frame of a message; return its protocol error, None without one.

        Copies the payload. The length of a message is checked before memory is allocated for it.
        """
        first = self._header
        if first is None:
            if fields[2] > self._limits.message_bytes_max:
                self._counters.recv_drop_too_long += 1
                return f"message of {fields[2]} bytes, limit {self._limits.message_bytes_max}"
            self._header = first = fields
            self._missing_bytes = fields[2]
            self._rdma.ib_rx_total_incs += 1
        elif _identity(fields) != _identity(first):
            return f"fragment of {_identity(fields)} within message {_identity(first)}"
        self._rdma.ib_rx_total_frags += 1
        due_bytes = min(self._missing_bytes, self.fragment_bytes)
        if len(payload) != due_bytes:
            return f"fragment of {len(payload)} bytes, due {due_bytes}"
        self._pieces.append(bytes(payload))
        self._missing_bytes -= due_bytes
        if not self._missing_bytes:
            pieces = self._pieces
            self._forget_partial()
            self._take_message(first, pieces[0] if len(pieces) == 1 else b"".join(pieces))
        return None

    def _take_message(self, fields: Fields, payload: bytes) -> None:
        sequence, flags = fields[0], fields[5]
        if flags == _CONG_BITMAP:  # exactly this flag: kernel parity
            self._take_map(payload)
            return
        if flags & _RETRANSMITTED and sequence < self.sequence_expected:
            self._counters.recv_drop_old_seq += 1
        else:
            self._accept(fields, payload)
            self.sequence_expected = sequence + 1
        self.acknowledgement = max(0, self.sequence_expected - 1)
        if flags & _ACK_REQUIRED:
            self.acknowledgement_asked = True
            self._counters.recv_ack_required += 1

    def restore_partial(self, fields: Fields, payload: bytes) -> None:
        """Go on with a message of which these bytes have come, and were counted."""
        self._header = fields
        self._pieces = [payload]
        self._missing_bytes = fields[2] - len(payload)

    def note_plain(self, sequence_expected: int, messages: int, asked: int) -> None:
        """Note new messages that the plane has delivered; so many ask for an acknowledgement."""
        self._rdma.ib_rx_total_incs += messages
        self._rdma.ib_rx_total_frags += messages
        self.sequence_expected = sequence_expected
        self.acknowledgement = sequence_expected - 1
        if asked:
            self.acknowledgement_asked = True
            self._counters.recv_ack_required += asked

    def _take_map(self, payload: bytes) -> None:
        if len(payload) == CONGESTION_MAP_BYTES:
            self._around.take_map(payload)
        else:
            self._counters.recv_drop_bad_map += 1

    def _accept(self, fields: Fields, payload: bytes) -> None:
        source_port, target_port = fields[3], fields[4]
        if not target_port:
            if source_port:  # else for no socket: ignored
                self._counters.recv_ping += 1
                self._answer_ping(source_port)
            return
        extension = _NO_EXTENSION
        if fields[9] or fields[10]:
            extension = (fields[9] << 64 | fields[10]).to_bytes(EXTENSION_BYTES, "big")
            for entry in exthdr.parse(extension):
                if entry.type == ExtensionType.RDMA:
                    self._around.key_used(target_port, entry.values[0])
        self._around.deliver(source_port, target_port, payload, extension)


def _identity(fields: Fields) -> tuple[int, int, int, int]:
    """Return what must be equal in all fragments: number, length and ports."""
    return fields[0], fields[2], fields[3], fields[4]
