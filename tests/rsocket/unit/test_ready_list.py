"""The ready list of a Repoll: who is on it, what a wait costs, and that no change is lost."""

import errno
import os
import select

import pytest

from tests.rsocket.unit.rsocket_fakes import (
    BOTH,
    FAILED,
    HUNG_UP,
    NOTHING,
    READABLE,
    WRITABLE,
    FakeContext,
    FakeSocket,
)
from urds.rsocket.poll import revents
from urds.rsocket.repoll import Member, ReadyList
from urds.rsocket.waiting import Doorbell, Watchers

IN, OUT, HUP, ERR = select.EPOLLIN, select.EPOLLOUT, select.EPOLLHUP, select.EPOLLERR


class World:
    def __init__(self) -> None:
        self.list = ReadyList(lambda: None, lambda member: None)
        self.context = FakeContext()

    def add(self, number: int, events: int = IN) -> FakeSocket:
        socket = FakeSocket(self.context, number)
        self.list.add(Member(socket, number, events, None))
        return socket


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(
    ("state", "events", "told"),
    [
        (NOTHING, IN | OUT, 0),
        (READABLE, IN | OUT, IN),
        (READABLE, OUT, 0),
        (WRITABLE, IN | OUT, OUT),
        (BOTH, IN | OUT, IN | OUT),
        (BOTH, 0, 0),
        (HUNG_UP, 0, HUP),
        (HUNG_UP, IN, IN | HUP),
        (FAILED, OUT, OUT | HUP | ERR),
        (READABLE, select.POLLRDNORM, select.POLLRDNORM),
        (WRITABLE, select.POLLWRNORM | OUT, select.POLLWRNORM | OUT),
        (BOTH, select.POLLPRI, 0),
    ],
)
def test_what_is_told_of_each_state(state, events, told) -> None:
    socket = FakeSocket()
    socket.become(state)
    assert revents(socket, events) == told


def test_a_closed_socket_is_none() -> None:
    socket = FakeSocket()
    socket.close()
    assert revents(socket, IN) == select.POLLNVAL


def test_it_is_told_again_until_it_is_over(world: World) -> None:
    socket = world.add(7)
    assert world.list.take(10) == []
    socket.become(READABLE)
    assert world.list.take(10) == [(7, IN)]
    assert world.list.take(10) == [(7, IN)]
    socket.become(NOTHING)
    assert world.list.take(10) == []
    assert not world.list


@pytest.mark.rule("rsocket-problem-connections")
def test_a_wait_asks_the_ready_sockets_alone(world: World) -> None:
    sockets = [world.add(number) for number in range(1000)]
    world.list.take(2000)
    for socket in sockets:
        socket.asked_count = 0
    sockets[500].become(READABLE)
    assert world.list.take(2000) == [(500, IN)]
    # Once by the change, once by the wait.
    assert sum(socket.asked_count for socket in sockets) == 2


def test_each_has_its_turn(world: World) -> None:
    for number in range(3):
        world.add(number).become(READABLE)
    assert [world.list.take(1)[0][0] for _ in range(6)] == [0, 1, 2, 0, 1, 2]
    assert [number for number, _ in world.list.take(2)] == [0, 1]
    assert [number for number, _ in world.list.take(2)] == [2, 0]


def test_a_limit_is_not_filled_by_those_who_are_not_ready(world: World) -> None:
    for number in range(10):
        world.add(number).come_and_go()
    world.add(10).become(READABLE)
    assert world.list.take(1) == [(10, IN)]


def test_it_is_told_by_its_data(world: World) -> None:
    label = object()
    socket = FakeSocket(world.context, 5)
    world.list.add(Member(socket, None, IN, None))
    socket.become(READABLE)
    assert world.list.take(1) == [(5, IN)]
    world.list.modify(world.list.find(socket), IN, label)
    assert world.list.take(1) == [(label, IN)]


def test_other_events_from_now_on(world: World) -> None:
    socket = world.add(7)
    socket.become(WRITABLE)
    assert world.list.take(10) == []
    world.list.modify(world.list.find(socket), OUT, None)
    assert world.list.take(10) == [(7, OUT)]


def test_once_until_it_is_armed_again(world: World) -> None:
    socket = world.add(7, IN | select.EPOLLONESHOT)
    socket.become(READABLE)
    assert world.list.take(10) == [(7, IN)]
    socket.become(FAILED)
    assert world.list.take(10) == []
    world.list.modify(world.list.find(socket), IN | select.EPOLLONESHOT, None)
    assert world.list.take(10) == [(7, IN | HUP | ERR)]


def test_at_an_edge_only(world: World) -> None:
    socket = world.add(7, IN | select.EPOLLET)
    socket.become(READABLE)
    assert world.list.take(10) == [(7, IN)]
    assert world.list.take(10) == []
    socket.become(READABLE)
    assert world.list.take(10) == [(7, IN)]


def test_who_is_closed_is_gone(world: World) -> None:
    socket = world.add(7)
    socket.become(READABLE)
    socket.close()
    assert world.list.take(10) == []
    assert world.list.members() == []
    assert not socket.watchers
    assert not world.list.devices


def test_who_is_removed_is_told_no_more(world: World) -> None:
    socket = world.add(7)
    socket.become(READABLE)
    world.list.remove(world.list.find(socket))
    assert world.list.take(10) == []
    assert not socket.watchers
    with pytest.raises(FileNotFoundError) as raised:
        world.list.find(socket)
    assert raised.value.errno == errno.ENOENT


def test_none_is_here_twice(world: World) -> None:
    socket = world.add(7)
    with pytest.raises(FileExistsError):
        world.list.add(Member(socket, 7, OUT, None))
    assert len(world.list.members()) == 1


def test_a_change_while_it_is_asked_is_not_lost(world: World) -> None:
    """The look says "not ready"; what happens before it is back must be on the list."""
    socket = world.add(7)
    world.list.note(world.list.find(socket))

    def change() -> None:
        socket.while_asked = lambda: None
        socket.become(READABLE)

    socket.while_asked = change
    world.list.note(world.list.find(socket))
    world.list.take(10)
    assert world.list.take(10) == [(7, IN)]


def test_the_list_holds_who_is_ready(world: World) -> None:
    socket = world.add(7)
    assert not world.list
    socket.become(WRITABLE)
    assert not world.list
    socket.become(BOTH)
    assert world.list
    socket.become(WRITABLE)
    assert not world.list


def test_devices_are_counted(world: World) -> None:
    first, second = world.add(1), FakeSocket()
    world.list.add(Member(second, 2, IN, None))
    assert (dict(world.list.devices), world.list.idle_count) == ({world.context: 1}, 1)
    other = FakeContext()
    second.contexts = (other, world.context)
    second.become(READABLE)
    world.list.take(10)
    assert (dict(world.list.devices), world.list.idle_count) == ({world.context: 2, other: 1}, 0)
    for socket in (first, second):
        world.list.remove(world.list.find(socket))
    assert (dict(world.list.devices), world.list.idle_count) == ({}, 0)


def test_watchers_are_told_as_often_as_they_were_added() -> None:
    watchers, told = Watchers(), []
    callback = lambda: told.append(1)  # noqa: E731  # one object, added twice
    watchers.add(callback)
    watchers.add(callback)
    watchers.tell()
    watchers.remove(callback)
    watchers.tell()
    watchers.remove(callback)
    watchers.remove(callback)
    watchers.tell()
    assert len(told) == 3
    assert not watchers


def test_a_watcher_may_leave_while_it_is_told() -> None:
    watchers, told = Watchers(), []

    def once() -> None:
        told.append(1)
        watchers.remove(once)

    watchers.add(once)
    watchers.add(lambda: told.append(2))
    watchers.tell()
    watchers.tell()
    assert told == [1, 2, 2]


def test_a_closed_doorbell_is_silent() -> None:
    doorbell = Doorbell()
    number = doorbell.fileno()
    assert not select.select([number], [], [], 0)[0]
    doorbell.ring()
    doorbell.ring()
    assert select.select([number], [], [], 0)[0]
    doorbell.quiet()
    assert not select.select([number], [], [], 0)[0]
    doorbell.close()
    doorbell.ring()
    doorbell.close()
    with pytest.raises(OSError):
        os.fstat(number)
