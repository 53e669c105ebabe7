"""Ends of connections of the tcp provider, for tests: an opening, queue pairs, what happened."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from urds.verbs.engine.completions import CompletionQueue
from urds.verbs.engine.keys import Region
from urds.verbs.engine.numbers import AccessFlag, QPAttrMask, QPState, QPType, SendFlag, WROpcode
from urds.verbs.engine.queue_pair import QPAttr, QPCap, QueuePair
from urds.verbs.engine.work import SGE, WC, RecvWR, SendWR
from urds.verbs.providers.base import (
    ConnectionEventKind,
    ConnectParameters,
    PortSpace,
    VerbsConnectionEvent,
)
from urds.verbs.providers.tcp import TcpAdapter, TcpProviderSettings

ALL_ACCESS = (
    AccessFlag.LOCAL_WRITE
    | AccessFlag.REMOTE_WRITE
    | AccessFlag.REMOTE_READ
    | AccessFlag.REMOTE_ATOMIC
)
WAIT_NS = 30_000_000_000
ESTABLISHED = ConnectionEventKind.ESTABLISHED


class Memory:
    """Registered bytes."""

    def __init__(self, region: Region, data: bytearray) -> None:
        self.region = region
        self.data = data

    def sge(self, start: int = 0, count: int | None = None) -> SGE:
        count = len(self.data) - start if count is None else count
        return SGE(self.region.address + start, count, self.region.lkey)


class End:
    """One queue pair on an opening of its own or a shared one, and its connection."""

    def __init__(
        self,
        adapter: TcpAdapter,
        *,
        qp_type: QPType = QPType.RC,
        cap: QPCap | None = None,
        pd: object | None = None,
    ) -> None:
        self.adapter = adapter
        self.pd = pd or object()
        self.events: list[VerbsConnectionEvent] = []
        self.connection: Any = None
        self.scq, self.rcq = adapter.completion_queue(4096), adapter.completion_queue(4096)
        self.cap = cap or QPCap(max_send_wr=1024, max_recv_wr=1024)
        self.qp = self._queue_pair(qp_type)
        self._address = 0x1000_0000

    def _queue_pair(self, qp_type: QPType) -> QueuePair:
        with self.adapter.lock:
            return self.adapter.queue_pair(
                kind=qp_type, pd=self.pd, send_cq=self.scq, recv_cq=self.rcq, cap=self.cap
            )

    def init(self) -> None:
        """Lead the queue pair to INIT, so that receives may be posted before it connects."""
        mask = QPAttrMask.STATE | QPAttrMask.PKEY_INDEX | QPAttrMask.PORT | QPAttrMask.ACCESS_FLAGS
        with self.adapter.lock:
            attr = QPAttr(qp_state=QPState.INIT, qp_access_flags=ALL_ACCESS)
            self.qp.modify(attr, mask, self.adapter.now_ns())

    def memory(self, data: bytes | int, access: AccessFlag = ALL_ACCESS) -> Memory:
        held = bytearray(data)
        with self.adapter.lock:
            region = self.adapter.register(self.pd, memoryview(held), self._address, access)
        self._address += len(held) + 4096 & ~4095
        return Memory(region, held)

    # -- work

    def post(
        self, opcode: WROpcode, *pieces: SGE, remote: Memory | None = None, **fields: Any
    ) -> None:
        wr = SendWR(opcode=opcode, sg=list(pieces), **fields)
        if remote is not None:
            wr.set_wr_rdma(remote.region.rkey, remote.region.address)
        with self.adapter.lock:
            self.qp.post_send(wr, self.adapter.now_ns())
            self.adapter.progress_qp(self.qp)

    def send(self, data: bytes, **fields: Any) -> None:
        self.post(WROpcode.SEND, self.memory(data).sge(), **fields)

    def receive(self, count: int, wr_id: int = 0) -> Memory:
        memory = self.memory(count)
        with self.adapter.lock:
            self.qp.post_recv(RecvWR(wr_id, [memory.sge()] if count else []), self.adapter.now_ns())
            self.adapter.progress_qp(self.qp)
        return memory

    def completions(self, queue: CompletionQueue, count: int) -> list[WC]:
        found: list[WC] = []

        def take() -> bool:
            found.extend(queue.poll(count - len(found)))
            return len(found) >= count

        assert self.adapter.wait(take, WAIT_NS), f"{found} of {count}, {self.events}"
        return found

    def sent(self, count: int = 1) -> list[WC]:
        return self.completions(self.scq, count)

    def received(self, count: int = 1) -> list[WC]:
        return self.completions(self.rcq, count)

    # -- connection

    def note(self, event: VerbsConnectionEvent) -> None:
        self.events.append(event)

    def until(self, ready: Callable[[], bool], wait_ns: int = WAIT_NS) -> None:
        assert self.adapter.wait(ready, wait_ns), self.events

    def event(self, kind: ConnectionEventKind) -> VerbsConnectionEvent:
        """Wait for the next event, which has to be of this kind."""
        self.until(lambda: bool(self.events))
        event = self.events.pop(0)
        assert event.kind is kind, event
        return event

    def connect(self, peer: tuple[str, int], **parameters: Any) -> None:
        with self.adapter.lock:
            self.connection = self.adapter.connect(
                self.qp,
                peer,
                PortSpace.TCP,
                ConnectParameters(**parameters),
                on_event=self.note,
            )

    def accept(self, request: VerbsConnectionEvent, **parameters: Any) -> None:
        with self.adapter.lock:
            self.connection = request.connection
            self.connection.on_event = self.note
            self.connection.accept(self.qp, ConnectParameters(**parameters))

    def disconnect(self) -> None:
        with self.adapter.lock:
            self.connection.disconnect()


class Server:
    """A listener that keeps its requests."""

    def __init__(self, adapter: TcpAdapter, host: str = "127.0.0.1", backlog: int = 8) -> None:
        self.adapter = adapter
        self.requests: list[VerbsConnectionEvent] = []
        with adapter.lock:
            self.listener = adapter.listen(
                (host, 0), PortSpace.TCP, backlog=backlog, on_event=self.requests.append
            )
        self.address = self.listener.local

    def request(self) -> VerbsConnectionEvent:
        assert self.adapter.wait(lambda: bool(self.requests), WAIT_NS)
        return self.requests.pop(0)


@contextmanager
def adapters(*settings: TcpProviderSettings | None) -> Iterator[tuple[TcpAdapter, ...]]:
    with ExitStack() as stack:
        opened = tuple(TcpAdapter("tcp0", each) for each in settings)
        for adapter in opened:
            stack.callback(adapter.close)
        yield opened


@contextmanager
def connected(
    *,
    host: str = "127.0.0.1",
    near: TcpProviderSettings | None = None,
    far: TcpProviderSettings | None = None,
    cap: QPCap | None = None,
    **parameters: Any,
) -> Iterator[tuple[End, End]]:
    """Two ends of an established connection: who connected, who accepted."""
    with adapters(near, far) as (near_adapter, far_adapter):
        server = Server(far_adapter, host)
        client, served = End(near_adapter, cap=cap), End(far_adapter, cap=cap)
        client.connect(server.address, **parameters)
        served.accept(server.request())
        client.event(ESTABLISHED)
        served.event(ESTABLISHED)
        yield client, served


__all__ = [
    "ALL_ACCESS", "ESTABLISHED", "End", "Memory", "SendFlag", "Server", "adapters", "connected",
]  # fmt: skip
