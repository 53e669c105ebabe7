"""An event dispatcher behaves like a bounded list, whatever order its calls come in."""

from dataclasses import dataclass, field
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from tests.dat.fakes import FakeFeeder, fake_of, open_fake
from urds import dat
from urds.dat import CompletionFlag, EvdFlag
from urds.dat.evd import EventDispatcher, Role
from urds.dat.ia import InterfaceAdapter

steps = st.lists(
    st.one_of(
        st.tuples(st.just("complete"), st.integers(1, 3)),
        st.tuples(st.just("dequeue"), st.integers(1, 3)),
        st.tuples(st.just("wait"), st.integers(1, 7)),
        st.tuples(st.just("resize"), st.integers(1, 6)),
    ),
    max_size=40,
)


@dataclass
class Model:
    """What is queued, lost and taken so far; cookies are the ordinals of the completions."""

    qlen: int
    queued: list[int] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)
    next_cookie: int = 0
    overflows: int = 0
    has_lost: bool = False  # since the last event was taken


@given(steps, st.integers(1, 4))
def test_it_is_a_bounded_list(plan: list[tuple[str, int]], qlen: int) -> None:
    """Each completion is taken once, in order, or lost once; one report per overflow."""
    model, told = Model(qlen), list[int]()
    with open_fake() as ia:
        evd, feeder = ia.create_evd(qlen, EvdFlag.DTO), FakeFeeder(ia)
        evd.attach(Role.RECV, feeder, CompletionFlag.EVD_THRESHOLD)
        for name, count in plan:
            match name:
                case "complete":
                    for _ in range(count):
                        complete(evd, feeder, model, told)
                case "dequeue":
                    for _ in range(count):
                        event = evd.dequeue()
                        assert (event is None) == (not model.queued)
                        check_taken(event, model)
                case "wait":
                    wait(evd, model, threshold=count)
                case "resize":
                    resize(evd, model, count)
            fake_of(ia).run_later()
            assert len(evd) == len(model.queued)
            assert sorted(told) == sorted(model.taken), "told once, taken or lost"
            assert len(feeder.overflows) == model.overflows
        assert reports(ia) == min(model.overflows, 8)


def complete(evd: EventDispatcher, feeder: FakeFeeder, model: Model, told: list[int]) -> None:
    cookie = model.next_cookie
    model.next_cookie += 1
    fits = len(model.queued) < model.qlen
    assert feeder.complete(evd, cookie, on_taken=partial(told.append, cookie)) is fits
    if fits:
        model.queued.append(cookie)
        return
    model.taken.append(cookie)
    model.overflows += not model.has_lost
    model.has_lost = True


def check_taken(event: object, model: Model) -> None:
    if event is None:
        return
    assert isinstance(event, dat.DtoCompletionEvent)
    assert event.user_cookie == model.queued[0]
    model.taken.append(model.queued.pop(0))
    model.has_lost = False


def wait(evd: EventDispatcher, model: Model, *, threshold: int) -> None:
    try:
        event = evd.wait(0, threshold=threshold)
    except dat.DatTimeoutExpired:
        assert len(model.queued) < threshold <= model.qlen
        assert evd.nmore == len(model.queued)
    except dat.DatInvalidParameter:
        assert threshold > model.qlen
    else:
        assert len(model.queued) >= threshold
        check_taken(event, model)
        assert evd.nmore == len(model.queued)


def resize(evd: EventDispatcher, model: Model, qlen: int) -> None:
    try:
        evd.resize(qlen)
    except dat.DatInvalidState:
        assert qlen < len(model.queued)
    else:
        assert qlen >= len(model.queued)
        model.qlen = qlen


def reports(ia: InterfaceAdapter) -> int:
    """Count the overflow reports; the asynchronous dispatcher holds eight."""
    assert isinstance(ia.async_evd, EventDispatcher)
    return len(list(ia.async_evd))
