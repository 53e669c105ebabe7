"""Both stream cores as one: each call goes into both, and all that can be seen must be alike.

The compiled core has memory of its own under the same addresses and keys. What the peer wrote into
Python's is copied there before each call; after it, memory, values, counters, results, posts,
released memory and the sentences of errors are compared.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import Any, Final

from tests.support.native_stream import NativeCore
from urds.rsocket.core.stream.core import StreamCore
from urds.rsocket.core.stream.records import (
    Memory,
    MemorySource,
    Post,
    StreamSettings,
    StreamStats,
)

_PARTS: Final = ("lifecycle", "sending", "receive_ring", "iomap", "keepalive")
_READING: Final = ("receive_data", "receive_into", "receive", "close")  # memory that peers write
_IDLE: Final = ("poll_transmit", "poll_timeout", "receive_into", "receive")  # often give nothing
# Values that the compiled core shows for tests; Python's keeps them to itself.
_INSIDE: Final = {
    "ring_bytes": "receive_ring._buffer.byte_count",
    "ring_step": "receive_ring._buffer.step",
    "unfilled_bytes": "receive_ring._unfilled_bytes",
}
_COUNTERS: Final = attrgetter(*(field.name for field in fields(StreamStats)))
SHOWN_CALLS: Final = 30


class _Recorded:
    """The source of Python's core: what it gave and took is noted for the other."""

    def __init__(self, source: MemorySource) -> None:
        self._source = source
        self.given: deque[Memory | OSError] = deque()
        self.released: list[tuple[int, int]] = []

    def allocate(self, byte_count: int) -> Memory:
        try:
            memory = self._source.allocate(byte_count)
        except OSError as error:
            self.given.append(error)
            raise
        self.given.append(memory)
        return memory

    def release(self, memory: Memory) -> None:
        self.released.append((memory.address, memory.rkey))
        self._source.release(memory)


class _Mirror:
    """The source of the compiled core: the same addresses and keys, memory of its own."""

    def __init__(self, recorded: _Recorded) -> None:
        self._recorded = recorded
        self.pairs: dict[int, tuple[Memory, Memory]] = {}  # by the id of Python's
        self.released: list[tuple[int, int]] = []

    def allocate(self, byte_count: int) -> Memory:
        given = self._recorded.given.popleft()
        if isinstance(given, OSError):
            raise given
        assert given.view.nbytes == byte_count, f"{given.view.nbytes} and {byte_count} bytes"
        return self.mirror(given)

    def mirror(self, memory: Memory) -> Memory:
        """Return memory of the compiled core for one of Python's."""
        if id(memory) not in self.pairs:
            view = memoryview(bytearray(memory.view))
            self.pairs[id(memory)] = memory, Memory(view, memory.address, memory.rkey)
        return self.pairs[id(memory)][1]

    def release(self, memory: Memory) -> None:
        self.released.append((memory.address, memory.rkey))
        self.forget(memory)

    def forget(self, memory: Memory) -> None:
        self.pairs = {key: pair for key, pair in self.pairs.items() if pair[1] is not memory}

    def renew(self) -> None:
        """Have the compiled core's memory be as Python's is."""
        for python, native in self.pairs.values():
            native.view[:] = python.view

    def compare(self) -> None:
        for python, native in self.pairs.values():
            assert python.view == native.view, f"memory at {python.address:#x}"


class _Part:
    def __init__(self, twin: Twin, name: str) -> None:
        self.twin, self.name = twin, name

    def __getattr__(self, name: str) -> Any:
        return self.twin.look(self.name, name)


class Twin:
    """A core of Python and a compiled one, with the attributes of the first."""

    def __init__(self, settings: StreamSettings, source: MemorySource) -> None:
        assert settings.is_urds, "librdmacm is emulated in Python alone"
        self._recorded = _Recorded(source)
        self._mirror = _Mirror(self._recorded)
        self._python = StreamCore(settings, self._recorded)
        self._native = NativeCore(settings, self._mirror)
        self._waits: list[Memory] = []  # memories of receives in place
        self.log: deque[str] = deque(maxlen=SHOWN_CALLS)
        self.calls = 0  # that gave something
        self.seen: Counter[str] = Counter()  # calls, kinds of posts, errors
        for name in _PARTS:
            setattr(self, name, _Part(self, name))
        assert self._python.connect_data == self._native.connect_data
        self._compare("made")

    def __getattr__(self, name: str) -> Any:
        return self.look("", name)

    def look(self, part: str, name: str) -> Any:
        """Return a value that both have, or a call of both; private things are Python's."""
        owner = getattr(self._python, part) if part else self._python
        found = getattr(owner, name)
        if name.startswith("_") or name in ("settings", "stats"):
            return found
        if callable(found):
            return lambda *args, **named: self._call(part, name, args, named)
        # Plain values were compared after the last call.
        return found

    def begin_at(self, messages: int) -> None:
        """Have both as if so many messages had been exchanged, and all read."""
        sending, receive_ring = self._python.sending, self._python.receive_ring
        sending._sequence = messages
        updates = receive_ring._updates
        updates.messages_read = receive_ring._messages_received = messages
        updates.limit = messages + updates._queue
        updates.threshold = messages + updates._half
        self._native.begin_at(messages)

    def _call(self, part: str, name: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        what = f"{part}.{name}".lstrip(".")
        reads = name in _READING and not (name[:7] == "receive" and not self._has_news(name))
        if reads:
            self._mirror.renew()
        for_native = args
        room = None
        if name == "receive_into":
            room = memoryview(bytearray(args[0]))
            for_native = (room, *args[1:])
        elif name == "expect":
            for_native = (self._mirror.mirror(args[0]), *args[1:])
            self._waits.append(args[0])
        found, error = _tried(self._python, part, name, args, named)
        other, other_error = _tried(self._native, part, name, for_native, named)
        shown = [_shown(each) for each in args]
        self.log.append(f"{what}({shown}, {named}) -> {_plain(found)!r:.200} {error!r}")
        assert _words(error) == _words(other_error), f"{what}: {error!r} and {other_error!r}"
        assert _plain(found) == _plain(other), f"{what}: {_plain(found)} and {_plain(other)}"
        assert room is None or room == args[0], f"{what}: other bytes"
        if found or error is not None or name not in _IDLE:
            self.calls += 1
            self.seen[what] += 1
        if isinstance(found, Post):
            self.seen[found.kind.name] += 1
        if reads:
            self._mirror.compare()
        self._compare(what)
        if error is not None:
            self.seen[type(error).__name__] += 1
            raise error
        return found

    def _has_news(self, name: str) -> bool:
        """Return whether a call that receives may look into memory."""
        return name == "receive_data" or self._python.receive_ring.readable_bytes > 0

    def _compare(self, what: str) -> None:
        recorded, mirror = self._recorded, self._mirror
        assert not recorded.given, f"{what}: memory that Python's core asked for"
        assert recorded.released == mirror.released, f"{what}: released memory"
        recorded.released.clear()
        mirror.released.clear()
        self._prune()
        python = self._python
        values = self._native.values()
        if (seen := _look_of(tuple(values))(python)) != tuple(values.values()):
            pairs = zip(values, seen, values.values(), strict=True)
            other = [f"{name} {one!r}, {two!r}" for name, one, two in pairs if one != two]
            raise AssertionError(f"{what}: {other}")
        counters = _COUNTERS(python.stats), tuple(self._native.native.stats())
        assert counters[0] == counters[1], f"{what}: {python.stats}, {self._native.stats}"
        assert python.poll_timeout() == self._native.poll_timeout()

    def _prune(self) -> None:
        """Forget memories of receives that are over."""
        ring = self._python.receive_ring
        if ring._expected is None:
            for memory in [memory for memory in self._waits if not ring.holds(memory)]:
                self._waits.remove(memory)
                self._mirror.pairs.pop(id(memory), None)


@cache
def _look_of(names: tuple[str, ...]) -> Callable[[StreamCore], tuple[Any, ...]]:
    """Return what reads all values of Python's core by the names of the compiled one."""
    return attrgetter(*(_INSIDE.get(name, name) for name in names))


def _tried(
    core: Any, part: str, name: str, args: tuple[Any, ...], named: dict[str, Any]
) -> tuple[Any, Exception | None]:
    call = getattr(getattr(core, part) if part else core, name)
    try:
        return call(*args, **named), None
    except Exception as error:  # whatever it is, both have to raise it
        return None, error


def _words(error: Exception | None) -> tuple[type, str, object]:
    return type(error), str(error), getattr(error, "errno", None)


def _plain(value: Any) -> Any:
    if isinstance(value, Post):
        return (
            value.kind,
            bytes(value.data),
            (value.address, value.rkey, value.imm_data),
            (value.is_zero_copy, value.zero_copy_bytes),
        )
    return value


def _shown(value: Any) -> str:
    if isinstance(value, memoryview | bytes):
        return f"{len(value)} bytes"
    if isinstance(value, Memory):
        return f"{value.view.nbytes} at {value.address:#x}"
    return hex(value) if isinstance(value, int) and value > 0xFFFF else repr(value)
