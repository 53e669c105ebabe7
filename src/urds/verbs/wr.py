"""Lists of work requests, as applications give them: one, any iterable, or a chain."""

from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

from urds.verbs.engine.work import RecvWR, SendWR
from urds.verbs.errors import VerbsArgumentError

_Request = TypeVar("_Request", SendWR, RecvWR)

REQUESTS_MAX: Final = 1 << 20  # of one call: a chain may lead back to its start
_ONE: Final = (SendWR, RecvWR)


def requests_of(given: _Request | Iterable[_Request]) -> Iterable[_Request]:
    """Return the work requests that were given, each followed by what is chained to it.

    Iterating raises VerbsArgumentError beyond REQUESTS_MAX.
    """
    if isinstance(given, _ONE):
        return (given,) if given.next_wr is None else _unchained((given,))
    return _unchained(given)


def _unchained(heads: Iterable[_Request]) -> Iterator[_Request]:
    room = REQUESTS_MAX
    for head in heads:
        request: _Request | None = head
        while request is not None:
            if room == 0:
                raise VerbsArgumentError(f"more than {REQUESTS_MAX} work requests in one call")
            room -= 1
            yield request
            request = request.next_wr
