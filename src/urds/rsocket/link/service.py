"""The thread of all rsockets of a process: UDP that arrives, what is due at a time, calls put off.

By UDP come first datagrams, control messages, and one datagram a second from each peer: too little
to have every waiting thread look there, and a control message needs its answer while none waits.
A stream needs time for two things only: to ask a silent peer whether it lives, and to give up what
a closed socket still wanted to send. And callbacks of a device hold that device's lock and must not
take another's, so they leave such calls to this thread. The first need of it makes it.
"""

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from urds.common.forks import renewed
from urds.common.timers import TimedCalls, Timer

_NS: Final = 1_000_000_000
_SLEEP_S_MAX: Final = 3600.0  # the kernel's limit is lower than that of TCP_KEEPIDLE

Call = Callable[[], None]


class Service:
    """One thread. Any thread may make its calls; what it runs holds no lock, and must not raise."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Be as new: at first, and in the child of a fork, where the thread is not."""
        self._lock = renewed(threading.RLock())  # a finalizer may call while its thread is in here
        self._epoll: select.epoll | None = None  # with the thread
        self._doorbell = -1
        self._handlers: dict[int, Call] = {}
        self._calls: deque[Call] = deque()
        self._timers = TimedCalls()

    def watch(self, descriptor: int, handler: Call) -> None:
        """Call `handler` whenever the descriptor is readable."""
        with self._lock:
            self._handlers[descriptor] = handler
            self._started().register(descriptor, select.EPOLLIN)

    def unwatch(self, descriptor: int) -> None:
        """Stop that, before the descriptor is closed; a last call may be under way."""
        with self._lock:
            if self._handlers.pop(descriptor, None) is not None:
                self._started().unregister(descriptor)

    def call_soon(self, call: Call) -> None:
        """Run `call` soon."""
        self._calls.append(call)
        self._ring()

    def call_at(self, deadline_ns: int, call: Call) -> Timer:
        """Run `call` at a time of the monotonic clock, or shortly after."""
        with self._lock:
            timer = self._timers.add(deadline_ns, call)
            is_first = self._timers.next_ns() == deadline_ns
        if is_first:
            self._ring()
        return timer

    def abandon_in_child(self) -> None:
        """Close what the child of a fork has of it; the thread is the parent's."""
        if self._epoll is not None:
            self._epoll.close()
            os.close(self._doorbell)
        self.begin()

    # -- inside

    def _started(self) -> select.epoll:
        """Return what the thread sleeps in, and make both if need be."""
        with self._lock:
            if self._epoll is None:
                epoll = select.epoll()
                self._doorbell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
                epoll.register(self._doorbell, select.EPOLLIN)
                self._epoll = epoll
                threading.Thread(
                    target=self._run, args=(epoll,), name="urds-rsockets", daemon=True
                ).start()
            return self._epoll

    def _ring(self) -> None:
        self._started()
        os.eventfd_write(self._doorbell, 1)

    def _run(self, epoll: select.epoll) -> None:
        while True:
            for descriptor, _ in epoll.poll(self._left_s()):
                if descriptor == self._doorbell:
                    os.eventfd_read(self._doorbell)
                    continue
                with self._lock:
                    handler = self._handlers.get(descriptor)
                if handler is not None:
                    handler()
            while self._calls:
                self._calls.popleft()()
            self._run_due()

    def _left_s(self) -> float | None:
        with self._lock:
            next_ns = self._timers.next_ns()
        if next_ns is None:
            return None
        left_s = (next_ns - time.monotonic_ns()) / _NS
        return min(max(left_s, 0.0), _SLEEP_S_MAX)

    def _run_due(self) -> None:
        now_ns = time.monotonic_ns()
        while True:
            with self._lock:
                call = self._timers.take_due(now_ns)
            if call is None:
                return
            call()


service = Service()


os.register_at_fork(after_in_child=service.abandon_in_child)
