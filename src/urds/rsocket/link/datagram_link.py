"""One datagram rsocket: a real UDP socket, a queue pair on each device, and the core between them.

**Locks.** `_setup_lock` for bind, connect and close; then the lock of a device; then `_lock`, which
guards the core and is held for its calls alone. The locks of two devices are never held together.

**Threads.** A thread that sends posts what the core says, by UDP or by queue pair. What a device
brings comes in the thread that makes it progress, with its lock held; what the core then wants of
another device is left to the progress thread, which also reads the UDP socket. All of them notify
waiting calls.

Loss is normal: nothing here waits for room, nothing is sent twice.
"""

import errno
import os
import secrets
import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, NamedTuple

from urds.common.forks import renewed
from urds.common.ip_sockets import (
    address_of,
    ask_for_targets,
    host_towards,
    leaving_from,
    target_of,
)
from urds.common.progress import progress_thread
from urds.common.types import BytesLike, HostPort
from urds.rsocket.core.datagram import (
    SLOT_BYTES,
    ByQueuePair,
    ByUdp,
    DatagramCore,
    DatagramSettings,
    DatagramStats,
    LookUp,
    QueuePairAddress,
)
from urds.rsocket.link import devices
from urds.rsocket.link.datagram_device import DatagramDevice
from urds.rsocket.link.devices import DeviceContext, Readiness
from urds.rsocket.wire.datagram import BIND_ID_BYTES

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

READ_BYTES: Final = 2 * SLOT_BYTES  # one that is longer than a slot is seen to be
_ANCILLARY_BYTES: Final = 64


class UdpDatagram(NamedTuple):
    """What came, from where, and to which address of ours if the socket has several."""

    data: bytes
    source: HostPort
    local_host: str


class UdpSocket:
    """A UDP socket whose calls never wait. Any thread; a closed one raises OSError EBADF.

    Its lock is held for one system call, so that no descriptor is used after its close.
    """

    def __init__(self, family: int) -> None:
        """Make an unbound one. Raises OSError: EAFNOSUPPORT, EMFILE."""
        if family not in (socket.AF_INET, socket.AF_INET6):
            raise OSError(errno.EAFNOSUPPORT, f"family {family}, known are AF_INET and AF_INET6")
        self.family = family
        self._lock = renewed(threading.Lock())
        self._socket = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        if family == socket.AF_INET6:
            # The version in our headers is that of the datagrams' family.
            self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)

    def fileno(self) -> int:
        """Return the descriptor, -1 if it is closed."""
        return self._socket.fileno()

    def bind(self, address: HostPort) -> None:
        """Take an address; port 0 takes a free one. Raises OSError: EADDRINUSE and others."""
        with self._lock:
            self._socket.bind(address)
            if self._is_wildcard():
                ask_for_targets(self._socket)

    def connect(self, address: HostPort) -> None:
        """Let the kernel hear `address` alone, and report when no socket is there."""
        with self._lock:
            self._socket.connect(address)

    @property
    def local(self) -> HostPort:
        """Return our address now. Raises OSError."""
        with self._lock:
            return address_of(self._socket.getsockname())

    @property
    def peer(self) -> HostPort:
        """Return the address we are connected to. Raises OSError: ENOTCONN."""
        with self._lock:
            return address_of(self._socket.getpeername())

    def send(self, what: ByUdp) -> None:
        """Send one datagram. Raises BlockingIOError and what sendto says."""
        ancillary = leaving_from(what.local_host) if what.local_host else []
        with self._lock:
            self._socket.sendmsg([what.data], ancillary, 0, what.target)

    def receive(self) -> UdpDatagram:
        """Take one datagram. Raises BlockingIOError; OSError for an earlier one of ours."""
        with self._lock:
            data, ancillary, _, name = self._socket.recvmsg(READ_BYTES, _ANCILLARY_BYTES)
        return UdpDatagram(data, address_of(name), target_of(ancillary))

    def host_towards(self, target: HostPort) -> str:
        """Return our address on the way to `target`. Raises OSError: ENETUNREACH and others."""
        host = self.local[0]
        if not ip_address(host.partition("%")[0]).is_unspecified:
            return host
        return host_towards(self.family, target)

    def set_option(self, level: int, option: int, value: int | bytes) -> None:
        """Set an option of the socket. Raises OSError."""
        with self._lock:
            self._socket.setsockopt(level, option, value)

    def get_option(self, level: int, option: int, buffer_bytes: int = 0) -> int | bytes:
        """Return an option: a number, or bytes if their count is given. Raises OSError."""
        with self._lock:
            if buffer_bytes:
                return self._socket.getsockopt(level, option, buffer_bytes)
            return self._socket.getsockopt(level, option)

    def close(self) -> None:
        """Close it. Safe twice."""
        with self._lock:
            self._socket.close()

    def abandon_in_child(self) -> None:
        """Close it in the child of a fork, whatever other threads of the parent were at."""
        self._lock = renewed(threading.Lock())
        self._socket.close()

    # -- inside

    def _is_wildcard(self) -> bool:
        return ip_address(self._socket.getsockname()[0]).is_unspecified


_VIRTUAL_NS: Final = 1_000_000_000  # that a simulated device runs ahead of the real UDP socket
_PAUSE_S: Final = 0.002  # between two looks at a simulated device
BATCH_MAX: Final = 64  # datagrams of one reading: other sockets come after
_PORT_MAX: Final = 0xFFFF
_UNSPECIFIED: Final = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}


class DatagramLink:
    """A datagram socket without a blocking call but `wait`. Safe from any thread."""

    def __init__(
        self,
        contexts: Sequence[DeviceContext],
        settings: DatagramSettings | None = None,
        family: int = socket.AF_INET,
    ) -> None:
        """Make an unbound socket over these devices; without one everything goes by UDP.

        Raises OSError: EAFNOSUPPORT, EMFILE.
        """
        self.contexts = list(contexts)
        self.settings = settings or DatagramSettings()
        self.on_change: Callable[[], None] | None = None
        self.local: HostPort | None = None
        self.peer: HostPort | None = None
        self.is_closed = False
        self.udp = UdpSocket(family)
        self._setup_lock = renewed(threading.RLock())
        self._lock = renewed(threading.Lock())
        self._core: DatagramCore | None = None
        self._devices: list[DatagramDevice] = []
        self._error = 0
        self._simulated = [one.adapter for one in self.contexts if not one.adapter.has_own_time]
        self._waiting: set[Callable[[], None]] = set()  # calls that do not wait at a device
        _alive.add(self)

    # -- addresses

    def bind(self, address: HostPort) -> None:
        """Take an address; port 0 takes a free one.

        Raises OSError: EINVAL (bound already), EADDRINUSE, EADDRNOTAVAIL, EBADF.
        """
        with self._setup_lock:
            self._demand_open()
            if self._core is not None:
                raise OSError(errno.EINVAL, f"bound to {self.local} already")
            self.udp.bind(address)
            self._begin()

    def connect(self, address: HostPort) -> None:
        """Send to `address` by default, and hear it alone from now on. Again: another one.

        Raises OSError: ENETUNREACH and others of UDP, EBADF.
        """
        with self._setup_lock:
            self._demand_open()
            self.udp.connect(address)
            if self._core is None:
                self._begin()
            assert self._core is not None
            self.local, self.peer = self.udp.local, self.udp.peer
            with self._lock:
                self._core.peer = self.peer

    @property
    def payload_bytes_max(self) -> int:
        """Return how many bytes a datagram may have; binds the socket if it is not."""
        return self._bound().payload_bytes_max

    # -- datagrams

    def send(self, data: "ReadableBuffer", address: HostPort | None = None) -> int:
        """Send a copy of `data`, without waiting, and return its length; binds if need be.

        The core chooses queue pair or UDP. A datagram for which there is no room is lost and
        counted. Raises OSError: EDESTADDRREQ, EMSGSIZE with value and limit, EINVAL for no numeric
        address, EBADF, what sendto says of the target, and what became of an earlier datagram.
        """
        target = address if address is not None else self.peer
        if target is None:
            raise OSError(errno.EDESTADDRREQ, "no address given, and the socket is not connected")
        # Of items of any size: what counts are their bytes.
        raw = data if isinstance(data, bytes) else memoryview(data).cast("B")
        core = self._bound()
        self._raise_error()
        # The clock is read for each datagram: whether one has to go over UDP again depends on it.
        now_ns = time.monotonic_ns()
        with self._lock:
            what = core.send(raw, target, now_ns) if core.knows(target) else None
        if what is None:
            what = self._send_first(core, raw, target, now_ns)
        self._post_pending(core, what)
        if core.has_events:
            self._serve(core)
        return len(raw)

    def receive(self, *, peek: bool = False) -> tuple[bytes, HostPort] | None:
        """Take a datagram and its sender, None if there is none; leave it there if `peek`.

        Raises OSError: EBADF, and what became of an earlier datagram of ours.
        """
        self._demand_open()
        self._raise_error()
        with self._lock:
            core = self._core
            return None if core is None else core.peek() if peek else core.receive()

    def readiness(self) -> Readiness:
        """Return what poll would say. A datagram socket can always send."""
        with self._lock:
            is_readable = self._core is not None and self._core.is_readable
        is_failed = self._error != 0
        return Readiness(is_readable or is_failed or self.is_closed, True, False, is_failed)

    def wait(self, is_ready: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait until `is_ready()`, the close or the end of time; return whether it was no timeout.

        Call it without locks; `is_ready` may be called with a device's lock held.
        """

        def is_over() -> bool:
            return self.is_closed or is_ready()

        if self.contexts and not self._simulated:
            return devices.wait(self.contexts, is_over, timeout_s)

        def is_over_after_progress() -> bool:
            for adapter in self._simulated:
                adapter.wait(is_over, _VIRTUAL_NS)
            return is_over()

        changed = threading.Event()
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        pause_s = _PAUSE_S if self._simulated else None
        self._waiting.add(changed.set)
        try:
            return devices.wait_for_changes(changed, is_over_after_progress, end_s, pause_s)
        finally:
            self._waiting.discard(changed.set)

    # -- options, state, end

    def take_error(self) -> int:
        """Return the errno of an earlier datagram's fate, 0 if there is none, and forget it."""
        error, self._error = self._error, 0
        return error

    @property
    def stats(self) -> DatagramStats:
        """Return the counters; they begin when the socket is bound."""
        return DatagramStats() if self._core is None else self._core.stats

    def close(self) -> None:
        """Give port and queue pairs back; threads that wait return. Safe twice."""
        with self._setup_lock:
            if self.is_closed:
                return
            self.is_closed = True
            if self._core is not None:
                progress_thread.unwatch(self.udp.fileno())
            self.udp.close()
            for device in self._devices:
                device.close()
        self._tell_devices()
        self.finish_pass()

    def close_soon(self) -> None:
        """Close from the progress thread: the caller may hold the lock of any device."""
        progress_thread.call_soon(self.close)

    # -- as the receiver of devices: the lock of one of them is held

    def handle_datagram(self, data: memoryview) -> None:
        """Take a datagram from a queue pair."""
        with self._lock:
            if self._core is not None:
                self._core.receive_queue_pair(data)

    def handle_failed_receive(self) -> None:
        """Count a datagram that did not fit into its slot."""
        if self._core is not None:
            self._core.stats.dropped_failed += 1

    def handle_found(self, token: int, qp_address: QueuePairAddress) -> None:
        """Use what a look-up found."""
        core = self._core
        assert core is not None, "a look-up is of a bound socket"
        with self._lock:
            core.handle_found(token, qp_address)

    def handle_not_found(self, token: int) -> None:
        """Ask the next device, though not from here."""
        core = self._core
        assert core is not None, "a look-up is of a bound socket"
        with self._lock:
            core.handle_not_found(token, time.monotonic_ns())
        if core.has_events:
            progress_thread.call_soon(lambda: self._serve(core))

    def finish_pass(self) -> None:
        """Tell all that show readiness or wait for it."""
        for wake in list(self._waiting):
            wake()
        if self.on_change is not None:
            self.on_change()

    # -- beginning

    def _bound(self) -> DatagramCore:
        """Return the core; an unbound socket is bound to any port first."""
        if self.is_closed or self._core is None:
            with self._setup_lock:
                self._demand_open()
                if self._core is None:
                    self.bind((_UNSPECIFIED[socket.AddressFamily(self.udp.family)], 0))
        assert self._core is not None, "bound above"
        return self._core

    def _begin(self) -> None:
        """Make the queue pairs of a bound socket, then its core, and have it read."""
        local = self.udp.local
        name = secrets.token_bytes(BIND_ID_BYTES)
        for context in self.contexts:
            # A device that does not serve this address leaves it to the others and to UDP.
            with suppress(OSError):
                device = DatagramDevice(
                    context,
                    len(self._devices),
                    self,
                    host=local[0],
                    name=name,
                    settings=self.settings,
                )
                self._devices.append(device)
        self._core = DatagramCore(
            self.settings,
            local=local,
            devices=[device.record for device in self._devices],
            bind_id=name,
        )
        self.local = local
        progress_thread.watch(self.udp.fileno(), self._handle_udp)

    def _send_first(
        self, core: DatagramCore, data: BytesLike, target: HostPort, now_ns: int
    ) -> ByUdp | ByQueuePair:
        """Send to an address that is not known, or not spelled like this. Raises OSError."""
        core.check_size(len(data))
        target = self._numeric(target)
        local_host = self.udp.host_towards(target)
        with self._lock:
            if not core.knows(target):
                core.add_destination(target, local_host)
            return core.send(data, target, now_ns)

    def _numeric(self, target: HostPort) -> HostPort:
        """Return an address as the kernel writes it. Raises OSError: EINVAL, EAFNOSUPPORT."""
        host, port = target
        try:
            address = ip_address(host)
            if not 0 < port <= _PORT_MAX:
                raise ValueError(f"port {port}, not 1 to {_PORT_MAX}")
        except ValueError as error:
            raise OSError(errno.EINVAL, str(error)) from None
        if (address.version == 6) != (self.udp.family == socket.AF_INET6):
            raise OSError(errno.EAFNOSUPPORT, f"{host} for a socket of the other family")
        return str(address), port

    # -- what goes out

    def _post_pending(self, core: DatagramCore, what: ByUdp | ByQueuePair) -> None:
        """Send as the core chose. Raises OSError for data that UDP refuses."""
        if isinstance(what, ByQueuePair):
            if not self._devices[what.qp_address.device].send(what):
                self._leave_device(core, what)
            return
        try:
            self.udp.send(what)
        except OSError as error:
            if what.is_data and not isinstance(error, BlockingIOError):
                raise
            core.stats.dropped_unsent += 1

    def _leave_device(self, core: DatagramCore, what: ByQueuePair) -> None:
        """Do without a device that failed; the datagram at hand goes by UDP."""
        with self._lock:
            core.handle_device_lost(what.qp_address.device)
            instead = core.send_instead(what, time.monotonic_ns())
        if instead is not None:
            self._post_pending(core, instead)

    def _serve(self, core: DatagramCore) -> None:
        """Do what the core wants of its devices. No lock is held."""
        while True:
            with self._lock:
                event = core.poll_event()
            if event is None or self.is_closed:
                return
            if isinstance(event, LookUp):
                self._devices[event.device].look_up(event)
            else:
                for device in self._devices:
                    device.give_up(event.token)

    # -- what comes by UDP: the progress thread

    def _handle_udp(self) -> None:
        core = self._core
        assert core is not None, "watched after the core was made"
        is_new = False
        for _ in range(BATCH_MAX):
            try:
                data, source, local_host = self.udp.receive()
            except BlockingIOError:
                break
            except OSError as error:
                if self.is_closed:
                    return
                self._error, is_new = error.errno or errno.EIO, True
                continue
            with self._lock:
                had = core.is_readable
                answer = core.receive_udp(data, source, time.monotonic_ns(), local_host=local_host)
                is_new |= core.is_readable and not had
            if answer is not None:
                self._post_pending(core, answer)
        self._serve(core)
        if is_new:
            self._tell_devices()
            self.finish_pass()

    # -- leaves

    def _tell_devices(self) -> None:
        """Have calls ask again that wait at a device, or for one of several. No lock is held."""
        for context in self.contexts:
            with context.adapter.lock:
                context.tell()

    def _raise_error(self) -> None:
        if self._error:
            error = self.take_error()
            raise OSError(error, f"of an earlier datagram: {os.strerror(error)}")

    def _demand_open(self) -> None:
        if self.is_closed:
            raise OSError(errno.EBADF, "the socket is closed")

    def abandon_in_child(self) -> None:
        """Let go of the port in the child of a fork; the queue pairs are the parent's."""
        self.is_closed = True
        self.udp.abandon_in_child()


_alive: weakref.WeakSet[DatagramLink] = weakref.WeakSet()


def _abandon_all() -> None:
    for link in list(_alive):
        if not link.is_closed:
            link.abandon_in_child()
    _alive.clear()


os.register_at_fork(after_in_child=_abandon_all)
