"""How operations that have ended come to the application: notices, their bound, waits."""

import errno
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.rds.plane.message_transport_world import (
    PORT,
    TARGET,
    MessageTransportWorld,
    transfer,
)
from tests.support.waiting import wait_until
from urds.rds.constants import MSG_DONTWAIT, RdmaStatus
from urds.rds.plane.contract import (
    CongestionNotice,
    Message,
    Operation,
    OperationNotice,
    OperationNotices,
)
from urds.rds.plane.python import receive_side
from urds.rds.plane.python.mailbox import Mailbox

DONE, FAILED = RdmaStatus.SUCCESS, RdmaStatus.REMOTE_ERROR
WAIT_NS = 30_000_000_000  # longer than any join here


@pytest.fixture
def world() -> Iterator[MessageTransportWorld]:
    made = MessageTransportWorld()
    yield made
    made.close()


@pytest.fixture
def waiting_world() -> Iterator[MessageTransportWorld]:
    """Return a world whose calls do wait."""
    made = MessageTransportWorld(virtual=False)
    yield made
    made.close()


def send(mailbox: Mailbox, *operations: Operation) -> None:
    mailbox.send([b""], TARGET, wait_ns=0, operations=operations)


@pytest.mark.parametrize(
    ("notify", "report_failure", "status", "told"),
    [
        (True, False, DONE, True),
        (True, False, FAILED, True),
        (False, True, DONE, False),
        (False, True, FAILED, True),
        (False, False, FAILED, False),
    ],
)
def test_who_asked_hears_of_it(
    world: MessageTransportWorld,
    *,
    notify: bool,
    report_failure: bool,
    status: RdmaStatus,
    told: bool,
) -> None:
    mailbox = world.mailbox()
    operation = transfer(9, notify=notify, report_failure=report_failure)
    send(mailbox, operation)
    assert mailbox.receive(wait_ns=0) is None
    world.path().end_operation(mailbox, operation, status)
    assert mailbox.receive(wait_ns=0) == ((OperationNotice(9, status),) if told else None)
    assert mailbox.receive(wait_ns=0) is None


def test_notices_come_before_congestion_and_messages(world: MessageTransportWorld) -> None:
    mailbox, path = world.mailbox(monitor=True), world.path()
    path.arrive_map(4000)
    with pytest.raises(OSError):
        mailbox.send([b""], TARGET, wait_ns=0)
    path.arrive(b"message")
    path.arrive_map()
    for token in (1, 2, 3):
        path.end_operation(mailbox, transfer(token), DONE)
    first = mailbox.receive(wait_ns=0, notices_max=2, peek=True)
    assert isinstance(first, OperationNotices), "a look takes them: kernel parity"
    assert first == (OperationNotice(1, DONE), OperationNotice(2, DONE))
    assert mailbox.receive(wait_ns=0, notices_max=2) == (OperationNotice(3, DONE),)
    assert isinstance(mailbox.receive(wait_ns=0), CongestionNotice)
    assert isinstance(mailbox.receive(wait_ns=0), Message)


def test_without_room_for_one_a_notice_is_taken_nevertheless(world: MessageTransportWorld) -> None:
    """The caller then marks the message as cut: kernel parity."""
    mailbox, path = world.mailbox(), world.path()
    for token in (1, 2):
        path.end_operation(mailbox, transfer(token), DONE)
    assert mailbox.receive(wait_ns=0, notices_max=0) == (OperationNotice(1, DONE),)
    assert mailbox.recvfrom(100) == (b"", None), "no control buffer at all: lost"
    with pytest.raises(BlockingIOError):
        mailbox.recvfrom(100, MSG_DONTWAIT)


def test_notices_that_are_not_fetched_are_bounded(
    world: MessageTransportWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receive_side, "NOTICES_MAX", 3)
    mailbox, path = world.mailbox(), world.path()
    for token in range(5):
        path.end_operation(mailbox, transfer(token), DONE)
    notices = mailbox.receive(wait_ns=0, notices_max=100)
    assert isinstance(notices, OperationNotices)
    assert [notice.token for notice in notices] == [0, 1, 2]
    assert world.counter("recv_drop_notices_full") == 2


def test_a_notice_makes_the_socket_readable(world: MessageTransportWorld) -> None:
    mailbox, path = world.mailbox(), world.path()
    shown = mailbox._wanted_readiness  # what the descriptor shows; a real one needs a socket
    assert shown() == (False, True)
    path.end_operation(mailbox, transfer(), DONE)
    assert shown() == (True, True)
    mailbox.receive(wait_ns=0)
    assert shown() == (False, True)


def test_a_callback_hears_of_a_notice_that_came_or_comes(world: MessageTransportWorld) -> None:
    mailbox, path = world.mailbox(), world.path()
    calls: list[int] = []
    mailbox.subscribe(lambda: calls.append(1), room=False)
    assert calls == []
    path.end_operation(mailbox, transfer(), DONE)
    assert calls == [1]
    mailbox.subscribe(lambda: calls.append(2), room=False)
    assert calls == [1, 2]


def test_cancelled_operations_say_so(world: MessageTransportWorld) -> None:
    mailbox = world.mailbox()
    operation = transfer(4)
    send(mailbox, operation)
    assert mailbox.cancel(None, None) == 1
    assert operation.status is RdmaStatus.CANCELED
    assert mailbox.receive(wait_ns=0) == (OperationNotice(4, RdmaStatus.CANCELED),)


def test_a_closed_mailbox_keeps_no_notices(world: MessageTransportWorld) -> None:
    """Neither those it had, nor those of what its closing cancels."""
    mailbox, path = world.mailbox(), world.path()
    operation = transfer(2)
    path.end_operation(mailbox, transfer(1), DONE)
    send(mailbox, operation)
    mailbox.close(0)
    assert operation.status is RdmaStatus.CANCELED
    assert not mailbox.receives.has_notice()


# -- waiting for one operation


def test_what_has_ended_is_not_waited_for(world: MessageTransportWorld) -> None:
    mailbox, path = world.mailbox(), world.path()
    operation = transfer(notify=False)
    send(mailbox, operation)
    assert not mailbox.wait_operation(operation, 0)
    path.end_operation(mailbox, operation, FAILED)
    assert mailbox.wait_operation(operation, None)


def test_a_wait_is_over_in_time(waiting_world: MessageTransportWorld) -> None:
    mailbox = waiting_world.mailbox()
    operation = transfer()
    send(mailbox, operation)
    assert not mailbox.wait_operation(operation, 1_000_000)


def waiting_thread(mailbox: Mailbox, *operations: Operation) -> tuple[list[threading.Thread], Any]:
    """Have a thread wait for each operation; return once all of them do, with their answers."""
    answers: dict[int, object] = {}

    def wait(operation: Operation) -> None:
        try:
            answers[operation.token] = mailbox.wait_operation(operation, WAIT_NS)
        except OSError as failure:
            answers[operation.token] = failure.errno

    threads = [threading.Thread(target=wait, args=(one,), daemon=True) for one in operations]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(mailbox.sends.operation_waiters) == len(threads))
    return threads, answers


def test_each_waiter_wakes_for_its_own_operation(waiting_world: MessageTransportWorld) -> None:
    """Also one that asked for no notice; who waits for another goes on waiting."""
    world = waiting_world
    mailbox, path = world.mailbox(), world.path()
    first, second = transfer(1, notify=False), transfer(2)
    threads, answers = waiting_thread(mailbox, first, second)
    path.end_operation(mailbox, second, DONE)
    threads[1].join(5)
    assert answers == {2: True}
    path.end_operation(mailbox, first, FAILED)
    threads[0].join(5)
    assert answers == {1: True, 2: True}


@pytest.mark.parametrize("plain", [False, True])
def test_a_receiver_wakes_for_a_notice(
    waiting_world: MessageTransportWorld, *, plain: bool
) -> None:
    """Also one that came the short way; it has no place for the notice, which is lost."""
    world = waiting_world
    mailbox, path = world.mailbox(receive_wait_ns=WAIT_NS), world.path()
    taken: list[object] = []

    def receive() -> None:
        taken.append(mailbox.recvfrom(100) if plain else mailbox.receive(wait_ns=WAIT_NS))

    thread = threading.Thread(target=receive, daemon=True)
    thread.start()
    wait_until(lambda: len(mailbox.receives.waiters) == 1)
    path.end_operation(mailbox, transfer(3), DONE)
    thread.join(5)
    assert taken == [(b"", None) if plain else (OperationNotice(3, DONE),)]


def test_a_closing_socket_refuses_who_waits(waiting_world: MessageTransportWorld) -> None:
    """Its messages linger, and their operations may never end."""
    mailbox = waiting_world.mailbox(PORT + 1)
    operation = transfer(5)
    send(mailbox, operation)
    threads, answers = waiting_thread(mailbox, operation)
    mailbox.close()
    threads[0].join(5)
    assert answers == {5: errno.EBADF}
    assert operation.status is None
