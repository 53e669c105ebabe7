"""What tests of the datagram core share: a core, its peer's bytes, and how they meet."""

from ipaddress import ip_address

from urds.common.types import HostPort
from urds.rsocket.core.datagram import (
    ByQueuePair,
    ByUdp,
    DatagramCore,
    DatagramSettings,
    LocalDevice,
    LookUp,
    QueuePairAddress,
)
from urds.rsocket.wire.datagram import (
    DatagramDevicePort,
    DatagramDevices,
    DatagramOp,
    QpHeader,
    UdpHeader,
)

HERE: HostPort = ("127.0.0.1", 5000)
THERE: HostPort = ("127.0.0.2", 6000)
OPENING = b"opening1"
PEER_OPENING = b"peer-one"
S = 1_000_000_000
QKEY = 0x01234567


def datagrams(
    *providers: str, mtu_bytes: int = 4096, settings: DatagramSettings | None = None
) -> DatagramCore:
    devices = [
        LocalDevice(provider, 7000 + index, 0x100 + index, mtu_bytes)
        for index, provider in enumerate(providers or ("shm",))
    ]
    return DatagramCore(
        settings or DatagramSettings(), local=HERE, devices=devices, bind_id=OPENING
    )


def send(
    core: DatagramCore, payload: bytes, target: HostPort = THERE, now_ns: int = 10 * S
) -> ByUdp | ByQueuePair:
    if not core.knows(target):
        core.add_destination(target, HERE[0])
    return core.send(payload, target, now_ns)


def control(
    qpn: int = 0x55,
    *,
    bind_id: bytes | None = PEER_OPENING,
    device_ports: tuple[DatagramDevicePort, ...] = (DatagramDevicePort("shm", 9000),),
) -> bytes:
    header = UdpHeader(DatagramOp.CONTROL, qpn, ip_address(THERE[0])).emit()
    return header if bind_id is None else header + DatagramDevices(bind_id, device_ports).emit()


def data(payload: bytes, qpn: int = 0x55) -> bytes:
    return UdpHeader(DatagramOp.DATA, qpn, ip_address(THERE[0])).emit() + payload


def by_queue_pair(payload: bytes, source: HostPort = THERE) -> bytes:
    return QpHeader(source[1], ip_address(source[0])).emit() + payload


def learn(core: DatagramCore, data: bytes, now_ns: int = 10 * S) -> QueuePairAddress:
    """Give a control message and let the look-up that follows find a queue pair."""
    core.receive_udp(data, THERE, now_ns)
    asked = core.poll_event()
    assert isinstance(asked, LookUp)
    qp_address = QueuePairAddress(asked.device, "vector", 0x99, QKEY)
    core.handle_found(asked.token, qp_address)
    return qp_address


MALFORMED_UDP = [
    b"",
    b"UUUU",
    data(b"")[:15],
    b"\0" + data(b"x")[1:],
    UdpHeader(DatagramOp.DATA, 1, ip_address("::1")).emit() + b"x",  # IPv6 between IPv4
    control() + b"\0",
    control()[:-1],
]
