"""FPDUs written by hand from the RFCs, and what the codec makes of them."""

from typing import Any

import pytest

from urds.common.types import BytesLike
from urds.verbs.engine.packets import Packet, PacketFlag, PacketKind, Syndrome
from urds.verbs.providers.tcp import fpdu
from urds.verbs.providers.tcp.codec import (
    Decoder,
    Encoder,
    Farewell,
    OutstandingReads,
    Taken,
    Terminated,
)
from urds.verbs.providers.tcp.fpdu import (
    Opcode,
    StreamBroken,
    TerminateCode,
    crc32c,
    crc32c_in_python,
    parse_fpdu,
)

ONLY = PacketFlag.FIRST | PacketFlag.LAST


class Side:
    """Both directions of one end of a stream."""

    def __init__(
        self, *, urds_peer: bool = True, crc: bool = False, inbound_max: int = 4, step: int = 65_504
    ) -> None:
        self.reads = OutstandingReads(inbound_max=inbound_max)
        self.encoder = Encoder(self.reads, urds_peer=urds_peer, crc=crc, payload_bytes_max=step)
        self.decoder = Decoder(self.reads, target_qpn=77, urds_peer=urds_peer, crc=crc)

    def emit(self, *packets: Packet) -> bytes:
        out: list[BytesLike] = []
        for packet in packets:
            assert self.encoder.emit(packet, out) is None
        return b"".join(out)

    def take_all(self, data: bytes) -> list[Taken]:
        view, found = memoryview(data), []
        while view:
            item, taken_bytes = self.decoder.take(view)
            assert taken_bytes, f"{len(view)} bytes are left"
            view = view[taken_bytes:]
            if item is not None:
                found.append(item)
        return found

    def take(self, data: bytes) -> Any:
        (item,) = self.take_all(data)
        return item


def send(psn: int, msn: int, payload: bytes = b"", **fields: Any) -> Packet:
    flags = fields.pop("flags", ONLY)
    return Packet(PacketKind.SEND, 77, psn=psn, msn=msn, payload=payload, flags=flags, **fields)


def hexadecimal(text: str) -> bytes:
    return bytes.fromhex(text)


# -- bytes as the RFCs have them: length, control, header, payload, pad, CRC

SEND_HELLO = hexadecimal("0017 4143 00000000 00000000 00000001 00000000") + b"hello" + bytes(3 + 4)
WRITE_BYTES = hexadecimal("0011 c140 00001234 0000000000abcdef") + b"xyz" + bytes(1 + 4)
READ = hexadecimal(
    "002e 4141 00000000 00000001 00000001 00000000"
    "00000100 0000000000000000 00000008 00004321 0000000000001000"
) + bytes(4)


def test_crc32c_has_the_known_values() -> None:
    """Source: RFC 3720 appendix B.4, as bytes on the wire."""
    for data, wanted in (
        (bytes(32), "aa36918a"),
        (b"\xff" * 32, "43aba862"),
        (bytes(range(32)), "4e79dd46"),
        (bytes(range(31, -1, -1)), "5cdb3f11"),
    ):
        assert crc32c_in_python(data).to_bytes(4, "little").hex() == wanted
        assert crc32c(data[7:], crc32c(data[:7], 0)).to_bytes(4, "little").hex() == wanted


def test_a_send_is_an_untagged_segment() -> None:
    assert Side(urds_peer=False).emit(send(0, 1, b"hello")) == SEND_HELLO
    packet = Side(urds_peer=False).take(SEND_HELLO)
    assert packet == Packet(
        PacketKind.SEND, 77, psn=0, msn=1, flags=ONLY, payload=memoryview(b"hello")
    )


def test_a_write_is_a_tagged_segment() -> None:
    write = Packet(PacketKind.WRITE, 5, flags=ONLY, rkey=0x1234, address=0xABCDEF, payload=b"xyz")
    assert Side(urds_peer=False).emit(write) == WRITE_BYTES
    packet = Side(urds_peer=False).take(WRITE_BYTES)
    assert (packet.rkey, packet.address, packet.offset) == (0x1234, 0xABCDEF, 0)
    assert (packet.flags, bytes(packet.payload)) == (ONLY, b"xyz")


def test_a_read_names_where_its_answer_goes() -> None:
    near, far = Side(urds_peer=False), Side(urds_peer=False)
    request = Packet(PacketKind.READ_REQUEST, 5, flags=ONLY, rkey=0x4321, address=0x1000, length=8)
    assert near.emit(request) == READ
    taken = far.take(READ)
    assert (taken.kind, taken.psn, taken.rkey) == (PacketKind.READ_REQUEST, 0, 0x4321)
    assert (taken.address, taken.length) == (0x1000, 8)
    answer = Packet(PacketKind.READ_RESPONSE, 5, psn=0, flags=ONLY, payload=b"12345678")
    data = far.emit(answer)
    assert data == hexadecimal("0016 c142 00000100 0000000000000000") + b"12345678" + bytes(4)
    taken = near.take(data)
    assert (taken.kind, taken.psn, taken.flags) == (PacketKind.READ_RESPONSE, 0, ONLY)
    assert bytes(taken.payload) == b"12345678"
    assert not near.reads.outbound and not far.reads.inbound


def test_a_checksum_covers_length_to_pad() -> None:
    data = Side(urds_peer=False, crc=True).emit(send(0, 1, b"hello"))
    assert data[:-4] == SEND_HELLO[:-4]
    assert data[-4:] == crc32c_in_python(SEND_HELLO[:-4]).to_bytes(4, "little")
    Side(urds_peer=False, crc=True).take(data)
    with pytest.raises(StreamBroken) as broken:
        Side(urds_peer=False, crc=True).take(data.replace(b"hello", b"jello"))
    assert broken.value.code == TerminateCode.MPA_CRC


@pytest.mark.parametrize(
    ("flags", "opcode"),
    [
        (PacketFlag(0), 3),
        (PacketFlag.INVALIDATE, 4),
        (PacketFlag.SOLICITED, 5),
        (PacketFlag.SOLICITED | PacketFlag.INVALIDATE, 6),
        (PacketFlag.IMMEDIATE, 12),
        (PacketFlag.SOLICITED | PacketFlag.IMMEDIATE, 13),
    ],
)
def test_each_kind_of_send_has_its_opcode(flags: PacketFlag, opcode: int) -> None:
    immediate = 0xFACE if flags & (PacketFlag.INVALIDATE | PacketFlag.IMMEDIATE) else 0
    data = Side().emit(send(0, 1, b"x", flags=ONLY | flags, immediate=immediate))
    assert data[3] & 15 == opcode
    packet = Side().take(data)
    assert (packet.flags, packet.immediate) == (ONLY | flags, immediate)


def test_a_message_in_segments_keeps_its_number_and_offsets() -> None:
    near, far = Side(urds_peer=False, step=4), Side(urds_peer=False)
    taken = far.take_all(near.emit(send(0, 1, b"abcdefghij"), send(1, 2, b"k")))
    assert [(bytes(p.payload), p.psn, p.msn, p.offset) for p in taken if isinstance(p, Packet)] == [
        (b"abcd", 0, 1, 0),
        (b"efgh", 1, 1, 4),
        (b"ij", 2, 1, 8),
        (b"k", 3, 2, 0),
    ]
    assert [p.flags for p in taken if isinstance(p, Packet)] == [
        PacketFlag.FIRST,
        PacketFlag(0),
        PacketFlag.LAST,
        ONLY,
    ]


def test_immediate_data_and_its_write_are_one_packet() -> None:
    write = Packet(
        PacketKind.WRITE, 77, msn=1, rkey=9, address=100, immediate=0xABCD, payload=b"data",
        flags=ONLY | PacketFlag.IMMEDIATE | PacketFlag.SOLICITED | PacketFlag.ACK_REQUEST,
    )  # fmt: skip
    data = Side().emit(write, send(1, 2))
    assert [data[3] & 15, data[27] & 15] == [0, 9]
    first, second = Side().take_all(data)
    assert first == write
    assert isinstance(second, Packet) and (second.psn, second.msn) == (1, 2)
    for count in range(24 + 32):
        assert Side().decoder.take(memoryview(data[:count])) == (None, 0)


def test_immediate_data_alone_is_a_write_of_nothing() -> None:
    write = Packet(
        PacketKind.WRITE, 77, msn=1, immediate=7, flags=ONLY | PacketFlag.IMMEDIATE, rkey=0
    )
    data = Side().emit(write)
    assert data == hexadecimal("001a 4148 00000000 00000000 00000001 00000000") + bytes(
        7
    ) + b"\7" + bytes(4)
    assert Side().take(data) == write


@pytest.mark.parametrize(
    ("kind", "operands", "wanted"),
    [
        (PacketKind.ATOMIC_ADD, {},
         "00000000 {id} 00000009 0000000000000040 0000000000000005"
         "0000000000000000 0000000000000000 0000000000000000"),
        (PacketKind.MASKED_ADD, {"boundary": 0x80},
         "00000000 {id} 00000009 0000000000000040 0000000000000005"
         "0000000000000080 0000000000000000 0000000000000000"),
        (PacketKind.ATOMIC_SWAP, {"swap": 6},
         "00000002 {id} 00000009 0000000000000040 0000000000000006"
         "ffffffffffffffff 0000000000000005 ffffffffffffffff"),
        (PacketKind.MASKED_SWAP, {"swap": 6, "swap_mask": 7, "compare_mask": 0xF0},
         "00000002 {id} 00000009 0000000000000040 0000000000000006"
         "0000000000000007 0000000000000005 00000000000000f0"),
    ],
)  # fmt: skip
def test_an_atomic_request_and_its_answer(
    kind: PacketKind, operands: dict[str, int], wanted: str
) -> None:
    near, far = Side(), Side()
    request = Packet(kind, 77, flags=ONLY, rkey=9, address=0x40, compare_add=5, **operands)
    data = near.emit(request)
    assert data[:20] == hexadecimal("0046 414a 00000000 00000001 00000001 00000000")
    assert data[20:-4] == hexadecimal(wanted.format(id="00000000"))
    assert far.take(data) == request
    answer = Packet(PacketKind.ATOMIC_RESPONSE, 77, flags=ONLY, compare_add=1 << 63)
    data = far.emit(answer)
    assert data[:20] == hexadecimal("001e 414b 00000000 00000003 00000001 00000000")
    assert near.take(data) == answer


def test_answers_travel_between_own_nodes() -> None:
    answer = Packet(PacketKind.ACK, 77, psn=0xABCDEF, msn=41, syndrome=Syndrome.RNR_NAK + 3)
    assert Side().take(Side().emit(answer)) == answer


def test_going_back_is_said() -> None:
    """The request at 1 found no buffer; 1 and 2 come again with their numbers."""
    near, far = Side(), Side()
    read = Packet(PacketKind.READ_REQUEST, 77, psn=2, flags=ONLY, length=4)
    far.take_all(near.emit(send(0, 1), send(1, 2), read))
    again = far.take_all(near.emit(send(1, 2, b"x"), read))
    assert [(p.psn, p.msn, p.kind) for p in again if isinstance(p, Packet)] == [
        (1, 2, PacketKind.SEND),
        (2, 0, PacketKind.READ_REQUEST),
    ]
    assert len(near.reads.outbound) == 1 and len(far.reads.inbound) == 1


def test_going_back_into_a_write_keeps_its_place() -> None:
    near, far = Side(), Side()
    first = Packet(PacketKind.WRITE, 77, flags=PacketFlag.FIRST, payload=b"abcd", rkey=1)
    last = Packet(
        PacketKind.WRITE, 77, psn=1, offset=4, address=4, msn=1, immediate=1, rkey=1, payload=b"e",
        flags=PacketFlag.LAST | PacketFlag.IMMEDIATE,
    )  # fmt: skip
    assert far.take_all(near.emit(first, last)) == [first, last]
    assert far.take_all(near.emit(last, send(2, 2))) == [last, send(2, 2)]


def test_a_farewell_and_a_terminate_are_told_apart() -> None:
    out: list[BytesLike] = []
    side = Side()
    side.encoder.emit_farewell(out)
    side.encoder.emit_terminate(TerminateCode.UNTAGGED_NO_BUFFER, SEND_HELLO[:20], out)
    assert Side().take_all(b"".join(out)) == [
        Farewell(), Terminated(TerminateCode.UNTAGGED_NO_BUFFER)
    ]  # fmt: skip
    terminate = b"".join(out)[24:]
    assert terminate[:20] == hexadecimal("002a 4147 00000000 00000002 00000001 00000000")
    assert terminate[20:-4] == hexadecimal("1202 c000") + SEND_HELLO[:20]


def test_an_fpdu_without_bytes_says_nothing() -> None:
    assert Side(urds_peer=False).take_all(bytes(8)) == []


# -- towards a peer that is not ours


def test_a_plain_peer_gets_nothing_private() -> None:
    side = Side(urds_peer=False)
    out: list[BytesLike] = []
    assert side.encoder.emit(Packet(PacketKind.ACK, 5, syndrome=Syndrome.ACK), out) is None
    side.encoder.emit_farewell(out)
    assert out == []
    data = side.emit(send(0, 1, b"x", flags=ONLY | PacketFlag.ACK_REQUEST))
    assert data[2] == 0x41


@pytest.mark.parametrize(
    "packet",
    [
        send(0, 1, flags=ONLY | PacketFlag.IMMEDIATE),
        Packet(PacketKind.WRITE, 5, flags=ONLY | PacketFlag.IMMEDIATE),
        Packet(PacketKind.ATOMIC_ADD, 5, flags=ONLY),
        Packet(PacketKind.ATOMIC_SWAP, 5, flags=ONLY),
        Packet(PacketKind.MASKED_SWAP, 5, flags=ONLY),
        Packet(PacketKind.MASKED_ADD, 5, flags=ONLY),
    ],
)
def test_what_a_plain_peer_cannot_do_comes_back_refused(packet: Packet) -> None:
    out: list[BytesLike] = []
    nak = Side(urds_peer=False).encoder.emit(packet, out)
    assert nak is not None and nak.syndrome == Syndrome.NAK_INVALID_REQUEST
    assert out == []


@pytest.mark.parametrize(
    ("syndrome", "code"),
    [
        (Syndrome.RNR_NAK + 12, TerminateCode.UNTAGGED_NO_BUFFER),
        (Syndrome.NAK_REMOTE_ACCESS, TerminateCode.REMOTE_PROTECTION),
        (Syndrome.NAK_INVALID_REQUEST, TerminateCode.UNTAGGED_TOO_LONG),
        (Syndrome.NAK_REMOTE_OPERATION, TerminateCode.REMOTE_OPERATION),
    ],
)
def test_a_nak_becomes_a_terminate(syndrome: int, code: TerminateCode) -> None:
    data = Side(urds_peer=False).emit(Packet(PacketKind.ACK, 5, syndrome=syndrome))
    assert Side(urds_peer=False).take(data) == Terminated(code)


def test_requests_are_confirmed_once_tcp_has_them() -> None:
    side = Side(urds_peer=False)
    first = len(side.emit(send(0, 1, b"one")))
    side.emit(send(1, 2, b"two"))
    assert side.encoder.confirm(first - 1) is None
    for sent, psn in ((first, 0), (side.encoder.bytes_emitted, 1)):
        packet = side.encoder.confirm(sent)
        assert packet is not None
        assert (packet.psn, packet.syndrome) == (psn, Syndrome.ACK)
    assert side.encoder.confirm(side.encoder.bytes_emitted) is None


def test_what_follows_a_read_is_confirmed_after_it() -> None:
    side = Side(urds_peer=False)
    side.emit(send(0, 1), Packet(PacketKind.READ_REQUEST, 5, psn=1, flags=ONLY, length=0))
    side.emit(send(2, 2))
    total = side.encoder.bytes_emitted
    packet = side.encoder.confirm(total)
    assert packet is not None and packet.psn == 0
    assert side.encoder.confirm(total) is None
    side.take(hexadecimal("000e c142 00000100 0000000000000000") + bytes(4))
    packet = side.encoder.confirm(total)
    assert packet is not None and packet.psn == 2


# -- what breaks a stream


@pytest.mark.parametrize(
    ("data", "code"),
    [
        ("0001 4143 000000 00000000", TerminateCode.MPA_LENGTH),
        ("0011 4143" + "00" * 24, TerminateCode.MPA_LENGTH),
        ("000d c140" + "00" * 24, TerminateCode.MPA_LENGTH),
        ("0012 4243" + "00" * 24, TerminateCode.UNTAGGED_VERSION),
        ("000e c240" + "00" * 24, TerminateCode.TAGGED_VERSION),
        ("0012 4183" + "00" * 24, TerminateCode.REMOTE_RDMAP_VERSION),
        ("0012 4140" + "00" * 24, TerminateCode.REMOTE_OPCODE),
        ("000e c143" + "00" * 24, TerminateCode.REMOTE_OPCODE),
        ("0012 4143 00000000 00000001" + "00" * 16, TerminateCode.UNTAGGED_QUEUE),
        ("0012 4143 00000000 00000000 00000002" + "00" * 12, TerminateCode.UNTAGGED_SEQUENCE),
        ("0012 4143 00000000 00000000 00000001 00000001" + "00" * 8, TerminateCode.UNTAGGED_OFFSET),
        ("0012 4141 00000000 00000001 00000001" + "00" * 12, TerminateCode.REMOTE_OPERATION),
        ("0012 414e 00000000 00000004 00000001" + "00" * 12, TerminateCode.REMOTE_OPERATION),
        ("0012 414f 00000007 00000004 00000001" + "00" * 12, TerminateCode.REMOTE_OPERATION),
        ("0012 414b 00000000 00000003 00000001" + "00" * 12, TerminateCode.REMOTE_OPERATION),
        ("0012 014f 00000002 00000004 00000001" + "00" * 12, TerminateCode.UNTAGGED_OFFSET),
        ("000e c142" + "00" * 24, TerminateCode.TAGGED_INVALID_STAG),
    ],
)
def test_each_fault_has_its_code(data: str, code: TerminateCode) -> None:
    with pytest.raises(StreamBroken) as broken:
        Side().take_all(hexadecimal(data))
    assert broken.value.code == code, broken.value


def test_a_terminate_quotes_the_segment_at_fault() -> None:
    with pytest.raises(StreamBroken) as broken:
        Side().take_all(hexadecimal("000e c142 00000009") + bytes(12))
    assert broken.value.header == hexadecimal("000e c142 00000009") + bytes(8)


@pytest.mark.parametrize("opcode", range(8, 16))
def test_private_and_extended_opcodes_need_a_node_of_ours(opcode: int) -> None:
    queue = (0, 0, 1, 3, 0, 0, 4, 4)[opcode - 8]
    data = hexadecimal(f"0012 414{opcode:x} 00000000 0000000{queue} 00000001") + bytes(12)
    with pytest.raises(StreamBroken) as broken:
        Side(urds_peer=False).take_all(data)
    assert broken.value.code == TerminateCode.REMOTE_OPCODE


def test_reads_of_the_peer_are_bounded() -> None:
    near, far = Side(), Side(inbound_max=2)
    reads = [Packet(PacketKind.READ_REQUEST, 77, psn=psn, flags=ONLY, length=1) for psn in range(3)]
    far.take_all(near.emit(*reads[:2]))
    with pytest.raises(StreamBroken) as broken:
        far.take_all(near.emit(reads[2]))
    assert broken.value.code == TerminateCode.UNTAGGED_NO_BUFFER


@pytest.mark.parametrize(
    "answer",
    [
        "0012 c142 00000100 0000000000000001 00000000",  # not where it goes on
        "0013 c142 00000100 0000000000000000 0000000000 000000",  # more than asked for
        "0012 8142 00000100 0000000000000000 00000000",  # all, but not the last
        "0010 c142 00000100 0000000000000000 0000 0000",  # the last, but not all
    ],
)
def test_an_answer_stays_inside_its_read(answer: str) -> None:
    side = Side()
    side.emit(Packet(PacketKind.READ_REQUEST, 77, flags=ONLY, length=4))
    with pytest.raises(StreamBroken) as broken:
        side.take_all(hexadecimal(answer) + bytes(8))
    assert broken.value.code == TerminateCode.TAGGED_BASE_BOUNDS


def test_messages_do_not_mix() -> None:
    half = hexadecimal("0012 0143 00000000 00000000 00000001 00000000") + bytes(4)
    side = Side()
    side.take_all(half)
    with pytest.raises(StreamBroken) as broken:
        side.take_all(WRITE_BYTES)
    assert broken.value.code == TerminateCode.REMOTE_OPCODE
    side = Side()
    side.take_all(half)
    with pytest.raises(StreamBroken):
        side.take_all(READ)


def test_a_truncated_frame_is_waited_for() -> None:
    for count in range(len(READ)):
        assert parse_fpdu(memoryview(READ[:count]), crc=False) is None


@pytest.mark.parametrize(
    "payload",
    [
        "00000001" + "00" * 48,  # no such operation
        "00000002" + "00" * 47,
        "00000002" + "00" * 49,
    ],
)
def test_only_whole_atomic_operations_are_taken(payload: str) -> None:
    with pytest.raises(StreamBroken):
        fpdu.parse_atomic_request(memoryview(hexadecimal(payload)))


def test_the_mark_of_a_write_makes_no_write_of_an_answer() -> None:
    """An unrequested answer is refused, whatever bits it has and whatever follows."""
    side, flags = Side(), ONLY | PacketFlag.IMMEDIATE
    packet = Packet(PacketKind.WRITE, 77, flags=flags, msn=1, rkey=9, payload=b"octets")
    data = bytearray(Side().emit(packet))
    data[3] = data[3] & 0xF0 | Opcode.READ_RESPONSE
    with pytest.raises(StreamBroken) as caught:
        side.take_all(bytes(data))
    assert caught.value.code == TerminateCode.TAGGED_INVALID_STAG
