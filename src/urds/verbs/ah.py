"""Address handles: where a datagram goes. Source: verbs-and-roce.md sections 2, 12 and 18."""

from dataclasses import dataclass
from typing import ClassVar, Final

from urds.errors import WireError
from urds.verbs.context import GID
from urds.verbs.engine.datagrams import parse_grh
from urds.verbs.engine.numbers import WCFlag
from urds.verbs.engine.work import WC, AddressVector
from urds.verbs.errors import VerbsArgumentError
from urds.verbs.pd import PD
from urds.verbs.resource import Resource

UDP_PORT_MAX: Final = 0xFFFF


@dataclass(frozen=True, slots=True)
class GlobalRoute:
    """The route to a port. Only `dgid` counts; there is one source GID, of index 0."""

    dgid: GID | bytes | str
    sgid_index: int = 0
    flow_label: int = 0
    hop_limit: int = 64
    traffic_class: int = 0


@dataclass(frozen=True, slots=True)
class AHAttr:
    """Attributes of an address handle, and of the way of a connected queue pair.

    `udp_port` serves devices on IP whose openings share an address: the UDP port of the other.
    """

    gr: GlobalRoute | None = None
    is_global: int = 1
    port_num: int = 1
    sl: int = 0
    dlid: int = 0
    udp_port: int = 0

    def vector(self) -> AddressVector:
        """Return this as the engine wants it. Raises VerbsArgumentError: no route, no such port."""
        if self.gr is None or not self.is_global:
            raise VerbsArgumentError("an address needs a global route: AHAttr(gr=GlobalRoute(…))")
        if self.port_num != 1 or self.gr.sgid_index != 0:
            raise VerbsArgumentError(
                f"port {self.port_num}, GID index {self.gr.sgid_index}: there are only 1 and 0"
            )
        if not 0 <= self.udp_port <= UDP_PORT_MAX:
            raise VerbsArgumentError(f"UDP port {self.udp_port}, from 0 to {UDP_PORT_MAX}")
        return AddressVector(GID.of(self.gr.dgid).raw, self.udp_port)


class AH(Resource):
    """An address handle, from attributes or from a datagram that came.

    attr: where to.  wc, grh: a completion with WCFlag.GRH and the first 40 octets of its buffer;
    the handle leads to its sender.
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
        """Make a handle. Raises VerbsArgumentError: neither attributes nor a whole header."""
        self.pd = pd
        self.vector = _sender(wc, grh) if attr is None else attr.vector()
        super().__init__(pd.context.adapter.lock, pd)


def _sender(wc: WC | None, grh: bytes | bytearray | memoryview | None) -> AddressVector:
    """Return where a datagram came from, by the header before its data."""
    if wc is None or grh is None:
        raise VerbsArgumentError("an address handle needs attr, or wc and grh")
    if WCFlag.GRH not in wc.wc_flags:
        raise VerbsArgumentError("the completion has no WCFlag.GRH: nothing says where from")
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
