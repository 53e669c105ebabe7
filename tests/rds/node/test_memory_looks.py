"""What sockets hold is looked up a part at a time, and nothing is looked at that is over."""

import os
from collections.abc import Iterator

import pytest

from urds.rds.node import sockets
from urds.rds.node.plane_calls import Opened
from urds.rds.node.sockets import LOOK_CALLS, LOOKS_MIN, MemoryLooks, NodeSocket
from urds.rds.node.users import User
from urds.rds.options import Options

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def memory() -> Iterator[int]:
    memory = os.memfd_create("memory")
    os.ftruncate(memory, 1 << 20)
    yield memory
    os.close(memory)


def make(memory: int, count: int) -> list[NodeSocket]:
    users = User(1), User(2)
    opened = Opened(-1, (-1, memory, -1))
    chosen = Options(send_bytes_max=1, receive_bytes_max=1)
    return [
        NodeSocket(cookie=each, user=users[each % 2], pid=1, opened=opened, options=chosen)
        for each in range(count)
    ]


def test_few_are_looked_at_each_time(memory: int) -> None:
    all_of_them, looks = make(memory, LOOKS_MIN), MemoryLooks()
    first, second = all_of_them[0].user, all_of_them[1].user
    for pages in (1, 3, 3):
        os.pwrite(memory, bytes(pages * PAGE_BYTES), 0)
        looks.look(all_of_them)
        held = pages * PAGE_BYTES * LOOKS_MIN // 2
        assert (first.memory_bytes, second.memory_bytes) == (held, held)
    os.ftruncate(memory, 0)
    looks.look(all_of_them)
    assert (first.memory_bytes, second.memory_bytes) == (0, 0)


def test_of_many_each_is_looked_at_within_some_turns(
    memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "LOOKS_MIN", 4)
    all_of_them, looks = make(memory, 85), MemoryLooks()
    os.pwrite(memory, b"x", 0)
    looks.look(all_of_them)
    seen = [sock.cookie for sock in all_of_them if sock.held_bytes]
    assert seen == list(range(74, 85)), "an eighth, the newest"
    for _ in range(LOOK_CALLS - 1):
        looks.look(all_of_them)
    assert all(sock.held_bytes == PAGE_BYTES for sock in all_of_them)
    assert all_of_them[0].user.memory_bytes == 43 * PAGE_BYTES


def test_what_is_over_is_taken_off_and_not_looked_at(
    memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its descriptors are closed, and may soon be another file's."""
    monkeypatch.setattr(sockets, "LOOKS_MIN", 1)
    all_of_them, looks = make(memory, 16), MemoryLooks()
    os.pwrite(memory, b"x", 0)
    looks.look(all_of_them)
    seen, unseen = all_of_them[-1], all_of_them[0]
    for sock in (seen, unseen):
        looks.forget(sock)
        sock.opened = Opened(-1, (-1, -1, -1))
    for _ in range(LOOK_CALLS):
        looks.look(all_of_them[1:-1])
    assert [all_of_them[each].user.memory_bytes for each in (0, 1)] == [7 * PAGE_BYTES] * 2
