"""Sending and receiving in tasks: echo, timeouts, congestion, closing."""

import errno
import gc
import socket as system
import struct
import subprocess
import sys
import time
from collections.abc import Iterator

import anyio
import pytest

import urds
from tests.docs.pages import ROOT, environment
from tests.rds.aio.nodes import Node, fresh_host
from tests.support.waiting import BUSY_S, ENDLESS_S
from urds import aio
from urds.rds.aio.progress import Sleeper

pytestmark = [pytest.mark.anyio, pytest.mark.each_carrier("shm0"), pytest.mark.timeout(30)]

NOT_READY_S = 0.05


@pytest.fixture
def echo_address() -> Iterator[tuple[str, int]]:
    """Start a process that echoes; return its address."""
    host = fresh_host()
    command = [sys.executable, "-m", "tests.rds.aio.echo_process", host]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(), cwd=ROOT
    ) as process:
        assert process.stdout
        assert process.stdin
        yield host, int(process.stdout.readline())
        process.stdin.close()
        assert process.wait(10) == 0


async def echo(sock: aio.Socket) -> None:
    async for payload, source in sock:
        await sock.send_to(payload, source)


async def test_an_echo_within_the_process(own: Node) -> None:
    async with (
        await own.bind() as asking,
        await own.bind() as answering,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(echo, answering)
        for number in range(300):
            payload = b"%d" % number
            assert await asking.send_to(payload, answering.getsockname()) == len(payload)
            assert await asking.recv_from() == (payload, answering.getsockname())
        answering.close()


async def test_a_wait_that_got_its_message_leaves_nothing_to_the_collector(own: Node) -> None:
    async with await own.bind() as receiving, await own.bind() as sending:
        gc.collect()
        gc.disable()
        try:
            for _ in range(20):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(receiving.recv)
                    await anyio.sleep(0.001)  # it waits
                    await sending.send_to(b"x", receiving.getsockname())
            left = sum(isinstance(one, Sleeper) for one in gc.get_objects())
        finally:
            gc.enable()
        assert left < 10


async def test_an_echo_between_two_nodes(own: Node, other: Node) -> None:
    async with (
        await own.bind() as asking,
        await other.bind() as answering,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(echo, answering)
        for payload_bytes in (0, 1, 64, 8192, 100_000):
            await asking.send_to(b"x" * payload_bytes, answering.getsockname())
            assert await asking.recv() == b"x" * payload_bytes
        answering.close()


async def test_an_echo_between_two_processes(own: Node, echo_address: tuple[str, int]) -> None:
    async with await own.bind() as sock:
        for number in range(300):
            await sock.send_to(b"%d" % number, echo_address)
            assert await sock.recv_from() == (b"%d" % number, echo_address)


async def test_a_burst_comes_in_order(own: Node, other: Node) -> None:
    """More than the budget of a turn, the send buffer and the coalescing bound at once."""
    async with await own.bind() as source, await other.bind() as target:
        sent = [b"%06d" % number * 20 for number in range(5000)]
        got = []

        async def receive() -> None:
            while len(got) < len(sent):
                got.append(await target.recv())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(receive)
            for payload in sent:
                await source.send_to(payload, target.getsockname())
        assert got == sent


async def test_an_excess_is_discarded(own: Node) -> None:
    async with await own.bind() as sock:
        await sock.send_to(b"abcdef", sock.getsockname())
        await sock.send_to(b"next", sock.getsockname())
        assert await sock.recv(3) == b"abc"
        assert await sock.recv(100) == b"next"


async def test_a_connected_socket_sends_and_passes_options_on(own: Node) -> None:
    async with await own.bind() as one, await own.bind() as two:
        one.connect(two.getsockname())
        assert one.getpeername() == two.getsockname()
        assert await one.send(b"here") == 4
        assert await one.sendmsg([b"and ", b"there"]) == 9
        assert await two.recvmsg(100) == (b"here", [], 0, one.getsockname())
        assert await two.recvmsg(2) == (b"an", [], urds.MSG_TRUNC, one.getsockname())
        two.setsockopt(urds.SOL_RDS, urds.RDS_RECVERR, 1)
        assert two.getsockopt(urds.SOL_RDS, urds.RDS_RECVERR) == 1


async def test_a_receive_that_times_out_leaves_the_next_message(own: Node, other: Node) -> None:
    async with await own.bind() as source, await other.bind() as target:
        with anyio.move_on_after(NOT_READY_S) as scope:
            await target.recv()
        assert scope.cancelled_caught
        await source.send_to(b"late", target.getsockname())
        with anyio.fail_after(5):
            assert await target.recv() == b"late"


async def congest(source: aio.Socket, target: aio.Socket) -> int:
    """Send until the target is full; return how many messages it took."""
    target.setsockopt(system.SOL_SOCKET, system.SO_RCVBUF, 4096)
    sent = 0
    blocked = False
    while not blocked:
        receipt = aio.Receipt()
        with anyio.move_on_after(NOT_READY_S) as scope:
            await source.send_to(bytes(512), target.getsockname(), receipt=receipt)
        blocked = scope.cancelled_caught
        assert receipt.sent is not blocked
        sent += receipt.sent
        assert sent < 100_000, "no bound held the sender"
    return sent


@pytest.mark.parametrize("link", ["within", "between"])
async def test_a_send_waits_while_the_peer_is_congested(own: Node, other: Node, link: str) -> None:
    async with (
        await own.bind() as source,
        await (own if link == "within" else other).bind() as target,
    ):
        sent = await congest(source, target)
        ended = []

        async def send() -> None:
            await source.send_to(b"resumed", target.getsockname())
            ended.append(True)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            await anyio.sleep(NOT_READY_S)
            assert not ended
            with anyio.fail_after(BUSY_S):
                for _ in range(sent):
                    assert await target.recv() == bytes(512)
                assert await target.recv() == b"resumed"


async def test_an_error_that_waiting_does_not_mend_is_raised(own: Node) -> None:
    async with await own.bind() as sock:
        for payload, address, code in (
            (bytes(2 << 20), sock.getsockname(), errno.EMSGSIZE),
            (b"", ("224.0.0.1", 5), errno.EINVAL),
        ):
            receipt = aio.Receipt()
            with pytest.raises(OSError) as refused:
                await sock.send_to(payload, address, receipt=receipt)
            assert refused.value.errno == code
            assert not receipt.sent


async def test_closing_wakes_a_receive_with_an_error(own: Node) -> None:
    sock = await own.bind()
    errors = []

    async def receive() -> None:
        with pytest.raises(OSError) as refused:
            await sock.recv()
        errors.append(refused.value)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(receive)
        tasks.start_soon(receive)
        await anyio.sleep(NOT_READY_S)
        sock.close()
        sock.close()
    assert [error.errno for error in errors] == [errno.EBADF] * 2
    assert all("closed" in str(error) for error in errors)
    assert sock.closed
    with pytest.raises(OSError, match="closed"):
        await sock.send_to(b"", ("127.0.0.1", 5))


async def test_an_iteration_ends_with_the_socket(own: Node) -> None:
    async with await own.bind() as sock:
        for number in range(3):
            await sock.send_to(b"%d" % number, sock.getsockname())
        got = []
        async for payload, _ in sock:
            got.append(payload)
            if len(got) == 3:
                sock.close()
        assert got == [b"0", b"1", b"2"]


@pytest.mark.each_carrier(False)
@pytest.mark.parametrize("payload", [b"nobody is there", b""], ids=["bytes", "empty"])
async def test_lingering_does_not_hold_the_loop_up(own: Node, payload: bytes) -> None:
    """No node has the peer's address, so the linger lasts its whole second.

    Turns count until it ends, not for a time: on a busy host half a second may have few.
    """
    sock = await own.bind()
    sock.setsockopt(system.SOL_SOCKET, system.SO_LINGER, struct.pack("=ii", 1, 1))
    await sock.send_to(payload, (fresh_host(), 5))
    started = time.monotonic()
    turns = 0
    ended = anyio.Event()

    async def close() -> None:
        await sock.aclose()
        ended.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(close)
        while not ended.is_set():
            await anyio.sleep(0.001)
            turns += 1
    assert turns > 5, "a loop that is held up has one or two"
    assert time.monotonic() - started > 0.9


@pytest.mark.each_carrier(False)
async def test_a_close_that_lingers_asks_for_acknowledgements_once(
    own: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it takes as long as its peer delays one."""
    sock = await own.bind()
    asked: list[object] = []
    kind = type(sock._socket.mailbox)  # the call is the plane's
    monkeypatch.setattr(kind, "request_acks", lambda mailbox: asked.append(mailbox.port))
    sock.setsockopt(system.SOL_SOCKET, system.SO_LINGER, struct.pack("=ii", 1, 1))
    await sock.send_to(b"nobody is there", (fresh_host(), 5))
    port = sock.getsockname()[1]
    await sock.aclose()
    assert asked == [port]


@pytest.mark.each_carrier(False)
async def test_a_close_that_lingers_ends_when_another_task_closes(own: Node) -> None:
    sock = await own.bind()
    sock.setsockopt(system.SOL_SOCKET, system.SO_LINGER, struct.pack("=ii", 1, round(ENDLESS_S)))
    await sock.send_to(b"nobody is there", (fresh_host(), 5))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sock.aclose)
        await anyio.wait_all_tasks_blocked()
        assert not sock.closed
        sock.setsockopt(system.SOL_SOCKET, system.SO_LINGER, struct.pack("=ii", 1, 0))
        sock.close()


async def test_a_cancelled_close_does_not_linger(own: Node) -> None:
    started = time.monotonic()
    with anyio.move_on_after(NOT_READY_S) as scope:
        async with await own.bind() as sock:
            sock.setsockopt(
                system.SOL_SOCKET, system.SO_LINGER, struct.pack("=ii", 1, round(ENDLESS_S))
            )
            await sock.send_to(b"nobody is there", (fresh_host(), 5))
            await sock.recv()
    assert scope.cancelled_caught
    assert sock.closed
    assert time.monotonic() - started < BUSY_S


@pytest.mark.each_carrier(False)
async def test_an_unbound_socket_says_so(own: Node) -> None:
    async with aio.open_socket() as sock:
        with pytest.raises(OSError) as refused:
            await sock.recv()
        assert refused.value.errno == errno.ENOTCONN
