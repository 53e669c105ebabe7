"""The records that RDS_INFO_* options list, as rds-info reads them.

Packed structures in host byte order, addresses and ports in network order; the one for RDMA
connections is padded naturally. Each record has an IPv4 form and an IPv6 form of other size, so
`parse` tells them apart by size. The lists of IPv6 forms hold the IPv4 entries too: an IPv4 address
is v4-mapped there, here it is an IPv4Address. No address is all zeros, in both forms.
Source: linux v6.12 include/uapi/linux/rds.h; bytes of 6.1 in tests/vectors/linux_6_1_info.hex.
"""

from collections.abc import Iterable, Sequence
from dataclasses import Field, dataclass, fields
from ipaddress import IPv4Address, IPv6Address
from typing import Annotated, Any, ClassVar, Final, Self

from urds.common.errors import WireError
from urds.common.struct_layout import Layout
from urds.common.types import IPAddress
from urds.rds.constants import ConnectionFlag, InfoOpt

# In the order of the structures' members; ports are two bytes, because they alone are big-endian.
_COUNTER: Final = Layout("counter", "=32sQ", size_bytes=40)
_CONNECTION: Final = Layout("connection", "=QQ4s4s16sBB", size_bytes=42)
_CONNECTION6: Final = Layout("connection (IPv6)", "=QQ16s16s16sB", size_bytes=65)
_MESSAGE: Final = Layout("queued message", "=QI4s4s2s2sBB", size_bytes=26)
_MESSAGE6: Final = Layout("queued message (IPv6)", "=QI16s16s2s2sBB", size_bytes=50)
_SOCKET: Final = Layout("socket", "=I4s4s2s2sIQ", size_bytes=28)
_SOCKET6: Final = Layout("socket (IPv6)", "=I16s16s2s2sIQ", size_bytes=52)
_TCP_SOCKET: Final = Layout("TCP socket", "=4s2s4s2sQQIIIB", size_bytes=41)
_TCP_SOCKET_OLD: Final = Layout("TCP socket without tos", "=4s2s4s2sQQIII", size_bytes=40)
_TCP_SOCKET6: Final = Layout("TCP socket (IPv6)", "=16s2s16s2sQQIII", size_bytes=64)
_RDMA: Final = Layout("RDMA connection", "=4s4s16s16sIIIIIBB2xI", size_bytes=68)
_RDMA6: Final = Layout("RDMA connection (IPv6)", "=16s16s16s16sIIIIIBB2xI", size_bytes=92)
_WITHOUT_TOS: Final = (_CONNECTION6, _TCP_SOCKET6, _TCP_SOCKET_OLD)  # the last member

Port = Annotated[int, "two bytes, big-endian"]
CounterName = Annotated[str, 31]  # ASCII, of at most so many bytes
TransportName = Annotated[str, 16]


class Record:
    """A record of a list: its fields are the structure's members, in their order."""

    __slots__ = ()
    LAYOUTS: ClassVar[tuple[Layout, ...]]  # of IPv4, of IPv6, and of older kernels

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read one record; its size tells its form. Raises WireError for any other size."""
        form = next((one for one in cls.LAYOUTS if one.size_bytes == len(data)), cls.LAYOUTS[0])
        values = zip(_fields_of(cls), form.unpack(data), strict=form not in _WITHOUT_TOS)
        return cls(**{one.name: _parse(one.type, value) for one, value in values})

    def emit(self, *, ipv6: bool = False) -> bytes:
        """Write the IPv4 or the IPv6 form. Raises WireError if a field does not fit it."""
        form = self.LAYOUTS[ipv6]
        values = [
            _emit(one.type, getattr(self, one.name), ipv6=ipv6) for one in _fields_of(type(self))
        ]
        return form.pack(*values[:-1] if form in _WITHOUT_TOS else values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter(Record):
    """COUNTERS: one statistic. It has one form only."""

    LAYOUTS = (_COUNTER, _COUNTER)

    name: CounterName
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection(Record):
    """CONNECTIONS: path 0 of a connection."""

    LAYOUTS = (_CONNECTION, _CONNECTION6)

    sequence_next: int  # of the next message sent
    sequence_expected: int  # of the next message received
    local: IPAddress
    peer: IPAddress
    transport: TransportName  # "tcp", "infiniband", "loopback"
    flags: ConnectionFlag
    tos: int = 0  # not in the IPv6 form


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedMessage(Record):
    """SEND_MESSAGES, RETRANS_MESSAGES, RECV_MESSAGES: one message that waits."""

    LAYOUTS = (_MESSAGE, _MESSAGE6)

    sequence: int
    payload_bytes: int
    local: IPAddress  # of the receiver in RECV_MESSAGES
    peer: IPAddress
    local_port: Port
    peer_port: Port
    flags: int = 0
    tos: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketEntry(Record):
    """SOCKETS: one RDS socket; addresses and ports it does not have are zero."""

    LAYOUTS = (_SOCKET, _SOCKET6)

    send_buffer_bytes: int
    bound: IPAddress
    connected: IPAddress
    bound_port: Port
    connected_port: Port
    receive_buffer_bytes: int
    inode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpSocket(Record):
    """TCP_SOCKETS: the TCP connection under a path."""

    LAYOUTS = (_TCP_SOCKET, _TCP_SOCKET6, _TCP_SOCKET_OLD)

    local: IPAddress
    local_port: Port
    peer: IPAddress
    peer_port: Port
    header_bytes_remaining: int  # still to read of the header that is coming in
    payload_bytes_remaining: int  # and of its payload
    last_sent_next: int  # TCP sequence of the start of the last message sent
    last_expected_una: int  # and just behind its end
    last_seen_una: int  # TCP sequence acknowledged last
    tos: int = 0  # not in the IPv6 form, nor before Linux 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaConnection(Record):
    """IB_CONNECTIONS: one connection over RDMA."""

    LAYOUTS = (_RDMA, _RDMA6)

    source: IPAddress
    target: IPAddress
    source_gid: IPv6Address
    target_gid: IPv6Address
    send_requests_max: int
    receive_requests_max: int
    send_segments_max: int
    regions_max: int
    region_pages_max: int
    tos: int = 0
    service_level: int = 0
    cache_allocations: int = 0


# The size of one element is what a successful getsockopt returns.
_LISTED: Final[dict[str, type[Record]]] = {
    "CONNECTIONS": Connection,
    "SEND_MESSAGES": QueuedMessage,
    "RETRANS_MESSAGES": QueuedMessage,
    "RECV_MESSAGES": QueuedMessage,
    "SOCKETS": SocketEntry,
    "TCP_SOCKETS": TcpSocket,
    "IB_CONNECTIONS": RdmaConnection,
}
ELEMENT_BYTES: Final[dict[int, int]] = {
    InfoOpt.COUNTERS: _COUNTER.size_bytes,
    **{InfoOpt[name]: one.LAYOUTS[0].size_bytes for name, one in _LISTED.items()},
    **{InfoOpt[f"V6_{name}"]: one.LAYOUTS[1].size_bytes for name, one in _LISTED.items()},
}


def emit_list(option: InfoOpt, records: Iterable[Record]) -> bytes:
    """Write the answer to `option`. Raises WireError if a record does not fit its form."""
    ipv6 = option >= InfoOpt.V6_CONNECTIONS
    return b"".join(record.emit(ipv6=ipv6) for record in records)


def split(data: bytes, *, element_bytes: int) -> Sequence[bytes]:
    """Cut a list into its elements. Raises WireError unless they fill it."""
    if element_bytes < 1 or len(data) % element_bytes:
        raise WireError(f"list of {len(data)} bytes in elements of {element_bytes}")
    return [data[at : at + element_bytes] for at in range(0, len(data), element_bytes)]


def _fields_of(record: type[Record]) -> tuple[Field[Any], ...]:
    return fields(record)  # type: ignore[arg-type]  # every record is a dataclass


def _parse(kind: Any, value: Any) -> Any:
    """Return the value of a field of that type."""
    if kind is Port:
        return int.from_bytes(value, "big")
    if kind in (CounterName, TransportName):
        return value.split(b"\0", 1)[0].decode("ascii", "replace")
    return _address(value) if kind == IPAddress else kind(value)


def _emit(kind: Any, value: Any, *, ipv6: bool) -> int | bytes:
    """Return what the layout packs for a field of that type."""
    if kind is Port:
        return _port_bytes(value)
    if kind in (CounterName, TransportName):
        return _text_bytes(value, bytes_max=kind.__metadata__[0])
    if kind == IPAddress:
        return _address_bytes(value, ipv6=ipv6)
    return value.packed if kind is IPv6Address else int(value)


def _address(data: bytes) -> IPAddress:
    if len(data) == 4:
        return IPv4Address(data)
    address = IPv6Address(data)
    return address.ipv4_mapped or address


def _address_bytes(address: IPAddress, *, ipv6: bool) -> bytes:
    if address.is_unspecified:  # all zeros in either form, never v4-mapped: kernel parity
        return bytes(16 if ipv6 else 4)
    if not ipv6 and address.version == 6:
        raise WireError(f"address {address} in an IPv4 record")
    mapped = ipv6 and address.version == 4
    return b"\0" * 10 + b"\xff\xff" + address.packed if mapped else address.packed


def _port_bytes(port: int) -> bytes:
    if not 0 <= port <= 0xFFFF:
        raise WireError(f"port {port} is not in 0 to 65535")
    return port.to_bytes(2, "big")


def _text_bytes(text: str, *, bytes_max: int) -> bytes:
    data = text.encode("ascii", "replace")
    if len(data) > bytes_max:
        raise WireError(f"name {text!r} of {len(data)} bytes, limit {bytes_max}")
    return data
