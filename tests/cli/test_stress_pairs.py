"""The books of a pair: a captured run of rds-stress replayed, and everything that is refused."""

from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv4Address

import pytest

from tests.vectors import load
from urds.cli.rds.stress.wire import (
    HEADER_BYTES,
    Operation,
    Pair,
    Parameters,
    RdmaPart,
    StressError,
)

PARAMETERS = Parameters(depth=3, request_bytes=200, ack_bytes=100, verify=True)
OURS, PEER = (IPv4Address("10.0.0.1"), 4001), (IPv4Address("10.0.0.2"), 4002)


def pairs(parameters: Parameters = PARAMETERS) -> tuple[Pair, Pair]:
    return Pair(parameters, ours=OURS, peer=PEER), Pair(parameters, ours=PEER, peer=OURS)


def whole(message: tuple[bytes, bytes]) -> bytes:
    return b"".join(message)


def requested(pair: Pair) -> bytes:
    data = whole(pair.request())
    pair.requested(0)
    return data


def acked(pair: Pair) -> bytes:
    data = whole(pair.ack())
    pair.acked()
    return data


def test_the_first_request_has_the_bytes_of_the_page() -> None:
    data = requested(pairs()[0])
    assert data[:19].hex(" ", -4) == "00000000 0a000001 0a000002 0fa10fa2 000001"
    assert data[19:63] == bytes(44)
    assert data[63:65] == bytes([11, 62])
    assert len(data) == 200


def test_requests_go_round_robin_and_acks_in_their_order_with_one_sequence() -> None:
    a, b = pairs()
    for _ in range(3):
        assert b.receive(requested(a))[0] is Operation.REQUEST
    assert not a.may_request
    answers = [a.receive(acked(b)) for _ in range(3)]
    assert answers == [(Operation.ACK, index) for index in range(3)]
    for _ in range(7):
        a.receive(requested(b))  # the other way: b's sequence goes on after its acks
        b.receive(acked(a))
        b.receive(requested(a))
        a.receive(acked(b))
    assert (a.pending, a.unacked, b.pending, b.unacked) == (0, 0, 0, 0)
    assert a.send_sequence == b.send_sequence == 17


def test_the_sequence_wraps_at_32_bits() -> None:
    a, b = pairs()
    for pair in pairs():
        assert pair.send_sequence == 0
    a.send_sequence = 0xFFFF_FFFF
    b._receive_sequence = 0xFFFF_FFFF  # no test sends so many
    b.receive(requested(a))
    b.receive(requested(a))
    assert a.send_sequence == 1


def lost(a: Pair) -> bytes:
    requested(a)
    return requested(a)


def repeated(a: Pair) -> bytes:
    a.send_sequence -= 1
    a.send_index -= 1
    return requested(a)


def with_byte(place: int, value: int) -> Callable[[Pair], bytes]:
    def changed(a: Pair) -> bytes:
        data = bytearray(requested(a))
        data[place] = value
        return bytes(data)

    return changed


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (lost, "sequence 2, expected 1, index 2, expected 1"),
        (repeated, "sequence 0, expected 1, index 0, expected 1"),
        (with_byte(7, 9), "from 10.0.0.9, expected 10.0.0.1"),
        (with_byte(11, 9), "to 10.0.0.9, expected 10.0.0.2"),
        (with_byte(13, 0), "from port 3840, expected 4001"),
        (with_byte(17, 2), "index 2, expected 1"),
        (with_byte(18, 3), "no message of rds-stress, operation 3"),
        (with_byte(18, 2), "an ack, and no request is under way"),
        (with_byte(63, 12), "payload damaged from byte 0 on, 1 of 137 are wrong"),
        (with_byte(199, 0), "payload damaged from byte 136 on, 1 of 137 are wrong"),
        (lambda a: requested(a)[:-1], "request of 199 bytes, not 200"),
        (lambda _: b"x" * 62, "no message of rds-stress, 62 bytes"),
    ],
)
def test_whatever_is_not_the_next_message_is_named(
    broken: Callable[[Pair], bytes], words: str
) -> None:
    a, b = pairs()
    b.receive(requested(a))
    with pytest.raises(StressError) as refused:
        b.receive(broken(a))
    assert str(refused.value) == f"message from 10.0.0.1:4001: {words}"


def test_without_verify_the_rest_is_not_looked_at() -> None:
    a, b = pairs(replace(PARAMETERS, verify=False))
    assert requested(a)[63:] == bytes(137)
    b.receive(with_byte(150, 1)(pairs()[0]))


def test_more_requests_than_the_depth_are_refused() -> None:
    a, b = pairs()
    for _ in range(3):
        b.receive(requested(a))
    with pytest.raises(StressError, match="more than 3 requests under way"):
        b.receive(requested(a))


def test_a_captured_run_of_rds_stress_is_received_and_written_again() -> None:
    """Two kernels with rds-stress -q 64 -a 64 -D 4096: b in our place, byte for byte."""
    parameters = Parameters(request_bytes=64, ack_bytes=64, rdma_bytes=4096)
    a, b = ((IPv4Address(f"10.78.0.{host}"), 4001) for host in (10, 20))
    ours = Pair(parameters, ours=b, peer=a)
    counted = {"sent": 0, "received": 0, "rdma": 0}
    for name, data in load("linux_6_1_rdma_conversation").items():
        payload = data[48:]  # behind the header of RDS
        if int(name.split("_")[1]) < 30 or len(payload) != 64:
            continue
        part = RdmaPart.parse(payload)
        assert part.emit() == payload[19:HEADER_BYTES]
        if part.operation:
            assert (part.rdma_bytes, part.vector) == (4096, 1)
            counted["rdma"] += 1
        if name.startswith("a"):
            ours.receive(payload)
            counted["received"] += 1
        else:
            is_request = payload[18] == Operation.REQUEST
            make, note = (requested, ours.request) if is_request else (acked, ours.ack)
            assert whole(note(part.emit())) == payload, name
            make(ours)
            counted["sent"] += 1
    assert counted["sent"] > 30
    assert counted["received"] > 30
    assert counted["rdma"] > 30
