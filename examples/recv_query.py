"""What an endpoint's receive buffers do when messages overtake each other: `recv_query` live.

Two endpoints on a simulated network; the receiving one takes its buffers from a shared queue. Of
the messages 19 to 23, each of two packets, the network delivers those of the script, in its order.
The table is printed for both ways to take buffers: when a message's first byte arrives, and for all
messages below it as well.
"""

from urds import dat
from urds.verbs.engine.numbers import ReceiveOrder
from urds.verbs.engine.packets import PacketKind
from urds.verbs.providers.sim import PacketHold, SimNetwork

QUAL = 4000
BYTES = 8192  # two packets of the simulated network
COMPLETED = 18
# Which packets arrive (message, first or second half), and what that is.
STEPS = (
    ((), "nothing in flight, 18 completed"),
    (((19, 0),), "19 starts"),
    (((22, 0),), "22 starts"),
    (((23, 0),), "23 starts"),
    (((19, 1),), "19 completes"),
    (((20, 0), (20, 1)), "20 starts and completes"),
    (((21, 0),), "21 starts"),
    (((22, 1), (21, 1)), "21 completes, releasing 22 (complete already)"),
    (((23, 1),), "23 completes"),
)


def endpoint(ia: dat.InterfaceAdapter, *, shared: int = 0) -> tuple[dat.Endpoint, dat.LocalMemory]:
    """Make an endpoint and its memory; with `shared`, so many buffers of a shared queue."""
    pz = ia.create_pz()
    memory = pz.register(bytearray(32 * BYTES))
    srq = pz.create_srq(shared) if shared else None
    for number in range(shared if srq else 0):
        srq.post_recv([memory.triplet(number * BYTES, BYTES)], cookie=number)
    ep = pz.create_ep(
        ia.create_evd(64, dat.DAT_EVD_DTO_FLAG),
        ia.create_evd(64, dat.DAT_EVD_DTO_FLAG),
        ia.create_evd(8, dat.DAT_EVD_CONNECTION_FLAG),
        dat.EpAttr(max_recv_dtos=dat.DAT_HW_DEFAULT if shared else 16),
        srq,
    )
    return ep, memory


def connect(active: dat.Endpoint, passive: dat.Endpoint) -> None:
    """Connect two endpoints."""
    requests = passive.ia.create_evd(8, dat.DAT_EVD_CR_FLAG)
    with passive.ia.listen(QUAL, evd=requests):
        active.connect(passive.ia.address, QUAL, timeout_s=5)
        requests.wait(5).cr.accept(passive)
        for ep in (active, passive):
            assert ep.connect_evd.wait(5).event_number == dat.DAT_CONNECTION_EVENT_ESTABLISHED


def complete(sender: dat.Endpoint, memory: dat.LocalMemory, receiver: dat.Endpoint) -> None:
    """Send the messages before those of the table, and take their completions."""
    for _ in range(COMPLETED):
        sender.post_send([memory.triplet(0, 16)])
        receiver.recv_evd.wait(5).raise_for_status()
        sender.request_evd.wait(5).raise_for_status()


def deliver(network: SimNetwork, hold: PacketHold, packets: tuple[tuple[int, int], ...]) -> None:
    """Let the named packets arrive, in this order, and no other."""
    for message, half in packets:
        hold.release(lambda one, m=message, h=half: (one.msn, one.offset > 0) == (m, h == 1))
        network.run(for_ns=1000)


def show(receive_order: ReceiveOrder) -> None:
    """Print the table for one way to take buffers."""
    network = SimNetwork()
    for name in (names := (f"left {receive_order.name}", f"right {receive_order.name}")):
        support = dat.Support(receive_order=receive_order)
        dat.register(name, lambda name=name: network.adapter(name), support=support)
    with dat.open(names[0]) as left, dat.open(names[1]) as right:
        (sender, memory), (receiver, _) = endpoint(left), endpoint(right, shared=30)
        connect(sender, receiver)
        complete(sender, memory, receiver)
        hold = network.hold(lambda packet, *_: packet.kind is PacketKind.SEND)
        for _ in range(5):
            sender.post_send([memory.triplet(0, BYTES)])
        print(f"{receive_order.name.replace('_', ' ').lower():<46} nbufs  span  available")
        for packets, text in STEPS:
            deliver(network, hold, packets)
            info, queue = receiver.recv_query(), receiver.srq.query()
            print(
                f"  {text:<44} {info.nbufs_allocated:>5} {info.bufs_alloc_span:>5}"
                f" {queue.available_dto_count:>10}"
            )


if __name__ == "__main__":
    show(ReceiveOrder.ARRIVAL_ORDER)
    show(ReceiveOrder.FILL_GAPS)
