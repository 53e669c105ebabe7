"""What an atomic operation makes of eight octets: pure arithmetic on 64-bit values.

A plain compare-and-swap is a masked one with all bits in both masks, a plain fetch-and-add a
masked one without boundaries. Source: commit 5e80ba8ff0bd of linux v2.6.35, which brought masked
operations; RFC 7306 section 5 has the same rules.
"""

from typing import Final

from urds.verbs.engine.numbers import CELL_MASK
from urds.verbs.engine.packets import Packet, PacketKind

_ADDS: Final = {PacketKind.ATOMIC_ADD, PacketKind.MASKED_ADD}
_TOP: Final = 1 << 63


def value_after(packet: Packet, before: int) -> int:
    """Return what the cell holds after the atomic operation that a packet asks for."""
    if packet.kind in _ADDS:
        return add_in_fields(before, packet.compare_add, boundary=packet.boundary)
    if (before ^ packet.compare_add) & packet.compare_mask:
        return before
    return before & ~packet.swap_mask | packet.swap & packet.swap_mask


def add_in_fields(value: int, addend: int, *, boundary: int) -> int:
    """Add within fields: each bit of `boundary` is the highest of one, and nothing leaves it.

    The highest of all 64 bits always ends a field. All fields are added at once: without their
    highest bits they cannot overflow, and these add to what came up to them like digits alone.
    """
    highest = boundary | _TOP
    others = CELL_MASK & ~highest
    return ((value & others) + (addend & others)) ^ ((value ^ addend) & highest)
