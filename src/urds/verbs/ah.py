"""Address handles: destinations of datagrams.

Source: docs/reference/verbs-and-roce.md 2, 12 and 18.
"""

from dataclasses import dataclass
from typing import ClassVar, Final

from urds.common.errors import WireError
from urds.verbs.context import GID, PD
from urds.verbs.engine.datagrams import parse_grh
from urds.verbs.engine.numbers import WCFlag
from urds.verbs.engine.work import WC, AddressVector
from urds.verbs.errors import VerbsArgumentError
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
        if self.port_num != 1 or self.gr.sgid_index != 0:
            raise VerbsArgumentError(
                f"port {self.port_num}, GID index {self.gr.sgid_index}: there are only 1 and 0"
            )
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
        """Make a handle. Raises VerbsArgumentError: neither attributes nor a whole header."""
        self.pd = pd
        self.vector = _sender(wc, grh) if attr is None else attr.vector()
        super().__init__(pd.context.adapter.lock, pd)


def _sender(wc: WC | None, grh: bytes | bytearray | memoryview | None) -> AddressVector:
    """Return the source of a datagram, from the header before its data."""
    if wc is None or grh is None:
        raise VerbsArgumentError("an address handle needs attr, or wc and grh")
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
