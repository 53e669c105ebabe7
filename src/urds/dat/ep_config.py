"""What is set of an endpoint: attributes, zone, shared queue, dispatchers; what may change when.

The dispatchers and the ordinary attributes may change until a connection is asked for or accepted,
the zone while no service point and no request has a say in the endpoint, attributes of the
transport or the provider before anything has begun. The shared receive queue never changes.
Source: docs/reference/dat.md 4.1 (creation checks), 4.2, 22 (trap 19, endpoints on a shared queue).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any, Final, Protocol

from urds.dat.constants import (
    DAT_HW_DEFAULT,
    CompletionFlag,
    EpState,
    EventNumber,
    Qos,
    ServiceType,
)
from urds.dat.ep_state import MODIFIABLE, Input, wrong_state
from urds.dat.errors import bad_argument, dat_error
from urds.dat.evd import EventDispatcher
from urds.dat.evd_streams import Role
from urds.dat.handles import DatObject, OpenDevice, live, live_zone
from urds.dat.records import EpAttr, IaAttr
from urds.dat.returns import ReturnType
from urds.dat.srq import SharedReceiveQueue
from urds.verbs.engine.queue_pair import QueuePair

_REQUEST_FLAGS: Final = {
    CompletionFlag.DEFAULT,
    CompletionFlag.UNSIGNALLED,
    CompletionFlag.EVD_THRESHOLD,
}
_RECV_FLAGS: Final = _REQUEST_FLAGS | {CompletionFlag.SOLICITED_WAIT}

_STREAMS: Final = (
    (Role.RECV, "recv_evd"),
    (Role.REQUEST, "request_evd"),
    (Role.CONNECTION, "connect_evd"),
)
_ATTR_FIELDS: Final = {field.name for field in fields(EpAttr)}
_SPECIFIC_FIELDS: Final = {name for name in _ATTR_FIELDS if "_specific" in name}
_CHANGEABLE: Final = _ATTR_FIELDS | {f"{name}_handle" for _, name in _STREAMS} | {"pz_handle"}
_ZONE_STATES: Final = frozenset({EpState.UNCONNECTED, EpState.TENTATIVE_CONNECTION_PENDING})


class EpOwner(Protocol):
    """What the parts of an endpoint, its connection and its transfers, know of it."""

    live: bool
    state: EpState
    device: OpenDevice
    engine: QueuePair

    def demand_live(self) -> None:
        """Raise DatInvalidHandle if it was freed."""

    def move(self, event: Input) -> None:
        """Change the state."""

    def post_connection(self, number: EventNumber, private_data: bytes) -> None:
        """Queue an event of the connection."""


class EpConfig:
    """Attributes, zone, shared queue and dispatchers of one endpoint. Lock held throughout."""

    def __init__(self, owner: DatObject, attr: EpAttr, srq: SharedReceiveQueue | None) -> None:
        self._owner = owner
        self.attr = attr
        self.srq = srq
        self.pz: DatObject | None = None
        self.recv_evd: EventDispatcher | None = None
        self.request_evd: EventDispatcher | None = None
        self.connect_evd: EventDispatcher | None = None

    def feed(
        self,
        recv_evd: EventDispatcher | None,
        request_evd: EventDispatcher | None,
        connect_evd: EventDispatcher | None,
        attr: EpAttr,
    ) -> None:
        """Let the endpoint feed these dispatchers with these attributes instead of those of before.

        Both change, or nothing does. Raises DatInvalidHandle, DatInvalidParameter.
        """
        wanted = (recv_evd, request_evd, connect_evd)
        for (role, _), evd in zip(_STREAMS, wanted, strict=True):
            if evd is not None:
                live(evd, EventDispatcher, role.subtype)
                self._owner.device.demand_own(evd)
        before, old_attr = tuple(getattr(self, name) for _, name in _STREAMS), self.attr
        # All at once: two streams that share a dispatcher may only differ from it together.
        self._detach()
        try:
            self._attach(wanted, attr)
        except Exception:
            self._detach()
            self._attach(before, old_attr)
            raise

    def set_zone(self, zone: DatObject | None) -> None:
        """Use a zone instead of the one of before."""
        self._owner.hold(zone)
        self._owner.drop(self.pz)
        self.pz = zone

    def modify(self, changes: dict[str, Any], state: EpState) -> None:
        """Change fields of EpParam or EpAttr by name; all of them or none.

        Raises DatInvalidParameter, DatInvalidHandle, DatInvalidState.
        """
        if unknown := sorted(changes.keys() - _CHANGEABLE):
            raise bad_argument(2, f"{', '.join(unknown)} cannot be changed")
        allowed: frozenset[EpState] = MODIFIABLE
        if "pz_handle" in changes:
            allowed &= _ZONE_STATES
        if changes.keys() & _SPECIFIC_FIELDS:
            allowed &= {EpState.UNCONNECTED}
        if state not in allowed:
            raise wrong_state(state, f"{', '.join(sorted(changes))} cannot change")
        evds = [changes.get(f"{name}_handle", getattr(self, name)) for _, name in _STREAMS]
        attr_changes = {name: value for name, value in changes.items() if name in _ATTR_FIELDS}
        attr = replace(self.attr, **attr_changes)
        check_attr(attr, self._owner.device.attr, evds[0], evds[1], self.srq, argument=3)
        zone = live_zone(changes["pz_handle"]) if "pz_handle" in changes else None
        self._owner.device.demand_own(zone)
        self.feed(evds[0], evds[1], evds[2], attr)
        if zone is not None:
            self.set_zone(zone)

    def _attach(self, evds: Iterable[EventDispatcher | None], attr: EpAttr) -> None:
        self.attr = attr
        flags = {Role.RECV: attr.recv_completion_flags, Role.REQUEST: attr.request_completion_flags}
        for (role, name), evd in zip(_STREAMS, evds, strict=True):
            if evd is not None:
                evd.attach(role, self._owner, flags.get(role, CompletionFlag.DEFAULT))
                setattr(self, name, evd)

    def _detach(self) -> None:
        for role, name in _STREAMS:
            evd: EventDispatcher | None = getattr(self, name)
            if evd is not None:
                evd.detach(role, self._owner)
                setattr(self, name, None)


def creation_attr(
    limits: IaAttr,
    attr: EpAttr | None,
    recv_evd: EventDispatcher | None,
    request_evd: EventDispatcher | None,
    srq: SharedReceiveQueue | None,
) -> EpAttr:
    """Return the attributes of a new endpoint: those given, checked, or the defaults.

    Raises as `check_attr`; DatInvalidHandle: no live shared receive queue. DatInvalidParameter:
    one without attributes.
    """
    if srq is not None:
        live(srq, SharedReceiveQueue)
        if attr is None:
            raise bad_argument(7, "no attributes: an endpoint on a shared queue needs them")
    if attr is None:
        attr = EpAttr()
        # A queue goes with its dispatcher: without one the endpoint takes nothing of that kind.
        attr = replace(
            attr,
            max_recv_dtos=0 if recv_evd is None else attr.max_recv_dtos,
            max_request_dtos=0 if request_evd is None else attr.max_request_dtos,
        )
    check_attr(attr, limits, recv_evd, request_evd, srq, argument=6 if srq is None else 7)
    return attr


def check_attr(
    attr: EpAttr,
    limits: IaAttr,
    recv_evd: EventDispatcher | None,
    request_evd: EventDispatcher | None,
    srq: SharedReceiveQueue | None,
    *,
    argument: int,
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
    _check_limits(attr, limits, argument, has_srq=srq is not None)
    if srq is None:
        _check_pair("recv", attr.max_recv_dtos, argument, has_evd=recv_evd is not None)
    _check_pair("request", attr.max_request_dtos, argument, has_evd=request_evd is not None)


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
