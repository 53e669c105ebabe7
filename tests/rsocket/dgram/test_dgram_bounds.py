"""The datagram core: its bounds, devices that are lost, misuse."""

from ipaddress import ip_address

import pytest

from tests.rsocket.dgram.datagram_core import (
    OPENING,
    PEER_OPENING,
    QKEY,
    THERE,
    S,
    control,
    data,
    datagrams,
    learn,
    send,
)
from urds.common.errors import LocalProtocolError
from urds.rsocket.core.datagram import (
    ByQueuePair,
    ByUdp,
    CancelLookUp,
    DatagramCore,
    DatagramSettings,
    DestinationState,
    LocalDevice,
    LookUp,
    QueuePairAddress,
)
from urds.rsocket.wire.datagram import DatagramDevicePort, DatagramOp, UdpHeader


def test_the_least_recently_used_destination_goes() -> None:
    core = datagrams(settings=DatagramSettings(destinations_max=2))
    first, second, third = (("127.0.0.2", port) for port in (1, 2, 3))
    send(core, b"", first)
    send(core, b"", second)
    send(core, b"", first)
    core.receive_udp(data(b""), second, 10 * S)  # what arrives does not count as use
    send(core, b"", third)
    assert [core.knows(each) for each in (first, second, third)] == [True, False, True]
    assert core.stats.destinations_evicted == 1


def test_the_look_up_of_an_evicted_destination_is_given_up() -> None:
    core = datagrams(settings=DatagramSettings(destinations_max=1))
    send(core, b"x")
    core.receive_udp(control(), THERE, 10 * S)
    assert isinstance(core.poll_event(), LookUp)
    send(core, b"x", ("127.0.0.2", 1))
    assert core.poll_event() == CancelLookUp(1)
    core.handle_found(1, QueuePairAddress(0, "v", 1, QKEY))
    assert not core.knows(THERE)


def test_only_so_many_look_ups_at_once() -> None:
    core = datagrams(settings=DatagramSettings(look_ups_max=2))
    targets = [("127.0.0.2", port) for port in (1, 2, 3)]
    for target in targets:
        send(core, b"", target)
        core.receive_udp(control(), target, 10 * S)
    assert core.stats.look_ups == 2
    core.handle_not_found(1, 10 * S)
    core.receive_udp(control(), targets[2], 10 * S)
    assert core.state_of(targets[2]) is DestinationState.LOOKING_UP


# -- devices, misuse


def test_a_lost_device_leaves_its_peers_to_udp() -> None:
    core = datagrams("shm", "tcp")
    send(core, b"x")
    learn(core, control())
    core.handle_device_lost(0)
    assert isinstance(send(core, b"y"), ByUdp)
    core.receive_udp(
        control(device_ports=(DatagramDevicePort("shm", 1), DatagramDevicePort("tcp", 2))),
        THERE,
        10 * S,
    )
    assert core.poll_event() == LookUp(2, 1, (THERE[0], 2), PEER_OPENING), "over what is left"


def test_what_a_lost_device_did_not_take_goes_by_udp() -> None:
    core = datagrams()
    send(core, b"x")
    learn(core, control())
    refused = send(core, b"refused")
    assert isinstance(refused, ByQueuePair)
    core.handle_device_lost(0)
    instead = core.send_instead(refused, 10 * S)
    assert isinstance(instead, ByUdp)
    assert instead.data.endswith(b"refused")
    assert (core.stats.sent_by_udp, core.stats.sent_by_queue_pair) == (2, 0)


def test_a_device_lost_during_a_look_up_is_not_waited_for() -> None:
    core = datagrams("shm", "tcp")
    send(core, b"x")
    core.receive_udp(control(), THERE, 10 * S)
    core.handle_device_lost(0)
    assert [core.poll_event(), core.poll_event()] == [
        LookUp(1, 0, (THERE[0], 9000), PEER_OPENING),
        CancelLookUp(1),
    ]
    assert core.state_of(THERE) is DestinationState.BY_UDP


def test_a_peer_with_a_scope_stays_with_udp() -> None:
    core = DatagramCore(
        DatagramSettings(),
        local=("::1", 5000),
        devices=[LocalDevice("shm", 1, 2, 4096)],
        bind_id=OPENING,
    )
    target = ("fe80::1%lo", 6000)
    core.add_destination(target, "fe80::2%lo")
    core.send(b"x", target, 0)
    answer = UdpHeader(DatagramOp.CONTROL, 5, ip_address("fe80::1")).emit()
    core.receive_udp(answer + control()[16:], target, 0)
    assert core.stats.controls_received == 1
    assert core.poll_event() is None


def test_a_destination_comes_before_its_datagrams_and_in_one_family() -> None:
    core = datagrams()
    with pytest.raises(LocalProtocolError):
        core.send(b"x", THERE, 0)
    with pytest.raises(LocalProtocolError):
        core.add_destination(THERE, "::1")
