"""A wait at a dispatcher that a signal handler's exception cuts short at each step in turn.

On the compiled engine, where the thread feeds the sink of the adapter itself. The adapter goes on.
Steps of dispatchers and endpoints are left out: an event that was taken there is lost with the
exception.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count

import pytest

from tests.rsocket.socket_pairs import Task
from tests.support.cuts import Cut, Raised
from urds import dat
from urds.dat import EvdFlag

WAIT_S = 20.0
RECEIVES = 16
STEPS = 80
_WAITING = (
    "common/progress.py",
    "verbs/providers/base.py",
    "verbs/providers/packet_adapter.py",
    "verbs/providers/shm/",
)

pytestmark = pytest.mark.parametrize("device", ["shm-native"], indirect=True)


class End:
    """An adapter with an endpoint, and receives of eight bytes."""

    def __init__(self, device: str) -> None:
        self.ia = dat.open(device)
        pz = self.ia.create_pz()
        self.recv, self.request = (self.ia.create_evd(256, EvdFlag.DTO) for _ in range(2))
        self.connection = self.ia.create_evd(8, EvdFlag.CONNECTION)
        attr = dat.EpAttr(max_recv_dtos=2 * RECEIVES, max_request_dtos=2 * RECEIVES)
        self.ep = pz.create_ep(self.recv, self.request, self.connection, attr)
        self.data = bytearray(8 * (RECEIVES + 1))
        self.memory = pz.register(self.data)
        for number in range(RECEIVES):
            self.give(number)

    def give(self, number: int) -> None:
        self.ep.post_recv([self.memory.triplet(8 * number, 8)], number)

    def send(self, message: bytes) -> None:
        self.data[8 * RECEIVES :] = message
        self.ep.post_send([self.memory.triplet(8 * RECEIVES, 8)], None)
        assert self.request.wait(WAIT_S)

    def take(self, event: dat.Event) -> bytes:
        assert isinstance(event, dat.DtoCompletionEvent)
        number = event.user_cookie
        message = bytes(self.data[8 * number :][:8])
        self.give(number)
        return message


@pytest.fixture
def pair(device: str) -> Iterator[tuple[End, End]]:
    near, far = End(device), End(device)
    with near.ia, far.ia:
        requests = far.ia.create_evd(4, EvdFlag.CR)
        point = far.ia.listen(evd=requests)
        near.ep.connect(far.ia.address, point.conn_qual, timeout_s=WAIT_S)
        event = requests.wait(WAIT_S)
        assert isinstance(event, dat.ConnectionRequestEvent)
        event.cr.accept(far.ep)
        for end in (near, far):
            assert end.connection.wait(WAIT_S)
        yield near, far


@pytest.mark.parametrize("by_point", [False, True])
def test_a_wait_that_is_cut_leaves_the_adapter_whole(pair: tuple[End, End], by_point: bool) -> None:
    near, far = pair
    numbers = count()
    cno = far.recv.cno = far.ia.create_cno()

    def send_later() -> None:
        time.sleep(0.005)  # so that it is waited for
        near.send(b"%08d" % next(numbers))

    def wait() -> None:
        sending = Task(send_later)
        try:
            if by_point:
                cno.wait(WAIT_S)
            else:
                far.take(far.recv.wait(WAIT_S))
        finally:
            sending.result()

    def assert_whole(place: str) -> None:
        last = b"%08d" % next(numbers)
        near.send(last)
        try:
            while far.take(far.recv.wait(WAIT_S)) != last:
                pass
        except dat.DatTimeoutExpired:
            pytest.fail(f"nothing comes after an exception in {place}")
        with suppress(dat.DatQueueEmpty):
            cno.wait(0)  # what has triggered it meanwhile

    raised = 0
    for at in range(STEPS):  # a wait has some 85, one that finds its event at once has 5
        cut = Cut(at, within=_WAITING)
        with suppress(Raised), cut:
            wait()
        assert_whole(cut.place or "no place")
        raised += cut.has_raised
    assert raised > STEPS // 2
