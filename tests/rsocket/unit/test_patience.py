"""How long a call waits: in all and not each time, and without a clock where there is no wait."""

import errno
from collections.abc import Callable

import pytest

from tests.support.clocks import give_time
from urds.rsocket import waiting
from urds.rsocket.waiting import CallTimeout


class Clock:
    """Time that passes only while a thread waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        self.reads = 0
        self.waits_s: list[float | None] = []
        give_time(monkeypatch, waiting, monotonic=self.monotonic)

    def monotonic(self) -> float:
        self.reads += 1
        return self.now_s

    def wait(self, is_ready: Callable[[], bool], wait_s: float | None) -> bool:
        """Wait as a device does; every wait that may end takes 0.4 s at most."""
        self.waits_s.append(wait_s)
        self.now_s += min(0.4, wait_s or 0.0)
        return is_ready()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_no_patience_looks_once(clock: Clock) -> None:
    CallTimeout(0).until(clock.wait, lambda: True)
    with pytest.raises(BlockingIOError) as caught:
        CallTimeout(0).until(clock.wait, lambda: False)
    assert caught.value.errno == errno.EAGAIN
    assert clock.waits_s == [0, 0]
    assert clock.reads == 0


def test_endless_patience_reads_no_clock(clock: Clock) -> None:
    call_timeout = CallTimeout(None)
    assert call_timeout.is_infinite
    call_timeout.until(clock.wait, lambda: True)
    assert clock.waits_s == [None]
    assert clock.reads == 0


def test_waits_share_one_patience(clock: Clock) -> None:
    call_timeout = CallTimeout(1.0)
    for left_s in (1.0, 0.6, 0.2, 0.0):
        call_timeout.until(clock.wait, lambda: True)
        assert clock.waits_s[-1] == pytest.approx(left_s)
    with pytest.raises(TimeoutError, match="timed out"):
        call_timeout.until(clock.wait, lambda: False)


def test_the_time_begins_with_the_first_wait(clock: Clock) -> None:
    call_timeout = CallTimeout(1.0)
    clock.now_s += 50
    call_timeout.until(clock.wait, lambda: True)
    assert clock.waits_s == [1.0]


@pytest.mark.parametrize(("wait_s", "shorter_s"), [(None, 0.5), (0.0, 0.0), (0.1, 0.1), (9.0, 0.5)])
def test_a_short_wait_is_no_longer_than_the_whole(wait_s: float | None, shorter_s: float) -> None:
    assert CallTimeout(wait_s).shorter(0.5) == shorter_s
