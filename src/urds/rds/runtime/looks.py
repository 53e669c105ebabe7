"""When a path received something last, and how long its oldest message has no acknowledgement.

The planes keep no time for it: that would cost something for each message. So the control thread
looks once a second at paths that have a stream, and when it ends; each snapshot looks again.
Control lock held.
"""

from __future__ import annotations

from typing import Protocol

from urds.common.records import record
from urds.rds.plane.contract import PathActivity


class Progressing(Protocol):
    """A path of any transport."""

    def activity(self) -> PathActivity:
        """Return how far the path is."""


@record(frozen=False)
class Seen:
    """What the looks at one path have shown."""

    received: int
    received_ns: int | None = None
    mark: int | None = None  # the last number that was sent at `mark_ns`, until acknowledged
    mark_ns: int = 0


class Looks:
    """What was seen of every path."""

    def __init__(self) -> None:
        self._seen: dict[Progressing, Seen] = {}

    def begin(self, path: Progressing, received: int = 0) -> None:
        """Note that a path is given a stream, on which its count begins at `received`."""
        self._seen.setdefault(path, Seen(received)).received = received

    def look(self, path: Progressing, at_ns: int) -> Seen:
        """Look at a path; return what is known of it now."""
        activity = path.activity()
        seen = self._seen.setdefault(path, Seen(activity.received))
        if activity.received != seen.received:
            seen.received = activity.received
            if activity.received:  # 0 when the stream is gone
                seen.received_ns = at_ns
        oldest = activity.oldest_unacknowledged
        if oldest is None:
            seen.mark = None
        elif seen.mark is None or oldest > seen.mark:
            # Every message up to here was sent by now, so the oldest one is at least that old.
            seen.mark, seen.mark_ns = activity.sequence_next - 1, at_ns
        return seen

    def end(self, path: Progressing, received: int, at_ns: int) -> None:
        """Look at a path whose stream has ended, with the count that was reached on it.

        The last look may be a second old, and there is none again until the next stream begins.
        """
        seen = self._seen.setdefault(path, Seen(0))
        if received > seen.received:
            seen.received_ns = at_ns
        self.look(path, at_ns)

    def forget(self, path: Progressing) -> None:
        """Drop what is known of a path that is closed for good."""
        self._seen.pop(path, None)
