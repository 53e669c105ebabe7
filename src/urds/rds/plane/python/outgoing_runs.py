"""Framing of a batch of like messages (`alike`) in a few slices.

The result is that of the loop in `Outgoing`, message by message: numbers, stream positions,
acknowledgement requests, counters. A value machine: no I/O, no clock, no lock.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, cast

from urds.rds.plane.contract import Buffer, Release
from urds.rds.plane.python import alike
from urds.rds.wire.header import HEADER, HEADER_BYTES

if TYPE_CHECKING:
    from urds.rds.plane.python.outgoing import Outgoing, Unsent


def frame_run(own: Outgoing, out: list[Buffer], bytes_max: int, acknowledgement: int) -> int:
    """Frame the batch at the head of `unsent`, if there is one; return the bytes made.

    It leaves out the last message, whose acknowledgement request is decided apart.
    """
    sequence, position, sum_field = own.sequence_next, own.position, 0
    owner, source_port, target_port, payload, _ = cast("Unsent", own.unsent[0])
    payload_bytes = len(payload)
    step, ports = HEADER_BYTES + payload_bytes, source_port + target_port
    if own.checksum:
        sum_field = alike.sum_of(sequence, acknowledgement, payload_bytes, ports)
    before = len(own.unsent)
    count = min(before - 1, bytes_max // step, alike.count_max(sequence, sum_field))
    if count < alike.RUN_MIN or payload_bytes > alike.RUN_BYTES_MAX:
        return 0
    payloads = alike.payloads_at_head(own.unsent, count)
    if not payloads or count * payload_bytes >= own.unacked_bytes_left:
        return 0
    asking = range(0)
    if own.release is Release.PEER_ACKNOWLEDGED:
        first = max(0, own.unacked_packets_left - 1)  # none are left if many were cancelled
        asking = range(first, count, own.limits.unacked_packets_max)
    fields = (sequence, acknowledgement, payload_bytes, source_port, target_port)
    data = alike.emit(HEADER.pack(*fields, 0, 0, 0, sum_field, 0, 0), payloads, asking)
    numbers = range(sequence, sequence + count)
    ends = range(position + step, position + len(data) + 1, step)
    same = (itertools.repeat(one) for one in (owner, source_port, target_port))
    messages = zip(numbers, ends, *same, payloads, itertools.repeat(b""))
    out.append(data)
    if own.release is Release.PEER_ACKNOWLEDGED:
        _count_down(own, asking, count, payload_bytes)
    return own.keep_numbered(messages, sequence + count, position + len(data))


def _count_down(own: Outgoing, asking: range, count: int, payload_bytes: int) -> None:
    """Count down, behind the last message that requested an ack, to the next that has to."""
    if asking:
        own.allow_unacked()
        own.counters.send_ack_required += len(asking)
        count -= asking[-1] + 1
    own.unacked_packets_left -= count
    own.unacked_bytes_left -= count * payload_bytes
