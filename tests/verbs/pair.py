"""Two contexts with a queue pair each, connected over any provider: what the tests here share."""

from urds.common.types import HostPort
from urds.verbs import (
    CQ,
    MR,
    PD,
    QP,
    AccessFlag,
    Context,
    QPAttr,
    QPCap,
    QPInitAttr,
    ReceiveOrder,
    RecvWR,
    SendWR,
    WCStatus,
    WROpcode,
)
from urds.verbs.providers.base import (
    ConnectionEventKind,
    ConnectParameters,
    Listener,
    PortSpace,
    VerbsConnection,
    VerbsConnectionEvent,
)

EVERYTHING = (
    AccessFlag.LOCAL_WRITE
    | AccessFlag.REMOTE_WRITE
    | AccessFlag.REMOTE_READ
    | AccessFlag.REMOTE_ATOMIC
)
SECOND_NS = 1_000_000_000
REGION_BYTES = 1 << 20
ENDS = frozenset(ConnectionEventKind) - {
    ConnectionEventKind.REQUEST,
    ConnectionEventKind.ESTABLISHED,
}


class End:
    """One context, its domain, queue, region and a queue pair in INIT."""

    def __init__(
        self,
        context: Context,
        *,
        receive_order: ReceiveOrder = ReceiveOrder.IN_ORDER,
        depth: int = 256,
    ) -> None:
        self.context = context
        self.adapter = context.adapter
        self.pd = PD(context)
        self.cq = CQ(context, 4096)
        self.mr = MR(self.pd, REGION_BYTES, EVERYTHING)
        cap = QPCap(max_send_wr=depth, max_recv_wr=depth)
        init = QPInitAttr(scq=self.cq, rcq=self.cq, cap=cap, receive_order=receive_order)
        self.qp = QP(self.pd, init, QPAttr(qp_access_flags=EVERYTHING))
        self.events: list[VerbsConnectionEvent] = []
        self.connection: VerbsConnection | None = None

    def take(self, event: VerbsConnectionEvent) -> None:
        """Note an event; accept a request with the queue pair."""
        self.events.append(event)
        if event.kind is ConnectionEventKind.REQUEST:
            self.connection = event.connection
            event.connection.accept(self.qp.engine, ConnectParameters(b"welcome"))

    @property
    def kinds(self) -> list[ConnectionEventKind]:
        """Return what was told so far."""
        return [event.kind for event in self.events]

    def listen(self, local: HostPort, *, backlog: int = 8) -> Listener:
        """Listen and accept one request."""
        with self.adapter.lock:
            return self.adapter.listen(local, PortSpace.TCP, backlog=backlog, on_event=self.take)

    def connect(
        self, peer: HostPort, local: HostPort | None = None, *, timeout_ns: int | None = None
    ) -> None:
        """Ask for a connection, from `local` if it is given."""
        with self.adapter.lock:
            self.connection = self.adapter.connect(
                self.qp.engine,
                peer,
                PortSpace.TCP,
                ConnectParameters(b"hello"),
                local=local,
                on_event=self.take,
                timeout_ns=timeout_ns,
            )

    def disconnect(self) -> None:
        """End the connection."""
        assert self.connection is not None
        with self.adapter.lock:
            self.connection.disconnect()

    def wait_for(self, kind: ConnectionEventKind, timeout_ns: int = 20 * SECOND_NS) -> bool:
        """Wait for an event of a kind."""
        return self.adapter.wait(lambda: kind in self.kinds, timeout_ns)

    def wait_for_end(self, timeout_ns: int = 20 * SECOND_NS) -> ConnectionEventKind | None:
        """Wait until the connection is over; return how."""
        self.adapter.wait(lambda: bool(ENDS & set(self.kinds)), timeout_ns)
        return next((kind for kind in self.kinds if kind in ENDS), None)

    def post_receives(self, count: int, length: int, *, base: int = 0) -> None:
        """Post receives, each for a piece of the region of its own."""
        for index in range(count):
            self.qp.post_recv(RecvWR(index, [self.mr.sge(base + index * length, length)]))

    def send(self, number: int, data: bytes, *, base: int = 0) -> None:
        """Send one message from a piece of the region of its own."""
        offset = base + number * len(data)
        self.mr.write(data, offset=offset)
        piece = self.mr.sge(offset, len(data))
        self.qp.post_send(SendWR(number, WROpcode.SEND, [piece]))

    def statuses(self, count: int, timeout_s: float = 30.0) -> list[WCStatus]:
        """Wait for completions and return how they ended."""
        return [wc.status for wc in self.cq.wait_for(count, timeout_s)]


def connect(left: End, right: End, local: HostPort) -> None:
    """Connect left to right, which listens at `local`."""
    listener = right.listen(local)
    left.connect(listener.local)
    assert left.wait_for(ConnectionEventKind.ESTABLISHED), left.events
    assert right.wait_for(ConnectionEventKind.ESTABLISHED), right.events


def bytes_of(number: int, length: int) -> bytes:
    """Return bytes that tell a message from its neighbours."""
    return number.to_bytes(4, "big") + bytes((number + place) & 255 for place in range(length - 4))


def reads(left: End, right: End, *, count: int = 50, length: int = 2000) -> None:
    """Send messages from left to right; none may be lost, changed or out of order."""
    right.post_receives(count, length)
    for number in range(count):
        left.send(number, bytes_of(number, length))
    assert set(left.statuses(count)) == {WCStatus.SUCCESS}
    received = right.cq.wait_for(count, 30.0)
    assert [wc.wr_id for wc in received] == list(range(count))
    assert {wc.status for wc in received} == {WCStatus.SUCCESS}
    for number in range(count):
        assert right.mr.read(length, number * length) == bytes_of(number, length), number
