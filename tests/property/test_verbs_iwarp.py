"""What the codec of the tcp provider owes for all packets, and for all bytes of a peer."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from urds.common.errors import WireError
from urds.common.types import BytesLike
from urds.verbs.cm.mpa import MpaConnection, MpaFirstFrame, MpaFlag, MpaFrame
from urds.verbs.engine.packets import Packet, PacketFlag, PacketKind
from urds.verbs.providers.tcp.codec import Decoder, Encoder, OutstandingReads
from urds.verbs.providers.tcp.fpdu import StreamBroken

ONLY = PacketFlag.FIRST | PacketFlag.LAST
STEP = 16  # bytes of a packet of these tests

steady = settings(deadline=None, derandomize=True, max_examples=examples(150))
ALL = (1 << 64) - 1
words = st.integers(0, 0xFFFF_FFFF)
offsets = st.integers(0, ALL)


@st.composite
def messages(draw: st.DrawFn) -> list[Packet]:
    """One message as an engine cuts it; numbers are filled in by `numbered`."""
    kind = draw(st.sampled_from(list(PacketKind)[:7]))
    if kind >= PacketKind.READ_REQUEST:
        is_read = kind == PacketKind.READ_REQUEST
        packet = Packet(
            kind,
            7,
            flags=ONLY,
            rkey=draw(words),
            address=draw(offsets),
            length=draw(words) if is_read else 0,
            compare_add=0 if is_read else draw(offsets),
        )
        if kind in (PacketKind.ATOMIC_SWAP, PacketKind.MASKED_SWAP):
            packet.swap = draw(offsets)
        # Masks that make no difference are those of the plain kinds.
        if kind == PacketKind.MASKED_SWAP:
            packet.compare_mask, packet.swap_mask = draw(offsets), draw(st.integers(0, ALL - 1))
        elif kind == PacketKind.MASKED_ADD:
            packet.boundary = draw(st.integers(1, ALL))
        return [packet]
    extras = [0, 4, 16, 20] + ([32, 36] if kind == PacketKind.SEND else [])
    extra = PacketFlag(draw(st.sampled_from(extras)))
    if kind == PacketKind.WRITE and PacketFlag.IMMEDIATE not in extra:
        extra = PacketFlag(0)  # a write without immediate data wakes no thread
    payload = draw(st.binary(max_size=50))
    starts = range(0, max(1, len(payload)), STEP)
    rkey, address = (draw(words), draw(offsets)) if kind == PacketKind.WRITE else (0, 0)
    packets = [
        Packet(
            kind,
            7,
            offset=start,
            rkey=rkey,
            address=(address + start) % (1 << 64) if kind == PacketKind.WRITE else 0,
            payload=payload[start : start + STEP],
            flags=PacketFlag.ACK_REQUEST if draw(st.booleans()) else PacketFlag(0),
        )
        for start in starts
    ]
    packets[0].flags |= PacketFlag.FIRST
    packets[-1].flags |= PacketFlag.LAST | extra
    if extra & (PacketFlag.IMMEDIATE | PacketFlag.INVALIDATE):
        packets[-1].immediate = draw(words)
    if not payload and kind == PacketKind.WRITE and extra:
        packets[0].rkey = packets[0].address = 0  # nothing is written: they do not travel
    return packets


def numbered(found: list[list[Packet]]) -> list[Packet]:
    """Give the packets the numbers an engine would give them."""
    msn, packets = 1, []
    for message in found:
        consumes = message[0].kind == PacketKind.SEND or message[-1].flags & PacketFlag.IMMEDIATE
        for packet in message:
            is_marked = packet.kind == PacketKind.SEND or packet.flags & PacketFlag.IMMEDIATE
            if packet.kind >= PacketKind.READ_REQUEST:
                packet.flags &= ~PacketFlag.ACK_REQUEST
            packets.append(replace(packet, psn=len(packets), msn=msn if is_marked else 0))
        msn += bool(consumes)
    return packets


def coded(*, crc: bool) -> tuple[Encoder, Decoder]:
    encoder = Encoder(
        OutstandingReads(inbound_max=64), urds_peer=True, crc=crc, payload_bytes_max=STEP
    )
    return encoder, Decoder(OutstandingReads(inbound_max=64), target_qpn=7, urds_peer=True, crc=crc)


def emitted(encoder: Encoder, packets: list[Packet]) -> bytes:
    out: list[BytesLike] = []
    for packet in packets:
        assert encoder.emit(packet, out) is None
    return b"".join(out)


@steady
@given(
    st.lists(messages(), max_size=12),
    st.lists(st.integers(1, 60), min_size=1, max_size=20),
    st.booleans(),
)
def test_packets_arrive_as_they_were(found: list[list[Packet]], cuts: list[int], crc: bool) -> None:
    """Whatever they are, and however TCP cuts the bytes on the way."""
    packets = numbered(found)
    encoder, decoder = coded(crc=crc)
    data = emitted(encoder, packets)
    assert encoder.bytes_emitted == len(data)
    got: list[Packet] = []
    kept, position, turn = b"", 0, 0
    while position < len(data):
        step = cuts[turn % len(cuts)]
        kept += data[position : position + step]
        position, turn = position + step, turn + 1
        while kept:
            item, taken_bytes = decoder.take(memoryview(kept))
            if not taken_bytes:
                break
            assert isinstance(item, Packet)
            got.append(replace(item, payload=bytes(item.payload)))
            kept = kept[taken_bytes:]
    assert kept == b""
    assert got == packets


@steady
@given(st.lists(messages(), min_size=1, max_size=6), st.data())
def test_going_back_repeats_the_numbers(found: list[list[Packet]], data: st.DataObject) -> None:
    """A requester may go back to any message and send on from there."""
    packets = numbered(found)
    encoder, decoder = coded(crc=False)
    starts = [index for index, packet in enumerate(packets) if packet.flags & PacketFlag.FIRST]
    back = data.draw(st.sampled_from(starts))
    raw = memoryview(emitted(encoder, [*packets, *packets[back:]]))
    got = []
    while raw:
        item, taken_bytes = decoder.take(raw)
        raw = raw[taken_bytes:]
        if isinstance(item, Packet):
            got.append(replace(item, payload=bytes(item.payload)))
    assert got == [*packets, *packets[back:]]


@steady
@given(st.binary(max_size=200), st.booleans(), st.booleans())
def test_strange_bytes_break_the_stream_and_nothing_else(
    data: bytes, urds_peer: bool, crc: bool
) -> None:
    decoder = Decoder(OutstandingReads(inbound_max=4), target_qpn=7, urds_peer=urds_peer, crc=crc)
    _swallow(decoder, data)


@steady
@given(st.lists(messages(), min_size=1, max_size=4), st.data())
def test_damaged_frames_break_the_stream_and_nothing_else(
    found: list[list[Packet]], data: st.DataObject
) -> None:
    """Without a checksum a flipped bit may pass for another request, never for an exception."""
    encoder, decoder = coded(crc=False)
    raw = bytearray(emitted(encoder, numbered(found)))
    bit = data.draw(st.integers(0, len(raw) * 8 - 1))
    raw[bit // 8] ^= 1 << bit % 8
    _swallow(decoder, bytes(raw))


@steady
@given(st.lists(messages(), min_size=1, max_size=2), st.data())
def test_one_flipped_bit_is_refused_with_a_checksum(
    found: list[list[Packet]], data: st.DataObject
) -> None:
    """A flipped length may also leave the frame waiting for bytes that never come."""
    encoder, decoder = coded(crc=True)
    packets = numbered(found)
    raw = bytearray(emitted(encoder, packets))
    bit = data.draw(st.integers(0, len(raw) * 8 - 1))
    raw[bit // 8] ^= 1 << bit % 8
    assert _swallow(decoder, bytes(raw)) < len(packets)


def _swallow(decoder: Decoder, data: bytes) -> int:
    """Feed bytes until they end or break the stream; return how many packets came out."""
    view, count = memoryview(data), 0
    while view:
        try:
            item, taken_bytes = decoder.take(view)
        except StreamBroken:
            break
        if not taken_bytes:
            break
        assert taken_bytes <= len(view)
        count += isinstance(item, Packet)
        view = view[taken_bytes:]
    return count


@steady
@given(
    st.booleans(),
    st.sets(st.sampled_from(list(MpaFlag)[1:])),
    st.integers(0, 255),
    st.integers(0, 0x3FFF),
    st.integers(0, 0x3FFF),
    st.booleans(),
    st.sets(st.sampled_from(list(MpaFirstFrame)[1:])),
    st.binary(max_size=508),
    st.binary(max_size=9),
)
def test_set_up_frames_arrive_as_they_were(
    is_reply: bool, flags: set[MpaFlag], revision: int, ird: int, ord_: int, peer: bool,
    first: set[MpaFirstFrame], private_data: bytes, more: bytes,
) -> None:  # fmt: skip
    flags_word = MpaFlag(sum(flags))
    enhanced = MpaFlag.ENHANCED in flags_word
    frame = MpaFrame(
        is_reply=is_reply,
        flags=flags_word,
        revision=revision,
        ird=ird if enhanced else 0,
        ord=ord_ if enhanced else 0,
        peer_to_peer=peer and enhanced,
        first_frames=MpaFirstFrame(sum(first)) if enhanced else MpaFirstFrame.NONE,
        private_data=private_data,
    )
    data = frame.emit()
    assert MpaFrame.parse(data + more) == (frame, len(data))


@steady
@given(st.lists(st.binary(max_size=40), max_size=5), st.booleans())
def test_strange_set_ups_only_fail(chunks: list[bytes], keyed: bool) -> None:
    connection = MpaConnection(None, deadline_ns=10)
    if keyed:
        connection.receive_data(b"MPA ID Req Frame")
    for chunk in chunks:
        connection.receive_data(chunk)
    connection.handle_timeout(10)
    try:
        MpaFrame.parse(b"".join(chunks))
    except WireError:
        pass
