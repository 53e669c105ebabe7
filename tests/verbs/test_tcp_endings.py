"""Streams of the tcp provider that end under traffic, each way and at random moments."""

import errno
import os
import random
import socket
import struct
import time

import pytest

from tests.verbs.tcp_ends import End, connected
from urds.verbs.engine.numbers import QPAttrMask, QPState, WCStatus, WROpcode
from urds.verbs.engine.queue_pair import QPAttr
from urds.verbs.providers.base import ConnectionEventKind

WAYS = ("disconnect", "close", "remove", "error", "reset", "silence", "both", "context_guid")
GOOD_OR_FLUSHED = {
    WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR, WCStatus.REM_ACCESS_ERR, WCStatus.REM_INV_REQ_ERR
}  # fmt: skip


def work(end: End, other: End, rng: random.Random) -> int:
    """Post twenty requests of all kinds; return how many."""
    target = other.memory(70_000)
    for index in range(20):
        count = rng.choice([0, 1, 100, 5000, 70_000])
        opcode = rng.choice(
            [
                WROpcode.SEND,
                WROpcode.SEND_WITH_IMM,
                WROpcode.RDMA_WRITE,
                WROpcode.RDMA_WRITE_WITH_IMM,
                WROpcode.RDMA_READ,
            ]
        )
        end.post(opcode, end.memory(count).sge(), remote=target, wr_id=index)
    return 20


def end_it(way: str, end: End, other: End) -> None:
    adapter, qp = end.adapter, end.qp
    if way == "context_guid":
        adapter.close()
        return
    with adapter.lock:
        if way in ("disconnect", "both"):
            end.connection.disconnect()
        elif way == "close":
            end.connection.close()
        elif way == "remove":
            adapter.remove(qp)
        elif way == "error":
            qp.modify(QPAttr(qp_state=QPState.ERR), QPAttrMask.STATE, adapter.now_ns())
            adapter.progress_qp(qp)
        elif way == "reset":
            qp.modify(QPAttr(qp_state=QPState.RESET), QPAttrMask.STATE, adapter.now_ns())
            adapter.progress_qp(qp)
        elif way == "silence":
            end.connection.stream._socket.shutdown(socket.SHUT_RDWR)
    if way == "both":
        other.disconnect()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(6))
def test_an_end_under_traffic_completes_everything_once(way: str, seed: int) -> None:
    rng = random.Random(f"{way} {seed}")
    with connected() as (near, far):
        for end in (near, far):
            for _ in range(rng.choice([0, 5, 40])):
                end.receive(70_000)
        posted = work(near, far, rng)
        posted_far = work(far, near, rng)
        time.sleep(rng.choice([0, 0, 0.001, 0.004]))
        end_it(way, near, far)
        far.until(lambda: bool(far.events))
        assert far.events[0].kind in (
            ConnectionEventKind.DISCONNECTED, ConnectionEventKind.BROKEN
        ), f"seed {seed}"  # fmt: skip
        assert far.qp.state is QPState.ERR
        wcs = far.sent(posted_far)
        assert {wc.status for wc in wcs} <= GOOD_OR_FLUSHED, f"seed {seed}"
        assert [wc.wr_id for wc in wcs] == list(range(posted_far)), f"seed {seed}"
        assert len(far.scq) == 0 and len(far.events) == 1
        if way not in ("reset", "context_guid"):
            assert [wc.wr_id for wc in near.sent(posted)] == list(range(posted)), f"seed {seed}"
        # Nothing of it is left behind.
        assert not far.adapter.connections and not far.adapter.owners
        assert not near.adapter.connections and not near.adapter.owners


def test_a_reset_is_told_in_words_alone() -> None:
    """The errno is beside them: it would stand twice in what a program is shown."""
    with connected() as (client, server):
        with server.adapter.lock:
            reset = server.connection.stream._socket
            reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            nothing = socket.socket()
            os.dup2(nothing.fileno(), reset.fileno())
            nothing.close()
        assert client.event(ConnectionEventKind.BROKEN).reason == os.strerror(errno.ECONNRESET)


def test_who_kicks_after_the_close_says_nothing() -> None:
    """What was put off until now may be to send something over a device that is closed by now."""
    with connected() as (client, _server):
        client.adapter.close()
        with client.adapter.lock:
            assert client.qp.state is QPState.RTS
            client.adapter.progress_qp(client.qp)
            assert client.qp.state is QPState.RTS
