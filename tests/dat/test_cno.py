"""Notification points alone. Source: docs/reference/dat.md 5."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.dat.fakes import FakeFeeder, fake_of, open_fake
from urds import dat
from urds.dat import EvdFlag, ProxyAgent
from urds.dat.evd import EventDispatcher
from urds.dat.evd_streams import Role
from urds.dat.ia import InterfaceAdapter
from urds.dat.returns import Subtype


@pytest.fixture
def ia() -> Iterator[InterfaceAdapter]:
    with open_fake() as opened:
        yield opened


def test_a_trigger_stays_until_one_wait_has_taken_it(ia: InterfaceAdapter) -> None:
    """Triggers are not counted."""
    cno = ia.create_cno()
    evd = ia.create_evd(4, EvdFlag.SOFTWARE, cno)
    evd.post("a")
    evd.post("b")
    assert cno.wait(0) is evd
    with pytest.raises(dat.DatQueueEmpty):
        cno.wait(0)


def test_a_wait_ends_with_the_dispatcher_that_triggered(ia: InterfaceAdapter) -> None:
    cno = ia.create_cno()
    evds = [ia.create_evd(4, EvdFlag.SOFTWARE, cno) for _ in range(3)]
    fake_of(ia).plans = [lambda: evds[1].post("a")]
    assert cno.wait(1.0) is evds[1]
    assert fake_of(ia).waits_ns == [1_000_000_000]


def test_the_thin_call_says_queue_empty_with_no_handle(ia: InterfaceAdapter) -> None:
    cno = ia.create_cno()
    ret, evd = dat.dat_cno_wait(cno, 10)
    assert ret == dat.DAT_QUEUE_EMPTY
    assert evd is None
    assert dat.dat_cno_wait(cno, -1)[0] == dat.DAT_INVALID_PARAMETER
    assert dat.dat_cno_wait(cno, 1 << 32)[0] == dat.DAT_INVALID_PARAMETER


def test_an_event_that_does_not_signal_triggers_nothing(ia: InterfaceAdapter) -> None:
    cno = ia.create_cno()
    evd, feeder = ia.create_evd(4, EvdFlag.DTO, cno), FakeFeeder(ia)
    evd.attach(Role.RECV, feeder, dat.CompletionFlag.UNSIGNALLED)
    feeder.complete(evd, 0, signals=False)
    with pytest.raises(dat.DatQueueEmpty):
        cno.wait(0)
    feeder.complete(evd, 1)
    assert cno.wait(0) is evd


def test_a_disabled_dispatcher_triggers_nothing(ia: InterfaceAdapter) -> None:
    cno = ia.create_cno()
    evd = ia.create_evd(4, EvdFlag.SOFTWARE, cno)
    evd.disable()
    evd.post("a")
    with pytest.raises(dat.DatQueueEmpty):
        cno.wait(0)
    evd.enable()
    evd.post("b")
    assert cno.wait(0) is evd
    assert len(evd) == 2


def test_a_blocked_waiter_comes_before_the_notification_point(ia: InterfaceAdapter) -> None:
    cno = ia.create_cno()
    evd = ia.create_evd(4, EvdFlag.SOFTWARE, cno)
    fake_of(ia).plans = [lambda: evd.post("a")]
    evd.wait(1.0)
    with pytest.raises(dat.DatQueueEmpty):
        cno.wait(0)


def test_an_unwaitable_dispatcher_triggers_all_the_same(ia: InterfaceAdapter) -> None:
    cno = ia.create_cno()
    evd = ia.create_evd(4, EvdFlag.SOFTWARE, cno)
    evd.waitable = False
    evd.post("a")
    assert cno.wait(0) is evd


def test_what_is_no_agent_is_refused(ia: InterfaceAdapter) -> None:
    wrong: Any = print
    cno = ia.create_cno()
    with pytest.raises(dat.DatInvalidParameter):
        ia.create_cno(wrong)
    with pytest.raises(dat.DatInvalidParameter):
        cno.agent = wrong
    assert dat.dat_cno_modify_agent(cno, wrong) == dat.DAT_INVALID_PARAMETER
    assert cno.query().agent is None


def test_an_agent_is_called_once_until_it_is_set_again(ia: InterfaceAdapter) -> None:
    calls: list[tuple[object, EventDispatcher]] = []
    called = threading.Semaphore(0)

    def agent(data: object, evd: EventDispatcher) -> None:
        calls.append((data, evd))
        called.release()

    cno = ia.create_cno(ProxyAgent(agent, "first"))
    evd = ia.create_evd(4, EvdFlag.SOFTWARE, cno)
    assert cno.query().agent is not None
    evd.post("a")
    assert called.acquire(timeout=10)
    evd.post("b")
    assert cno.query().agent is None
    cno.agent = ProxyAgent(agent, "second")
    evd.post("c")
    assert called.acquire(timeout=10)
    assert calls == [("first", evd), ("second", evd)]


def test_it_is_in_use_while_a_dispatcher_refers_to_it(ia: InterfaceAdapter) -> None:
    cno, other = ia.create_cno(), ia.create_cno()
    evd = ia.create_evd(4, EvdFlag.SOFTWARE, cno)
    with pytest.raises(dat.DatInvalidState) as caught:
        cno.free()
    assert caught.value.subtype == Subtype.INVALID_STATE_CNO_IN_USE
    evd.cno = other
    cno.free()
    evd.post("a")
    assert other.wait(0) is evd
    evd.cno = None
    other.free()


def test_it_is_in_use_while_a_thread_waits(ia: InterfaceAdapter) -> None:
    cno = ia.create_cno()
    refused: list[str] = []

    def try_to_free() -> None:
        try:
            cno.free()
        except dat.DatInvalidState as error:
            refused.append(error.ret.name)

    fake_of(ia).plans = [try_to_free]
    with pytest.raises(dat.DatQueueEmpty):
        cno.wait(1.0)
    assert refused == ["DAT_INVALID_STATE|DAT_INVALID_STATE_CNO_IN_USE"]
    cno.free()


def test_the_last_dispatcher_wakes_who_waits(ia: InterfaceAdapter) -> None:
    cno = ia.create_cno()
    evds = [ia.create_evd(4, EvdFlag.SOFTWARE, cno) for _ in range(2)]
    fake_of(ia).plans = [evds[0].free, evds[1].free, lambda: pytest.fail("it waited on")]
    assert cno.wait(None) is None
    assert fake_of(ia).plans, "it ended with the second"


def test_closing_the_adapter_wakes_who_waits() -> None:
    ia = open_fake()
    cno = ia.create_cno()
    fake_of(ia).plans = [ia.close]
    assert cno.wait(None) is None
    with pytest.raises(dat.DatInvalidHandle):
        cno.wait(0)


def test_a_trigger_of_a_freed_dispatcher_is_forgotten(ia: InterfaceAdapter) -> None:
    cno = ia.create_cno()
    evd = ia.create_evd(4, EvdFlag.SOFTWARE, cno)
    evd.post("a")
    evd.free()
    with pytest.raises(dat.DatQueueEmpty):
        cno.wait(0)


def test_an_interrupted_wait_takes_no_trigger(ia: InterfaceAdapter) -> None:
    cno = ia.create_cno()
    evd = ia.create_evd(4, EvdFlag.SOFTWARE, cno)

    def interrupt() -> None:
        evd.post("a")
        raise InterruptedError(4, "signal")

    fake_of(ia).plans = [interrupt]
    assert dat.dat_cno_wait(cno, 1000) == (dat.DAT_INTERRUPTED_CALL, None)
    assert cno.wait(0) is evd
