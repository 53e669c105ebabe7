"""The records that RDS_INFO_* options list, as rds-info reads them.

Packed structures in host byte order, addresses and ports in network order; the one for RDMA
connections is padded naturally. Each record has an IPv4 form and an IPv6 form of other size, so
`parse` tells them apart by size. The lists of IPv6 forms hold the IPv4 entries too: an IPv4 address
is v4-mapped there, here it is an IPv4Address. No address is all zeros, in both forms.
Source: linux v6.12 include/uapi/linux/rds.h; octets of 6.1 in tests/vectors/linux_6_1_info.hex.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Final, Protocol, Self

from urds.constants import ConnectionFlag, InfoOpt
from urds.errors import WireError
from urds.wire.layout import Layout

Address = IPv4Address | IPv6Address

# In the order of the structures' members; ports are two octets, because they alone are big-endian.
_COUNTER: Final = Layout("counter", "=32sQ", octets=40)
_CONNECTION: Final = Layout("connection", "=QQ4s4s16sBB", octets=42)
_CONNECTION6: Final = Layout("connection (IPv6)", "=QQ16s16s16sB", octets=65)
_MESSAGE: Final = Layout("queued message", "=QI4s4s2s2sBB", octets=26)
_MESSAGE6: Final = Layout("queued message (IPv6)", "=QI16s16s2s2sBB", octets=50)
_SOCKET: Final = Layout("socket", "=I4s4s2s2sIQ", octets=28)
_SOCKET6: Final = Layout("socket (IPv6)", "=I16s16s2s2sIQ", octets=52)
_TCP_SOCKET: Final = Layout("TCP socket", "=4s2s4s2sQQIIIB", octets=41)
_TCP_SOCKET_OLD: Final = Layout("TCP socket without tos", "=4s2s4s2sQQIII", octets=40)
_TCP_SOCKET6: Final = Layout("TCP socket (IPv6)", "=16s2s16s2sQQIII", octets=64)
_RDMA: Final = Layout("RDMA connection", "=4s4s16s16sIIIIIBB2xI", octets=68)
_RDMA6: Final = Layout("RDMA connection (IPv6)", "=16s16s16s16sIIIIIBB2xI", octets=92)


class Record(Protocol):
    """What every record of a list can do."""

    @classmethod
    def parse(cls, octets: bytes) -> Self:
        """Read one record; its size tells its form. Raises WireError for any other size."""

    def emit(self, *, ipv6: bool = False) -> bytes:
        """Write the IPv4 or the IPv6 form. Raises WireError if a field does not fit it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """COUNTERS: one statistic. It has one form only."""

    name: str  # at most 31 octets of ASCII
    value: int

    @classmethod
    def parse(cls, octets: bytes) -> Self:
        """Read 40 octets. Raises WireError for another size."""
        name, value = _COUNTER.unpack(octets)
        return cls(name=_text(name), value=value)

    def emit(self, *, ipv6: bool = False) -> bytes:
        """Write 40 octets, in either form. Raises WireError if a field does not fit."""
        return _COUNTER.pack(_text_octets(self.name, octets_max=31), self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """CONNECTIONS: path 0 of a connection."""

    sequence_next: int  # of the next message sent
    sequence_expected: int  # of the next message received
    local: Address
    peer: Address
    transport: str  # "tcp", "infiniband", "loopback"
    flags: ConnectionFlag
    tos: int = 0  # not in the IPv6 form

    @classmethod
    def parse(cls, octets: bytes) -> Self:
        """Read 42 or 65 octets. Raises WireError for another size."""
        layout = _CONNECTION6 if len(octets) == _CONNECTION6.octets else _CONNECTION
        fields = layout.unpack(octets)
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
        """Write 42 octets, or 65 for IPv6. Raises WireError if a field does not fit."""
        fields = (
            self.sequence_next,
            self.sequence_expected,
            _address_octets(self.local, ipv6=ipv6),
            _address_octets(self.peer, ipv6=ipv6),
            _text_octets(self.transport, octets_max=16),
            int(self.flags),
        )
        return _CONNECTION6.pack(*fields) if ipv6 else _CONNECTION.pack(*fields, self.tos)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedMessage:
    """SEND_MESSAGES, RETRANS_MESSAGES, RECV_MESSAGES: one message that waits."""

    sequence: int
    payload_bytes: int
    local: Address  # of the receiver in RECV_MESSAGES
    peer: Address
    local_port: int
    peer_port: int
    flags: int = 0
    tos: int = 0

    @classmethod
    def parse(cls, octets: bytes) -> Self:
        """Read 26 or 50 octets. Raises WireError for another size."""
        fields = (_MESSAGE6 if len(octets) == _MESSAGE6.octets else _MESSAGE).unpack(octets)
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
        """Write 26 octets, or 50 for IPv6. Raises WireError if a field does not fit."""
        return (_MESSAGE6 if ipv6 else _MESSAGE).pack(
            self.sequence,
            self.payload_bytes,
            _address_octets(self.local, ipv6=ipv6),
            _address_octets(self.peer, ipv6=ipv6),
            _port_octets(self.local_port),
            _port_octets(self.peer_port),
            self.flags,
            self.tos,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketEntry:
    """SOCKETS: one RDS socket; addresses and ports it does not have are zero."""

    send_buffer_bytes: int
    bound: Address
    connected: Address
    bound_port: int
    connected_port: int
    receive_buffer_bytes: int
    inode: int

    @classmethod
    def parse(cls, octets: bytes) -> Self:
        """Read 28 or 52 octets. Raises WireError for another size."""
        fields = (_SOCKET6 if len(octets) == _SOCKET6.octets else _SOCKET).unpack(octets)
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
        """Write 28 octets, or 52 for IPv6. Raises WireError if a field does not fit."""
        return (_SOCKET6 if ipv6 else _SOCKET).pack(
            self.send_buffer_bytes,
            _address_octets(self.bound, ipv6=ipv6),
            _address_octets(self.connected, ipv6=ipv6),
            _port_octets(self.bound_port),
            _port_octets(self.connected_port),
            self.receive_buffer_bytes,
            self.inode,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpSocket:
    """TCP_SOCKETS: the TCP connection under a path."""

    local: Address
    local_port: int
    peer: Address
    peer_port: int
    header_bytes_remaining: int  # still to read of the header that is coming in
    payload_bytes_remaining: int  # and of its payload
    last_sent_next: int  # TCP sequence of the start of the last message sent
    last_expected_una: int  # and just behind its end
    last_seen_una: int  # TCP sequence acknowledged last
    tos: int = 0  # not in the IPv6 form, nor before Linux 5.0

    @classmethod
    def parse(cls, octets: bytes) -> Self:
        """Read 41 octets, 40 of a kernel before 5.0, or 64. Raises WireError for another size."""
        by_size = {form.octets: form for form in (_TCP_SOCKET_OLD, _TCP_SOCKET6)}
        layout = by_size.get(len(octets), _TCP_SOCKET)
        fields = layout.unpack(octets)
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
        """Write 41 octets, or 64 for IPv6. Raises WireError if a field does not fit."""
        fields = (
            _address_octets(self.local, ipv6=ipv6),
            _port_octets(self.local_port),
            _address_octets(self.peer, ipv6=ipv6),
            _port_octets(self.peer_port),
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

    source: Address
    target: Address
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
    def parse(cls, octets: bytes) -> Self:
        """Read 68 or 92 octets. Raises WireError for another size."""
        fields = (_RDMA6 if len(octets) == _RDMA6.octets else _RDMA).unpack(octets)
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
        """Write 68 octets, or 92 for IPv6. Raises WireError if a field does not fit."""
        return (_RDMA6 if ipv6 else _RDMA).pack(
            _address_octets(self.source, ipv6=ipv6),
            _address_octets(self.target, ipv6=ipv6),
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
    InfoOpt.COUNTERS: _COUNTER.octets,
    InfoOpt.CONNECTIONS: _CONNECTION.octets,
    InfoOpt.SEND_MESSAGES: _MESSAGE.octets,
    InfoOpt.RETRANS_MESSAGES: _MESSAGE.octets,
    InfoOpt.RECV_MESSAGES: _MESSAGE.octets,
    InfoOpt.SOCKETS: _SOCKET.octets,
    InfoOpt.TCP_SOCKETS: _TCP_SOCKET.octets,
    InfoOpt.IB_CONNECTIONS: _RDMA.octets,
    InfoOpt.V6_CONNECTIONS: _CONNECTION6.octets,
    InfoOpt.V6_SEND_MESSAGES: _MESSAGE6.octets,
    InfoOpt.V6_RETRANS_MESSAGES: _MESSAGE6.octets,
    InfoOpt.V6_RECV_MESSAGES: _MESSAGE6.octets,
    InfoOpt.V6_SOCKETS: _SOCKET6.octets,
    InfoOpt.V6_TCP_SOCKETS: _TCP_SOCKET6.octets,
    InfoOpt.V6_IB_CONNECTIONS: _RDMA6.octets,
}


def emit_list(option: InfoOpt, records: Iterable[Record]) -> bytes:
    """Write the answer to `option`. Raises WireError if a record does not fit its form."""
    ipv6 = option >= InfoOpt.V6_CONNECTIONS
    return b"".join(record.emit(ipv6=ipv6) for record in records)


def split(octets: bytes, *, element_bytes: int) -> Sequence[bytes]:
    """Cut a list into its elements. Raises WireError unless they fill it."""
    if element_bytes < 1 or len(octets) % element_bytes:
        raise WireError(f"list of {len(octets)} octets in elements of {element_bytes}")
    return [octets[at : at + element_bytes] for at in range(0, len(octets), element_bytes)]


def _address(octets: bytes) -> Address:
    if len(octets) == 4:
        return IPv4Address(octets)
    address = IPv6Address(octets)
    return address.ipv4_mapped or address


def _address_octets(address: Address, *, ipv6: bool) -> bytes:
    if address.is_unspecified:  # all zeros in either form, never v4-mapped: kernel parity
        return bytes(16 if ipv6 else 4)
    if not ipv6 and address.version == 6:
        raise WireError(f"address {address} in an IPv4 record")
    mapped = ipv6 and address.version == 4
    return b"\0" * 10 + b"\xff\xff" + address.packed if mapped else address.packed


def _port(octets: bytes) -> int:
    return int.from_bytes(octets, "big")


def _port_octets(port: int) -> bytes:
    if not 0 <= port <= 0xFFFF:
        raise WireError(f"port {port} is not in 0 to 65535")
    return port.to_bytes(2, "big")


def _text(octets: bytes) -> str:
    return octets.split(b"\0", 1)[0].decode("ascii", "replace")


def _text_octets(text: str, *, octets_max: int) -> bytes:
    octets = text.encode("ascii", "replace")
    if len(octets) > octets_max:
        raise WireError(f"name {text!r} of {len(octets)} octets, limit {octets_max}")
    return octets
