"""A courier and the core under the same random calls and frames; more cases: `courier_cases`.

The second half breaks a rule of the core or of its link: some case has to show it, or the cases are
blind.
"""

from __future__ import annotations

import select
from collections.abc import Iterator
from typing import Any, Final

import pytest

pytest.importorskip("urds_native", reason="the compiled plane is not built")

from tests.parity.courier_cases import Run
from tests.parity.courier_random import STEP_NAMES, WITH_KEY
from tests.parity.courier_sides import (
    MS,
    TARGET_ADDRESS,
    TARGET_KEY,
    THERE,
    Side,
    readiness,
)
from tests.parity.lockstep import Difference
from tests.rds.transports.rdma_core.rdma_core_world import frames, map_frames
from tests.support.planes import PLANES
from urds.rds.constants import CONGESTION_MAP_BYTES
from urds.rds.plane.choose import NATIVE, PYTHON
from urds.rds.plane.contract import Limits, MailboxSettings, RdmaTransfer
from urds.rds.transports.rdma.core import CoreLimits
from urds.rds.transports.rdma.path import RdmaPath
from urds.rds.transports.rdma.receiving import Incoming
from urds.rds.transports.rdma.sending import Outgoing
from urds.rds.wire.frame_format import FrameFormat
from urds.rds.wire.header import Header
from urds.verbs.engine.numbers import QPAttrMask, QPState
from urds.verbs.engine.queue_pair import QPAttr

CASES: Final = 24_000  # in which every step is made, with and without a courier
CASES_MAX: Final = 60_000  # until a broken rule has to be seen
PORT: Final = 5000


def test_random_calls_and_frames_come_out_alike() -> None:
    """A failure names its seed and its last steps."""
    run = Run(PLANES[PYTHON], PLANES[NATIVE])
    run.until(CASES, 0)
    missing = {*STEP_NAMES, "by a courier", "by the core", "cut"} - run.seen.keys()
    assert not missing, "of so many cases they have to be some"
    assert run.seen["by a courier"] > 2 * run.seen["by the core"], "most have to be a courier's"


def test_a_side_is_like_itself() -> None:
    """What differs from run to run has no part in the comparison."""
    Run(PLANES[NATIVE], PLANES[NATIVE]).until(2000, 0)


def acknowledge_one_less(outgoing: Outgoing, sequence: int) -> bool:
    return HANDLE_ACKNOWLEDGED(outgoing, sequence - 1)


def expect_two_more(incoming: Incoming, sequence: int, messages: int, asked: int) -> None:
    NOTE_PLAIN(incoming, sequence + 1, messages, asked)


HANDLE_ACKNOWLEDGED: Final = Outgoing.handle_acknowledged
NOTE_PLAIN: Final = Incoming.note_plain


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (Outgoing, "handle_acknowledged", acknowledge_one_less),
        (Incoming, "note_plain", expect_two_more),
        (RdmaPath, "plan_acknowledgement", lambda _: None),
    ],
)
def test_a_core_that_breaks_a_rule_is_found_out(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, broken: Any
) -> None:
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(Difference, match="seed"):
        Run(PLANES[PYTHON], PLANES[NATIVE]).until(CASES_MAX, 0)


# -- found by the cases


@pytest.fixture
def with_courier() -> Iterator[Side]:
    """Give a side whose connection a courier has."""
    side = Side(PLANES[NATIVE], Limits(), CoreLimits())
    side.bind("x", PORT, MailboxSettings(send_wait_ns=0, receive_wait_ns=0))
    side.attach(FrameFormat.PACKED, 0)
    side.settle()
    assert side.has_courier()
    yield side
    side.close()


def message(sequence: int, text: bytes, **values: Any) -> bytes:
    (data,) = frames(sequence, text, source_port=4000, target_port=PORT, **values)
    return data


def test_a_frame_that_a_courier_took_in_part_is_not_begun_again(with_courier: Side) -> None:
    """The rest waits for the device's next pass; a send of the core comes before that."""
    with_key = message(3, b"three", extension=WITH_KEY)
    with_courier.peer.say(message(1, b"one") + message(2, b"two") + with_key)
    with_courier.plane.progress()
    assert with_courier.path.lock.courier.is_given
    with_courier.path.row()
    with_courier.send("x", [b"plain"], (str(THERE), 4000))
    with_courier.settle()
    taken: list[Any] = with_courier.take_all("x")
    assert [one.payload for one in taken] == [b"one", b"two", b"three"]


def test_a_notice_does_not_hide_the_messages_behind_it(with_courier: Side) -> None:
    """Found of `recv_many`: it looked for messages before the notice was taken."""
    piece = memoryview(bytearray(b"written"))
    write = RdmaTransfer(
        key=TARGET_KEY,
        remote_address=TARGET_ADDRESS,
        is_write=True,
        pieces=(piece,),
        notify=True,
    )
    with_courier.send("x", [b""], (str(THERE), 4000), operations=(write,))
    with_courier.peer.say(message(1, b"one"))
    with_courier.settle()
    source = (str(THERE), 4000)
    assert with_courier.mailboxes["x"].recv_many(3, 100) == [(b"", None), (b"one", source)]


def test_what_came_is_acknowledged_though_a_table_took_the_numbers(with_courier: Side) -> None:
    with_courier.peer.say(message(1, b"asks for nothing"))
    with_courier.settle()
    with_courier.read()
    with_courier.path.row()
    assert not with_courier.has_courier()
    with_courier.spend(2 * MS)
    with_courier.settle()
    assert [Header.parse(data).ack for data in with_courier.read()] == [1]
    assert with_courier.has_courier()


def test_a_queue_pair_that_failed_is_not_asked_pass_after_pass(with_courier: Side) -> None:
    """A device makes passes until none is due, with its lock held: the connection could not end."""
    adapter = with_courier.adapter
    adapter.queue_pairs[-1].modify(QPAttr(qp_state=QPState.ERR), QPAttrMask.STATE, 0)
    with_courier.send("x", [b"waits for another connection"], (str(THERE), 4000))
    assert with_courier.has_courier()
    with_courier.path.link.finish_soon()
    adapter.finish()
    assert not adapter.is_due()


def test_a_send_ends_the_news_of_a_map(with_courier: Side) -> None:
    """A map that came since an ENOBUFS makes a socket readable, for polls, until its next call.

    On a connection that no courier can carry.
    """
    target = (str(THERE), 4000)
    with_courier.detach()
    with_courier.attach(FrameFormat.SHORT, 0)
    with_courier.show("x")
    say_map(with_courier, 1 << 4000 % 8)
    with pytest.raises(OSError, match="No buffer space"):
        with_courier.send("x", [b"refused"], target)
    say_map(with_courier, 0)
    assert readiness(with_courier.descriptors["x"]) == select.POLLIN | select.POLLOUT
    with_courier.send("x", [b"taken"], target)
    with_courier.settle()
    assert readiness(with_courier.descriptors["x"]) == select.POLLOUT


def say_map(side: Side, byte: int) -> None:
    """Say a congestion map with this byte where the bit of port 4000 is."""
    congested = bytearray(CONGESTION_MAP_BYTES)
    congested[4000 // 8] = byte
    for data in map_frames(bytes(congested), fragment_bytes=4096):
        side.peer.say(data)
    side.settle()
