"""When something came last and how old the oldest message is, by looks at the path alone."""

from urds.rds.plane.contract import PathActivity
from urds.rds.runtime.looks import Looks


class Path:
    """A path of which the test says how far it is."""

    def __init__(self) -> None:
        self.now = PathActivity(0, None, 100)

    def activity(self) -> PathActivity:
        return self.now


def test_what_the_peer_sends_is_noticed_by_the_next_look() -> None:
    looks, path = Looks(), Path()
    looks.begin(path)
    assert looks.look(path, 1).received_ns is None
    path.now = PathActivity(1, None, 100)
    assert looks.look(path, 2).received_ns == 2
    assert looks.look(path, 3).received_ns == 2
    path.now = PathActivity(5, None, 100)
    assert looks.look(path, 4).received_ns == 4


def test_a_stream_that_ends_or_begins_brings_nothing() -> None:
    looks, path = Looks(), Path()
    looks.begin(path)
    path.now = PathActivity(3, None, 100)
    looks.look(path, 1)
    path.now = PathActivity(0, None, 100)
    assert looks.look(path, 2).received_ns == 1
    looks.begin(path)
    path.now = PathActivity(3, None, 100)
    assert looks.look(path, 3).received_ns == 3


def test_what_came_since_the_last_look_counts_when_the_stream_ends() -> None:
    looks, path = Looks(), Path()
    looks.begin(path)
    looks.look(path, 1)
    path.now = PathActivity(0, 100, 101)  # the count is gone with the stream
    looks.end(path, 3, 2)
    assert looks.look(path, 30).received_ns == 2
    assert looks.look(path, 30).mark_ns == 2
    looks.begin(path)
    path.now = PathActivity(3, None, 101)
    assert looks.look(path, 31).received_ns == 31


def test_the_oldest_message_ages_until_it_is_acknowledged() -> None:
    looks, path = Looks(), Path()
    path.now = PathActivity(1, 100, 110)
    seen = looks.look(path, 10)
    assert (seen.mark, seen.mark_ns) == (109, 10)
    path.now = PathActivity(1, 105, 130)
    assert looks.look(path, 20).mark_ns == 10, "105 was sent before the first look"
    path.now = PathActivity(1, 110, 130)
    assert looks.look(path, 30).mark_ns == 30, "110 was sent after it"
    path.now = PathActivity(1, None, 130)
    assert looks.look(path, 40).mark is None


def test_a_forgotten_path_is_begun_anew() -> None:
    looks, path = Looks(), Path()
    path.now = PathActivity(1, 100, 101)
    looks.look(path, 1)
    looks.forget(path)
    assert looks.look(path, 9).mark_ns == 9
