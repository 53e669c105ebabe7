"""Peers of RDS over RDMA that say anything, to a node of another process, beside a neighbour.

A `UnknownPeer` is a queue pair on an adapter of the test's own, at an address of its own, with no
core behind it: the test makes its private data, its frames, and where its reads and writes go. A
`Siege` is the victim, the neighbour that talks with it all the time, and the unknown peers.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Any

from tests.rds.transports.rdma.victim import CANARY, GUARD_BYTES, INBOX_PORT, NodeProcess
from tests.support.places import take_subnet
from tests.support.waiting import BUSY_S, wait_until
from urds.rds.constants import CONGESTION_MAP_BYTES, HeaderFlag
from urds.rds.transports.rdma.attempts import port_of
from urds.rds.transports.rdma.device import RdmaDevice
from urds.rds.transports.rdma.frames import FRAGMENT_BYTES, MessageHeader
from urds.rds.wire.header import HEADER_BYTES, Header
from urds.rds.wire.private_data import ConnectData
from urds.verbs.device import find_device
from urds.verbs.engine.numbers import AccessFlag, QPState, SendFlag, WCOpcode, WCStatus, WROpcode
from urds.verbs.engine.work import SGE, WC, RecvWR, SendWR
from urds.verbs.providers.base import (
    ConnectionEventKind,
    ConnectParameters,
    Listener,
    PortSpace,
    VerbsConnection,
    VerbsConnectionEvent,
)

# `udp0` is no device that RDS uses unless asked to: it is besieged by hand.
DEVICES = os.environ.get("URDS_RDMA_DEVICES_BESIEGED", "shm0 tcp0").split()
RECEIVES = 64
SCRATCH_BYTES = 1 << 16
FRAME_BYTES_MAX = HEADER_BYTES + FRAGMENT_BYTES
REPEATED = int(HeaderFlag.RETRANSMITTED)
ACK_REQUIRED = int(HeaderFlag.ACK_REQUIRED)
CONG_BITMAP = int(HeaderFlag.CONG_BITMAP)
_KEPT: list[socket.socket] = []  # the locks of subnets, for as long as this process lives


def subnet() -> Callable[[int], str]:
    """Return the addresses of hosts 1 to 254 of a subnet that no other test process uses."""
    prefix, lock = take_subnet(16, 16)
    _KEPT.append(lock)
    return lambda host: f"{prefix}.{host}"


def message(
    payload: bytes,
    *,
    sequence: int = 1,
    source_port: int = 7,
    target_port: int = INBOX_PORT,
    flags: int = 0,
    extension: bytes = b"",
    length: int | None = None,
    acknowledgement: int = 0,
    credit: int = 0,
) -> list[bytes]:
    """Return the frames of one message, in order but for what is given; `length` is announced."""
    header = MessageHeader(
        sequence=sequence,
        payload_bytes=len(payload) if length is None else length,
        source_port=source_port,
        target_port=target_port,
        flags=flags,
        extension=extension,
    )
    starts = range(0, max(1, len(payload)), FRAGMENT_BYTES)
    pieces = [payload[at : at + FRAGMENT_BYTES] for at in starts]
    return [
        header.emit(acknowledgement=acknowledgement, credit=credit, payload=piece)
        for piece in pieces
    ]


def acknowledgement(sequence: int, credit: int = 0) -> bytes:
    """Return a frame that only acknowledges."""
    return MessageHeader().emit(acknowledgement=sequence, credit=credit)


def congestion_map(data: bytes = bytes(CONGESTION_MAP_BYTES)) -> list[bytes]:
    """Return the frames of a congestion map."""
    return message(data, sequence=0, source_port=0, target_port=0, flags=CONG_BITMAP)


@dataclass(frozen=True, slots=True)
class Ended:
    """How one request of an unknown peer ended."""

    number: int
    status: WCStatus


class UnknownPeer:
    """One queue pair whose every word a test makes; as a link is for its device."""

    def __init__(self, device: RdmaDevice, address: str, victim: str, receives: int) -> None:
        self.device = device
        self.address = address
        self.victim = victim
        self.frames: list[bytes] = []  # that came
        self.ended: list[Ended] = []
        self.ends: list[ConnectionEventKind] = []
        self.answer: bytes | None = None  # private data, from when the connection stands
        self.rejection = b""
        self.receives = receives  # that are posted, and posted again; 0: it never reads
        self.answers_with = b""  # to requests of the victim, once it listens
        self.posted = 0  # requests
        self._numbers = itertools.count(1 << 32)
        self._connection: VerbsConnection | None = None
        self._listener: Listener | None = None
        self._memory = bytearray(RECEIVES * FRAME_BYTES_MAX + SCRATCH_BYTES)
        self.scratch = memoryview(self._memory)[RECEIVES * FRAME_BYTES_MAX :]
        with device.adapter.lock:
            self._region = device.adapter.register(
                device.domain, memoryview(self._memory), 0, AccessFlag.LOCAL_WRITE
            )
            self._begin()

    def _begin(self) -> None:
        self.qp = self.device.queue_pair(
            self,  # type: ignore[arg-type]  # its `take`
            peer=ip_address(self.victim),
            send_ring=4096,
            receive_ring=RECEIVES,
        )
        for slot in range(self.receives):
            self._post_receive(slot)

    def _post_receive(self, slot: int) -> None:
        assert self.qp.srq is not None
        sge = SGE(slot * FRAME_BYTES_MAX, FRAME_BYTES_MAX, self._region.lkey)
        self.qp.srq.post(RecvWR(slot, [sge]))

    # -- connecting

    def data(self, **changes: Any) -> ConnectData:
        """Return private data that are in order but for `changes`; Linux's, without a mark."""
        good = ConnectData(source=ip_address(self.address), target=ip_address(self.victim))
        return replace(good, **changes)

    def connect(self, private_data: bytes) -> None:
        """Ask for a connection."""
        adapter = self.device.adapter
        with adapter.lock:
            self._connection = adapter.connect(
                self.qp,
                (self.victim, port_of(ip_address(self.victim), self.device)),
                PortSpace.TCP,
                ConnectParameters(private_data=private_data),
                on_event=self._handle_event,
                local=(self.address, 0),
            )

    def listen(self, private_data: bytes) -> None:
        """Accept every request of the victim, with these private data."""
        self.answers_with = private_data
        adapter = self.device.adapter
        with adapter.lock:
            self._listener = adapter.listen(
                (self.address, port_of(ip_address(self.address), self.device)),
                PortSpace.TCP,
                backlog=16,
                on_event=self._handle_request,
            )

    def _handle_request(self, event: VerbsConnectionEvent) -> None:
        if event.kind is ConnectionEventKind.REQUEST:
            event.connection.on_event = self._handle_event
            self.device.adapter.call_soon(lambda: self._accept(event.connection))

    def _accept(self, connection: VerbsConnection) -> None:
        if self._connection is not None:
            self._connection.close()
            self.device.forget(self.qp)
            self._begin()
        self._connection = connection
        connection.accept(self.qp, ConnectParameters(private_data=self.answers_with))

    def _handle_event(self, event: VerbsConnectionEvent) -> None:
        if event.connection is not self._connection:
            return
        if event.kind is ConnectionEventKind.ESTABLISHED:
            self.answer = event.parameters.private_data
        else:
            self.ends.append(event.kind)
            self.rejection = event.parameters.private_data

    @property
    def is_up(self) -> bool:
        """Tell whether the connection stood once."""
        return self.answer is not None

    @property
    def is_over(self) -> bool:
        """Tell whether it has ended, by either side."""
        return bool(self.ends)

    # -- what it says

    def send(self, *frames: bytes) -> list[int]:
        """Send frames of whatever bytes; return the numbers of the requests."""
        return [self.post(WROpcode.SEND, data=data) for data in frames]

    def post(
        self,
        opcode: WROpcode,
        *,
        data: bytes = b"",
        cookie: int = 0,
        offset: int = 0,
        length: int = 0,
        **more: Any,
    ) -> int:
        """Post one request; `offset` counts from where a cookie says that its region begins.

        `length` bytes of a read or atomic go to the front of `scratch`.
        """
        number = next(self._numbers)
        wr = SendWR(number, opcode, send_flags=SendFlag.SIGNALED, **more)
        if length:
            wr.sg = [SGE(RECEIVES * FRAME_BYTES_MAX, length, self._region.lkey)]
        else:
            wr.data = data
        wr.set_wr_rdma(cookie & 0xFFFFFFFF, (cookie >> 32) + offset & (1 << 64) - 1)
        adapter = self.device.adapter
        with adapter.lock:
            if self.qp.state is not QPState.RTS:
                self.ended.append(Ended(number, WCStatus.WR_FLUSH_ERR))
                return number
            self.qp.post_send(wr, adapter.now_ns())
            self.posted += 1
            adapter.progress_qp(self.qp)
        return number

    def status_of(self, number: int) -> WCStatus | None:
        """Return how a request ended; None while it has not."""
        return next((one.status for one in self.ended if one.number == number), None)

    def take(self, completions: list[WC]) -> None:
        """Take what completed in a pass."""
        for wc in completions:
            if wc.wr_id >= 1 << 32:
                self.ended.append(Ended(wc.wr_id, wc.status))
            elif wc.status is WCStatus.SUCCESS and wc.opcode is WCOpcode.RECV:
                start = wc.wr_id * FRAME_BYTES_MAX
                self.frames.append(bytes(self._memory[start : start + wc.byte_len]))
                if self.receives:
                    self._post_receive(wc.wr_id)

    def handle_refused(self, *, wrong_key: bool) -> None:
        """Pass over what the victim may not do: the end tells."""

    def cut_after_fault(self) -> None:
        """Cut nothing: a mistake of ours here ends the thread, and so the test."""

    def headers(self) -> list[Header]:
        """Return the headers of the frames that came."""
        return [Header.parse(frame[:HEADER_BYTES]) for frame in list(self.frames)]

    # -- how it goes

    def disconnect(self) -> None:
        """End the connection in order."""
        with self.device.adapter.lock:
            if self._connection is not None:
                self._connection.disconnect()

    def vanish(self) -> None:
        """Drop the connection and the queue pair without a word. Safe twice."""
        with self.device.adapter.lock:
            listener, self._listener = self._listener, None
            if listener is not None:
                listener.close()
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()
            self.device.forget(self.qp)
            if self._region is not None:
                self.device.adapter.deregister(self._region)
                self._region = None  # type: ignore[assignment]  # over


class Siege:
    """A victim and its neighbour in processes of their own, and unknown peers."""

    def __init__(self, name: str, **settings: Any) -> None:
        self.name = name
        self._address = subnet()
        self._hosts = itertools.count(10)
        self.victim = NodeProcess(name, self._address(1), **settings)
        self.neighbour = NodeProcess(name, self._address(2), **settings)
        self.device = RdmaDevice(find_device(name).open_adapter())
        self._unknown_peers: list[UnknownPeer] = []
        self._before: dict[str, int] = {}
        self.others_are_well()

    # -- unknown peers

    def address(self) -> str:
        """Return an unused address."""
        number = next(self._hosts)
        if number == 254:
            self._address, self._hosts = subnet(), itertools.count(10)
        return self._address(number)

    def unknown_peer(self, address: str | None = None, *, receives: int = RECEIVES) -> UnknownPeer:
        """Return one at an address of its own, without a connection."""
        made = UnknownPeer(self.device, address or self.address(), self.victim.address, receives)
        self._unknown_peers.append(made)
        return made

    def connected(
        self, address: str | None = None, *, receives: int = RECEIVES, **changes: Any
    ) -> UnknownPeer:
        """Return an unknown peer thatse connection stands."""
        unknown_peer = self.unknown_peer(address, receives=receives)
        unknown_peer.connect(unknown_peer.data(**changes).emit())
        self.until(lambda: unknown_peer.is_up or unknown_peer.is_over)
        assert unknown_peer.is_up, (unknown_peer.ends, unknown_peer.rejection)
        return unknown_peer

    def returned(self, address: str, **changes: Any) -> UnknownPeer:
        """Return an unknown peer that has connected once more, as often as it took."""
        for _ in range(2000):
            unknown_peer = self.unknown_peer(address)
            unknown_peer.connect(unknown_peer.data(**changes).emit())
            self.until(lambda one=unknown_peer: one.is_up or one.is_over)  # type: ignore[misc]  # bound
            if unknown_peer.is_up:
                return unknown_peer
            unknown_peer.vanish()
            time.sleep(0.002)
        raise AssertionError(f"{address} is not let in any more")

    def dismiss(self) -> None:
        """Have all unknown peers vanish, and see that the victim keeps nothing of them."""
        for unknown_peer in self._unknown_peers:
            unknown_peer.vanish()
        self._unknown_peers.clear()
        self.victim.ask("take_back")
        self.until(lambda: self.victim.ask("kept")["links"] <= 1)
        assert not self.victim.ask("counters")["control_faults"], "see what the process wrote"

    # -- judging

    until = staticmethod(wait_until)

    def until_cut(self, unknown_peer: UnknownPeer, reason: str = "") -> None:
        """Wait until the victim has cut a connection, and see that it said why."""
        self.until(lambda: unknown_peer.is_over)
        if reason:
            lines: list[str] = []
            self.until(lambda: bool(lines.extend(self.victim.ask("logged")) or _has(lines, reason)))

    @contextlib.contextmanager
    def counted(self, **by: int) -> Iterator[None]:
        """See that counters of the victim rise by so much within a block."""
        before = self.victim.ask("counters")
        yield
        due = {name: before[name] + rise for name, rise in by.items()}
        end_s = time.monotonic() + BUSY_S
        while (now := self.victim.ask("counters")) and any(now[one] < due[one] for one in due):
            assert time.monotonic() < end_s, {one: now[one] - before[one] for one in due}
        assert {one: now[one] - before[one] for one in due} == by

    def others_are_well(self, count: int = 5) -> list[int]:
        """Check that neighbours talk as before, on the connection that they had; their times."""
        took_ns: list[int] = self.neighbour.ask(
            "talk", target=self.victim.address, count=count, payload_bytes=5000
        )
        return took_ns

    def untouched(self, number: int, data: bytes) -> None:
        """Check a region's bytes, and the canaries before and behind it."""
        memory = bytes.fromhex(self.victim.ask("content", number=number))
        guard = CANARY * GUARD_BYTES
        assert memory == guard + data + guard

    def close(self) -> None:
        """End everything."""
        for unknown_peer in self._unknown_peers:
            unknown_peer.vanish()
        self.device.close()
        self.victim.close()
        self.neighbour.close()


def _has(lines: list[str], reason: str) -> bool:
    return any(reason in line for line in lines)
