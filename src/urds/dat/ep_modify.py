"""What may change in an endpoint after its creation, and when; its dispatchers.

The dispatchers and the ordinary attributes may change until a connection is asked for or accepted,
the zone while nobody else has a say in the endpoint, attributes of the transport or the provider
before anything has begun. The shared receive queue is for life. Source: dat.md section 4.2.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final

from urds.dat.ep_attr import check_attr, high_watermark
from urds.dat.ep_state import MODIFIABLE, wrong_state
from urds.dat.errors import bad_argument
from urds.dat.evd import EventDispatcher
from urds.dat.evd_streams import Role
from urds.dat.handles import live
from urds.dat.numbers import CompletionFlag, EpState
from urds.dat.records import EpAttr

if TYPE_CHECKING:
    from collections.abc import Iterable

    from urds.dat.ep import Endpoint
    from urds.dat.pz import ProtectionZone

_STREAMS: Final = (
    (Role.RECV, "recv_evd"),
    (Role.REQUEST, "request_evd"),
    (Role.CONNECTION, "connect_evd"),
)
_ATTR_FIELDS: Final = {field.name for field in fields(EpAttr)}
_SPECIFIC_FIELDS: Final = {name for name in _ATTR_FIELDS if "_specific" in name}
_CHANGEABLE: Final = _ATTR_FIELDS | {f"{name}_handle" for _, name in _STREAMS} | {"pz_handle"}
_ZONE_STATES: Final = frozenset({EpState.UNCONNECTED, EpState.TENTATIVE_CONNECTION_PENDING})


def modify_endpoint(ep: Endpoint, changes: dict[str, Any]) -> None:
    """Change fields of EpParam or EpAttr by name; all of them or none. Lock held.

    Raises DatInvalidParameter, DatInvalidHandle, DatInvalidState.
    """
    if unknown := sorted(changes.keys() - _CHANGEABLE):
        raise bad_argument(2, f"{', '.join(unknown)} cannot be changed")
    allowed: frozenset[EpState] = MODIFIABLE
    if "pz_handle" in changes:
        allowed &= _ZONE_STATES
    if changes.keys() & _SPECIFIC_FIELDS:
        allowed &= {EpState.UNCONNECTED}
    if ep.state not in allowed:
        raise wrong_state(ep.state, f"{', '.join(sorted(changes))} cannot change")
    _change(ep, changes)


def feed(
    ep: Endpoint,
    recv_evd: EventDispatcher | None,
    request_evd: EventDispatcher | None,
    connect_evd: EventDispatcher | None,
    attr: EpAttr,
) -> None:
    """Let an endpoint with these attributes feed these dispatchers instead of those of before.

    Both change, or nothing does. Raises DatInvalidHandle, DatInvalidParameter. Lock held.
    """
    wanted = (recv_evd, request_evd, connect_evd)
    for (role, _), evd in zip(_STREAMS, wanted, strict=True):
        if evd is not None:
            live(evd, EventDispatcher, role.subtype)
            ep.ia.demand_own(evd)
    before, old_attr = tuple(getattr(ep, name) for _, name in _STREAMS), ep.attr
    # All at once: two streams that share a dispatcher may only differ from it together.
    _detach(ep)
    try:
        _attach(ep, wanted, attr)
    except Exception:
        _detach(ep)
        _attach(ep, before, old_attr)
        raise


def demand_zone(pz: object) -> ProtectionZone:
    """Return a zone. Raises DatInvalidHandle for anything else."""
    from urds.dat.pz import ProtectionZone

    return live(pz, ProtectionZone)


def _attach(ep: Endpoint, evds: Iterable[EventDispatcher | None], attr: EpAttr) -> None:
    ep.attr = attr
    flags = {
        Role.RECV: attr.recv_completion_flags,
        Role.REQUEST: attr.request_completion_flags,
    }
    for (role, name), evd in zip(_STREAMS, evds, strict=True):
        if evd is not None:
            evd.attach(role, ep, flags.get(role, CompletionFlag.DEFAULT))
            setattr(ep, name, evd)


def _detach(ep: Endpoint) -> None:
    for role, name in _STREAMS:
        evd: EventDispatcher | None = getattr(ep, name)
        if evd is not None:
            evd.detach(role, ep)
            setattr(ep, name, None)


def _change(ep: Endpoint, changes: dict[str, Any]) -> None:
    recv_evd = changes.get("recv_evd_handle", ep.recv_evd)
    request_evd = changes.get("request_evd_handle", ep.request_evd)
    connect_evd = changes.get("connect_evd_handle", ep.connect_evd)
    attr_changes = {name: value for name, value in changes.items() if name in _ATTR_FIELDS}
    attr = replace(ep.attr, **attr_changes)
    check_attr(
        attr,
        ep.ia.attr,
        argument=3,
        has_recv_evd=recv_evd is not None,
        has_request_evd=request_evd is not None,
        has_srq=ep.srq is not None,
    )
    zone = demand_zone(changes["pz_handle"]) if "pz_handle" in changes else None
    ep.ia.demand_own(zone)
    feed(ep, recv_evd, request_evd, connect_evd, attr)
    if zone is not None:
        ep.hold(zone)
        ep.drop(ep.pz)
        ep.pz = ep.engine.pd = zone
    if ep.srq is not None and {"srq_soft_hw", "max_recv_dtos"} & attr_changes.keys():
        soft, hard = high_watermark(attr.srq_soft_hw), high_watermark(attr.max_recv_dtos)
        ep.engine.set_recv_watermarks(soft, hard)
