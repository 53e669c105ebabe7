"""Who connects and when: call-back requests, back-off, giving up."""

import itertools
from random import Random

import pytest

from tests.rds.control.proto_world import down, first_frame
from tests.rds.control.test_linux import (
    HIGH,
    LINUX_6,
    LOW,
    MS,
    SECOND,
    actions,
    connection,
    hear,
    up_as_lower,
)
from tests.support.lone_peer import LonePeer
from urds.rds.control.events import (
    Agree,
    Connect,
    Detach,
    FanIn,
    FanOut,
    GiveUp,
    ProbeDeadStream,
    Refuse,
    RememberHandshake,
    RequestCallBack,
)
from urds.rds.control.settings import ConnectionSettings


def attempts(core: LonePeer, span_ns: int, *, kind: type = Connect, start_ns: int = 0) -> list:
    """Let every attempt fail at once; return their times."""
    times = []
    now_ns = start_ns
    while now_ns <= start_ns + span_ns:
        while (action := core.poll_event()) is not None:
            if isinstance(action, kind):
                times.append(now_ns)
                core.handle_connect_failed(0, now_ns)
        due_ns = core.poll_timeout()
        if due_ns is None:
            break
        now_ns = max(due_ns, now_ns)
        core.handle_timeout(now_ns)
    return times


def test_addresses_compare_as_16_bytes() -> None:
    assert connection(lower=True).lower
    assert not connection(lower=False).lower


def test_a_call_back_request_is_refused_and_brings_a_connect() -> None:
    core = connection(lower=True)
    core.handle_accepted(9, 50000, 0)
    refuse, connect = actions(core)
    assert refuse == Refuse(HIGH, 9)
    assert isinstance(connect, Connect)


def test_call_back_requests_make_one_attempt_at_once_in_10_ms() -> None:
    core = connection(lower=True)
    tried = 0
    for millisecond in range(100):
        core.handle_accepted(millisecond, 50000, millisecond * MS)
        core.handle_timeout(millisecond * MS)
        while (action := core.poll_event()) is not None:
            if isinstance(action, Connect):
                tried += 1
                core.handle_connect_failed(0, millisecond * MS)
    assert tried <= 25, "one per 10 ms, and the back-off's own"


@pytest.mark.parametrize(("lower", "kind"), [(True, Connect), (False, RequestCallBack)])
def test_a_peer_of_an_earlier_process_is_connected_to_at_once(lower: bool, kind: type) -> None:
    core = connection(lower=lower)
    core.handle_was_connected(0)
    assert [type(one) for one in actions(core)] == [kind]
    core.handle_was_connected(0)
    assert actions(core) == [], "an attempt is under way"
    core.handle_connect_failed(0, MS)
    assert actions(core) or core.poll_timeout(), "it goes on with the back-off"


def test_a_call_back_request_resets_the_wait() -> None:
    core = connection(lower=True)
    core.handle_wanted(0, 0)
    attempts(core, 10 * SECOND)
    core.handle_accepted(9, 50000, 20 * SECOND)
    assert any(isinstance(action, Connect) for action in actions(core))


def test_a_call_back_request_probes_what_seems_up() -> None:
    core = up_as_lower()
    core.handle_accepted(9, 50000, SECOND)
    assert actions(core) == [Refuse(HIGH, 9), ProbeDeadStream(HIGH, 0)]
    core.handle_accepted(10, 50000, SECOND + MS)
    assert actions(core) == [Refuse(HIGH, 10)], "a map is 8 KiB: not for every call-back request"


@pytest.mark.rule("rds7-reconnect")
def test_a_lost_path_is_tried_at_once_and_then_with_back_off() -> None:
    core = up_as_lower()
    down(core, 0, 3, 0)
    times = attempts(core, 60 * SECOND)
    assert times[0] == 0
    assert 10 < len(times) < 60


def test_a_connection_that_ends_before_the_first_frame_is_a_reject() -> None:
    """TCP's handshake alone would reset the back-off thousands of times a second."""
    core = connection(lower=True)
    core.handle_wanted(0, 0)
    tried, now_ns = 0, 0
    while now_ns < 10 * SECOND:
        while (action := core.poll_event()) is not None:
            if isinstance(action, Connect):
                tried += 1
                core.handle_connected(0, tried, now_ns)
                down(core, 0, 0, now_ns)
        now_ns = max(now_ns + 1, core.poll_timeout() or now_ns + SECOND)
        core.handle_timeout(now_ns)
    assert tried < 60


@pytest.mark.rule("wire-reconnect", "wire-reconnect-rate", "rds7-reconnect-limits")
def test_with_messages_waiting_the_delay_ends_at_the_maximum() -> None:
    core = connection(lower=True)
    core.handle_wanted(0, 0)
    times = attempts(core, 100 * SECOND)
    assert max(b - a for a, b in itertools.pairwise(times)) <= SECOND
    assert len(times) > 100


def test_with_nothing_waiting_the_delay_grows_on() -> None:
    core = up_as_lower()
    down(core, 0, 3, 0)
    times = attempts(core, 3600 * SECOND)
    assert len(times) < 250
    core.handle_wanted(0, 3700 * SECOND)
    assert any(isinstance(action, Connect) for action in actions(core)), (
        "a message makes it retry at once"
    )


@pytest.mark.rule("wire-reconnect")
def test_the_higher_side_requests_call_backs_again_and_again() -> None:
    core = connection(lower=False)
    core.handle_wanted(0, 0)
    times, now_ns = [], 0
    while now_ns < 10 * SECOND:
        for action in actions(core):
            if isinstance(action, RequestCallBack):
                times.append(now_ns)
                core.handle_call_back_requested(now_ns)
        now_ns = core.poll_timeout() or 10 * SECOND
        core.handle_timeout(now_ns)
    assert 8 < len(times) < 60
    assert times[1] - times[0] >= 20 * MS, "the peer needs time to call back"


def test_a_unknown_peer_who_connects_and_leaves_is_not_called_back() -> None:
    """Else each of its connections would cost us several."""
    core = connection(lower=False)
    for turn in range(3):
        core.handle_accepted(turn, 40000, turn * SECOND)
        down(core, 0, 0, turn * SECOND)
    assert not attempts(core, 120 * SECOND, kind=RequestCallBack, start_ns=3 * SECOND)


def test_a_unknown_peer_is_called_back_while_a_message_waits() -> None:
    core = connection(lower=False)
    core.handle_accepted(1, 40000, 0)
    first_frame(core, 0, 0)
    down(core, 0, 1, 0)
    assert not attempts(core, 10 * SECOND, kind=RequestCallBack)
    core.handle_wanted(0, 20 * SECOND)
    assert len(attempts(core, 10 * SECOND, kind=RequestCallBack, start_ns=20 * SECOND)) > 5


def test_one_call_back_request_is_out_at_a_time() -> None:
    core = connection(lower=False)
    core.handle_wanted(0, 0)
    core.handle_wanted(0, MS)
    core.handle_timeout(SECOND)
    assert actions(core) == [RequestCallBack(LOW)]


@pytest.mark.rule("wire-security-backoff", "wire-security-tunable")
@pytest.mark.parametrize("lower", [True, False])
def test_giving_up_drops_once_and_the_next_message_starts_anew(lower: bool) -> None:
    core = LonePeer(
        local=LOW if lower else HIGH,
        peer=HIGH if lower else LOW,
        settings=ConnectionSettings(generation=7, reconnect_give_up_ns=5 * SECOND),
        random=Random(1),
    )
    kind = Connect if lower else RequestCallBack
    gave_up = []
    now_ns = 0
    core.handle_wanted(0, 0)
    while now_ns < 60 * SECOND:
        while (action := core.poll_event()) is not None:
            if isinstance(action, kind):
                core.handle_connect_failed(0, now_ns)
            elif isinstance(action, GiveUp):
                gave_up.append((now_ns, action.down_ns))
        due_ns = core.poll_timeout()
        if due_ns is None:
            break
        now_ns = due_ns
        core.handle_timeout(now_ns)
    assert gave_up == [(5 * SECOND, 5 * SECOND)]
    assert core.is_idle
    core.handle_wanted(0, 100 * SECOND)
    assert any(isinstance(action, kind) for action in actions(core))


def test_giving_up_while_an_attempt_is_out_ends_with_its_answer() -> None:
    core = LonePeer(
        local=LOW,
        peer=HIGH,
        settings=ConnectionSettings(generation=7, reconnect_give_up_ns=SECOND),
        random=Random(1),
    )
    core.handle_wanted(0, 0)
    core.handle_timeout(SECOND)
    actions(core)
    core.handle_connect_failed(0, 2 * SECOND)
    assert core.poll_timeout() is None
    assert core.is_idle


def test_a_path_that_comes_up_is_not_given_up() -> None:
    core = LonePeer(
        local=LOW,
        peer=HIGH,
        settings=ConnectionSettings(generation=7, reconnect_give_up_ns=3 * SECOND),
        random=Random(1),
    )
    core.handle_wanted(0, 0)
    core.handle_connected(0, 1, 0)
    first_frame(core, 0, 0)
    core.handle_timeout(10 * SECOND)
    assert core.stats.gave_up == 0


# -- a fault of ours


def test_a_fault_takes_every_stream_down_and_seeks_after_a_rest() -> None:
    core = up_as_lower()
    core.handle_fault([1], SECOND)
    assert actions(core) == [Detach(HIGH, 0)]
    assert core.poll_timeout() is not None
    assert len(attempts(core, 10 * SECOND, start_ns=SECOND)) > 1


def test_a_fault_before_anything_was_looked_for_seeks_too() -> None:
    """The report that messages wait may be what was lost."""
    core = connection(lower=False)
    core.handle_fault([0], 0)
    assert attempts(core, 10 * SECOND, kind=RequestCallBack)


def test_after_a_fault_a_unknown_peer_is_sought_too() -> None:
    """What waits for it was written already, so no report says that it waits."""
    core = connection(lower=False)
    core.handle_accepted(1, 40000, 0)
    first_frame(core, 0, 0)
    core.handle_fault([1], SECOND)
    assert attempts(core, 10 * SECOND, kind=RequestCallBack, start_ns=SECOND)


def test_after_a_fault_the_streams_are_counted_as_the_plane_does() -> None:
    core = up_as_lower()
    core.handle_connected(0, 2, SECOND)  # its `Attach` fails: the plane has seen one stream only
    core.handle_fault([1], SECOND)
    core.handle_connected(0, 3, 2 * SECOND)
    assert core._paths[0].attachment == 2


def test_after_a_fault_what_is_known_is_told_again_once() -> None:
    core = up_as_lower(npaths=8)
    told = hear(core, LINUX_6, ping=False)
    agree = next(action for action in told if isinstance(action, Agree))
    core.handle_fault([1], SECOND)
    actions(core)
    core.handle_connected(0, 2, 2 * SECOND)
    actions(core)
    first_frame(core, 0, 2 * SECOND)
    again = actions(core)
    assert again[:2] == [FanIn(HIGH, 8), FanOut(HIGH, 8)]
    assert agree in again
    assert RememberHandshake(HIGH, None) in again
    down(core, 0, 3, 3 * SECOND)
    core.handle_connected(0, 3, 3 * SECOND)
    first_frame(core, 0, 3 * SECOND)
    assert agree not in actions(core)
