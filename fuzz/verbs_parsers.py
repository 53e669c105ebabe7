"""Parsers of the verbs and of uDAPL: each is given bytes as a peer, or a file, may hold them."""

import re
from collections.abc import Callable
from contextlib import suppress

from fuzz.script import Script, split, step
from urds.common.errors import RemoteProtocolError
from urds.dat.registry import ConfEntry, ConfError, parse_conf, parse_params
from urds.verbs.cm.messages import CmMessage, CmMessageKind, Offer
from urds.verbs.cm.mpa import (
    PRIVATE_BYTES_MAX,
    MpaConnection,
    MpaFlag,
    MpaFrame,
    MpaRequested,
    MpaTerms,
)
from urds.verbs.engine.numbers import PSN_MASK
from urds.verbs.engine.packets import Packet, PacketFlag, PacketKind, emit_packet, parse_packet
from urds.verbs.providers.shm.messages import (
    DOORBELL,
    MAGIC,
    Hello,
    MapReject,
    MapReply,
    MapRequest,
    Welcome,
    emit_message,
    parse_message,
)
from urds.verbs.providers.shm.slot_packets import emit_slot, parse_slot
from urds.verbs.providers.shm.slots import (
    FIELDS,
    PAYLOAD_BYTES_MAX,
    RING_BYTES,
    SLOT_BYTES,
    SLOTS_BYTES,
    WORDS_BYTES,
    Direction,
    Slot,
    SlotReader,
    SlotWriter,
    Word,
)
from urds.verbs.providers.tcp import fpdu

_MPA_HEADER_BYTES = 20
_GUARD = bytes([0xA5]) * 64
_SLOT_STEPS_MAX = 400
_WORD_STEPS = tuple(range(0xF0, 0xF0 + len(Word)))  # steps of `slots` that overwrite a word
_STAMP_STEP = 0xEF
_SLOTS_CHANGED = 16  # of the first ones; steps go no further


def packet(data: bytes) -> None:
    """Read a packet of the engine; it must come out as the same bytes again, sealed or not."""
    record = parse_packet(data)
    assert max(record.target_qpn, record.psn) <= PSN_MASK
    assert b"".join(emit_packet(record)) == data
    sealed = b"".join(emit_packet(record, checksum=True))
    assert parse_packet(sealed, checksum=True) == record


def packet_sealed(data: bytes) -> None:
    """Read a packet that ends with a checksum, as UDP brings it."""
    assert b"".join(emit_packet(parse_packet(data, checksum=True), checksum=True)) == data


def cm_message(data: bytes) -> None:
    """Read a message of the connection manager; it must come out as the same record again."""
    record = CmMessage.parse(data)
    assert CmMessage.parse(record.emit()) == record


def mpa_frame(data: bytes) -> None:
    """Read a set-up frame; it must come out as the same record again."""
    found = MpaFrame.parse(data)
    if found is not None:
        frame, end = found
        assert end <= min(len(data), _MPA_HEADER_BYTES + PRIVATE_BYTES_MAX)
        assert MpaFrame.parse(frame.emit()) == (frame, end)


def mpa_setup(data: bytes) -> None:
    """Set a connection up with a peer that sends anything, in any portions; it ends or waits."""
    script = Script(data)
    choices, places = script.number(), script.piece()
    terms = MpaTerms(ird=4, ord=4, private_data=b"terms", urds_peer=bool(choices & 1))
    side = MpaConnection(terms if choices & 2 else None, deadline_ns=1)
    ends = 0
    for portion in split(script.rest(), places):
        side.receive_data(portion)
        assert not side._ended or not side._bytes or len(side._bytes) <= 2
        while (event := side.poll_event()) is not None:
            if isinstance(event, MpaRequested) and choices & 4:
                side.accept(terms)
            elif isinstance(event, MpaRequested):
                side.reject(b"no")
            else:
                ends += 1
        if ends:
            break  # a driver drops the connection, or hands it on
    side.handle_timeout(1)
    assert side.poll_timeout() is None


def payload(data: bytes) -> None:
    """Read what RDMAP puts behind a header, as each of its kinds."""
    view = memoryview(data)
    for parse in (
        fpdu.parse_read_request,
        fpdu.parse_atomic_request,
        fpdu.parse_atomic_response,
        fpdu.parse_immediate,
        fpdu.parse_answer,
        fpdu.parse_resume,
    ):
        with suppress(RemoteProtocolError):
            parse(view)
    fpdu.parse_terminate(view)


def shm_message(data: bytes) -> None:
    """Read a message of shared memory's socket; it must come out as the same bytes again."""
    assert emit_message(parse_message(data[1:], data[0] if data else 0)) == data[1:]


def slot(data: bytes) -> None:
    """Read a slot; its packet must come out as the same fields again."""
    if len(data) < FIELDS.size:
        return
    given = Slot(FIELDS.unpack_from(data), data[FIELDS.size :])
    with suppress(RemoteProtocolError):
        found = parse_slot(given)
        assert max(found.target_qpn, found.psn) <= PSN_MASK
        fields, part = emit_slot(found)
        assert parse_slot(Slot(fields, part)) == found


def slots(raw: bytes) -> None:
    """Use both ends of a channel's memory that the peer changes at any time, words and slots.

    What either end does stays in the memory that is its own, and what is read obeys the limits.
    """
    script = Script(raw)
    sizes = (WORDS_BYTES, SLOTS_BYTES, RING_BYTES)
    whole = bytearray(_GUARD + bytes(sum(sizes)) + _GUARD)
    views, at = [], len(_GUARD)
    for size in sizes:
        views.append(memoryview(whole)[at : at + size])
        at += size
    memory = Direction(*views)
    reader, writer = SlotReader(memory), SlotWriter(memory)
    with suppress(RemoteProtocolError):
        for _ in range(_SLOT_STEPS_MAX):
            if not script:
                break
            _slot_step(script, memory, reader, writer)
    assert whole.startswith(_GUARD) and whole.endswith(_GUARD)


def _slot_step(script: Script, memory: Direction, reader: SlotReader, writer: SlotWriter) -> None:
    action = script.number()
    if action in _WORD_STEPS:
        memory.words[tuple(Word)[action - _WORD_STEPS[0]]] = script.number(4)
    elif action == _STAMP_STEP:
        stamp = script.number(8)
        memory.stamps[script.number() % _SLOTS_CHANGED * (SLOT_BYTES // 8)] = stamp
    elif action & 3 == 0:
        taken = reader.take()
        if taken is not None:
            assert len(taken.payload) <= PAYLOAD_BYTES_MAX
            parse_slot(taken)
    elif action & 3 == 1:
        reader.free()
        reader.tell_freed()
        reader.arm_doorbell()
    elif action & 3 == 2:
        part = script.take(action >> 2) * (1 + action // 16 * 200)
        if writer.has_room(len(part)) or writer.wait_for_room(len(part)):
            writer.write((0, 3, 0, 9, 1, 1, 0, 0, 0, 0, 0), part)
        assert writer.published - writer._slots_freed <= len(memory.slots) // SLOT_BYTES
        assert writer._position - writer._ring_freed <= RING_BYTES
    else:
        place = script.number() * 8 % (_SLOTS_CHANGED * SLOT_BYTES)
        part = script.take(action >> 2)
        memory.slots[place : place + len(part)] = part


def dat_conf(data: bytes) -> None:
    """Read a dat.conf; what was read must come out as the same entries again."""
    try:
        entries = parse_conf(data.decode("utf-8", "replace"))
    except ConfError:
        return
    assert parse_conf("\n".join(map(_conf_line, entries))) == entries
    for entry in entries:
        with suppress(ValueError):
            parse_params(entry.ia_params)


def _conf_line(entry: ConfEntry) -> str:
    kind = "u" if entry.is_user_level else "k"
    fields = (
        entry.info.ia_name,
        f"{kind}{entry.info.dapl_version_major}.{entry.info.dapl_version_minor}",
        "threadsafe" if entry.info.is_thread_safe else "nonthreadsafe",
        "default" if entry.is_default else "nondefault",
        entry.library,
        entry.provider_version,
        entry.ia_params,
        entry.platform_params,
    )
    return " ".join('"' + re.sub(r'[\\"]', r"\\\g<0>", field) + '"' for field in fields)


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (
        packet, packet_sealed, cm_message, mpa_frame, mpa_setup, payload, shm_message, slot, slots,
        dat_conf,
    )
}  # fmt: skip

_ONLY = PacketFlag.FIRST | PacketFlag.LAST
PACKETS = (
    Packet(PacketKind.SEND, 9, 100, _ONLY | PacketFlag.IMMEDIATE, msn=1, payload=b"octets"),
    Packet(PacketKind.WRITE, 9, 100, _ONLY, address=1 << 40, rkey=0x100, payload=b"octets"),
    Packet(PacketKind.WRITE, 9, 100, _ONLY | PacketFlag.PLACED, rkey=0x100, length=4096),
    Packet(PacketKind.READ_REQUEST, 9, 100, _ONLY, address=64, rkey=0x100, length=512),
    Packet(PacketKind.ATOMIC_SWAP, 9, 100, _ONLY, address=64, compare_add=1, swap=2),
    Packet(PacketKind.MASKED_SWAP, 9, 100, _ONLY, address=64, compare_add=1, swap=2, swap_mask=7),
    Packet(PacketKind.READ_RESPONSE, 9, 100, _ONLY, msn=1, payload=b"octets"),
    Packet(PacketKind.ACK, 9, 100, syndrome=0x1F, msn=1, selective=((102, 104), (106, 106))),
    Packet(PacketKind.DATAGRAM, 9, 100, _ONLY, source_qpn=8, qkey=0x1234, payload=b"octets"),
)
_OFFER = Offer(qpn=17, sequence_start=100, mtu_bytes=1024, responder_resources=4)
_MESSAGES = tuple(
    CmMessage(kind=kind, context_guid=b"unknown!", local_id=5, offer=_OFFER, private_data=b"hello")
    for kind in (CmMessageKind.REQ, CmMessageKind.REP, CmMessageKind.REJ, CmMessageKind.RTU)
)
_REQUEST = MpaFrame(flags=MpaFlag.ENHANCED, ird=4, ord=4, private_data=b"hello").emit()
_LONGEST = MpaFrame(private_data=bytes(PRIVATE_BYTES_MAX)).emit()
_REPLY = MpaFrame(is_reply=True, flags=MpaFlag.ENHANCED, ird=4, ord=4).emit()


def _as_slot(record: Packet) -> bytes:
    fields, part = emit_slot(record)
    return FIELDS.pack(*fields) + bytes(part)


SEEDS: dict[str, tuple[bytes, ...]] = {
    "packet": tuple(b"".join(emit_packet(each)) for each in PACKETS),
    "packet_sealed": tuple(b"".join(emit_packet(each, checksum=True)) for each in PACKETS[:2]),
    "cm_message": tuple(message.emit() for message in _MESSAGES),
    "mpa_frame": (_LONGEST + b"\0", _REQUEST, _REPLY),
    "mpa_setup": (
        step(5, data=b"\x40\x80") + _REQUEST,
        step(0, data=b"") + _REQUEST,
        step(3, data=b"\x10") + _REPLY,
    ),
    "payload": (
        fpdu.ReadRequest(0x100, 0, 512, 0x100, 64).emit(),
        fpdu.AtomicRequest(fpdu.COMPARE_SWAP, 1, 0x100, 64, 2, 255, 1, 7).emit(),
        fpdu.emit_resume(100, 0),
    ),
    "shm_message": (
        b"\1" + emit_message(Hello(MAGIC, 1 << 20, bytes(16))),
        b"\0" + DOORBELL,
        b"\0" + emit_message(Welcome(bytes(16))),
        b"\0" + emit_message(MapRequest(9, 0x100)),
        b"\1" + emit_message(MapReply(9, 0x100, 1 << 40, 4096, 1)),
        b"\0" + emit_message(MapReject(9, 0x100)),
    ),
    "slot": (*(_as_slot(each) for each in PACKETS),),
    "slots": (
        b"\x16hello\0\1" * 20 + b"\x00\x01" + bytes([_WORD_STEPS[0], 0, 0, 0, 9, 2, 2]),
        b"\xfe" * 80 + b"\x00\x01" * 9,
        b"\x02" + bytes([_STAMP_STEP, 0, 0, 0, 2, 0, 4, 0, 0, 1]) + b"\x00\x01\x00",
    ),
    "dat_conf": (
        b'# text\ndat0 u1.2 nonthreadsafe default "lib x" 1 "tcp0 ::1 receive_order=1" "a \\" b"\n',
        b"dat1 k2.0 threadsafe nondefault l p i o # more",
    ),
}
