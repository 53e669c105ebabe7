"""Peers that ask for too much or give nothing back: memory stays bounded, neighbours go on."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.rds.transports.rdma.hostile_peer import (
    ACK_REQUIRED,
    DEVICES,
    REPEATED,
    Siege,
    UnknownPeer,
    acknowledgement,
    congestion_map,
    message,
)
from tests.rds.transports.rdma.victim import INBOX_PORT
from tests.support.waiting import wait_until
from urds.rds.wire.header import Header

MIB = 1 << 20
LARGE = bytes(range(256)) * 4096  # 1 MiB, 256 fragments
PEERS_MAX = 12  # where few are allowed
RECEIVES = 256  # of the victim, that a peer can fill before it is read


def flood(unknown_peer: UnknownPeer, frames: list[bytes], *, window: int = 512) -> int:
    """Send frames, no more than `window` under way; return how many arrived while it stood."""
    numbers: list[int] = []
    for data in frames:
        numbers += unknown_peer.send(data)
        if len(numbers) > window:
            number = numbers[-window]
            unknown_peer.device.adapter.wait(
                lambda number=number: (
                    unknown_peer.status_of(number) is not None or unknown_peer.is_over
                ),
                1_000_000_000,
            )
            if unknown_peer.is_over or unknown_peer.status_of(number) is None:
                break
    return len(unknown_peer.ended)


# -- pings


def test_a_flood_of_pings_whose_answers_are_not_taken(siege: Siege) -> None:
    """As many pongs wait as messages may; the neighbour's messages go through all the while."""
    unknown_peer = siege.connected(receives=0)
    before = siege.victim.rss_bytes
    pings = [message(b"", sequence=1 + number, target_port=0)[0] for number in range(1500)]
    flood(unknown_peer, pings)
    siege.others_are_well()
    assert siege.victim.rss_bytes - before < 16 * MIB
    assert not unknown_peer.is_over
    with siege.counted(recv_queued=0):  # what a vanished peer pinged has no owner
        unknown_peer.vanish()


def test_pings_are_answered_by_as_many_pongs(siege: Siege) -> None:
    unknown_peer = siege.connected()
    pings = [message(b"", sequence=1 + number, target_port=0)[0] for number in range(200)]
    with siege.counted(recv_ping=200, send_pong=200):
        unknown_peer.send(*pings)
        wait_until(lambda: sum(not one.source_port for one in unknown_peer.headers()) > 200)
    pongs = [one for one in unknown_peer.headers() if one.target_port == 7]
    assert [one.source_port for one in pongs] == [0] * 200


# -- who takes nothing


def test_a_peer_that_never_posts_a_receive_stops_its_own_alone(siege: Siege) -> None:
    """Its messages wait up to the socket's buffer; once it takes them each comes once."""
    unknown_peer = siege.connected(receives=0)
    payload = (b"\x5a" * 4000).hex()
    sent = siege.victim.ask("send", target=unknown_peer.address, payload=payload, count=1000)
    assert 0 < sent < 1000
    siege.others_are_well()
    assert not unknown_peer.frames
    unknown_peer.vanish()
    again = siege.returned(unknown_peer.address)
    wait_until(lambda: len(data_of(again)) >= sent)
    assert [one.payload_bytes for one in data_of(again)] == [4000] * sent
    assert len({one.sequence for one in data_of(again)}) == sent


def test_acknowledgements_that_never_come(siege: Siege) -> None:
    """Messages are kept up to the buffer's bound, and repeated with their old numbers."""
    unknown_peer = siege.connected()
    payload = (b"\x5a" * 4000).hex()
    sent = siege.victim.ask("send", target=unknown_peer.address, payload=payload, count=1000)
    wait_until(lambda: len(data_of(unknown_peer)) == sent)
    assert siege.victim.ask("send", target=unknown_peer.address, payload=payload) == 0
    siege.others_are_well()
    numbers = [one.sequence for one in data_of(unknown_peer)]
    unknown_peer.vanish()
    again = siege.returned(unknown_peer.address)
    wait_until(lambda: len(data_of(again)) == sent)
    assert [one.sequence for one in data_of(again)] == numbers
    assert all(one.flags & REPEATED for one in data_of(again))
    again.send(acknowledgement(numbers[-1]))
    wait_until(lambda: siege.victim.ask("send", target=unknown_peer.address, payload="00") == 1)


def data_of(unknown_peer: UnknownPeer) -> list[Header]:
    """Return the headers of what came for a socket."""
    return [one for one in unknown_peer.headers() if one.target_port == INBOX_PORT]


# -- who says half, and who says too much


def test_half_a_message_costs_its_length_and_no_more(siege: Siege) -> None:
    """Announced lengths cost nothing; what came is forgotten with the connection."""
    siege.others_are_well()
    before = siege.victim.rss_bytes
    crowd = [siege.connected() for _ in range(8)]
    for unknown_peer in crowd:
        unknown_peer.send(*congestion_map(), *message(LARGE[:4096], length=len(LARGE)))
    siege.others_are_well(1)
    assert siege.victim.rss_bytes - before < 8 * MIB, "memory for what was only announced"
    for unknown_peer in crowd:
        flood(unknown_peer, message(LARGE)[1:-1])
    siege.others_are_well(1)
    # A ring of receives has 1 MiB as well, which is touched once.
    assert siege.victim.rss_bytes - before < 8 * 2.5 * MIB
    siege.dismiss()
    whole = siege.connected()
    flood(whole, message(LARGE, sequence=2))
    assert siege.victim.ask("collect", count=1) == [LARGE.hex()]


def test_messages_for_a_full_mailbox_wait_at_their_sender(siege: Siege) -> None:
    """A peer that passes over our map fills the mailbox up to its hard bound, then it waits."""
    unknown_peer = siege.connected()
    payload = b"\xc3" * 4096 * 8
    frames = [
        frame
        for sequence in range(1, 620)
        for frame in message(payload, sequence=sequence, flags=ACK_REQUIRED)
    ]
    with siege.counted(recv_paused=1):
        arrived = flood(unknown_peer, frames)
    assert arrived < len(frames) and not unknown_peer.is_over
    siege.others_are_well()
    bound = (17 * MIB + RECEIVES * 4096) // len(payload)
    assert arrived // 8 < bound
    # All that was posted comes now, and not only what is here: nothing is left for the next test.
    posted = unknown_peer.posted // 8
    assert posted > arrived // 8
    assert siege.victim.ask("discard", count=posted) == posted
    assert siege.victim.ask("paths")[f"{unknown_peer.address}/0"]["up"]


def test_messages_to_unbound_ports(siege: Siege) -> None:
    unknown_peer = siege.connected()
    frames = [
        message(b"scan", sequence=1 + port, target_port=10_000 + port)[0] for port in range(3000)
    ]
    before = siege.victim.rss_bytes
    with siege.counted(recv_drop_no_sock=3000):
        flood(unknown_peer, frames)
        siege.others_are_well()
    assert siege.victim.rss_bytes - before < 4 * MIB
    assert not siege.victim.ask("logged")


def test_credits_without_flow_control_are_passed_over(siege: Siege) -> None:
    unknown_peer = siege.connected(credits=(1 << 32) - 1)
    for _ in range(300):
        unknown_peer.send(acknowledgement(0, credit=255))
    unknown_peer.send(*message(b"well"))
    assert siege.victim.ask("collect", count=1) == [b"well".hex()]


# -- with other settings


@pytest.fixture(scope="module", params=DEVICES[:1])
def sparing(request: pytest.FixtureRequest) -> Iterator[Siege]:
    """Give a siege whose victim and neighbour have flow control, and few peers."""
    made = Siege(request.param, ib_flow_control=True, peers_max=PEERS_MAX)
    yield made
    made.others_are_well()
    made.close()


def test_peers_are_as_many_as_may_be(sparing: Siege) -> None:
    """The rest is refused, also one host's at other types of service; idle ones give way."""
    siege, address = sparing, sparing.address()
    crowd = [siege.unknown_peer(address if number % 2 else None) for number in range(2 * PEERS_MAX)]
    with siege.counted(rdma_refused_peers=PEERS_MAX + 1):  # the neighbour is one of them
        for number, unknown_peer in enumerate(crowd):
            unknown_peer.connect(unknown_peer.data(tos=number, credits=64).emit())
        wait_until(lambda: all(one.is_up or one.is_over for one in crowd))
        assert sum(one.is_up for one in crowd) == PEERS_MAX - 1
    siege.others_are_well()
    siege.dismiss()
    late = siege.returned(siege.address(), credits=64)
    late.send(*congestion_map(), *message(b"late"))
    assert siege.victim.ask("collect", count=1) == [b"late".hex()]
    siege.dismiss()


def test_credits_beyond_belief_and_none_at_all(sparing: Siege) -> None:
    siege = sparing
    generous = siege.returned(siege.address(), credits=(1 << 32) - 1)
    siege.victim.ask("logged")
    with siege.counted(rdma_protocol_errors=1):
        generous.send(acknowledgement(0, credit=255))
        siege.until_cut(generous, "credits above 65535")
    # One credit: the last is kept for a frame that grants, so not even the map comes.
    miser = siege.returned(siege.address(), credits=1)
    sent = siege.victim.ask("send", target=miser.address, payload="00" * 100, count=10)
    assert sent == 10
    time.sleep(0.05)
    assert not data_of(miser)
    siege.others_are_well()
    for _ in range(4):
        miser.send(acknowledgement(0, credit=5))
    wait_until(lambda: len(data_of(miser)) == 10)
    # And one who sends more than it was granted: what finds no receive waits at its sender.
    unknown_peer = siege.returned(siege.address(), credits=64)
    frames = [message(b"over", sequence=1 + number)[0] for number in range(2000)]
    flood(unknown_peer, frames)
    assert len(siege.victim.ask("collect", count=2000)) == 2000
