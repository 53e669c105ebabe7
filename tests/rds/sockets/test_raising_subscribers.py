"""A signal's handler that raises where the callback of a waiting task begins: the task is told."""

import threading
import time

import pytest

import urds
from tests.rds.sockets.conftest import NewSocket, backend_with
from tests.rds.sockets.hosts import host
from tests.support import backends
from tests.support.waiting import wait_until
from urds import MSG_DONTWAIT

pytestmark = pytest.mark.skipif(backends.IS_ATTACHED, reason="a node's socket has no callbacks")

ATTEMPTS = 20


class Callback:
    """It is interrupted when the main thread, which runs handlers, calls it for the first time."""

    def __init__(self) -> None:
        self.done = 0
        self.raised = False

    def __call__(self) -> None:
        if not self.raised and threading.current_thread() is threading.main_thread():
            self.raised = True
            raise KeyboardInterrupt
        self.done += 1


def test_a_send_raises_and_the_task_is_told_once(new_socket: NewSocket) -> None:
    sender, receiver, callback = new_socket(2), new_socket(3), Callback()
    receiver.mailbox.subscribe(callback, room=False)
    with pytest.raises(KeyboardInterrupt):
        sender.sendto(b"first", receiver.getsockname())
    # The Python plane tells again at its next call.
    sender.sendto(b"second", receiver.getsockname())
    assert (callback.raised, callback.done) == (True, 1)
    assert [receiver.recv(10, MSG_DONTWAIT) for _ in range(2)] == [b"first", b"second"]


def test_a_wait_raises_and_what_is_next_stays(new_socket: NewSocket) -> None:
    """The thread that waits for its own message reads that of the task from its peer's stream."""
    waiting, tasks = new_socket(2), new_socket(3)
    waiting.settimeout(20)
    with backend_with(), urds.Socket() as sender:
        sender.bind((host(4), 0))
        for sock in (waiting, tasks):
            sender.sendto(b"connects", sock.getsockname())
            assert sock.recv(10) == b"connects"
        for _ in range(ATTEMPTS):
            if is_raised_in_a_wait(waiting, tasks, sender):
                return
    pytest.fail(f"another thread read each of {ATTEMPTS} messages")


def is_raised_in_a_wait(waiting: urds.Socket, tasks: urds.Socket, sender: urds.Socket) -> bool:
    """Have the callback called while this thread waits; return whether this thread called it."""
    callback, is_raised = Callback(), False
    tasks.mailbox.subscribe(callback, room=False)

    def send() -> None:
        time.sleep(0.2)  # the other thread waits by then, as a rule
        sender.sendto(b"of the task", tasks.getsockname())
        wait_until(lambda: callback.done)
        sender.sendto(b"of the thread", waiting.getsockname())

    thread = threading.Thread(target=send)
    thread.start()
    try:
        got = waiting.recv(20)
    except KeyboardInterrupt:
        is_raised = True
        got = waiting.recv(20)
    thread.join()
    assert (got, tasks.recv(20, MSG_DONTWAIT)) == (b"of the thread", b"of the task")
    assert (is_raised, callback.done) == (callback.raised, 1)
    return is_raised
