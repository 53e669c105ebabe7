"""One open device as all rsockets of a process share it.

The original makes a queue pair, a completion queue, a channel with its descriptor and a receive
queue for each socket, and asks each of them when it waits. Here all sockets of a device share one
completion queue, which hands each completion to its link at once, one queue of receives, one
descriptor and whoever drives the device; what a socket costs is its queue pair and its window.
Source: rsocket.md 18, rules for connections.

Everything here needs the adapter's lock.
"""

import ctypes
import errno
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from urds.rsocket.stream import Memory
from urds.verbs.engine.completions import CompletionQueue
from urds.verbs.engine.keys import Region
from urds.verbs.engine.numbers import AccessFlag, QPAttrMask, QPState, QPType
from urds.verbs.engine.queue_pair import QPAttr, QPCap, QueuePair
from urds.verbs.engine.receives import SharedReceiveQueue
from urds.verbs.engine.work import WC, RecvWR
from urds.verbs.providers.base import Adapter

if TYPE_CHECKING:
    from urds.rsocket.link import Link

RECEIVES: Final = 1024  # each goes back at once; more are never taken at one time
MEMORY_BYTES_MAX: Final = 1 << 30  # of the windows of all sockets
MAPPABLE_BYTES_MIN: Final = 1 << 16  # smaller windows are not worth a device's own memory
_WRITTEN: Final = AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_WRITE
_RECEIVE: Final = RecvWR(wr_id=1)
_INIT: Final = QPAttrMask.STATE | QPAttrMask.PKEY_INDEX | QPAttrMask.PORT | QPAttrMask.ACCESS_FLAGS


class Settling(Protocol):
    """What has something to do once the engine call under way is over."""

    def settle(self) -> None:
        """Do it; the adapter's lock is held."""


@dataclass(slots=True)
class OpeningStats:
    """What happened on one device since it was opened."""

    connects: int = 0
    accepts: int = 0
    refused_private_data: int = 0  # requests that are none of an rsocket
    cut_links: int = 0  # peers that broke the protocol
    memory_refused: int = 0  # windows beyond MEMORY_BYTES_MAX


class Opening:
    """A device, opened for rsockets: memory, queue pairs and the way of their completions."""

    def __init__(self, adapter: Adapter) -> None:
        """Take an open device. Raises OSError: EOPNOTSUPP without writes with immediate data."""
        if not adapter.attributes.rdma_with_imm:
            name = adapter.attributes.name
            raise OSError(errno.EOPNOTSUPP, f"{name} lacks rdma_with_imm, which streams need")
        self.adapter = adapter
        self.name = adapter.attributes.name
        self.stats = OpeningStats()
        self.memory_bytes = 0
        self.watchers: set[Callable[[], None]] = set()  # called when something changed
        self.links: dict[int, Link] = {}  # by queue pair
        self.leaving: set[Link] = set()  # closed, and with something still to send
        self.is_abandoned = False  # by a fork: the parent's
        self._pd = object()
        self._regions: dict[int, Region] = {}  # by rkey
        self._windows: set[int] = set()  # those of them that count for `memory_bytes`
        self._dirty: dict[Settling, None] = {}
        self._receives = SharedReceiveQueue(RECEIVES, 1, pd=self._pd)
        self._completions = CompletionQueue(1)
        self._completions.on_push = self._take
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
                f"window of {byte_count} octets: {in_use} of {MEMORY_BYTES_MAX} in use",
            )
        is_large = byte_count >= MAPPABLE_BYTES_MIN
        view = self.adapter.allocate(byte_count) if is_large else memoryview(bytearray(byte_count))
        memory = self.register(view)
        self._windows.add(memory.rkey)
        self.memory_bytes += byte_count
        return memory

    def register(self, view: memoryview) -> Memory:
        """Let the peers that learn the key write into memory of the application."""
        address = ctypes.addressof(ctypes.c_char.from_buffer(view))
        region = self.adapter.keys.register(self._pd, view, address, _WRITTEN)
        self._regions[region.rkey] = region
        return Memory(view, address, region.rkey)

    def release(self, memory: Memory) -> None:
        """Take a registration back: nobody writes there any more."""
        region = self._regions.pop(memory.rkey)
        if memory.rkey in self._windows:
            self._windows.remove(memory.rkey)
            self.memory_bytes -= region.length
        self.adapter.keys.deregister(region)

    # -- queue pairs

    def queue_pair(self, link: "Link", send_queue: int) -> QueuePair:
        """Make a queue pair in INIT whose completions go to `link`. Raises OSError: ENOMEM."""
        adapter = self.adapter
        qp = QueuePair(
            qpn=adapter.new_qpn(),
            qp_type=QPType.RC,
            pd=self._pd,
            send_cq=self._completions,
            recv_cq=self._completions,
            srq=self._receives,
            cap=QPCap(max_send_wr=send_queue, max_recv_wr=0, max_send_sge=1, max_recv_sge=1),
            sq_sig_all=True,
            keys=adapter.keys,
            link=adapter.attributes.link,
        )
        adapter.add(qp)
        self._receives.attached += 1
        qp.modify(QPAttr(qp_state=QPState.INIT, qp_access_flags=_WRITTEN), _INIT, adapter.now_ns())
        self.links[qp.qpn] = link
        return qp

    def forget(self, qp: QueuePair) -> None:
        """Drop a queue pair."""
        if self.links.pop(qp.qpn, None) is not None:
            self._receives.attached -= 1
            self.adapter.remove(qp)

    # -- what happens

    def mark(self, changed: Settling) -> None:
        """See to it that `changed.settle()` runs once the engine call under way is over."""
        if not self._dirty:
            self.adapter.call_soon(self._settle)
        self._dirty[changed] = None

    def _settle(self) -> None:
        dirty, self._dirty = self._dirty, {}
        left = deque(dirty)
        try:
            while left:
                left.popleft().settle()
        finally:
            for changed in left:  # one that raises does not cost the others their turn
                self.mark(changed)
        self.tell()

    def tell(self) -> None:
        """Let all look again who wait for something of this device, on it or on several."""
        if self.watchers:
            for watcher in list(self.watchers):
                watcher()
        self.adapter.notify()

    def _take(self, wc: WC, _solicited: bool) -> bool:
        """Hand a completion to its link; none is ever queued."""
        link = self.links.get(wc.qp_num)
        if wc.wr_id:
            self._receives.post(_RECEIVE)
            if link is not None:
                link.handle_received(wc)
        elif link is not None:
            link.handle_sent(wc)
        if link is not None:
            self.mark(link)
        return True
