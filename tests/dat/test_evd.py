"""Event dispatchers alone, fed by hand. Source: docs/reference/dat.md 4.1, 5, 10, 15."""

from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import pytest

from tests.dat.fakes import FakeFeeder, fake_of, open_fake
from urds import dat
from urds.dat import CompletionFlag, EvdFlag, EvdState, EventNumber
from urds.dat.evd import EventDispatcher
from urds.dat.evd_streams import MERGING, Role, is_signalled
from urds.dat.ia import InterfaceAdapter
from urds.dat.returns import Subtype

THRESHOLD = CompletionFlag.EVD_THRESHOLD
UNSIGNALLED = CompletionFlag.UNSIGNALLED
SOLICITED = CompletionFlag.SOLICITED_WAIT


@pytest.fixture
def ia() -> Iterator[InterfaceAdapter]:
    with open_fake() as opened:
        yield opened


def cookies(evd: EventDispatcher) -> list[object]:
    """Take what is queued and return the cookies."""
    events = list(evd)
    assert all(isinstance(event, dat.DtoCompletionEvent) for event in events)
    return [event.user_cookie for event in events if isinstance(event, dat.DtoCompletionEvent)]


# -- making


@pytest.mark.parametrize(
    ("qlen", "flags", "kind", "subtype"),
    [
        (0, EvdFlag.DTO, dat.DatInvalidParameter, Subtype.INVALID_ARG2),
        (-1, EvdFlag.DTO, dat.DatInvalidParameter, Subtype.INVALID_ARG2),
        (9, EvdFlag.DTO, dat.DatInsufficientResources, Subtype.RESOURCE_TEVD),
        (1, 0, dat.DatInvalidParameter, Subtype.INVALID_ARG4),
        (1, 0x200, dat.DatInvalidParameter, Subtype.INVALID_ARG4),
        (1, EvdFlag.ASYNC | EvdFlag.DTO, dat.DatInvalidParameter, Subtype.INVALID_ARG4),
        (1, EvdFlag.DEFAULT, dat.DatInvalidParameter, Subtype.INVALID_ARG4),
    ],
)
def test_a_dispatcher_that_cannot_be_is_refused(
    qlen: int, flags: int, kind: type[dat.DatError], subtype: Subtype
) -> None:
    with open_fake(max_cqe=8) as ia:
        before = len(ia.children)
        with pytest.raises(kind) as caught:
            ia.create_evd(qlen, flags)
        assert caught.value.subtype == subtype
        assert len(ia.children) == before


def test_limit_of_dispatchers_is_the_adapters() -> None:
    """The asynchronous one counts; a freed one makes room."""
    with open_fake(max_cq=2) as ia:
        evd = ia.create_evd(1, EvdFlag.DTO)
        with pytest.raises(dat.DatInsufficientResources):
            ia.create_evd(1, EvdFlag.DTO)
        evd.free()
        ia.create_evd(1, EvdFlag.DTO)


def test_a_new_dispatcher_is_enabled_and_waitable(ia: InterfaceAdapter) -> None:
    evd = ia.create_evd(3, EvdFlag.DTO | EvdFlag.SOFTWARE)
    param = evd.query()
    assert (param.ia_handle, param.evd_qlen, param.cno_handle) == (ia, 3, None)
    assert param.evd_flags == EvdFlag.DTO | EvdFlag.SOFTWARE
    assert param.evd_state & (EvdState.ENABLED | EvdState.WAITABLE)
    assert not param.evd_state & (EvdState.DISABLED | EvdState.UNWAITABLE)


def test_the_merging_matrix_is_what_create_allows(ia: InterfaceAdapter) -> None:
    """Symmetric, as announced in the provider's attributes; the asynchronous stream is alone."""
    assert ia.provider_attr.evd_stream_merging_supported == MERGING
    assert tuple(zip(*MERGING, strict=True)) == MERGING
    everything_else = EvdFlag.DEFAULT ^ EvdFlag.ASYNC | EvdFlag.SOFTWARE
    ia.create_evd(1, everything_else)
    ia.create_evd(1, EvdFlag.ASYNC)


# -- queue


def test_events_come_out_in_order_each_once(ia: InterfaceAdapter) -> None:
    evd, feeder = ia.create_evd(8, EvdFlag.DTO), FakeFeeder(ia)
    for number in range(5):
        assert feeder.complete(evd, number)
    assert len(evd) == 5
    first = evd.dequeue()
    assert isinstance(first, dat.DtoCompletionEvent)
    assert (first.event_number, first.evd_handle) == (EventNumber.DTO_COMPLETION, evd)
    assert first.ep_handle.handle == feeder.handle
    assert (first.user_cookie, first.transfered_length) == (0, 1)
    assert cookies(evd) == [1, 2, 3, 4]
    assert evd.dequeue() is None


def test_software_events_never_overflow(ia: InterfaceAdapter) -> None:
    """O2: a full queue refuses, and no overflow is reported."""
    evd = ia.create_evd(2, EvdFlag.SOFTWARE)
    evd.post("a")
    evd.post("b")
    with pytest.raises(dat.DatQueueFull):
        evd.post("c")
    assert evd.lost_count == 0
    assert list(ia.async_evd) == []  # type: ignore[arg-type]  # made by this adapter
    event = evd.dequeue()
    assert isinstance(event, dat.SoftwareEvent)
    assert event.pointer == "a"
    evd.post("c")
    assert [getattr(event, "pointer", None) for event in evd] == ["b", "c"]


def test_a_software_event_needs_the_flag(ia: InterfaceAdapter) -> None:
    with pytest.raises(dat.DatInvalidParameter):
        ia.create_evd(1, EvdFlag.DTO).post("a")


def test_resize_loses_nothing(ia: InterfaceAdapter) -> None:
    evd, feeder = ia.create_evd(4, EvdFlag.DTO), FakeFeeder(ia)
    for number in range(3):
        feeder.complete(evd, number)
    with pytest.raises(dat.DatInvalidState):
        evd.resize(2)
    with pytest.raises(dat.DatInvalidParameter):
        evd.resize(0)
    assert evd.qlen == 4
    evd.resize(3)
    assert cookies(evd) == [0, 1, 2]


# -- waiting


def test_wait_takes_the_first_and_counts_the_rest(ia: InterfaceAdapter) -> None:
    evd, feeder = ia.create_evd(8, EvdFlag.DTO), FakeFeeder(ia)
    fake_of(ia).plans = [partial(feeder.complete, evd, number) for number in range(5)]
    event = evd.wait(1.0, threshold=3)
    assert isinstance(event, dat.DtoCompletionEvent)
    assert (event.user_cookie, evd.nmore) == (0, 2)
    assert len(fake_of(ia).plans) == 2, "it ended with the third event"


def test_a_wait_that_ends_without_events_takes_nothing(ia: InterfaceAdapter) -> None:
    evd, feeder = ia.create_evd(8, EvdFlag.DTO), FakeFeeder(ia)
    feeder.complete(evd, 0)
    with pytest.raises(dat.DatTimeoutExpired):
        evd.wait(0.5, threshold=2)
    assert (evd.nmore, len(evd)) == (1, 1)
    assert fake_of(ia).waits_ns == [500_000_000]
    assert cookies(evd) == [0]


@pytest.mark.parametrize(
    ("wait_s", "wait_ns"), [(None, None), (0, 0), (1e-7, 1000), (0.0000015, 2000), (2, 2 * 10**9)]
)
def test_a_wait_is_rounded_up_to_microseconds(
    ia: InterfaceAdapter, wait_s: float | None, wait_ns: int | None
) -> None:
    with pytest.raises(dat.DatTimeoutExpired):
        ia.create_evd(1, EvdFlag.DTO).wait(wait_s)
    assert fake_of(ia).waits_ns == [wait_ns]


@pytest.mark.parametrize("threshold", [0, -1, 3])
def test_a_threshold_fits_the_queue(ia: InterfaceAdapter, threshold: int) -> None:
    with pytest.raises(dat.DatInvalidParameter):
        ia.create_evd(2, EvdFlag.DTO).wait(0, threshold=threshold)


@pytest.mark.parametrize(
    ("flags", "subtype"),
    [
        (UNSIGNALLED, Subtype.INVALID_STATE_EVD_CONFIG_NOTIFY),
        (SOLICITED, Subtype.INVALID_STATE_EVD_CONFIG_SOLICITED),
    ],
)
def test_streams_that_do_not_always_signal_forbid_a_threshold(
    ia: InterfaceAdapter, flags: CompletionFlag, subtype: Subtype
) -> None:
    evd, feeder = ia.create_evd(4, EvdFlag.DTO), FakeFeeder(ia)
    evd.attach(Role.RECV, feeder, flags)
    with pytest.raises(dat.DatInvalidState) as caught:
        evd.wait(0, threshold=2)
    assert caught.value.subtype == subtype
    evd.detach(Role.RECV, feeder)
    with pytest.raises(dat.DatTimeoutExpired):
        evd.wait(0, threshold=2)


def test_an_event_that_does_not_signal_wakes_no_thread(ia: InterfaceAdapter) -> None:
    """It is queued, is counted, and is the first to be taken when a later one signals."""
    evd, feeder = ia.create_evd(4, EvdFlag.DTO), FakeFeeder(ia)
    silent = [partial(feeder.complete, evd, number, signals=False) for number in (0, 1)]
    fake_of(ia).plans = [*silent, lambda: feeder.complete(evd, 2)]
    event = evd.wait(1.0)
    assert isinstance(event, dat.DtoCompletionEvent)
    assert (event.user_cookie, evd.nmore) == (0, 2)
    fake_of(ia).plans = list(silent)
    assert cookies(evd) == [1, 2]
    with pytest.raises(dat.DatTimeoutExpired):
        evd.wait(1.0)
    assert evd.nmore == 2
    assert isinstance(evd.wait(0), dat.DtoCompletionEvent), "queued already: no need to wait"


@pytest.mark.parametrize(
    ("attribute", "posted", "solicited", "signals"),
    [
        (CompletionFlag.DEFAULT, CompletionFlag.DEFAULT, False, True),
        (THRESHOLD, CompletionFlag.DEFAULT, False, True),
        (THRESHOLD, CompletionFlag.SUPPRESS, False, True),
        (UNSIGNALLED, CompletionFlag.DEFAULT, False, True),
        (UNSIGNALLED, UNSIGNALLED, False, False),
        (UNSIGNALLED, UNSIGNALLED, True, False),
        (SOLICITED, CompletionFlag.DEFAULT, False, False),
        (SOLICITED, CompletionFlag.DEFAULT, True, True),
    ],
)
def test_what_signals(
    attribute: CompletionFlag, posted: CompletionFlag, solicited: bool, signals: bool
) -> None:
    assert is_signalled(attribute, posted, solicited) is signals


def test_one_thread_waits_and_no_other_dequeues_meanwhile(ia: InterfaceAdapter) -> None:
    evd = ia.create_evd(4, EvdFlag.SOFTWARE)

    def intrude() -> None:
        for call in (evd.dequeue, lambda: evd.wait(0)):
            with pytest.raises(dat.DatInvalidState) as caught:
                call()
            assert caught.value.subtype == Subtype.INVALID_STATE_EVD_WAITER
        with pytest.raises(dat.DatInvalidState) as caught:
            evd.free()
        assert caught.value.subtype == Subtype.INVALID_STATE_EVD_IN_USE

    fake_of(ia).plans = [intrude, lambda: evd.post("a")]
    assert isinstance(evd.wait(1.0), dat.SoftwareEvent)
    assert evd.dequeue() is None


def test_made_unwaitable_it_wakes_the_waiter(ia: InterfaceAdapter) -> None:
    """Events still arrive and can be dequeued."""
    evd = ia.create_evd(4, EvdFlag.SOFTWARE)
    fake_of(ia).plans = [lambda: setattr(evd, "waitable", False)]
    for _ in range(2):
        with pytest.raises(dat.DatInvalidState) as caught:
            evd.wait(1.0)
        assert caught.value.subtype == Subtype.INVALID_STATE_EVD_UNWAITABLE
    evd.post("a")
    assert evd.dequeue() is not None
    evd.waitable = True
    evd.post("b")
    assert isinstance(evd.wait(0), dat.SoftwareEvent)


def test_a_wait_ends_when_the_adapter_closes() -> None:
    """O4: with ABORT."""
    ia = open_fake()
    evd = ia.create_evd(4, EvdFlag.SOFTWARE)
    fake_of(ia).plans = [ia.close]
    with pytest.raises(dat.DatAbort):
        evd.wait(None)
    with pytest.raises(dat.DatInvalidHandle):
        evd.wait(0)


def test_an_interrupted_wait_leaves_the_dispatcher_usable(ia: InterfaceAdapter) -> None:
    evd = ia.create_evd(4, EvdFlag.SOFTWARE)

    def interrupt() -> None:
        evd.post("a")
        raise InterruptedError(4, "signal")

    fake_of(ia).plans = [interrupt]
    ret, event, nmore = dat.dat_evd_wait(evd, 1000, 1)
    assert ret == dat.DAT_INTERRUPTED_CALL
    assert (event, nmore) == (None, None)
    assert isinstance(evd.dequeue(), dat.SoftwareEvent), "nothing was taken"
    assert evd.dequeue() is None


# -- streams


@pytest.mark.parametrize(
    ("role", "subtype"),
    [
        (Role.RECV, Subtype.INVALID_HANDLE_EVD_RECV),
        (Role.REQUEST, Subtype.INVALID_HANDLE_EVD_REQUEST),
        (Role.CONNECTION, Subtype.INVALID_HANDLE_EVD_CONN),
        (Role.CR, Subtype.INVALID_HANDLE_EVD_CR),
    ],
)
def test_a_stream_needs_its_flag(ia: InterfaceAdapter, role: Role, subtype: Subtype) -> None:
    evd = ia.create_evd(1, EvdFlag.SOFTWARE)
    with pytest.raises(dat.DatInvalidHandle) as caught:
        evd.attach(role, FakeFeeder(ia))
    assert caught.value.subtype == subtype
    assert not evd.in_use


@pytest.mark.parametrize(
    ("streams", "allowed"),
    [
        ([(Role.RECV, UNSIGNALLED), (Role.REQUEST, UNSIGNALLED)], True),
        ([(Role.RECV, THRESHOLD), (Role.REQUEST, UNSIGNALLED)], False),
        ([(Role.RECV, SOLICITED), (Role.RECV, SOLICITED)], True),
        ([(Role.RECV, SOLICITED), (Role.REQUEST, SOLICITED)], False),
        ([(Role.CONNECTION, CompletionFlag.DEFAULT), (Role.RECV, THRESHOLD)], True),
        ([(Role.CONNECTION, CompletionFlag.DEFAULT), (Role.RECV, UNSIGNALLED)], False),
        ([(Role.RECV, UNSIGNALLED), (Role.CR, CompletionFlag.DEFAULT)], False),
        ([(Role.CR, CompletionFlag.DEFAULT), (Role.CONNECTION, CompletionFlag.DEFAULT)], True),
    ],
)
def test_which_streams_share_a_dispatcher(
    ia: InterfaceAdapter, streams: list[tuple[Role, CompletionFlag]], allowed: bool
) -> None:
    evd = ia.create_evd(4, EvdFlag.DTO | EvdFlag.CONNECTION | EvdFlag.CR)
    (first, first_flags), (second, second_flags) = streams
    feeder = FakeFeeder(ia)
    evd.attach(first, feeder, first_flags)
    if allowed:
        evd.attach(second, FakeFeeder(ia), second_flags)
        return
    with pytest.raises(dat.DatInvalidParameter):
        evd.attach(second, FakeFeeder(ia), second_flags)
    evd.detach(first, feeder)
    evd.free()


def test_a_dispatcher_is_in_use_while_a_stream_feeds_it(ia: InterfaceAdapter) -> None:
    """One owner may feed it twice; an owner that ends feeds it no more."""
    evd, feeder = ia.create_evd(4, EvdFlag.DTO), FakeFeeder(ia)
    evd.attach(Role.RECV, feeder, THRESHOLD)
    evd.attach(Role.REQUEST, feeder, THRESHOLD)
    evd.detach(Role.RECV, feeder)
    with pytest.raises(dat.DatInvalidState) as caught:
        evd.free()
    assert caught.value.subtype == Subtype.INVALID_STATE_EVD_IN_USE
    feeder.free()
    evd.attach(Role.RECV, FakeFeeder(ia), UNSIGNALLED)


# -- overflow


def async_events(ia: InterfaceAdapter) -> list[dat.AsyncErrorEvent]:
    """Take the asynchronous events."""
    assert isinstance(ia.async_evd, EventDispatcher)
    return [event for event in ia.async_evd if isinstance(event, dat.AsyncErrorEvent)]


def test_overflow_loses_the_event_reports_it_and_breaks_the_feeders(ia: InterfaceAdapter) -> None:
    """O1, the dispatcher's part: one report, one break, what was queued can be dequeued."""
    evd, feeders = ia.create_evd(2, EvdFlag.DTO), [FakeFeeder(ia), FakeFeeder(ia)]
    for feeder in feeders:
        evd.attach(Role.RECV, feeder, THRESHOLD)
        evd.attach(Role.REQUEST, feeder, THRESHOLD)
    taken: list[int] = []
    results = [
        feeders[0].complete(evd, number, on_taken=partial(taken.append, number))
        for number in range(4)
    ]
    assert results == [True, True, False, False]
    assert taken == [2, 3], "a lost completion no longer counts as outstanding"
    assert [feeder.overflows for feeder in feeders] == [[], []], "never inside the engine"
    fake_of(ia).run_later()
    assert [feeder.overflows for feeder in feeders] == [[evd], [evd]]
    (report,) = async_events(ia)
    assert report.event_number is EventNumber.ASYNC_EVD_OVERFLOW
    assert (report.dat_handle, report.reason) == (evd, dat.DAT_EVD_OVERFLOW_ERROR)
    assert cookies(evd) == [0, 1]
    assert taken == [2, 3, 0, 1]
    assert evd.lost_count == 2


def test_a_dispatcher_is_usable_again_when_there_is_room(ia: InterfaceAdapter) -> None:
    evd, feeder = ia.create_evd(1, EvdFlag.DTO), FakeFeeder(ia)
    evd.attach(Role.RECV, feeder, THRESHOLD)
    for _ in range(2):
        feeder.complete(evd, "kept")
        feeder.complete(evd, "lost")
        fake_of(ia).run_later()
        assert cookies(evd) == ["kept"]
        assert len(async_events(ia)) == 1
    assert feeder.overflows == [evd, evd]


def test_a_freed_owner_is_not_told_of_an_overflow(ia: InterfaceAdapter) -> None:
    evd, feeder = ia.create_evd(1, EvdFlag.DTO), FakeFeeder(ia)
    evd.attach(Role.RECV, feeder, THRESHOLD)
    feeder.complete(evd, 0)
    feeder.complete(evd, 1)
    feeder.free()
    fake_of(ia).run_later()
    assert feeder.overflows == []


def test_an_asynchronous_dispatcher_that_overflows_is_dead() -> None:
    ia = open_fake()
    with ia:
        evd = ia.async_evd
        assert isinstance(evd, EventDispatcher)
        with ia.lock:
            for _ in range(evd.qlen + 1):
                ia.post_async(EventNumber.ASYNC_EP_BROKEN, FakeFeeder(ia))
        with pytest.raises(dat.DatInvalidState) as caught:
            evd.wait(0)
        assert caught.value.subtype == Subtype.INVALID_STATE_EVD_ASYNC
        assert len(list(evd)) == evd.qlen, "what it holds can be dequeued"


def test_freeing_a_dispatcher_drops_what_it_holds(ia: InterfaceAdapter) -> None:
    evd, feeder = ia.create_evd(4, EvdFlag.DTO), FakeFeeder(ia)
    taken: list[int] = []
    for number in range(3):
        feeder.complete(evd, number, on_taken=partial(taken.append, number))
    evd.free()
    assert taken == [0, 1, 2]
    assert not feeder.complete(evd, 3, on_taken=lambda: taken.append(3))
    assert taken == [0, 1, 2, 3]
    for call in (evd.dequeue, evd.free, evd.query, evd.enable):
        with pytest.raises(dat.DatInvalidHandle):
            call()


def test_handles_are_never_used_again(ia: InterfaceAdapter) -> None:
    numbers = []
    for _ in range(20):
        evd = ia.create_evd(1, EvdFlag.DTO)
        numbers.append(evd.handle)
        evd.free()
    assert all(before < after for before, after in pairwise(numbers))
