"""Frames that no honest peer sends: their connection is cut with its reason, and that is all.

What is only odd is taken as Linux takes it.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.rds.transports.rdma.hostile_peer import (
    CONG_BITMAP,
    FRAME_BYTES_MAX,
    REPEATED,
    Siege,
    UnknownPeer,
    acknowledgement,
    congestion_map,
    message,
)
from tests.rds.transports.rdma.victim import INBOX_PORT
from tests.support.waiting import wait_until
from urds.rds.constants import CONGESTION_MAP_BYTES, MAX_MESSAGE_BYTES
from urds.rds.wire.private_data import ConnectData
from urds.verbs.engine.numbers import WROpcode

MIB = 1 << 20
LARGE = bytes(range(256)) * 48  # three fragments


def damaged(frame: bytes, at: int) -> bytes:
    """Return a frame with one bit changed."""
    return frame[:at] + bytes([frame[at] ^ 4]) + frame[at + 1 :]


def contradicting(**changes: int) -> list[bytes]:
    """Return the first fragment of one message and the second of another."""
    return [message(LARGE)[0], message(LARGE, **changes)[1]]


# Frames, the reason that is logged, the counters beside `rdma_protocol_errors`.
PROTOCOL_ERRORS: dict[str, tuple[list[bytes], str, tuple[str, ...]]] = {
    **{
        f"{count} bytes": ([bytes(count)], f"frame of {count} bytes", ())
        for count in (0, 47)
    },
    **{
        f"bit {at}": ([damaged(message(b"x")[0], at)], "checksum", ("recv_drop_bad_checksum",))
        for at in (0, 19, 40)
    },
    "4 GiB": ([*message(b"x", length=(1 << 32) - 1)], "bytes, limit", ("recv_drop_too_long",)),
    "1 MiB and 1": (
        [*message(b"x", length=MAX_MESSAGE_BYTES + 1)], "bytes, limit", ("recv_drop_too_long",),
    ),
    "other number": (contradicting(sequence=2), "within message", ()),
    "other length": (contradicting(length=len(LARGE) + 1), "within message", ()),
    "other source": (contradicting(source_port=8), "within message", ()),
    "other target": (contradicting(target_port=1), "within message", ()),
    "a map within": ([message(LARGE)[0], *congestion_map()], "within message", ()),
    "short fragment": ([message(LARGE)[0][:-1]], "bytes, due 4096", ()),
    "short last": ([*message(LARGE)[:2], message(LARGE)[2][:-1]], "bytes, due 4096", ()),
    "too little": ([*message(b"12345", length=6)], "fragment of 5 bytes, due 6", ()),
    "too much": ([*message(b"1234567", length=6)], "fragment of 7 bytes, due 6", ()),
    "empty fragment": ([*message(b"", length=6)], "fragment of 0 bytes, due 6", ()),
    "ack of the future": (
        [acknowledgement(1 << 63)], "BAD_ACKNOWLEDGEMENT", ("recv_drop_bad_ack",),
    ),
    "ack beyond all": (
        message(b"x", acknowledgement=(1 << 64) - 1), "BAD_ACKNOWLEDGEMENT", ("recv_drop_bad_ack",),
    ),
    "bytes behind an ack": ([acknowledgement(0) + b"x"], "behind an acknowledgement", ()),
}  # fmt: skip


@pytest.mark.parametrize("case", PROTOCOL_ERRORS)
def test_a_protocol_error_ends_its_connection_with_its_reason(siege: Siege, case: str) -> None:
    frames, reason, counters = PROTOCOL_ERRORS[case]
    siege.victim.ask("logged")
    with siege.counted(rdma_protocol_errors=1, **dict.fromkeys(counters, 1)):
        unknown_peer = siege.connected()
        unknown_peer.send(*congestion_map(), *message(b"before"), *frames, *message(b"after"))
        siege.until_cut(unknown_peer, reason)
    assert siege.victim.ask("collect", count=1) == [b"before".hex()]


def test_a_frame_beyond_the_receive_ends_its_connection(siege: Siege) -> None:
    unknown_peer = siege.connected()
    unknown_peer.send(message(b"x")[0].ljust(FRAME_BYTES_MAX + 1, b"x"))
    siege.until_cut(unknown_peer)
    assert not siege.victim.ask("collect", count=0)


@pytest.mark.parametrize("data", [b"", b"x" * len(message(b"old")[0])])
def test_an_announced_write_is_no_frame(siege: Siege, data: bytes) -> None:
    """A write that takes a receive brings no header: the buffer holds an older frame."""
    number, cookie = siege.victim.ask("region", byte_count=100)
    siege.victim.ask("logged")
    with siege.counted(rdma_protocol_errors=1):
        unknown_peer = siege.connected()
        unknown_peer.send(*message(b"old"))
        assert siege.victim.ask("collect", count=1) == [b"old".hex()]
        for _ in range(256):  # until the receive comes that held the old frame
            unknown_peer.post(WROpcode.RDMA_WRITE_WITH_IMM, data=data, cookie=cookie)
        siege.until_cut(unknown_peer, "no frame")
    assert not siege.victim.ask("collect", count=0)
    siege.untouched(number, data + b"\xa5" * (100 - len(data)))
    siege.victim.ask("free", number=number)


@pytest.mark.parametrize("sizes", [(0,), (1,), (8191, 8193), (MAX_MESSAGE_BYTES,)])
def test_maps_of_other_sizes_are_passed_over(siege: Siege, sizes: tuple[int, ...]) -> None:
    marked = b"\xff"
    with siege.counted(recv_drop_bad_map=len(sizes), rdma_protocol_errors=0):
        unknown_peer = siege.connected()
        for size in sizes:
            unknown_peer.send(*congestion_map(marked * size))
        if 0 in sizes:  # and neither ports nor length: an acknowledgement
            unknown_peer.send(*message(b"", source_port=1, target_port=0, flags=CONG_BITMAP))
        unknown_peer.send(*message(b"after"))
        assert siege.victim.ask("collect", count=1) == [b"after".hex()]
    assert siege.victim.ask("send", target=unknown_peer.address, payload="00") == 1
    siege.until(lambda: any(one.target_port == INBOX_PORT for one in unknown_peer.headers()))


def test_a_map_that_marks_everything_stops_only_what_goes_there(siege: Siege) -> None:
    unknown_peer = siege.connected()
    unknown_peer.send(*congestion_map(b"\xff" * CONGESTION_MAP_BYTES), *message(b"after"))
    siege.victim.ask("collect", count=1)
    assert siege.victim.ask("send", target=unknown_peer.address, payload="00") == 0
    siege.others_are_well()


# -- disconnecting


@pytest.mark.parametrize("orderly", [True, False])
def test_a_connection_ends_at_any_frame(siege: Siege, orderly: bool) -> None:
    """What was whole is delivered, what was not is forgotten, and a later connection is new."""
    frames = [*congestion_map(), *message(b"whole"), *message(LARGE, sequence=2)]
    before = siege.victim.rss_bytes
    for count in range(len(frames)):
        address = siege.address()
        delivered = [b"whole".hex()] if count > 2 else []
        unknown_peer = siege.connected(address)
        # What comes before the control thread has taken the connection goes with its end: below.
        siege.until(lambda host=address: siege.victim.ask("paths")[f"{host}/0"]["up"])  # type: ignore[misc]  # bound
        say(unknown_peer, frames[:count], orderly=orderly)
        assert siege.victim.ask("collect", count=len(delivered)) == delivered, count
        again = siege.returned(address)
        again.send(*message(LARGE, sequence=2, flags=REPEATED))
        assert siege.victim.ask("collect", count=1) == [LARGE.hex()]
    assert siege.victim.rss_bytes - before < 16 * MIB


@pytest.mark.parametrize("orderly", [True, False])
def test_an_end_right_behind_a_frame_loses_none(siege: Siege, orderly: bool) -> None:
    """One that only the device had taken is not acknowledged: repeated, it is delivered once."""
    for _ in range(10):
        address = siege.address()
        frames = [*congestion_map(), *message(b"early")]
        say(siege.connected(address), frames, orderly=orderly)
        again = siege.returned(address)
        assert again.answer is not None
        if not ConnectData.parse(again.answer, ipv6=False).ack_sequence:
            again.send(*message(b"early", flags=REPEATED))
        again.send(*message(b"late", sequence=2))
        due = [b"early".hex(), b"late".hex()]
        assert siege.victim.ask("collect", count=2) == due


def say(unknown_peer: UnknownPeer, frames: list[bytes], *, orderly: bool) -> None:
    """Send frames, and leave when they have arrived."""
    for number in unknown_peer.send(*frames):
        wait_until(lambda number=number: unknown_peer.status_of(number) is not None)
    (unknown_peer.disconnect if orderly else unknown_peer.vanish)()


# -- odd headers


@dataclass(frozen=True, slots=True)
class Odd:
    """One message of an unknown peer, of one frame."""

    sequence: int
    source_port: int
    target_port: int
    flags: int
    payload: bytes
    credit: int
    extension: bytes

    def emit(self) -> list[bytes]:
        """Return the frame."""
        return message(
            self.payload,
            sequence=self.sequence,
            source_port=self.source_port,
            target_port=self.target_port,
            flags=self.flags,
            credit=self.credit,
            extension=self.extension,
        )

    @property
    def is_ack_only(self) -> bool:
        """Tell whether a receiver takes it for an acknowledgement."""
        return not (self.source_port or self.target_port or self.payload)


odd_frames = st.builds(
    Odd,
    sequence=st.integers(0, 12) | st.integers(0, (1 << 64) - 1),
    source_port=st.sampled_from([0, 1, 2, 4001, 65535]),
    target_port=st.sampled_from([0, 1, 2, INBOX_PORT, 65535]) | st.just(INBOX_PORT),
    flags=st.integers(0, 255),
    payload=st.binary(max_size=40),
    credit=st.integers(0, 255),
    extension=st.just(bytes(16)) | st.binary(min_size=16, max_size=16),
)


def delivered_by_linux(frames: list[Odd]) -> list[bytes]:
    """Return what a kernel queues for the socket. Source: docs/reference/rds.md 1.6, 4.2."""
    expected, payloads = 0, []
    for frame in frames:
        if frame.is_ack_only or frame.flags == CONG_BITMAP:
            continue
        if frame.flags & REPEATED and frame.sequence < expected:
            continue
        expected = frame.sequence + 1
        if frame.target_port == INBOX_PORT:
            payloads.append(frame.payload)
    return payloads


def test_odd_headers_are_delivered_as_linux_delivers_them(siege: Siege) -> None:
    """Every example comes from an address of its own, so that nothing is remembered."""
    last = message(b"the last", sequence=1 << 63, source_port=2)

    @settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(odd_frames, max_size=30))
    def examples(frames: list[Odd]) -> None:
        unknown_peer = siege.connected()
        due = [*delivered_by_linux(frames), b"the last"]
        unknown_peer.send(*(data for frame in frames for data in frame.emit()), *last)
        got = siege.victim.ask("collect", count=len(due))
        assert [bytes.fromhex(one) for one in got] == due
        unknown_peer.vanish()

    examples()
