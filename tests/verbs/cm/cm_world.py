"""Two connection managers, a wire between them, and a clock: what the tests of the core share."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from heapq import heappop, heappush
from random import Random

from urds.verbs.cm.core import CmCore
from urds.verbs.cm.messages import NAMES_CONTEXT, CmMessage, CmMessageKind, Offer
from urds.verbs.cm.records import CmConnection, CmEvent, CmEventKind, CmSettings

TCP, UDP = 0x0106, 0x0111
DELAY_NS = 1_000_000
PORT = 4000
# Who lost a goodbye finds out by asking: at most this much later.
LIVENESS_NS = 11_000_000_000


class Side:
    """One manager, its address, and an owner that accepts whatever comes, if it may."""

    def __init__(self, name: str, seed: int, settings: CmSettings | None = None) -> None:
        self.name = name
        self.core = CmCore(random=Random(f"{seed} {name}"), settings=settings)
        self.events: list[CmEvent] = []
        self.accepts = True
        self.connections: list[CmConnection] = []

    def kinds(self) -> list[CmEventKind]:
        """Return what was told, in order."""
        return [event.kind for event in self.events]


class World:
    """A wire from `left` to `right`; the routes are the names of the two.

    With settings whose `names_context` is false the wire takes the device contexts away, as
    InfiniBand's messages have none.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        loss: float = 0.0,
        duplicate: float = 0.0,
        reorder: float = 0.0,
        settings: CmSettings | None = None,
    ) -> None:
        self.random = Random(seed)
        self.loss, self.duplicate, self.reorder = loss, duplicate, reorder
        self.now_ns = 0
        self.names_context = settings is None or settings.names_context
        self.left, self.right = Side("left", seed, settings), Side("right", seed, settings)
        self.sent: Counter[CmMessageKind] = Counter()
        self.drop: Callable[[str, CmMessage], bool] = lambda _source, _message: False
        self._flying: list[tuple[int, int, str, str, bytes]] = []
        self._count = 0

    def other(self, side: Side) -> Side:
        """Return the side that is not `side`."""
        return self.right if side is self.left else self.left

    def listen(self, *, backlog: int = 8, space: int = TCP) -> None:
        """Let the right side listen at `PORT`."""
        self.right.core.listen(local=("10.0.0.2", PORT), space=space, backlog=backlog)

    def connect(
        self,
        *,
        private_data: bytes = b"",
        space: int = TCP,
        qpn: int = 100,
        timeout_ns: int | None = None,
    ) -> CmConnection:
        """Ask from the left side."""
        request = CmMessage(
            kind=CmMessageKind.REQ,
            context_guid=bytes(8),
            source=_mapped(1),
            source_port=9,
            target=_mapped(2),
            target_port=PORT,
            offer=Offer(qpn=qpn, responder_resources=4, initiator_depth=5),
            private_data=private_data,
        )
        connection = self.left.core.connect(
            route="right",
            space=space,
            local=("10.0.0.1", 9),
            peer=("10.0.0.2", PORT),
            request=request,
            now_ns=self.now_ns,
            give_up_ns=None if timeout_ns is None else self.now_ns + timeout_ns,
        )
        self.settle(self.left)
        return connection

    def send(self, source: Side, data: bytes) -> None:
        """Put one message on the wire."""
        message = CmMessage.parse(data)
        if not self.names_context and message.kind not in NAMES_CONTEXT:
            data = replace(message, context_guid=bytes(8)).emit()
        self.sent[message.kind] += 1
        if self.drop(source.name, message) or self.random.random() < self.loss:
            return
        for _ in range(1 + (self.random.random() < self.duplicate)):
            late = self.random.randrange(400) if self.random.random() < self.reorder else 1
            self._count += 1
            arrival = (self.now_ns + DELAY_NS * late, self._count, source.name)
            heappush(self._flying, (*arrival, self.other(source).name, data))

    def settle(self, side: Side) -> None:
        """Let the owner answer, and carry what the manager says."""
        while (event := side.core.poll_event()) is not None:
            side.events.append(event)
            if event.kind is CmEventKind.REQUEST:
                side.connections.append(event.connection)
                if side.accepts:
                    side.core.accept(
                        event.connection,
                        offer=Offer(qpn=200, qkey=77),
                        private_data=b"welcome",
                        now_ns=self.now_ns,
                    )
        while (outgoing := side.core.poll_transmit()) is not None:
            self.send(side, outgoing[1])

    def step(self, until_ns: int) -> bool:
        """Do the next thing, false if none is due before `until_ns`."""
        sides = {"left": self.left, "right": self.right}
        times = [(side.core.poll_timeout(), side) for side in sides.values()]
        timer = min(
            ((due, side.name) for due, side in times if due is not None), default=(1 << 62, "")
        )
        if self._flying and self._flying[0][0] <= min(timer[0], until_ns):
            self.now_ns, _, source, target, data = heappop(self._flying)
            sides[target].core.receive_data(data, source=source, now_ns=self.now_ns)
            self.settle(sides[target])
        elif timer[0] <= until_ns:
            self.now_ns = max(self.now_ns, timer[0])
            sides[timer[1]].core.handle_timeout(self.now_ns)
            self.settle(sides[timer[1]])
        else:
            return False
        return True

    def run(self, for_ns: int) -> None:
        """Run the clock for a time."""
        until_ns = self.now_ns + for_ns
        while self.step(until_ns):
            pass
        self.now_ns = until_ns


def _mapped(number: int) -> bytes:
    return bytes(10) + b"\xff\xff" + bytes([10, 0, 0, number])
