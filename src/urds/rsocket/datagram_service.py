"""The thread that reads the real UDP sockets of all datagram rsockets of a process.

By UDP come first datagrams, control messages, and one datagram a second from each peer: too little
to have every waiting thread look there, and a control message wants its answer while nobody waits.
So one thread does it, made by the first socket; it also carries out what callbacks of a device ask
for, since they hold that device's lock and must not take another's.
"""

import os
import select
import threading
from collections import deque
from collections.abc import Callable

from urds.forks import renewed

Handler = Callable[[], None]


class DatagramService:
    """One thread; its calls are safe from any thread. Handlers run in it without a lock."""

    def __init__(self) -> None:
        self._lock = renewed(threading.Lock())
        self._epoll = select.epoll()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._bell, select.EPOLLIN)
        self._handlers: dict[int, Handler] = {}
        self._calls: deque[Handler] = deque()
        self._thread = threading.Thread(target=self._run, name="urds-datagrams", daemon=True)
        self._thread.start()

    def watch(self, descriptor: int, handler: Handler) -> None:
        """Call `handler` whenever the descriptor is readable. It must not raise."""
        with self._lock:
            self._handlers[descriptor] = handler
            self._epoll.register(descriptor, select.EPOLLIN)

    def unwatch(self, descriptor: int) -> None:
        """Stop that, before the descriptor is closed; a last call may be under way."""
        with self._lock:
            if self._handlers.pop(descriptor, None) is not None:
                self._epoll.unregister(descriptor)

    def call_soon(self, call: Handler) -> None:
        """Run `call` soon. It must not raise."""
        self._calls.append(call)
        os.eventfd_write(self._bell, 1)

    def abandon_in_child(self) -> None:
        """Close what the child of a fork has of it; the thread is the parent's."""
        self._epoll.close()
        os.close(self._bell)

    def _run(self) -> None:
        while True:
            for descriptor, _ in self._epoll.poll():
                if descriptor == self._bell:
                    os.eventfd_read(self._bell)
                    continue
                with self._lock:
                    handler = self._handlers.get(descriptor)
                if handler is not None:
                    handler()
            while self._calls:
                self._calls.popleft()()


class _Process:
    """The service of this process, once there is one."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Have no service."""
        self.lock = renewed(threading.RLock())  # a finalizer may call while its thread is in here
        self.service: DatagramService | None = None


_process = _Process()


def service() -> DatagramService:
    """Return the service of this process."""
    with _process.lock:
        if _process.service is None:
            _process.service = DatagramService()
        return _process.service


def _abandon_in_child() -> None:
    if _process.service is not None:
        _process.service.abandon_in_child()
    _process.begin()


os.register_at_fork(after_in_child=_abandon_in_child)
