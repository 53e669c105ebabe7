"""The bytes of the original rsockets, read and written again byte for byte."""

import struct
from dataclasses import dataclass, replace

import pytest

from tests.vectors import load
from urds.rsocket.core.stream.core import StreamCore
from urds.rsocket.core.stream.records import Memory, Post, PostKind, Shut, StreamSettings
from urds.rsocket.wire.stream import (
    CREDIT_LIMIT_MASK,
    IOMAP_ENTRY_BYTES,
    SGE_BYTES,
    ConnectData,
    ConnectFlag,
    Control,
    IomapEntry,
    Op,
    Sge,
    emit_imm_data,
    parse_imm_data,
)

VECTORS = load("linux_6_1_rsocket")
CMA_HEADER_BYTES = 36
RECEIVE_BYTES = 1 << 20  # rstream and riostream ask for buffers of 1 MiB
HALF_BYTES = RECEIVE_BYTES // 2
WORDS = [name for name in VECTORS if not name.endswith(("request", "reply", "direct"))]


@dataclass(frozen=True)
class Write:
    """One RDMA WRITE: where it goes, its word, what is written."""

    target: Sge
    imm_data: int
    payload: bytes


def write(name: str) -> Write:
    data = VECTORS[name]
    (imm_data,) = struct.unpack_from(">I", data, SGE_BYTES)
    return Write(Sge.parse(data[:SGE_BYTES], "big"), imm_data, data[SGE_BYTES + 4 :])


def connect_data(name: str) -> ConnectData:
    return ConnectData.parse(VECTORS[name][CMA_HEADER_BYTES if "request" in name else 0 :])


REQUEST = ConnectData(
    flags=ConnectFlag.IOMAP,
    credits=384,
    iomap_slots=0,
    target_sgl=Sge(0x559B0476F000, 0xA18, 2),
    data_buffer=Sge(0x7F617504B000, 0xBD2, HALF_BYTES),
)
REPLY = ConnectData(
    flags=ConnectFlag.IOMAP,
    credits=384,
    iomap_slots=0,
    target_sgl=Sge(0x7F4208003000, 0x9DA, 2),
    data_buffer=Sge(0x7F420C106000, 0xADA, HALF_BYTES),
)


@pytest.mark.rule(
    "rsocket-connect-sgl",
    "rsocket-connect-buffer",
    "rsocket-connect-credits",
    "rsocket-connect-version",
)
@pytest.mark.parametrize(("name", "record"), [("request", REQUEST), ("reply", REPLY)])
def test_what_the_connect_data_says(name: str, record: ConnectData) -> None:
    assert connect_data(name) == record


@pytest.mark.parametrize("name", ["request", "reply", "iomap_request", "iomap_reply"])
def test_connect_data_are_written_again_byte_for_byte(name: str) -> None:
    data = VECTORS[name][CMA_HEADER_BYTES if "request" in name else 0 :]
    assert connect_data(name).emit() == data[:40]
    assert not any(data[40:])
    assert connect_data(name).iomap_slots == ("iomap" in name)


@pytest.mark.rule("rsocket-message-type")
@pytest.mark.parametrize("name", WORDS)
def test_a_word_is_written_again(name: str) -> None:
    imm_data = write(name).imm_data
    assert emit_imm_data(*parse_imm_data(imm_data)) == imm_data


@pytest.mark.rule("rsocket-double-buffer", "rsocket-remote-sgl")
@pytest.mark.parametrize(
    ("name", "own", "peer"),
    [
        ("active_second_half", "request", "reply"),
        ("passive_second_half", "reply", "request"),
        ("iomap_active_second_half", "iomap_request", "iomap_reply"),
        ("iomap_passive_second_half", "iomap_reply", "iomap_request"),
    ],
)
def test_the_first_message_of_each_side_publishes_the_second_half(
    name: str, own: str, peer: str
) -> None:
    message, own_data, peer_data = write(name), connect_data(own), connect_data(peer)
    op, argument = parse_imm_data(message.imm_data)
    assert op is Op.CREDIT
    assert argument & CREDIT_LIMIT_MASK == own_data.credits
    table = peer_data.target_sgl
    assert message.target == Sge(table.address + SGE_BYTES, table.key, SGE_BYTES)
    first = own_data.data_buffer
    entry = Sge.parse(message.payload, "little")
    assert entry == Sge(first.address + HALF_BYTES, first.key, HALF_BYTES)
    assert entry.emit("little") == message.payload


@pytest.mark.rule("rsocket-fill-buffer-first", "rsocket-write-immediate")
@pytest.mark.parametrize(
    ("name", "peer", "offset", "length"),
    [
        ("active_data_16", "reply", 0, 16),
        ("active_data_1000", "reply", 16, 1000),
        ("active_data_1000_next", "reply", 1016, 1000),
        ("passive_data_16", "request", 0, 16),
    ],
)
def test_data_go_into_the_first_half_one_after_the_other(
    name: str, peer: str, offset: int, length: int
) -> None:
    message, half = write(name), connect_data(peer).data_buffer
    assert parse_imm_data(message.imm_data) == (Op.DATA, length)
    assert message.target == Sge(half.address + offset, half.key, length)
    assert len(message.payload) == length


@pytest.mark.rule("rsocket-iomap-table", "rsocket-iomap-index")
@pytest.mark.parametrize(
    ("name", "peer"),
    [("iomap_active_slot_0", "iomap_reply"), ("iomap_passive_slot_0", "iomap_request")],
)
def test_a_mapping_goes_behind_the_table(name: str, peer: str) -> None:
    message, table = write(name), connect_data(peer).target_sgl
    assert parse_imm_data(message.imm_data) == (Op.IOMAP, 0)
    source = table.address + SGE_BYTES * table.length
    assert message.target == Sge(source, table.key, IOMAP_ENTRY_BYTES)
    entry = IomapEntry.parse(message.payload, "little")
    assert (entry.offset, entry.length) == (0, 1000)
    assert entry.emit("little") == message.payload


@pytest.mark.rule("rsocket-iomap-write")
def test_a_direct_write_goes_where_the_mapping_says() -> None:
    """It has no word: what follows the address is payload alone."""
    data = VECTORS["iomap_active_direct"]
    mapping = IomapEntry.parse(write("iomap_passive_slot_0").payload, "little")
    target = Sge.parse(data[:SGE_BYTES], "big")
    assert target == Sge(mapping.address, mapping.key, mapping.length)
    assert len(data) == SGE_BYTES + mapping.length


@pytest.mark.rule("rsocket-message-bare", "rsocket-disconnect")
@pytest.mark.parametrize("name", ["passive_disconnect", "iomap_active_disconnect"])
def test_a_disconnect_is_a_word_without_bytes(name: str) -> None:
    """Its address and key are whatever lay on the stack: no reader may check them."""
    message = write(name)
    assert parse_imm_data(message.imm_data) == (Op.CONTROL, Control.DISCONNECT)
    assert message.target.length == 0 and message.payload == b""


# -- the core in the place of one of the two programs


class OneRegion:
    """Memory for one core, where the program had it."""

    def __init__(self, place: Sge) -> None:
        self._place = place

    def allocate(self, byte_count: int) -> Memory:
        return Memory(memoryview(bytearray(byte_count)), self._place.address, self._place.key)

    def release(self, memory: Memory) -> None:
        del memory


def core_as(own: str, *, iomap_slots: int = 0) -> StreamCore:
    """Return a core with the buffers of a program, that behaves as the original does."""
    settings = StreamSettings(
        receive_bytes=RECEIVE_BYTES,
        is_urds=False,
        iomap_slots=iomap_slots,
        send_bytes=RECEIVE_BYTES,
    )
    return StreamCore(settings, OneRegion(connect_data(own).target_sgl))


def posts_of(core: StreamCore) -> list[Post]:
    found = []
    while (post := core.poll_transmit()) is not None:
        found.append(post)
    return found


def same(post: Post, name: str) -> bool:
    """Compare a post with a captured write, whose word is big-endian there."""
    message = write(name)
    where = (post.address, post.rkey, len(post.data))
    is_there = where == (message.target.address, message.target.key, message.target.length)
    return is_there and post.imm_data == message.imm_data and bytes(post.data) == message.payload


@pytest.mark.parametrize(("own", "iomap_slots"), [("request", 0), ("iomap_request", 1)])
def test_the_core_offers_what_the_original_offers(own: str, iomap_slots: int) -> None:
    """But for the place of the data buffer, which is behind the tables here."""
    offered = ConnectData.parse(core_as(own, iomap_slots=iomap_slots).connect_data)
    captured = connect_data(own)
    assert replace(offered, data_buffer=captured.data_buffer) == captured
    assert offered.data_buffer.length == HALF_BYTES


def test_the_core_speaks_as_the_active_program_did() -> None:
    core = core_as("request")
    core.adopt(VECTORS["reply"])
    (first,) = posts_of(core)
    captured = write("active_second_half")
    assert (first.address, first.rkey, first.imm_data) == (
        captured.target.address,
        captured.target.key,
        captured.imm_data,
    )
    half = Sge.parse(first.data, "little")
    data = ConnectData.parse(core.connect_data).data_buffer
    assert half == Sge(data.address + HALF_BYTES, data.key, HALF_BYTES)
    for byte_count, name in [
        (16, "active_data_16"),
        (1000, "active_data_1000"),
        (1000, "active_data_1000_next"),
    ]:
        assert core.send(memoryview(bytes(byte_count)), may_zero_copy=False) == byte_count
        (post,) = posts_of(core)
        assert same(post, name)


def test_the_core_understands_what_the_active_program_said() -> None:
    """It stands in the place of the passive one, and ends as that did."""
    core = core_as("reply")
    region = core._memory  # the peer's writes land there
    core.adopt(VECTORS["request"][CMA_HEADER_BYTES:])
    posts_of(core)
    region.view[SGE_BYTES : 2 * SGE_BYTES] = write("active_second_half").payload
    core.receive_data(write("active_second_half").imm_data)
    assert core.stats.entries_received == 1
    for name in ("active_data_16", "active_data_1000", "active_data_1000_next"):
        core.receive_data(write(name).imm_data)
    assert core.receive_ring.readable_bytes == 2016
    assert core.receive_ring.receive(5000) == bytes(2016)
    core.lifecycle.shut_down(Shut.RDWR)
    (last,) = posts_of(core)
    assert last.imm_data == write("passive_disconnect").imm_data
    assert last.data == b""


def test_the_core_maps_and_writes_as_the_active_program_did() -> None:
    core = core_as("iomap_request", iomap_slots=1)
    region = core._memory  # the peer's writes land there
    core.adopt(VECTORS["iomap_reply"])
    posts_of(core)
    mine = IomapEntry.parse(write("iomap_active_slot_0").payload, "little")
    buffer = Memory(memoryview(bytearray(mine.length)), mine.address, mine.key)
    assert core.map_buffer(buffer, 0) == 0
    (post,) = posts_of(core)
    assert post.kind is PostKind.IOMAP
    assert same(post, "iomap_active_slot_0")
    region.view[2 * SGE_BYTES : 2 * SGE_BYTES + IOMAP_ENTRY_BYTES] = write(
        "iomap_passive_slot_0"
    ).payload
    core.receive_data(write("iomap_passive_slot_0").imm_data)
    assert core.write_mapped(memoryview(bytes(1000)), 0, may_zero_copy=False) == 1000
    (post,) = posts_of(core)
    captured = Sge.parse(VECTORS["iomap_active_direct"][:SGE_BYTES], "big")
    assert (post.address, post.rkey, len(post.data)) == (
        captured.address,
        captured.key,
        captured.length,
    )
    assert post.imm_data is None
