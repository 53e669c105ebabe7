"""Whatever is reported to an RDMA endpoint, in whatever order: it keeps what `events` promises.

Peers that send nonsense and a shell that reports what cannot be, about numbers old and new.
"""

from collections import Counter
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from tests.rds.transports.rdma_core.rdma_bench import NOW, Bench
from tests.rds.transports.rdma_core.rdma_world import HIGH, LOW, MS, SECOND
from urds.rds.control.events import Action
from urds.rds.control.rdma_events import (
    Abandon,
    Accept,
    Attach,
    Connect,
    Detach,
    Failure,
    Forget,
    PeerKey,
    Reject,
)
from urds.rds.wire.private_data import ConnectData

PEERS = st.sampled_from([LOW, HIGH])
NUMBERS = st.integers(-3, -1) | st.just(99)  # of the last ones, or none that there is
GENERATIONS = st.sampled_from([None, 1, 2])
OFFERS = st.builds(
    lambda source, target, **fields: ConnectData(source=source, target=target, **fields).emit(),
    source=PEERS,
    target=st.sampled_from([LOW, LOW, LOW, HIGH]),
    major=st.sampled_from([3, 3, 3, 4, 0, 5]),
    minor=st.sampled_from([1, 1, 1, 0]),
    tos=st.integers(0, 1),
    ack_sequence=st.integers(0, (1 << 64) - 1),
    credits=st.integers(0, 40),
    generation=GENERATIONS,
)
BYTES = OFFERS | st.binary(max_size=64)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["want", "request", "established", "failed", "ended", "protocol_error", "fault"]
        ),
        PEERS,
        NUMBERS,
        BYTES,
        st.sampled_from([0, MS, 10 * MS, SECOND, 40 * SECOND]),
    ),
    max_size=40,
)


class Promises:
    """What `events` says about numbers, checked with each action."""

    def __init__(self) -> None:
        self.answers: Counter[int] = Counter()  # to requests
        self.open: dict[int, PeerKey] = {}  # begun and not ended
        self.attached: dict[PeerKey, int] = {}
        self.begun: list[tuple[PeerKey, int]] = []

    def check(self, action: Action) -> None:
        match action:
            case Connect(key, number) | Accept(key, number):
                assert key not in self.open.values(), "one thing at a time"
                self.open[number] = key
                self.begun.append((key, number))
                self.answers[number] += isinstance(action, Accept)
            case Reject(number, data):
                self.answers[number] += 1
                assert data == b"\x01\x00\x00\x00"
            case Attach(key, number):
                assert self.open[number] == key
                assert key not in self.attached
                self.attached[key] = number
            case Detach(key, number):
                assert self.attached.pop(key) == number
                assert self.open.pop(number) == key
            case Abandon(key, number):
                assert self.open.pop(number) == key
                assert key not in self.attached
            case Forget(key):
                assert key not in self.open.values()


@given(STEPS)
def test_numbers_end_once_and_requests_are_answered_once(
    steps: list[tuple[str, object, int, bytes, int]],
) -> None:
    """Three peers at most, so that some are forgotten."""
    bench, promises, now_ns, number = Bench(peers_max=3), Promises(), NOW, 1000
    core = bench.core
    for what, peer, which, data, pause_ns in steps:
        begun = promises.begun
        key, chosen = begun[which] if -len(begun) <= which < 0 else (PeerKey(peer, 0), 99)
        if what == "want":
            with suppress(OSError):  # too many peers
                core.key_for(key.peer, key.tos, now_ns)
            core.handle_wanted(key, now_ns)
        elif what == "request":
            number += 1
            core.handle_request(number, peer, data, now_ns)
            for action in bench.actions():
                promises.check(action)
            assert promises.answers[number] == 1
        elif what == "established":
            core.handle_established(key, chosen, data, now_ns)
        elif what == "failed":
            core.handle_failed(key, chosen, Failure.REJECTED, now_ns)
        elif what == "ended":
            core.handle_ended(key, chosen, now_ns)
        elif what == "protocol_error":
            core.handle_protocol_error(key, chosen, now_ns)
        else:
            core.handle_fault(key, now_ns)
        for end_ns in (now_ns, now_ns + pause_ns):
            while (due_ns := core.poll_timeout()) is not None and due_ns <= end_ns:
                core.handle_timeout(due_ns)
            for action in bench.actions():
                promises.check(action)
        now_ns += pause_ns
        assert len(core.peers) <= 3
        for each in core.peers:
            assert (each.number in promises.open) == (each.number is not None)
