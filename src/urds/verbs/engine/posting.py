"""What may be posted: the checks of a send work request that its caller hears of at once.

What depends on memory or on the peer is no matter of posting: it ends in a completion. Sizes are
checked here, keys when the octets are used, except inline data, which is copied while posting.
"""

import errno

from urds.verbs.engine.attributes import LinkTraits, QPAttr, QPCap
from urds.verbs.engine.keys import WindowBinding
from urds.verbs.engine.numbers import (
    CELL_MASK,
    MESSAGE_BYTES_MAX,
    QPType,
    SendFlag,
    WROpcode,
)
from urds.verbs.engine.pieces import message_bytes
from urds.verbs.engine.work import SendWR

ATOMIC_BYTES = 8

_INLINE = int(SendFlag.INLINE)
_OPCODES = frozenset(WROpcode)
_DATAGRAM = {WROpcode.SEND, WROpcode.SEND_WITH_IMM}
_OPERANDS = {
    WROpcode.ATOMIC_CMP_AND_SWP: ("compare_add", "swap"),
    WROpcode.ATOMIC_FETCH_AND_ADD: ("compare_add",),
    WROpcode.MASKED_ATOMIC_CMP_AND_SWP: ("compare_add", "swap", "compare_mask", "swap_mask"),
    WROpcode.MASKED_ATOMIC_FETCH_AND_ADD: ("compare_add", "boundary"),
}
_CARRIES = frozenset(
    {
        WROpcode.SEND,
        WROpcode.SEND_WITH_IMM,
        WROpcode.SEND_WITH_INV,
        WROpcode.RDMA_WRITE,
        WROpcode.RDMA_WRITE_WITH_IMM,
    }
)
_BRINGS_DATA = {*_OPERANDS, WROpcode.RDMA_READ}


def check_send(wr: SendWR, qp_type: QPType, cap: QPCap, attr: QPAttr, link: LinkTraits) -> None:
    """Accept a send work request or say what is wrong with it. Raises OSError: EINVAL."""
    if wr.opcode not in _OPCODES:
        raise _invalid(f"opcode {wr.opcode!r}")
    if wr.octets is not None:
        _check_octets(wr)
    length = message_bytes(wr)
    if len(wr.sg) > cap.max_send_sge:
        raise _invalid(f"send of {len(wr.sg)} pieces, limit {cap.max_send_sge} (max_send_sge)")
    for piece in wr.sg:
        if piece.length < 0:
            raise _invalid("a piece of negative length")
    if length > MESSAGE_BYTES_MAX:
        raise _invalid(f"message of {length} octets, limit {MESSAGE_BYTES_MAX}")
    if int(wr.send_flags) & _INLINE:
        if wr.opcode in _BRINGS_DATA:
            raise _invalid(f"{wr.opcode.name} cannot be inline")
        if length > cap.max_inline_data:
            raise _invalid(f"{length} octets inline, limit {cap.max_inline_data} (max_inline_data)")
    if qp_type is QPType.UD:
        _check_datagram(wr, length, link)
    else:
        _check_connected(wr, length, attr)


def _check_octets(wr: SendWR) -> None:
    """Accept octets that a request brings itself: of a SEND or WRITE, and plain ones."""
    if wr.opcode not in _CARRIES:
        raise _invalid(f"{wr.opcode.name} with octets of its own")
    octets = wr.octets
    if isinstance(octets, memoryview):
        if octets.format != "B" or octets.ndim != 1 or not octets.contiguous:
            raise _invalid(
                f"octets of format {octets.format!r}, {octets.ndim} dimensions: not plain octets"
            )
    elif not isinstance(octets, bytes):
        raise _invalid(f"octets of type {type(octets).__name__}, neither bytes nor memoryview")


def _check_datagram(wr: SendWR, length: int, link: LinkTraits) -> None:
    if wr.opcode not in _DATAGRAM:
        raise _invalid(f"{wr.opcode.name} on a datagram queue pair")
    if wr.ah is None:
        raise _invalid("datagram without an address handle")
    if length > link.mtu_bytes:
        raise _invalid(f"datagram of {length} octets, limit {link.mtu_bytes} (mtu)")


def _check_connected(wr: SendWR, length: int, attr: QPAttr) -> None:
    if wr.opcode in _BRINGS_DATA and not attr.max_rd_atomic:
        raise _invalid(f"{wr.opcode.name} with max_rd_atomic 0")
    if (operands := _OPERANDS.get(wr.opcode)) is not None:
        _check_atomic(wr, length, operands)
    if wr.opcode is WROpcode.BIND_MW and not (
        wr.window is not None and isinstance(wr.bind, WindowBinding)
    ):
        raise _invalid("BIND_MW without a window and its WindowBinding")


def _check_atomic(wr: SendWR, length: int, operands: tuple[str, ...]) -> None:
    if length != ATOMIC_BYTES:
        raise _invalid(f"room of {length} octets for an atomic result of {ATOMIC_BYTES}")
    for name in operands:
        if not 0 <= (value := getattr(wr, name)) <= CELL_MASK:
            raise _invalid(f"{name} {value:#x} of {wr.opcode.name} outside 64 bits")


def _invalid(message: str) -> OSError:
    return OSError(errno.EINVAL, message)
