"""An opened device: what it is, its one port, its asynchronous events; domains and addresses.

Source: docs/reference/verbs-and-roce.md 2, 12 and 18.
"""

import weakref
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from ipaddress import IPv6Address
from typing import Any, ClassVar, Final, TypeVar

from urds.common.errors import WireError
from urds.verbs.device import Device, find_device
from urds.verbs.engine.datagrams import parse_grh
from urds.verbs.engine.numbers import MTU, AsyncEventType, WCFlag
from urds.verbs.engine.work import WC, AddressVector, Completed, Event
from urds.verbs.errors import (
    VerbsArgumentError,
    VerbsTimeoutError,
    demand_kind,
    demand_waiting_time,
    verbs_error,
)
from urds.verbs.providers.base import Adapter, DeviceAttributes
from urds.verbs.resource import EventSource, Resource

ASYNC_EVENTS_MAX: Final = 4096
PORT_COUNT: Final = 1
PKEY_DEFAULT: Final = 0xFFFF
GID_BYTES: Final = 16
UDP_PORT_MAX: Final = 0xFFFF
_NS: Final = 1_000_000_000
_Taken = TypeVar("_Taken")


@dataclass(frozen=True, slots=True)
class GID:
    """An address of a port: 16 bytes, printed as eight groups."""

    raw: bytes

    def __post_init__(self) -> None:
        if len(self.raw) != GID_BYTES:
            raise VerbsArgumentError(f"GID of {len(self.raw)} bytes, not {GID_BYTES}")

    def __str__(self) -> str:
        return IPv6Address(self.raw).exploded

    def __bytes__(self) -> bytes:
        return self.raw

    @classmethod
    def of(cls, value: "GID | bytes | str") -> "GID":
        """Return the GID that 16 bytes or the text of an IPv6 address mean.

        Raises VerbsArgumentError: they mean none.
        """
        if isinstance(value, GID):
            return value
        try:
            return cls(IPv6Address(value).packed if isinstance(value, str) else bytes(value))
        except ValueError as error:
            raise VerbsArgumentError(f"no GID: {error}") from error


@dataclass(frozen=True, slots=True)
class PortAttr:
    """Attributes of a port. Names after `ibv_port_attr`."""

    state: int  # 4: active
    max_mtu: MTU
    active_mtu: MTU
    mtu_bytes: int  # what one packet of this link really carries
    gid_tbl_len: int
    pkey_tbl_len: int
    max_msg_sz: int
    udp_port: int = 0  # of this context, for `AHAttr`; 0: the GID alone leads here
    lid: int = 0
    link_layer: int = 2  # Ethernet: addresses are GIDs


@dataclass(frozen=True, slots=True)
class AsyncEvent:
    """An event of a queue pair, a queue or the device outside any work request."""

    event_type: AsyncEventType
    element: Any  # QP, CQ or SRQ; `None` for the device

    def ack(self) -> None:
        """Do nothing: programs written for pyverbs acknowledge their events."""


class Context(EventSource[AsyncEvent]):
    """An opened device. Closing it closes all its objects, then the device.

    `name`: a `Device`, its name, or `None` for the default; or `adapter`, for a simulated one.
    Safe from any thread, as all objects of this package.
    """

    close_rank: ClassVar[int] = 9
    num_comp_vectors: ClassVar[int] = 1

    def __init__(
        self, name: "str | Device | None" = None, *, adapter: Adapter | None = None
    ) -> None:
        """Open a device. Raises VerbsError: ENODEV, or what its provider says; TypeError."""
        if adapter is None:
            demand_kind("" if name is None else name, (str, Device), "Context(): name")
            try:
                device = name if isinstance(name, Device) else find_device(name)
                adapter = device.open_adapter()
            except OSError as error:
                raise verbs_error(error) from error
        demand_kind(adapter, Adapter, "Context(): adapter")
        self.adapter = adapter
        self.engine = adapter
        self.attributes = adapter.attributes
        self.async_events_lost = 0
        # Engine object to ours, while both live; by identity, for engines may be slotted.
        self._elements: dict[int, weakref.ref[Resource]] = {}
        super().__init__(adapter.lock)
        adapter.on_events = weak_call(self, Context._handle_events)

    @property
    def name(self) -> str:
        """Return the name of the device."""
        return self.attributes.name

    def __repr__(self) -> str:
        return f"<Context of {self.name}{', closed' if self.closed else ''}>"

    # -- queries

    def query_device(self) -> DeviceAttributes:
        """Return the device's attributes."""
        return self.attributes

    def query_port(self, port_num: int = 1) -> PortAttr:
        """Return the port's attributes; ports count from 1. Raises VerbsArgumentError."""
        _demand_index(port_num - 1, PORT_COUNT, f"port {port_num}", "port 1")
        mtu_bytes = self.attributes.link.mtu_bytes
        mtu = max((code for code in MTU if 128 << code <= mtu_bytes), default=MTU.MTU_256)
        return PortAttr(
            state=4,
            max_mtu=MTU.MTU_4096,
            active_mtu=mtu,
            mtu_bytes=mtu_bytes,
            gid_tbl_len=1,
            pkey_tbl_len=1,
            max_msg_sz=self.attributes.max_msg_sz,
            udp_port=self.adapter.port,
        )

    def query_gid(self, port_num: int = 1, index: int = 0) -> GID:
        """Return a GID of the port. Raises VerbsArgumentError: no such port or index."""
        _demand_index(port_num - 1, PORT_COUNT, f"port {port_num}", "port 1")
        _demand_index(index, 1, f"GID index {index}", "GID index 0")
        return GID(self.adapter.gid)

    def query_pkey(self, port_num: int = 1, index: int = 0) -> int:
        """Return the partition key; there is one partition. Raises VerbsArgumentError."""
        _demand_index(port_num - 1, PORT_COUNT, f"port {port_num}", "port 1")
        _demand_index(index, 1, f"P_Key index {index}", "P_Key index 0")
        return PKEY_DEFAULT

    # -- asynchronous events

    def get_async_event(self, timeout_s: float | None = None) -> AsyncEvent:
        """Wait for the next asynchronous event; `timeout_s` 0 does not wait, `None` for ever.

        Raises VerbsTimeoutError; VerbsClosedError if the context is closed meanwhile; TypeError
        and VerbsArgumentError for what is no time.
        """
        timeout_s = demand_waiting_time(timeout_s)
        event = self.wait_to_take(lambda: bool(self._events), self._take_first, timeout_s)
        if event is None:
            raise VerbsTimeoutError(f"no asynchronous event in {timeout_s} s")
        return event

    # -- for the other objects

    def wait_until(self, is_ready: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait, without the lock, until `is_ready()` or the context is closed or time is over."""
        timeout_ns = None if timeout_s is None else max(0, int(timeout_s * _NS))
        return self.adapter.wait(lambda: not self._is_open or is_ready(), timeout_ns)

    def wait_to_take(
        self, is_ready: Callable[[], bool], take: Callable[[], _Taken], timeout_s: float | None
    ) -> _Taken | None:
        """Wait until `is_ready()` and return the result of `take()`, `None` when the time is over.

        Both are called with the lock held, the second right after the first returned true: of
        several waiting threads one takes, the others go on waiting. Raises VerbsClosedError if the
        context is closed, and what `take` raises.
        """
        with self._calling():
            if is_ready():
                return take()
        begin_ns, left_s = self.adapter.now_ns(), timeout_s
        while self.wait_until(is_ready, left_s):
            with self._calling():
                if is_ready():
                    return take()
            if timeout_s is not None:
                left_s = timeout_s - (self.adapter.now_ns() - begin_ns) / _NS
        return None

    def adopt(self, engine: object, element: Resource) -> None:
        """Map an engine to its object, for its events. Lock held."""
        self._elements[id(engine)] = weakref.ref(element)

    def forget(self, engine: object, element: Resource) -> None:
        """Forget an engine and the events of its object. Lock held."""
        self._elements.pop(id(engine), None)
        self._keep(lambda event: event.element is not element)

    def report(self, event_type: AsyncEventType, element: Resource | None) -> None:
        """Queue an asynchronous event. Lock held. Beyond ASYNC_EVENTS_MAX events are lost."""
        if len(self._events) >= ASYNC_EVENTS_MAX:
            self.async_events_lost += 1
            return
        self._add(AsyncEvent(event_type, element))

    # -- inside

    def _handle_events(self, events: list[Event]) -> None:
        """Act on the events of a pass; those of closed objects are dropped."""
        for event in events:
            known = self._elements.get(id(event.element))
            element: Any = None if known is None else known()
            if isinstance(event, Completed):
                if element is not None:
                    element.post_event()
            elif element is not None or event.element is None:
                self.report(event.event_type, element)
                if event.event_type is AsyncEventType.CQ_ERR:
                    element.break_queue_pairs()

    def _close(self, *, forced: bool) -> None:
        was_open = self._is_open
        super()._close(forced=forced)
        if was_open:
            # Without the lock: the adapter ends a thread that may wait for it.
            self.adapter.close()

    def _announce_end(self) -> None:
        self.adapter.notify()


def _demand_index(index: int, count: int, what: str, only: str) -> None:
    if not 0 <= index < count:
        raise VerbsArgumentError(f"{what}: there is only {only}")


def weak_call(owner: Any, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a call of `method` that does not keep `owner` alive; without it, it does nothing."""
    reference = weakref.ref(owner)

    def call(*arguments: Any) -> Any:
        target = reference()
        return None if target is None else method(target, *arguments)

    return call


class PD(Resource):
    """A protection domain of an opened device. Closing it closes all that was made in it."""

    close_rank: ClassVar[int] = 6

    def __init__(self, context: Context) -> None:
        """Make a domain. Raises VerbsClosedError; TypeError: no context."""
        demand_kind(context, Context, "PD(): context")
        self.context = context
        # The engine knows a domain by identity only; it must not keep this object alive.
        self.engine = object()
        super().__init__(context.adapter.lock, context)


@dataclass(frozen=True, slots=True)
class GlobalRoute:
    """The route to a port. Only `dgid` counts; there is one source GID, of index 0."""

    dgid: GID | bytes | str
    _: KW_ONLY
    sgid_index: int = 0
    flow_label: int = 0
    hop_limit: int = 64
    traffic_class: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AHAttr:
    """Attributes of an address handle, and of the path of a connected queue pair.

    `udp_port` is for devices on IP whose contexts share an address: the UDP port of the peer's.
    """

    gr: GlobalRoute | None = None
    is_global: int = 1
    port_num: int = 1
    sl: int = 0
    dlid: int = 0
    udp_port: int = 0

    def vector(self) -> AddressVector:
        """Return the engine's form. Raises VerbsArgumentError: no route, no such port."""
        if self.gr is None or not self.is_global:
            raise VerbsArgumentError("an address needs a global route: AHAttr(gr=GlobalRoute(…))")
        demand_kind(self.gr, GlobalRoute, "AHAttr(): gr")
        if self.port_num != 1 or self.gr.sgid_index != 0:
            found = f"port {self.port_num}, GID index {self.gr.sgid_index}"
            raise VerbsArgumentError(f"{found}: there are only port 1 and GID index 0")
        if not 0 <= self.udp_port <= UDP_PORT_MAX:
            raise VerbsArgumentError(f"UDP port {self.udp_port}, from 0 to {UDP_PORT_MAX}")
        return AddressVector(GID.of(self.gr.dgid).raw, self.udp_port)


class AH(Resource):
    """An address handle, from attributes or from a received datagram.

    attr: the destination.  wc, grh: a completion with WCFlag.GRH and the first 40 bytes of its
    buffer; the handle leads to its sender.
    """

    close_rank: ClassVar[int] = 1

    def __init__(
        self,
        pd: PD,
        attr: AHAttr | None = None,
        *,
        wc: WC | None = None,
        grh: bytes | bytearray | memoryview | None = None,
    ) -> None:
        """Make a handle.

        Raises VerbsArgumentError: neither attributes nor a whole header; TypeError: no domain, or
        attributes of another kind.
        """
        demand_kind(pd, PD, "AH(): pd")
        if attr is not None:
            demand_kind(attr, AHAttr, "AH(): attr")
        self.pd = pd
        self.vector = _sender(wc, grh) if attr is None else attr.vector()
        super().__init__(pd.context.adapter.lock, pd)


def _sender(wc: WC | None, grh: bytes | bytearray | memoryview | None) -> AddressVector:
    """Return the source of a datagram, from the header before its data."""
    if wc is None or grh is None:
        raise VerbsArgumentError("an address handle needs attr, or wc and grh")
    demand_kind(wc, WC, "AH(): wc")
    if WCFlag.GRH not in wc.wc_flags:
        raise VerbsArgumentError("the completion has no WCFlag.GRH: the sender is unknown")
    try:
        return parse_grh(grh)
    except WireError as error:
        raise VerbsArgumentError(str(error)) from error


def vector_of(value: object) -> AddressVector:
    """Return the engine's form of an `AH`, `AHAttr` or `AddressVector`.

    Raises VerbsArgumentError: it is none of them; VerbsClosedError: the handle is closed.
    """
    if isinstance(value, AddressVector):
        return value
    if isinstance(value, AHAttr):
        return value.vector()
    if isinstance(value, AH):
        value._demand_open()
        return value.vector
    raise VerbsArgumentError(f"{type(value).__name__} is no address: give an AH or AHAttr")
