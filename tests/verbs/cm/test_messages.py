"""Messages of the connection manager: round trips, and refusals of everything else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from urds.common.errors import WireError
from urds.verbs.cm.messages import (
    CM_QKEY,
    CM_QPN,
    MESSAGE_BYTES_MAX,
    PRIVATE_DATA_BYTES_MAX,
    QPN_MAX,
    READS_MAX,
    CmMessage,
    CmMessageKind,
    Offer,
    RejectReason,
)

OPENING = b"opening!"
OFFER = Offer(
    qpn=0x1234, sequence_start=0xABCDEF, mtu_bytes=4096, responder_resources=3,
    initiator_depth=4, retry_count=7, rnr_retry_count=6, receive_order=2, qkey=0x1111_1111,
)  # fmt: skip
REQUEST = CmMessage(
    kind=CmMessageKind.REQ, context_guid=OPENING, local_id=7, space=0x0106, source=bytes(range(16)),
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
    receive_order=st.integers(0, 2),
    qkey=st.integers(0, (1 << 32) - 1),
)


def test_the_numbers_are_infinibands() -> None:
    """Source: docs/reference/verbs-and-roce.md 14.1, 14.2."""
    assert (CmMessageKind.REQ, CmMessageKind.REP, CmMessageKind.SIDR_REP) == (0x10, 0x13, 0x18)
    assert (RejectReason.INVALID_SERVICE, RejectReason.CONSUMER) == (8, 28)
    assert (CM_QPN, CM_QKEY) == (1, 0x8001_0000)


@pytest.mark.parametrize("kind", list(CmMessageKind))
def test_each_kind_comes_back(kind: CmMessageKind) -> None:
    message = CmMessage(kind=kind, context_guid=OPENING, local_id=1, remote_id=2, private_data=b"x")
    assert CmMessage.parse(message.emit()) == message


@given(offers, st.binary(max_size=PRIVATE_DATA_BYTES_MAX))
def test_a_request_and_a_reply_come_back(offer: Offer, private_data: bytes) -> None:
    for kind in (CmMessageKind.REQ, CmMessageKind.REP):
        message = CmMessage(kind=kind, context_guid=OPENING, offer=offer, private_data=private_data)
        assert CmMessage.parse(message.emit()) == message


def test_the_longest_message_is_a_request() -> None:
    longest = CmMessage(
        kind=CmMessageKind.REQ, context_guid=OPENING, private_data=bytes(PRIVATE_DATA_BYTES_MAX)
    )
    assert len(longest.emit()) == MESSAGE_BYTES_MAX


def test_private_data_over_the_limit_is_refused() -> None:
    message = CmMessage(kind=CmMessageKind.RTU, context_guid=OPENING, private_data=bytes(197))
    with pytest.raises(WireError, match="197 bytes, limit 196"):
        message.emit()
    data = CmMessage(kind=CmMessageKind.RTU, context_guid=OPENING, private_data=bytes(196)).emit()
    longer = data[:6] + (197).to_bytes(2, "big") + data[8:] + b"\0"
    with pytest.raises(WireError, match="197 bytes, limit 196"):
        CmMessage.parse(longer)


@pytest.mark.parametrize("length", range(len(REQUEST.emit())))
def test_a_cut_request_is_refused(length: int) -> None:
    with pytest.raises(WireError):
        CmMessage.parse(REQUEST.emit()[:length])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"qpn": QPN_MAX + 1}, "queue pair 0xffffff"),
        ({"sequence_start": 1 << 24}, "more than 24 bits"),
        ({"mtu_bytes": 255}, "at least 256"),
        ({"responder_resources": READS_MAX + 1}, "129 outstanding reads, limit 128"),
        ({"retry_count": 8}, "retry count 8, limit 7"),
        ({"receive_order": 3}, "receive_order 3 is unknown"),
    ],
)
def test_an_impossible_offer_is_refused(changes: dict[str, int], words: str) -> None:
    data = CmMessage(kind=CmMessageKind.REP, context_guid=OPENING, offer=Offer(**changes)).emit()
    with pytest.raises(WireError, match=words):
        CmMessage.parse(data)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [(0, 0x55, "begins with"), (3, 2, "begins with"), (4, 0x19, "unknown kind 0x19")],
)
def test_a_strange_header_is_refused(place: int, value: int, words: str) -> None:
    data = bytearray(REQUEST.emit())
    data[place] = value
    with pytest.raises(WireError, match=words):
        CmMessage.parse(bytes(data))


def test_an_unknown_reason_is_refused() -> None:
    data = bytearray(CmMessage(kind=CmMessageKind.REJ, context_guid=OPENING).emit())
    data[24:26] = b"\x7f\xff"
    with pytest.raises(WireError, match="reason 32767 is unknown"):
        CmMessage.parse(bytes(data))


@given(st.binary(max_size=2 * MESSAGE_BYTES_MAX), st.sampled_from(list(CmMessageKind)))
def test_any_bytes_are_a_message_or_refused(data: bytes, kind: CmMessageKind) -> None:
    """Also behind a header that is in order, so that the bodies are reached."""
    header = CmMessage(kind=kind, context_guid=OPENING).emit()[:24]
    bodied = header[:6] + len(data).to_bytes(2, "big") + header[8:] + data
    for candidate in (data, bodied, header + data):
        try:
            message = CmMessage.parse(candidate)
        except WireError:
            continue
        assert CmMessage.parse(message.emit()) == message
