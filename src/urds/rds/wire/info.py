"""The records that RDS_INFO_* options list, as rds-info reads them.

Packed structures in host byte order, addresses and ports in network order; the one for RDMA
connections is padded naturally. Each record has an IPv4 form and an IPv6 form of other size, so
`parse` tells them apart by size. The lists of IPv6 forms hold the IPv4 entries too: an IPv4 address
is v4-mapped there, here it is an IPv4Address. No address is all zeros, in both forms.
Source: linux v6.12 include/uapi/linux/rds.h; bytes of 6.1 in tests/vectors/linux_6_1_info.hex.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Final, Protocol, Self

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


class Record(Protocol):
    """What every record of a list can do."""

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read one record; its size tells its form. Raises WireError for any other size."""

    def emit(self, *, ipv6: bool = False) -> bytes:
        """Write the IPv4 or the IPv6 form. Raises WireError if a field does not fit it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """COUNTERS: one statistic. It has one form only."""

    name: str  # at most 31 bytes of ASCII
    value: int

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read 40 bytes. Raises WireError for another size."""
        name, value = _COUNTER.unpack(data)
        return cls(name=_text(name), value=value)

    def emit(self, *, ipv6: bool = False) -> bytes:
        """Write 40 bytes, in either form. Raises WireError if a field does not fit."""
        return _COUNTER.pack(_text_bytes(self.name, bytes_max=31), self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """CONNECTIONS: path 0 of a connection."""

    sequence_next: int  # of the next message sent
    sequence_expected: int  # of the next message received
    local: IPAddress
    peer: IPAddress
    transport: str  # "tcp", "infiniband", "loopback"
    flags: ConnectionFlag
    tos: int = 0  # not in the IPv6 form

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read 42 or 65 bytes. Raises WireError for another size."""
        layout = _CONNECTION6 if len(data) == _CONNECTION6.size_bytes else _CONNECTION
        fields = layout.unpack(data)
        return cls(
            sequence_next=fields[0],
            sequence_expected=fields[1],
            local=_address(fields[2]),
            peer=_address(fields[3]),
            transport=_text(fields[4]),
            flags=ConnectionFlag(fields[5]),
            tos=fields[6] if layout is _CONNECTION else 0,
        )

    def emit(self, *, ipv6: bool = False) -> bytes:
        """Write 42 bytes, or 65 for IPv6. Raises WireError if a field does not fit."""
        fields = (
            self.sequence_next,
            self.sequence_expected,
            _address_bytes(self.local, ipv6=ipv6),
            _address_bytes(self.peer, ipv6=ipv6),
            _text_bytes(self.transport, bytes_max=16),
            int(self.flags),
        )
        return _CONNECTION6.pack(*fields) if ipv6 else _CONNECTION.pack(*fields, self.tos)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedMessage:
    """SEND_MESSAGES, RETRANS_MESSAGES, RECV_MESSAGES: one message that waits."""

    sequence: int
    payload_bytes: int
    local: IPAddress  # of the receiver in RECV_MESSAGES
    peer: IPAddress
    local_port: int
    peer_port: int
    flags: int = 0
    tos: int = 0

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read 26 or 50 bytes. Raises WireError for another size."""
        fields = (_MESSAGE6 if len(data) == _MESSAGE6.size_bytes else _MESSAGE).unpack(data)
        return cls(
            sequence=fields[0],
            payload_bytes=fields[1],
            local=_address(fields[2]),
            peer=_address(fields[3]),
            local_port=_port(fields[4]),
            peer_port=_port(fields[5]),
            flags=fields[6],
            tos=fields[7],
        )

    def emit(self, *, ipv6: bool = False) -> bytes:
        """Write 26 bytes, or 50 for IPv6. Raises WireError if a field does not fit."""
        return (_MESSAGE6 if ipv6 else _MESSAGE).pack(
            self.sequence,
            self.payload_bytes,
            _address_bytes(self.local, ipv6=ipv6),
            _address_bytes(self.peer, ipv6=ipv6),
            _port_bytes(self.local_port),
            _port_bytes(self.peer_port),
            self.flags,
            self.tos,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketEntry:
    """SOCKETS: one RDS socket; addresses and ports it does not have are zero."""

    send_buffer_bytes: int
    bound: IPAddress
    connected: IPAddress
    bound_port: int
    connected_port: int
    receive_buffer_bytes: int
    inode: int

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read 28 or 52 bytes. Raises WireError for another size."""
        fields = (_SOCKET6 if len(data) == _SOCKET6.size_bytes else _SOCKET).unpack(data)
        return cls(
            send_buffer_bytes=fields[0],
            bound=_address(fields[1]),
            connected=_address(fields[2]),
            bound_port=_port(fields[3]),
            connected_port=_port(fields[4]),
            receive_buffer_bytes=fields[5],
            inode=fields[6],
        )

    def emit(self, *, ipv6: bool = False) -> bytes:
        """Write 28 bytes, or 52 for IPv6. Raises WireError if a field does not fit."""
        return (_SOCKET6 if ipv6 else _SOCKET).pack(
            self.send_buffer_bytes,
            _address_bytes(self.bound, ipv6=ipv6),
            _address_bytes(self.connected, ipv6=ipv6),
            _port_bytes(self.bound_port),
            _port_bytes(self.connected_port),
            self.receive_buffer_bytes,
            self.inode,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpSocket:
    """TCP_SOCKETS: the TCP connection under a path."""

    local: IPAddress
    local_port: int
    peer: IPAddress
    peer_port: int
    header_bytes_remaining: int  # still to read of the header that is coming in
    payload_bytes_remaining: int  # and of its payload
    last_sent_next: int  # TCP sequence of the start of the last message sent
    last_expected_una: int  # and just behind its end
    last_seen_una: int  # TCP sequence acknowledged last
    tos: int = 0  # not in the IPv6 form, nor before Linux 5.0

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read 41 bytes, 40 of a kernel before 5.0, or 64. Raises WireError for another size."""
        by_size = {form.size_bytes: form for form in (_TCP_SOCKET_OLD, _TCP_SOCKET6)}
        layout = by_size.get(len(data), _TCP_SOCKET)
        fields = layout.unpack(data)
        return cls(
            local=_address(fields[0]),
            local_port=_port(fields[1]),
            peer=_address(fields[2]),
            peer_port=_port(fields[3]),
            header_bytes_remaining=fields[4],
            payload_bytes_remaining=fields[5],
            last_sent_next=fields[6],
            last_expected_una=fields[7],
            last_seen_una=fields[8],
            tos=fields[9] if layout is _TCP_SOCKET else 0,
        )

    def emit(self, *, ipv6: bool = False) -> bytes:
        """Write 41 bytes, or 64 for IPv6. Raises WireError if a field does not fit."""
        fields = (
            _address_bytes(self.local, ipv6=ipv6),
            _port_bytes(self.local_port),
            _address_bytes(self.peer, ipv6=ipv6),
            _port_bytes(self.peer_port),
            self.header_bytes_remaining,
            self.payload_bytes_remaining,
            self.last_sent_next,
            self.last_expected_una,
            self.last_seen_una,
        )
        return _TCP_SOCKET6.pack(*fields) if ipv6 else _TCP_SOCKET.pack(*fields, self.tos)


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaConnection:
    """IB_CONNECTIONS: one connection over RDMA."""

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

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read 68 or 92 bytes. Raises WireError for another size."""
        fields = (_RDMA6 if len(data) == _RDMA6.size_bytes else _RDMA).unpack(data)
        return cls(
            source=_address(fields[0]),
            target=_address(fields[1]),
            source_gid=IPv6Address(fields[2]),
            target_gid=IPv6Address(fields[3]),
            send_requests_max=fields[4],
            receive_requests_max=fields[5],
            send_segments_max=fields[6],
            regions_max=fields[7],
            region_pages_max=fields[8],
            tos=fields[9],
            service_level=fields[10],
            cache_allocations=fields[11],
        )

    def emit(self, *, ipv6: bool = False) -> bytes:
        """Write 68 bytes, or 92 for IPv6. Raises WireError if a field does not fit."""
        return (_RDMA6 if ipv6 else _RDMA).pack(
            _address_bytes(self.source, ipv6=ipv6),
            _address_bytes(self.target, ipv6=ipv6),
            self.source_gid.packed,
            self.target_gid.packed,
            self.send_requests_max,
            self.receive_requests_max,
            self.send_segments_max,
            self.regions_max,
            self.region_pages_max,
            self.tos,
            self.service_level,
            self.cache_allocations,
        )


# The size of one element is what a successful getsockopt returns.
ELEMENT_BYTES: Final[dict[InfoOpt, int]] = {
    InfoOpt.COUNTERS: _COUNTER.size_bytes,
    InfoOpt.CONNECTIONS: _CONNECTION.size_bytes,
    InfoOpt.SEND_MESSAGES: _MESSAGE.size_bytes,
    InfoOpt.RETRANS_MESSAGES: _MESSAGE.size_bytes,
    InfoOpt.RECV_MESSAGES: _MESSAGE.size_bytes,
    InfoOpt.SOCKETS: _SOCKET.size_bytes,
    InfoOpt.TCP_SOCKETS: _TCP_SOCKET.size_bytes,
    InfoOpt.IB_CONNECTIONS: _RDMA.size_bytes,
    InfoOpt.V6_CONNECTIONS: _CONNECTION6.size_bytes,
    InfoOpt.V6_SEND_MESSAGES: _MESSAGE6.size_bytes,
    InfoOpt.V6_RETRANS_MESSAGES: _MESSAGE6.size_bytes,
    InfoOpt.V6_RECV_MESSAGES: _MESSAGE6.size_bytes,
    InfoOpt.V6_SOCKETS: _SOCKET6.size_bytes,
    InfoOpt.V6_TCP_SOCKETS: _TCP_SOCKET6.size_bytes,
    InfoOpt.V6_IB_CONNECTIONS: _RDMA6.size_bytes,
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


def _port(data: bytes) -> int:
    return int.from_bytes(data, "big")


def _port_bytes(port: int) -> bytes:
    if not 0 <= port <= 0xFFFF:
        raise WireError(f"port {port} is not in 0 to 65535")
    return port.to_bytes(2, "big")


def _text(data: bytes) -> str:
    return data.split(b"\0", 1)[0].decode("ascii", "replace")


def _text_bytes(text: str, *, bytes_max: int) -> bytes:
    data = text.encode("ascii", "replace")
    if len(data) > bytes_max:
        raise WireError(f"name {text!r} of {len(data)} bytes, limit {bytes_max}")
    return data
