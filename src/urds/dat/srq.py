"""Shared receive queues: buffers that several endpoints take as their messages arrive.

A buffer is *available* from its post until an endpoint takes it, then allocated to that endpoint
until its completion is generated, and *outstanding* until the program has taken that completion
from the dispatcher: available <= outstanding <= max_recv_dtos. Source: docs/reference/dat.md 12.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from urds.dat.constants import DAT_SRQ_LW_DEFAULT, HandleType, SrqInfo, SrqState, SrqWatermarks
from urds.dat.errors import bad_argument, dat_error
from urds.dat.handles import DatObject, live_zone, while_live
from urds.dat.records import SrqAttr
from urds.dat.returns import ReturnType, Subtype
from urds.verbs.records import RecvWR

if TYPE_CHECKING:
    from collections.abc import Sequence

    from urds.dat.records import LmrTriplet


@dataclass(frozen=True, slots=True)
class SrqParam:
    """What a shared receive queue is at this moment. Mask bits: `SrqField`.

    A count is `None` in the object layer where the C call gives DAT_VALUE_UNKNOWN.
    """

    ia_handle: DatObject
    srq_state: SrqState
    pz_handle: DatObject
    max_recv_dtos: int
    max_recv_iov: int
    low_watermark: int
    available_dto_count: int | None
    outstanding_dto_count: int | None


class SharedReceiveQueue(DatObject, kind=HandleType.SRQ):
    """A queue of receive buffers, unattached and operational when it is made."""

    def __init__(self, pz: DatObject, attr: SrqAttr) -> None:
        """Make a queue whose buffers are of `pz`.

        Raises DatInvalidParameter: a size that is not 1 to the adapter's limit, or a low
        watermark other than DAT_SRQ_LW_DEFAULT, which would fire at once on an empty queue.
        """
        live_zone(pz)
        _check_attr(attr, pz.device.attr.max_recv_per_srq, pz.device.attr.max_iov_segments_per_dto)
        super().__init__(pz.ia)
        self.pz: DatObject = pz
        self.max_recv_dtos = attr.max_recv_dtos
        self.max_recv_iov = attr.max_recv_iov
        self.low_watermark = DAT_SRQ_LW_DEFAULT
        self.outstanding = 0
        self.engine = self.device.adapter.shared_receive_queue(
            attr.max_recv_dtos, attr.max_recv_iov, pd=pz
        )
        self._cookies: dict[int, Any] = {}
        self._numbers = itertools.count(1, 2)  # as those of other receives: see `Transfers`
        self.device.adopt(self.engine, self)
        self.hold(pz)
        self.device.add(self)

    @while_live
    def post_recv(self, iov: Sequence[LmrTriplet], cookie: Any = None) -> None:
        """Give a buffer to the queue. Every completion wakes waiters as its endpoint's flags say.

        Raises DatInsufficientResources: `max_recv_dtos` are outstanding, completions that are
        not dequeued included. DatInvalidParameter, DatProtectionViolation, DatPrivilegesViolation.
        """
        sg, _ = self.device.pieces(iov, self.pz, write=True, segments_max=self.max_recv_iov)
        if self.outstanding >= self.max_recv_dtos:
            raise dat_error(
                ReturnType.INSUFFICIENT_RESOURCES,
                Subtype.RESOURCE_SRQ,
                f"{self.outstanding} receives are outstanding, limit {self.max_recv_dtos}",
            )
        number = next(self._numbers)
        self.engine.post(RecvWR(number, sg))
        self._cookies[number] = cookie
        self.outstanding += 1

    @while_live
    def query(self) -> SrqParam:
        """Return what the queue is; a count that the provider does not support is `None`."""
        info = SrqInfo(self.device.provider_attr.srq_info_supported)
        available = len(self.engine) if SrqInfo.AVAILABLE_DTO_COUNT in info else None
        outstanding = self.outstanding if SrqInfo.OUTSTANDING_DTO_COUNT in info else None
        return SrqParam(
            ia_handle=self.ia,
            srq_state=SrqState.OPERATIONAL,
            pz_handle=self.pz,
            max_recv_dtos=self.max_recv_dtos,
            max_recv_iov=self.max_recv_iov,
            low_watermark=self.low_watermark,
            available_dto_count=available,
            outstanding_dto_count=outstanding,
        )

    @while_live
    def resize(self, max_recv_dtos: int) -> None:
        """Change how many receives may be outstanding; no buffer is lost.

        Raises DatInvalidParameter: below 1 or above the adapter's limit. DatInvalidState: below
        what is outstanding, or below the low watermark.
        """
        limit = self.device.attr.max_recv_per_srq
        if not 1 <= max_recv_dtos <= limit:
            raise bad_argument(2, f"max_recv_dtos {max_recv_dtos}, from 1 to {limit}")
        floor = max(self.outstanding, self.low_watermark)
        if max_recv_dtos < floor:
            detail = (
                f"max_recv_dtos {max_recv_dtos}, {self.outstanding} are outstanding and the "
                f"low watermark is {self.low_watermark}"
            )
            raise dat_error(ReturnType.INVALID_STATE, detail=detail)
        self.engine.resize(max_recv_dtos)
        self.max_recv_dtos = max_recv_dtos

    @while_live
    def set_low_watermark(self, low_watermark: int) -> None:
        """Ask for one event when fewer buffers than this are available, at once if so; 0: never.

        Once it has fired it is silent until it is set again. Raises DatInvalidParameter: below 0
        or above `max_recv_dtos`. DatModelNotSupported: the provider is degraded.
        """
        marks = SrqWatermarks(self.device.provider_attr.srq_watermarks_supported)
        if SrqWatermarks.SRQ_LOW not in marks:
            raise dat_error(ReturnType.MODEL_NOT_SUPPORTED, detail="low watermark of an SRQ")
        if not 0 <= low_watermark <= self.max_recv_dtos:
            raise bad_argument(2, f"low watermark {low_watermark}, 0 to {self.max_recv_dtos}")
        self.low_watermark = low_watermark
        self.engine.arm_limit(low_watermark)
        self.device.adapter.finish_pass()

    # -- for endpoints; lock held

    def cookie_of(self, number: int) -> Any:
        """Return the cookie of a receive that completes, and forget it."""
        return self._cookies.pop(number)

    def count_taken(self) -> None:
        """Count a completion that left its dispatcher."""
        self.outstanding -= 1

    # -- inside

    def _dispose(self) -> None:
        self.device.disown(self.engine)
        self._cookies.clear()


def _check_attr(attr: SrqAttr, recv_max: int, iov_max: int) -> None:
    if not 1 <= attr.max_recv_dtos <= recv_max:
        raise bad_argument(3, f"max_recv_dtos {attr.max_recv_dtos}, from 1 to {recv_max}")
    if not 1 <= attr.max_recv_iov <= iov_max:
        raise bad_argument(3, f"max_recv_iov {attr.max_recv_iov}, from 1 to {iov_max}")
    if attr.low_watermark != DAT_SRQ_LW_DEFAULT:
        raise bad_argument(3, f"low watermark {attr.low_watermark} of an empty queue, not 0")
