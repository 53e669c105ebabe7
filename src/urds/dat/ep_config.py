"""Attributes of endpoints: what may be asked for, and the defaults.

Source: dat.md section 4.1, creation checks; section 22, trap 19 for endpoints on a shared queue.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from urds.dat.errors import bad_argument, dat_error
from urds.dat.handles import live
from urds.dat.numbers import DAT_HW_DEFAULT, CompletionFlag, Qos, ServiceType
from urds.dat.records import EpAttr
from urds.dat.returns import ReturnType

if TYPE_CHECKING:
    from urds.dat.evd import EventDispatcher
    from urds.dat.ia import InterfaceAdapter
    from urds.dat.records import IaAttr
    from urds.dat.srq import SharedReceiveQueue

_RECV_FLAGS: Final = {
    CompletionFlag.DEFAULT,
    CompletionFlag.UNSIGNALLED,
    CompletionFlag.SOLICITED_WAIT,
    CompletionFlag.EVD_THRESHOLD,
}
_REQUEST_FLAGS: Final = {
    CompletionFlag.DEFAULT,
    CompletionFlag.UNSIGNALLED,
    CompletionFlag.EVD_THRESHOLD,
}


def creation_attr(
    ia: InterfaceAdapter,
    attr: EpAttr | None,
    recv_evd: EventDispatcher | None,
    request_evd: EventDispatcher | None,
    srq: SharedReceiveQueue | None,
) -> EpAttr:
    """Return the attributes of a new endpoint: those given, checked, or the defaults.

    Raises as `check_attr`; DatInvalidHandle: no live shared receive queue. DatInvalidParameter:
    one without attributes.
    """
    has_recv_evd, has_request_evd = recv_evd is not None, request_evd is not None
    if srq is not None:
        from urds.dat.srq import SharedReceiveQueue

        live(srq, SharedReceiveQueue)
        if attr is None:
            raise bad_argument(7, "no attributes: an endpoint on a shared queue needs them")
    found = attr or _default_attr(has_recv_evd=has_recv_evd, has_request_evd=has_request_evd)
    check_attr(
        found,
        ia.attr,
        argument=6 if srq is None else 7,
        has_recv_evd=has_recv_evd,
        has_request_evd=has_request_evd,
        has_srq=srq is not None,
    )
    return found


def check_attr(
    attr: EpAttr,
    limits: IaAttr,
    *,
    argument: int,
    has_recv_evd: bool,
    has_request_evd: bool,
    has_srq: bool,
) -> None:
    """Accept attributes or say what is wrong with them; `argument` is where they came from.

    Raises DatInvalidParameter: a value that cannot be, or a queue without its dispatcher and the
    other way round. DatModelNotSupported: a service or quality that is not offered.
    """
    if attr.service_type != ServiceType.RC:
        raise dat_error(ReturnType.MODEL_NOT_SUPPORTED, detail=f"service {attr.service_type!r}")
    if attr.qos != Qos.BEST_EFFORT:
        raise dat_error(ReturnType.MODEL_NOT_SUPPORTED, detail=f"quality {attr.qos!r}")
    if attr.recv_completion_flags not in _RECV_FLAGS:
        raise bad_argument(argument, f"recv_completion_flags {attr.recv_completion_flags!r}")
    if attr.request_completion_flags not in _REQUEST_FLAGS:
        raise bad_argument(argument, f"request_completion_flags {attr.request_completion_flags!r}")
    _check_limits(attr, limits, argument, has_srq=has_srq)
    if not has_srq:
        _check_pair("recv", attr.max_recv_dtos, argument, has_evd=has_recv_evd)
    _check_pair("request", attr.max_request_dtos, argument, has_evd=has_request_evd)


def high_watermark(value: int) -> int | None:
    """Return a mark of the attributes as the engine takes it.

    DAT_HW_DEFAULT is none, and so is 0, which a program that cleared its structure would give.
    """
    return None if value in (DAT_HW_DEFAULT, 0) else value


def _check_limits(attr: EpAttr, limits: IaAttr, argument: int, *, has_srq: bool) -> None:
    lowest_recv = DAT_HW_DEFAULT if has_srq else 0
    bounds = (
        ("max_recv_dtos", lowest_recv, limits.max_dto_per_ep),
        ("max_request_dtos", 0, limits.max_dto_per_ep),
        ("max_recv_iov", 0 if has_srq else 1, limits.max_iov_segments_per_dto),
        ("max_request_iov", 1, limits.max_iov_segments_per_dto),
        ("max_rdma_read_iov", 1, limits.max_iov_segments_per_rdma_read),
        ("max_rdma_write_iov", 1, limits.max_iov_segments_per_rdma_write),
        ("max_rdma_read_in", 0, limits.max_rdma_read_per_ep_in),
        ("max_rdma_read_out", 0, limits.max_rdma_read_per_ep_out),
        ("max_message_size", 0, limits.max_message_size),
        ("max_rdma_size", 0, limits.max_rdma_size),
        ("srq_soft_hw", DAT_HW_DEFAULT, limits.max_recv_per_srq),
    )
    for name, lowest, highest in bounds:
        value = getattr(attr, name)
        if not lowest <= value <= highest:
            raise bad_argument(argument, f"{name} {value}, from {lowest} to {highest}")


def _check_pair(direction: str, dtos_max: int, argument: int, *, has_evd: bool) -> None:
    if bool(dtos_max) != has_evd:
        state = "a" if has_evd else "no"
        detail = f"max_{direction}_dtos {dtos_max} with {state} {direction} dispatcher"
        raise bad_argument(argument, detail)


def _default_attr(*, has_recv_evd: bool, has_request_evd: bool) -> EpAttr:
    # A queue goes with its dispatcher: without one the endpoint takes nothing of that kind.
    attr = EpAttr()
    return replace(
        attr,
        max_recv_dtos=attr.max_recv_dtos if has_recv_evd else 0,
        max_request_dtos=attr.max_request_dtos if has_request_evd else 0,
    )
