"""What a node says over RDMA, byte by byte, by the rules of the wire specification.

The node is in a process of its own; a peer without a mark, as Linux is, hears it on each device.
"""

from collections.abc import Iterator
from ipaddress import ip_address

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
from urds.rds.constants import CONGESTION_MAP_BYTES, HeaderFlag
from urds.rds.wire.header import HEADER_BYTES, Header
from urds.rds.wire.private_data import ConnectData

RECEIVES = 16  # the whole ring of the node with flow control: a connection has so many at first
CREDITS = 8  # that a peer grants it
FRAGMENT_BYTES = 4096
LARGE = bytes(range(256)) * 40  # 10240 bytes: three fragments


@pytest.fixture(scope="module", params=DEVICES)
def _standing_crediting(request: pytest.FixtureRequest) -> Iterator[Siege]:
    made = Siege(request.param, ib_flow_control=True, ib_max_recv_wr=RECEIVES)
    yield made
    made.close()


@pytest.fixture
def crediting(_standing_crediting: Siege) -> Iterator[Siege]:
    """Give a node that offers credits."""
    yield _standing_crediting
    _standing_crediting.dismiss()
    _standing_crediting.others_are_well()


def answer_of(unknown_peer: UnknownPeer) -> ConnectData:
    """Return the private data with which the node accepted."""
    assert unknown_peer.answer is not None
    return ConnectData.parse(unknown_peer.answer, ipv6=False)


def say(siege: Siege, unknown_peer: UnknownPeer, *payloads: bytes) -> None:
    """Have the node send to the unknown peer."""
    for payload in payloads:
        assert siege.victim.ask("send", target=unknown_peer.address, payload=payload.hex()) == 1


def data_headers(unknown_peer: UnknownPeer) -> list[Header]:
    """Return the headers of numbered messages that came, one for each frame."""
    return [header for header in unknown_peer.headers() if header.sequence]


# -- connect data


@pytest.mark.rule("wire-ib-connect-data", "wire-ib-connect-fields")
def test_who_accepts_sends_connect_data_too(siege: Siege) -> None:
    unknown_peer = siege.connected()
    assert answer_of(unknown_peer) == ConnectData(
        source=ip_address(siege.victim.address), target=ip_address(unknown_peer.address)
    )


@pytest.mark.rule("wire-ib-major", "wire-ib-minor-mask")
@pytest.mark.parametrize(
    ("offered", "answered"),
    [
        ({"major": 3, "minor": 1, "minor_mask": 2}, (3, 1)),
        ({"major": 4, "minor": 1, "minor_mask": 3}, (4, 1)),
        ({"major": 4, "minor": 0, "minor_mask": 1}, (4, 0)),
        ({"major": 4, "minor": 1, "minor_mask": 1 << 15}, None),
        ({"major": 2, "minor": 1}, None),
        ({"major": 5, "minor": 0}, None),
    ],
)
def test_versions_are_answered_or_rejected(
    siege: Siege, offered: dict[str, int], answered: tuple[int, int] | None
) -> None:
    unknown_peer = siege.unknown_peer()
    unknown_peer.connect(unknown_peer.data(**offered).emit())
    siege.until(lambda: unknown_peer.is_up or unknown_peer.is_over)
    assert unknown_peer.is_up is (answered is not None)
    if answered is None:
        assert int.from_bytes(unknown_peer.rejection[:4], "little") == 1
    else:
        assert answer_of(unknown_peer).version == answered


@pytest.mark.rule("wire-ib-ack-seq", "wire-own-reliability")
def test_the_private_data_name_the_last_message_received(siege: Siege) -> None:
    first = siege.connected()
    assert answer_of(first).ack_sequence == 0
    first.send(*congestion_map(), *message(b"one", sequence=1), *message(b"two", sequence=2))
    assert len(siege.victim.ask("collect", count=2)) == 2
    first.vanish()
    second = siege.returned(first.address)
    assert answer_of(second).ack_sequence == 2


@pytest.mark.rule("wire-ib-ack-seq", "wire-flags", "wire-generation-transport")
def test_what_the_private_data_do_not_name_is_repeated(siege: Siege) -> None:
    first = siege.connected()
    first.send(*congestion_map())
    say(siege, first, b"one", b"two", b"three")
    siege.until(lambda: len(data_headers(first)) == 3)
    numbers = [header.sequence for header in data_headers(first)]
    first.vanish()
    second = siege.returned(first.address, ack_sequence=numbers[0])
    siege.until(lambda: len(data_headers(second)) == 2)
    assert [header.sequence for header in data_headers(second)] == numbers[1:]
    assert all(HeaderFlag.RETRANSMITTED in header.flags for header in data_headers(second))
    assert [frame[HEADER_BYTES:] for frame in second.frames][-2:] == [b"two", b"three"]


# -- frames


@pytest.mark.rule("wire-ib-fragments", "wire-ib-fragment-order", "wire-ib-fragment-header")
def test_a_long_message_comes_in_fragments_with_the_whole_header(siege: Siege) -> None:
    unknown_peer = siege.connected()
    say(siege, unknown_peer, LARGE, b"behind it")
    siege.until(lambda: len(data_headers(unknown_peer)) == 4)
    frames = [frame for frame in unknown_peer.frames if Header.parse(frame[:HEADER_BYTES]).sequence]
    assert [len(frame) - HEADER_BYTES for frame in frames] == [4096, 4096, 2048, 9]
    assert b"".join(frame[HEADER_BYTES:] for frame in frames[:3]) == LARGE
    first, *others, behind = data_headers(unknown_peer)
    assert first.payload_bytes == len(LARGE)
    assert others == [first, first]
    assert behind.sequence == first.sequence + 1


@pytest.mark.rule("wire-congestion-format", "wire-sequence-excludes")
def test_a_connection_begins_with_the_congestion_map(siege: Siege) -> None:
    unknown_peer = siege.connected()
    siege.until(lambda: len(unknown_peer.frames) == 2)
    header, same = unknown_peer.headers()
    assert header == same
    assert (header.flags, header.sequence) == (HeaderFlag.CONG_BITMAP, 0)
    assert header.payload_bytes == CONGESTION_MAP_BYTES == 2 * FRAGMENT_BYTES


@pytest.mark.rule("wire-ack-required", "wire-ack-only")
def test_who_asks_is_told_by_a_bare_header(siege: Siege) -> None:
    unknown_peer = siege.connected()
    siege.until(lambda: len(unknown_peer.frames) == 2)  # the map, which would bring it as well
    unknown_peer.send(*congestion_map(), *message(b"please", sequence=7, flags=ACK_REQUIRED))
    siege.until(lambda: len(unknown_peer.frames) == 3)
    assert unknown_peer.frames[-1] == acknowledgement(7)
    assert len(siege.victim.ask("collect", count=1)) == 1


@pytest.mark.rule("wire-ack-field")
def test_a_message_tells_what_was_received(siege: Siege) -> None:
    unknown_peer = siege.connected()
    unknown_peer.send(*congestion_map(), *message(b"seen", sequence=9))
    assert len(siege.victim.ask("collect", count=1)) == 1
    say(siege, unknown_peer, b"an answer")
    siege.until(lambda: len(data_headers(unknown_peer)) == 1)
    assert data_headers(unknown_peer)[0].ack == 9


@pytest.mark.rule("wire-ping", "wire-pong")
def test_a_ping_is_answered_over_rdma(siege: Siege) -> None:
    unknown_peer = siege.connected()
    unknown_peer.send(*congestion_map(), *message(b"", target_port=0, source_port=99))
    siege.until(lambda: len(data_headers(unknown_peer)) == 1)
    [pong] = data_headers(unknown_peer)
    assert (pong.source_port, pong.target_port, pong.payload_bytes) == (0, 99, 0)


@pytest.mark.rule("wire-own-reliability")
def test_a_repeat_is_delivered_once(siege: Siege) -> None:
    unknown_peer = siege.connected()
    unknown_peer.send(*congestion_map(), *message(b"once", sequence=3))
    unknown_peer.send(*message(b"once", sequence=3, flags=REPEATED))
    unknown_peer.send(*message(b"next", sequence=4, target_port=INBOX_PORT))
    assert siege.victim.ask("collect", count=2) == [b"once".hex(), b"next".hex()]


# -- flow control


@pytest.mark.rule("wire-ib-credit-offer")
def test_the_private_data_offer_credits_if_flow_control_is_on(
    siege: Siege, crediting: Siege
) -> None:
    assert answer_of(siege.connected(credits=CREDITS)).credits == 0
    assert answer_of(crediting.connected(credits=CREDITS)).credits == RECEIVES


@pytest.mark.rule("wire-flow-optional", "wire-ib-credit-offer")
def test_without_an_offer_of_the_peer_nothing_is_counted(crediting: Siege) -> None:
    unknown_peer = crediting.connected(credits=0)
    assert answer_of(unknown_peer).credits == RECEIVES
    say(crediting, unknown_peer, *[b"x"] * (2 * RECEIVES))
    crediting.until(lambda: len(data_headers(unknown_peer)) == 2 * RECEIVES)
    assert not any(header.credit for header in unknown_peer.headers())


@pytest.mark.rule("wire-flow-stop", "wire-flow-no-starvation")
def test_no_more_frames_come_than_credits_were_granted(crediting: Siege) -> None:
    """The last credit is kept for a frame that grants some itself."""
    unknown_peer = crediting.connected(credits=CREDITS)
    say(crediting, unknown_peer, *[b"x"] * 20)
    crediting.until(lambda: len(unknown_peer.frames) == CREDITS - 1)
    crediting.others_are_well()
    assert len(unknown_peer.frames) == CREDITS - 1
    unknown_peer.send(acknowledgement(0, credit=3))
    crediting.until(lambda: len(unknown_peer.frames) == CREDITS + 2)
    unknown_peer.send(acknowledgement(0, credit=100))
    crediting.until(lambda: len(data_headers(unknown_peer)) == 20)


@pytest.mark.rule("wire-credit", "wire-flow-refill", "wire-flow-no-starvation")
def test_receives_that_are_posted_again_are_granted(crediting: Siege) -> None:
    """Many more frames than receives: it takes the grants to send them all."""
    unknown_peer = crediting.connected(credits=200)

    def granted() -> int:
        return RECEIVES + sum(header.credit for header in unknown_peer.headers())

    frames = [*congestion_map(), *message(bytes(150 * FRAGMENT_BYTES))]
    for sent, frame in enumerate(frames):
        crediting.until(lambda sent=sent: granted() > sent)  # type: ignore[misc]  # bound
        unknown_peer.send(frame)
    assert len(crediting.victim.ask("collect", count=1)) == 1
    assert len(frames) > 4 * RECEIVES
