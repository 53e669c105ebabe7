"""What our own sockets say behind the header of a control message: where they can be looked up.

librdmacm finds a queue pair by the peer's IP address alone. Our devices share one
address, and the port of a datagram socket is the kernel's already. So a peer says at which port of
each of its devices look-ups are answered, and under which bind id: bytes that are drawn
anew whenever a socket is bound, for queue pair numbers may repeat. librdmacm reads the header
and nothing else.
"""

from dataclasses import dataclass
from typing import Final, Self

from urds.common.errors import WireError
from urds.common.struct_layout import Layout

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
            raise WireError(f"opening of {len(self.bind_id)} bytes, not {BIND_ID_BYTES}")
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
