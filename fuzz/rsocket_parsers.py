"""Parsers of rsockets: private data, immediate data, entries of tables, headers of datagrams."""

from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address

from urds.rsocket.wire.datagram import (
    DatagramDevicePort,
    DatagramDevices,
    DatagramOp,
    QpHeader,
    UdpHeader,
)
from urds.rsocket.wire.stream import (
    SGE_BYTES,
    ConnectData,
    ConnectFlag,
    IomapEntry,
    Sge,
    emit_imm_data,
    parse_imm_data,
)


def rsocket_connect_data(data: bytes) -> None:
    """Read private data; all but the reserved bytes must come out again."""
    emitted = ConnectData.parse(data).emit()
    assert emitted == data[:4] + bytes(3) + data[7 : len(emitted)]


def rsocket_word(data: bytes) -> None:
    """Read immediate data and the entry that may come with it, in both byte orders."""
    imm_data = int.from_bytes(data[:4], "big")
    assert emit_imm_data(*parse_imm_data(imm_data)) == imm_data
    entry = data[4:]
    kind = Sge if len(entry) == SGE_BYTES else IomapEntry
    assert kind.parse(entry, "little").emit("little") == entry
    assert kind.parse(entry, "big").emit("big") == entry


def rsocket_udp_header(data: bytes) -> None:
    """Read the header of a datagram over UDP; all but the reserved byte must come out again."""
    header, payload = UdpHeader.parse(data)
    assert header.emit() + payload == data[:7] + b"\0" + data[8:]


def rsocket_qp_header(data: bytes) -> None:
    """Read the header of a datagram over a queue pair; the same bytes must come out again."""
    header, payload = QpHeader.parse(data)
    assert header.emit() + payload == data


def rsocket_ways(data: bytes) -> None:
    """Read where a peer's datagram socket can be looked up; all but padding must come out again."""
    record = DatagramDevices.parse(data)
    assert DatagramDevices.parse(record.emit()) == record


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (
        rsocket_connect_data, rsocket_word, rsocket_udp_header, rsocket_qp_header, rsocket_ways,
    )
}  # fmt: skip

_V4, _V6 = IPv4Address("10.0.0.1"), IPv6Address("fd00::1")
SEEDS: dict[str, tuple[bytes, ...]] = {
    "rsocket_connect_data": (
        ConnectData(
            flags=ConnectFlag.IOMAP,
            credits=384,
            iomap_slots=128,
            target_sgl=Sge(1 << 40, 0x100, 2),
            data_buffer=Sge(1 << 41, 0x101, 65536),
        ).emit(),
    ),
    "rsocket_word": (
        bytes.fromhex("80000180") + Sge(1 << 40, 0x100, 65536).emit("little"),
        bytes.fromhex("c0000000") + IomapEntry(0, 1 << 40, 0x100, 4096).emit("big"),
        bytes.fromhex("e0000000") + bytes(SGE_BYTES),
    ),
    "rsocket_udp_header": (
        UdpHeader(DatagramOp.DATA, 0x123456, _V4).emit() + b"payload",
        UdpHeader(DatagramOp.CONTROL, 0x123456, _V6).emit(),
    ),
    "rsocket_qp_header": (
        QpHeader(7174, _V4).emit() + b"payload",
        QpHeader(7174, _V6, 5).emit() + b"payload",
    ),
    "rsocket_ways": (
        DatagramDevices(
            b"opening!", (DatagramDevicePort("shm", 7174), DatagramDevicePort("tcp", 7175))
        ).emit(),
        DatagramDevices(bytes(8)).emit(),
    ),
}
