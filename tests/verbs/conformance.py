"""What the conformance suite stands on: one world per provider, pairs of connected sides.

A `World` opens devices of one provider and makes pairs. It notes every request that completed
well, every status and every event that its sides saw. A test that declares with `shows` what it
shows is held to that: the fixture asks the world at the end. Each region lies between canaries
that have to be whole at the end of every test.
"""

from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.sim.plain_headers import emit_plain, parse_plain
from urds.common.implementation import missing
from urds.common.types import HostPort
from urds.verbs import (
    CQ,
    MR,
    PD,
    QP,
    SRQ,
    WC,
    AccessFlag,
    AddressVector,
    AHAttr,
    AsyncEvent,
    AsyncEventType,
    CompChannel,
    Context,
    GlobalRoute,
    QPAttr,
    QPAttrMask,
    QPCap,
    QPInitAttr,
    QPState,
    QPType,
    ReceiveOrder,
    RecvWR,
    SendFlag,
    SendWR,
    SrqAttr,
    VerbsNotSupportedError,
    VerbsTimeoutError,
    WCStatus,
    WROpcode,
)
from urds.verbs.engine.engine import Engine
from urds.verbs.providers.base import (
    ConnectionEventKind,
    ConnectParameters,
    PortSpace,
    VerbsConnection,
    VerbsConnectionEvent,
)
from urds.verbs.providers.shm import ShmAdapter
from urds.verbs.providers.sim import SimNetwork

# "bare" is a simulated device that states none of the capabilities one may lack, and whose packets
# say no more than InfiniBand's headers.
# "sim-lossless" is a simulated network without loss on the reference engine, "sim-native" the same
# on the compiled one: what passes on one passes on the other.
PROVIDERS = ("sim", "sim-lossless", "sim-native", "shm", "udp", "tcp", "bare")
SIMULATED = ("sim", "sim-lossless", "sim-native", "bare")
# Rows over shared memory, and what opens their devices in turns: the two sides of a pair in a row
# of two openers are of different ones.
SHM_OPENERS: dict[str, tuple[Callable[..., ShmAdapter], ...]] = {"shm": (ShmAdapter,)}
if not missing():
    from urds.verbs.providers.shm.native_adapter import NativeShmAdapter

    SHM_OPENERS["shm-native"] = (NativeShmAdapter,)
    SHM_OPENERS["shm-mixed"] = (NativeShmAdapter, ShmAdapter)
ROWS = (*PROVIDERS, *(row for row in SHM_OPENERS if row not in PROVIDERS))
LACKING = (
    "atomics", "masked_atomics", "datagrams", "send_with_imm", "rdma_with_imm", "memory_windows",
    "raw_connect",
)  # fmt: skip
EVERYTHING = (
    AccessFlag.LOCAL_WRITE
    | AccessFlag.REMOTE_WRITE
    | AccessFlag.REMOTE_READ
    | AccessFlag.REMOTE_ATOMIC
    | AccessFlag.MW_BIND
)
REGION_BYTES = 1 << 16
CANARY = bytes(range(200, 232)) * 16
QKEY = 0x1234
WAIT_S = 8.0
WAIT_NS = 8_000_000_000


def shows(*members: Enum) -> Callable[[Any], Any]:
    """Declare what a test shows; the fixture `world` asks at the end whether it happened."""

    def mark(function: Any) -> Any:
        function.shows = members
        return function

    return mark


def name_of(member: Enum) -> str:
    """Name a member with its family: numbers of different families are equal."""
    return f"{type(member).__name__}.{member.name}"


class Memory:
    """A region between canaries."""

    def __init__(
        self, pd: PD, length: int = REGION_BYTES, access: AccessFlag = EVERYTHING, **keywords: Any
    ) -> None:
        self.whole = bytearray(CANARY + bytes(length) + CANARY)
        view = memoryview(self.whole)[len(CANARY) : len(CANARY) + length]
        self.mr = MR(pd, view, access, **keywords)

    def is_guarded(self) -> bool:
        """Tell whether both canaries are whole."""
        return self.whole.startswith(CANARY) and self.whole.endswith(CANARY)


class Side:
    """A device with one of everything and a queue pair: RC in INIT, UD in RTS."""

    def __init__(
        self,
        world: "World",
        context: Context,
        *,
        qp_type: QPType = QPType.RC,
        cap: QPCap | None = None,
        cqe: int = 1024,
        srq: int = 0,
        sq_sig_all: bool = False,
        receive_order: ReceiveOrder = ReceiveOrder.IN_ORDER,
        access: AccessFlag = EVERYTHING,
    ) -> None:
        self.world, self.context = world, context
        self.pd = PD(context)
        self.channel = CompChannel(context)
        self.scq = CQ(context, cqe, channel=self.channel)
        self.rcq = CQ(context, cqe, channel=self.channel)
        self.memory = world.memory(self.pd)
        self.mr = self.memory.mr
        self.srq = SRQ(self.pd, SrqAttr(max_wr=srq, max_sge=2)) if srq else None
        self.init_attr = QPInitAttr(
            qp_type=qp_type,
            scq=self.scq,
            rcq=self.rcq,
            srq=self.srq,
            cap=cap or QPCap(max_send_wr=128, max_recv_wr=128),
            sq_sig_all=sq_sig_all,
            receive_order=receive_order,
        )
        self.attr = QPAttr(qp_access_flags=access, qkey=QKEY)
        self.qp = QP(self.pd, self.init_attr, self.attr)
        self.connection: VerbsConnection | None = None
        self.told: list[VerbsConnectionEvent] = []
        self._opcodes: dict[int, WROpcode] = {}

    # -- work

    def post(
        self,
        opcode: WROpcode = WROpcode.SEND,
        length: int = 8,
        *,
        offset: int = 0,
        to: MR | None = None,
        at: int = 0,
        flags: SendFlag = SendFlag.SIGNALED,
        wr_id: int = 0,
        qp: QP | None = None,
        **fields: Any,
    ) -> None:
        """Post a request with a piece of the memory, `to` naming remote memory at an offset."""
        sg = fields.pop("sg", None)
        if sg is None:
            sg = [self.mr.sge(offset, length)] if length else []
        wr = SendWR(wr_id, opcode, sg, flags, **fields)
        if to is not None:
            wr.rkey, wr.remote_addr = to.rkey, to.buf + at
        self._opcodes[wr_id] = opcode
        (qp or self.qp).post_send(wr)

    def receive(self, length: int = 64, *, offset: int = 0, wr_id: int = 0, count: int = 1) -> None:
        """Post receives, each `length` bytes after the one before."""
        target: QP | SRQ = self.qp if self.srq is None else self.srq
        for index in range(count):
            piece = [self.mr.sge(offset + index * length, length)] if length else []
            target.post_recv(RecvWR(wr_id + index, piece))

    def sent(self, count: int = 1) -> list[WC]:
        """Wait for completions of requests."""
        return self._noted(self.scq.wait_for(count, WAIT_S), is_send=True)

    def received(self, count: int = 1) -> list[WC]:
        """Wait for completions of receives."""
        return self._noted(self.rcq.wait_for(count, WAIT_S), is_send=False)

    def ended(self, count: int = 1) -> list[WCStatus]:
        """Wait for completions of requests and return how they ended."""
        return [wc.status for wc in self.sent(count)]

    def _noted(self, completions: list[WC], *, is_send: bool) -> list[WC]:
        for wc in completions:
            self.world.note(wc.status)
            if is_send and wc.status is WCStatus.SUCCESS and wc.wr_id in self._opcodes:
                self.world.note(self._opcodes[wc.wr_id])
        return completions

    def event(self, event_type: AsyncEventType) -> AsyncEvent:
        """Wait for the next asynchronous event, which has to be of this kind."""
        event = self.context.get_async_event(WAIT_S)
        self.world.note(event.event_type)
        assert event.event_type is event_type, event
        return event

    def no_event(self) -> None:
        """Show that no asynchronous event waits."""
        with pytest.raises(VerbsTimeoutError):
            self.context.get_async_event(0)

    # -- states and connections

    def modify(self, state: QPState, **fields: Any) -> None:
        """Lead the queue pair to a state that needs nothing beside it."""
        self.qp.modify(QPAttr(qp_state=state, **fields), QPAttrMask.STATE)

    def route(self) -> AHAttr:
        """Return the way to this side, for queue pairs led by hand and for datagrams."""
        return AHAttr(gr=GlobalRoute(self.context.query_gid()), udp_port=self.udp_port())

    def udp_port(self) -> int:
        """Return the UDP port of an opening that has one, 0 without."""
        adapter: Any = self.context.adapter
        if self.world.provider == "tcp":
            with adapter.lock:
                vector: AddressVector = adapter.datagrams.vector
            return vector.port
        return int(getattr(adapter, "port", 0))

    def take(self, event: VerbsConnectionEvent) -> None:
        """Note an event of the connection."""
        self.told.append(event)

    def until(self, *kinds: ConnectionEventKind) -> VerbsConnectionEvent:
        """Wait for an event of the connection of one of these kinds."""

        def find() -> VerbsConnectionEvent | None:
            return next((event for event in self.told if event.kind in kinds), None)

        assert self.context.adapter.wait(lambda: find() is not None, WAIT_NS), self.told
        found = find()
        assert found is not None
        return found


class Pair:
    """Two sides; `left` asks for the connection, `right` takes it."""

    def __init__(self, left: Side, right: Side) -> None:
        self.left, self.right = left, right

    def connect(self, between: Callable[[int], int] | None = None, **parameters: Any) -> "Pair":
        """Connect by the provider's connection manager, which every provider has.

        `between` takes the listener's port and returns another one that leads there.
        """
        told = ConnectParameters(**parameters)
        left, right = self.left, self.right

        def answer(event: VerbsConnectionEvent) -> None:
            right.connection = event.connection
            event.connection.on_event = right.take
            event.connection.accept(right.qp.engine, told)

        adapter = right.context.adapter
        with adapter.lock:
            listener = adapter.listen(
                left.world.address(right.context), PortSpace.TCP, backlog=8, on_event=answer
            )
        host, port = listener.local
        peer = (host, port if between is None else between(port))
        with left.context.adapter.lock:
            left.connection = left.context.adapter.connect(
                left.qp.engine, peer, PortSpace.TCP, told, on_event=left.take
            )
        for side in (left, right):
            side.until(ConnectionEventKind.ESTABLISHED)
        with adapter.lock:
            listener.close()
            listener.close()  # once more is nothing
        return self

    def by_hand(self, **attributes: Any) -> "Pair":
        """Lead both queue pairs to RTS by hand."""
        for side, peer in ((self.left, self.right), (self.right, self.left)):
            side.qp.to_rts(towards(peer, **attributes))
        return self


def towards(peer: Side, **attributes: Any) -> QPAttr:
    """Return what a reliable queue pair needs on its way from INIT to RTS."""
    given: dict[str, Any] = {
        "qp_access_flags": EVERYTHING, "ah_attr": peer.route(), "dest_qp_num": peer.qp.qp_num,
        "max_rd_atomic": 8, "max_dest_rd_atomic": 8, "min_rnr_timer": 6, "timeout": 14,
        "retry_cnt": 7, "rnr_retry": 7,
    }  # fmt: skip
    return QPAttr(**(given | attributes))


def network_of(provider: str) -> SimNetwork:
    """Return the network of a simulated provider."""
    if provider == "sim-native":
        native = pytest.importorskip("urds_native", reason="the compiled engine is not built")
        return SimNetwork(seed=1, lossless=True, engine=native.Engine)
    if provider == "sim-lossless":
        return SimNetwork(seed=1, lossless=True, engine=Engine)
    return SimNetwork(seed=1)


class World:
    """Devices of one provider; those that have a network listen at `host`.

    `row` is a provider, or one of `SHM_OPENERS`, whose provider is `shm`.
    """

    def __init__(self, row: str, directory: Path, *, host: str = "127.0.0.1") -> None:
        self.row = row
        self.provider = "shm" if row in SHM_OPENERS else row
        self._openers = SHM_OPENERS.get(row, ())
        self.host = host
        self.directory = directory
        self.network = network_of(self.provider)
        self.seen: set[str] = set()
        self.has_refused = False
        self._contexts: list[Context] = []
        self._memories: list[Memory] = []

    # -- what there is

    def context(self) -> Context:
        """Open a device."""
        if self.is_simulated:
            adapter = self.network.adapter()
            if self.provider == "bare":
                lacking: dict[str, Any] = dict.fromkeys(LACKING, False)
                lacking["receive_order"] = frozenset({ReceiveOrder.IN_ORDER})
                lacking["link"] = replace(adapter.attributes.link, names_places=False)
                adapter.attributes = replace(adapter.attributes, **lacking)
                bare: Any = adapter
                bare._emit = lambda packet: [emit_plain(packet, checksum=True)]
                bare._parse = partial(parse_plain, checksum=True)
            opened = Context(adapter=adapter)
        elif self.provider == "shm":
            opener = self._openers[len(self._contexts) % len(self._openers)]
            opened = Context(adapter=opener(directory=self.directory))
        else:
            opened = Context(f"{self.provider}0")
        self._contexts.append(opened)
        return opened

    def side(self, **keywords: Any) -> Side:
        """Open a device with a side; the keywords are those of `Side`."""
        return Side(self, self.context(), **keywords)

    def pair(self, *, connected: bool = True, rnr_retry: int = 7, **keywords: Any) -> Pair:
        """Make a pair; the keywords are those of `Side`, for both."""
        pair = Pair(self.side(**keywords), self.side(**keywords))
        return pair.connect(rnr_retry_count=rnr_retry) if connected else pair

    def memory(self, pd: PD, length: int = REGION_BYTES, **keywords: Any) -> Memory:
        """Register memory between canaries that are looked at in the end."""
        memory = Memory(pd, length, **keywords)
        self._memories.append(memory)
        return memory

    def address(self, context: Context) -> HostPort:
        """Return an address to listen at."""
        adapter: Any = context.adapter
        return (adapter.address if self.is_simulated else self.host, 0)

    @property
    def is_simulated(self) -> bool:
        """Tell whether time is virtual."""
        return self.provider in SIMULATED

    @property
    def is_lossless(self) -> bool:
        """Tell whether the link of the device loses nothing."""
        return self.provider in ("shm", "tcp", "sim-lossless", "sim-native")

    def lacks(self, capability: str) -> bool:
        """Tell whether the device states that it lacks something; then a refusal is shown."""
        found = self._contexts[0] if self._contexts else self.context()
        lacking = not getattr(found.attributes, capability)
        self.has_refused = self.has_refused or lacking
        return lacking

    def lacks_receive_order(self, receive_order: ReceiveOrder) -> bool:
        """Tell whether the device cannot accept so."""
        lacking = receive_order not in self.context().attributes.receive_order
        self.has_refused = self.has_refused or lacking
        return lacking

    # -- what happened

    def note(self, member: Enum) -> None:
        """Note that something was seen."""
        self.seen.add(name_of(member))

    def not_seen(self, *members: Enum) -> list[str]:
        """Return what was not seen of what a test claims to show."""
        return [name_of(one) for one in members if name_of(one) not in self.seen]

    def is_guarded(self) -> bool:
        """Tell whether all canaries are whole."""
        return all(memory.is_guarded() for memory in self._memories)

    def close(self) -> None:
        """Close every device."""
        for context in self._contexts:
            context.close()


def refuses(post: Callable[[], object]) -> None:
    """Show that a device refuses by name what it states that it lacks."""
    with pytest.raises(OSError) as caught:
        post()
    error = caught.value.__cause__ or caught.value
    assert isinstance(error, VerbsNotSupportedError), caught.value
    assert error.capability in str(caught.value)


def broke_in_order(statuses: list[WCStatus], first: WCStatus) -> None:
    """Show that the first of several requests failed for its reason and flushed the others."""
    assert statuses == [first] + [WCStatus.WR_FLUSH_ERR] * (len(statuses) - 1)
