"""The devices that the rsockets of this process use: which, how they share one, and how they wait.

`URDS_RSOCKET_DEVICES` names them in the order in which they are tried (`shm0,tcp0`: shared memory
within the host, iWARP between hosts); with `URDS_VERBS_DEVICE` it is that one alone. They are
opened when the first socket needs them, and closed with the process, after what was sent has left.

librdmacm makes a queue pair, a completion queue, a channel with its descriptor and a receive
queue for each socket, and asks each of them when it waits. Here all sockets of a device share one
`DeviceContext`: one completion queue, whose sink hands completions to their links, one queue of
receives, one descriptor and the threads that make it progress; a socket costs its queue pair and
receive ring. Source: docs/reference/rsocket.md 18, rules for connections.
"""

import atexit
import errno
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import not_
from typing import Any, Final, NamedTuple, Protocol

from urds.common.buffers import address_of
from urds.common.forks import renewed
from urds.rsocket import settings
from urds.rsocket.core.stream.records import Memory
from urds.verbs.device import DEVICE_VARIABLE, find_device
from urds.verbs.engine.keys import Region
from urds.verbs.engine.numbers import AccessFlag, QPAttrMask, QPState, QPType
from urds.verbs.engine.queue_pair import QPAttr, QPCap, QueuePair
from urds.verbs.engine.work import WC, RecvWR
from urds.verbs.providers.base import Adapter

RECEIVES: Final = 1024  # they go back at the end of each pass, which ends when all are taken
MEMORY_BYTES_MAX: Final = 1 << 30  # of the receive rings of all sockets
MAPPABLE_BYTES_MIN: Final = 1 << 16  # smaller rings are not worth a device's own memory
_WRITTEN: Final = AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_WRITE
_RECEIVE: Final = RecvWR(wr_id=1)
_INIT: Final = QPAttrMask.STATE | QPAttrMask.PKEY_INDEX | QPAttrMask.PORT | QPAttrMask.ACCESS_FLAGS


class Readiness(NamedTuple):
    """What poll would report: POLLIN, POLLOUT, POLLHUP, POLLERR."""

    readable: bool  # something to receive or to accept, or the end
    writable: bool  # room to send, or the certainty that sending fails
    hung_up: bool  # neither direction is open any more
    failed: bool  # an error waits for SO_ERROR


class Finishable(Protocol):
    """What has something to do once the pass under way is over."""

    def finish_pass(self) -> None:
        """Do it; the adapter's lock is held."""


class QueuePairOwner(Finishable, Protocol):
    """What takes the completions of a queue pair; the adapter's lock is held."""

    def handle_received(self, wc: WC, /) -> None:
        """Take the completion of a receive."""

    def handle_sent(self, wc: WC, /) -> None:
        """Take the completion of a request."""

    def close(self) -> None:
        """Close what the queue pair belongs to. The lock may be held or not."""


@dataclass(slots=True)
class DeviceContextStats:
    """What happened on one device since it was opened."""

    connects: int = 0
    accepts: int = 0
    refused_private_data: int = 0  # requests that are none of an rsocket
    cut_links: int = 0  # peers that broke the protocol
    memory_refused: int = 0  # rings beyond MEMORY_BYTES_MAX


class DeviceContext:
    """A device, opened for rsockets: memory, queue pairs and their completions.

    Everything here needs the lock of the adapter.
    """

    def __init__(self, adapter: Adapter) -> None:
        """Take an open device. Raises OSError: EOPNOTSUPP without writes with immediate data."""
        if not adapter.attributes.rdma_with_imm:
            name = adapter.attributes.name
            raise OSError(errno.EOPNOTSUPP, f"{name} lacks rdma_with_imm, which streams need")
        self.adapter = adapter
        self.name = adapter.attributes.name
        self.stats = DeviceContextStats()
        self.memory_bytes = 0
        self.watchers: set[Callable[[], None]] = set()  # called when something changed
        self.links: dict[int, QueuePairOwner] = {}  # by queue pair
        self.leaving: set[QueuePairOwner] = set()  # closed, and with something still to send
        self.is_abandoned = False  # by a fork: the parent's
        self._pd = object()
        self._regions: dict[int, Region] = {}  # by rkey
        self._ring_keys: set[int] = set()  # those of them that count for `memory_bytes`
        self._dirty: dict[Finishable, None] = {}
        self._receives = adapter.shared_receive_queue(RECEIVES, 1, pd=self._pd)
        self._completions = adapter.completion_queue(1, sink=self._take)
        for _ in range(RECEIVES):
            self._receives.post(_RECEIVE)

    # -- memory: `MemorySource` of the streams

    def allocate(self, byte_count: int) -> Memory:
        """Return registered memory that the peer may write. Raises OSError: ENOMEM."""
        in_use = self.memory_bytes
        if in_use + byte_count > MEMORY_BYTES_MAX:
            self.stats.memory_refused += 1
            raise OSError(
                errno.ENOMEM,
                f"window of {byte_count} bytes: {in_use} of {MEMORY_BYTES_MAX} in use",
            )
        is_large = byte_count >= MAPPABLE_BYTES_MIN
        view = self.adapter.allocate(byte_count) if is_large else memoryview(bytearray(byte_count))
        memory = self.register(view)
        self._ring_keys.add(memory.rkey)
        self.memory_bytes += byte_count
        return memory

    def register(self, view: memoryview) -> Memory:
        """Let the peers that learn the key write into memory of the application."""
        address = address_of(view)
        region = self.adapter.register(self._pd, view, address, _WRITTEN)
        self._regions[region.rkey] = region
        return Memory(view, address, region.rkey)

    def release(self, memory: Memory) -> None:
        """Take a registration back: no peer writes there any more."""
        region = self._regions.pop(memory.rkey)
        if memory.rkey in self._ring_keys:
            self._ring_keys.remove(memory.rkey)
            self.memory_bytes -= region.length
        self.adapter.deregister(region)

    # -- queue pairs

    def queue_pair(self, link: QueuePairOwner, send_queue: int) -> QueuePair:
        """Make a queue pair in INIT whose completions go to `link`. Raises OSError: ENOMEM."""
        adapter = self.adapter
        qp = adapter.queue_pair(
            kind=QPType.RC,
            pd=self._pd,
            send_cq=self._completions,
            recv_cq=self._completions,
            srq=self._receives,
            cap=QPCap(max_send_wr=send_queue, max_recv_wr=0, max_send_sge=1, max_recv_sge=1),
            sq_sig_all=True,
        )
        self._receives.attached += 1
        qp.modify(QPAttr(qp_state=QPState.INIT, qp_access_flags=_WRITTEN), _INIT, adapter.now_ns())
        self.links[qp.qpn] = link
        return qp

    def hear_stream(self, qpn: int, handler: Callable[[], None]) -> None:
        """Have a compiled stream tell what it leaves to its link."""
        adapter: Any = self.adapter
        adapter.on_stream[qpn] = handler

    def forget(self, qp: QueuePair) -> None:
        """Drop a queue pair."""
        handlers = getattr(self.adapter, "on_stream", None)
        if handlers is not None:
            handlers.pop(qp.qpn, None)
        if self.links.pop(qp.qpn, None) is not None:
            self._receives.attached -= 1
            self.adapter.remove(qp)

    # -- what happens

    def mark(self, changed: Finishable) -> None:
        """See to it that `changed.finish_pass()` runs once the pass under way is over."""
        self._dirty[changed] = None
        # Each plans a pass: one that was planned is lost where a signal handler raises before it.
        self.adapter.call_soon(self._finish_marked)

    def _finish_marked(self) -> None:
        if self._dirty:
            self._finish_passes()

    def _finish_passes(self) -> None:
        dirty, self._dirty = self._dirty, {}
        left = deque(dirty)
        try:
            while left:
                left.popleft().finish_pass()
        finally:
            for changed in left:  # one that raises does not keep the others from theirs
                self.mark(changed)
        self.tell()

    def tell(self) -> None:
        """Notify all calls that wait for this device, on it or on several."""
        if self.watchers:
            for watcher in list(self.watchers):
                watcher()
        self.adapter.notify()

    def _take(self, completions: Iterable[WC]) -> None:
        """Hand the completions of a pass to their links, and let these finish."""
        left = iter(completions)
        try:
            for wc in left:
                link = self.links.get(wc.qp_num)
                if wc.wr_id:
                    self._receives.post(_RECEIVE)
                if link is not None:
                    self._dirty[link] = None
                    if wc.wr_id:
                        link.handle_received(wc)
                    else:
                        link.handle_sent(wc)
        except BaseException:
            self.adapter.call_soon(partial(self._take, left))  # a signal handler may have raised
            raise
        self._finish_passes()


@contextmanager
def attended(contexts: Iterable[DeviceContext]) -> Iterator[None]:
    """Have these devices progress by threads of their own while the caller sleeps elsewhere."""
    begun: list[DeviceContext] = []
    try:
        for context in contexts:
            with context.adapter.lock:
                context.adapter.add_external_waiter()
            begun.append(context)
        yield
    finally:
        for context in begun:
            with context.adapter.lock:
                context.adapter.remove_external_waiter()


DEVICES_VARIABLE: Final = "URDS_RSOCKET_DEVICES"
DEVICES_DEFAULT: Final = "shm0,tcp0"
LOOK_US: Final = 10
EXIT_LINGER_S: Final = 5.0  # how long the end of the process waits for what was sent
_NS: Final = 1_000_000_000


class _ProcessDevices:
    """What the rsockets of this process have opened; a forked child begins anew."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Have opened nothing."""
        self.lock = renewed(threading.Lock())
        self.opened: list[DeviceContext] = []
        self.used: list[DeviceContext] | None = None  # those of `use`


_process = _ProcessDevices()


def names() -> list[str]:
    """Return the names of the devices in the order in which they are tried."""
    only = os.environ.get(DEVICE_VARIABLE)
    listed = os.environ.get(DEVICES_VARIABLE) or only or DEVICES_DEFAULT
    return [name.strip() for name in listed.split(",") if name.strip()]


def contexts() -> list[DeviceContext]:
    """Return this process's devices, opened now if need be. Raises OSError: ENODEV."""
    if _process.used is not None:
        return _process.used
    with _process.lock:
        wanted = names()
        if not wanted:
            raise OSError(errno.ENODEV, f"{DEVICES_VARIABLE} names no device")
        known = {context.name: context for context in _process.opened}
        for name in wanted:
            if name not in known:
                known[name] = DeviceContext(find_device(name).open_adapter())
                _process.opened.append(known[name])
        return [known[name] for name in wanted]


@contextmanager
def use(*adapters: Adapter) -> Iterator[list[DeviceContext]]:
    """Let sockets made meanwhile use these adapters: simulated ones, or a second context.

    The caller closes the adapters. Not for several threads at once.
    """
    before, used = _process.used, [DeviceContext(adapter) for adapter in adapters]
    _process.used = used
    try:
        yield used
    finally:
        _process.used = before


def wait(
    devices: Sequence[DeviceContext], is_ready: Callable[[], bool], timeout_s: float | None
) -> bool:
    """Wait until `is_ready()` or the time is over; return what it said last.

    The caller's own thread makes one device progress. Several progress by themselves meanwhile,
    and each change on one of them lets the caller ask again. Call it without locks; `is_ready`
    only reads, for it may be called with the lock of one device held, or with none.
    """
    if is_ready():
        return True
    if len(devices) == 1:
        adapter = devices[0].adapter
        if timeout_s != 0 and _busy_poll(adapter, is_ready):
            return True
        timeout_ns = None if timeout_s is None else max(0, int(timeout_s * _NS))
        return adapter.wait(is_ready, timeout_ns)
    return _wait_for_several(devices, is_ready, timeout_s)


def _busy_poll(adapter: Adapter, is_ready: Callable[[], bool]) -> bool:
    """Make the device progress without sleeping for as long as `polling_time` says.

    The first look is the wait's own, and takes about as long as the default.
    """
    polling_us = settings.current().polling_time - LOOK_US
    if polling_us <= 0:
        return False
    end_ns = time.monotonic_ns() + polling_us * 1000
    while time.monotonic_ns() < end_ns:
        adapter.progress()
        if is_ready():
            return True
    return False


def _wait_for_several(
    devices: Sequence[DeviceContext], is_ready: Callable[[], bool], timeout_s: float | None
) -> bool:
    for device in devices:
        device.adapter.progress()
    changed = threading.Event()
    for device in devices:
        with device.adapter.lock:
            device.watchers.add(changed.set)
    end_s = None if timeout_s is None else time.monotonic() + timeout_s
    try:
        with attended(devices):
            return wait_for_changes(changed, is_ready, end_s)
    finally:
        for device in devices:
            with device.adapter.lock:
                device.watchers.discard(changed.set)


def wait_for_changes(
    changed: threading.Event,
    is_ready: Callable[[], bool],
    end_s: float | None,
    pause_s: float | None = None,
) -> bool:
    """Ask at each change, and every `pause_s`, until `is_ready()` or `end_s`; return its answer."""
    while not is_ready():
        left_s = pause_s
        if end_s is not None:
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                return False
            left_s = left_s if pause_s is None else min(left_s, pause_s)
        changed.wait(left_s)
        changed.clear()
    return True


def _close_all() -> None:
    """Let what was sent leave, for a while, then close the devices."""
    end_s = time.monotonic() + EXIT_LINGER_S
    for device in _process.opened:
        with device.adapter.lock:
            for link in list(device.links.values()):
                link.close()
        wait([device], partial(not_, device.leaving), max(0.0, end_s - time.monotonic()))
        device.adapter.close()
    _process.opened.clear()


def _forget_in_child() -> None:
    """Leave everything to the parent: a child opens devices of its own."""
    for device in _process.opened:
        device.is_abandoned = True
    _process.begin()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget_in_child)
