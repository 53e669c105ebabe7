"""Who connects over RDMA, step by step: private data, and who may be a peer."""

import errno
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address

import pytest

from tests.rds.transports.rdma_core.rdma_bench import (
    INCOMPATIBLE,
    NOW,
    OURS,
    REQUEST,
    TO_HIGH,
    Bench,
)
from tests.rds.transports.rdma_core.rdma_world import HIGH, LOW, SECOND
from tests.vectors import load
from urds.common.errors import LocalProtocolError
from urds.rds.control.events import Reason, Refused
from urds.rds.control.rdma_events import (
    Abandon,
    Accept,
    Attach,
    Connect,
    Detach,
    Failure,
    Forget,
    PeerKey,
    PeerKnown,
    Reject,
)
from urds.rds.control.state import TRANSITIONS, PeerInput, PeerState, next_state
from urds.rds.wire.frame_format import FrameFormat
from urds.rds.wire.private_data import ConnectData

# -- a first connection


def test_the_first_message_connects_at_once_and_offers_3_1() -> None:
    bench = Bench()
    assert bench.want() == [Connect(TO_HIGH, 1)]
    data = bench.core.offer(TO_HIGH, acknowledged=0, credits=9)
    assert ConnectData.parse(data, ipv6=False) == ConnectData(
        source=LOW, target=HIGH, major=3, minor=1, minor_mask=3, credits=9, generation=OURS,
        frame_format=FrameFormat.PACKED,
    )  # fmt: skip
    bench.core.handle_wanted(TO_HIGH, NOW)
    assert bench.actions() == [], "one attempt at a time"


@pytest.mark.parametrize("generation", [None, 4])
def test_a_reply_attaches(generation: int | None) -> None:
    """The first acknowledgement of all is about an earlier generation of ours."""
    bench = Bench()
    assert bench.join(ack_sequence=55, credits=12, generation=generation) == [
        PeerKnown(TO_HIGH, generation is not None, (3, 1)),
        Attach(TO_HIGH, 1, acknowledged=0, credits=12, is_urds_peer=generation is not None),
    ]
    (peer,) = bench.core.peers
    assert (peer.state, peer.version, peer.is_urds_peer) == (
        PeerState.UP,
        (3, 1),
        generation is not None,
    )


@pytest.mark.parametrize("asks", [True, False], ids=["we ask", "the peer asks"])
@pytest.mark.parametrize("peer", FrameFormat)
@pytest.mark.parametrize("ours", FrameFormat)
def test_frames_are_the_newest_that_both_take(
    ours: FrameFormat, peer: FrameFormat, asks: bool
) -> None:
    bench = Bench(frame_format=ours)
    fields = {"generation": 4, "frame_format": peer}
    if asks:
        attach = bench.join(**fields)[-1]
    else:
        bench.request(**fields)
        offer = bench.core.offer(TO_HIGH, acknowledged=0, credits=0)
        assert ConnectData.parse(offer, ipv6=False).frame_format is ours
        attach = bench.establish(REQUEST)[-1]
    assert isinstance(attach, Attach)
    assert attach.frame_format is min(ours, peer)


def test_a_peer_that_becomes_linux_gets_short_frames() -> None:
    bench = Bench()
    joined = bench.join(generation=4, frame_format=FrameFormat.PACKED)[-1]
    assert joined.frame_format is FrameFormat.PACKED
    bench.end(1)
    (connect,) = bench.wait(SECOND)
    attach = bench.establish(connect.number, bench.data())[-1]
    assert isinstance(attach, Attach)
    assert attach.frame_format is FrameFormat.SHORT


@pytest.mark.rule("wire-ib-ack-seq")
def test_the_same_life_acknowledges_when_it_comes_back() -> None:
    bench = Bench()
    bench.join(generation=4)
    assert bench.end(1)[0] == Detach(TO_HIGH, 1)
    (connect,) = bench.wait(SECOND)
    assert isinstance(connect, Connect)
    data = bench.core.offer(TO_HIGH, acknowledged=77, credits=0)
    assert ConnectData.parse(data, ipv6=False).ack_sequence == 77
    attach = bench.establish(connect.number, bench.data(ack_sequence=55, generation=4))
    assert attach == [
        Attach(TO_HIGH, connect.number, acknowledged=55, credits=0, is_urds_peer=True)
    ]


def test_a_request_of_linux_is_answered_as_linux_answers() -> None:
    """Between the hosts of the capture; the CM's own header stands before the request."""
    vectors = load("linux_6_1_rdma_connect")
    bench = Bench(IPv4Address("10.78.0.20"))
    peer = IPv4Address("10.78.0.10")
    bench.core.handle_request(REQUEST, peer, vectors["request"][36:], NOW)
    key = PeerKey(peer, 0)
    assert bench.actions() == [Accept(key, REQUEST)]
    assert bench.core.offer(key, acknowledged=0, credits=0) == vectors["reply"][:32]
    assert bench.establish(REQUEST, key=key) == [
        PeerKnown(key, False, (3, 1)),
        Attach(key, REQUEST, acknowledged=0, credits=0, is_urds_peer=False),
    ]


def test_our_request_differs_from_linux_in_the_mark_alone() -> None:
    vectors = load("linux_6_1_rdma_connect")
    bench = Bench(IPv4Address("10.78.0.10"))
    (connect,) = bench.want(IPv4Address("10.78.0.20"))
    data = bench.core.offer(connect.key, acknowledged=0, credits=0)
    linux = vectors["request"][36:68]
    assert data == linux[:13] + b"UR\x03" + linux[16:28] + bytes([0, 0, 0, OURS])


@pytest.mark.rule("wire-ib-major", "wire-ib-minor-mask", "wire-ib-connect-data")
@pytest.mark.parametrize(
    ("major", "minor", "minor_mask", "answer"),
    [(3, 1, 3, (3, 1)), (4, 1, 3, (4, 1)), (4, 1, 1, (4, 0)), (0, 0, 3, (4, 0))],
)
def test_the_version_of_the_answer(
    major: int, minor: int, minor_mask: int, answer: tuple[int, int]
) -> None:
    bench = Bench()
    fields = {"major": major, "minor": minor, "minor_mask": minor_mask, "tos": 3}
    assert bench.request(**fields) == [Accept(PeerKey(HIGH, 3), REQUEST)]
    data = bench.core.offer(PeerKey(HIGH, 3), acknowledged=0, credits=0)
    assert ConnectData.parse(data, ipv6=False) == ConnectData(
        source=LOW, target=HIGH, major=answer[0], minor=answer[1], tos=3
    )


@pytest.mark.parametrize("data", [b"", bytes(31), bytes(56)], ids=len)
def test_a_request_without_private_data_speaks_4_0(data: bytes) -> None:
    bench = Bench()
    bench.core.handle_request(REQUEST, HIGH, data, NOW)
    assert bench.actions() == [Accept(TO_HIGH, REQUEST)]
    assert bench.establish(REQUEST) == [
        PeerKnown(TO_HIGH, False, (4, 0)),
        Attach(TO_HIGH, REQUEST, acknowledged=0, credits=0, is_urds_peer=False),
    ]


@pytest.mark.parametrize(("failure", "count"), [(Failure.REJECTED, 1), (Failure.ERROR, 0)])
def test_a_rejection_by_the_peer_is_counted_apart(failure: Failure, count: int) -> None:
    bench = Bench()
    bench.want()
    bench.core.handle_failed(TO_HIGH, 1, failure, NOW)
    assert (bench.stats.connect_failures, bench.stats.rejected_by_peer) == (1, count)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (ConnectData(source=HIGH, target=LOW, major=3, minor=0).emit(), Reason.VERSION),
        (ConnectData(source=HIGH, target=LOW, major=2).emit(), Reason.VERSION),
        (ConnectData(source=LOW, target=HIGH).emit(), Reason.WRONG_ADDRESS),
    ],
)
def test_a_reply_that_will_not_do_is_dropped_and_backed_off(data: bytes, reason: Reason) -> None:
    bench = Bench()
    bench.want()
    assert bench.establish(1, data) == [Abandon(TO_HIGH, 1), Refused(HIGH, reason)]
    assert bench.stats.connect_failures == 1
    assert [type(action) for action in bench.wait(SECOND)] == [Connect]


@pytest.mark.parametrize(
    "data", [b"", ConnectData(source=HIGH, target=LOW, major=0).emit()], ids=["none", "0.1"]
)
def test_a_reply_that_names_no_version_has_the_one_we_offered(data: bytes) -> None:
    bench = Bench()
    bench.want()
    assert bench.establish(1, data)[0] == PeerKnown(TO_HIGH, False, (3, 1))


def test_ipv6() -> None:
    low, high = IPv6Address("fd00::1"), IPv6Address("fd00::2")
    bench = Bench(low, allowed="fd00::/64")
    bench.core.handle_request(REQUEST, high, bench.data(high, generation=4), NOW)
    assert bench.actions() == [Accept(PeerKey(high, 0), REQUEST)]
    data = bench.core.offer(PeerKey(high, 0), acknowledged=3, credits=0)
    assert data == low.packed + high.packed + bytes.fromhex(
        "03 01 0003 00 555203 0000000000000003 00000000 00000007"
    )


def test_a_scope_does_not_make_an_address_another_one() -> None:
    here, there = IPv6Address("fe80::1%eth0"), IPv6Address("fe80::2%eth0")
    bench = Bench(here, allowed="fe80::/10")
    data = ConnectData(source=IPv6Address("fe80::2"), target=IPv6Address("fe80::1"), generation=4)
    bench.core.handle_request(REQUEST, there, replace(data, tos=1).emit(), NOW)
    assert bench.actions() == [Accept(PeerKey(there, 1), REQUEST)]


# -- who may


def test_a_peer_that_is_not_allowed() -> None:
    bench, unknown_peer = Bench(), IPv4Address("192.0.2.1")
    with pytest.raises(PermissionError, match="URDS_ALLOW"):
        bench.core.key_for(unknown_peer, 0, NOW)
    assert bench.request(peer=unknown_peer) == [
        Reject(REQUEST, INCOMPATIBLE),
        Refused(unknown_peer, Reason.NOT_ALLOWED),
    ]
    assert bench.core.peers == ()


@pytest.mark.parametrize(
    ("source", "target", "major", "reason"),
    [
        (HIGH, LOW, 5, Reason.VERSION),
        (IPv4Address("127.0.0.9"), LOW, 3, Reason.WRONG_ADDRESS),
        (HIGH, IPv4Address("127.0.0.9"), 3, Reason.WRONG_ADDRESS),
    ],
)
def test_a_request_that_will_not_do_is_rejected(
    source: IPv4Address, target: IPv4Address, major: int, reason: Reason
) -> None:
    bench = Bench()
    data = ConnectData(source=source, target=target, major=major).emit()
    bench.core.handle_request(REQUEST, HIGH, data, NOW)
    assert bench.actions() == [Reject(REQUEST, INCOMPATIBLE), Refused(HIGH, reason)]
    is_address = reason is Reason.WRONG_ADDRESS
    stats = bench.stats
    assert (stats.refused_address, stats.refused_version) == (is_address, not is_address)
    assert bench.core.peers == ()


def test_our_own_address_is_always_allowed() -> None:
    bench = Bench(IPv4Address("192.0.2.1"))
    assert bench.core.key_for(bench.core.local, 0, NOW) == PeerKey(bench.core.local, 0)


def test_timers_go_with_a_peer_that_is_forgotten() -> None:
    bench = Bench(peers_max=1)
    bench.join(generation=4)
    bench.end(1)
    assert bench.core.poll_timeout() is not None, "it is idle, and sought all the same"
    assert bench.want(IPv4Address("10.0.0.1"))[0] == Forget(TO_HIGH)
    assert all(action.key != TO_HIGH for action in bench.wait(100 * SECOND))


def test_peers_are_bounded_and_the_idlest_goes() -> None:
    bench = Bench(peers_max=2)
    first, second, third = (IPv4Address(f"10.0.0.{number}") for number in (1, 2, 3))
    bench.core.key_for(first, 0, NOW)
    bench.core.key_for(second, 0, NOW + 1)
    assert bench.request(peer=third) == [Forget(PeerKey(first, 0)), Accept(PeerKey(third, 0), 1000)]
    assert bench.core.find(PeerKey(first, 0)) is None
    bench.want(second)
    with pytest.raises(OSError) as full:
        bench.core.key_for(first, 0, NOW)
    assert full.value.errno == errno.EUSERS
    assert bench.request(1001, peer=first)[-1] == Refused(first, Reason.TOO_MANY_PEERS)
    assert (bench.stats.evicted, bench.stats.refused_peers) == (1, 2)


def test_a_peer_for_which_a_message_is_on_its_way_stays() -> None:
    bench = Bench(peers_max=1, may_evict=False)
    bench.core.key_for(HIGH, 0, NOW)
    with pytest.raises(OSError):
        bench.core.key_for(HIGH, 1, NOW)


# -- types of service, and ourselves


def test_each_type_of_service_has_its_connection() -> None:
    bench = Bench()
    assert bench.want(tos=3) == [Connect(PeerKey(HIGH, 3), 1)]
    assert bench.want(tos=0) == [Connect(PeerKey(HIGH, 0), 2)]
    data = bench.core.offer(PeerKey(HIGH, 3), acknowledged=0, credits=0)
    assert ConnectData.parse(data, ipv6=False).tos == 3
    assert bench.request(tos=4, generation=4) == [Accept(PeerKey(HIGH, 4), REQUEST)]


def test_a_connection_to_ourselves_has_two_ends() -> None:
    bench = Bench()
    active, passive = PeerKey(LOW, 0), PeerKey(LOW, 0, passive=True)
    assert bench.want(LOW) == [Connect(active, 1)]
    data = bench.core.offer(active, acknowledged=0, credits=0)
    bench.core.handle_request(REQUEST, LOW, data, NOW)
    assert bench.actions() == [Accept(passive, REQUEST)]
    answer = bench.core.offer(passive, acknowledged=0, credits=0)
    assert bench.establish(1, answer, key=active)[-1] == Attach(
        active, 1, 0, 0, True, frame_format=FrameFormat.PACKED
    )
    attached = Attach(passive, REQUEST, 0, 0, True, frame_format=FrameFormat.PACKED)
    assert bench.establish(REQUEST, key=passive)[-1] == attached
    assert [peer.key for peer in bench.core.peers] == [active, passive]


def test_the_passive_end_has_the_other_one_connect() -> None:
    bench = Bench()
    active, passive = PeerKey(LOW, 0), PeerKey(LOW, 0, passive=True)
    bench.core.handle_request(REQUEST, LOW, bench.data(LOW, generation=OURS), NOW)
    bench.core.handle_failed(passive, REQUEST, Failure.ERROR, NOW)
    assert bench.stats.accept_failures == 1
    bench.actions()
    bench.core.handle_wanted(passive, NOW)
    assert bench.actions() == [Connect(active, 1)]


# -- the table


def test_what_is_not_in_the_table_cannot_happen() -> None:
    for state in PeerState:
        for event in PeerInput:
            if (state, event) not in TRANSITIONS:
                with pytest.raises(LocalProtocolError, match=f"{event.name} in state {state.name}"):
                    next_state(state, event)
    assert (PeerState.UP, PeerInput.CONNECT) not in TRANSITIONS
