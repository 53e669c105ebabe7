"""Keep a shared receive queue filled by the counts of `recv_query`.

A sender streams messages over a simulated network that reorders them, so messages take buffers
ahead of those before them. In two runs a consumer looks every 400 microseconds. The first returns
the buffers that it has taken: the messages ahead hold all of them in the end, the message that is
next gets none, and nothing moves any more. The second asks how many buffers the endpoint has yet to
take for what it holds (span - nbufs) and keeps so many available, and some more.
"""

from collections.abc import Iterator

from urds import dat
from urds.verbs.providers.sim import SimNetwork

QUAL = 4000
BYTES = 512  # two packets of this network
POOL = 250  # buffers that the consumer has
MARGIN = 24  # of them available beyond what is missing
MESSAGES = 400
IN_FLIGHT = 60
LOOK_NS = 400_000


class Consumer:
    """Takes messages from an endpoint on a shared receive queue of its own."""

    def __init__(self, ia: dat.InterfaceAdapter, *, by_counts: bool) -> None:
        pz = ia.create_pz()
        self.memory = pz.register(bytearray(POOL * BYTES))
        self.srq = pz.create_srq(POOL)
        self.ep = pz.create_ep(
            ia.create_evd(POOL, dat.DAT_EVD_DTO_FLAG),
            ia.create_evd(1, dat.DAT_EVD_DTO_FLAG),
            ia.create_evd(8, dat.DAT_EVD_CONNECTION_FLAG),
            dat.EpAttr(max_recv_dtos=dat.DAT_HW_DEFAULT),
            self.srq,
        )
        self.by_counts = by_counts
        self.received = 0
        self.free = list(range(POOL))
        self.give(MARGIN)

    def give(self, count: int) -> None:
        """Post buffers that are free; fewer if there are no more."""
        for _ in range(min(count, len(self.free))):
            number = self.free.pop()
            self.srq.post_recv([self.memory.triplet(number * BYTES, BYTES)], cookie=number)

    def look(self) -> None:
        """Take what has completed, then see to it that there are buffers."""
        events = [self.ep.recv_evd.dequeue() for _ in range(len(self.ep.recv_evd))]
        for event in events:
            event.raise_for_status()
            self.free.append(event.user_cookie)
        self.received += len(events)
        if self.by_counts:
            available = self.srq.query().available_dto_count
            self.give(self.ep.recv_query().missing + MARGIN - available)
        else:
            self.give(len(events))


def connect(ia: dat.InterfaceAdapter, consumer: Consumer) -> tuple[dat.Endpoint, dat.LocalMemory]:
    """Make the sender and connect it."""
    pz = ia.create_pz()
    memory = pz.register(bytearray(BYTES))
    sender = pz.create_ep(
        None,
        ia.create_evd(IN_FLIGHT, dat.DAT_EVD_DTO_FLAG),
        ia.create_evd(8, dat.DAT_EVD_CONNECTION_FLAG),
        dat.EpAttr(max_recv_dtos=0, max_request_dtos=IN_FLIGHT),
    )
    there = consumer.ep.ia
    requests = there.create_evd(1, dat.DAT_EVD_CR_FLAG)
    with there.listen(QUAL, evd=requests):
        sender.connect(there.address, QUAL, timeout_s=5)
        requests.wait(5).cr.accept(consumer.ep)
        sender.connect_evd.wait(5)
    return sender, memory


def stream(network: SimNetwork, consumer: Consumer, ia: dat.InterfaceAdapter) -> Iterator[int]:
    """Send messages while the consumer looks now and then; yield the number of each look."""
    sender, memory = connect(ia, consumer)
    sent = outstanding = look = 0
    while consumer.received < MESSAGES:
        while outstanding < IN_FLIGHT and sent < MESSAGES:
            sender.post_send([memory.triplet()])
            sent, outstanding = sent + 1, outstanding + 1
        network.run(for_ns=LOOK_NS)
        for _ in range(len(sender.request_evd)):
            sender.request_evd.dequeue().raise_for_status()
            outstanding -= 1
        consumer.look()
        look += 1
        yield look


def show(*, by_counts: bool) -> None:
    """Print what the counts were at every fourth look, and how it ended."""
    network = SimNetwork(3, mtu_bytes=BYTES // 2, reorder=0.2, jitter_ns=40_000, loss=0.01)
    names = [f"{side} {by_counts}" for side in ("left", "right")]
    for name in names:
        dat.register(name, lambda name=name: network.adapter(name))
    with dat.open(names[0]) as left, dat.open(names[1]) as right:
        consumer = Consumer(right, by_counts=by_counts)
        print("look  received  nbufs  span  missing  available")
        for look in stream(network, consumer, left):
            info = consumer.ep.recv_query()
            if look % 4 == 0:
                print(
                    f"{look:>4}  {consumer.received:>8}  {info.nbufs_allocated:>5}"
                    f"  {info.bufs_alloc_span:>4}  {info.missing:>7}"
                    f"  {consumer.srq.query().available_dto_count:>9}"
                )
            if look == 32:
                print(f"No progress: {consumer.received} of {MESSAGES} messages.\n")
                return
        print(f"All {MESSAGES} messages after {look} looks.")


if __name__ == "__main__":
    print("Who gives back what it has taken:")
    show(by_counts=False)
    print("Who refills by the counts:")
    show(by_counts=True)
