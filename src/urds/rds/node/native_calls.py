"""The calls of `plane_calls` over the control plane of this process and the compiled plane.

The worker's main thread calls; the plane reports in the control thread.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic_ns as now_ns
from typing import Any, Final

from urds.common.errors import ErrorReason, PlaneError, os_error
from urds.common.types import IPAddress
from urds.rds.addresses import address_of, packed_of
from urds.rds.constants import Transport
from urds.rds.node.plane_calls import Opened
from urds.rds.plane.choose import NATIVE, choose, native_module, plane_class
from urds.rds.plane.contract import ClientError, Left, MailboxSettings
from urds.rds.runtime import info, processes
from urds.rds.runtime.inprocess import InProcess
from urds.rds.runtime.processes import Endpoint
from urds.rds.settings import Settings

_SUBMISSIONS: Final = 1 << 14  # of one socket, that wait or are not acknowledged
_SEND_FACTOR: Final = 4  # send area to the greatest SO_SNDBUF; sparse
_RECEIVE_FACTOR: Final = 5
_MESSAGE_FACTOR: Final = 2  # each area to the longest message
_PAGE_BYTES: Final = 4096  # of the layout of a socket memory
_LIST_BYTES_MAX: Final = 1 << 30
_S: Final = 1_000_000_000
_FLUSH_NS: Final = _S  # for a kernel to answer the last ping, and again to end its direction


def memory_sizes(settings: Settings) -> tuple[int, int, int, int, int, int, int, int, bool]:
    """Return the sizes of a socket memory, as `urds_native.open_socket` takes them.

    Areas are whole pages, whatever the greatest buffers are.
    """
    longest_bytes = _MESSAGE_FACTOR * settings.max_message_bytes  # SO_SNDBUFFORCE
    return (
        _SUBMISSIONS,
        _pages(max(_SEND_FACTOR * settings.wmem_max, longest_bytes)),
        _pages(max(_RECEIVE_FACTOR * settings.rmem_max, longest_bytes)),
        settings.send_bytes_default,
        settings.receive_bytes_default,
        settings.wmem_max,
        settings.rmem_max,
        settings.max_message_bytes,
        settings.strict_linux,
    )


def _pages(size_bytes: int) -> int:
    """Round up to whole pages."""
    return -(-size_bytes // _PAGE_BYTES) * _PAGE_BYTES


def load() -> Any:
    """Load the compiled plane, without a thread or a descriptor; return its module.

    Raises PlaneError without one.
    """
    choice = choose()
    if choice.plane != NATIVE:
        raise PlaneError(f"a node needs the compiled data plane: {choice.reason}")
    plane_class(choice)  # its Python part
    module: Any = native_module()
    if not hasattr(module, "memory_formats"):
        raise PlaneError("this compiled data plane serves no sockets of other processes")
    return module


def _ignored(*_: Any) -> None:
    """Ignore a report: the worker has not begun."""


class NativeCalls:
    """See `plane_calls.PlaneCalls`; `Attached` is a mailbox of the plane."""

    def __init__(self, settings: Settings) -> None:
        """Make the plane. Raises PlaneError without a compiled one."""
        self._native: Any = load()
        self.on_left: Callable[[Any], None] = _ignored
        self.on_client_error: Callable[[Any, str], None] = _ignored
        self._settings = settings
        self._backend = InProcess(settings)
        self._driver = self._backend.driver
        self._plane: Any = self._driver.plane
        self._driver.clients = self
        self._congestion = -1
        self._attached: set[Any] = set()

    def formats(self) -> Sequence[str]:
        """Name those of the compiled plane."""
        found: Sequence[str] = self._native.memory_formats()
        return found

    def begin(self, shared: Sequence[int]) -> Sequence[int]:
        """Begin, with the paths and congestion maps of the worker before if there was one."""
        if shared:
            paths, congestion = shared
            # The same generation: to its peers this is a reconnect of the same node, no restart.
            generation = self._plane.take_path_journal(paths)
            self._driver.generation = self._plane.generation = generation
            self._driver.paths.before = {
                (address_of(*local), address_of(*peer)): npaths
                for local, peer, npaths in self._plane.npaths_before()
            }
            self._plane.take_congestion_memory(congestion)
        else:
            paths = self._plane.path_journal()
        self._congestion = self._plane.congestion_memory()
        return shared or [paths, self._plane.congestion_file()]

    def finish_restore(self) -> None:
        """Go on with sends, and connect to each peer that the worker before was connected to.

        The peer is trying as well, but its back-off may have grown meanwhile.
        """
        driver, connected = self._driver, self._plane.finish_restore()
        with driver.lock:
            for local, peer in ((address_of(*one), address_of(*other)) for one, other in connected):
                host = driver.hosts.get(local)
                if host is None or host.is_released or peer in driver.hosts:
                    continue  # without a socket now, or no peer any more
                with suppress(OSError):  # not allowed, or one too many
                    host.endpoint.connection(peer, now_ns()).handle_was_connected(now_ns())
                driver.carry_out(host)
        driver.plane.wake()

    def congestion(self) -> tuple[int, int]:
        """Return the memory of congestion maps, to read."""
        return self._congestion, os.fstat(self._congestion).st_size

    def open(self, place: str, *, nonblock: bool, words: bytes = b"") -> Opened:
        """Make control socket and socket memory."""
        sizes = memory_sizes(self._settings)
        user_end, *kept = self._native.open_socket(sizes, os.fsencode(place), nonblock, words)
        return Opened(user_end, tuple(kept))

    def memory_bytes(self, kept: Sequence[int]) -> int:
        """Return the size of a socket memory."""
        return os.fstat(kept[1]).st_size

    def bind(
        self,
        kept: Sequence[int],
        address: IPAddress,
        port: int,
        settings: MailboxSettings,
        transport: Transport | None,
        *,
        was_left: bool = False,
    ) -> Any:
        """Bind a mailbox, over TCP whatever the setting says, and have it serve the memory."""
        try:
            mailbox: Any = self._driver.bind(
                address, port, settings, Transport.TCP, takes_port=not was_left
            )
        except OSError as refused:
            if transport is not None and refused.errno == errno.EADDRNOTAVAIL:
                raise os_error(ErrorReason.TRANSPORT_MISSING, f"{address}") from refused
            raise
        try:
            self._plane.attach(mailbox, *kept, was_left)
        except BaseException:
            mailbox.close(0)
            self._backend.closed(mailbox)
            raise
        self._attached.add(mailbox)
        return mailbox

    def route(self, attached: Any, peer: IPAddress, tos: int) -> tuple[int, int]:
        """Return the number of a route, made now if it is the first to that peer."""
        self._driver.resolve(attached, peer)
        number: tuple[int, int] = attached.route_number(*packed_of(peer))
        return number

    def configure(self, attached: Any, settings: MailboxSettings) -> None:
        """Replace the settings of a socket."""
        attached.configure(settings)

    def cancel(self, attached: Any, peer: IPAddress | None, port: int | None) -> int:
        """Take back messages."""
        count: int = attached.cancel(peer, port)
        return count

    def restrict(self, attached: Any, *, is_over_quota: bool) -> None:
        """Take no more messages of a socket while its user is over its memory."""
        attached.restrict(is_over_quota)

    def take_rest(self, attached: Any) -> bool:
        """Take what was submitted by a socket that was left; tell whether nothing of it waits."""
        return bool(attached.take_rest())

    def close(self, attached: Any) -> None:
        """Free the port of a socket; its messages linger."""
        self._attached.discard(attached)
        attached.close(None)
        self._backend.closed(attached)

    def release_unused(self, now_s: float) -> None:
        """Let go of addresses without a socket."""
        self._driver.releases.release_unused(now_s)

    def is_over(self, attached: Any) -> bool:
        """Tell whether a closed socket has nothing left to send."""
        return bool(attached.is_over)

    def info(self, option: int) -> tuple[int, bytes]:
        """Return a list of RDS_INFO_*."""
        snapshot = self._backend.snapshot()
        element_bytes = info.element_bytes(option, rdma_in_use=snapshot.rdma_in_use)
        data = info.answer(
            option,
            snapshot,
            counters=self._backend.counters(),
            connected=self._connected(),
            buffer_bytes=_LIST_BYTES_MAX,
        )
        return element_bytes, data

    def report(self) -> bytes:
        """Return the report for `urds info`."""
        snapshot, counters = self._backend.snapshot(), self._backend.counters()
        return processes.report_of_this_process(NATIVE, snapshot, counters, self._connected())

    def drain(self, drain_ns: int) -> int:
        """Wait for acknowledgements; return the messages left."""
        return self._driver.drain(drain_ns)

    def break_off(self, *, is_last: bool) -> None:
        """End the connections in order; what is not acknowledged is in the journals."""
        drain_ns = round(self._settings.drain_s * _S) if is_last else 0
        self._driver.close(drain_ns, at_exit=True, goes_on=not is_last, flush_ns=_FLUSH_NS)

    def note(self, event: Left | ClientError) -> None:
        """Pass on that a socket was left, or that its program broke the protocol."""
        if isinstance(event, Left):
            self.on_left(event.mailbox)
        else:
            self.on_client_error(event.mailbox, event.what)

    def fail_route(self, mailbox: Any, peer: IPAddress, code: int) -> None:
        """Drop what waits for a route that cannot be."""
        mailbox.fail_route(*packed_of(peer), code)

    def _connected(self) -> dict[Endpoint, Endpoint]:
        """Return where sockets are connected to, as their programs wrote it."""
        found: dict[Endpoint, Endpoint] = {}
        from urds.rds.plane.attached import unmapped

        for mailbox in list(self._attached):
            words = mailbox.words()
            if (peer := words.get("connected")) is not None:
                data, scope, port = peer
                found[mailbox.local, mailbox.port] = unmapped(data, scope), port
        return found
