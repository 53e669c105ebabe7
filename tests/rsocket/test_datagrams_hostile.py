"""What unknown peers may send to a datagram socket: by UDP, to its queue pair, as look-ups."""

from __future__ import annotations

import socket
from collections.abc import Callable
from ipaddress import ip_address

import pytest

from tests.rsocket.datagram_ends import (
    Ends,
    address_of,
    ends,
    exchange,
    take,
    until,
    use_queue_pairs,
)
from urds.rsocket.core.datagram import DatagramStats
from urds.rsocket.link.datagram_device import look_ups_of
from urds.rsocket.link.datagram_link import DatagramLink
from urds.rsocket.wire.datagram import (
    DatagramDevicePort,
    DatagramDevices,
    DatagramOp,
    QpHeader,
    UdpHeader,
)
from urds.verbs.cm_parameters import UD_QKEY
from urds.verbs.engine.work import AddressVector, SendWR
from urds.verbs.providers.base import (
    ConnectionEventKind,
    ConnectParameters,
    PortSpace,
    VerbsConnectionEvent,
)

LOCAL = ip_address("127.0.0.1")


def counted(link: DatagramLink, count: Callable[[DatagramStats], int], wanted: int) -> None:
    """Wait until a counter has reached a number."""
    until(lambda: link.wait(lambda: count(link.stats) >= wanted, 0.01))


def say(target: DatagramLink, *messages: bytes) -> None:
    """Send bytes of any kind to the UDP port of a socket."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unknown_peer:
        for data in messages:
            unknown_peer.sendto(data, address_of(target))


def test_a_forged_control_message_from_an_unknown_peer_starts_nothing() -> None:
    with ends() as made:
        here, there = made.link("shm0"), made.link("shm0", host="127.0.0.3")
        use_queue_pairs(here, there)
        look_ups = here.stats.look_ups
        device_ports = DatagramDevices(bytes(8), (DatagramDevicePort("shm", 9),)).emit()
        say(here, UdpHeader(DatagramOp.CONTROL, 9, LOCAL).emit() + device_ports)
        counted(here, lambda stats: stats.controls_stray, 1)
        exchange(here, there, b"unharmed")
        assert here.stats.look_ups == look_ups


def test_an_unknown_peer_that_sends_data_costs_no_entry() -> None:
    with ends() as made:
        there = made.link("shm0")
        for number in range(40):
            say(there, UdpHeader(DatagramOp.DATA, number, LOCAL).emit() + b"hello")
            assert take(there)[0] == b"hello"
        core = there._core  # what the table holds shows nowhere else
        assert core is not None
        assert len(core._destinations) == 0


def find_queue_pair(
    made: Ends, device: str, host: str, port: int, bind_id: bytes
) -> tuple[VerbsConnectionEvent, DatagramLink]:
    """Look a queue pair up by hand; return the answer, and a socket whose queue pair is usable."""
    unknown_peer = made.link(device, host="127.0.0.4")
    adapter = unknown_peer.contexts[0].adapter
    events: list[VerbsConnectionEvent] = []
    with adapter.lock:
        adapter.connect(
            None,
            (host, port),
            PortSpace.UDP,
            ConnectParameters(private_data=bind_id),
            on_event=events.append,
        )
    assert adapter.wait(lambda: bool(events), 10_000_000_000)
    return events[0], unknown_peer


def ways_of(link: DatagramLink) -> DatagramDevices:
    """Ask a socket for its ways, as a peer does."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.settimeout(10)
        asking.sendto(UdpHeader(DatagramOp.DATA, 1, LOCAL).emit(), address_of(link))
        _, rest = UdpHeader.parse(asking.recv(4096))
    return DatagramDevices.parse(rest)


@pytest.mark.parametrize("device", ["shm0", "tcp0", "udp0"])
def test_bytes_at_the_queue_pair_that_are_no_datagram_are_dropped(device: str) -> None:
    with ends() as made:
        here, there = made.link(device), made.link(device, host="127.0.0.3")
        use_queue_pairs(here, there)
        said = ways_of(there)
        host = address_of(there)[0]
        found, unknown_peer = find_queue_pair(
            made, device, host, said.device_ports[0].port, said.bind_id
        )
        assert found.kind is ConnectionEventKind.ESTABLISHED
        adapter = unknown_peer.contexts[0].adapter
        qp = unknown_peer._devices[0]._qp  # what it says is not what a socket says

        def post(data: bytes, qkey: int = UD_QKEY) -> None:
            wr = SendWR(ah=found.vector, remote_qpn=found.qpn, remote_qkey=qkey, data=data)
            assert isinstance(wr.ah, AddressVector)
            with adapter.lock:
                qp.post_send(wr, 0)
                adapter.progress_qp(qp)

        for data in (b"", b"\x04", b"\x04\x08\0\0\x7f\0\0\1", b"\x06\x18" + bytes(30)):
            post(data)
        counted(there, lambda stats: stats.dropped_malformed, 4)
        post(QpHeader(9, LOCAL).emit() + b"of another key", UD_QKEY + 1)
        post(QpHeader(9, LOCAL).emit() + b"good")
        taken = [take(there)[0], take(there)[0]]  # the question for the ways was the first
        assert taken == [b"", b"good"]
        if device == "shm0":  # elsewhere the link carries nothing longer than a slot
            post(bytes(3000))
            counted(there, lambda stats: stats.dropped_failed, 1)
        exchange(here, there, b"unharmed")


@pytest.mark.parametrize("device", ["shm0", "tcp0", "udp0"])
def test_a_look_up_for_an_unbound_port_is_refused(device: str) -> None:
    with ends() as made:
        there = made.link(device, host="127.0.0.3")
        said = ways_of(there)
        for bind_id in (bytes(8), b"", said.bind_id[:7]):
            found, _ = find_queue_pair(
                made, device, "127.0.0.3", said.device_ports[0].port, bind_id
            )
            assert found.kind is ConnectionEventKind.REJECTED
        assert look_ups_of(there.contexts[0]).refused == 3
        port = said.device_ports[0].port
        found, _ = find_queue_pair(made, device, "127.0.0.3", port, said.bind_id)
        assert found.kind is ConnectionEventKind.ESTABLISHED
        there.close()
        found, _ = find_queue_pair(made, device, "127.0.0.3", port, said.bind_id)
        assert found.kind is ConnectionEventKind.REJECTED
