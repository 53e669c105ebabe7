"""A signal's handler that raises where the callback of a waiting task begins: the task is told."""

import errno

import pytest

from tests.rds.sockets.conftest import NewSocket
from tests.rds.sockets.hosts import host
from tests.support import backends
from urds import MSG_DONTWAIT

pytestmark = pytest.mark.skipif(backends.IS_ATTACHED, reason="a node's socket has no callbacks")


class Callback:
    """It is interrupted when it is called for the first time."""

    def __init__(self) -> None:
        self.called = self.done = 0

    def __call__(self) -> None:
        self.called += 1
        if self.called == 1:
            raise KeyboardInterrupt
        self.done += 1


def test_a_send_raises_and_the_task_is_told_once(new_socket: NewSocket) -> None:
    sender, receiver, callback = new_socket(2), new_socket(3), Callback()
    receiver.mailbox.subscribe(callback, room=False)
    with pytest.raises(KeyboardInterrupt):
        sender.sendto(b"first", receiver.getsockname())
    sender.sendto(b"second", receiver.getsockname())  # the Python plane tells again at its next call
    assert (callback.called, callback.done) == (2, 1)
    assert [receiver.recv(10, MSG_DONTWAIT) for _ in range(2)] == [b"first", b"second"]


def test_a_receive_raises_and_takes_nothing(new_socket: NewSocket) -> None:
    """The receiver's own wait reads the message for which the task is told."""
    sender, receiver, callback = new_socket(2), new_socket(3), Callback()
    receiver.mailbox.subscribe(callback, room=False)
    with pytest.raises(KeyboardInterrupt):
        sender.sendto(b"only", receiver.getsockname())
        receiver.recv(10)
    assert receiver.recv(10) == b"only"
    assert (callback.called, callback.done) == (2, 1)
    with pytest.raises(BlockingIOError) as empty:
        receiver.recv(10, MSG_DONTWAIT)
    assert empty.value.errno == errno.EAGAIN
