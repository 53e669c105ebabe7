"""Work over the tcp provider that its framing makes: segments, late receives, copies, wake-ups.

What each operation does is shown over every provider by the conformance suite.
"""

import threading
import time
from typing import Any

import pytest

from tests.verbs.tcp_ends import connected
from urds.verbs.engine.numbers import (
    WCStatus,
    WROpcode,
)
from urds.verbs.engine.work import SendWR
from urds.verbs.providers.base import ConnectionEventKind
from urds.verbs.providers.tcp import TcpProviderSettings

PLAIN = TcpProviderSettings(urds_extensions=False)
WAYS: dict[str, dict[str, Any]] = {
    "urds nodes": {},
    "over IPv6": {"host": "::1"},
    "one side wants a checksum": {"far": TcpProviderSettings(crc=True)},
    # One node that keeps to the standard is enough: then both do, nothing private is sent.
    "a standard client": {"near": PLAIN},
    "a standard server": {"far": PLAIN},
}
STALL_NS = 1_000_000_000  # a round trip takes well under a millisecond


def pattern(count: int, seed: int = 1) -> bytes:
    return bytes((index * 7 + seed) % 251 for index in range(min(count, 1000))) * (
        count // 1000 + 1
    )


@pytest.mark.parametrize("count", [0, 1, 65_504, 65_505, 1 << 20])
@pytest.mark.parametrize("way", WAYS)
def test_work_of_one_segment_or_several(way: str, count: int) -> None:
    with connected(**WAYS[way]) as (client, server):
        data = pattern(count)[:count]
        memory, target, copy = server.receive(count), server.memory(count + 2), client.memory(count)
        client.send(data)
        client.post(WROpcode.RDMA_WRITE, client.memory(data).sge(), remote=target)
        client.post(WROpcode.RDMA_READ, copy.sge(), remote=target)
        assert {wc.status for wc in client.sent(3)} == {WCStatus.SUCCESS}
        assert server.received()[0].byte_len == count
        assert (memory.data, target.data, copy.data) == (data, data + bytes(2), data)
        answer = client.receive(count)
        server.send(data)
        client.received()
        assert answer.data == data
        if not way.startswith("a standard"):
            server.receive(0)
            written = server.memory(count)
            piece = client.memory(data).sge()
            client.post(WROpcode.RDMA_WRITE_WITH_IMM, piece, remote=written, imm_data=42)
            (wc,) = server.received()
            assert (wc.imm_data, wc.byte_len, written.data) == (42, count, data)
        server.disconnect()
        client.event(ConnectionEventKind.DISCONNECTED)


def test_a_late_receive_is_waited_for() -> None:
    """RNR: the sender goes back to the first message that found no buffer, and on from there."""
    with connected() as (client, server):
        source, target = server.memory(b"read me!"), client.memory(8)
        client.send(b"first", wr_id=1)
        client.send(b"second", wr_id=2)
        client.post(WROpcode.RDMA_READ, target.sge(), remote=source, wr_id=3)
        assert not client.adapter.wait(lambda: len(client.scq) > 0, 50_000_000)
        memories = [server.receive(6), server.receive(6)]
        assert [wc.wr_id for wc in client.sent(3)] == [1, 2, 3]
        assert [wc.byte_len for wc in server.received(2)] == [5, 6]
        assert [bytes(each.data) for each in memories] == [b"first\0", b"second"]
        assert target.data == b"read me!"


def test_a_late_receive_of_a_written_message_is_waited_for() -> None:
    """The write of three packets goes back into its middle: to the one with immediate data."""
    with connected() as (client, server):
        data, target = pattern(150_000)[:150_000], server.memory(150_000)
        client.post(
            WROpcode.RDMA_WRITE_WITH_IMM, client.memory(data).sge(), remote=target, imm_data=9
        )
        client.send(b"after")
        assert not client.adapter.wait(lambda: len(client.scq) > 0, 50_000_000)
        server.receive(0)
        memory = server.receive(5)
        assert [wc.byte_len for wc in server.received(2)] == [150_000, 5]
        assert {wc.status for wc in client.sent(2)} == {WCStatus.SUCCESS}
        assert target.data == data and memory.data == b"after"


def test_a_detach_gives_bytes_back_that_the_connection_did_not_take() -> None:
    """The peer reads nothing meanwhile: the rest waits in the queue pair and in the stream."""
    small = TcpProviderSettings(send_buffer_bytes=65_536, receive_buffer_bytes=65_536)
    with connected(near=small, far=small) as (client, server):
        data = bytearray(pattern(1 << 23)[: 1 << 23])
        wanted = bytes(data)
        memory = server.receive(len(data))
        with server.adapter.lock, client.adapter.lock:
            wr = SendWR(1, data=memoryview(data))
            request = client.qp.post_send(wr, client.adapter.now_ns())
            client.adapter.progress_qp(client.qp)
            assert request is not None and request.detach() == len(data)
            data[:] = bytes(len(data))
        assert client.sent()[0].status is WCStatus.SUCCESS
        server.received()
        assert memory.data == wanted


def test_round_trips_never_stall() -> None:
    """Both ends in one process: four threads that want to drive two contexts."""
    with connected() as (client, server):
        for end in (client, server):
            end.memories = [end.receive(8) for _ in range(500)]
        slowest_ns = 0

        def serve() -> None:
            for _ in range(400):
                server.received()
                server.send(b"answer!!")

        thread = threading.Thread(target=serve)
        thread.start()
        for index in range(400):
            began = time.monotonic_ns()
            client.send(b"question")
            client.received()
            slowest_ns = max(slowest_ns, time.monotonic_ns() - began)
            if index % 50 == 0:
                time.sleep(0.01)
        thread.join()
        assert slowest_ns < STALL_NS
