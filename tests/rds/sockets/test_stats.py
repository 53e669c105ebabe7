"""`urds.stats` and the attributes of errors, as a program sees them through sockets."""

import pytest

import urds
from tests.rds.sockets.conftest import NewSocket
from tests.rds.sockets.hosts import host
from urds.rds.runtime.process import process


def test_counters_of_a_message(new_socket: NewSocket) -> None:
    sender, receiver = new_socket(1), new_socket(2)
    before = urds.stats()
    sender.sendto(b"hello", receiver.getsockname())
    receiver.recv(5)
    after = urds.stats()
    assert after["recv_delivered"] == before["recv_delivered"] + 1
    assert list(after) == list(before)
    assert all(type(count) is int for count in after.values())
    after.clear()  # the caller's own
    assert urds.stats()


def test_there_are_none_before_the_first_bind() -> None:
    before = process.use(None)
    try:
        assert urds.stats() == {}
        assert process.use(None) is None, "asking makes no backend"
    finally:
        process.use(before)


@pytest.mark.each_carrier("shm0")
def test_a_peer_that_is_not_allowed_is_named(new_socket: NewSocket) -> None:
    with pytest.raises(PermissionError) as caught:
        new_socket(1).sendto(b"x", ("192.0.2.7", 4000))
    assert vars(caught.value) == {
        "reason": urds.ErrorReason.PEER_NOT_ALLOWED,
        "limit": None,
        "peer": "192.0.2.7",
    }


def test_a_port_in_use_has_a_reason(new_socket: NewSocket) -> None:
    new_socket(1, 4000)
    with pytest.raises(OSError) as caught, urds.socket() as second:
        second.bind((host(1), 4000))
    assert vars(caught.value)["reason"] is urds.ErrorReason.ADDRESS_IN_USE
