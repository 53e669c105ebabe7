"""What follows an unexpected exception in the control thread: it is never silent.

Without a guard the thread would end, and every blocked caller would wait for it for ever. Each
mistake is logged with its traceback and counted (`control_faults`). Where the peer that it concerns
is known, the connections to it start over: they are taken down and reconnected, and their queued
messages stay. Where it is not, the state of the node is unknown: then the node fails loudly, every
call of its sockets is refused with EIO, and every waiting call wakes with that error.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from time import monotonic_ns as now_ns
from typing import TYPE_CHECKING

from urds.common.types import IPAddress
from urds.rds.runtime.local_addresses import LocalAddressState

if TYPE_CHECKING:
    from urds.rds.runtime.control_thread import Driver

# What a fault of the thread itself raises, as faulthandler reports it.
_OF_FAULTS = {
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL),
    *(signal.SIGABRT, signal.SIGSYS, signal.SIGTRAP),
}


class Guard:
    """The one place of a driver that catches unexpected exceptions."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._log = driver.log.part("control")

    def run(self, loop: Callable[[], None]) -> None:
        """Run the control thread's loop; let the node fail if it ends by an exception.

        The thread blocks the process's signals. CPython runs their handlers in the main thread,
        which a signal taken by another thread does not wake from a sleep.
        """
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _OF_FAULTS)
            loop()
        except BaseException as problem:
            if self._driver.stopping:  # its descriptors may be closed already
                raise
            self._driver.stats.control_faults += 1
            text = "urds failed: all of its sockets are refused from now on"
            self._log.critical(text, problem=problem)
            self._driver.fail()

    @contextmanager
    def confine(
        self,
        host: LocalAddressState | None = None,
        peer: IPAddress | None = None,
        recover: Callable[[], None] | None = None,
    ) -> Iterator[None]:
        """Keep an exception from ending the thread; control lock held.

        With a host and a peer the connections between them start over; else none needs to.
        """
        try:
            yield
        except Exception:  # noqa: BLE001 - the guard is for these
            self._start_over(host, peer)
            if recover is not None:
                recover()

    def confined(
        self, host: LocalAddressState, peer: IPAddress, handler: Callable[[], None]
    ) -> Callable[[], None]:
        """Return a handler whose exceptions are confined to the peer."""

        def guarded() -> None:
            with self.confine(host, peer):
                handler()

        return guarded

    def run_timers(self, host: LocalAddressState, at_ns: int) -> None:
        """Run the due timers of a host; an exception is confined to the peer whose timer it was."""
        try:
            host.endpoint.handle_timeout(at_ns)
        except Exception:
            peer = host.endpoint.timed_peer
            if peer is None:
                raise
            self._start_over(host, peer)

    def confine_to(self, recover: Callable[[], None]) -> AbstractContextManager[None]:
        """Keep an exception from ending the thread, and have its part recover from it.

        For the threads of devices as well; no lock is needed.
        """
        return self.confine(recover=recover)

    def _start_over(self, host: LocalAddressState | None, peer: IPAddress | None) -> None:
        """Log, count, and have the peer's connections connected anew; called in an `except`."""
        at_ns = now_ns()
        self._driver.stats.control_faults += 1
        connection = None
        if host is not None and peer is not None:
            connection = host.endpoint.find(peer)
        what = f"the connections to {peer} start over" if connection else "urds goes on"
        self._log.error("a fault of urds; %s", what, problem=sys.exception())
        if host is not None and peer is not None and connection is not None:
            self._driver.streams.abandon(host, peer)
            paths = host.peers[peer].paths if peer in host.peers else []
            connection.handle_fault([path.attachment for path in paths], at_ns)
