"""The compiled stream core with the calls and attributes of `StreamCore`, for tests of both.

What a test reads of a part (`sending.credits`) is asked of the compiled core at that moment. An
emulation of librdmacm is Python's alone: `make_native` gives that for its settings.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final, cast

from urds.rsocket.core.stream.core import StreamCore
from urds.rsocket.core.stream.records import (
    Memory,
    MemorySource,
    Post,
    PostKind,
    StreamSettings,
    StreamState,
    StreamStats,
)

_PARTS: Final = ("lifecycle", "sending", "receive_ring", "iomap", "keepalive")


class Part:
    """A part of the core; what has no method here is a plain value."""

    def __init__(self, core: NativeCore, name: str) -> None:
        self.core, self.name = core, name

    def __getattr__(self, name: str) -> Any:
        if (call := getattr(self.core, f"{self.name}_{name}", None)) is not None:
            return call
        values = self.core.values()
        if name == "_buffer":
            return SimpleNamespace(byte_count=values["ring_bytes"], step=values["ring_step"])
        if name == "_unfilled_bytes":
            return values["unfilled_bytes"]
        try:
            return values[f"{self.name}.{name}"]
        except KeyError:
            raise AttributeError(name) from None


class LiveStats:
    """The counters of a compiled core, each as it is when it is read."""

    def __init__(self, native: Any) -> None:
        self._native = native

    def __getattr__(self, name: str) -> Any:
        return getattr(StreamStats(*self._native.stats()), name)


class NativeCore:
    """A compiled core; see `StreamCore` for what its calls mean."""

    def __init__(self, settings: StreamSettings, source: MemorySource) -> None:
        import urds_native

        self.settings = settings
        self._source = source
        byte_count = urds_native.StreamCore.region_bytes(settings)
        memory = source.allocate(byte_count)
        self._memories = {(memory.address, memory.rkey): memory}
        self.native: Any = urds_native.StreamCore(
            settings, memory.view, memory.address, memory.rkey
        )
        self.connect_data: bytes = self.native.connect_data
        self._sends: dict[int, memoryview] = {}  # data that posts may refer to
        for name in _PARTS:
            setattr(self, name, Part(self, name))

    def values(self) -> dict[str, Any]:
        """Return all plain values, those of parts as `part.name`."""
        values: dict[str, Any] = self.native.values()
        values["lifecycle.state"] = StreamState[values["lifecycle.state"]]
        return values

    @property
    def stats(self) -> StreamStats:
        return cast(StreamStats, LiveStats(self.native))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "native":
            raise AttributeError(name)
        values = self.values()
        if name in values:
            return values[name]
        if (call := getattr(self.native, name, None)) is None:
            raise AttributeError(name)
        return call

    def _settle(self) -> None:
        """Bring the memory that the ring wants, and release what it gives back."""
        while (byte_count := self.native.wanted_ring) is not None:
            try:
                memory = self._source.allocate(byte_count)
            except OSError:
                self.native.refuse_growth()
                continue
            self._memories[memory.address, memory.rkey] = memory
            self.native.grow(memory.view, memory.address, memory.rkey)
        for address, rkey in self.native.take_released():
            self._source.release(self._memories.pop((address, rkey)))

    # -- calls whose arguments or results are records of Python

    def send(self, data: memoryview, *, may_zero_copy: bool) -> int:
        taken, number = self.native.send(data, may_zero_copy)
        self._sends[number] = data
        return int(taken)

    def write_mapped(self, data: memoryview, offset: int, *, may_zero_copy: bool) -> int:
        taken, number = self.native.write_mapped(data, offset, may_zero_copy)
        self._sends[number] = data
        return int(taken)

    def poll_transmit(self) -> Post | None:
        found = self.native.poll_transmit()
        if found is None:
            self._sends.clear()
            return None
        kind, data, (number, at, length), address, rkey, imm_data = found
        if data is not None:
            return Post(PostKind[kind], data, address, rkey, imm_data)
        data = self._sends[number][at : at + length]
        return Post(PostKind[kind], data, address, rkey, imm_data, True, length)

    def map_buffer(self, memory: Memory, offset: int | None = None) -> int:
        place = (memory.address, memory.rkey, memory.view.nbytes)
        return int(self.native.map_buffer(id(memory), *place, offset))

    def unmap(self, memory: Memory) -> None:
        self.native.unmap(id(memory), memory.address)

    def close(self) -> None:
        self.native.close()
        self._settle()

    # -- parts

    def lifecycle_shut_down(self, how: int) -> None:
        self.native.shut_down(int(how))

    def lifecycle_take_error(self) -> int:
        return int(self.native.take_error())

    def sending_set_no_delay(self, no_delay: bool) -> None:
        self.native.set_no_delay(no_delay)

    def keepalive_set_interval(self, interval_ns: int | None) -> None:
        self.native.set_keepalive(interval_ns)

    def iomap_is_mapped(self, offset: int) -> bool:
        return bool(self.native.is_mapped(offset))

    def receive_ring_receive_into(self, view: memoryview, *, peek: bool = False) -> int:
        data = self.receive_ring_receive(len(view), peek=peek)
        view[: len(data)] = data
        return len(data)

    def receive_ring_receive(self, byte_count_max: int, *, peek: bool = False) -> bytes:
        data: bytes = self.native.receive(byte_count_max, peek)
        self._settle()
        return data

    def receive_ring_expect(self, memory: Memory, byte_count: int) -> int:
        return int(self.native.expect(memory.view, memory.address, memory.rkey, byte_count))

    def receive_ring_end_expect(self) -> int:
        return int(self.native.end_expect())

    def receive_ring_holds(self, memory: Memory) -> bool:
        return bool(self.native.holds(memory.address, memory.view.nbytes))


def make_native(settings: StreamSettings, source: MemorySource) -> Any:
    """Make a compiled core, or Python's emulation of librdmacm."""
    return (NativeCore if settings.is_urds else StreamCore)(settings, source)
