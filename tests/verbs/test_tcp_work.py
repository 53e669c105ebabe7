"""Every kind of work over the tcp provider, between two openings of one process."""

import threading
import time

import pytest

from tests.verbs.tcp_ends import ALL_ACCESS, End, connected
from urds.verbs.engine.numbers import (
    AccessFlag,
    QPState,
    SendFlag,
    WCFlag,
    WCOpcode,
    WCStatus,
    WROpcode,
)
from urds.verbs.engine.work import SendWR
from urds.verbs.providers.base import ConnectionEventKind
from urds.verbs.providers.tcp import TcpProviderSettings

SIZES = (0, 1, 64, 4096, 65_504, 65_505, 1 << 20)
CRC = TcpProviderSettings(crc=True)
STALL_NS = 1_000_000_000  # a round trip takes well under a millisecond


def pattern(count: int, seed: int = 1) -> bytes:
    return bytes((index * 7 + seed) % 251 for index in range(min(count, 1000))) * (
        count // 1000 + 1
    )


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_message_arrives(host: str, count: int) -> None:
    with connected(host=host) as (client, server):
        data = pattern(count)[:count]
        memory = server.receive(count, wr_id=5)
        client.send(data, wr_id=6)
        (received,), (sent,) = server.received(), client.sent()
        assert (received.status, received.wr_id, received.byte_len) == (WCStatus.SUCCESS, 5, count)
        assert (sent.status, sent.wr_id) == (WCStatus.SUCCESS, 6)
        assert memory.data == data


def test_both_sides_send_at_once() -> None:
    with connected() as (client, server):
        kept = [[end.receive(8, wr_id=index) for index in range(200)] for end in (client, server)]
        for index in range(200):
            client.send(index.to_bytes(8, "big"), wr_id=index)
            server.send(index.to_bytes(8, "little"), wr_id=index)
        for end in (client, server):
            assert [wc.wr_id for wc in end.sent(200)] == list(range(200))
            assert [wc.wr_id for wc in end.received(200)] == list(range(200))
        assert [int.from_bytes(each.data, "little") for each in kept[0]] == list(range(200))
        assert [int.from_bytes(each.data, "big") for each in kept[1]] == list(range(200))


def test_a_checksum_is_used_when_one_side_wants_it() -> None:
    with connected(far=CRC) as (client, server):
        memory = server.receive(5)
        client.send(b"hello")
        server.received()
        assert memory.data == b"hello"


def test_immediate_data_travel_with_a_send() -> None:
    with connected() as (client, server):
        server.receive(10)
        client.post(WROpcode.SEND_WITH_IMM, client.memory(b"x").sge(), imm_data=0xDEADBEEF)
        (wc,) = server.received()
        assert (wc.imm_data, wc.wc_flags, wc.byte_len) == (0xDEADBEEF, WCFlag.WITH_IMM, 1)


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("plain", ["near", "far"])
def test_one_node_that_keeps_to_the_standard_is_enough(plain: str, count: int) -> None:
    """Then both do: segments of one TCP segment each, nothing private."""
    with connected(**{plain: TcpProviderSettings(urds_extensions=False)}) as (client, server):
        data = pattern(count)[:count]
        memory, target = server.receive(count), server.memory(count)
        client.send(data)
        client.post(WROpcode.RDMA_WRITE, client.memory(data).sge(), remote=target)
        copy = client.memory(count)
        client.post(WROpcode.RDMA_READ, copy.sge(), remote=target)
        assert {wc.status for wc in client.sent(3)} == {WCStatus.SUCCESS}
        server.received()
        assert memory.data == target.data == copy.data == data
        answer = client.receive(count)
        server.send(data)
        client.received()
        assert answer.data == data
        server.disconnect()
        client.event(ConnectionEventKind.DISCONNECTED)


@pytest.mark.parametrize("count", SIZES)
def test_a_write_lands(count: int) -> None:
    with connected() as (client, server):
        data, target = pattern(count)[:count], server.memory(count + 2)
        client.post(WROpcode.RDMA_WRITE, client.memory(data).sge(), remote=target)
        (wc,) = client.sent()
        assert (wc.status, wc.opcode) == (WCStatus.SUCCESS, WCOpcode.RDMA_WRITE)
        assert target.data == data + bytes(2)


@pytest.mark.parametrize("count", SIZES)
def test_a_write_with_immediate_data_is_one_message(count: int) -> None:
    with connected() as (client, server):
        data, target = pattern(count)[:count], server.memory(count)
        server.receive(0, wr_id=3)
        client.post(
            WROpcode.RDMA_WRITE_WITH_IMM, client.memory(data).sge(), remote=target, imm_data=42
        )
        (received,), (sent,) = server.received(), client.sent()
        assert received.opcode is WCOpcode.RECV_RDMA_WITH_IMM
        assert (received.imm_data, received.byte_len, received.wr_id) == (42, count, 3)
        assert sent.status is WCStatus.SUCCESS
        assert target.data == data


@pytest.mark.parametrize("count", SIZES)
def test_a_read_fetches(count: int) -> None:
    with connected() as (client, server):
        data = pattern(count)[:count]
        source, target = server.memory(data), client.memory(count)
        client.post(WROpcode.RDMA_READ, target.sge(), remote=source)
        (wc,) = client.sent()
        assert (wc.status, wc.opcode) == (WCStatus.SUCCESS, WCOpcode.RDMA_READ)
        assert target.data == data


def test_many_reads_are_bounded_and_all_come() -> None:
    with connected() as (client, server):
        source = server.memory(pattern(3000)[:3000])
        targets = [client.memory(3000) for _ in range(100)]
        for target in targets:
            client.post(WROpcode.RDMA_READ, target.sge(), remote=source)
        assert {wc.status for wc in client.sent(100)} == {WCStatus.SUCCESS}
        assert all(target.data == source.data for target in targets)


def test_atomic_operations() -> None:
    with connected() as (client, server):
        cell, result = server.memory((41).to_bytes(8, "little")), client.memory(8)

        def atomic(opcode: WROpcode, compare_add: int, swap: int = 0) -> int:
            wr = SendWR(opcode=opcode, sg=[result.sge()])
            wr.set_wr_atomic(cell.region.rkey, cell.region.address, compare_add, swap)
            with client.adapter.lock:
                client.qp.post_send(wr, client.adapter.now_ns())
                client.adapter.progress_qp(client.qp)
            assert client.sent()[0].status is WCStatus.SUCCESS
            return int.from_bytes(result.data, "little")

        assert atomic(WROpcode.ATOMIC_FETCH_AND_ADD, 1) == 41
        assert atomic(WROpcode.ATOMIC_CMP_AND_SWP, 41, 7) == 42
        assert atomic(WROpcode.ATOMIC_CMP_AND_SWP, 42, 7) == 42
        assert int.from_bytes(cell.data, "little") == 7


def test_inline_data_are_copied_at_once() -> None:
    with connected() as (client, server):
        memory, source = server.receive(4), client.memory(b"abcd")
        client.post(WROpcode.SEND, source.sge(), send_flags=SendFlag.INLINE | SendFlag.SIGNALED)
        source.data[:] = b"0000"
        server.received()
        assert memory.data == b"abcd"


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


# -- errors: the failed request says why, both queue pairs stop, both owners hear of it


def both_stop(client: End, server: End) -> None:
    for end in (client, server):
        end.event(ConnectionEventKind.BROKEN)
        assert end.qp.state is QPState.ERR


@pytest.mark.parametrize("opcode", [WROpcode.RDMA_WRITE, WROpcode.RDMA_READ])
@pytest.mark.parametrize("fault", ["key", "end", "right"])
def test_an_access_error_names_itself(opcode: WROpcode, fault: str) -> None:
    with connected() as (client, server):
        access = AccessFlag.LOCAL_WRITE if fault == "right" else ALL_ACCESS
        other, near = server.memory(b"12345678", access), client.memory(16)
        other.region.rkey += (fault == "key") * 256
        count = 9 if fault == "end" else 8
        client.post(opcode, near.sge(0, count), remote=other, wr_id=1)
        client.send(b"flushed", wr_id=2)
        first, second = client.sent(2)
        assert (first.wr_id, first.status) == (1, WCStatus.REM_ACCESS_ERR)
        assert (second.wr_id, second.status) == (2, WCStatus.WR_FLUSH_ERR)
        both_stop(client, server)
        assert other.data == b"12345678" and near.data == bytes(16)


def test_a_receive_that_is_too_small_fails_on_both_sides() -> None:
    with connected() as (client, server):
        server.receive(3, wr_id=1)
        server.receive(3, wr_id=2)
        client.send(b"four")
        assert [wc.status for wc in server.received(2)] == [
            WCStatus.LOC_LEN_ERR, WCStatus.WR_FLUSH_ERR
        ]  # fmt: skip
        assert client.sent()[0].status is WCStatus.REM_INV_REQ_ERR
        both_stop(client, server)


def test_retries_of_a_missing_receive_end() -> None:
    with connected(rnr_retry_count=1) as (client, server):
        client.send(b"nobody")
        assert client.sent()[0].status is WCStatus.RNR_RETRY_EXC_ERR
        both_stop(client, server)


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
