"""What was sent over RDMA and what was asked of the peer's memory, and whether what came is right.

A *flow* is what one bound socket sends to one port of one address. Its messages come in order and
once, whatever happens; one is missing only if it was taken back, if an operation of it says that it
failed, or if the receiver's life ended with it. What operations did is seen in memory.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from struct import Struct
from typing import TYPE_CHECKING

from tests.sim.rdma_records import CELL_BYTES, CELLS, FIELD_MASK, Asked, Flow, Region, Sent
from urds.common.types import IPAddress
from urds.rds.constants import ExtensionType, RdmaStatus
from urds.rds.plane.contract import (
    AtomicOperation,
    Message,
    Operation,
    OperationNotice,
    RdmaTransfer,
)
from urds.rds.plane.python.mailbox import Mailbox
from urds.rds.wire import extensions as exthdr

if TYPE_CHECKING:
    from tests.sim.rdma_node import SimNode

PING_PORT = 0
_HEAD = Struct(">II")


class Judge:
    """The referee of one world; every failure names its seed."""

    def __init__(self, seed: object, *, gives_up: bool) -> None:
        self.seed = seed
        self.gives_up = gives_up  # senders may drop messages, and count them
        self.flows: list[Flow] = []
        self.regions: list[Region] = []
        self.asked: dict[Operation, Asked] = {}
        self.pings: Counter[tuple[IPAddress, int, str]] = Counter()  # not answered yet
        self.pongs = 0
        self.delivered = 0
        self.statuses: list[RdmaStatus] = []
        self._by_route: dict[tuple[Mailbox, str, int], Flow] = {}
        self._notices: dict[Mailbox, list[OperationNotice]] = {}

    def fail(self, what: str) -> AssertionError:
        """Return the failure to be raised."""
        return AssertionError(f"seed {self.seed}: {what}")

    def demand(self, is_well: bool, what: Callable[[], str]) -> None:
        """Raise the failure unless all is well."""
        if not is_well:
            raise self.fail(what())

    # -- messages

    def flow(self, sender: SimNode, mailbox: Mailbox, receiver: str, port: int) -> Flow:
        """Return the flow of a socket to a port."""
        route = (mailbox, receiver, port)
        flow = self._by_route.get(route)
        if flow is None:
            flow = Flow(len(self.flows), sender, mailbox, receiver, port)
            self._by_route[route] = flow
            self.flows.append(flow)
        return flow

    def compose(
        self, flow: Flow, size: int, *, random: Random, asked: list[Asked], silent: bool
    ) -> Sent:
        """Return the flow's next message; an empty one says in its extension which it is."""
        number = len(flow.sent)
        head = _HEAD.pack(flow.number, number)
        payload = (head + random.randbytes(max(0, size - len(head)))) if size else b""
        extension = b""
        if not silent and (not size or random.random() < 0.2):
            values = (flow.number, number)
            extension = exthdr.emit([exthdr.Extension(ExtensionType.RDMA_DEST, values)])
        return Sent(number, payload, extension, asked, silent)

    def accept(self, flow: Flow, sent: Sent) -> None:
        """Note that a message was queued."""
        flow.sent.append(sent)

    def deliver(self, node: SimNode, mailbox: Mailbox, message: Message) -> None:
        """Judge a message that an application took."""
        if message.source[1] == PING_PORT:
            self._take_pong(mailbox, message)
            return
        flow, sent = self._find(message.payload, message.extension)
        where = f"{flow.name()}, message {sent.number}"
        expected = (str(flow.mailbox.local), flow.mailbox.port)
        self.demand(message.source[:2] == expected, lambda: f"{where} is from {message.source}")
        named = (str(node.address), mailbox.port)
        self.demand(named == (flow.receiver, flow.target_port), lambda: f"{where} came to {named}")
        self.demand(
            sent.number > flow.came, lambda: f"{where}: doubled or reordered, {flow.came} came"
        )
        self.demand(message.payload == sent.payload, lambda: f"{where} came damaged")
        self._check_extension(mailbox, message, sent, where)
        self._check_gap(flow, sent, mailbox)
        flow.came, flow.came_to = sent.number, mailbox
        sent.is_delivered = True
        sent.payload = b""  # it is not looked at again
        self.delivered += 1

    def _take_pong(self, mailbox: Mailbox, message: Message) -> None:
        """Judge a pong: it is empty, and was asked for."""
        route = (mailbox.local, mailbox.port, message.source[0])
        self.pongs += 1
        self.pings[route] -= 1
        is_well = self.pings[route] >= 0 and not message.payload and not message.extension
        self.demand(is_well, lambda: f"{mailbox.local} {mailbox.port} was sent {message}")

    def arrive(self, source_port: int, payload: bytes, extension: bytes) -> None:
        """Judge a message that is about to lie in its inbox: its operations are done."""
        if source_port == PING_PORT:
            return
        flow, sent = self._find(payload, extension)
        where = f"{flow.name()}, message {sent.number}"
        for one in sent.asked:
            if one.is_wrong:
                raise self.fail(f"{where} came, its operation is wrong")
            self._check_effect(one, where)
            self._check_fence(one, where)

    def _find(self, payload: bytes, extension: bytes) -> tuple[Flow, Sent]:
        data = payload[: _HEAD.size]
        if not data:
            entries = exthdr.parse(extension or bytes(exthdr.EXTENSION_BYTES))
            values = entries[0].values if entries else ()
        else:
            values = _HEAD.unpack(data.ljust(_HEAD.size, b"\0"))
        if len(values) != 2 or values[0] >= len(self.flows):
            raise self.fail(f"{data!r} with {extension!r} has no owner")
        flow = self.flows[values[0]]
        self.demand(values[1] < len(flow.sent), lambda: f"{flow.name()}: {values[1]} came")
        return flow, flow.sent[values[1]]

    def _check_extension(self, mailbox: Mailbox, message: Message, sent: Sent, where: str) -> None:
        keys = [
            exthdr.Extension(ExtensionType.RDMA, (one.operation.key,))
            for one in sent.asked
            if isinstance(one.operation, RdmaTransfer)
        ]
        expected = exthdr.emit([*(exthdr.parse(sent.extension) if sent.extension else ()), *keys])
        came = message.extension or bytes(exthdr.EXTENSION_BYTES)
        self.demand(came == expected, lambda: f"{where} has the extension {came.hex()}")
        used = [entry.values[0] for entry in exthdr.parse(came) if entry.type == ExtensionType.RDMA]
        for region in (one.region for one in sent.asked):
            is_its_own = region.mailbox is mailbox  # others' are not the message's to use up
            if is_its_own and region.use_once and region.cookie & 0xFFFF_FFFF in used:
                is_there = region.node.regions.owns(region.mailbox, region.cookie)
                self.demand(not is_there, lambda: f"{where} used a region that is still there")

    def _check_gap(self, flow: Flow, sent: Sent, mailbox: Mailbox) -> None:
        """Check that a socket that was there before has got everything in between."""
        if mailbox is flow.came_to or (flow.came_to is None and mailbox is flow.first_target):
            self.check_missing(flow, flow.came + 1, sent.number)

    def check_missing(self, flow: Flow, first: int, end: int) -> None:
        """Demand a reason for every message that did not come."""
        if self.gives_up and flow.mailbox.sends.given_up:
            return
        for missing in flow.sent[first:end]:
            self.demand(
                missing.may_be_missing,
                lambda missing=missing: f"{flow.name()}: lost {missing.number}, end {end}",
            )

    # -- operations

    def ask(self, asked: Asked, sender: SimNode) -> None:
        """Note an operation of a message that is about to be queued."""
        asked.sender = sender
        self.asked[asked.operation] = asked
        asked.region.asked.append(asked)

    def forget(self, asked: list[Asked]) -> None:
        """Forget operations of a message that was not queued."""
        for one in asked:
            del self.asked[one.operation]
            one.region.asked.remove(one)

    def end_operation(self, mailbox: Mailbox, operation: Operation) -> None:
        """Judge how an operation ended; from here on its local bytes stay untouched."""
        one = self.asked[operation]
        status = operation.status
        where = f"operation {operation.token}"
        self.demand(one.told is None, lambda: f"{where} ended as {one.told}, then as {status}")
        self.demand(status is not None, lambda: f"{where} ended without a status")
        assert status is not None
        one.told = status
        self.statuses.append(status)
        if operation.wants_notice and not mailbox.closed:
            self._notices.setdefault(mailbox, []).append(OperationNotice(operation.token, status))
        self.demand(
            status is not RdmaStatus.CANCELED or one.was_cancelled,
            lambda: f"{where} was not cancelled by the application",
        )
        self.demand(
            status is not RdmaStatus.REMOTE_ERROR or self._may_be_refused(one),
            lambda: f"{where} was refused, and its region is there",
        )
        if status is RdmaStatus.SUCCESS:
            self.demand(not one.is_wrong, lambda: f"{where} is wrong and succeeded")
            self._check_effect(one, where)
            self._check_result(one, where)
        if one.is_write():
            one.local.view[:] = bytes(len(one.local.view))  # it is the application's again
        one.left = bytes(one.local.view)

    def _may_be_refused(self, one: Asked) -> bool:
        return one.is_wrong or not one.region.is_usable or one.region.use_once

    def _check_effect(self, one: Asked, where: str) -> None:
        """See that what an operation does to the region is there."""
        region = one.region
        if one.is_write():
            here = region.memory.view[one.at : one.at + len(one.expected)]
            self.demand(here == one.expected, lambda: f"{where}: the write is not there")
        elif isinstance(one.operation, AtomicOperation):
            count = region.cell(one.at) >> one.shift & FIELD_MASK
            self.demand(count == one.changes, lambda: f"{where}: done {count} times")

    def _check_fence(self, one: Asked, where: str) -> None:
        """See that a message which waits for its read comes when that is done."""
        operation = one.operation
        if isinstance(operation, RdmaTransfer) and not operation.is_write and operation.fence:
            self.demand(one.told is not None, lambda: f"{where} came before its read was done")

    def _check_result(self, one: Asked, where: str) -> None:
        """See that what an operation brings is right."""
        if not isinstance(one.operation, AtomicOperation):
            is_right = one.is_write() or one.local.view == one.expected
            self.demand(is_right, lambda: f"{where}: the read brought other bytes")
            return
        old = int.from_bytes(one.local.view, sys.byteorder)
        self.demand(not old >> one.shift & FIELD_MASK, lambda: f"{where}: it found itself done")
        self.demand(
            old & one.done_before == one.done_before,
            lambda: f"{where}: found {old:#x}, done was {one.done_before:#x}",
        )

    def check_notices(self, mailbox: Mailbox, notices: tuple[OperationNotice, ...]) -> None:
        """Judge what a socket was told: each end once, in the order in which they came."""
        expected = self._notices.get(mailbox, [])
        count = len(notices)
        self.demand(
            expected[:count] == list(notices),
            lambda: f"{mailbox.port} was told {notices}, not {expected[:count]}",
        )
        del expected[:count]

    # -- memory

    def check_memory(self) -> None:
        """Judge all regions and all local memory, as they are now."""
        for region in self.regions:
            self._check_region(region)
        for one in self.asked.values():
            where = f"operation {one.operation.token}"
            self.demand(one.local.is_whole(), lambda where=where: f"{where}: wrote beside")
            self.demand(
                one.told is None or one.local.view == one.left,
                lambda where=where: f"{where}: its memory changed after its end",
            )

    def _check_region(self, region: Region) -> None:
        where = f"region {region.cookie:#x}"
        self.demand(region.memory.is_whole(), lambda: f"{where}: written beside it")
        data = bytes(region.memory.view)
        self.demand(
            region.at_the_end in (None, data), lambda: f"{where} changed after it was freed"
        )
        expected = bytearray(region.initial)
        for one in region.asked:
            place = slice(one.at, one.at + len(one.expected))
            if one.is_write() and not one.is_wrong:
                pairs = zip(data[place], region.initial[place], one.expected, strict=True)
                self.demand(
                    all(byte in (old, new) for byte, old, new in pairs),
                    lambda: f"{where}: a write brought other bytes",
                )
                expected[place] = data[place]
        for number in range(CELLS):
            start = region.cells_at + number * CELL_BYTES
            place = slice(start, start + CELL_BYTES)
            expected[place] = data[place]
            self._check_cell(region, number)
        self.demand(expected == data, lambda: f"{where}: bytes changed without a write")

    def _check_cell(self, region: Region, number: int) -> None:
        """No operation was done twice, and nothing else changed the cell."""
        value = region.cell(number)
        for one in region.asked:
            if isinstance(one.operation, AtomicOperation) and one.at == number and not one.is_wrong:
                count = value >> one.shift & FIELD_MASK
                value &= ~(FIELD_MASK << one.shift)
                self.demand(
                    count <= one.changes,
                    lambda one=one, count=count: f"{one.operation.token} was done {count} times",
                )
        self.demand(not value, lambda: f"cell {number} of {region.cookie:#x} holds {value:#x}")

    # -- the end

    def check_end(
        self, nodes: Mapping[IPAddress, SimNode], *, counted_ports: tuple[int, ...]
    ) -> None:
        """Judge what is left once all is quiet.

        counted_ports: those whose lost messages their senders have counted as given up.
        """
        lost: dict[Mailbox, int] = {}
        targets = {str(address): node.mailboxes for address, node in nodes.items()}
        for flow in self.flows:
            if not flow.sender.is_alive or flow.mailbox.closed:
                continue
            target = targets.get(flow.receiver)
            if target is None:
                continue  # gone for good
            if flow.came_to is target[flow.target_port]:
                self.check_missing(flow, flow.came + 1, len(flow.sent))
            if flow.target_port in counted_ports:
                missing = [one for one in flow.sent if not one.is_delivered]
                count = sum(not one.may_be_missing for one in missing)
                lost[flow.mailbox] = lost.get(flow.mailbox, 0) + count
        for mailbox, count in lost.items():
            if count > mailbox.sends.given_up:
                where = f"{mailbox.local} port {mailbox.port}"
                raise self.fail(f"{where} lost {count}, gave up {mailbox.sends.given_up}")
        self._check_operations()
        self.check_memory()

    def _check_operations(self) -> None:
        for one in self.asked.values():
            told, status = one.told, one.operation.status
            if one.sender is not None and one.sender.is_alive and (told is None or told != status):
                raise self.fail(
                    f"operation {one.operation.token} is {status}, was told to be {told}"
                )
        for mailbox, notices in self._notices.items():
            if notices and not mailbox.closed:
                raise self.fail(f"{mailbox.local} port {mailbox.port} was not told {notices}")
