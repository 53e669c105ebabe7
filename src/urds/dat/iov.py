"""Lists of segments: checked when they are posted, handed on as scatter/gather entries.

Source: docs/reference/dat.md 10, 11, post-time checks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from urds.dat.errors import bad_argument, dat_error
from urds.dat.records import LmrTriplet
from urds.dat.returns import ReturnType, Subtype
from urds.verbs.engine.numbers import AccessFlag
from urds.verbs.engine.work import SGE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from urds.verbs.engine.keys import KeyTable, Region


def pieces_of(
    iov: Sequence[LmrTriplet], keys: KeyTable, pz: object, *, write: bool, segments_max: int
) -> list[SGE]:
    """Return the segments as the engine takes them; those of length 0 mean nothing and go.

    `write`: the memory will be written. Raises DatInvalidParameter: too many segments, one that is
    none or outside its region. DatProtectionViolation: a region of another zone.
    DatPrivilegesViolation: a context that is not valid, or a region that may not be written.
    """
    if len(iov) > segments_max:
        raise bad_argument(2, f"{len(iov)} segments, limit {segments_max}")
    found = []
    for segment in iov:
        if not isinstance(segment, LmrTriplet):
            raise bad_argument(3, f"{segment!r} is no piece of local memory")
        if segment.segment_length == 0:
            continue
        _check(segment, keys.region(segment.lmr_context), pz, write=write)
        found.append(SGE(segment.virtual_address, segment.segment_length, segment.lmr_context))
    return found


def _check(segment: LmrTriplet, region: Region | None, pz: object, *, write: bool) -> None:
    context = f"lmr_context {segment.lmr_context:#x}"
    wanted = Subtype.PRIVILEGES_WRITE if write else Subtype.PRIVILEGES_READ
    if region is None:
        raise dat_error(ReturnType.PRIVILEGES_VIOLATION, wanted, f"{context} is not valid")
    if region.pd is not pz:
        subtype = Subtype.PROTECTION_WRITE if write else Subtype.PROTECTION_READ
        raise dat_error(
            ReturnType.PROTECTION_VIOLATION, subtype, f"{context} is of another protection zone"
        )
    if write and AccessFlag.LOCAL_WRITE not in region.access:
        raise dat_error(ReturnType.PRIVILEGES_VIOLATION, wanted, f"{context} may not be written")
    offset = segment.virtual_address - region.address
    if segment.segment_length < 0 or not 0 <= offset <= region.length - segment.segment_length:
        raise bad_argument(
            3,
            f"{segment.segment_length} bytes at {segment.virtual_address:#x}, {context} has "
            f"{region.length} at {region.address:#x}",
        )
