"""The core of a datagram socket of rsockets, with known and unknown peers, and any devices.

Only a program's own sending costs memory; a look-up is asked for where a datagram was sent to, at a
device that is there, and is known until it ends or is given up; a datagram comes out as it went in.
"""

from collections.abc import Callable
from contextlib import suppress
from ipaddress import IPv4Address

from fuzz.script import Script, step
from urds.rsocket.core.datagram import (
    _SOURCES_MAX,
    ByQueuePair,
    CancelLookUp,
    DatagramCore,
    DatagramSettings,
    DestinationState,
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

STEPS_MAX = 400
DESTINATIONS_MAX = 4
LOOK_UPS_MAX = 2
RECEIVE_SLOTS = 8
SLOT_BYTES = 2048
HERE = ("127.0.0.1", 5000)
THERE = tuple((f"127.0.0.{host}", 6000 + host) for host in range(2, 9))
_PROVIDERS = ("shm", "tcp", "udp")
_MS = 1_000_000


class Besieged:
    """One socket; the network and the devices are the script's."""

    def __init__(self, choices: int) -> None:
        self.now_ns = 0
        devices = [
            LocalDevice(provider, 7000 + index, 0x100 + index, 1024 << index)
            for index, provider in enumerate(_PROVIDERS[: choices & 3])
        ]
        self.core = DatagramCore(
            DatagramSettings(
                receive_slots=RECEIVE_SLOTS,
                destinations_max=DESTINATIONS_MAX,
                look_ups_max=LOOK_UPS_MAX,
            ),
            local=HERE,
            devices=devices,
            bind_id=b"opening!",
        )
        if choices & 4:
            self.core.peer = THERE[0]
        self._devices = set(range(len(devices)))
        self._look_ups: dict[int, LookUp] = {}

    def send(self, choice: int, amount: int) -> None:
        """Send something to one of the peers."""
        target, payload = THERE[choice % len(THERE)], bytes(amount * 8)
        if not self.core.knows(target):
            self.core.add_destination(target, HERE[0])
        with suppress(OSError):  # too long
            sent = self.core.send(payload, target, self.now_ns)
            assert sent.data.endswith(payload) and sent.target == target
            if isinstance(sent, ByQueuePair):
                assert sent.qp_address.device in self._devices
                if choice & 128:
                    self.core.send_instead(sent, self.now_ns)

    def take_udp(self, choice: int, data: bytes) -> None:
        """Let a datagram come over UDP."""
        answer = self.core.receive_udp(data, THERE[choice % len(THERE)], self.now_ns)
        if answer is not None:
            header, rest = UdpHeader.parse(answer.data)
            assert header.op is DatagramOp.CONTROL and not answer.is_data
            DatagramDevices.parse(rest)

    def answer(self, choice: int) -> None:
        """End a look-up, or one that there never was."""
        tokens = sorted(self._look_ups)
        token = tokens[choice % len(tokens)] if tokens and choice & 64 else choice
        asked = self._look_ups.pop(token, None)
        if choice & 32 and asked is not None and asked.device in self._devices:
            self.core.handle_found(token, QueuePairAddress(asked.device, "vector", choice, 1))
        else:
            self.core.handle_not_found(token, self.now_ns)

    def lose_device(self, choice: int) -> None:
        """Take a device away."""
        if choice % 8 in self._devices:
            self._devices.discard(choice % 8)
            self.core.handle_device_lost(choice % 8)

    def receive(self) -> None:
        """Take all datagrams that wait."""
        while (found := self.core.receive()) is not None:
            payload, source = found
            assert len(payload) <= SLOT_BYTES and source[1] > 0
            assert self.core.peer in (None, source), "an unknown peer's"

    def check(self) -> None:
        """Take events; check what is kept."""
        core = self.core
        while (event := core.poll_event()) is not None:
            if isinstance(event, CancelLookUp):
                self._look_ups.pop(event.token, None)
                continue
            assert event.token not in self._look_ups and event.device in self._devices
            assert any(event.peer[0] == host for host, _ in THERE)
            self._look_ups[event.token] = event
        # No public look at the tables.
        assert len(core._destinations) <= DESTINATIONS_MAX
        assert core._destinations.look_ups <= LOOK_UPS_MAX
        assert set(core._destinations._by_token) <= set(self._look_ups)
        assert len(core._received) <= RECEIVE_SLOTS and len(core._sources) <= _SOURCES_MAX
        for destination in core._destinations:
            is_found = destination.state is DestinationState.BY_QUEUE_PAIR
            assert is_found == (destination.qp_address is not None)
            assert bool(destination.token) == (destination.state is DestinationState.LOOKING_UP)


def rsocket_datagrams(data: bytes) -> None:
    """Let a script be peers, unknown ones, devices, program and time of a datagram socket."""
    script = Script(data)
    side = Besieged(script.number())
    for _ in range(STEPS_MAX):
        if not script:
            break
        action, choice = script.number(), script.number()
        match action & 7:
            case 0:
                side.take_udp(choice, script.piece())
            case 1:
                side.take_udp(choice, _control(script.number(), choice))
            case 2:
                side.core.receive_queue_pair(script.piece())
            case 3:
                side.core.receive_queue_pair(_by_queue_pair(choice, script.number()))
            case 4 | 5:
                side.send(choice, script.number())
            case 6 if choice < 8:
                side.lose_device(choice)
            case 6:
                side.answer(choice)
            case _:
                side.now_ns += choice * choice * _MS // 4
                side.receive()
        side.check()


def _control(kind: int, choice: int) -> bytes:
    """Return a message of a peer that is nearly in order: its number and paths, or data."""
    host = IPv4Address(THERE[choice % len(THERE)][0])
    if kind & 128:
        return UdpHeader(DatagramOp.DATA, 0x55 + (kind & 1), host).emit() + bytes(kind)
    header = UdpHeader(DatagramOp.CONTROL, 0x55 + (kind & 1), host).emit()
    if kind & 2:
        return header
    device_ports = tuple(DatagramDevicePort(name, 9000) for name in _PROVIDERS[: kind >> 2 & 3])
    return header + DatagramDevices(bytes([kind >> 4]) * 8, device_ports).emit()


def _by_queue_pair(choice: int, byte_count: int) -> bytes:
    host, port = THERE[choice % len(THERE)]
    return QpHeader(port + choice, IPv4Address(host)).emit() + bytes(byte_count * 10)


TARGETS: dict[str, Callable[[bytes], None]] = {"rsocket_datagrams": rsocket_datagrams}

_SEND = bytes([4, 0, 9, 4, 1, 9, 4, 2, 9])
_ANSWERED = bytes([1, 0, 0x0C, 1, 1, 0x0C, 1, 2, 0x0C])
_FOUND = bytes([6, 64 + 32, 6, 64 + 33, 6, 64])
SEEDS: dict[str, tuple[bytes, ...]] = {
    "rsocket_datagrams": (
        b"\3" + _SEND + _ANSWERED + _FOUND + _SEND + bytes([7, 90]) + _SEND + bytes([1, 0, 0x0D]),
        b"\2"
        + bytes([4, 3, 4, 4, 4, 4, 4, 5, 4])
        + _SEND
        + _ANSWERED
        + bytes([6, 1, 6, 0])
        + _SEND,
        b"\7" + bytes([3, 0, 9, 3, 1, 250, 7, 0]) + bytes([1, 0, 0x8F]) * 12 + bytes([7, 9]),
        b"\1" + step(0, 0, data=_control(0x0C, 0)) + step(2, 0, data=_by_queue_pair(1, 3)),
    )
}
