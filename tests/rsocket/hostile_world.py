"""A peer of rsockets that says anything, over real devices, beside a connection that is in order.

An `UnknownPeer` has a queue pair and its connection, and no stream behind it: the test makes its
private data, its words, and where its writes go. It stands on an opening of its own; the victims
are the two ends of `tests.rsocket.ends`, which have a connection between them already.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from tests.rsocket.ends import WAIT_S, Ends, ends, send_all
from urds.common.types import HostPort
from urds.rsocket.link.devices import DeviceContext
from urds.rsocket.link.stream_link import LinkState, StreamLink, parameters_with
from urds.rsocket.wire.stream import ConnectData, ConnectFlag, Sge
from urds.verbs.device import find_device
from urds.verbs.engine.numbers import WCStatus, WROpcode
from urds.verbs.engine.work import WC, SendWR
from urds.verbs.providers.base import (
    ConnectionEventKind,
    PortSpace,
    VerbsConnection,
    VerbsConnectionEvent,
)
from urds.verbs.providers.sim import SimAdapter

TABLE_ENTRIES = 16
WINDOW_BYTES = 1 << 16
REQUESTS = 4096


class UnknownPeer:
    """One queue pair whose words a test makes: what an opening takes for a link."""

    def __init__(self, context: DeviceContext) -> None:
        self.context = context
        self.words: list[int] = []  # that came
        self.statuses: list[WCStatus] = []  # of requests that completed
        self.ends: list[ConnectionEventKind] = []
        self.peer: ConnectData | None = None  # from when the connection is established
        self.offered = b""  # what the peer's data were read from
        self.is_mute = False  # accepts nothing and rejects nothing
        self._connection: VerbsConnection | None = None
        with context.adapter.lock:
            self.memory = context.allocate(TABLE_ENTRIES * 16 + WINDOW_BYTES)
            self.qp = context.queue_pair(self, REQUESTS)  # type: ignore[arg-type]  # its calls

    # -- what it says

    def data(self, **changes: Any) -> ConnectData:
        """Return private data that are in order but for `changes`."""
        memory = self.memory
        good = ConnectData(
            flags=ConnectFlag.IOMAP | ConnectFlag.URDS,
            credits=384,
            iomap_slots=0,
            target_sgl=Sge(memory.address, memory.rkey, TABLE_ENTRIES),
            data_buffer=Sge(memory.address + TABLE_ENTRIES * 16, memory.rkey, WINDOW_BYTES),
        )
        return replace(good, **changes)

    def connect(self, peer: HostPort, private_data: bytes) -> None:
        """Ask for a connection."""
        adapter = self.context.adapter
        with adapter.lock:
            self._connection = adapter.connect(
                self.qp,
                peer,
                PortSpace.TCP,
                parameters_with(private_data),
                on_event=self._handle_event,
            )

    def listen(self, private_data: Callable[[], bytes], host: str) -> HostPort:
        """Answer one request with private data; return where."""
        adapter = self.context.adapter

        def handle(event: VerbsConnectionEvent) -> None:
            if event.kind is ConnectionEventKind.REQUEST:
                self._connection = event.connection
                event.connection.on_event = self._handle_event
                adapter.call_soon(lambda: self._answer(event.connection, private_data()))

        with adapter.lock:
            listener = adapter.listen((host, 0), PortSpace.TCP, backlog=4, on_event=handle)
            return listener.local

    def _answer(self, connection: VerbsConnection, private_data: bytes) -> None:
        if not self.is_mute:
            connection.accept(self.qp, parameters_with(private_data))

    def post(
        self,
        imm_data: int | None,
        data: bytes = b"",
        to: tuple[int, int] = (0, 0),
        opcode: WROpcode | None = None,
    ) -> None:
        """Post a request: a write to (address, key) unless the opcode says otherwise."""
        if opcode is None:
            opcode = WROpcode.RDMA_WRITE if imm_data is None else WROpcode.RDMA_WRITE_WITH_IMM
        address, rkey = to
        wr = SendWR(
            0, opcode, imm_data=imm_data or 0, remote_addr=address, rkey=rkey, data=data or b""
        )
        adapter = self.context.adapter
        with adapter.lock:
            self.qp.post_send(wr, adapter.now_ns())
            adapter.progress_qp(self.qp)

    def disconnect(self) -> None:
        """End the connection in order."""
        with self.context.adapter.lock:
            if self._connection is not None:
                self._connection.disconnect()

    def vanish(self) -> None:
        """Drop the connection and its queue pair without a word. Safe twice."""
        with self.context.adapter.lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()
            self.context.forget(self.qp)

    @property
    def is_connected(self) -> bool:
        return self.peer is not None

    @property
    def is_over(self) -> bool:
        """Return whether the connection has ended, by either side."""
        return bool(self.ends)

    # -- what the opening and the device say

    def handle_received(self, wc: WC) -> None:
        if wc.status is WCStatus.SUCCESS:
            self.words.append(wc.imm_data)

    def handle_sent(self, wc: WC) -> None:
        self.statuses.append(wc.status)

    def finish_pass(self) -> None:
        pass

    def _handle_event(self, event: VerbsConnectionEvent) -> None:
        if event.kind is ConnectionEventKind.ESTABLISHED:
            self.offered = data = event.parameters.private_data
            self.peer = ConnectData.parse(data) if data else self.data()
        else:
            self.ends.append(event.kind)


class Siege:
    """Two ends that talk with each other, and unknown peers."""

    def __init__(self, both: Ends, context: DeviceContext) -> None:
        self.both = both
        self.context = context
        adapter = context.adapter
        self.host = adapter.address if isinstance(adapter, SimAdapter) else both.host
        self.link, self.accepted = both.connect()
        self.unknown_peers: list[UnknownPeer] = []
        self._marks = (both.there.memory_bytes, len(both.there.links))

    def unknown_peer(self) -> UnknownPeer:
        made = UnknownPeer(self.context)
        self.unknown_peers.append(made)
        return made

    def connected(self, **changes: Any) -> tuple[UnknownPeer, StreamLink]:
        """Return an unknown peer that has connected, and the link of its victim."""
        unknown_peer = self.unknown_peer()
        unknown_peer.connect(self.both.listener.local, unknown_peer.data(**changes).emit())
        self.until(lambda: self.both.listener.readiness().readable and unknown_peer.is_connected)
        victim = self.both.listener.accept()
        assert victim is not None
        return unknown_peer, victim

    def until(self, is_ready: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
        """Drive all three devices until it is so; fail if it does not come."""
        end_s = time.monotonic() + timeout_s
        adapters = [*self.both.adapters, self.context.adapter]
        while not is_ready():
            for adapter in adapters:
                adapter.progress()
            assert adapters[-1].wait(is_ready, 1_000_000) or time.monotonic() < end_s, "too late"

    def finish_pass(self, turns: int = 20) -> None:
        """Let everything arrive that is under way."""
        for _ in range(turns):
            for adapter in (*self.both.adapters, self.context.adapter):
                adapter.progress()
                adapter.wait(lambda: False, 200_000)

    def until_cut(self, victim: StreamLink, reason: str) -> None:
        """Wait until the victim has cut the connection for this reason."""
        self.until(lambda: victim.state is LinkState.OVER)
        assert reason in victim.reason, victim.reason

    def others_are_well(self, byte_count: int = 70_000) -> None:
        """Check that the neighbours talk as before."""
        data = (bytes(range(256)) * (byte_count // 256 + 1))[:byte_count]
        assert send_all(self.both, self.link, data, self.accepted) == data
        assert send_all(self.both, self.accepted, data, self.link) == data

    def nothing_is_left(self, *victims: StreamLink) -> None:
        """Close what is left of victims and check that they cost nothing any more."""
        for victim in victims:
            victim.close(0)
        memory_bytes, link_count = self._marks
        there = self.both.there
        self.until(lambda: len(there.links) == link_count and there.memory_bytes == memory_bytes)


@contextlib.contextmanager
def siege(device: str, **changes: Any) -> Iterator[Siege]:
    """Open two ends and a third device for unknown peers."""
    with ends(device, **changes) as both:
        adapter = both.adapters[0]
        if isinstance(adapter, SimAdapter):
            opened = adapter.network.adapter("unknown_peer")
        else:
            opened = find_device(device).open_adapter()
        made = Siege(both, DeviceContext(opened))
        try:
            yield made
        finally:
            for unknown_peer in made.unknown_peers:
                unknown_peer.vanish()
            opened.close()
