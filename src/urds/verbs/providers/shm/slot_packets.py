"""Packets as slots: which field of a slot holds which number of a packet, and what is refused.

docs/protocol/verbs-channel.md has the table. What is refused here ends the channel: no writer that
keeps the rules makes it. Whether a packet makes sense in the state of its queue pair is the queue
pair's matter.
"""

from struct import Struct
from typing import Final

from urds.common.errors import RemoteProtocolError
from urds.common.types import BytesLike
from urds.verbs.engine.numbers import PSN_MASK
from urds.verbs.engine.packets import ATOMICS, PACKET_FLAGS, Packet, PacketFlag, PacketKind
from urds.verbs.providers.shm.slots import Fields, Slot

_ACKNOWLEDGES: Final = 128  # among the flags: the field `acknowledged` counts
_OPERANDS: Final = Struct("=QQQQQ")  # compare or add, swap, both masks, boundary

_SEND, _WRITE, _ACK = PacketKind.SEND, PacketKind.WRITE, PacketKind.ACK
_READ_REQUEST, _READ_RESPONSE = PacketKind.READ_REQUEST, PacketKind.READ_RESPONSE
_ATOMIC_RESPONSE, _DATAGRAM = PacketKind.ATOMIC_RESPONSE, PacketKind.DATAGRAM
_KINDS: Final = {int(kind): kind for kind in PacketKind}
_CARRIES: Final = {_SEND, _WRITE, _READ_RESPONSE, _DATAGRAM}
_FIRST_LAST: Final = int(PacketFlag.FIRST | PacketFlag.LAST)
_PLACED: Final = int(PacketFlag.PLACED)
_INVALIDATE: Final = int(PacketFlag.INVALIDATE)
_IMMEDIATE: Final = int(PacketFlag.IMMEDIATE)
_WITH_IMMEDIATE: Final = _IMMEDIATE | _INVALIDATE


def emit_slot(packet: Packet) -> tuple[Fields, BytesLike]:
    """Return the fields of a packet's slot, and its payload, which is not copied."""
    kind, bits = packet.kind, int(packet.flags)
    msn, address, key, length = packet.msn, packet.address, packet.rkey, packet.offset
    payload: BytesLike = packet.payload
    if kind is _ACK:
        length = packet.syndrome
    elif kind is _DATAGRAM:
        msn, key = packet.source_qpn, packet.qkey
    elif kind is _READ_REQUEST or bits & _PLACED:
        length = packet.length
    elif kind is _ATOMIC_RESPONSE:
        address = packet.compare_add
    elif kind in ATOMICS:
        payload = _OPERANDS.pack(
            packet.compare_add, packet.swap, packet.compare_mask, packet.swap_mask, packet.boundary
        )
    acknowledged = packet.acknowledged
    if acknowledged is None:
        acknowledged = 0
    else:
        bits |= _ACKNOWLEDGES
    fields = (
        int(kind), bits, 0, packet.target_qpn, packet.psn, msn,
        packet.immediate if bits & _WITH_IMMEDIATE else 0,
        acknowledged, address, key, length,
    )  # fmt: skip
    return fields, payload


def parse_slot(slot: Slot) -> Packet:
    """Return the packet of a slot; its payload is the slot's.

    Raises RemoteProtocolError for what no packet may be.
    """
    kind_number, bits, zero, target, psn, msn, immediate, acknowledged, address, key, length = (
        slot.fields
    )
    payload = slot.payload
    kind = _KINDS.get(kind_number)
    if kind is None or zero or target > PSN_MASK or psn > PSN_MASK or acknowledged > PSN_MASK:
        raise RemoteProtocolError(f"slot {slot.fields}")
    packet = Packet(kind, target, psn, PACKET_FLAGS[bits & ~_ACKNOWLEDGES], payload=payload)
    if bits & _ACKNOWLEDGES:
        packet.acknowledged = acknowledged
    if bits & _WITH_IMMEDIATE:
        packet.immediate = immediate
        if bits & _INVALIDATE and kind is not _SEND:
            raise RemoteProtocolError(f"invalidation in a slot of kind {kind.name}")
    size = len(payload)
    if bits & _PLACED:
        if kind is not _WRITE or bits & _FIRST_LAST != _FIRST_LAST or size:
            raise RemoteProtocolError(f"PLACED {kind.name} of {size} bytes, flags {bits:#x}")
        packet.length = length
    elif kind is _READ_REQUEST:
        packet.length = length
    elif kind in _CARRIES and kind is not _DATAGRAM:
        packet.offset = length
    _set_rest(packet, kind, msn, address, key, length)
    if size and kind not in _CARRIES and kind not in ATOMICS:
        raise RemoteProtocolError(f"{kind.name} with {size} bytes")
    return packet


def _set_rest(
    packet: Packet, kind: PacketKind, msn: int, address: int, key: int, length: int
) -> None:
    """Set what the kind of a packet says besides. Raises RemoteProtocolError."""
    if kind is _ACK:
        packet.msn, packet.syndrome = msn, length
    elif kind is _DATAGRAM:
        packet.source_qpn, packet.qkey = msn, key
    elif kind is _ATOMIC_RESPONSE:
        packet.msn, packet.compare_add = msn, address
    else:
        packet.msn, packet.address, packet.rkey = msn, address, key
        if kind in ATOMICS:
            _set_operands(packet)


def _set_operands(packet: Packet) -> None:
    if len(packet.payload) != _OPERANDS.size:
        raise RemoteProtocolError(
            f"{packet.kind.name} with {len(packet.payload)} bytes, not {_OPERANDS.size}"
        )
    (
        packet.compare_add, packet.swap, packet.compare_mask, packet.swap_mask, packet.boundary,
    ) = _OPERANDS.unpack(packet.payload)  # fmt: skip
    packet.payload = b""
