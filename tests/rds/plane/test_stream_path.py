"""What the shell of a path keeps to itself while it writes without a lock.

The two calls are private, for their fault shows between two threads only, in a window of a
microsecond; here the other thread's step is made by hand.
"""

from types import SimpleNamespace
from typing import Any

from urds.rds.plane.python.stream_writer import StreamWriter


def shell(queued: list[bytes]) -> Any:
    core = SimpleNamespace(poll_transmit=lambda: queued)
    return SimpleNamespace(_core=core, writing=True, _finish_write=lambda: None)


def test_a_writer_that_stopped_does_not_see_what_the_next_one_frames() -> None:
    """Else both write the same bytes, and the second is told of more than there is."""
    queued: list[bytes] = []
    seen = StreamWriter._poll_transmit(shell(queued))
    queued.append(b"an acknowledgement")
    assert seen == []


def test_a_writer_goes_on_when_the_stream_ends_under_it() -> None:
    """Else it would leave without saying so, and no thread would write to the path again."""
    queued = [b"a message"]
    seen = StreamWriter._poll_transmit(shell(queued))
    queued.clear()
    assert seen == [b"a message"]
