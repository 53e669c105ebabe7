"""A plane with a clock of the test's, and a path whose messages the test carries.

The path is also the witness of the lock: each of its calls says whether it was made as the contract
of `rds.plane.message_transport` has it.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from ipaddress import IPv4Address, ip_address

from urds.common.types import IPAddress
from urds.rds.constants import RdmaStatus
from urds.rds.plane.contract import (
    Buffer,
    Event,
    Limits,
    MailboxSettings,
    MessageRow,
    Operation,
    PathRow,
    RdmaTransfer,
)
from urds.rds.plane.python.accounts import Destination
from urds.rds.plane.python.mailbox import Mailbox
from urds.rds.plane.python.plane import Plane
from urds.rds.plane.python.send_side import SendSide

LOCAL, PEER, OTHER = (ip_address(f"127.0.84.{number}") for number in (1, 2, 3))
PORT, PEER_PORT = 5000, 4000
TARGET = (str(PEER), PEER_PORT)
MS = 1_000_000

# (sender, target port, payload, extension, operations)
Queued = tuple[SendSide, int, Buffer, bytes, Sequence[Operation]]


class FakePath:
    """A `MessageTransport` that keeps what it is given and writes down what it is told."""

    def __init__(self, plane: Plane, peer: IPAddress = PEER) -> None:
        self.local = LOCAL
        self.peer = peer
        self.index = 0
        self.full = False
        self.message_bytes_max = 1 << 20
        self.room_wanted: set[SendSide] = set()
        self.destinations: dict[SendSide, Destination] = {}
        self.absent = False
        self.queued: list[Queued] = []
        self.told: list[str] = []
        self.ended_by_ns = 0
        self._plane = plane

    def _tell(self, what: str, *, locked: bool) -> None:
        holds = self._plane.state.holds_lock()
        assert holds is locked, f"{what} with the plane's lock {not locked}"
        self.told.append(what)

    def queue(
        self,
        sender: SendSide,
        target_port: int,
        payload: Buffer,
        extension: bytes,
        operations: Sequence[Operation],
    ) -> None:
        self._tell("queue", locked=True)
        self.queued.append((sender, target_port, payload, extension, operations))
        sender.send_queued_bytes += len(payload)

    def want(self) -> None:
        self._tell("want", locked=True)

    def cancel(self, mailbox: SendSide, port: int | None) -> int:
        self._tell("cancel", locked=True)
        gone = [one for one in self.queued if one[0] is mailbox and port in (None, one[1])]
        for one in gone:
            self.queued.remove(one)
            mailbox.send_queued_bytes -= len(one[2])
            mailbox.give_back(self, len(one[2]))
            for operation in one[4]:
                operation.status = RdmaStatus.CANCELED
                mailbox.note_operation(operation)
        self._plane.state.counters.send_cancelled += len(gone)
        return len(gone)

    def give_up(self, mailbox: SendSide) -> int:
        self._tell("give_up", locked=True)
        return self.cancel(mailbox, None)

    def holds(self, mailbox: SendSide | None = None) -> bool:
        self._tell("holds", locked=True)
        return any(mailbox in (None, one[0]) for one in self.queued)

    def note_map_due(self) -> None:
        self._tell("note_map_due", locked=True)

    def counts(self, mailbox: SendSide | None = None) -> tuple[int, int]:
        self._tell("counts", locked=True)
        return sum(mailbox in (None, one[0]) for one in self.queued), 0

    def row(self) -> PathRow:
        self._tell("row", locked=True)
        row = {one.name: 0 for one in fields(PathRow)}
        row |= {"local": self.local, "peer": self.peer, "unsent_messages": len(self.queued)}
        return PathRow(**row)

    def unsent_rows(self) -> list[MessageRow]:
        self._tell("unsent_rows", locked=True)
        return [
            MessageRow(0, len(one[2]), self.local, one[0].port, self.peer, one[1])
            for one in self.queued
        ]

    def sent_rows(self) -> list[MessageRow]:
        self._tell("sent_rows", locked=True)
        return [MessageRow(6, 10, self.local, PORT, self.peer, PEER_PORT)]

    def push(self) -> None:
        self._tell("push", locked=False)

    def push_soon(self) -> None:
        self._tell("push_soon", locked=False)

    def resume(self) -> None:
        self._tell("resume", locked=False)

    def serve(self) -> None:
        self._tell("serve", locked=False)

    def end(self, until_ns: int) -> None:
        self._tell("end", locked=False)
        self.ended_by_ns = until_ns

    def abandon_in_child(self) -> None:
        self.told.append("abandon_in_child")

    # -- what a transport does

    def carry_all(self) -> None:
        """Have the peer acknowledge everything."""
        with self._plane.state.lock:
            for sender, _, payload, _, _ in self.queued:
                sender.send_queued_bytes -= len(payload)
                sender.note_freed(self, len(payload))
            self.queued.clear()
        self._plane.passes.finish_pass()

    def plan(self, ms: float) -> None:
        """Have the path served so much later."""
        with self._plane.state.lock:
            self._plane.state.note_due(self, self._plane.state.clock_ns() + round(ms * MS))
        self._plane.passes.finish_pass()

    def judge(self, *, full: bool) -> None:
        """Come to the bound of messages, or leave it."""
        with self._plane.state.lock:
            self.full = full
            self._plane.state.note_full(self)
            if not full:
                self._plane.state.note_path_room(self)
        self._plane.passes.finish_pass()

    def end_operation(self, mailbox: Mailbox, operation: Operation, status: RdmaStatus) -> None:
        """Have an operation end."""
        with self._plane.state.lock:
            operation.status = status
            mailbox.sends.note_operation(operation)
        self._plane.passes.finish_pass()

    def arrive(
        self,
        payload: bytes,
        *,
        source_port: int = PEER_PORT,
        port: int = PORT,
        extension: bytes = b"",
    ) -> bool:
        """Have a message come in; return whether more may."""
        with self._plane.state.lock:
            goes_on = self._plane.state.deliver_from_transport(
                self, source_port, port, payload, extension
            )
        self._plane.passes.finish_pass()
        return goes_on

    def arrive_map(self, *ports: int) -> None:
        """Have a map of the peer come in."""
        data = bytearray(8192)
        for port in ports:
            data[port >> 3] |= 1 << (port & 7)
        with self._plane.state.lock:
            host = self._plane.state.hosts[self.local]
            self._plane.state.note_peer_map(host, self.peer, bytes(data), exact=True)
        self._plane.passes.finish_pass()


class MessageTransportWorld:
    """A plane, one address, one path of a message transport to each peer."""

    def __init__(self, limits: Limits | None = None, *, virtual: bool = True) -> None:
        self.now_ns = 1_000 * MS
        self.plane = Plane(
            limits=limits or Limits(),
            resolve=self.resolve,
            clock_ns=(lambda: self.now_ns) if virtual else None,
        )
        self.paths: dict[IPAddress, FakePath] = {}

    def resolve(self, mailbox: Mailbox, peer: IPv4Address) -> None:
        mailbox.route(peer, self.path(peer))

    def path(self, peer: IPAddress = PEER) -> FakePath:
        path = self.paths.get(peer)
        if path is None:
            path = self.paths[peer] = FakePath(self.plane, peer)
            self.plane.add_message_transport(path)
        return path

    def mailbox(self, port: int = PORT, **settings: object) -> Mailbox:
        return self.plane.mailbox(local=LOCAL, port=port, settings=MailboxSettings(**settings))

    def turn(self, ms: float = 0) -> list[Event]:
        self.now_ns += round(ms * MS)
        self.plane.progress()
        return self.plane.help(0)

    def counter(self, name: str) -> int:
        return self.plane.snapshot().counters[name]

    def close(self) -> None:
        self.plane.close(0)
        self.plane.release()


def transfer(token: int = 1, *, notify: bool = True, report_failure: bool = False) -> RdmaTransfer:
    """Return a write of nothing in particular."""
    return RdmaTransfer(
        key=7,
        remote_address=0,
        token=token,
        notify=notify,
        report_failure=report_failure,
        is_write=True,
        pieces=(memoryview(b"octets"),),
    )


def wait_until(condition: Callable[[], bool]) -> None:
    """Let other threads run until something holds, for five seconds at most."""
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline, "it never came to be"
        os.sched_yield()
