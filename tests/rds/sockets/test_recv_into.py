"""`recv_into`: the compiled mailbox's own one does what `Socket.recv_into` does in Python.

Each case is made twice, on equal messages: by the call that a bound socket has, and by the class's.
Over a compiled plane these are two implementations; over the Python plane and a node they are one.
"""

import array
import errno
import mmap
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

import urds
from tests.rds.sockets.conftest import NewSocket
from tests.support.waiting import wait_until

BUFFER_BYTES = 6000
LENGTHS = [0, 1, 64, 4095, 4096, 5999, 6000, 6001, 100_000]
WAY_OUT = 1 << 40
LAST = b"nothing comes behind it"
PEEK, TRUNC, NOW = int(socket.MSG_PEEK), int(socket.MSG_TRUNC), int(socket.MSG_DONTWAIT)
FLAGS = [
    *(0, NOW, PEEK, TRUNC, PEEK | TRUNC, urds.MSG_PEEK, urds.MSG_TRUNC, True, WAY_OUT, 1 << 80),
    *(urds.MSG_OOB, urds.MSG_OOB | TRUNC, urds.MSG_ERRQUEUE, urds.MSG_NOSIGNAL, urds.MSG_WAITALL),
    *(urds.MSG_CMSG_CLOEXEC, urds.MSG_OOB | urds.MSG_ERRQUEUE),
]


class Number:
    """An integer in all but its class."""

    def __init__(self, value: int) -> None:
        self._value = value

    def __index__(self) -> int:
        return self._value


@pytest.fixture
def pair(new_socket: NewSocket) -> tuple[urds.Socket, urds.Socket]:
    """Two bound sockets; the second one receives."""
    receiver = new_socket(2)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    receiver.settimeout(5)
    return new_socket(1), receiver


def content(length: int) -> bytes:
    return bytes(at % 251 + 1 for at in range(length))


def outcome(call: Callable[..., int], *arguments: Any, **named: Any) -> object:
    """Return what a call gives, or its error."""
    try:
        return call(*arguments, **named)
    except (OSError, TypeError, ValueError) as error:
        return type(error), getattr(error, "errno", None), str(error)


def taken_by(
    pair: tuple[urds.Socket, urds.Socket],
    call: Callable[..., int],
    lengths: list[int],
    *arguments: Any,
    **named: Any,
) -> tuple[object, bytes, list[int]]:
    """Send messages, take one; return what that gave, the buffer, and the lengths that are left."""
    sender, receiver = pair
    for length in lengths:
        sender.sendto(content(length), receiver.getsockname())
    receiver.recv(0, PEEK)  # over a node it takes a moment
    buffer = bytearray(BUFFER_BYTES)
    gave = outcome(call, buffer, *arguments, **named)
    sender.sendto(LAST, receiver.getsockname())
    left = list(iter(lambda: receiver.recv(1 << 20), LAST))
    return gave, bytes(buffer), [len(payload) for payload in left]


def both(
    pair: tuple[urds.Socket, urds.Socket], lengths: list[int], *arguments: Any, **named: Any
) -> tuple[object, bytes, list[int]]:
    """Make a case by both implementations; return what both gave."""
    receiver = pair[1]

    def of_class(*given: Any, **names: Any) -> int:
        return urds.Socket.recv_into(receiver, *given, **names)

    found = taken_by(pair, receiver.recv_into, lengths, *arguments, **named)
    assert found == taken_by(pair, of_class, lengths, *arguments, **named)
    return found


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("bytes_max", [0, 1, 5000, BUFFER_BYTES, Number(7)])
def test_a_message_of_any_length(
    pair: tuple[urds.Socket, urds.Socket], length: int, bytes_max: Any
) -> None:
    room = bytes_max.__index__() or BUFFER_BYTES
    count = min(length, room)
    filled = content(length)[:count].ljust(BUFFER_BYTES, b"\0")
    assert both(pair, [length, 3], bytes_max) == (count, filled, [3])


@pytest.mark.parametrize("length", [3, 6001, 100_000])
@pytest.mark.parametrize("flags", FLAGS)
def test_each_flag(pair: tuple[urds.Socket, urds.Socket], length: int, flags: int) -> None:
    gave, filled, left = both(pair, [length, 3], 0, flags)
    flags = int(flags)
    if flags & urds.MSG_OOB:
        assert (gave, any(filled), left) == (0, False, [length, 3])
    elif flags & urds.MSG_ERRQUEUE:
        assert isinstance(gave, tuple)
        assert (gave[:2], left) == ((BlockingIOError, errno.EAGAIN), [length, 3])
    else:
        assert gave == (length if flags & TRUNC else min(length, BUFFER_BYTES))
        assert filled.startswith(content(min(length, BUFFER_BYTES)))
        assert left == ([length, 3] if flags & PEEK else [3])


def test_parameters_may_be_named(pair: tuple[urds.Socket, urds.Socket]) -> None:
    assert both(pair, [10], nbytes=4, flags=TRUNC)[0] == 10
    assert both(pair, [10], 4, flags=PEEK)[0] == 4
    sender, receiver = pair
    sender.sendto(b"whole", receiver.getsockname())
    into = bytearray(9)
    assert (receiver.recv_into(buffer=into), into[:5]) == (5, b"whole")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        *((given, {}) for given in ((-1,), (6001,), (1.5,), ("2",), (None,), (0, 1.5), (0, None))),
        *((given, {}) for given in ((0, "x"), (0, 0, 0), (1 << 80,), (Number(-1),))),
        ((), {"bufsize": 1}), ((0,), {"nbytes": 1}),
    ],
)  # fmt: skip
def test_what_is_wrong_costs_no_message(
    pair: tuple[urds.Socket, urds.Socket], arguments: tuple[Any, ...], named: dict[str, Any]
) -> None:
    gave, filled, left = both(pair, [3], *arguments, **named)
    assert isinstance(gave, tuple) and gave[0] in (TypeError, ValueError)
    assert (any(filled), left) == (False, [3])


@pytest.mark.parametrize(
    "buffer", [b"read-only", memoryview(b"x"), memoryview(bytearray(9))[::2], "text", 5, None]
)
def test_what_is_no_buffer_costs_no_message(
    pair: tuple[urds.Socket, urds.Socket], buffer: Any
) -> None:
    sender, receiver = pair
    sender.sendto(b"one", receiver.getsockname())
    ours = outcome(receiver.recv_into, buffer)
    assert ours == outcome(urds.Socket.recv_into, receiver, buffer)
    assert isinstance(ours, tuple) and ours[0] is TypeError
    assert receiver.recv(10) == b"one"


@pytest.mark.parametrize(
    "buffer",
    [
        array.array("d", [0.0] * 4), memoryview(bytearray(40))[3:35], mmap.mmap(-1, 4096),
        memoryview(bytearray(32)).cast("B", (4, 8)), bytearray(), array.array("d"),
    ],
)  # fmt: skip
def test_memory_of_any_kind_is_filled(pair: tuple[urds.Socket, urds.Socket], buffer: Any) -> None:
    sender, receiver = pair
    counts = []
    for call in (receiver.recv_into, lambda given: urds.Socket.recv_into(receiver, given)):
        sender.sendto(content(20), receiver.getsockname())
        counts.append(call(buffer))
    view = memoryview(buffer)
    assert counts == [min(20, view.nbytes)] * 2
    assert view.tobytes()[: counts[0]] == content(20)[: counts[0]]


def test_a_buffer_is_free_again_after_each_end(pair: tuple[urds.Socket, urds.Socket]) -> None:
    """One that is in use cannot change its length."""
    sender, receiver = pair
    buffer = bytearray(10)
    for flags in (NOW, urds.MSG_OOB, urds.MSG_ERRQUEUE):
        outcome(receiver.recv_into, buffer, 0, flags)
        buffer.append(1)
    outcome(receiver.recv_into, buffer, 100)
    buffer.append(1)
    for length in (5, 100_000):
        sender.sendto(content(length), receiver.getsockname())
        receiver.recv_into(buffer)
        buffer.append(1)
    references = sys.getrefcount(buffer)
    for _ in range(100):
        sender.sendto(b"", receiver.getsockname())
        receiver.recv_into(buffer)
    assert sys.getrefcount(buffer) == references


def is_in_use(buffer: bytearray) -> bool:
    try:
        buffer.append(1)
        buffer.pop()
    except BufferError:
        return True
    return False


def test_it_waits_as_the_socket_says(pair: tuple[urds.Socket, urds.Socket]) -> None:
    sender, receiver = pair
    for timeout_s, code in ((0.0, errno.EAGAIN), (0.01, errno.ETIMEDOUT)):
        receiver.settimeout(timeout_s)
        ours = outcome(receiver.recv_into, bytearray(3))
        assert ours == outcome(urds.Socket.recv_into, receiver, bytearray(3))
        assert isinstance(ours, tuple) and ours[1] == code
    receiver.settimeout(10)
    buffer, counts = bytearray(10), []
    thread = threading.Thread(target=lambda: counts.append(receiver.recv_into(buffer)))
    thread.start()
    wait_until(lambda: is_in_use(buffer))
    sender.sendto(b"late", receiver.getsockname())
    thread.join(10)
    assert (counts, bytes(buffer[:4])) == ([4], b"late")
    buffer.append(1)


def test_after_a_close(new_socket: NewSocket) -> None:
    receiver = new_socket(2)
    kept = receiver.recv_into
    receiver.close()
    for call in (kept, receiver.recv_into):
        gave = outcome(call, bytearray(3))
        assert isinstance(gave, tuple) and gave[1] == errno.EBADF
