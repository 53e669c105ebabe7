"""Messages between a Linux kernel and us: both directions, both orders of addresses."""

import struct

import pytest

from .conftest import Ends
from .lab.guest import Lab
from .lab.wire import Orders

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

SILENCE = Orders(block=("to_guest", "to_host"))
SOL_RDS, CMSG_CONG_UPDATE = 276, 5  # source: linux v6.1 include/uapi/linux/rds.h
SMALL_BUFFER_BYTES = 16384


@pytest.mark.rule("wire-tcp-encapsulation", "wire-len", "rds7-reliable-visible")
@pytest.mark.parametrize("body_bytes", [0, 1, 64, 8192, (1 << 20) - 8])
def test_a_message_of_each_size_arrives_whole_both_ways(ends: Ends, body_bytes: int) -> None:
    """The numbered messages carry eight bytes of their own: 1 MiB in all is the largest."""
    ends.open_sockets()
    for sender, receiver, target in (
        (ends.ours, ends.guest, ends.kernel),
        (ends.guest, ends.ours, ends.us),
    ):
        sender("s.sendto(message(7, body_bytes), target)", body_bytes=body_bytes, target=target)
        assert receiver("number_of(s.recv(MESSAGE_BYTES_MAX))") == 7


@pytest.mark.rule("rds7-empty-message", "rds7-receive-address", "rds7-receive-empty")
@pytest.mark.parametrize("payload", [b"", b"x"])
def test_zero_and_one_byte_keep_their_boundaries_and_source(ends: Ends, payload: bytes) -> None:
    """Neither is merged with the next message; the receiver learns who sent it."""
    ends.open_sockets()
    for sender, receiver, source, target in (
        (ends.ours, ends.guest, ends.us, ends.kernel),
        (ends.guest, ends.ours, ends.kernel, ends.us),
    ):
        for data in (payload, b"next"):
            sender("s.sendto(data, target)", data=data, target=target)
        assert receiver("s.recvfrom(100)") == (payload, source)
        assert receiver("s.recvfrom(100)") == (b"next", source)


@pytest.mark.rule("wire-ping", "wire-pong")
def test_each_side_answers_a_ping(ends: Ends) -> None:
    """A message to port 0 comes back as an empty message from port 0."""
    ends.open_sockets()
    for sender, address in ((ends.ours, ends.kernel[0]), (ends.guest, ends.us[0])):
        sender("s.sendto(b'', (address, 0))", address=address)
        assert sender("s.recvfrom(100)") == (b"", (address, 0))


@pytest.mark.rule(
    "wire-congestion-update",
    "wire-congestion-sender",
    "wire-congestion-bits",
    "rds7-monitor-bitmap",
    "rds7-uncongested-sender-resumes",
)
@pytest.mark.parametrize("receiving_side", ["kernel", "us"])
def test_a_full_receiver_pushes_back_and_says_when_it_is_free(
    ends: Ends, receiving_side: str
) -> None:
    """ENOBUFS while it does not read, a notice to the monitor when it did, nothing lost."""
    to_kernel = receiving_side == "kernel"
    receiver, receiver_address = (ends.guest, ends.kernel) if to_kernel else (ends.ours, ends.us)
    sender, sender_address = (ends.ours, ends.us) if to_kernel else (ends.guest, ends.kernel)
    small = {"receive_bytes": SMALL_BUFFER_BYTES}
    receiver("s = open_socket(*address, **small)", address=receiver_address, small=small)
    sender("s = open_socket(*address)", address=sender_address)
    sender("s.setsockopt(SOL_RDS, CONG_MONITOR, 1)")
    accepted = sender("send_until_refused(s, target, count_max=400)", target=receiver_address)
    assert accepted * 1000 > SMALL_BUFFER_BYTES
    assert receiver("receive_numbers(s, count)", count=accepted) == list(range(accepted))
    port_group = struct.pack("=Q", 1 << receiver_address[1] % 64)
    notice = (b"", [(SOL_RDS, CMSG_CONG_UPDATE, port_group)])
    assert sender("receive_control(s)") == notice
    sender("s.settimeout(10); send_numbers(s, target, range(3))", target=receiver_address)
    assert receiver("receive_numbers(s, 3)") == [0, 1, 2]


@pytest.mark.rule("rds7-cancel-address", "rds7-cancel-destination")
@pytest.mark.parametrize("sending_side", ["us", "kernel"])
def test_what_is_cancelled_before_the_connection_is_never_sent(
    ends: Ends, lab: Lab, sending_side: str
) -> None:
    """Behind a silent wire: messages to one port are cancelled, those to another are not.

    Later it would be too late for some: TCP's buffer does not give messages back.
    """
    ours_sends = sending_side == "us"
    sender, address = (ends.ours, ends.us) if ours_sends else (ends.guest, ends.kernel)
    receiver, target = (ends.guest, ends.kernel) if ours_sends else (ends.ours, ends.us)
    kept = (target[0], target[1] + 1)
    receiver("s = open_socket(*address); kept = open_socket(*kept)", address=target, kept=kept)
    lab.order(SILENCE)
    sender("s = open_socket(*address); s.setblocking(False)", address=address)
    sender("send_numbers(s, target, range(10))", target=target)
    sender("send_numbers(s, kept, range(3))", kept=kept)
    sender("s.setsockopt(SOL_RDS, CANCEL_SENT_TO, socket_address(*target))", target=target)
    lab.order(Orders())
    assert receiver("receive_numbers(kept, 3)") == [0, 1, 2]
    assert receiver("drain(s)") == []


@pytest.mark.rule("rds7-unbound-port-silent")
def test_a_message_to_an_unbound_port_is_dropped_and_harms_nothing(ends: Ends) -> None:
    """The sender is not told; the next message, to a bound port, arrives."""
    ends.open_sockets()
    for sender, receiver, target in (
        (ends.ours, ends.guest, ends.kernel),
        (ends.guest, ends.ours, ends.us),
    ):
        unbound = (target[0], target[1] + 999)
        assert sender("s.sendto(b'lost', unbound)", unbound=unbound) == 4
        sender("s.sendto(b'found', target)", target=target)
        assert receiver("s.recv(100)") == b"found"
