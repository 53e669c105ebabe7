"""Unknown peers that connect to rsockets, and false listeners: refused, counted, forgotten."""

import errno
from dataclasses import replace
from typing import Any

import pytest

from tests.rsocket.ends import DEVICES
from tests.rsocket.hostile_world import TABLE_ENTRIES, Siege, UnknownPeer, siege
from urds.rsocket.link import devices
from urds.rsocket.link.stream_link import LinkState, StreamLink
from urds.rsocket.wire.stream import CONNECT_DATA_BYTES, Op, Sge, emit_imm_data
from urds.verbs.engine.numbers import WCOpcode, WCStatus
from urds.verbs.engine.work import WC
from urds.verbs.providers.base import ConnectionEventKind

QUEUE = 32


@pytest.fixture(params=DEVICES)
def scene(request):
    with siege(request.param, receive_queue=QUEUE) as made:
        yield made


CHANGES: dict[str, dict[str, Any]] = {
    "version 0": {"version": 0},
    "version 2": {"version": 2},
    "no credits": {"credits": 0},
    "no table": {"target_sgl": Sge(1 << 20, 7, 0)},
    "a table of millions": {"target_sgl": Sge(1 << 20, 7, (1 << 32) - 1)},
    "a table that wraps around": {"target_sgl": Sge((1 << 64) - 16, 7, TABLE_ENTRIES)},
    "a buffer that wraps around": {"data_buffer": Sge((1 << 64) - 8, 7, 4096)},
}


def bad_data(unknown_peer: UnknownPeer, case: str) -> bytes:
    """Return private data that are not in order."""
    if case in CHANGES:
        return unknown_peer.data(**CHANGES[case]).emit()
    good = unknown_peer.data().emit()
    return {
        "a short one": good[: CONNECT_DATA_BYTES - 1].rstrip(b"\0")[:30],
        "none": b"",
        "text": b"GET / HTTP/1.1\r\nHost: somebody else of 40 octets\r\n\r\n",
    }[case]


CASES = [*CHANGES, "a short one", "none", "text"]


@pytest.mark.rule("rsocket-connect-version")
@pytest.mark.parametrize("case", CASES)
def test_a_request_that_is_no_rsockets_is_refused(scene: Siege, case: str) -> None:
    """docs/reference/rsocket.md 19, point 2, for who listens."""
    unknown_peer = scene.unknown_peer()
    unknown_peer.connect(scene.both.listener.local, bad_data(unknown_peer, case))
    scene.until(lambda: unknown_peer.is_over)
    assert unknown_peer.ends == [ConnectionEventKind.REJECTED]
    assert scene.both.listener.refused == 1
    assert scene.both.there.stats.refused_private_data == 1
    assert scene.both.listener.accept() is None
    scene.nothing_is_left()
    scene.others_are_well()


@pytest.mark.rule("rsocket-connect-version")
@pytest.mark.parametrize("case", CASES)
def test_an_answer_that_is_no_rsockets_ends_the_connect(scene: Siege, case: str) -> None:
    """docs/reference/rsocket.md 19, point 2, for who connects: ENOTSUP."""
    unknown_peer = scene.unknown_peer()
    address = unknown_peer.listen(lambda: bad_data(unknown_peer, case), scene.host)
    here = scene.both.here
    memory_bytes, link_count = here.memory_bytes, len(here.links)
    link = StreamLink([here], scene.both.settings)
    link.connect(address, timeout_s=10)
    scene.until(lambda: link.state is LinkState.OVER)
    assert "private data of" in link.reason
    assert link.take_error() == errno.EOPNOTSUPP
    assert here.stats.cut_links == 1
    link.close(0)
    assert (here.memory_bytes, len(here.links)) == (memory_bytes, link_count)
    scene.until(lambda: unknown_peer.is_over)
    scene.others_are_well()


def test_without_memory_for_its_window_a_request_is_refused(
    scene: Siege, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many windows as there are: further connects cost nothing, and the others go on."""
    monkeypatch.setattr(devices, "MEMORY_BYTES_MAX", scene.both.there.memory_bytes)
    with monkeypatch.context() as unbounded:  # of the unknown_peer's own process
        unbounded.setattr(devices, "MEMORY_BYTES_MAX", 1 << 30)
        unknown_peer = scene.unknown_peer()
    unknown_peer.connect(scene.both.listener.local, unknown_peer.data().emit())
    scene.until(lambda: unknown_peer.is_over)
    assert unknown_peer.ends == [ConnectionEventKind.REJECTED]
    assert scene.both.there.stats.memory_refused >= 1
    assert scene.both.there.stats.refused_private_data == 0
    scene.nothing_is_left()
    scene.others_are_well()


def test_a_listener_that_never_answers(scene: Siege) -> None:
    unknown_peer = scene.unknown_peer()
    unknown_peer.is_mute = True
    address = unknown_peer.listen(lambda: b"", scene.host)
    link = StreamLink([scene.both.here], scene.both.settings)
    link.connect(address, timeout_s=0.3)
    scene.until(lambda: link.state is LinkState.OVER, 10)
    assert link.take_error() == errno.ETIMEDOUT
    link.close()
    scene.others_are_well()


def test_a_crowd_that_connects_and_never_speaks_is_held_at_the_backlog(scene: Siege) -> None:
    """Their connections are not accepted: no more links than the backlog, and the rest wait."""
    scene.both.listener._backlog = 3
    crowd = [scene.unknown_peer() for _ in range(8)]
    before = len(scene.both.there.links)
    for unknown_peer in crowd:
        unknown_peer.connect(scene.both.listener.local, unknown_peer.data().emit())
    scene.until(lambda: sum(unknown_peer.is_connected for unknown_peer in crowd) >= 3)
    scene.finish_pass()
    assert len(scene.both.there.links) - before == 3
    scene.others_are_well()
    for unknown_peer in crowd:
        unknown_peer.vanish()

    def no_link_is_left() -> bool:
        if (link := scene.both.listener.accept()) is not None:
            link.close(0)
        return len(scene.both.there.links) == before

    scene.until(no_link_is_left)
    scene.others_are_well()


@pytest.mark.parametrize("turns", range(6))
def test_an_unknown_peer_that_vanishes_while_it_connects(scene: Siege, turns: int) -> None:
    """At each step of the handshake: nothing stays, and the listener goes on."""
    before = len(scene.both.there.links)
    for _ in range(5):
        unknown_peer = scene.unknown_peer()
        unknown_peer.connect(scene.both.listener.local, unknown_peer.data().emit())
        for _ in range(turns):
            scene.context.adapter.progress()
            scene.both.there.adapter.progress()
        unknown_peer.vanish()
    left, right = scene.both.connect()
    scene.finish_pass(5)
    while (link := scene.both.listener.accept()) is not None:
        link.close(0)
    left.close(0)
    right.close(0)
    scene.until(lambda: len(scene.both.there.links) == before)
    scene.others_are_well()


def test_words_before_the_offer_are_bounded(scene: Siege) -> None:
    """A side that answers may send data before its answer arrives: as many wait as credits."""
    unknown_peer = scene.unknown_peer()
    unknown_peer.is_mute = True
    address = unknown_peer.listen(lambda: b"", scene.host)
    link = StreamLink([scene.both.here], replace(scene.both.settings, receive_queue=16))
    link.connect(address, timeout_s=10)
    imm_data = WC(
        1, WCStatus.SUCCESS, WCOpcode.RECV_RDMA_WITH_IMM, imm_data=emit_imm_data(Op.DATA, 1)
    )
    with scene.both.here.adapter.lock:
        for _ in range(100):
            link.handle_received(imm_data)
        assert len(link._early_imm_data) == 16
    scene.until(lambda: link.state is LinkState.OVER)
    assert "more messages before the connect data than there are credits" in link.reason
    link.close(0)
    scene.others_are_well()
