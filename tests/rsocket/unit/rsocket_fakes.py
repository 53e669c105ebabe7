"""A socket whose readiness the test sets, and a device that runs what the test has prepared."""

import errno
import threading
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace

from urds.rsocket.link.stream_link import Readiness
from urds.rsocket.waiting import Watchers

NOTHING = Readiness(False, False, False, False)
READABLE = NOTHING._replace(readable=True)
WRITABLE = NOTHING._replace(writable=True)
BOTH = Readiness(True, True, False, False)
HUNG_UP = Readiness(True, True, True, False)
FAILED = Readiness(True, True, True, True)


class FakeAdapter:
    """`wait` runs the happenings one after the other until the caller is ready."""

    has_own_time = True

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.happenings: deque[Callable[[], object]] = deque()
        self.attending_count = self.notify_count = self.progress_count = 0

    def wait(self, is_ready: Callable[[], bool], timeout_ns: int | None) -> bool:
        while not is_ready() and self.happenings:
            self.happenings.popleft()()
        return is_ready()

    def progress(self) -> None:
        self.progress_count += 1

    def notify(self) -> None:
        self.notify_count += 1

    def add_external_waiter(self) -> None:
        self.attending_count += 1

    def remove_external_waiter(self) -> None:
        self.attending_count -= 1


class FakeContext(SimpleNamespace):
    """A device, by identity."""

    __hash__ = object.__hash__

    def __init__(self) -> None:
        super().__init__(adapter=FakeAdapter(), watchers=set())

    def __eq__(self, other: object) -> bool:
        return self is other


class FakeSocket:
    """Counts how often it is asked."""

    def __init__(self, context: FakeContext | None = None, number: int = 1 << 20) -> None:
        self.watchers = Watchers()
        self.contexts = () if context is None else (context,)
        self.closed = False
        self.asked_count = 0
        self.while_asked: Callable[[], object] = lambda: None
        self._number = number
        self._state = NOTHING

    def fileno(self) -> int:
        return self._number

    def readiness(self) -> Readiness:
        if self.closed:
            raise OSError(errno.EBADF, "closed")
        self.asked_count += 1
        state = self._state
        self.while_asked()
        return state

    def become(self, state: Readiness) -> None:
        self._state = state
        self.watchers.tell()

    def come_and_go(self) -> None:
        """Be ready, tell so, and not be ready any more before a thread looks."""
        self.become(BOTH)
        self._state = NOTHING

    def close(self) -> None:
        self.closed = True
        self.watchers.tell()
