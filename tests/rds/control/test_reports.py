"""What a user is told of a path: state, since when, attempts; that it came up or was lost."""

from tests.rds.control.proto_world import down, first_frame
from tests.rds.control.test_linux import HIGH, LOW, SECOND, connection, up_as_lower
from tests.support.lone_peer import LonePeer
from urds.rds.control.events import Action, LossCause, PathLost, PathUp
from urds.rds.control.state import ConnectionReport, ConnectionState


def notices(core: LonePeer) -> list[Action]:
    found = []
    while (action := core.poll_event()) is not None:
        if isinstance(action, PathUp | PathLost):
            found.append(action)
    return found


def test_nothing_was_wanted_yet() -> None:
    report = connection(lower=True).report(0)
    assert report == ConnectionReport(ConnectionState.DOWN, None, 0, None)


def test_attempts_are_counted_since_the_first_and_the_next_has_its_time() -> None:
    core = connection(lower=True)
    core.handle_wanted(0, SECOND)
    assert core.report(0) == ConnectionReport(ConnectionState.CONNECTING, SECOND, 1, None)
    for attempts in range(1, 5):
        core.handle_connect_failed(0, core.poll_timeout() or SECOND)
        next_ns = core.poll_timeout()
        if next_ns is not None:  # else the back-off began with an attempt at once
            assert core.report(0) == ConnectionReport(
                ConnectionState.CONNECTING, SECOND, attempts, next_ns
            )
            core.handle_timeout(next_ns)
        else:
            assert core.report(0).attempts == attempts + 1  # type: ignore[union-attr]  # path 0
            break
    assert core.stats.connect_failures == attempts


def test_call_back_requests_count_as_attempts() -> None:
    core = connection(lower=False)
    core.handle_wanted(0, SECOND)
    assert core.report(0) == ConnectionReport(ConnectionState.CONNECTING, SECOND, 1, None)


def test_a_stream_is_silent_until_the_first_frame_and_then_up() -> None:
    core = connection(lower=True)
    core.handle_wanted(0, 0)
    core.handle_connected(0, 1, SECOND)
    assert core.report(0) == ConnectionReport(ConnectionState.SILENT, SECOND, 1, None)
    assert notices(core) == []
    first_frame(core, 0, 2 * SECOND)
    assert core.report(0) == ConnectionReport(ConnectionState.UP, 2 * SECOND, 0, None)
    assert notices(core) == [PathUp(HIGH, 0)]


def test_a_lost_path_is_told_once_and_is_connecting_since_then() -> None:
    core = up_as_lower()
    down(core, 0, 5, 7 * SECOND)
    report = core.report(0)
    assert report is not None
    assert (report.state, report.since_ns) == (ConnectionState.CONNECTING, 7 * SECOND)
    assert notices(core) == [PathLost(HIGH, 0, LossCause.ENDED)]
    core.handle_connected(0, 2, 8 * SECOND)
    down(core, 0, 0, 9 * SECOND)
    assert notices(core) == [], "it was not up again"


def test_a_stream_that_takes_the_place_of_another_is_a_loss() -> None:
    core = connection(lower=False)
    core.handle_accepted(1, 40000, 0)
    first_frame(core, 0, 0)
    notices(core)
    core.handle_accepted(2, 40001, SECOND)
    assert notices(core) == [PathLost(LOW, 0, LossCause.SUPERSEDED)]


def test_a_stream_that_this_side_drops_is_a_loss() -> None:
    core = up_as_lower()
    core.handle_dead(0, SECOND)
    assert notices(core) == [PathLost(HIGH, 0, LossCause.DROPPED)]


def test_a_path_that_is_gone_has_no_report() -> None:
    assert connection(lower=True).report(1) is None
