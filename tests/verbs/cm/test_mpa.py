"""MPA: frames as bytes, and both sides of a set-up without a socket."""

from typing import Any

import pytest

from urds.common.errors import LocalProtocolError, WireError
from urds.verbs.cm.mpa import (
    READS_MAX,
    MpaConnection,
    MpaError,
    MpaEstablished,
    MpaEvent,
    MpaFailed,
    MpaFirstFrame,
    MpaFlag,
    MpaFrame,
    MpaRejected,
    MpaRequested,
    MpaTerms,
)

# Written by hand from RFC 6581 section 9: CRC, enhanced, revision 2; IRD 8 and ORD 4 with
# peer to peer and an offered first write; private data "hi".
ENHANCED_REQUEST = b"MPA ID Req Frame" + bytes.fromhex("5002 0006 8008 8004") + b"hi"
# RFC 5044 section 7.1: revision 1, no flag, no private data.
PLAIN_REPLY = b"MPA ID Rep Frame" + bytes.fromhex("0001 0000")


def pair(**theirs: Any) -> tuple[MpaConnection, MpaConnection]:
    initiator = MpaConnection(MpaTerms(**theirs), deadline_ns=100)
    responder = MpaConnection(None, deadline_ns=100)
    return initiator, responder


def bytes_of(connection: MpaConnection) -> bytes:
    found = b""
    while (data := connection.poll_transmit()) is not None:
        found += data
    return found


def event_of(connection: MpaConnection, kind: type[MpaEvent]) -> Any:
    event = connection.poll_event()
    assert isinstance(event, kind), event
    return event


def test_a_request_of_revision_2_is_read() -> None:
    frame, end = MpaFrame.parse(ENHANCED_REQUEST + b"more") or (None, 0)
    assert end == len(ENHANCED_REQUEST)
    assert frame == MpaFrame(
        flags=MpaFlag.CRC | MpaFlag.ENHANCED,
        ird=8,
        ord=4,
        peer_to_peer=True,
        first_frames=MpaFirstFrame.WRITE,
        private_data=b"hi",
    )
    assert frame.emit() == ENHANCED_REQUEST


def test_a_reply_of_revision_1_is_read() -> None:
    frame, end = MpaFrame.parse(PLAIN_REPLY) or (None, 0)
    assert frame == MpaFrame(is_reply=True, revision=1) and end == 20
    assert frame.emit() == PLAIN_REPLY


@pytest.mark.parametrize("count", range(len(ENHANCED_REQUEST)))
def test_a_frame_is_waited_for(count: int) -> None:
    assert MpaFrame.parse(ENHANCED_REQUEST[:count]) is None


@pytest.mark.parametrize(
    "data",
    [
        b"G",
        b"MPA ID Res Frame" + bytes(4),
        b"MPA ID Req Frame" + bytes.fromhex("0002 0201"),
        b"MPA ID Req Frame" + bytes.fromhex("1002 0003 000000"),
    ],
)
def test_what_is_no_frame_is_refused_at_once(data: bytes) -> None:
    with pytest.raises(WireError):
        MpaFrame.parse(data)


def test_private_data_have_a_limit() -> None:
    MpaFrame(revision=1, private_data=bytes(512)).emit()
    with pytest.raises(WireError, match="513 bytes, limit 512"):
        MpaFrame(revision=1, private_data=bytes(513)).emit()
    with pytest.raises(WireError, match="limit 512"):
        MpaFrame(flags=MpaFlag.ENHANCED, private_data=bytes(509)).emit()


def test_two_own_nodes_agree() -> None:
    initiator, responder = pair(ird=8, ord=20, private_data=b"hello")
    responder.receive_data(bytes_of(initiator))
    request = event_of(responder, MpaRequested)
    assert (request.private_data, request.ird, request.ord, request.urds_peer) == (
        b"hello",
        8,
        20,
        True,
    )
    responder.accept(MpaTerms(ird=4, ord=16, private_data=b"there"))
    accepted = event_of(responder, MpaEstablished)
    initiator.receive_data(bytes_of(responder) + b"first octets")
    established = event_of(initiator, MpaEstablished)
    assert (accepted.ird, accepted.ord, accepted.urds_peer, accepted.crc) == (4, 8, True, False)
    assert (established.ird, established.ord, established.urds_peer) == (8, 4, True)
    assert established.first_frame == MpaFirstFrame.NONE
    assert established.private_data == b"there" and initiator.remainder == b"first octets"


@pytest.mark.parametrize("mine", [False, True])
@pytest.mark.parametrize("theirs", [False, True])
def test_either_wish_for_a_checksum_binds_both(mine: bool, theirs: bool) -> None:
    initiator, responder = pair(crc=theirs)
    responder.receive_data(bytes_of(initiator))
    event_of(responder, MpaRequested)
    responder.accept(MpaTerms(crc=mine))
    initiator.receive_data(bytes_of(responder))
    assert event_of(responder, MpaEstablished).crc is (mine or theirs)
    assert event_of(initiator, MpaEstablished).crc is (mine or theirs)


def test_an_echo_of_our_flags_is_no_node_of_ours() -> None:
    """Linux siw answers with the request's own flag word."""
    initiator = MpaConnection(MpaTerms(), deadline_ns=100)
    request = bytes_of(initiator)
    initiator.receive_data(request.replace(b" Req ", b" Rep "))
    established = event_of(initiator, MpaEstablished)
    assert not established.urds_peer
    assert established.first_frame == MpaFirstFrame.WRITE


def test_a_plain_peer_of_revision_1_is_taken() -> None:
    initiator = MpaConnection(MpaTerms(ird=3, ord=5), deadline_ns=100)
    initiator.receive_data(PLAIN_REPLY)
    established = event_of(initiator, MpaEstablished)
    assert (established.urds_peer, established.revision) == (False, 1)
    assert (established.ird, established.ord) == (3, 5)


def test_a_plain_request_of_revision_1_gets_a_reply_without_counts() -> None:
    responder = MpaConnection(None, deadline_ns=100)
    responder.receive_data(PLAIN_REPLY.replace(b" Rep ", b" Req "))
    request = event_of(responder, MpaRequested)
    assert (request.ird, request.ord, request.urds_peer) == (READS_MAX, READS_MAX, False)
    responder.accept(MpaTerms(private_data=b"x"))
    assert bytes_of(responder) == b"MPA ID Rep Frame" + bytes.fromhex("0001 0001") + b"x"
    assert event_of(responder, MpaEstablished).urds_peer is False


def test_a_plain_initiator_that_offers_a_first_frame_is_asked_for_it() -> None:
    responder = MpaConnection(None, deadline_ns=100)
    responder.receive_data(ENHANCED_REQUEST)
    event_of(responder, MpaRequested)
    responder.accept(MpaTerms(ird=2, ord=2))
    # CRC taken over, peer to peer, IRD 2, write chosen, ORD 2.
    wanted = b"MPA ID Rep Frame" + bytes.fromhex("5002 0004 8002 8002")
    assert bytes_of(responder) == wanted
    assert event_of(responder, MpaEstablished).first_frame == MpaFirstFrame.WRITE


def test_a_reject_has_its_private_data() -> None:
    initiator, responder = pair()
    responder.receive_data(bytes_of(initiator))
    event_of(responder, MpaRequested)
    responder.reject(b"not today")
    initiator.receive_data(bytes_of(responder))
    assert event_of(initiator, MpaRejected).private_data == b"not today"
    assert responder.poll_event() is None


def test_a_peer_that_wants_markers_is_refused() -> None:
    responder = MpaConnection(None, deadline_ns=100)
    responder.receive_data(b"MPA ID Req Frame" + bytes.fromhex("8001 0000"))
    assert "markers" in event_of(responder, MpaFailed).reason
    assert bytes_of(responder) == b"MPA ID Rep Frame" + bytes.fromhex("2001 0000")
    initiator = MpaConnection(MpaTerms(), deadline_ns=100)
    initiator.receive_data(b"MPA ID Rep Frame" + bytes.fromhex("8001 0000"))
    assert "markers" in event_of(initiator, MpaFailed).reason


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        PLAIN_REPLY,  # a reply to a responder
        b"MPA ID Req Frame" + bytes.fromhex("0003 0000"),
        b"MPA ID Req Frame" + bytes.fromhex("2001 0000"),
        b"MPA ID Req Frame" + bytes.fromhex("0001 0000") + b"too early",
    ],
)
def test_an_unknown_peer_fails(data: bytes) -> None:
    responder = MpaConnection(None, deadline_ns=100)
    responder.receive_data(data)
    assert event_of(responder, MpaFailed).error == MpaError.INVALID_FRAME
    assert responder.poll_event() is None


def test_a_silent_unknown_peer_fails_at_the_deadline() -> None:
    responder = MpaConnection(None, deadline_ns=100)
    responder.receive_data(ENHANCED_REQUEST[:5])
    assert responder.poll_timeout() == 100
    responder.handle_timeout(99)
    assert responder.poll_event() is None
    responder.handle_timeout(100)
    assert "in time" in event_of(responder, MpaFailed).reason
    assert responder.poll_timeout() is None


def test_our_own_application_may_think() -> None:
    responder = MpaConnection(None, deadline_ns=100)
    responder.receive_data(ENHANCED_REQUEST)
    assert responder.poll_timeout() is None
    responder.handle_timeout(1_000)
    event_of(responder, MpaRequested)
    responder.accept(MpaTerms())
    event_of(responder, MpaEstablished)


def test_bytes_before_the_answer_fail() -> None:
    responder = MpaConnection(None, deadline_ns=100)
    responder.receive_data(ENHANCED_REQUEST)
    event_of(responder, MpaRequested)
    responder.receive_data(b"impatient")
    event_of(responder, MpaFailed)
    with pytest.raises(LocalProtocolError):
        responder.accept(MpaTerms())


def test_a_peer_that_would_make_too_many_reads_fails() -> None:
    initiator = MpaConnection(MpaTerms(), deadline_ns=100)
    initiator.receive_data(b"MPA ID Rep Frame" + bytes.fromhex("1002 0004 0001 0081"))
    assert event_of(initiator, MpaFailed).error == MpaError.INSUFFICIENT_IRD


def test_a_first_frame_that_was_not_offered_fails() -> None:
    initiator = MpaConnection(MpaTerms(), deadline_ns=100)
    initiator.receive_data(b"MPA ID Rep Frame" + bytes.fromhex("1002 0004 8001 4001"))
    assert event_of(initiator, MpaFailed).error == MpaError.NO_MATCHING_FIRST_FRAME


def test_peer_to_peer_without_a_first_frame_asks_for_none() -> None:
    initiator = MpaConnection(MpaTerms(), deadline_ns=100)
    initiator.receive_data(b"MPA ID Rep Frame" + bytes.fromhex("1002 0004 8001 0001"))
    assert event_of(initiator, MpaEstablished).first_frame == MpaFirstFrame.NONE


def test_one_request_is_answered_once() -> None:
    responder = MpaConnection(None, deadline_ns=100)
    with pytest.raises(LocalProtocolError):
        responder.accept(MpaTerms())
    responder.receive_data(ENHANCED_REQUEST)
    responder.reject()
    with pytest.raises(LocalProtocolError):
        responder.reject()
