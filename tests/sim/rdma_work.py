"""The applications of a world: what they send, ask of their peers' memory, take back and show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from random import Random

from tests.sim.rdma_judge import PING_PORT, Judge
from tests.sim.rdma_node import SimNode
from tests.sim.rdma_records import (
    CELLS,
    FIELD_BITS,
    FIELD_MASK,
    FIELDS,
    NO_CARRY,
    Asked,
    Memory,
    Region,
)
from urds.common.types import IPAddress
from urds.rds.constants import RdmaStatus
from urds.rds.plane.contract import AtomicOperation, RdmaTransfer
from urds.rds.plane.python.mailbox import Mailbox

SIZES = (0, 0, 8, 20, 20, 300, 300, 4_088, 4_096, 4_097, 9_000, 13_000)
BIG_SIZES = (30_000, 120_000)
REGIONS_MAX = 6  # of one node at a time
ALL_ONES = (1 << 64) - 1


class Work:
    """What the applications do; `nodes` is the world's own table, which changes."""

    def __init__(
        self,
        judge: Judge,
        random: Random,
        nodes: Mapping[IPAddress, SimNode],
        ports: tuple[int, ...],
        *,
        to_itself: bool,
    ) -> None:
        self.judge, self.random, self.nodes, self.ports = judge, random, nodes, ports
        self.to_itself = to_itself
        self.wrong_chance = random.choice([0.0, 0.0, 0.02, 0.1])
        self.refused: dict[str, int] = {}
        self._token = 0
        self._big_left = 3

    # -- what a round does

    def use(self) -> None:
        """Have every application do something."""
        random = self.random
        for node in list(self.nodes.values()):
            if random.random() < 0.3:
                self._show_region(node)
            for _ in range(random.choice([0, 1, 3, 8])):
                self._send_anything(node)
            if not node.receivers_stopped:
                for mailbox in node.mailboxes.values():
                    node.receive(mailbox, random.choice([1, 5, 50]))
            if random.random() < 0.1:
                self._cancel(node)
            if random.random() < 0.1:
                self._free_region(node)

    def routes(self) -> Iterator[tuple[SimNode, Mailbox, SimNode, int]]:
        """Return which node may send to which."""
        for source in list(self.nodes.values()):
            for target in list(self.nodes.values()):
                if source is target and not self.to_itself:
                    continue
                for mailbox in list(source.mailboxes.values()):
                    for port in self.ports:
                        yield source, mailbox, target, port

    def receive_all(self) -> None:
        """Have every application take what there is."""
        for node in self.nodes.values():
            for mailbox in node.mailboxes.values():
                node.receive(mailbox, 1 << 20)

    def _send_anything(self, node: SimNode) -> None:
        random = self.random
        targets = [one for one in self.nodes.values() if one is not node or self.to_itself]
        if not targets:
            return
        mailbox, target = random.choice(list(node.mailboxes.values())), random.choice(targets)
        if random.random() < 0.05:
            self._ping(mailbox, target)
        else:
            self.send(node, mailbox, target, random.choice(self.ports))

    def _ping(self, mailbox: Mailbox, target: SimNode) -> None:
        with suppress(OSError):
            mailbox.send([b""], (str(target.address), PING_PORT), wait_ns=0)
            self.judge.pings[mailbox.local, mailbox.port, str(target.address)] += 1

    def send(
        self, node: SimNode, mailbox: Mailbox, target: SimNode, port: int, *, plain: bool = False
    ) -> bool:
        """Send one message; false if it was refused, as a socket refuses it."""
        random = self.random
        asked = [] if plain or random.random() < 0.6 else self._ask_of(target)
        size = 20 if plain else self._size()
        silent = bool(asked) and not size and all(one.operation.silent for one in asked)
        flow = self.judge.flow(node, mailbox, str(target.address), port)
        if not flow.sent and target.is_first_life:
            flow.first_target = target.mailboxes[port]
        sent = self.judge.compose(flow, size, random=random, asked=asked, silent=silent)
        for one in asked:
            self.judge.ask(one, node)
        self.judge.accept(flow, sent)
        try:
            mailbox.send(
                [sent.payload],
                (str(target.address), port),
                wait_ns=0,
                extension=sent.extension,
                operations=[one.operation for one in asked],
            )
        except OSError as error:
            name = str(error.errno)
            self.refused[name] = self.refused.get(name, 0) + 1
            flow.sent.pop()
            self.judge.forget(asked)
            return False
        return True

    def _size(self) -> int:
        if self._big_left and self.random.random() < 0.05:
            self._big_left -= 1
            return self.random.choice(BIG_SIZES)
        return self.random.choice(SIZES)

    def _cancel(self, node: SimNode) -> None:
        """Take back what a socket has sent and its peer has not acknowledged."""
        random = self.random
        mailbox = random.choice(list(node.mailboxes.values()))
        peer = random.choice([None, *self.nodes])
        port = None if peer is None else random.choice([None, *self.ports])
        for flow in self.judge.flows:
            if flow.mailbox is not mailbox or peer not in (None, *self._named(flow.receiver)):
                continue
            if port in (None, flow.target_port):
                self._take_back(flow.number)
        mailbox.cancel(peer, port)

    def _named(self, receiver: str) -> tuple[IPAddress, ...]:
        return tuple(address for address in self.nodes if str(address) == receiver)

    def _take_back(self, flow_number: int) -> None:
        for sent in self.judge.flows[flow_number].sent:
            if not sent.is_delivered:
                sent.was_cancelled = True
            for one in sent.asked:  # of one that is there the completion may be on its way
                one.was_cancelled = True

    def note_closed(self, mailbox: Mailbox) -> None:
        """Note that a socket is about to be closed: what it has sent may be taken back."""
        for flow in self.judge.flows:
            if flow.mailbox is mailbox:
                self._take_back(flow.number)

    def note_dead(self, node: SimNode) -> None:
        """Note that a life is over: nothing that it has sent must arrive."""
        for flow in self.judge.flows:
            if flow.sender is node:
                self._take_back(flow.number)

    # -- memory

    def _show_region(self, node: SimNode) -> None:
        """Register memory for peers."""
        own = [one for one in self.judge.regions if one.node is node and one.is_usable]
        if len(own) < REGIONS_MAX:
            mailbox = self.random.choice(list(node.mailboxes.values()))
            self.judge.regions.append(Region(node, mailbox, self.random))

    def _free_region(self, node: SimNode) -> None:
        own = [one for one in self.judge.regions if one.node is node and one.is_usable]
        if own:
            self.random.choice(own).free()

    def free_regions(self) -> None:
        """Take all regions back."""
        for region in self.judge.regions:
            if region.is_usable:
                region.free()

    # -- operations

    def _ask_of(self, target: SimNode) -> list[Asked]:
        """Return operations on the memory of a node, none if it shows none."""
        random = self.random
        regions = [
            one
            for one in self.judge.regions
            if one.node is target
            and one.is_usable
            and (not one.use_once or not one.asked or random.random() < self.wrong_chance)
        ]
        if not regions:
            return []
        asked: list[Asked] = []
        for _ in range(random.choice([1, 1, 1, 2])):
            region = random.choice(regions)
            ways = [self._read]
            if region.writable:
                ways += [self._write, self._write, self._atomic]
            if random.random() < self.wrong_chance:
                ways = [self._wrong]
            one = random.choice(ways)(region)
            if one is not None:
                asked.append(one)
        return asked

    def _common(self) -> dict[str, object]:
        random = self.random
        self._token += 1
        return {
            "token": self._token,
            "notify": random.random() < 0.5,
            "report_failure": random.random() < 0.3,
            "silent": random.random() < 0.3,
            "fence": random.random() < 0.3,
        }

    def _pieces(self, memory: Memory) -> tuple[memoryview, ...]:
        """Cut local memory into pieces."""
        length = len(memory.view)
        count = min(self.random.choice([1, 1, 2, 5]), length)
        cuts = sorted(self.random.sample(range(1, length), count - 1)) if count > 1 else []
        return tuple(
            memory.view[first:end] for first, end in zip([0, *cuts], [*cuts, length], strict=True)
        )

    def _transfer(self, region: Region, at: int, memory: Memory, *, is_write: bool) -> RdmaTransfer:
        return RdmaTransfer(
            key=region.cookie & 0xFFFF_FFFF,
            remote_address=region.remote_address(at),
            is_write=is_write,
            pieces=self._pieces(memory),
            **self._common(),  # type: ignore[arg-type]  # flags and a number
        )

    def _read(self, region: Region) -> Asked:
        random = self.random
        length = random.randrange(1, region.read_bytes + 1)
        at = random.randrange(region.read_bytes - length + 1)
        memory = Memory(bytes(length))
        operation = self._transfer(region, at, memory, is_write=False)
        return Asked(operation, memory, region, at, expected=region.initial[at : at + length])

    def _write(self, region: Region) -> Asked | None:
        """Write to a place of its own."""
        room = len(region.initial) - region.next_free
        if not room:
            return None
        length = min(room, self.random.choice([1, 100, 5_000, 20_000]))
        at = region.next_free
        region.next_free += length
        data = self.random.randbytes(length)
        memory = Memory(data)
        operation = self._transfer(region, at, memory, is_write=True)
        return Asked(operation, memory, region, at, expected=data)

    def _atomic(self, region: Region) -> Asked | None:
        """Count in a field that is this operation's own."""
        random = self.random
        cell = random.randrange(CELLS)
        if region.fields_used[cell] == FIELDS:
            return None
        shift = region.fields_used[cell] * FIELD_BITS
        region.fields_used[cell] += 1
        memory = Memory(bytes(8))
        kind = random.choice(["add", "masked add", "masked swap", "unequal swap"])
        is_compare = kind.endswith("swap")
        masks = {
            "add": {"operand": 1 << shift},
            "masked add": {"operand": 1 << shift, "no_carry_mask": NO_CARRY},
            "masked swap": {
                "operand": 0,
                "swap": 1 << shift,
                "compare_mask": FIELD_MASK << shift,
                "swap_mask": FIELD_MASK << shift,
            },
            "unequal swap": {"operand": ALL_ONES, "swap": 1 << shift},
        }[kind]
        operation = AtomicOperation(
            key=region.cookie & 0xFFFF_FFFF,
            remote_address=region.remote_address(region.cells_at + 8 * cell),
            is_compare=is_compare,
            result=memory.view,
            **masks,
            **self._common(),  # type: ignore[arg-type]  # flags and a number
        )
        done = sum(
            1 << one.shift
            for one in region.asked
            if one.at == cell
            and one.changes
            and isinstance(one.operation, AtomicOperation)
            and one.told is RdmaStatus.SUCCESS
        )
        return Asked(
            operation, memory, region, cell, shift=shift, changes=kind != "unequal swap",
            done_before=done,
        )  # fmt: skip

    def _wrong(self, region: Region) -> Asked:
        """Ask for what must be refused."""
        random = self.random
        if region.writable and random.random() < 0.2:
            return self._wrong_atomic(region)
        memory = Memory(bytes(random.choice([1, 50, 5_000])))
        length = len(memory.view)
        is_write = random.random() < 0.7
        ways = ["no key", "own memory", "behind", "before"]
        if not region.writable:
            ways += ["read only"]
        way = random.choice(ways)
        # The first packet goes beyond the end: those before it would be done.
        at = {"behind": len(region.initial) - (length > 1), "before": -1}.get(way, 0)
        operation = self._transfer(region, at, memory, is_write=is_write or way == "read only")
        if way == "behind" and len(operation.pieces) > 1:
            operation.remote_address += 1  # a first piece of one byte would be done
        operation.remote_address %= 1 << 64
        if way == "no key":
            operation.key ^= random.choice([1, 0xFF, 1 << 20])
        elif way == "own memory":
            # Counted up from the first: the receives of a link.
            operation.key = random.randrange(1, 6) << 8
        return Asked(operation, memory, region, is_wrong=True)

    def _wrong_atomic(self, region: Region) -> Asked:
        """Ask for eight bytes that begin between two cells."""
        memory = Memory(bytes(8))
        operation = AtomicOperation(
            key=region.cookie & 0xFFFF_FFFF,
            remote_address=region.remote_address(region.cells_at + 4),
            is_compare=False,
            operand=ALL_ONES,
            result=memory.view,
            **self._common(),  # type: ignore[arg-type]  # flags and a number
        )
        return Asked(operation, memory, region, is_wrong=True)
