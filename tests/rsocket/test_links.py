"""Links over every device: bytes, ends, refusals, and what is left afterwards."""

import errno
import random
from dataclasses import replace

import pytest

from tests.rsocket.ends import DEVICES, Ends, ends, send_all
from urds.rsocket.core.stream.records import Shut
from urds.rsocket.link.devices import DeviceContext
from urds.rsocket.link.stream_link import LinkState, StreamLink
from urds.verbs.providers.sim import SimNetwork


@pytest.fixture(params=DEVICES)
def both(request):
    with ends(request.param) as opened:
        yield opened


def test_bytes_of_all_sizes_arrive_both_ways(both: Ends) -> None:
    left, right = both.connect()
    rng = random.Random(4)
    for size in (1, 2, 63, 64, 65, 4096, 65_535, 65_536, 65_537, 300_000, 2_000_000):
        data = rng.randbytes(size)
        assert send_all(both, left, data, right) == data
        assert send_all(both, right, data, left) == data


def test_bytes_that_arrived_before_a_close_are_read_after_it(both: Ends) -> None:
    left, right = both.connect()
    assert left.send(memoryview(b"the last words")) == 14
    left.close()
    both.wait(lambda: right.state is LinkState.OVER)
    room = memoryview(bytearray(64))
    assert right.receive_into(room) == 14
    assert bytes(room[:14]) == b"the last words"
    assert right.receive_into(room) == 0
    assert right.is_ended
    with pytest.raises(ConnectionResetError):
        right.send(memoryview(b"anybody?"))


def test_a_half_close_leaves_the_other_half(both: Ends) -> None:
    left, right = both.connect()
    left.send(memoryview(b"question"))
    left.shut_down(Shut.WR)
    room = memoryview(bytearray(64))
    both.wait(lambda: right.readiness().readable)
    assert right.receive_into(room) == 8
    both.wait(lambda: right.is_ended)
    assert right.send(memoryview(b"answer")) == 6
    both.wait(lambda: left.readiness().readable)
    assert left.receive_into(room) == 6
    assert bytes(room[:6]) == b"answer"


def test_without_a_listener(both: Ends) -> None:
    host, port = both.listener.local
    link = StreamLink([both.here], both.settings)
    link.connect((host, port - 1), timeout_s=5)
    both.wait(lambda: link.state is LinkState.OVER)
    assert link.take_error() in (errno.ECONNREFUSED, errno.ETIMEDOUT)
    assert link.readiness().failed is False


def test_nothing_is_left_after_both_are_closed(both: Ends) -> None:
    before = [(len(end.links), end.memory_bytes) for end in (both.here, both.there)]
    for _ in range(5):
        left, right = both.connect()
        data = bytes(200_000)
        assert send_all(both, left, data, right) == data
        left.close()
        right.close()
    both.wait(lambda: not both.here.links and not both.there.links)
    assert [(len(end.links), end.memory_bytes) for end in (both.here, both.there)] == before


def test_a_device_without_immediate_data_is_refused() -> None:
    adapter = SimNetwork().adapter("bare")
    adapter.attributes = replace(adapter.attributes, rdma_with_imm=False)
    with pytest.raises(OSError, match="bare lacks rdma_with_imm") as caught:
        DeviceContext(adapter)
    assert caught.value.errno == errno.EOPNOTSUPP


def test_a_window_grows_on_a_long_way_for_a_reader_who_keeps_up() -> None:
    """A round trip takes far longer than a read: something is always published, and on its way."""
    with ends("sim") as both:
        left, right = both.connect()
        data = bytes(4 << 20)
        assert send_all(both, left, data, right, step=1 << 16) == data
        assert right.stream is not None
        assert left.stream is not None
        assert right.stream.stats.ring_grown >= 5
        assert left.stream.stats.messages_sent < 300  # 1,024 through a window of 8 KiB
