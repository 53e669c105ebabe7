"""Endpoints on a simulated network: A sends, B receives, packet by packet as the test says.

`Scene` has one sender and one receiver, connected unless told otherwise; `gate` keeps A's messages
back, then `part(19, 0)` lets the first half of message 19 arrive and `whole(20)` both halves. All
counts come from the calls of DAT; nothing here knows what the endpoints keep inside.
"""

from collections.abc import Callable
from typing import Any

from urds import dat
from urds.dat.records import RmrTriplet
from urds.verbs.engine.contract import EngineFactory
from urds.verbs.engine.engine import Engine
from urds.verbs.engine.numbers import ReceiveOrder
from urds.verbs.engine.packets import Packet, PacketKind, emit_packet
from urds.verbs.providers.sim import PacketHold, SimAdapter, SimNetwork

PACKET_BYTES = 256
MESSAGE_BYTES = 2 * PACKET_BYTES
BUFFERS_MAX = 256  # of MESSAGE_BYTES, in the memory of an end
STEP_NS = 1_000  # long enough for a packet that is let go, far too short for a repeat
SECOND_NS = 1_000_000_000
WAIT_S = 30.0
DEPTH = 256

THRESHOLD = dat.CompletionFlag.EVD_THRESHOLD
# Networks: one where messages overtake each other, and two without loss, on either engine.
ROWS = ("sim", "sim-lossless", "sim-native")


def network_of(row: str) -> SimNetwork:
    """Return a network of a row."""
    if row == "sim":
        return SimNetwork(mtu_bytes=PACKET_BYTES)
    engine: EngineFactory = Engine
    if row == "sim-native":
        import urds_native

        engine = urds_native.Engine
    return SimNetwork(mtu_bytes=PACKET_BYTES, lossless=True, engine=engine)


class End:
    """One opened adapter with a zone, memory, dispatchers and one endpoint."""

    def __init__(
        self,
        network: SimNetwork,
        *,
        name: str,
        buffers: int | None = None,
        srq_depth: int = DEPTH,
        recv_qlen: int = DEPTH,
        support: dat.Support | None = None,
        **attr: Any,
    ) -> None:
        """Open an adapter. With `buffers` there is a shared queue with so many posted."""
        self.adapter: SimAdapter = network.adapter(name)
        self.ia = dat.InterfaceAdapter(
            name, self.adapter, address=self.adapter.address, support=support or dat.Support()
        )
        self.pz = self.ia.create_pz()
        self.data = bytearray(BUFFERS_MAX * MESSAGE_BYTES)
        self.memory = self.pz.register(self.data)
        self.recv = self.ia.create_evd(recv_qlen, dat.EvdFlag.DTO)
        self.request = self.ia.create_evd(4 * DEPTH, dat.EvdFlag.DTO | dat.EvdFlag.RMR_BIND)
        self.connection = self.ia.create_evd(8, dat.EvdFlag.CONNECTION)
        self.requests = self.ia.create_evd(8, dat.EvdFlag.CR)
        self.srq: dat.SharedReceiveQueue | None = None
        if buffers is not None:
            self.srq = self.pz.create_srq(srq_depth)
            self.give(buffers)
        attr.setdefault("max_recv_dtos", DEPTH if self.srq is None else dat.DAT_HW_DEFAULT)
        attr.setdefault("max_request_dtos", DEPTH)
        self.ep = self.pz.create_ep(
            self.recv, self.request, self.connection, dat.EpAttr(**attr), self.srq
        )

    @property
    def info(self) -> tuple[int | None, int | None]:
        """Return (nbufs_allocated, bufs_alloc_span) of the endpoint."""
        return tuple(self.ep.recv_query())

    @property
    def counts(self) -> tuple[int | None, int | None]:
        """Return (available, outstanding) of the shared queue."""
        assert self.srq is not None
        param = self.srq.query()
        return param.available_dto_count, param.outstanding_dto_count

    @property
    def available(self) -> int:
        """Return how many buffers the shared queue has."""
        return self.counts[0] or 0

    def piece(self, number: int = 0, byte_count: int = MESSAGE_BYTES) -> list[dat.LmrTriplet]:
        """Return the memory of one buffer, by its number."""
        return [self.memory.triplet(number % BUFFERS_MAX * MESSAGE_BYTES, byte_count)]

    def give(self, count: int, first: int = 0) -> None:
        """Post buffers to the shared queue; the cookie is the number."""
        assert self.srq is not None
        for number in range(first, first + count):
            self.srq.post_recv(self.piece(number), number)

    def post(self, count: int, byte_count: int = MESSAGE_BYTES) -> None:
        """Post receives to the endpoint itself."""
        for number in range(count):
            self.ep.post_recv(self.piece(number, byte_count), number)

    def send(self, byte_count: int = MESSAGE_BYTES, cookie: object = None, flags: int = 0) -> None:
        """Send a message."""
        iov = self.piece(cookie if isinstance(cookie, int) else 0, byte_count) if byte_count else []
        self.ep.post_send(iov, cookie, flags)

    def taken(self) -> list[dat.DtoCompletionEvent]:
        """Take the receive completions that are there, without moving the clock."""
        return drain(self.recv)

    def remote(self, byte_count: int = MESSAGE_BYTES, offset: int = 0) -> RmrTriplet:
        """Return memory as a peer names it."""
        return self.memory.remote_triplet(offset, byte_count)

    def connection_events(self) -> list[dat.EventNumber]:
        """Take the connection events that are there."""
        return [event.event_number for event in drain(self.connection)]

    def async_events(self) -> list[tuple[dat.EventNumber, object, int]]:
        """Take the asynchronous events that are there, as number, handle and reason."""
        found = drain(self.ia.async_evd)
        return [(event.event_number, event.dat_handle, event.reason) for event in found]


def drain(evd: Any) -> list[Any]:
    """Take the events that a dispatcher has now; unlike iterating this moves no clock."""
    return [evd.dequeue() for _ in range(len(evd))]


def connect(network: SimNetwork, active: End, passive: End, qual: int = 4000) -> None:
    """Connect the endpoints of two ends and take the events."""
    connect_endpoints(active.ep, passive.ep, passive.requests, qual)


def connect_endpoints(
    active: dat.Endpoint, passive: dat.Endpoint, requests: dat.EventDispatcher, qual: int = 4000
) -> None:
    """Connect two endpoints and take the events."""
    with passive.ia.listen(qual, evd=requests):
        active.connect(passive.ia.address, qual, timeout_s=WAIT_S)
        requests.wait(WAIT_S).cr.accept(passive)
        for ep in (active, passive):
            event = ep.connect_evd.wait(WAIT_S)
            assert event.event_number is dat.EventNumber.CONNECTION_ESTABLISHED, event


class Scene:
    """A sender `a` and a receiver `b`; by default it accepts messages ahead of others, if any."""

    row = ROWS[0]  # of the network, if none is given

    def __init__(
        self,
        buffers: int | None = None,
        *,
        completed: int = 0,
        connected: bool = True,
        receive_order: ReceiveOrder | None = None,
        support: dat.Support | None = None,
        network: SimNetwork | None = None,
        a_attr: dict[str, Any] | None = None,
        **b: Any,
    ) -> None:
        """Make both ends; `b` are the arguments of the receiving one.

        After `completed` messages A's messages are kept back, and the events of those completed
        are taken and their buffers gone.
        """
        self.network = network or network_of(self.row)
        self.a = End(self.network, name="a", **(a_attr or {}))
        support = support or dat.Support(receive_order=receive_order)
        self.b = End(self.network, name="b", buffers=buffers, support=support, **b)
        self.answers: list[Packet] = []  # what B said of A's packets
        self.hold: PacketHold | None = None
        self._sent: dict[tuple[int, int], bytes] = {}
        self._hold_answers: PacketHold | None = None
        if connected:
            connect(self.network, self.a, self.b)
            self.complete(completed)
            if completed:
                self.gate()

    def __enter__(self) -> "Scene":
        return self

    def __exit__(self, *_: object) -> None:
        for end in (self.a, self.b):
            if end.ia.live:
                end.ia.close()

    def complete(self, count: int) -> None:
        """Send so many messages of one byte, and take all their completions."""
        self._record()
        for number in range(count):
            self.a.send(1, number)
            assert self.b.recv.wait(WAIT_S).status is dat.DtoStatus.SUCCESS
            self.a.request.wait(WAIT_S)
        self.run()

    def gate(self, count: int = 0, byte_count: int = MESSAGE_BYTES) -> None:
        """Keep A's packets with messages back from now on, and send `count` messages."""
        self._record()
        self.hold = self.network.hold(
            lambda packet, source, _target: source is self.a.adapter and is_message(packet)
        )
        for _ in range(count):
            self.a.send(byte_count)

    def part(self, message: int, half: int) -> None:
        """Let one half of a message arrive, the first (0) or the second (1), and nothing else."""
        assert self.hold is not None
        count = self.hold.release(
            lambda packet: (packet.msn, packet.offset // PACKET_BYTES) == (message, half)
        )
        assert count, f"half {half} of message {message} was not sent"
        self.run()

    def whole(self, message: int) -> None:
        """Let all that is left of a message arrive."""
        assert self.hold is not None
        assert self.hold.release(lambda packet: packet.msn == message)
        self.run()

    def begin(self, *messages: int) -> None:
        """Let messages take their buffers, and complete none.

        Half of each arrives. Where they keep their order the second would not get one so: there
        all of each arrives, and B's completions are held as before the event of a connection.
        """
        if self.overtakes:
            for message in messages:
                self.part(message, 0)
            return
        with self.network.lock:
            self.b.ep.engine.hold_receives = True
        for message in messages:
            self.whole(message)

    def finish(self, *messages: int) -> None:
        """Complete all messages that have begun."""
        if self.overtakes:
            for message in messages:
                self.part(message, 1)
            return
        with self.network.lock:
            self.b.ep.engine.hold_receives = False
            self.b.adapter.finish_pass()

    @property
    def overtakes(self) -> bool:
        """Return whether a message may come ahead of others."""
        return self.row == ROWS[0]

    def repeat(self, message: int, half: int = 0) -> None:
        """Let a packet that A has sent before arrive once more."""
        with self.network.lock:
            self.network.inject(
                self._sent[message, half], source=self.a.adapter, target=self.b.adapter
            )
        self.run()

    def open_gate(self) -> None:
        """Keep nothing back any more."""
        assert self.hold is not None
        self.hold.close()

    def run(self, for_ns: int = STEP_NS) -> None:
        """Let virtual time pass."""
        self.network.run(for_ns=for_ns)

    def settle(self, is_ready: Callable[[], bool]) -> None:
        """Run until something is so; fail if it does not become so in a minute of virtual time."""
        assert self.network.run_until(is_ready, 60 * SECOND_NS)

    def wait_for_state(self, state: dat.EpState, *ends: End) -> None:
        """Run until endpoints are in a state."""
        self.settle(lambda: all(end.ep.state is state for end in ends or (self.a, self.b)))

    def _record(self) -> None:
        """Remember each packet with a message that A sends, and all that B answers."""
        if self._hold_answers is not None:
            return

        def note(packet: Packet, source: SimAdapter, _target: SimAdapter) -> bool:
            if source is self.a.adapter and is_message(packet):
                data = b"".join(emit_packet(packet, checksum=True))
                self._sent[packet.msn, packet.offset // PACKET_BYTES] = data
            elif source is self.b.adapter and packet.kind is PacketKind.ACK:
                self.answers.append(packet)
            return False

        self._hold_answers = self.network.hold(note)


def is_message(packet: Packet) -> bool:
    """Return whether a packet is of a message that takes a receive buffer."""
    return packet.kind is PacketKind.SEND


def worked_example(*, spare: int = 20, **scene: Any) -> Scene:
    """Return the scene of docs/reference/dat.md 13.2.

    18 messages are completed; of 19 to 23 the first halves of 19, 22, 23 are there.

    `spare` buffers are on the shared queue when 19 begins. Each message begins with its number.
    """
    made = Scene(buffers=18 + spare, completed=18, **scene)
    for message in range(19, 24):
        made.a.data[message * MESSAGE_BYTES] = message
        made.a.send(cookie=message)
    for message in (19, 22, 23):
        made.part(message, 0)
    return made
