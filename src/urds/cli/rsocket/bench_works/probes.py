"""Probes: the locks, copies, clock readings and computing of one process of `urds rsocket bench`.

Three ways to look, each with its cost, so each in a run of its own:

* *Locks and clocks* are counted from the start of a process: `threading.Lock` and `RLock` make
  counting ones, the clocks of `time` are counting ones. Locks that only order memory accesses
  (the fences of shared memory) are counted apart. What one costs is measured here, too.
* *Copies*: the interpreter tells of every call; for the few functions below a socket in which
  bytes are copied their number is added up. Streams count their own; the kernel's are not seen.
* *Profile*: cProfile of the thread that runs the loop. The profiler's own time per call, of Python
  and of C functions, is measured first and taken off.
"""

from __future__ import annotations

import cProfile
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from types import CodeType, FrameType
from typing import Any, Final, Protocol

# File, function, and the argument with the size of the copy. A test holds that they exist.
COPYING: Final[dict[tuple[str, str], Callable[[Any], int]]] = {
    ("shm/slots.py", "_copy_in"): lambda names: len(names["part"]),
    ("shm/mappings.py", "_copy"): lambda names: len(names["data"]),
    ("engine/responder.py", "_place"): lambda names: len(names["packet"].payload),
}
# Of these the ones that do nothing else: their time is the time of the copies, wherever the bytes
# come from and go to, which no measurement beside the run could know.
_COPYING_ALONE: Final = frozenset({"_copy_in", "_copy"})
# What a profile is summed up by: the first that the file of a function begins with.
PARTS: Final = (
    ("urds/rsocket/core/stream", "stream core"),
    ("urds/rsocket", "sockets and links"),
    ("urds/verbs/engine", "verbs engine"),
    ("urds/verbs/providers", "device"),
    ("urds/verbs", "device"),
    ("urds/cli", "the bench itself"),
)
KERNEL_CALLS: Final = "kernel calls: doorbells, sockets"
OTHERS: Final = "C functions and the rest of Python"
_FENCES: Final = "urds.verbs.providers.shm.slots"
_CLOCKS: Final = ("monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns")
# What `costs` measures: without the counting, which costs more than what is counted.
_PLAIN_LOCK: Final = threading.RLock
_PLAIN_CLOCK: Final = time.monotonic_ns
_LOOPS: Final = 20_000
_WINDOW_BYTES: Final = 4 << 20
# C functions that may sleep: how long they work themselves cannot be told from outside.
_SLEEPS: Final = (
    *("'poll' of 'select.epoll'", "'poll' of 'select.poll'", "sleep"),
    *("'acquire' of", "'_acquire_restore' of"),
)
_CALLS: Final = (
    "eventfd_",
    "'send' of",
    "'sendmsg' of",
    "'recv_into' of",
    "'modify' of 'select.epoll'",
)


class Probe(Protocol):
    """Measures closely for a while."""

    def start(self) -> None:
        """Begin."""

    def stop(self) -> None:
        """End."""

    def found(self) -> dict[str, Any]:
        """Return what was measured in between."""


def probe_of(name: str) -> Probe:
    """Return a new probe: `counts`, `copies` or `profile`."""
    probes: dict[str, Callable[[], Probe]] = {
        "counts": _Counts, "copies": _Copies, "profile": _Profile,
    }  # fmt: skip
    return probes[name]()


# -- locks and clocks

_locks: Final = count()
_fences: Final = count()
_reads: Final = count()


class _CountedLock:
    """A lock that counts how often it is taken."""

    __slots__ = ("__weakref__", "_counter", "_lock")  # `forks` keeps weak references

    def __init__(self, lock: Any, counter: Iterator[int]) -> None:
        self._lock, self._counter = lock, counter

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        next(self._counter)
        return bool(self._lock.acquire(blocking, timeout))

    def __enter__(self) -> bool:
        next(self._counter)
        return bool(self._lock.acquire())

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def __getattr__(self, name: str) -> Any:
        # `release`, `locked`, and what a Condition asks for, if the lock has it.
        return getattr(self._lock, name)


def count_locks_and_clocks() -> None:
    """Count from here on, in this process: before any module has made a lock or kept a clock."""
    for name in ("Lock", "RLock"):
        setattr(threading, name, _counting(getattr(threading, name)))
    for name in _CLOCKS:
        setattr(time, name, _counted_clock(getattr(time, name)))


def _counting(make: Callable[[], Any]) -> Callable[[], _CountedLock]:
    def counted() -> _CountedLock:
        maker = sys._getframe(1).f_globals.get("__name__")
        return _CountedLock(make(), _fences if maker == _FENCES else _locks)

    return counted


def _counted_clock(read: Callable[[], Any]) -> Callable[[], Any]:
    def counted() -> Any:
        next(_reads)
        return read()

    return counted


def _so_far(counter: count[int]) -> int:
    return int(counter.__reduce__()[1][0])


class _Counts:
    """Differences of the counters."""

    def start(self) -> None:
        self._before = self._now()

    def stop(self) -> None:
        now = self._now()
        self._spent = {name: now[name] - value for name, value in self._before.items()}

    def found(self) -> dict[str, Any]:
        return self._spent

    @staticmethod
    def _now() -> dict[str, int]:
        return {"locks": _so_far(_locks), "fences": _so_far(_fences), "clocks": _so_far(_reads)}


def costs(byte_counts: Sequence[int]) -> dict[str, Any]:
    """Measure, in this process, what a lock, a clock and copies of such sizes cost, in seconds."""
    lock = _PLAIN_LOCK()

    def nothing() -> None:
        for _ in range(_LOOPS):
            pass

    def locking() -> None:
        for _ in range(_LOOPS):
            with lock:
                pass

    def reading() -> None:
        read = _PLAIN_CLOCK
        for _ in range(_LOOPS):
            read()

    empty_s = _best(nothing)
    return {
        "lock_s": max(0.0, _best(locking) - empty_s) / _LOOPS,
        "clock_s": max(0.0, _best(reading) - empty_s) / _LOOPS,
        "byte_s": {str(data): _byte_s(data) for data in byte_counts},
    }


def _best(work: Callable[[], None]) -> float:
    times_s = []
    for _ in range(5):
        start_s = time.perf_counter()
        work()
        times_s.append(time.perf_counter() - start_s)
    return min(times_s)


def _byte_s(byte_count: int) -> float:
    """Return what one byte of a copy costs: from one place, as in the loops, into a window."""
    room = max(byte_count, _WINDOW_BYTES)
    source, target = memoryview(bytearray(b"x" * byte_count)), memoryview(bytearray(b"y" * room))
    steps = max(1, room // byte_count)

    def copy(piece: int, step: int) -> Callable[[], None]:
        def work() -> None:
            for number in range(steps):
                start = number * step
                target[start : start + piece] = source[:piece]

        return work

    return max(0.0, _best(copy(byte_count, byte_count)) - _best(copy(1, 0))) / (steps * byte_count)


# -- copies


class _Copies:
    """Bytes copied by each function of `COPYING`, in this thread."""

    def start(self) -> None:
        self._bytes: dict[str, int] = defaultdict(int)
        self._known: dict[CodeType, Callable[[Any], int] | None] = {}
        sys.setprofile(self._see)

    def stop(self) -> None:
        sys.setprofile(None)

    def found(self) -> dict[str, Any]:
        return dict(self._bytes)

    def _see(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        known = self._known.get(code, self)
        if known is self:
            known = self._known[code] = _bytes_of(code)
        if callable(known):
            self._bytes[code.co_name] += known(frame.f_locals)


def _bytes_of(code: CodeType) -> Callable[[Any], int] | None:
    for (file, name), data in COPYING.items():
        if code.co_name == name and code.co_filename.endswith(file):
            return data
    return None


# -- profile


class _Profile:
    """Time of this thread by part, without sleep and without the profiler's own."""

    def start(self) -> None:
        self._python_s, self._c_s = _profiler_costs()
        self._profile = cProfile.Profile()
        self._profile.enable()

    def stop(self) -> None:
        self._profile.disable()

    def found(self) -> dict[str, Any]:
        spent_s: dict[str, float] = defaultdict(float)
        copying_s, calls = 0.0, 0
        for entry in self._profile.getstats():
            if isinstance(entry.code, str):
                if any(word in entry.code for word in _SLEEPS):
                    continue
                is_call = any(word in entry.code for word in _CALLS)
                part, cost_s = KERNEL_CALLS if is_call else OTHERS, self._c_s
            else:
                part, cost_s = _part(entry.code.co_filename), self._python_s
            calls += entry.callcount
            own_s = max(0.0, entry.inlinetime - entry.callcount * cost_s)
            spent_s[part] += own_s
            if not isinstance(entry.code, str) and _copies_alone(entry.code):
                copying_s += own_s
        return {"seconds": dict(spent_s), "copying_s": copying_s, "calls": calls}


def _copies_alone(code: CodeType) -> bool:
    return code.co_name in _COPYING_ALONE and _bytes_of(code) is not None


def _part(file: str) -> str:
    start = next((one for one in ("src/urds/", "urds/") if one in file), "")
    inner = file[file.find(start) :].removeprefix("src/")
    return next((part for begin, part in PARTS if inner.startswith(begin)), OTHERS)


def _profiler_costs() -> tuple[float, float]:
    """Return what cProfile adds to the time of a Python and of a C function, per call."""

    def callee() -> None:
        pass

    def python_calls() -> None:
        for _ in range(_LOOPS):
            callee()

    def c_calls() -> None:
        absolute = abs
        for _ in range(_LOOPS):
            absolute(1)

    costs_s = []
    for work in (python_calls, c_calls):
        plain_s = _best(work)
        profile = cProfile.Profile()
        profile.enable()
        profiled_s = _best(work)
        profile.disable()
        costs_s.append(max(0.0, profiled_s - plain_s) / _LOOPS)
    return costs_s[0], costs_s[1]
