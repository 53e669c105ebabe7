"""Headers before the bytes of a datagram, for UDP and for queue pairs, and what devices a peer has.

Over UDP travels what finds no queue pair yet: `UdpHeader` brings the sender's queue pair number.
Over a queue pair `QpHeader` names the sender, for a datagram may come through the receiver's own
service. Parsers return the header and a view of what follows it, without a copy.

`DatagramDevices` is what our own sockets say behind the header of a control message: where they can
be looked up. librdmacm finds a queue pair by the peer's IP address alone. Our devices share one
address, and the port of a datagram socket is the kernel's already. So a peer says at which port of
each of its devices look-ups are answered, and under which bind id: bytes that are drawn anew
whenever a socket is bound, for queue pair numbers may repeat. librdmacm reads the header and
nothing else.
Source: rdma-core 691953d8 librdmacm/rsocket.c (docs/reference/rsocket.md 10; where the design
document differs from the code, the code).
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import IPv4Address, IPv6Address
from typing import Final, Self

from urds.common.errors import WireError
from urds.common.struct_layout import Layout

UDP_HEADER_V4_BYTES: Final = 16
UDP_HEADER_V6_BYTES: Final = 28
QP_HEADER_V4_BYTES: Final = 8
QP_HEADER_V6_BYTES: Final = 24
QPN_MAX: Final = 0xFFFFFF
_TAG: Final = 0x55555555

# tag version op length (1 reserved) qpn address
_UDP_START: Final = struct.Struct(">IBBB")
_UDP: Final = {
    4: Layout("UDP header", ">IBBBxI4s", size_bytes=UDP_HEADER_V4_BYTES),
    6: Layout("UDP header (IPv6)", ">IBBBxI16s", size_bytes=UDP_HEADER_V6_BYTES),
}
# version length port [flow_info] address
_QP_START: Final = struct.Struct(">BB")
_QP: Final = {
    4: Layout("QP header", ">BBH4s", size_bytes=QP_HEADER_V4_BYTES),
    6: Layout("QP header (IPv6)", ">BBHI16s", size_bytes=QP_HEADER_V6_BYTES),
}


class DatagramOp(IntEnum):
    """What a datagram over UDP is."""

    DATA = 0
    CONTROL = 7  # an answer that brings only the queue pair number


_OPS: Final = {int(op): op for op in DatagramOp}


@dataclass(frozen=True, slots=True)
class UdpHeader:
    """Header of a datagram over UDP."""

    op: DatagramOp
    qpn: int  # of the sender, 24 bits
    # The sender's own; receivers go by the source of the datagram. Its family is that of the
    # datagram, which the shell compares.
    address: IPv4Address | IPv6Address

    def emit(self) -> bytes:
        """Write 16 bytes for IPv4, 28 for IPv6. Raises WireError if a field does not fit."""
        _check_qpn(self.qpn)
        version = self.address.version
        layout = _UDP[version]
        return layout.pack(_TAG, version, self.op, layout.size_bytes, self.qpn, self.address.packed)

    @classmethod
    def parse(cls, data: bytes | bytearray | memoryview) -> tuple[Self, memoryview]:
        """Read a header from the front; return it and a view of the rest.

        Raises WireError for too few bytes, another tag, a version and length that do not belong
        together, an unknown operation, a number of more than 24 bits.
        """
        view = memoryview(data)
        if len(view) < _UDP_START.size:
            raise WireError(f"UDP header of {len(view)} bytes, less than {UDP_HEADER_V4_BYTES}")
        tag, version, number, header_bytes = _UDP_START.unpack_from(view)
        if tag != _TAG:
            raise WireError(f"tag {tag:#010x} of a UDP header is not {_TAG:#010x}")
        layout = _layout_of(_UDP, version, header_bytes, view)
        op = _OPS.get(number)
        if op is None:
            raise WireError(f"operation {number} of a UDP header is neither 0 nor 7")
        *_, qpn, address = layout.unpack(bytes(view[: layout.size_bytes]))
        _check_qpn(qpn)
        return cls(op, qpn, _address_of(version, address)), view[layout.size_bytes :]


@dataclass(frozen=True, slots=True)
class QpHeader:
    """Header of a datagram over a queue pair: its sender."""

    port: int
    address: IPv4Address | IPv6Address
    flow_info: int = 0  # of IPv6 alone

    def emit(self) -> bytes:
        """Write 8 bytes for IPv4, 24 for IPv6. Raises WireError if a field does not fit."""
        version = self.address.version
        layout = _QP[version]
        if version == 6:
            return layout.pack(
                version, layout.size_bytes, self.port, self.flow_info, self.address.packed
            )
        if self.flow_info:
            raise WireError(f"flow info {self.flow_info} of an IPv4 address is not 0")
        return layout.pack(version, layout.size_bytes, self.port, self.address.packed)

    @classmethod
    def parse(cls, data: bytes | bytearray | memoryview) -> tuple[Self, memoryview]:
        """Read a header from the front; return it and a view of the rest.

        Raises WireError for too few bytes, or a version and length that do not belong together.
        """
        view = memoryview(data)
        if len(view) < _QP_START.size:
            raise WireError(f"QP header of {len(view)} bytes, less than {QP_HEADER_V4_BYTES}")
        version, header_bytes = _QP_START.unpack_from(view)
        layout = _layout_of(_QP, version, header_bytes, view)
        port, *flow_info, address = layout.unpack(bytes(view[: layout.size_bytes]))[2:]
        return cls(port, _address_of(version, address), *flow_info), view[layout.size_bytes :]


def _layout_of(
    layouts: dict[int, Layout], version: int, header_bytes: int, view: memoryview
) -> Layout:
    layout = layouts.get(version)
    if layout is None:
        raise WireError(f"IP version {version} of a datagram header is neither 4 nor 6")
    if header_bytes != layout.size_bytes:
        raise WireError(
            f"length {header_bytes} of an IPv{version} header is not {layout.size_bytes}"
        )
    if len(view) < layout.size_bytes:
        raise WireError(f"IPv{version} header of {len(view)} bytes, less than {layout.size_bytes}")
    return layout


def _check_qpn(qpn: int) -> None:
    if not 0 <= qpn <= QPN_MAX:
        raise WireError(f"queue pair number {qpn} is not in 0 to {QPN_MAX}")


def _address_of(version: int, data: bytes) -> IPv4Address | IPv6Address:
    return IPv4Address(data) if version == 4 else IPv6Address(data)


DEVICES_MAX: Final = 8
BIND_ID_BYTES: Final = 8
PROVIDER_BYTES: Final = 8
_MAGIC: Final = b"urds"
_VERSION: Final = 1
#                                        magic version count bind_id
_START: Final = Layout("ways of a datagram socket", ">4sBB2x8s", size_bytes=16)
#                              provider port
_DEVICE: Final = Layout("way", ">8sH2x", size_bytes=12)


@dataclass(frozen=True, slots=True)
class DatagramDevicePort:
    """One device of a socket: its kind, and the port there at which look-ups are answered."""

    provider: str
    port: int


@dataclass(frozen=True, slots=True)
class DatagramDevices:
    """All devices of a socket, in the order in which it prefers them, and its bind id."""

    bind_id: bytes
    device_ports: tuple[DatagramDevicePort, ...] = ()

    def emit(self) -> bytes:
        """Write 16 bytes and 12 for each device. Raises WireError if a field does not fit."""
        if len(self.bind_id) != BIND_ID_BYTES:
            raise WireError(f"bind id of {len(self.bind_id)} bytes, not {BIND_ID_BYTES}")
        _check_count(len(self.device_ports))
        start = _START.pack(_MAGIC, _VERSION, len(self.device_ports), self.bind_id)
        return start + b"".join(_emit_device(device) for device in self.device_ports)

    @classmethod
    def parse(cls, data: bytes | bytearray | memoryview) -> Self:
        """Read what follows the header of a control message.

        Raises WireError for another magic or version, a length that the count does not give, too
        many devices, a provider that is no name, port 0.
        """
        data = bytes(data)
        magic, version, count, bind_id = _START.unpack(data[: _START.size_bytes])
        if magic != _MAGIC or version != _VERSION:
            raise WireError(f"ways begin with {magic!r}, version {version}")
        _check_count(count)
        if len(data) != _START.size_bytes + count * _DEVICE.size_bytes:
            raise WireError(f"{count} ways in {len(data)} bytes")
        starts = range(_START.size_bytes, len(data), _DEVICE.size_bytes)
        return cls(
            bind_id, tuple(_parse_device(data[at : at + _DEVICE.size_bytes]) for at in starts)
        )


def _emit_device(device: DatagramDevicePort) -> bytes:
    name = device.provider.encode("ascii", "replace")
    if not _is_name(name) or not device.port:
        raise WireError(f"way {device.provider!r} at port {device.port}")
    return _DEVICE.pack(name, device.port)


def _parse_device(data: bytes) -> DatagramDevicePort:
    padded, port = _DEVICE.unpack(data)
    name = padded.rstrip(b"\0")
    if not _is_name(name) or not port:
        raise WireError(f"way {name!r} at port {port}")
    return DatagramDevicePort(name.decode("ascii"), port)


def _is_name(name: bytes) -> bool:
    return len(name) <= PROVIDER_BYTES and name.isalnum()


def _check_count(count: int) -> None:
    if count > DEVICES_MAX:
        raise WireError(f"{count} ways, limit {DEVICES_MAX}")
