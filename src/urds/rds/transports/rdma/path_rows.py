"""What tables show of a path over RDMA. No lock held."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from urds.rds.plane.contract import Carrier, MessageRow, PathRow, RdmaRow

if TYPE_CHECKING:
    from urds.common.types import IPAddress
    from urds.rds.control.rdma_events import PeerKey
    from urds.rds.transports.rdma.courier import CoreLock

_ROWS_MAX: Final = 65536  # of each message table


class PathRows:
    """The part of an `RdmaPath` that describes it."""

    lock: CoreLock
    core: Any  # `core.ConnectionCore`
    link: Any  # `link.Link`, None without a connection
    local: IPAddress
    peer: IPAddress
    key: PeerKey
    index: int

    def row(self) -> PathRow:
        """Describe the path for rds-info."""
        with self.lock:
            return self._row()

    def _row(self) -> PathRow:
        core = self.core
        unsent = sum(1 for _ in core.outgoing.unsent_entries())
        return PathRow(
            local=self.local,
            peer=self.peer,
            index=self.index,
            transport=Carrier.RDMA,
            tos=self.key.tos,
            up=self.link is not None,
            sending=core.wants_work(),
            held=False,
            sequence_next=core.outgoing.sequence_next,
            sequence_expected=core.incoming.sequence_expected,
            unsent_messages=unsent,
            unacknowledged_messages=core.outgoing.message_count() - unsent,
            local_stream=None,
            peer_stream=None,
            header_remaining_bytes=0,
            data_remaining_bytes=0,
            stream_sent_bytes=0,
            stream_expected_bytes=0,
            stream_acknowledged_bytes=0,
            rdma=RdmaRow(self.key.passive) if self.link is None else self.link.row(),
        )

    def unsent_rows(self) -> list[MessageRow]:
        """List what was never sent."""
        with self.lock:
            entries = self.core.outgoing.unsent_entries()
            return [self._message_row(0, *one) for _, *one in islice(entries, _ROWS_MAX)]

    def sent_rows(self) -> list[MessageRow]:
        """List what was sent and is not acknowledged."""
        with self.lock:
            entries = self.core.outgoing.sent_entries()
            return [self._message_row(*one) for one in islice(entries, _ROWS_MAX)]

    def _message_row(
        self, sequence: int, payload_bytes: int, source_port: int, target_port: int
    ) -> MessageRow:
        here, there = (self.local, source_port), (self.peer, target_port)
        return MessageRow(sequence, payload_bytes, *here, *there, self.key.tos)
