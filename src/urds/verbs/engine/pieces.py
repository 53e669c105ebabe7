"""Scatter/gather: the bytes of a message in the pieces of memory that a work request names.

Each access looks the key up again, so memory that was deregistered in between is not touched.
"""

from collections.abc import Sequence

from urds.common.types import BytesLike
from urds.verbs.engine.keys import AccessError, KeyTable
from urds.verbs.engine.numbers import WCStatus
from urds.verbs.engine.packets import Syndrome
from urds.verbs.engine.work import SGE, SendWR


def total_bytes(sg: Sequence[SGE]) -> int:
    """Return the total length of the pieces in bytes."""
    if len(sg) == 1:
        return sg[0].length
    return sum(piece.length for piece in sg)


def message_bytes(wr: SendWR) -> int:
    """Return the length of a send work request in bytes: of its pieces, or of its own data."""
    return total_bytes(wr.sg) if wr.data is None else len(wr.data)


def gather(keys: KeyTable, pd: object, sg: Sequence[SGE], offset: int, length: int) -> BytesLike:
    """Return `length` bytes of the message from `offset`: a view, or a copy over two pieces.

    Raises AccessError (LOC_PROT_ERR) where a key does not allow it.
    """
    if length == 0:
        return b""
    found: list[memoryview] = []
    for piece in sg:
        if offset >= piece.length:
            offset -= piece.length
            continue
        count = min(length, piece.length - offset)
        found.append(keys.local(piece.lkey, piece.addr + offset, count, pd=pd, write=False))
        offset, length = 0, length - count
        if not length:
            break
    assert not length, "more bytes than the pieces have"
    return found[0] if len(found) == 1 else b"".join(found)


def scatter(keys: KeyTable, pd: object, sg: Sequence[SGE], offset: int, data: BytesLike) -> None:
    """Copy bytes into the pieces, from `offset` bytes after their start. Copies once.

    Raises AccessError: LOC_PROT_ERR where a key does not allow it, LOC_LEN_ERR when the pieces
    end before the data. What lies before the fault has been written.
    """
    source = memoryview(data)
    for piece in sg:
        if not source:
            return
        if offset >= piece.length:
            offset -= piece.length
            continue
        count = min(len(source), piece.length - offset)
        target = keys.local(piece.lkey, piece.addr + offset, count, pd=pd, write=True)
        target[:] = source[:count]
        offset, source = 0, source[count:]
    if source:
        raise AccessError(
            f"{len(source)} bytes more than the pieces hold",
            status=WCStatus.LOC_LEN_ERR,
            syndrome=Syndrome.NAK_INVALID_REQUEST,
        )
