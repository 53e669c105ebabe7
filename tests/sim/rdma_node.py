"""One life of one address over RDMA: the real node, its plane and a simulated adapter.

Only the control thread is missing. In its place the world asks `turn_at_ns` and calls `turn`, late
at random as threads are; applications call mailboxes directly and post in their own thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, MutableSet
from dataclasses import dataclass
from ipaddress import ip_network
from random import Random
from typing import Any, TypeVar

from tests.sim.rdma_judge import Judge
from tests.support.lines import Lines
from urds.common.types import IPAddress
from urds.rds.control.settings import LocalAddressSettings, PeerSettings
from urds.rds.plane.contract import (
    Limits,
    MailboxSettings,
    Message,
    OfTransport,
    Operation,
    OperationNotices,
)
from urds.rds.plane.message_transport import MessageTransport
from urds.rds.plane.python.external import ExternalPath
from urds.rds.plane.python.mailbox import Mailbox
from urds.rds.plane.python.plane import Plane
from urds.rds.plane.python.state import State
from urds.rds.transports.rdma.core import CoreLimits
from urds.rds.transports.rdma.device import RdmaDevice
from urds.rds.transports.rdma.node import NodeSettings, RdmaNode
from urds.rds.transports.rdma.path import RdmaPath
from urds.rds.transports.rdma.regions import RegionTable
from urds.rds.wire.frame_format import FRAME_FORMAT_NEWEST, FrameFormat
from urds.verbs.providers.sim import SimNetwork

US = 1_000
MS = 1_000_000
SECOND = 1_000 * MS
ALLOWED = (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))

_SETS = ("touched", "looks", "resuming")  # their order shows on the wire

_T = TypeVar("_T")


class OrderedSet(MutableSet[_T]):
    """A set that is walked in the order of insertion: a run is its seed's alone."""

    def __init__(self, items: Iterable[_T] = ()) -> None:
        self._items = dict.fromkeys(items)

    def __contains__(self, item: object) -> bool:
        return item in self._items

    def __iter__(self) -> Iterator[_T]:
        return iter(list(self._items))

    def __len__(self) -> int:
        return len(self._items)

    def add(self, value: _T) -> None:
        self._items[value] = None

    def discard(self, value: _T) -> None:
        self._items.pop(value, None)

    def update(self, items: Iterable[_T]) -> None:
        self._items.update(dict.fromkeys(items))


class SimState(State):
    """A plane's state whose sets are walked in the order of insertion."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Keep sets whose order shows on the wire in an order that the seed decides."""
        if name in _SETS:
            value = OrderedSet(value)
        super().__setattr__(name, value)


class SimPlane(Plane):
    """The reference plane; tells when there is something for its helper to do."""

    judge: Judge

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.state.__class__ = SimState  # made by the plane itself
        for name in _SETS:
            setattr(self.state, name, getattr(self.state, name))

    def external_path(
        self,
        *,
        local: IPAddress,
        peer: IPAddress,
        tos: int,
        message_bytes_max: int,
        transport: MessageTransport,
    ) -> ExternalPath:
        """Make a path that takes a message in once it is judged."""
        path = super().external_path(
            local=local,
            peer=peer,
            tos=tos,
            message_bytes_max=message_bytes_max,
            transport=transport,
        )
        take = path.deliver

        def deliver(source_port: int, target_port: int, payload: bytes, extension: bytes) -> bool:
            self.judge.arrive(source_port, payload, extension)
            return take(source_port, target_port, payload, extension)

        path.deliver = deliver  # type: ignore[method-assign]  # the judge listens
        return path

    def listen(self, on_want: Callable[[bool], None]) -> None:
        """Have `on_want` called where the helper is woken; true: at once, false: for what is due.

        The lock is held then.
        """
        want = self.state.thread.want

        def wanted(*, now: bool = False) -> None:
            want(now=now)
            on_want(now)

        self.state.thread.want = wanted  # type: ignore[method-assign]  # in place of its thread


def _count_given_up(path: RdmaPath) -> None:
    """Have each mailbox count the messages that a path has given up of it."""
    give_up_messages, give_up = path.core.outgoing._give_up, path.give_up

    def give_up_and_count(messages: Iterable[Any]) -> int:
        chosen = list(messages)
        for message in chosen:
            if message.owner is not None:
                message.owner.sends.given_up += 1
        return give_up_messages(chosen)

    def give_up_absent(mailbox: Any) -> int:
        count = give_up(mailbox)
        mailbox.sends.given_up += count
        return count

    path.core.outgoing._give_up = give_up_and_count  # type: ignore[method-assign]  # as above
    path.give_up = give_up_absent  # type: ignore[method-assign]  # as above


@dataclass(frozen=True, slots=True, kw_only=True)
class SimSettings:
    """What one life is like."""

    generation: int
    is_first_life: bool
    core: CoreLimits
    limits: Limits
    peers_max: int = 16
    give_up_ns: int = 0
    sequence_first: int = 1 << 20
    frame_format: FrameFormat = FRAME_FORMAT_NEWEST


class SimNode:
    """See the module. `on_news` is told when `turn_at_ns` became earlier."""

    def __init__(
        self,
        network: SimNetwork,
        judge: Judge,
        address: IPAddress,
        settings: SimSettings,
        *,
        random: Random,
        on_news: Callable[[], None],
    ) -> None:
        self.network, self.judge, self.address = network, judge, address
        self.settings = settings
        self.is_alive = True
        self.is_first_life = settings.is_first_life
        self.mailboxes: dict[int, Mailbox] = {}
        self.is_asleep = False  # its threads get no time
        self.lateness_ns: tuple[int, ...] = (0, 0, 20 * US, 300 * US)  # of its control thread
        self._random = random
        self._turn_at_ns: int | None = None
        self._has_new_dues = False
        self.receivers_stopped = False
        self._on_news = on_news
        self._later: deque[Callable[[], None]] = deque()
        self._sequence_first = settings.sequence_first
        self.adapter = network.adapter(address=str(address))
        self.plane = SimPlane(
            limits=settings.limits,
            resolve=self._resolve,
            clock_ns=lambda: network.now_ns,
            generation=settings.generation,
        )
        self.plane.judge = judge
        self.plane.listen(self._note_want)
        self.rdma = RdmaNode(
            self.plane,
            [RdmaDevice(self.adapter)],
            settings=NodeSettings(
                peer=PeerSettings(
                    generation=settings.generation,
                    reconnect_give_up_ns=settings.give_up_ns,
                    frame_format=settings.frame_format,
                ),
                core=settings.core,
            ),
            random=random,
            sequence_first=self._next_sequence,
            now_ns=lambda: network.now_ns,
            log=Lines(),
        )
        # As the node's own, but its keys are the seed's.
        self.regions = RegionTable(lambda: self.rdma.devices, self._soon, rng=random)
        self.rdma.regions = self.regions
        self.rdma.open(address, LocalAddressSettings(allowed=ALLOWED, peers_max=settings.peers_max))

    def _next_sequence(self) -> int:
        """Return where a path's numbers begin: a path made later begins higher."""
        self._sequence_first += (1 << 20) + self.network.now_ns // MS
        return self._sequence_first

    def _resolve(self, mailbox: Any, peer: IPAddress) -> None:
        path = self.rdma.resolve(mailbox, peer)
        if "give_up" not in vars(path):
            _count_given_up(path)

    # -- the control thread

    def _soon(self, action: Callable[[], None]) -> None:
        self._later.append(action)
        self._note_news()

    def _note_want(self, now: bool) -> None:
        if now:
            self._note_news()
        else:
            self._has_new_dues = True
            self._on_news()

    def _note_news(self) -> None:
        delay_ns = self._random.choice(self.lateness_ns)
        at_ns = self.network.now_ns + delay_ns
        if self._turn_at_ns is None or at_ns < self._turn_at_ns:
            self._turn_at_ns = at_ns
            self._on_news()

    @property
    def turn_at_ns(self) -> int | None:
        """When the control thread comes; None while it sleeps for want of work."""
        if self._has_new_dues:
            self._has_new_dues = False
            with self.plane.state.lock:
                self._come_at(self.plane.state.next_due_ns())
        return None if self.is_asleep or not self.is_alive else self._turn_at_ns

    def _come_at(self, at_ns: int | None) -> None:
        if at_ns is not None and (self._turn_at_ns is None or at_ns < self._turn_at_ns):
            self._turn_at_ns = at_ns

    def turn(self) -> None:
        """Do what the control thread does when it comes."""
        now_ns = self.network.now_ns
        self._turn_at_ns = None
        for event in self.plane.help(0):
            if isinstance(event, OfTransport):
                self.rdma.take(event)
        while self._later:
            self._later.popleft()()
        due_ns = self.rdma.progress(now_ns)
        self._come_at(due_ns)
        self._has_new_dues = True

    # -- sockets

    def bind(self, port: int, settings: MailboxSettings) -> Mailbox:
        """Bind a socket whose operations the judge hears of."""
        mailbox = self.plane.mailbox(local=self.address, port=port, settings=settings)
        mailbox.receives.pausing = OrderedSet()  # type: ignore[assignment]  # see OrderedSet
        note = mailbox.note_operation

        def note_operation(operation: Operation) -> None:
            self.judge.end_operation(mailbox, operation)
            note(operation)

        mailbox.note_operation = note_operation  # type: ignore[method-assign]  # the judge listens
        self.mailboxes[port] = mailbox
        self.rdma.add_mailbox(mailbox)
        return mailbox

    def close(self, port: int, *, linger_ns: int | None) -> None:
        """Close a socket, as the driver does; what it was sent is taken before."""
        mailbox = self.mailboxes.pop(port)
        self.receive(mailbox, 1 << 20)
        mailbox.close(linger_ns)
        self.regions.free_all(mailbox)
        self.rdma.forget_mailbox(mailbox)

    def receive(self, mailbox: Mailbox, count: int) -> int:
        """Take at most `count` things, have them judged; return how many were messages."""
        messages = 0
        for _ in range(count):
            taken = mailbox.receive(wait_ns=0, notices_max=3)
            if taken is None:
                break
            if isinstance(taken, OperationNotices):
                self.judge.check_notices(mailbox, taken)
            elif isinstance(taken, Message):
                messages += 1
                self.judge.deliver(self, mailbox, taken)
        return messages

    # -- the end

    def die(self) -> None:
        """End as a killed process does: without a word. What lies in inboxes was received."""
        self.is_alive = False
        self.network.kill(self.adapter)
        for mailbox in self.mailboxes.values():
            self.receive(mailbox, 1 << 20)
        self._leave()

    def stop(self) -> None:
        """End in order: what came is acknowledged, connections are ended."""
        for mailbox in self.mailboxes.values():
            self.receive(mailbox, 1 << 20)
        self.is_alive = False
        self.rdma.end_connections(100 * MS)
        self.plane.close(0)
        self.rdma.close()
        self._leave()

    def _leave(self) -> None:
        self.network.forget(self.adapter)
        self._on_news = lambda: None
        self.plane.release()

    # -- looks

    def paths(self) -> list[RdmaPath]:
        """Return all paths."""
        return [path for host in self.rdma.hosts.values() for path in host.paths.values()]

    def left(self) -> int:
        """Return how many messages wait to be sent or acknowledged."""
        return sum(path.core.outgoing.message_count() for path in self.paths())

    def queued(self) -> int:
        """Return how many messages and notices wait for receivers."""
        return sum(
            len(one.receives.queue) + len(one.receives.notices) for one in self.mailboxes.values()
        )
