"""One side of a connection of RDS over RDMA in memory, and the peer that a case plays.

Path, link and courier are the product's, over a compiled engine; the channel leads to the engine of
the peer, which takes frames and says what a case has it say. Nothing runs by itself: `settle` makes
passes until nothing moves any more.
"""

from __future__ import annotations

import os
import select
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv4Address
from threading import RLock
from typing import Any, Final

import urds_native

from tests.parity.sides import UNCOMPARED, Outcome
from urds.common.passed_files import sealed_file
from urds.common.types import IPAddress
from urds.rds.constants import HeaderFlag
from urds.rds.control.rdma_events import Attach, PeerKey
from urds.rds.plane.contract import (
    GiveUp,
    Limits,
    LingerEnded,
    LocalMapChanged,
    Mailbox,
    MailboxSettings,
    Operation,
    Plane,
    Resumed,
)
from urds.rds.plane.python.counters import Counters
from urds.rds.transports.rdma.core import CoreLimits
from urds.rds.transports.rdma.counters import RdmaCounters
from urds.rds.transports.rdma.device import RdmaDevice
from urds.rds.transports.rdma.frames import LONG_FRAGMENT_BYTES
from urds.rds.transports.rdma.link import Link
from urds.rds.transports.rdma.path import Acknowledgements, RdmaPath
from urds.rds.transports.rdma.receiving import ACK_DELAY_NS
from urds.rds.wire.frame_format import FrameFormat
from urds.rds.wire.header import HEADER_BYTES, Header
from urds.verbs.engine.attributes import LinkTraits, QPAttr, QPCap
from urds.verbs.engine.numbers import AccessFlag, QPAttrMask, QPState, QPType, WCOpcode, WCStatus
from urds.verbs.engine.work import SGE, AddressVector, RecvWR, SendWR
from urds.verbs.providers.base import DeviceAttributes
from urds.verbs.providers.shm.couriers import make_courier

MS: Final = 1_000_000
HERE, THERE = IPv4Address("127.0.86.1"), IPv4Address("127.0.86.2")
KEY: Final = PeerKey(THERE, 0)
LINK: Final = LinkTraits(32_768, lossless=True, acks_wait=True)
TARGET_KEY: Final = 0x1234  # of memory of the peer, at
TARGET_ADDRESS: Final = 0x10000
TARGET_BYTES: Final = 4096
# How often a side acknowledges, and how often it finds its ring full, follows from how much it
# reads at once and where its frames end.
_UNCOMPARED: Final = {
    *UNCOMPARED,
    *("ib_ack_sent", "ib_ack_send_delayed", "ib_ack_send_piggybacked", "ib_tx_ring_full"),
}
_CHANNEL_BYTES: Final = 2_625_536
_FRAME_BYTES: Final = HEADER_BYTES + LONG_FRAGMENT_BYTES
_RECEIVES: Final = 64  # of the peer: more than a side has frames under way
_PASSES_MAX: Final = 400
_ALL_ACCESS: Final = AccessFlag(15)
_M: Final = QPAttrMask
_STEPS: Final = (
    (
        QPState.RTR,
        _M.AV | _M.PATH_MTU | _M.DEST_QPN | _M.RQ_PSN | _M.MAX_DEST_RD_ATOMIC | _M.MIN_RNR_TIMER,
    ),
    (QPState.RTS, _M.SQ_PSN | _M.MAX_QP_RD_ATOMIC | _M.RETRY_CNT | _M.RNR_RETRY | _M.TIMEOUT),
)


class Adapter:
    """What a link asks of a device, over a compiled engine; passes are made by `finish`."""

    rdma_courier = make_courier

    def __init__(self, gid: bytes) -> None:
        self.attributes = DeviceAttributes(name="shm0", provider="shm", link=LINK)
        self.lock = RLock()
        self.gid = gid
        self.on_events: Callable[[list[Any]], None] = lambda events: None
        self.on_stream: dict[int, Callable[[], None]] = {}
        self.queue_pairs: list[Any] = []
        self.loop = self
        self._set = select.epoll()
        self._doorbell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.channel_engine: Any = urds_native.ShmEngine(
            LINK, gid=gid, set=self._set.fileno(), doorbell=self._doorbell
        )
        engine = self.channel_engine
        self.completion_queue = engine.completion_queue
        self.shared_receive_queue = engine.shared_receive_queue
        self.register, self.deregister = engine.register, engine.deregister
        self._soon: deque[Callable[[], None]] = deque()

    def serve_by_plane(self) -> int:
        return self._doorbell

    def now_ns(self) -> int:
        return 0  # nothing here has a timeout

    def add_external_waiter(self) -> None:
        """Do nothing: no thread waits."""

    def queue_pair(self, **arguments: Any) -> Any:
        qpn = 16 + len(self.queue_pairs)
        self.queue_pairs.append(self.channel_engine.queue_pair(qpn=qpn, **arguments))
        return self.queue_pairs[-1]

    def remove(self, qp: Any) -> None:
        self.on_stream.pop(qp.qpn, None)
        qp.close()

    def progress_qp(self, _: Any) -> None:
        self.channel_engine.flush()

    def call_soon(self, call: Callable[[], None]) -> None:
        self._soon.append(call)

    def is_due(self) -> bool:
        """Return whether something waits for the next pass."""
        return bool(self._soon)

    def finish(self) -> None:
        """Do what the engine leaves to its device, as `NativeShmAdapter` does."""
        engine = self.channel_engine
        with self.lock:
            for kind, *values in engine.take_channel_events():
                handler = self.on_stream.get(values[0]) if kind == "stream" else None
                if handler is not None:
                    handler()
            engine.release()
            for _ in range(len(self._soon)):
                self._soon.popleft()()
            engine.feed_sinks()
            self.on_events(engine.take_events())

    def close(self) -> None:
        self.channel_engine.leave_plane()
        self.channel_engine.close()
        self._set.close()
        os.close(self._doorbell)


class Peer:
    """The other end: a queue pair that takes frames, and what a case has it say."""

    def __init__(self, gid: bytes) -> None:
        self.gid = gid
        self.engine: Any = urds_native.ShmEngine(LINK, gid=gid)
        self.frames: list[bytes] = []  # that came and were not looked at
        self.memory = bytearray(TARGET_BYTES)
        self._domain = object()
        self._completions = self.engine.completion_queue(8192)
        self._room = bytearray(_RECEIVES * _FRAME_BYTES)
        self._view = memoryview(self._room)
        register = self.engine.register
        self._region = register(self._domain, self._view, 0, AccessFlag.LOCAL_WRITE)
        self._target = register(
            self._domain, memoryview(self.memory), TARGET_ADDRESS, _ALL_ACCESS, key=TARGET_KEY
        )
        self._qpns = 0
        self.qp: Any = None

    def renew(self) -> None:
        """Have a new queue pair in INIT, with its receives."""
        if self.qp is not None:
            self.look()
            self.qp.close()
            self.qp.discard_completions()
        self._qpns += 1
        self.qp = self.engine.queue_pair(
            qpn=100 + self._qpns,
            kind=QPType.RC,
            pd=self._domain,
            send_cq=self._completions,
            recv_cq=self._completions,
            cap=QPCap(4096, _RECEIVES, 1, 1, 0),
            sq_sig_all=True,
        )
        attributes = QPAttr(qp_state=QPState.INIT, qp_access_flags=_ALL_ACCESS)
        self.qp.modify(attributes, _M.STATE | _M.PKEY_INDEX | _M.PORT | _M.ACCESS_FLAGS, 0)
        for place in range(_RECEIVES):
            self._post(place)

    def _post(self, place: int) -> None:
        piece = SGE(place * _FRAME_BYTES, _FRAME_BYTES, self._region.lkey)
        self.qp.post_recv(RecvWR(place, [piece]), 0)

    def say(self, frame: bytes) -> None:
        """Send a frame."""
        self.qp.post_send(SendWR(data=frame), 0)

    def look(self) -> None:
        """Take what has come, and acknowledge it as a device does."""
        self.engine.progress()
        while found := self._completions.poll(64):
            for wc in found:
                if wc.status is WCStatus.SUCCESS and wc.opcode is WCOpcode.RECV:
                    start = wc.wr_id * _FRAME_BYTES
                    self.frames.append(bytes(self._view[start : start + wc.byte_len]))
                    self._post(wc.wr_id)
        self.engine.acknowledge()


class Messages:
    """Messages of frames: a frame holds whole ones, one behind the other, or a part of one."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._header = Header()
        self.acknowledged = 0  # that was named last
        self.map = b""  # that came last

    def read(self, data: bytes) -> list[tuple[Header, bytes]]:
        """Return what a frame ends, but for maps and what only acknowledges."""
        found: list[tuple[Header, bytes]] = []
        while data:
            header, payload = Header.parse(data[:HEADER_BYTES]), data[HEADER_BYTES:]
            self.acknowledged = header.ack or self.acknowledged
            if not self._parts:
                self._header = header
            due = self._header.payload_bytes - sum(map(len, self._parts))
            self._parts.append(payload[:due])
            data = payload[due:]
            if len(payload) >= due:
                found.append((self._header, b"".join(self._parts)))
                self._parts = []
        return [self._plain(*one) for one in found if not self._is_apart(*one)]

    def _is_apart(self, header: Header, payload: bytes) -> bool:
        if header.flags == HeaderFlag.CONG_BITMAP:
            self.map = payload
            return True
        return not (header.source_port or header.target_port)

    def _plain(self, header: Header, payload: bytes) -> tuple[Header, bytes]:
        return replace(header, ack=0, checksum=0), payload

    def end(self) -> None:
        """Forget what a connection has left, whose acknowledgements may have been under way."""
        self._parts = []
        self.acknowledged = 0


class Side:
    """A path with two sockets, and its peer."""

    def __init__(
        self, make_plane: Callable[..., Plane], limits: Limits, core_limits: CoreLimits
    ) -> None:
        self.now_ns = 1_000 * MS
        self.plane: Any = make_plane(
            limits=limits, resolve=self.resolve, clock_ns=lambda: self.now_ns
        )
        self.lock, self.counters, self.message_counters = RLock(), RdmaCounters(), Counters()
        self.acknowledgements = Acknowledgements(lambda: self.now_ns, lambda: None)
        self.adapter = Adapter(bytes([0xFD, 1]) + bytes(14))
        self.device = RdmaDevice(self.adapter)  # type: ignore[arg-type]  # as far as links use one
        self.peer = Peer(bytes([0xFD, 2]) + bytes(14))
        self._ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        file = sealed_file("urds-test-channel", _CHANNEL_BYTES)
        for one, other, end in zip(
            (self.adapter, self.peer), (self.peer, self.adapter), self._ends, strict=True
        ):
            engine = one.channel_engine if isinstance(one, Adapter) else one.engine
            engine.attach(other.gid, file, end.fileno(), one is self.adapter)
        os.close(file)
        self.path = RdmaPath(
            self, HERE, KEY, limits=core_limits, sequence_first=1, may_answer_ping=True
        )
        self.mailboxes: dict[str, Mailbox] = {}
        self.operations: list[Operation] = []
        self.happened: list[object] = []
        self.descriptors: dict[str, int] = {}
        self.is_cut = False  # the peer has broken the protocol
        self.has_tables = False  # whether `seen` has them; it takes the numbers back
        self.sequence_seen = 0  # the highest number that has come to the peer
        self._has_ended = False  # the connection, since the last look
        self._has_waited = False  # so long that all is acknowledged
        self._core_limits = core_limits
        self._connections = 0
        self._messages = Messages()

    # -- what all paths of a node share

    def is_inside(self) -> bool:
        return False

    def want(self, path: RdmaPath) -> None:
        self.happened.append("wanted")

    def note_key_used(self, local: IPAddress, port: int, key: int) -> None:
        self.happened.append(("key used", port, key))

    def report_protocol_error(
        self, path: RdmaPath, link: Link, reason: str, wrong_key: bool
    ) -> None:
        self.happened.append((reason, wrong_key))
        self.is_cut = True

    def resolve(self, mailbox: Mailbox, peer: IPAddress) -> None:
        mailbox.route(peer, self.path.outside)

    # -- calls of a case

    def attempt(self, call: Callable[[Side], object]) -> Outcome:
        """Make a call; return what it gave as a plain value."""
        try:
            return Outcome(call(self))
        except OSError as failure:
            return Outcome(failure.strerror, type(failure).__name__, failure.errno or 0)

    def bind(self, name: str, port: int, settings: MailboxSettings) -> None:
        self.mailboxes[name] = self.plane.mailbox(local=HERE, port=port, settings=settings)

    def unbind(self, name: str, linger_ns: int | None) -> None:
        self.descriptors.pop(name, None)
        self.mailboxes.pop(name).close(linger_ns)

    def show(self, name: str) -> None:
        """Have a mailbox show its state on a descriptor."""
        self.descriptors[name] = self.mailboxes[name].fileno()

    def attach(self, frame_format: int, acknowledged: int) -> None:
        self._connections += 1
        with self.adapter.lock:
            link = Link(
                self.device,
                self.path,
                self._connections,
                send_ring=self._core_limits.send_ring,
                receive_ring=self._core_limits.receive_ring,
            )
        self.peer.renew()
        queue_pair = self.adapter.queue_pairs[-1]
        _lead(queue_pair, self.peer.gid, self.peer.qp.qpn)
        _lead(self.peer.qp, self.adapter.gid, queue_pair.qpn)
        agreed = Attach(
            KEY,
            self._connections,
            acknowledged,
            0,
            is_urds_peer=True,
            frame_format=FrameFormat(frame_format),
        )
        self.path.attach(link, agreed)

    def detach(self) -> None:
        self.is_cut = False
        self.path.detach()
        self.peer.look()
        self._has_ended = True

    def send(
        self,
        name: str,
        buffers: list[bytes],
        target: tuple[str, int],
        *,
        extension: bytes = b"",
        operations: tuple[Operation, ...] = (),
    ) -> int:
        self.operations += operations
        return self.mailboxes[name].send(
            buffers, target, wait_ns=0, extension=extension, operations=operations
        )

    def take_all(self, name: str) -> list[object]:
        """Take what is there for a socket, and what comes because there is room then."""
        taken: list[object] = []
        while True:
            before = len(taken)
            while (item := self.mailboxes[name].receive(wait_ns=0, notices_max=64)) is not None:
                taken.append(item)
            if len(taken) == before:
                return taken
            self.settle()

    def spend(self, time_ns: int) -> None:
        """Let time pass."""
        self.now_ns += time_ns
        self._has_waited |= time_ns > ACK_DELAY_NS

    def has_courier(self) -> bool:
        """Tell whether a courier has the numbers of the connection."""
        courier = self.path.lock.courier
        return courier is not None and courier.is_given

    # -- passes

    def settle(self) -> None:
        """Make passes until nothing moves."""
        moved = None
        for _ in range(_PASSES_MAX):
            before, moved = moved, self._moved()
            if moved == before:
                return
            self.look()
            self.peer.look()
        raise AssertionError("no end of passes")

    def _moved(self) -> object:
        return (
            self.adapter.channel_engine.channel_counters()[:2],
            self.peer.engine.channel_counters()[:2],
            len(self.happened),
        )

    def look(self) -> None:
        """Make one pass of the plane, of the device, and of the control thread."""
        self.plane.progress()
        self.adapter.channel_engine.progress()
        self.adapter.finish()
        with self.lock:
            due, _ = self.acknowledgements.take(self.now_ns)
        for path in due:
            path.acknowledge()
        for event in self.plane.help(0):
            self._take(event)
        self.adapter.finish()

    def _take(self, event: object) -> None:
        """Do what the control thread does of an event."""
        if isinstance(event, LocalMapChanged):
            self.path.send_map()
        elif isinstance(event, Resumed):
            self.path.resume()
        elif isinstance(event, GiveUp):
            self.path.give_up(event.mailbox)
        elif isinstance(event, LingerEnded):
            self.happened.append(self.path.end_linger(event.mailbox))
        else:
            raise AssertionError(f"what is {event}?")

    # -- what is compared

    def read(self) -> list[bytes]:
        """Return the frames that came out since the last look."""
        taken, self.peer.frames = self.peer.frames, []
        return taken

    def seen(self, frames: list[bytes]) -> dict[str, object]:
        """Return what has happened since the last look, and how things stand."""
        messages = [one for frame in frames for one in self._messages.read(frame)]
        if self._has_ended:
            self._messages.end()
            self._has_ended = False
        numbers = (header.sequence for header, _ in messages)
        self.sequence_seen = max(self.sequence_seen, *numbers, 0)
        happened, self.happened = self.happened, []
        has_waited, self._has_waited = self._has_waited, False
        return {
            "messages": messages,
            "map": self._messages.map,
            "happened": happened,
            "memory": bytes(self.peer.memory),
            "operations": [(one.status, _contents(one)) for one in self.operations],
            **({"acknowledged": self._messages.acknowledged} if has_waited else {}),
            **(self._tables() if self.has_tables else {}),
            **{f"poll {name}": readiness(one) for name, one in self.descriptors.items()},
        }

    def _tables(self) -> dict[str, object]:
        """Look at all that is told of; the numbers are the core's for it."""
        path = self.path
        rows = (path.unsent_rows(), path.sent_rows(), path.row(), path.activity())
        snapshot = self.plane.snapshot()
        counted = {**_counts(self.counters), **_counts(self.message_counters)}
        counted |= {f"plane {name}": count for name, count in snapshot.counters.items()}
        return {
            "rows": rows,
            "mailboxes": sorted((replace(r, inode=0) for r in snapshot.mailboxes), key=str),
            **{
                name: count
                for name, count in counted.items()
                if name.removeprefix("plane ") not in _UNCOMPARED
            },
        }

    def close(self) -> Outcome:
        """End everything; return how that went."""
        self.path.detach()
        left = self.attempt(lambda side: side.plane.close(0))
        for name in list(self.mailboxes):
            self.attempt(lambda side, name=name: side.unbind(name, 0))
        self.path.outside.close()
        self.adapter.close()
        self.plane.release()
        for end in self._ends:
            end.close()
        return left


def _lead(queue_pair: Any, gid: bytes, qpn: int) -> None:
    """Bring a queue pair in INIT to RTS, as a connection manager does."""
    for state, mask in _STEPS:
        attributes = QPAttr(
            qp_state=state,
            ah_attr=AddressVector(gid),
            dest_qp_num=qpn,
            max_rd_atomic=16,
            max_dest_rd_atomic=16,
            rnr_retry=7,
            min_rnr_timer=1,
        )
        queue_pair.modify(attributes, mask | _M.STATE, 0)


def _counts(record: Any) -> dict[str, int]:
    return {name: getattr(record, name) for name in record.__slots__}


def _contents(operation: Any) -> list[bytes]:
    pieces = getattr(operation, "pieces", None) or (operation.result,)
    return [bytes(piece) for piece in pieces]


def readiness(descriptor: int) -> int:
    """Return what poll(2) says of a descriptor."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN | select.POLLOUT)
    return sum(mask for _, mask in poll.poll(0))
