"""The stream core connects: private data given and judged, both byte orders, the first update."""

import errno
from dataclasses import replace

import pytest

from tests.rsocket.stream import stream_pair
from tests.rsocket.stream.stream_pair import Host, Pair, Side
from urds.common.errors import RemoteProtocolError
from urds.rsocket.core.stream.core import StreamCore
from urds.rsocket.core.stream.records import PostKind, StreamSettings, StreamState
from urds.rsocket.wire.stream import ConnectData, ConnectFlag, Sge

ORIGINAL = StreamSettings(is_urds=False)
BASE = 0x10_0000_0000
KEY = 0x11
PEER = ConnectData(
    flags=ConnectFlag.IOMAP,
    credits=384,
    iomap_slots=0,
    target_sgl=Sge(0x7F00_0000, 7, 2),
    data_buffer=Sge(0x7F01_0000, 7, 65536),
)


URDS = StreamSettings()


def fresh(settings: StreamSettings = URDS) -> StreamCore:
    return stream_pair.make_core(settings, Host(BASE))


def test_the_offer_of_our_own() -> None:
    """16 entries of 16 bytes, then the window at once, of which the first half is told."""
    assert fresh().connect_data == bytes.fromhex(
        "01 82 0180 000000 00 0000001000000000 00000011 00000010 0000001000000100 00000011 00001000"
    )


def test_the_offer_of_an_original() -> None:
    """Two entries, the window on the next multiple of 64, half of 128 KiB."""
    assert fresh(ORIGINAL).connect_data == bytes.fromhex(
        "01 02 0180 000000 00 0000001000000000 00000011 00000002 0000001000000040 00000011 00010000"
    )


@pytest.mark.rule("rsocket-connect-byte-order")
def test_a_big_endian_side_says_so() -> None:
    assert fresh(StreamSettings(byte_order="big")).connect_data[1] == 0x83
    assert fresh(StreamSettings(byte_order="big", is_urds=False)).connect_data[1] == 0x03


@pytest.mark.parametrize(
    ("slots", "told", "window_at"),
    [(0, 0, 256), (1, 1, 320), (128, 128, 3328), (255, 128, 3328), (256, 129, 6400)],
)
def test_the_iomap_lies_behind_the_entries(slots: int, told: int, window_at: int) -> None:
    """Slots that eight bits cannot tell are not there: 255 are 128, at 24 bytes each."""
    stream = fresh(StreamSettings(iomap_slots=slots))
    data = stream.connect_data
    assert data[7] == told
    assert ConnectData.parse(data).data_buffer.address == BASE + window_at


@pytest.mark.parametrize(
    ("settings", "first_bytes"),
    [
        (StreamSettings(ring_first_bytes=16384), 8192),
        (StreamSettings(is_receive_fixed=True, receive_bytes=100_000), 50_176),
        (StreamSettings(is_receive_fixed=True, receive_bytes=1), 256),
        (StreamSettings(is_urds=False, receive_bytes=1 << 20), 1 << 19),
    ],
)
def test_the_first_half_of_the_window_is_told(settings: StreamSettings, first_bytes: int) -> None:
    """Windows are multiples of 512, rounded up."""
    assert ConnectData.parse(fresh(settings).connect_data).data_buffer.length == first_bytes


def test_adopting_connects() -> None:
    stream = fresh()
    assert stream.lifecycle.state is StreamState.NEW and not stream.lifecycle.is_connected
    assert not stream.is_readable and not stream.is_writable and not stream.is_ended
    assert stream.poll_transmit() is None
    stream.adopt(PEER.emit() + bytes(100))  # the connection manager pads
    assert stream.lifecycle.state is StreamState.OPEN and stream.lifecycle.is_connected
    assert stream.lifecycle.can_read and stream.lifecycle.can_write and stream.is_writable


@pytest.mark.rule("rsocket-connect-version")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version 2"),
        ({"version": 0}, "version 0"),
        ({"credits": 0}, "takes no message"),
        ({"target_sgl": Sge(0x1000, 1, 0)}, "table of 0 entries"),
        ({"target_sgl": Sge(0x1000, 1, 4097)}, "table of 4097 entries"),
        ({"target_sgl": Sge((1 << 64) - 31, 1, 2)}, "tables: 32 bytes"),
        ({"target_sgl": Sge((1 << 64) - 32, 1, 2), "iomap_slots": 1}, "tables: 56 bytes"),
        ({"data_buffer": Sge((1 << 64) - 9, 1, 10)}, "data buffer: 10 bytes"),
    ],
)
def test_private_data_that_cannot_be_are_refused(change: dict[str, object], message: str) -> None:
    stream = fresh()
    with pytest.raises(RemoteProtocolError, match=message):
        stream.adopt(replace(PEER, **change).emit())
    assert stream.lifecycle.state is StreamState.NEW
    stream.adopt(PEER.emit())  # nothing of the refused ones is left


def test_slots_without_the_flag_are_none() -> None:
    stream = fresh()
    stream.adopt(replace(PEER, flags=ConnectFlag.URDS, iomap_slots=4).emit())
    with pytest.raises(OSError, match="the peer offers 0") as caught:
        stream.map_buffer(Host(BASE).allocate(10))
    assert caught.value.errno == errno.ENOMEM


def test_a_large_table_alone_makes_no_peer_of_ours() -> None:
    """Without the flag it is told halves, and not whether an entry came."""
    stream = fresh(StreamSettings(is_receive_fixed=True, receive_bytes=1 << 17))
    stream.adopt(replace(PEER, target_sgl=Sge(0x7F00_0000, 7, 16)).emit())
    assert not stream.is_urds_peer
    post = stream.poll_transmit()
    assert post is not None and post.imm_data == 0x8000_0180
    for _ in range(64):
        stream.receive_data(1024)
    assert len(stream.receive_ring.receive(32 * 1024)) == 32 * 1024
    assert stream.poll_transmit() is None


def test_short_private_data_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="39 bytes"):
        fresh().adopt(PEER.emit()[:39])


def test_limits_that_are_just_possible() -> None:
    end = 1 << 64
    fresh().adopt(
        replace(
            PEER, credits=1, target_sgl=Sge(end - 16, 1, 1), data_buffer=Sge(end - 1, 1, 1)
        ).emit()
    )
    fresh().adopt(replace(PEER, credits=0xFFFF, target_sgl=Sge(0, 1, 4096)).emit())


def test_words_before_the_connection_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="outside of the connection"):
        fresh().receive_data(5)


def test_sending_before_the_connection_is_refused() -> None:
    with pytest.raises(OSError) as caught:
        fresh().send(memoryview(b"early"), may_zero_copy=False)
    assert caught.value.errno == errno.ENOTCONN


# -- the first update


@pytest.mark.rule("rsocket-double-buffer")
@pytest.mark.parametrize("settings", [StreamSettings(), ORIGINAL], ids=["own", "original"])
@pytest.mark.parametrize("peer", [StreamSettings(), ORIGINAL], ids=["to_own", "to_original"])
def test_the_first_words_publish_the_second_half(
    settings: StreamSettings, peer: StreamSettings
) -> None:
    pair = Pair(settings, peer)
    first = ConnectData.parse(pair.left.stream.connect_data).data_buffer
    table = ConnectData.parse(pair.right.stream.connect_data).target_sgl
    [post] = pair.left.post()
    assert post.kind is PostKind.CREDIT
    assert (post.address, post.rkey) == (table.address + 16, table.key)  # slot 1
    has_entry = settings.is_urds and peer.is_urds
    assert post.imm_data == (0x8000_0180 | (0x1000_0000 if has_entry else 0))
    half = first.length
    assert Sge.parse(post.data, "little") == Sge(first.address + half, first.key, half)


@pytest.mark.rule("rsocket-connect-byte-order")
@pytest.mark.parametrize("settings", [StreamSettings(), ORIGINAL], ids=["own", "original"])
def test_entries_are_in_the_order_of_their_owner(settings: StreamSettings) -> None:
    """A little-endian side writes big-endian entries to a big-endian one, and the other way."""
    pair = Pair(settings, StreamSettings(byte_order="big", is_urds=settings.is_urds))
    [to_big], [to_little] = pair.left.post(), pair.right.post()
    left = ConnectData.parse(pair.left.stream.connect_data).data_buffer
    right = ConnectData.parse(pair.right.stream.connect_data).data_buffer
    assert Sge.parse(to_big.data, "big").address == left.address + left.length
    assert Sge.parse(to_little.data, "little").address == right.address + right.length


@pytest.mark.rule("rsocket-connect-byte-order")
@pytest.mark.parametrize("order", ["little", "big"])
@pytest.mark.parametrize("is_urds", [True, False], ids=["own", "original"])
def test_bytes_pass_in_both_directions_whatever_the_byte_order(order: str, is_urds: bool) -> None:
    pair = Pair(peer := StreamSettings(), StreamSettings(byte_order=order, is_urds=is_urds))
    assert peer.byte_order == "little"
    data = bytes(range(256)) * 1024
    for source, target in ((pair.left, pair.right), (pair.right, pair.left)):
        assert _passed(pair, source, target, data) == data


def _passed(pair: Pair, source: Side, target: Side, data: bytes) -> bytes:
    got, sent = bytearray(), 0
    for _ in range(500):
        sent += source.send(data[sent:])
        pair.run()
        got += target.read()
        if len(got) == len(data):
            break
    return bytes(got)
