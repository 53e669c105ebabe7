"""Messages that reach a port by the other transport, where each transport has a plane of its own.

A socket sends by the transport that it is bound to, and receives by any: a peer may send over TCP
to a port that is bound over RDMA, and one local socket to another. Such a message arrives in the
plane where the port's mailbox is not. So every mailbox has a second one, its *twin*, of the same
address and port in the other plane, which is emptied into it: the message is sent again there, over
a loop, by a mailbox of its source's address and port. That is the twin of a local source, else a
*stand-in*. A full mailbox leaves the messages in its twin, which then reports congestion itself to
the peers, so congestion works as with one plane, with twice the room.

The thread of the plane for RDMA does this; control lock held.
"""

from __future__ import annotations

import errno
from collections import OrderedDict, deque
from functools import partial
from ipaddress import IPv6Address, ip_address
from time import monotonic_ns as now_ns
from typing import TYPE_CHECKING, Final

from urds.common.records import field, record, replace
from urds.common.types import IPAddress
from urds.rds.addresses import socket_address
from urds.rds.plane.contract import (
    Mailbox,
    MailboxSettings,
    Message,
    Plane,
    Snapshot,
    SocketAddress,
)

if TYPE_CHECKING:
    from urds.rds.runtime.control_thread import Driver

_STAND_INS_MAX: Final = 4096  # sources in each plane; beyond it the longest unused goes
_PASS_MESSAGES: Final = 64  # of one twin before the others have theirs
_FULL_NS: Final = 5_000_000  # until a full mailbox is tried again
_SEND_BYTES_MAX: Final = 1 << 30  # the plane's own limit of a message is what counts
_FULL: Final = frozenset({errno.EAGAIN, errno.ENOBUFS})

_Name = tuple[IPAddress, int]


@record(frozen=False, eq=False)
class _Twin:
    """A mailbox in the plane where the real one is not."""

    real: Mailbox
    itself: Mailbox
    towards: Plane  # where the real one is
    waiting: Message | None = None  # taken, and the real one was full
    is_over: bool = False


@record(frozen=False)
class _Side:
    """What of a plane's mailboxes belongs to no socket."""

    twins: dict[_Name, _Twin] = field(default_factory=dict)
    stand_ins: OrderedDict[_Name, Mailbox] = field(default_factory=OrderedDict)


class Crossings:
    """The twins of a driver's mailboxes; none as long as it has one plane."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._beside: Plane | None = None
        self._sides: dict[Plane, _Side] = {}
        self._told: deque[_Twin] = deque()  # with messages; any thread appends
        self._full: dict[_Twin, int] = {}  # when to try again

    # -- mailboxes come and go

    def begin(self, beside: Plane) -> None:
        """Give every mailbox a twin from here on, present ones included."""
        self._beside = beside
        self._sides = {self._driver.plane: _Side(), beside: _Side()}
        for host in self._driver.hosts.values():
            for mailbox in host.mailboxes:
                self.add(mailbox)

    def make_way(self, local: IPAddress, port: int) -> None:
        """Remove the stand-in for an address and port that is about to be bound."""
        for side in self._sides.values():
            stand_in = side.stand_ins.pop((local, port), None)
            if stand_in is not None:
                stand_in.close(0)

    def add(self, mailbox: Mailbox) -> None:
        """Give a mailbox its twin."""
        beside, first = self._beside, self._driver.plane
        if beside is None:
            return
        towards = self._driver.plane_of(mailbox)
        plane = first if towards is beside else beside
        settings = MailboxSettings(
            send_bytes_max=_SEND_BYTES_MAX, receive_bytes_max=mailbox.settings.receive_bytes_max
        )
        itself = plane.mailbox(local=mailbox.local, port=mailbox.port, settings=settings)
        twin = _Twin(mailbox, itself, towards)
        self._sides[plane].twins[mailbox.local, mailbox.port] = twin
        self._listen(twin)

    def forget(self, mailbox: Mailbox) -> None:
        """Close the twin of a mailbox that is closed."""
        name = (mailbox.local, mailbox.port)
        for side in self._sides.values():
            twin = side.twins.get(name)
            if twin is not None and twin.real is mailbox:
                del side.twins[name]
                self._full.pop(twin, None)
                twin.is_over = True
                twin.itself.close(0)

    def leave_out(self, snapshot: Snapshot, plane: Plane) -> Snapshot:
        """Take twins and stand-ins out of the sockets of a plane."""
        side = self._sides.get(plane)
        if side is None:
            return snapshot
        real = [
            row
            for row in snapshot.mailboxes
            if (row.local, row.port) not in side.twins
            and (row.local, row.port) not in side.stand_ins
        ]
        return replace(snapshot, mailboxes=real)

    # -- messages

    def _listen(self, twin: _Twin) -> None:
        """Subscribe to the next message; the call comes at once if there is one."""
        twin.itself.subscribe(partial(self._tell, twin), room=False)

    def _tell(self, twin: _Twin) -> None:
        """Have the thread empty a twin; called by any thread, control lock held or not."""
        self._told.append(twin)
        if self._beside is not None:
            self._beside.wake()

    def progress(self, at_ns: int) -> int | None:
        """Empty the twins that have messages; return the next deadline."""
        for twin in [one for one, due_ns in self._full.items() if due_ns <= at_ns]:
            del self._full[twin]
            self._told.append(twin)
        for _ in range(len(self._told)):
            self._empty(self._told.popleft())
        return at_ns if self._told else min(self._full.values(), default=None)

    def _empty(self, twin: _Twin) -> None:
        """Pass on what a twin has, up to a pass's worth."""
        if twin.is_over:
            return
        try:
            for _ in range(_PASS_MESSAGES):
                taken = twin.waiting or twin.itself.receive(wait_ns=0)
                if taken is None:
                    self._listen(twin)
                    return
                assert isinstance(taken, Message), "a twin asks for no notices"
                if not self._pass_on(twin, taken):
                    twin.waiting = taken
                    self._full[twin] = now_ns() + _FULL_NS
                    return
                twin.waiting = None
        except OSError:  # the planes are being closed
            twin.is_over = True
            return
        self._told.append(twin)

    def _pass_on(self, twin: _Twin, message: Message) -> bool:
        """Send a message again, to the real mailbox; return false if that is full."""
        real, towards = twin.real, twin.towards
        sender = self._sender(towards, message.source)
        sender.route(real.local, towards.loop(local=sender.local, peer=real.local))
        target = socket_address(real.local, real.port)
        try:
            sender.send([message.payload], target, wait_ns=0, extension=message.extension)
        except OSError as refused:
            if refused.errno in _FULL:
                return False
            if refused.errno == errno.EBADF or self._driver.failed:
                raise
            self._warn(message, refused)
        return True

    def _sender(self, plane: Plane, source: SocketAddress) -> Mailbox:
        """Return the mailbox of a source in a plane: its twin or stand-in."""
        local, port = _address_of(source), source[1]
        side = self._sides[plane]
        twin = side.twins.get((local, port))
        if twin is not None:
            return twin.itself
        stand_in = side.stand_ins.get((local, port))
        if stand_in is None:
            settings = MailboxSettings(send_bytes_max=_SEND_BYTES_MAX)
            stand_in = plane.mailbox(local=local, port=port, settings=settings)
            side.stand_ins[local, port] = stand_in
            if len(side.stand_ins) > _STAND_INS_MAX:
                side.stand_ins.popitem(last=False)[1].close(0)
        else:
            side.stand_ins.move_to_end((local, port))
        return stand_in

    def _warn(self, message: Message, refused: OSError) -> None:
        """Log that a message is lost: one longer than the plane's limit, for one."""
        text = "a message of %d bytes from %s is dropped: %s"
        log = self._driver.log.part("delivery")
        log.warning(text, len(message.payload), message.source[0], refused)


def _address_of(source: SocketAddress) -> IPAddress:
    """Return the address of a source as a plane names it."""
    host, scope = source[0], source[3] if len(source) == 4 else 0
    return IPv6Address(f"{host}%{scope}") if scope else ip_address(host)
