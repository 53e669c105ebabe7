"""Where a socket's local address is kept, and which backend this process uses.

The one piece of state that belongs to a process and not to a socket: the settings, the backend made
with them at the first bind, and the peers of its sockets. A forked child starts with a fresh one;
the parent keeps its own.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from contextlib import ExitStack, suppress
from importlib import import_module
from typing import TYPE_CHECKING

from urds.common.errors import ErrorReason, SettingError, os_error
from urds.common.seconds import seconds_of
from urds.rds.settings import AUTO, IN_PROCESS, Settings, sources, unknown_variables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Unpack

    from urds.common.types import IPAddress
    from urds.rds.constants import Transport
    from urds.rds.runtime.backend import Backend, Mailbox, MailboxSettings
    from urds.rds.runtime.connections import ConnectionInfo
    from urds.rds.setting_values import SettingValues

    Endpoint = tuple[IPAddress, int]


class Process:
    """Settings, backend and connected peers of one process; thread-safe."""

    def __init__(self) -> None:
        self.connected: dict[Endpoint, Endpoint] = {}  # for the lists of rds-info
        self._values: dict[str, object] = {}
        self._settings: Settings | None = None
        self._backend: Backend | None = None
        self.alive: weakref.WeakSet[Backend] = weakref.WeakSet()  # every one that has a thread
        self._is_making = False
        self._has_warned = False  # of variables that nothing reads
        self._lock = threading.RLock()  # a signal handler may make a socket during the first bind

    def configure(self, values: dict[str, object]) -> Settings:
        """Add values that outrank file and environment; return the settings that result."""
        with self._lock:
            if self._backend is not None or self._is_making:
                raise SettingError(
                    f"{', '.join(sorted(values))}: settings are fixed once a socket was bound"
                )
            settings = Settings.load({**self._values, **values})
            self._values.update(values)
            self._settings = settings
            return settings

    def settings(self) -> Settings:
        """Return the settings, read from their sources at the first call."""
        with self._lock:
            if self._settings is None:
                self._settings = Settings.load(self._values)
            return self._settings

    def sources(self) -> dict[str, str]:
        """Return the source of each setting, as `settings.sources`."""
        with self._lock:
            return sources(self._values)

    def backend(self) -> Backend:
        """Return the backend, made at the first call.

        Raises SettingError, OSError (EDEADLK in a handler or finaliser that interrupts the making).
        """
        with self._lock:
            if self._backend is None:
                if self._is_making:
                    raise os_error(ErrorReason.REENTERED)
                try:
                    self._is_making = True  # no call before: a handler would make one as well
                    _refuse_subinterpreter()
                    unknown = [] if self._has_warned else unknown_variables()
                    self._backend = _make(self.settings(), self._end_unused, unknown)
                    self._has_warned = True
                finally:
                    self._is_making = False
            return self._backend

    def bind(
        self, address: IPAddress, port: int, settings: MailboxSettings, transport: Transport | None
    ) -> tuple[Backend, Mailbox]:
        """Bind a socket, as `Backend.bind`; return the backend that has it as well."""
        while True:
            backend = self.backend()
            try:
                return backend, backend.bind(
                    address=address, port=port, settings=settings, transport=transport
                )
            except OSError:
                with self._lock:  # held while a backend ends for want of sockets
                    if self._backend is backend:
                        raise

    def _end_unused(self, backend: Backend) -> bool:
        """End the backend if there is nothing left to do for it; the next bind makes another."""
        with self._lock:
            if self._backend is not backend or not backend.end_if_unused():
                return False
            self._backend = None
            return True

    def plane_in_use(self) -> tuple[str, str]:
        """Return which plane the backend has or would have, "python" or "native", and why.

        Makes no backend. Raises SettingError for an unknown URDS_IMPL, PlaneError if it asks for
        what is not there.
        """
        from urds.rds.plane.choose import choose

        with self._lock:
            made = getattr(self._backend, "choice", None)
            return made or choose()

    def drain(self, timeout_s: float) -> int:
        """Wait for acknowledgements, if anything was bound; see `drain`."""
        with self._lock:
            backend = self._backend
        return 0 if backend is None else backend.drain(timeout_s)

    def connections(self) -> list[ConnectionInfo]:
        """Return the connections, if anything was bound; see `connections`."""
        from urds.rds.runtime.connections import infos

        with self._lock:
            backend = self._backend
        return [] if backend is None else infos(backend.snapshot().paths)

    def stats(self) -> dict[str, int]:
        """Return the counters, if anything was bound; see `stats`."""
        with self._lock:
            backend = self._backend
        return {} if backend is None else dict(backend.counters())

    def use(self, backend: Backend | None) -> Backend | None:
        """Put another backend in place; return the one before. For tests and embedders."""
        with self._lock:
            before, self._backend = self._backend, backend
            self._settings = backend.settings if backend is not None else None
            return before

    def close_at_exit(self) -> None:
        """Wait for acknowledgements, then end the connections; waiting calls go on waiting."""
        with self._lock:  # held while a backend ends for want of sockets
            alive = list(self.alive)
        for backend in alive:
            backend.close(at_exit=True)

    def after_fork_in_child(self) -> None:
        """Forget the parent's backend; its settings stay. Its lock may be held: take a new one."""
        with ExitStack() as every:  # one that fails keeps no other from being left to the parent
            for backend in list(self.alive):
                every.callback(backend.abandon_in_child)
            self.alive.clear()
            self._lock = threading.RLock()
            self._backend, self._is_making = None, False
            self.connected = {}


def _refuse_subinterpreter() -> None:
    """Raise RuntimeError in a sub-interpreter.

    Its end would find the control thread at work, and abort the process. PEP 734's module has an
    underscore until CPython 3.14, and another name before 3.13.
    """
    for name in ("_interpreters", "_xxsubinterpreters"):
        with suppress(ImportError):
            interpreters = import_module(name)
            if interpreters.get_current() != interpreters.get_main():
                raise RuntimeError(
                    "sockets of urds work in the main interpreter of a process only, and this is a "
                    "sub-interpreter: bind in the main one, or in a process of its own"
                )
            return


def _make(
    settings: Settings, on_unused: Callable[[Backend], bool], unknown: Iterable[str]
) -> Backend:
    """Return a backend, which logs the names of unknown variables."""
    place = _node_place(settings)
    if place is not None:
        from urds.rds.runtime.attached import Attached

        attached = Attached(settings, place)
        attached.warn_of(unknown)
        return attached
    from urds.rds.runtime.inprocess import InProcess

    backend = InProcess(settings, on_unused)
    backend.warn_of(unknown)
    return backend


def _node_place(settings: Settings) -> str | None:
    """Return where the node of this process listens; None: addresses are kept in the process.

    With `auto` that is the node of the host or else of the user, where one accepts, and the plane
    is the compiled one. Raises OSError (EOPNOTSUPP) for a node that is named without that plane.
    """
    if settings.node == IN_PROCESS:
        return None
    from urds.rds.plane.choose import NATIVE, attaches, choose

    choice = choose()
    if settings.node == AUTO:
        if choice.plane != NATIVE:
            return None
        from urds.rds.runtime.places import find

        place = find()
        return place if place is not None and attaches() else None
    if choice.plane != NATIVE or not attaches():
        reason = choice.reason if choice.plane != NATIVE else "this one cannot attach sockets"
        detail = f"node = {settings.node!r}: that needs the compiled data plane, and {reason}"
        raise os_error(ErrorReason.NOT_SUPPORTED, detail)
    return settings.node


process = Process()
os.register_at_fork(after_in_child=process.after_fork_in_child)
# Here and not with the first backend: functions that a program registers after its import of urds
# run before this one, and what they send leaves.
atexit.register(process.close_at_exit)

current = process.backend
plane_in_use = process.plane_in_use


def configure(**values: Unpack[SettingValues]) -> Settings:
    """Set tunables from Python, above file and environment; return all of them.

    Works before the first bind of the process. Raises SettingError for an unknown name, a bad
    value, or when it is too late.
    """
    return process.configure(dict(values))


def drain(timeout_s: float) -> int:
    """Wait until every message of this process is acknowledged; return how many are not.

    Those of closed sockets count as well. Waits for `timeout_s` seconds at most, `math.inf` is for
    ever; 0 checks once. Any thread may call it, a signal handler must not. What is left stays
    queued. At a node it is the number of open sockets that have such messages; the node goes on
    with those of closed ones. Raises ValueError for a negative time or NaN, TypeError for
    what is no number.
    """
    return process.drain(seconds_of(timeout_s))


def connections() -> list[ConnectionInfo]:
    """Return the connections of this process, those that are down or on their way included.

    Any thread may call it, a signal handler must not (EDEADLK). A peer in this very process needs
    no connection and is not listed.
    """
    return process.connections()


def stats() -> dict[str, int]:
    """Return this process's counters by name, as `urds info` prints them (docs/cli.md).

    They count from the first bind on and begin anew with the bind after `idle_s` seconds without
    a socket; the dict is empty while nothing is bound. Any thread may call it. Raises OSError:
    EDEADLK in a signal handler that interrupted a call.
    """
    return process.stats()
