"""Life of the verbs objects: devices, contexts, closing in any order, collection, threads."""

import errno
import gc
import os
import pickle
import select
import signal
import threading
import weakref
from dataclasses import replace

import pytest

from tests.support.waiting import wait_until
from tests.verbs.objects_world import World
from urds.verbs import (
    AH,
    CQ,
    GID,
    MR,
    MTU,
    MW,
    PD,
    QP,
    SRQ,
    AsyncEventType,
    CompChannel,
    Context,
    QPInitAttr,
    SendWR,
    SrqAttr,
    SRQAttrMask,
    VerbsArgumentError,
    VerbsClosedError,
    VerbsError,
    VerbsNotSupportedError,
    VerbsPostError,
    VerbsTimeoutError,
    get_device_list,
)
from urds.verbs.device import find_device
from urds.verbs.providers.sim import SimNetwork


@pytest.fixture
def context() -> Context:
    return Context(adapter=SimNetwork().adapter("only"))


# -- devices


def test_the_default_device_is_the_first_or_the_one_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("URDS_VERBS_DEVICE", raising=False)
    devices = get_device_list()
    assert find_device(None) == devices[0]
    monkeypatch.setenv("URDS_VERBS_DEVICE", devices[-1].name)
    assert find_device(None) == devices[-1]
    monkeypatch.setenv("URDS_VERBS_DEVICE", "mlx5_0")
    with pytest.raises(VerbsError, match=f"no device 'mlx5_0'; there are: {devices[0].name}") as no:
        Context()
    assert no.value.errno == errno.ENODEV


def test_a_device_opens_by_name_and_by_itself() -> None:
    device = find_device("udp0")
    with device.open() as first, Context("udp0") as second:
        assert first.name == second.name == "udp0"
        assert first.adapter is not second.adapter


def test_a_context_shows_its_device(context: Context) -> None:
    assert repr(context) == f"<Context of {context.name}>"
    context.close()
    assert repr(context) == f"<Context of {context.name}, closed>"


def test_queries_of_device_and_port(context: Context) -> None:
    assert context.query_device().max_cqe == 1 << 20
    port = context.query_port()
    assert (port.mtu_bytes, port.active_mtu, port.state) == (4096, MTU.MTU_4096, 4)
    gid = context.query_gid()
    assert gid == GID(context.adapter.gid)
    assert str(gid) == "0000:0000:0000:0000:0000:ffff:0a00:0001"
    assert GID.of(str(gid)) == GID.of(bytes(gid)) == gid
    assert context.query_pkey() == 0xFFFF


# -- asynchronous events


def test_an_asynchronous_event_makes_the_descriptor_readable(context: Context) -> None:
    srq = SRQ(PD(context), SrqAttr(max_wr=4))
    with pytest.raises(VerbsTimeoutError):
        context.get_async_event(timeout_s=0)
    assert not select.select([context], [], [], 0)[0]
    srq.modify(SrqAttr(srq_limit=2), SRQAttrMask.LIMIT)
    assert select.select([context], [], [], 0)[0]
    event = context.get_async_event()
    event.ack()
    assert (event.event_type, event.element) == (AsyncEventType.SRQ_LIMIT_REACHED, srq)
    assert not select.select([context], [], [], 0)[0]


def test_events_beyond_the_limit_are_lost_and_counted(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("urds.verbs.context.ASYNC_EVENTS_MAX", 2)
    for _ in range(5):
        with context.adapter.lock:
            context.report(AsyncEventType.PORT_ACTIVE, None)
    assert context.async_events_lost == 3
    assert [context.get_async_event(0).event_type for _ in range(2)]
    with pytest.raises(VerbsTimeoutError):
        context.get_async_event(0)


def test_events_of_a_closed_object_are_gone(context: Context) -> None:
    srq = SRQ(PD(context), SrqAttr(max_wr=4))
    srq.modify(SrqAttr(srq_limit=2), SRQAttrMask.LIMIT)
    srq.close()
    with pytest.raises(VerbsTimeoutError):
        context.get_async_event(timeout_s=0)


# -- closing

CLOSED_FIRST = ["context", "pd", "cq", "channel", "mr", "srq", "qp"]


@pytest.mark.parametrize("first", CLOSED_FIRST)
def test_closing_a_parent_closes_its_children(first: str) -> None:
    world = World(srq=8).connect()
    side = world.left
    ah = AH(side.pd, world.right.route())
    objects = {name: getattr(side, name) for name in CLOSED_FIRST} | {"ah": ah}
    below = {
        "context": set(objects),
        "pd": {"pd", "mr", "srq", "qp", "ah"},
        "cq": {"cq", "qp"},
        "channel": {"channel", "cq", "qp"},
        "srq": {"srq", "qp"},
        "mr": {"mr"},
        "qp": {"qp"},
    }
    objects[first].close()
    assert {name for name, one in objects.items() if one.closed} == below[first]
    for one in objects.values():
        one.close()
        one.close()


def test_with_blocks_close(context: Context) -> None:
    with context, PD(context) as pd, CompChannel(context) as channel:
        with CQ(context, 4, channel=channel) as cq, QP(pd, QPInitAttr(scq=cq, rcq=cq)) as qp:
            assert not qp.closed
        assert qp.closed and cq.closed
    assert pd.closed and channel.closed and context.closed
    assert context.adapter.is_closed  # type: ignore[attr-defined]  # of packet adapters


def test_calls_of_closed_objects_say_so() -> None:
    world = World(srq=8)
    side, wr = world.left, list[SendWR]()
    srq = side.srq
    assert srq is not None
    side.context.close()
    for call in (
        side.cq.poll,
        side.cq.req_notify,
        side.cq.wait_for,
        side.channel.fileno,
        lambda: side.channel.get_cq_event(timeout_s=0),
        lambda: side.qp.post_send(wr),
        side.qp.query,
        lambda: srq.post_recv([]),
        srq.query,
        lambda: side.context.get_async_event(timeout_s=0),
        lambda: PD(side.context),
        lambda: CQ(side.context, 1),
        lambda: MR(side.pd, 8),
        lambda: QP(side.pd, side.init_attr),
        lambda: AH(side.pd, side.route()),
    ):
        with pytest.raises(VerbsClosedError, match="is closed") as closed:
            call()
        assert closed.value.errno == errno.EBADF


def test_what_is_not_referenced_is_closed() -> None:
    world = World()
    adapter = world.left.context.adapter
    pd = world.left.pd
    mr = MR(pd, bytearray(8))
    before = adapter.region_count
    del mr
    assert adapter.region_count == before - 1
    child = QP(pd, world.left.init_attr)
    alive = weakref.ref(child)
    del child
    gc.collect()
    assert alive() is None
    assert len(pd._children()) == 2  # the region and the queue pair of the side


def test_an_unreferenced_context_ends_its_device() -> None:
    """Its thread, too: nothing below refers to the objects."""
    context = Context("udp0")
    pd, cq = PD(context), CQ(context, 4)
    qp, mr = QP(pd, QPInitAttr(scq=cq, rcq=cq)), MR(pd, 64)
    adapter = context.adapter
    del context, pd, cq, qp, mr
    gc.collect()
    assert adapter.is_closed  # type: ignore[attr-defined]  # of packet adapters


def test_a_child_keeps_its_parents() -> None:
    qp = World().left.qp
    gc.collect()
    assert not qp.closed
    assert not qp.context.closed


def test_collection_in_the_middle_of_a_call_is_left_to_another_thread(context: Context) -> None:
    mr = MR(PD(context), 8)
    adapter = context.adapter
    with adapter.lock:
        del mr
        gc.collect()
        assert adapter.region_count == 1
    wait_until(lambda: adapter.region_count == 0)


def test_a_forked_child_leaves_the_device_alone(context: Context) -> None:
    """Even where a thread of the parent held the lock at the fork."""
    pd, locked, ends = PD(context), threading.Event(), threading.Event()

    def hold() -> None:
        with context.adapter.lock:
            locked.set()
            ends.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    assert locked.wait(10)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(5)  # ends a child that waits for the lock
        context.close()
        pd.close()
        is_alone = context.closed and pd.closed and not context.adapter.is_closed  # type: ignore[attr-defined]  # of packet adapters
        os._exit(0 if is_alone else 1)
    ends.set()
    thread.join(10)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not pd.closed


def test_objects_are_made_and_closed_by_many_threads(context: Context) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(50):
                with PD(context) as pd, CQ(context, 4) as cq, MR(pd, 8):
                    QP(pd, QPInitAttr(scq=cq, rcq=cq)).close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []
    assert context.adapter.region_count == 0


# -- errors


def test_a_missing_capability_is_named() -> None:
    adapter = SimNetwork().adapter("plain")
    adapter.attributes = replace(adapter.attributes, memory_windows=False)
    with pytest.raises(VerbsNotSupportedError) as refused:
        MW(PD(Context(adapter=adapter)))
    assert refused.value.errno == errno.EOPNOTSUPP
    assert str(refused.value).endswith("device plain has no capability `memory_windows`")


@pytest.mark.parametrize(
    "error",
    [
        VerbsArgumentError("bad"),
        VerbsNotSupportedError("shm0", "atomics"),
        VerbsClosedError("CQ"),
        VerbsTimeoutError("late"),
        VerbsPostError(errno.ENOMEM, "full", 3),
    ],
)
def test_errors_survive_pickling(error: VerbsError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.errno, str(again)) == (type(error), error.errno, str(error))
    assert again.error_code == error.errno
