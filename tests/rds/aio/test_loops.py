"""Loops that come and go, several at a time, fairness within one, and what an idle one costs."""

import asyncio
import gc
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import pytest

from tests.docs.pages import environment
from tests.rds.aio.nodes import Node
from tests.support import backends, carriers
from tests.support.waiting import ENDLESS_S
from urds import aio
from urds.rds.aio.on_asyncio import AsyncioSleeper
from urds.rds.aio.progress import BUDGET, COST_SHIFT, LoopProgress
from urds.rds.plane.choose import PYTHON
from urds.rds.plane.python.plane import Plane

STARVED = 20_000  # messages of a flood: a second of them, where a loop is quick
STARVED_RDMA = 70_000  # twice what a courier has under way, which may lie before one
pytestmark = [pytest.mark.each_carrier("shm0"), pytest.mark.timeout(30)]

Main = Callable[[], Coroutine[Any, Any, None]]
PAYLOAD_BYTES = 100_000
LONG_BYTES = 256 << 10


def plane_of(own: Node) -> Plane:
    plane = own.backend.plane
    assert isinstance(plane, Plane)
    return plane


def loops_of(own: Node) -> int | None:
    """Return how many loops have promised to read, None where the plane does not tell."""
    return len(plane_of(own).state.loops) if own.backend.choice.plane == PYTHON else None


def run_asyncio(main: Main) -> None:
    asyncio.run(main())


def run_trio(main: Main) -> None:
    """Run a loop of trio, an extra: where it is not installed, the test is skipped."""
    pytest.importorskip("trio").run(main)


RUNS = pytest.mark.parametrize("run", [run_asyncio, run_trio])


@RUNS
def test_loops_may_follow_each_other(own: Node, run: Callable[[Main], None]) -> None:
    """Each leaves nothing behind: not the promise to read, not a descriptor in its poll set."""

    async def main() -> None:
        async with await own.bind() as one, await own.bind() as two:
            assert await one.send_to(b"x", two.getsockname()) == 1
            assert await two.recv() == b"x"
            with anyio.move_on_after(0.001):
                await two.recv()
            assert loops_of(own) in (1, None)

    for _ in range(20):
        run(main)
        assert not loops_of(own)


@RUNS
def test_a_loop_that_ends_before_its_socket_is_noticed(
    own: Node, other: Node, run: Callable[[Main], None]
) -> None:
    """The progress thread reads while no loop does; the next loop takes the socket over."""
    kept = []

    async def first() -> None:
        kept.append(await own.bind())
        with anyio.move_on_after(0.01):
            await kept[0].recv()
        assert loops_of(own) in (1, None)

    async def second() -> None:
        async with await other.bind() as source:
            await source.send_to(b"x", kept[0].getsockname())
            with anyio.fail_after(5):
                assert await kept[0].recv() == b"x"
                await kept[0].send_to(b"y", source.getsockname())
                assert await source.recv() == b"y"
        kept[0].close()

    run(first)
    assert not loops_of(own)
    run(second)
    assert not loops_of(own)


def test_a_task_that_is_collected_passes_its_message_on(own: Node) -> None:
    """Its loop was closed under it: asyncio says so, and another socket's wait must not suffer."""
    sock: list[aio.Socket] = []

    async def first() -> None:
        sock.append(await own.bind())

    async def receive(got: list[bytes]) -> None:
        got.append(await sock[0].recv())

    abandoned: list[bytes] = []
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)
    loop.run_until_complete(first())
    task = loop.create_task(receive(abandoned))
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()

    async def second() -> None:
        got: list[bytes] = []
        waiting = asyncio.create_task(receive(got))
        await asyncio.sleep(0.01)
        async with await own.bind() as source:
            await source.send_to(b"x", sock[0].getsockname())
        await asyncio.wait_for(waiting, 5)
        assert got == [b"x"]
        sock[0].close()

    asyncio.run(second())
    assert abandoned == []
    del task
    gc.collect()


@pytest.mark.reference
def test_a_task_that_is_collected_takes_no_lock(own: Node) -> None:
    """A collection may run inside of any call, while the plane's lock is held: here it is."""

    async def main() -> None:
        async with await own.bind() as sock:
            forgotten = sock.recv()
            forgotten.send(None)
            waiting = asyncio.create_task(sock.recv())
            await asyncio.sleep(0)
            with plane_of(own).state.lock:
                forgotten.close()
            await sock.send_to(b"x", sock.getsockname())
            assert await asyncio.wait_for(waiting, 5) == b"x"

    asyncio.run(main())


@pytest.mark.parametrize("own_thread", [True, False], ids=["one thread", "two threads"])
def test_a_stopped_loop_steals_no_message(own: Node, other: Node, own_thread: bool) -> None:
    """It is neither closed nor run again, and tasks of it wait for messages."""
    stopped, running = asyncio.new_event_loop(), asyncio.new_event_loop()
    sock, sender = (stopped.run_until_complete(node.bind()) for node in (own, other))
    taken: list[asyncio.Task[bytes]] = []

    async def leave_tasks() -> None:
        taken.extend(asyncio.ensure_future(sock.recv()) for _ in range(3))
        await asyncio.sleep(0.01)

    async def receive() -> None:
        for number in range(5):
            waiting = asyncio.ensure_future(sock.recv())
            await asyncio.sleep(0.01)
            await sender.send_to(b"%d" % number, sock.getsockname())
            assert await asyncio.wait_for(waiting, 2) == b"%d" % number

    stopped.run_until_complete(leave_tasks())
    if own_thread:
        running.run_until_complete(receive())
    else:
        failures: list[BaseException] = []

        def run() -> None:
            try:
                running.run_until_complete(receive())
            except BaseException as failure:
                failures.append(failure)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        assert not failures

    async def hear() -> None:
        """Once it runs again, it is told as before."""
        await sender.send_to(b"at last", sock.getsockname())
        done, waiting = await asyncio.wait(taken, timeout=2, return_when=asyncio.FIRST_COMPLETED)
        assert [one.result() for one in done] == [b"at last"]
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await asyncio.gather(sock.aclose(), sender.aclose())

    stopped.run_until_complete(hear())
    stopped.close()
    running.close()


class Polls(selectors.DefaultSelector):
    """Counts how often a loop polls."""

    count = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.count += 1
        return super().select(timeout)


@pytest.mark.each_carrier(False)
@pytest.mark.skipif(backends.IS_ATTACHED, reason="each socket has a descriptor of its own there")
def test_a_task_runs_where_the_loop_reads_for_it(own: Node, other: Node) -> None:
    """One poll for each message: in the next iteration of the loop it would be another."""
    polls, rounds = Polls(), 200

    async def main() -> None:
        async with await own.bind() as asking, await other.bind() as answering:
            answer = asyncio.create_task(_echo(answering))
            await asking.send_to(b"connect", answering.getsockname())
            await asking.recv()
            before = polls.count
            for _ in range(rounds):
                await asking.send_to(b"x", answering.getsockname())
                assert await asking.recv() == b"x"
            messages = 2 * rounds
            assert messages - 2 <= polls.count - before < messages + messages // 2
            answering.close()
            await answer

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(polls)) as runner:
        runner.run(main())


def test_a_task_that_ends_the_loop_leaves_others_their_messages(
    own: Node, other: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both were woken by one read; the second one runs when the loop does again."""
    look = LoopProgress.look

    def look_at_both(progress: LoopProgress) -> None:
        for _ in range(5):
            look(progress)
            time.sleep(0.005)

    loop = asyncio.new_event_loop()
    first, second, source = (loop.run_until_complete(node.bind()) for node in (own, own, other))

    async def leave() -> None:
        assert await first.recv() == b"connect"
        await first.recv()
        raise SystemExit

    tasks = [loop.create_task(leave()), loop.create_task(second.recv())]
    loop.run_until_complete(source.send_to(b"connect", first.getsockname()))
    loop.run_until_complete(asyncio.sleep(0.05))
    for target in (first, second):
        source._socket.sendto(b"x", target.getsockname())
    monkeypatch.setattr(LoopProgress, "look", look_at_both)
    with pytest.raises(SystemExit):
        loop.run_until_complete(asyncio.wait(tasks[:1]))
    assert loop.run_until_complete(asyncio.wait_for(tasks[1], 5)) == b"x"
    assert isinstance(tasks[0].exception(), SystemExit)
    for sock in (first, second, source):
        loop.run_until_complete(sock.aclose())
    loop.close()


def test_a_task_is_woken_that_is_told_while_it_begins_to_wait(
    own: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler may send it the message behind its last look."""
    begin = AsyncioSleeper.add_done_callback

    async def main() -> None:
        async with await own.bind() as sock:

            def handler_before(sleeper: AsyncioSleeper, *args: Any, **named: Any) -> None:
                sock._socket.sendto(b"x", sock.getsockname())
                begin(sleeper, *args, **named)

            monkeypatch.setattr(AsyncioSleeper, "add_done_callback", handler_before)
            assert await asyncio.wait_for(sock.recv(), 5) == b"x"

    asyncio.run(main())


def test_two_loops_in_two_threads(own: Node, other: Node) -> None:
    """One of asyncio and one of trio, between two nodes and within one."""
    pytest.importorskip("trio")  # a skip in the thread would end the thread only
    ready: list[tuple[str, int]] = []
    bound = threading.Event()
    rounds = 100

    async def answer() -> None:
        async with await own.bind() as near, await other.bind() as far:
            ready.extend([near.getsockname(), far.getsockname()])
            bound.set()
            for _ in range(rounds):
                for sock in (near, far):
                    payload, source = await sock.recv_from()
                    await sock.send_to(payload, source)

    async def ask() -> None:
        async with await own.bind() as sock:
            for number in range(rounds):
                for address in ready:
                    await sock.send_to(b"%d" % number, address)
                    assert await sock.recv_from() == (b"%d" % number, address)

    failures: list[BaseException] = []

    def run_answer() -> None:
        try:
            run_trio(answer)
        except BaseException as failure:
            failures.append(failure)
            bound.set()

    thread = threading.Thread(target=run_answer, daemon=True)
    thread.start()
    assert bound.wait(5)
    asyncio.run(asyncio.wait_for(ask(), 20))
    thread.join(5)
    assert not thread.is_alive()
    assert failures == []


@pytest.mark.anyio
async def test_a_thread_that_blocks_and_a_task_share_a_node(own: Node, other: Node) -> None:
    """The thread leads and reads, so it tells the task from outside of the loop."""
    async with await own.bind() as sock, await own.bind() as idle, await other.bind() as source:
        wrapped = idle._socket  # the same socket, for the thread
        wrapped.setblocking(True)
        thread = threading.Thread(target=wrapped.recv, args=(10,))
        thread.start()
        for number in range(100):
            await source.send_to(b"%d" % number, sock.getsockname())
            with anyio.fail_after(5):
                assert await sock.recv() == b"%d" % number
            if number % 10 == 0:
                await anyio.sleep(0.002)
        await source.send_to(b"end", idle.getsockname())
        with anyio.fail_after(5):
            await anyio.to_thread.run_sync(thread.join)


@pytest.mark.anyio
async def test_a_wake_up_that_a_cancelled_task_got_is_passed_on(own: Node) -> None:
    """The first of two waiters is told of the only message, and cancelled before it runs."""
    async with await own.bind() as sock:
        for number in range(20):
            got: list[bytes] = []
            scopes = [anyio.CancelScope(), anyio.CancelScope()]

            async def receive(scope: anyio.CancelScope, got: list[bytes]) -> None:
                with scope:
                    got.append(await sock.recv())

            async with anyio.create_task_group() as tasks:
                for scope in scopes:
                    tasks.start_soon(receive, scope, got)
                await anyio.wait_all_tasks_blocked()
                sock._socket.sendto(b"%d" % number, sock.getsockname())  # tells one at once
                scopes[number % 2].cancel()
                with anyio.fail_after(5):
                    while not got:
                        await anyio.sleep(0.001)
                tasks.cancel_scope.cancel()
            assert got == [b"%d" % number]


@pytest.mark.tcp_only("a message within a node is there at once on the loop path alone")
@pytest.mark.skipif(
    backends.IS_ATTACHED, reason="a node is another process: its messages take time"
)
@pytest.mark.anyio
async def test_calls_that_need_not_wait_let_others_run(own: Node) -> None:
    """Sends and receives 2,000 messages, none of which waits; another task counts its turns."""
    messages = 2000
    async with await own.bind() as sock, anyio.create_task_group() as tasks:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await anyio.sleep(0)

        tasks.start_soon(count)
        await anyio.sleep(0)
        for work in (lambda: sock.send_to(b"x", sock.getsockname()), sock.recv):
            before = turns
            for _ in range(messages):
                await work()
            assert messages // BUDGET - 2 <= turns - before < messages // 10
        before = turns
        for _ in range(2 * BUDGET // (PAYLOAD_BYTES >> COST_SHIFT)):
            await sock.send_to(bytes(PAYLOAD_BYTES), sock.getsockname())
            await sock.recv()
        assert turns > before + 1, "a long message costs as much as many short ones"
        before = turns
        for _ in range(30):
            await sock.send_to(bytes(LONG_BYTES), sock.getsockname())
            await sock.recv()
        assert turns - before < 30, "several long messages go in one iteration"
        tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_a_flood_does_not_starve_the_others(own: Node, other: Node) -> None:
    """While one task takes what never ends, another has its message, and a third its turns."""
    async with (
        await own.bind() as flooded,
        await own.bind() as quiet,
        await other.bind() as source,
        await other.bind() as asking,
        anyio.create_task_group() as tasks,
    ):
        taken = 0

        async def flood() -> None:
            while True:
                await source.send_to(bytes(64), flooded.getsockname())

        async def drain() -> None:
            nonlocal taken
            async for _ in flooded:
                taken += 1

        tasks.start_soon(flood)
        tasks.start_soon(drain)
        tasks.start_soon(_echo, quiet)
        with anyio.fail_after(ENDLESS_S):
            while taken < (1000 if carriers.is_rdma() else 5000):
                await anyio.sleep(0)
            most = 0
            for _ in range(50):
                before = taken
                await asking.send_to(b"x", quiet.getsockname())
                assert await asking.recv() == b"x"
                most = max(most, taken - before)
        limit = STARVED_RDMA if carriers.is_rdma() else STARVED
        assert most < limit, f"{most} messages of the flood during one round trip"
        tasks.cancel_scope.cancel()


async def _echo(sock: aio.Socket) -> None:
    async for payload, source in sock:
        await sock.send_to(payload, source)


@pytest.mark.anyio
async def test_an_idle_loop_burns_no_time(own: Node, other: Node) -> None:
    """With connections up, a task waiting in each node, and after a thread was kicked."""
    async with await own.bind() as one, await other.bind() as two:
        await one.send_to(b"x", two.getsockname())
        await two.recv()
        async with anyio.create_task_group() as tasks:
            for sock in (one, two):
                tasks.start_soon(sock.recv)
            await anyio.sleep(0.1)
            before_s = time.process_time()
            await anyio.sleep(0.5)
            spent_s = time.process_time() - before_s
            tasks.cancel_scope.cancel()
        assert spent_s < 0.05, f"{spent_s:.3f} s of 0.5 s"


def test_a_fork_leaves_the_loop_of_the_parent_alone(own: Node) -> None:
    """Closing in the child takes nothing out of the poll set that it shares with the parent."""
    program = """
import asyncio, errno, os, sys
from urds import aio

async def main():
    async with await aio.bind((sys.argv[1], 0)) as one:
        receiving = asyncio.create_task(one.recv())
        await asyncio.sleep(0.01)
        child = os.fork()
        if not child:
            code = 1
            try:
                one._socket.recvfrom(1)
            except OSError as refused:
                code = 0 if refused.errno == errno.EBADF else 2
            one.close()
            os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        async with await aio.bind((sys.argv[1], 0)) as two:
            await two.send_to(b"x", one.getsockname())
            assert await asyncio.wait_for(receiving, 5) == b"x"

asyncio.run(main())
"""
    from tests.rds.aio.nodes import fresh_host

    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", program, fresh_host()],
        capture_output=True, text=True, timeout=20, check=False, env=environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.each_carrier(False)
def test_the_import_needs_no_loop() -> None:
    program = "import sys, urds.aio; sys.exit('asyncio' in sys.modules or 'trio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=False, env=environment())
    assert done.returncode == 0


@pytest.mark.each_carrier(False)
def test_a_call_outside_of_a_loop_says_so(own: Node) -> None:
    sock = asyncio.run(own.bind())
    with pytest.raises(RuntimeError, match="running event loop"):
        sock.recv().send(None)
    sock.close()
