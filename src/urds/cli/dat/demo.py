"""`urds dat demo`: receive buffers while messages overtake each other, as `recv_query` sees them.

Two endpoints on a simulated network, the receiving one on a shared receive queue. The script lets
the packets of messages 19 to 23, two of each, arrive in its order, and queries the endpoint after
each step. Source: docs/reference/dat.md 13.2, the worked example of dat_ep_recv_query(3DAT).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Final

from urds import dat
from urds.cli.dat.test_peer import connect_endpoints
from urds.cli.output import BAD, GOOD, Exit, Output, columns
from urds.cli.parser import Command, json_option
from urds.verbs.engine.numbers import ReceiveOrder
from urds.verbs.engine.packets import PacketKind
from urds.verbs.providers.sim import PacketHold, SimNetwork

COMPLETED: Final = 18
_LAST: Final = 23
_QUAL: Final = 4000
_PACKET_BYTES: Final = 4096
_MESSAGE_BYTES: Final = 2 * _PACKET_BYTES
_BUFFERS: Final = 30
_WAIT_S: Final = 5.0
_STEP_NS: Final = 1000  # of virtual time: long before the sender retries anything

STRATEGIES: Final = (ReceiveOrder.ARRIVAL_ORDER, ReceiveOrder.FILL_GAPS)


@dataclass(frozen=True, slots=True)
class Step:
    """Packets that arrive, as (message, which half), and the (nbufs, span) after them."""

    text: str
    packets: tuple[tuple[int, int], ...]
    arrival_order: tuple[int, int]
    fill_gaps: tuple[int, int]


STEPS: Final = (
    Step("nothing in flight, 18 completed", (), (0, 0), (0, 0)),
    Step("19 starts", ((19, 0),), (1, 1), (1, 1)),
    Step("22 starts", ((22, 0),), (2, 4), (4, 4)),
    Step("23 starts", ((23, 0),), (3, 5), (5, 5)),
    Step("19 completes", ((19, 1),), (2, 4), (4, 4)),
    Step("20 starts and completes", ((20, 0), (20, 1)), (2, 3), (3, 3)),
    Step("21 starts", ((21, 0),), (3, 3), (3, 3)),
    Step("21 completes, releasing 22", ((22, 1), (21, 1)), (1, 1), (1, 1)),
    Step("23 completes", ((23, 1),), (0, 0), (0, 0)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatDemoOptions:
    """Options of `urds dat demo`."""

    json_wanted: bool = json_option()


@dataclass(frozen=True, slots=True)
class Row:
    """The counts of the endpoint and its shared queue after a step."""

    strategy: str
    step: str
    completed: int  # messages completed since the connection began
    nbufs_allocated: int
    bufs_alloc_span: int
    available: int
    outstanding: int
    as_expected: bool


def run(options: DatDemoOptions) -> Exit:
    """Print a table per strategy; `Exit.FAILED` if a count differs from the page."""
    output = Output(json_wanted=options.json_wanted)
    rows = [row for strategy in STRATEGIES for row in evolution(strategy)]
    is_good = all(row.as_expected for row in rows)
    output.document([asdict(row) for row in rows])
    output.line("dat_ep_recv_query while 22 and 23 overtake 20 and 21: nbufs_allocated buffers in")
    output.line(
        "a span of bufs_alloc_span messages; the rest of the span has yet to take a buffer."
    )
    for strategy in STRATEGIES:
        _print_table(output, strategy, [row for row in rows if row.strategy == strategy.name])
    output.line()
    if is_good:
        output.line("Every count is the one of the manual page's example.", GOOD)
    else:
        output.line("A count differs from the manual page's example.", BAD)
    return Exit.OK if is_good else Exit.FAILED


def evolution(strategy: ReceiveOrder) -> Iterator[Row]:
    """Yield a row after each step of the script."""
    network = SimNetwork(mtu_bytes=_PACKET_BYTES)
    with _open(network, "sender", strategy) as left, _open(network, "receiver", strategy) as right:
        (sender, memory), (receiver, _) = _endpoint(left, 0), _endpoint(right, _BUFFERS)
        _connect(sender, receiver, right)
        for _ in range(COMPLETED):
            sender.post_send([memory.triplet(0, 16)])
            _taken(receiver).wait(_WAIT_S)
        hold = network.hold(lambda packet, *_: packet.kind is PacketKind.SEND)
        for _ in range(COMPLETED, _LAST):
            sender.post_send([memory.triplet(0, _MESSAGE_BYTES)])
        completed = COMPLETED
        for step in STEPS:
            for message, half in step.packets:
                _deliver(network, hold, message, half)
            completed += sum(1 for _ in _taken(receiver))
            yield _row(strategy, step, completed, receiver)


def _row(strategy: ReceiveOrder, step: Step, completed: int, receiver: dat.Endpoint) -> Row:
    info = receiver.recv_query()
    assert receiver.srq is not None, "the receiver was made with a shared queue"
    queue = receiver.srq.query()
    expected = step.arrival_order if strategy is ReceiveOrder.ARRIVAL_ORDER else step.fill_gaps
    return Row(
        strategy.name,
        step.text,
        completed,
        info.nbufs_allocated or 0,
        info.bufs_alloc_span or 0,
        queue.available_dto_count or 0,
        queue.outstanding_dto_count or 0,
        info == expected,
    )


def _open(network: SimNetwork, name: str, strategy: ReceiveOrder) -> dat.InterfaceAdapter:
    adapter = network.adapter(name)
    support = dat.Support(receive_order=strategy)
    return dat.InterfaceAdapter(name, adapter, address=adapter.address, support=support)


def _endpoint(ia: dat.InterfaceAdapter, buffers: int) -> tuple[dat.Endpoint, dat.LocalMemory]:
    pz = ia.create_pz()
    memory = pz.register(bytearray(max(buffers, 1) * _MESSAGE_BYTES))
    srq = pz.create_srq(buffers) if buffers else None
    if srq is not None:
        for number in range(buffers):
            srq.post_recv([memory.triplet(number * _MESSAGE_BYTES, _MESSAGE_BYTES)], number)
    ep = pz.create_ep(
        ia.create_evd(64, dat.EvdFlag.DTO),
        ia.create_evd(64, dat.EvdFlag.DTO),
        ia.create_evd(8, dat.EvdFlag.CONNECTION),
        dat.EpAttr(max_recv_dtos=dat.DAT_HW_DEFAULT if srq else 16, max_request_dtos=32),
        srq,
    )
    return ep, memory


def _connect(active: dat.Endpoint, passive: dat.Endpoint, ia: dat.InterfaceAdapter) -> None:
    requests = ia.create_evd(8, dat.EvdFlag.CR)
    with ia.listen(_QUAL, evd=requests):
        connect_endpoints(active, passive, requests, _QUAL)


def _taken(ep: dat.Endpoint) -> dat.EventDispatcher:
    assert ep.recv_evd is not None, "made with one"
    return ep.recv_evd


def _deliver(network: SimNetwork, hold: PacketHold, message: int, half: int) -> None:
    hold.release(lambda packet: packet.msn == message and (packet.offset > 0) == (half == 1))
    network.run(for_ns=_STEP_NS)


def _print_table(output: Output, strategy: ReceiveOrder, rows: list[Row]) -> None:
    title = {
        ReceiveOrder.ARRIVAL_ORDER: "A message takes its buffer when it arrives",
        ReceiveOrder.FILL_GAPS: "A message takes buffers for those below it, too",
    }[strategy]
    output.table(
        title,
        columns("step:<30|completed|nbufs|span|to take|available|outstanding"),
        (
            (
                row.step,
                row.completed,
                row.nbufs_allocated,
                row.bufs_alloc_span,
                row.bufs_alloc_span - row.nbufs_allocated,
                row.available,
                row.outstanding,
            )
            for row in rows
        ),
    )


COMMAND: Final = Command(
    about="""
    The worked example of dat_ep_recv_query(3DAT) on a simulated network: of the messages 19 to 23
    some arrive before others, and after each step the endpoint tells how many buffers it holds and
    over how many messages they reach, for both ways to take buffers from a shared queue. The exit
    code is 1 if a count is not the one that the page gives.
    """,
    examples=(("urds dat demo", "both tables"), ("urds dat demo --json", "for a script")),
    options=DatDemoOptions,
    run=run,
)
