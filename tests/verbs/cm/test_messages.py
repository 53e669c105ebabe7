"""Messages of the connection manager: round trips, and refusals of everything else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from urds.errors import WireError
from urds.verbs.cm.messages import (
    CM_QKEY,
    CM_QPN,
    MESSAGE_BYTES_MAX,
    PRIVATE_DATA_BYTES_MAX,
    QPN_MAX,
    READS_MAX,
    Message,
    MessageKind,
    Offer,
    Reason,
)

OPENING = b"opening!"
OFFER = Offer(
    qpn=0x1234, sequence_start=0xABCDEF, mtu_bytes=4096, responder_resources=3,
    initiator_depth=4, retry_count=7, rnr_retry_count=6, acceptance=2, qkey=0x1111_1111,
)  # fmt: skip
REQUEST = Message(
    kind=MessageKind.REQ, opening=OPENING, local_id=7, space=0x0106, source=bytes(range(16)),
    source_port=9, target=bytes(range(16, 32)), target_port=4791, offer=OFFER,
    private_data=b"private",
)  # fmt: skip

counts = st.integers(0, READS_MAX)
offers = st.builds(
    Offer,
    qpn=st.integers(0, QPN_MAX),
    sequence_start=st.integers(0, (1 << 24) - 1),
    mtu_bytes=st.integers(256, 1 << 31),
    responder_resources=counts,
    initiator_depth=counts,
    retry_count=st.integers(0, 7),
    rnr_retry_count=st.integers(0, 7),
    acceptance=st.integers(0, 2),
    qkey=st.integers(0, (1 << 32) - 1),
)


def test_the_numbers_are_infinibands() -> None:
    """Source: verbs-and-roce.md 14.1, 14.2."""
    assert (MessageKind.REQ, MessageKind.REP, MessageKind.SIDR_REP) == (0x10, 0x13, 0x18)
    assert (Reason.INVALID_SERVICE, Reason.CONSUMER) == (8, 28)
    assert (CM_QPN, CM_QKEY) == (1, 0x8001_0000)


@pytest.mark.parametrize("kind", list(MessageKind))
def test_each_kind_comes_back(kind: MessageKind) -> None:
    message = Message(kind=kind, opening=OPENING, local_id=1, remote_id=2, private_data=b"x")
    assert Message.parse(message.emit()) == message


@given(offers, st.binary(max_size=PRIVATE_DATA_BYTES_MAX))
def test_a_request_and_a_reply_come_back(offer: Offer, private_data: bytes) -> None:
    for kind in (MessageKind.REQ, MessageKind.REP):
        message = Message(kind=kind, opening=OPENING, offer=offer, private_data=private_data)
        assert Message.parse(message.emit()) == message


def test_the_longest_message_is_a_request() -> None:
    longest = Message(
        kind=MessageKind.REQ, opening=OPENING, private_data=bytes(PRIVATE_DATA_BYTES_MAX)
    )
    assert len(longest.emit()) == MESSAGE_BYTES_MAX


def test_private_data_over_the_limit_is_refused() -> None:
    message = Message(kind=MessageKind.RTU, opening=OPENING, private_data=bytes(197))
    with pytest.raises(WireError, match="197 octets, limit 196"):
        message.emit()
    octets = Message(kind=MessageKind.RTU, opening=OPENING, private_data=bytes(196)).emit()
    longer = octets[:6] + (197).to_bytes(2, "big") + octets[8:] + b"\0"
    with pytest.raises(WireError, match="197 octets, limit 196"):
        Message.parse(longer)


@pytest.mark.parametrize("length", range(len(REQUEST.emit())))
def test_a_cut_request_is_refused(length: int) -> None:
    with pytest.raises(WireError):
        Message.parse(REQUEST.emit()[:length])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"qpn": QPN_MAX + 1}, "queue pair 0xffffff"),
        ({"sequence_start": 1 << 24}, "more than 24 bits"),
        ({"mtu_bytes": 255}, "at least 256"),
        ({"responder_resources": READS_MAX + 1}, "129 outstanding reads, limit 128"),
        ({"retry_count": 8}, "retry count 8, limit 7"),
        ({"acceptance": 3}, "acceptance 3 is unknown"),
    ],
)
def test_an_impossible_offer_is_refused(changes: dict[str, int], words: str) -> None:
    octets = Message(kind=MessageKind.REP, opening=OPENING, offer=Offer(**changes)).emit()
    with pytest.raises(WireError, match=words):
        Message.parse(octets)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [(0, 0x55, "begins with"), (3, 2, "begins with"), (4, 0x19, "unknown kind 0x19")],
)
def test_a_strange_header_is_refused(place: int, value: int, words: str) -> None:
    octets = bytearray(REQUEST.emit())
    octets[place] = value
    with pytest.raises(WireError, match=words):
        Message.parse(bytes(octets))


def test_an_unknown_reason_is_refused() -> None:
    octets = bytearray(Message(kind=MessageKind.REJ, opening=OPENING).emit())
    octets[24:26] = b"\x7f\xff"
    with pytest.raises(WireError, match="reason 32767 is unknown"):
        Message.parse(bytes(octets))


@given(st.binary(max_size=2 * MESSAGE_BYTES_MAX), st.sampled_from(list(MessageKind)))
def test_any_octets_are_a_message_or_refused(octets: bytes, kind: MessageKind) -> None:
    """Also behind a header that is in order, so that the bodies are reached."""
    header = Message(kind=kind, opening=OPENING).emit()[:24]
    bodied = header[:6] + len(octets).to_bytes(2, "big") + header[8:] + octets
    for candidate in (octets, bodied, header + octets):
        try:
            message = Message.parse(candidate)
        except WireError:
            continue
        assert Message.parse(message.emit()) == message
