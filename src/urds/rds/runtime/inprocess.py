"""Local addresses in this process: the first bind to one makes the process the host of it.

`process.current()` makes the backend when it is needed; one driver serves all its addresses.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from urds.common.errors import ErrorReason, os_error
from urds.common.records import fields
from urds.common.types import IPAddress
from urds.rds.constants import Transport
from urds.rds.plane.choose import choose, plane_class
from urds.rds.plane.contract import Mailbox, MailboxSettings, Snapshot
from urds.rds.runtime.control_thread import Driver
from urds.rds.runtime.process import process
from urds.rds.settings import Settings

if TYPE_CHECKING:
    from urds.rds.runtime.info import Endpoint
    from urds.rds.transports.rdma.regions import RegionTable

_S = 1_000_000_000
_DRAIN_STEP_S: Final = 0.05


class InProcess:
    """See `backend.Backend`."""

    def __init__(
        self, settings: Settings, on_unused: Callable[[InProcess], bool] | None = None
    ) -> None:
        """Begin; without `on_unused`, which is to call `end_if_unused`, never end by itself."""
        self.settings = settings
        self.choice = choose()  # which plane, and why
        end = None if on_unused is None else partial(on_unused, self)
        self._driver = Driver(settings, plane_class(self.choice), end)
        self.plane = self._driver.plane
        self._owner = os.getpid()
        try:
            if settings.info_socket:
                self._driver.inform(self._report)
            process.alive.add(self)
        except BaseException:  # of a signal handler: no backend has this driver
            self._driver.close(0)
            raise
        # The child of a multiprocessing fork ends by os._exit, past atexit, but runs these.
        util = sys.modules.get("multiprocessing.util")
        self._finalizer = util and util.Finalize(
            None, self.close, kwargs={"at_exit": True}, exitpriority=0
        )

    @property
    def driver(self) -> Driver:
        """The control thread and its tables, for the worker of a node."""
        return self._driver

    def bind(
        self,
        *,
        address: IPAddress,
        port: int,
        settings: MailboxSettings,
        transport: Transport | None,
    ) -> Mailbox:
        """Bind a socket; see `Backend.bind`."""
        try:
            return self._driver.bind(address, port, settings, transport)
        except OSError as failure:
            if transport is not None and failure.errno == _NOT_LOCAL.errno:
                raise os_error(ErrorReason.TRANSPORT_MISSING, f"{address}") from failure
            raise

    def transport_of(self, mailbox: Mailbox) -> Transport:
        """Return by what a mailbox sends."""
        return Transport.IB if mailbox in self._driver.rdma else Transport.TCP

    def regions(self) -> RegionTable:
        """Return the memory regions of this process, for mailboxes over RDMA."""
        with self._driver.lock:
            return self._driver.rdma.bound.regions

    def connected(self, mailbox: Mailbox, peer: IPAddress) -> bool:
        """Tell whether a mailbox over RDMA has a connection to the peer; if not, ask for one."""
        with self._driver.lock:
            return self._driver.rdma.bound.connected(mailbox, peer)

    def note(self, mailbox: Mailbox, peer: Endpoint | None, linger_s: int | None) -> None:
        """Do nothing: `process` has the peers, and a socket knows its options when it closes."""

    def connected_peers(self) -> Mapping[Endpoint, Endpoint]:
        """Return where the sockets of this process are connected to."""
        return dict(process.connected)

    def closed(self, mailbox: Mailbox) -> None:
        """Free the port of a mailbox that its socket has closed."""
        self._driver.unbind(mailbox)

    def is_inside(self) -> bool:
        """Tell whether the calling thread holds a lock of this backend."""
        return self._driver.is_inside()

    def abandoned(self, mailbox: Mailbox, linger_ns: int | None = None) -> None:
        """Have the mailbox of a forgotten socket closed soon; takes no lock."""
        self._driver.abandoned.add(mailbox, linger_ns)

    def snapshot(self) -> Snapshot:
        """Return counters and tables of the whole process."""
        return self._driver.told_snapshot()

    def counters(self) -> Mapping[str, int]:
        """Return Linux's counters in its order, the plane's own, those of the control cores."""
        stats, rdma = self._driver.stats, self._driver.rdma
        control = {field.name: getattr(stats, field.name) for field in fields(stats)}
        control["pongs_kept_back"] = self._driver.pongs_kept_back
        control["connected_peers"] = len(self._driver.connected)
        control["connected_peers_max"] = self._driver.connected.peers_max
        plane = self._driver.snapshot().counters
        return {**with_rdma(plane, rdma.counters()), **control, **rdma.own_counters()}

    def _report(self) -> bytes:
        from urds.rds.runtime.processes import report_of_this_process

        return report_of_this_process(
            self.choice.plane, self.snapshot(), self.counters(), self.connected_peers()
        )

    def warn_of(self, variables: Iterable[str]) -> None:
        """Log the names of environment variables that nothing reads."""
        for variable in variables:
            self._driver.log.warning("variable %s: no such setting, ignored", variable)

    def break_connections(self) -> int:
        """Reset every connection of this process, as a fault would; return how many."""
        return self._driver.break_connections()

    def drain(self, timeout_s: float) -> int:
        """Wait until everything is acknowledged; return the messages left. See `urds.drain`."""
        until_s = time.monotonic() + timeout_s
        while True:  # in short steps: signal handlers run between them
            left_s = min(_DRAIN_STEP_S, max(0.0, until_s - time.monotonic()))
            left = self._driver.drain(round(left_s * _S))
            if not left or left_s < _DRAIN_STEP_S:
                return left

    def close(self, *, at_exit: bool = False) -> int:
        """Drain for `drain_s`, then end; return the messages that were left."""
        if os.getpid() != self._owner:
            return 0
        try:
            left = self._driver.close(round(self.settings.drain_s * _S), at_exit=at_exit)
            self._driver.log.flush()
        finally:
            if not at_exit:  # its descriptors are gone: a later fork must not close them again
                self._forget()
        return left

    def end_if_unused(self) -> bool:
        """End if there is no socket, nor a message of a closed one; tell whether it has ended."""
        if not self._driver.stop_if_unused():
            return False
        try:
            self._driver.end()
        finally:
            self._forget()
        return True

    def _forget(self) -> None:
        process.alive.discard(self)
        if self._finalizer is not None:
            self._finalizer.cancel()

    def abandon_in_child(self) -> None:
        """Leave everything to the parent; called in the child of a fork."""
        self._driver.plane.abandon_in_child()
        self._driver.abandon_in_child()


def with_rdma(plane: Mapping[str, int], rdma: Mapping[str, int]) -> dict[str, int]:
    """Put the counters of RDMA behind the generic ones and before those of TCP, as Linux does.

    Source: linux v6.12 net/rds/stats.c (rds_stats_info), net/rds/transport.c.
    """
    generic_names = takewhile(lambda name: not name.startswith("tcp_"), plane)
    generic = {name: plane[name] for name in generic_names}
    return {**generic, **rdma, **plane}  # a name keeps the place where it was first


_NOT_LOCAL = os_error(ErrorReason.NOT_LOCAL)
