"""A receive that a signal handler's exception cuts short at each step of its wait in turn.

The device goes on. Steps of the protocols themselves are left out: what an exception cuts there is
lost with its connection.
"""

from itertools import count

import pytest

from tests.rsocket.socket_pairs import WAIT_S, Pair, Task
from tests.support.cuts import through_all_steps
from tests.support.waiting import settled

OVER = ("shm0", "tcp0")
_WAITING = (
    "common/progress.py",
    "rsocket/waiting.py",
    "verbs/providers/base.py",
    "verbs/providers/packet_adapter.py",
    "verbs/providers/shm/",
    "verbs/providers/tcp/adapter.py",
)
_KEEPALIVE_NS = 1_000_000


@pytest.mark.parametrize("wait_s", [WAIT_S, 0.001])
def test_a_receive_that_is_cut_leaves_the_device_whole(pair: Pair, wait_s: float) -> None:
    numbers = count()

    def receive() -> None:
        pair.client.settimeout(wait_s)
        message = b"%08d" % next(numbers)
        sending = Task(lambda: pair.server.send(message)) if wait_s == WAIT_S else None
        try:
            pair.client.recv(8)
        except TimeoutError:
            assert sending is None
        finally:
            if sending is not None:
                sending.result()

    def assert_whole(place: str) -> None:
        pair.client.settimeout(WAIT_S)
        last = b"%08d" % next(numbers)
        pair.server.sendall(last)
        try:
            while pair.client.recv(8) != last:
                pass
        except TimeoutError:
            pytest.fail(f"nothing is received after an exception in {place}")
        link = pair.client._transfer.link
        assert link is not None
        stream, context = link.stream, link.context
        assert stream is not None
        sent = stream.stats.keepalives_sent
        for interval_ns in (_KEEPALIVE_NS, None):
            with context.adapter.lock:
                stream.keepalive.set_interval(interval_ns)
                context.mark(link)
            if interval_ns is not None:
                is_sent = settled(lambda: stream.stats.keepalives_sent > sent)
                assert is_sent, f"no keepalive after an exception in {place}"

    through_all_steps(receive, assert_whole, within=_WAITING)
