"""Links over every device: bytes, ends, refusals, and what is left afterwards."""

import errno
from dataclasses import replace

import pytest

from tests.rsocket.ends import DEVICES, Ends, ends, send_all
from urds.rsocket.link.devices import DeviceContext
from urds.rsocket.link.stream_link import LinkState
from urds.verbs.providers.sim import SimNetwork


@pytest.fixture(params=DEVICES)
def both(request):
    with ends(request.param) as opened:
        yield opened


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
        assert left.stream.stats.bytes_sent == right.stream.stats.bytes_received == len(data)
        assert left.stream.stats.messages_sent < 300  # 1,024 through a window of 8 KiB
