"""Completion queues and channels: polling, events, descriptors, asyncio, overflow."""

import asyncio
import errno
import select
import threading

import pytest

from tests.verbs.objects_world import Side, World
from urds.verbs import (
    CQ,
    PD,
    SRQ,
    AsyncEventType,
    CompChannel,
    Context,
    QPState,
    SendFlag,
    VerbsArgumentError,
    VerbsClosedError,
    VerbsTimeoutError,
)
from urds.verbs.providers.sim import SimNetwork

SOLICITED = SendFlag.SIGNALED | SendFlag.SOLICITED


@pytest.fixture
def context() -> Context:
    return Context(adapter=SimNetwork().adapter("only"))


@pytest.fixture
def world() -> World:
    return World().connect()


def readable(source: CompChannel | Context) -> bool:
    return bool(select.select([source], [], [], 0)[0])


def arrive(world: World, count: int = 1, flags: SendFlag = SendFlag.SIGNALED) -> None:
    """Let messages arrive on the right and be completed on the left."""
    for number in range(count):
        world.right.receive(number)
        world.left.send(b"message", number, flags)
    world.left.cq.wait_for(count)
    world.network.run()


def test_an_empty_queue_is_a_queue(context: Context) -> None:
    """Programs ask `if srq:` for whether there is one."""
    queues = (CQ(context, 4), SRQ(PD(context)))
    assert [len(queue) for queue in queues] == [0, 0]
    assert all(queues)


def test_poll_takes_what_is_asked_for(world: World) -> None:
    arrive(world, 5)
    cq = world.right.cq
    assert len(cq) == 5
    assert [wc.wr_id for wc in cq.poll(2)[1]] == [0, 1]
    assert cq.poll()[0] == 1
    assert cq.poll(64)[0] == 2
    assert cq.poll(64) == (0, [])


# -- events


def test_waiting_ends_with_the_time(world: World) -> None:
    world.right.cq.req_notify()
    with pytest.raises(VerbsTimeoutError, match=r"no completion event in 0\.5 s") as late:
        world.right.channel.get_cq_event(timeout_s=0.5)
    assert isinstance(late.value, TimeoutError)
    assert late.value.errno == errno.ETIMEDOUT
    with pytest.raises(VerbsTimeoutError, match="0 of 1 completions"):
        world.right.cq.wait_for(timeout_s=0.5)


def test_waiting_for_more_than_there_is_takes_nothing(world: World) -> None:
    arrive(world, 2)
    with pytest.raises(VerbsTimeoutError, match="2 of 3 completions"):
        world.right.cq.wait_for(3, timeout_s=0)
    assert len(world.right.cq.wait_for(2)) == 2
    with pytest.raises(VerbsArgumentError, match="65 completions of a queue for 64"):
        world.right.cq.wait_for(65)


def test_the_event_of_a_closed_queue_is_gone(world: World) -> None:
    world.right.cq.req_notify()
    arrive(world)
    world.right.cq.close()
    assert not readable(world.right.channel)
    with pytest.raises(VerbsClosedError, match="CQ is closed"):
        world.right.channel.get_cq_event(world.right.cq)


def test_a_descriptor_made_late_shows_what_waits(world: World) -> None:
    world.right.cq.req_notify()
    arrive(world)
    poll = select.poll()
    poll.register(world.right.channel.fileno(), select.POLLIN)
    assert poll.poll(0)
    assert world.right.channel.fileno() == world.right.channel.fileno()


def test_each_event_goes_to_one_of_many_waiting_threads() -> None:
    """Who comes too late goes on waiting, and does not end before its time."""
    left, right = Side(Context("udp0")), Side(Context("udp0"))
    left.lead_to(right)
    right.lead_to(left)
    found: list[int] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            found.extend(wc.wr_id for wc in right.cq.wait_for(1, 20))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(4):
        right.receive(number)
        left.send(b"one each", number)
    for thread in threads:
        thread.join(20)
    left.context.close()
    right.context.close()
    assert failures == []
    assert sorted(found) == [0, 1, 2, 3]


# -- asyncio


def test_await_completions(world: World) -> None:
    """The first wait is woken by an event, the second finds what is there."""

    async def run() -> list[int]:
        waiting = asyncio.create_task(world.right.cq.wait(2))
        await asyncio.sleep(0)
        arrive(world, 3)
        found = [wc.wr_id for wc in await waiting]
        return found + [wc.wr_id for wc in await world.right.cq.wait(2)]

    assert asyncio.run(asyncio.wait_for(run(), 10)) == [0, 1, 2]
    assert world.right.cq.unacked_events == 0


def test_two_tasks_wait_for_completions_of_one_queue(world: World) -> None:
    """One of them takes the event that both asked for, and not all that was completed."""

    async def run() -> list[int]:
        tasks = [asyncio.create_task(world.right.cq.wait()) for _ in range(2)]
        await asyncio.sleep(0)
        arrive(world, 2)
        return sorted(found[0].wr_id for found in await asyncio.gather(*tasks))

    assert asyncio.run(asyncio.wait_for(run(), 10)) == [0, 1]
    assert world.right.cq.unacked_events == 0


def test_a_wait_lets_virtual_time_run(world: World) -> None:
    async def run() -> list[int]:
        world.right.receive(5)
        world.left.send(b"nobody else drives")
        return [wc.wr_id for wc in await world.right.cq.wait()]

    assert asyncio.run(asyncio.wait_for(run(), 10)) == [5]


def test_await_an_event(world: World) -> None:
    async def run() -> CQ:
        world.right.cq.req_notify()
        waiting = asyncio.create_task(world.right.channel.event())
        await asyncio.sleep(0)
        arrive(world)
        return await waiting

    assert asyncio.run(asyncio.wait_for(run(), 10)) is world.right.cq


def test_a_cancelled_wait_takes_nothing(world: World) -> None:
    async def run() -> None:
        waiting = asyncio.create_task(world.right.cq.wait())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        arrive(world)
        assert len(await world.right.cq.wait()) == 1

    asyncio.run(asyncio.wait_for(run(), 10))
    assert world.right.channel._listeners == []  # no callback for the cancelled one


def test_tasks_wait_for_queues_of_one_channel(world: World) -> None:
    """Each task gets the completions of its own queue, whichever comes first."""
    other = CQ(world.right.context, 4, channel=world.right.channel)

    async def run() -> None:
        late = asyncio.create_task(other.wait())
        early = asyncio.create_task(world.right.cq.wait())
        await asyncio.sleep(0)
        arrive(world)
        assert len(await early) == 1
        assert not late.done()
        late.cancel()

    asyncio.run(asyncio.wait_for(run(), 10))


def test_a_queue_without_a_channel_can_be_awaited(world: World) -> None:
    cq = CQ(world.right.context, 4)

    async def run() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(cq.wait(), 0.01)

    asyncio.run(run())
    channel = cq.channel
    assert channel is not None
    channel.close()
    assert cq.closed


@pytest.mark.parametrize("whole", [True, False])
def test_closing_wakes_a_task_with_an_error(world: World, whole: bool) -> None:
    async def run() -> None:
        waiting = asyncio.create_task(world.right.cq.wait())
        await asyncio.sleep(0)
        (world.right.channel if whole else world.right.cq).close()
        with pytest.raises(VerbsClosedError):
            await waiting

    asyncio.run(asyncio.wait_for(run(), 10))


# -- overflow


def test_an_overflow_breaks_every_queue_pair_of_the_queue() -> None:
    world = World(cqe=4)
    world.connect()
    left, right = world.left, world.right
    idle = type(right.qp)(right.pd, right.init_attr)
    idle.to_init(right.qp.query()[0])
    for number in range(5):
        right.receive(number)
    for number in range(5):
        left.send(b"m", number, SendFlag(0))
    world.network.run()
    event = right.context.get_async_event(timeout_s=0)
    assert (event.event_type, event.element) == (AsyncEventType.CQ_ERR, right.cq)
    assert right.cq.engine.overrun
    assert (right.qp.qp_state, idle.qp_state) == (QPState.ERR, QPState.ERR)
    assert [wc.wr_id for wc in right.cq.poll(9)[1]] == [0, 1, 2, 3]
