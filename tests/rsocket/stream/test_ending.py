"""The end of a stream: shutdown, disconnect, failure, closing; and the signs of life before it."""

import errno

import pytest

from tests.rsocket.stream.stream_pair import Pair, Side
from urds.common.errors import RemoteProtocolError
from urds.rsocket.core.stream.records import PostKind, Shut, StreamSettings, StreamState
from urds.rsocket.wire.stream import Control, Op, emit_imm_data

ORIGINAL = StreamSettings(is_urds=False)
DISCONNECT = emit_imm_data(Op.CONTROL, Control.DISCONNECT)
SHUTDOWN = emit_imm_data(Op.CONTROL, Control.SHUTDOWN)


def controls(side: Side) -> list[int | None]:
    return [post.imm_data for post in side.log if post.kind is PostKind.CONTROL]


def errno_of_send(side: Side) -> int | None:
    with pytest.raises(OSError) as caught:
        side.send(b"x")
    return caught.value.errno


# -- shutdown


@pytest.mark.rule("rsocket-shutdown")
@pytest.mark.parametrize("settings", [StreamSettings(), ORIGINAL], ids=["own", "original"])
def test_half_a_close_leaves_the_other_direction(settings: StreamSettings) -> None:
    pair = Pair(StreamSettings(), settings, is_settled=True)
    left, right = pair.left, pair.right
    left.send(b"last")
    left.stream.lifecycle.shut_down(Shut.WR)
    pair.run()
    assert controls(left) == [SHUTDOWN]
    assert right.stream.is_readable and not right.stream.is_ended
    assert right.read() == b"last"
    assert right.stream.is_ended and right.stream.is_readable
    assert not right.stream.lifecycle.can_read and right.stream.lifecycle.can_write
    assert errno_of_send(left) == errno.EPIPE
    for _ in range(20):
        right.send(bytes(1000))
        pair.run()
        assert left.read() == bytes(1000)
        pair.run()
    right.stream.lifecycle.shut_down(Shut.WR)
    pair.run()
    assert controls(right) == [DISCONNECT]  # no peer is left to write to
    assert left.stream.lifecycle.state is right.stream.lifecycle.state is StreamState.OVER
    assert left.stream.wants_disconnect and right.stream.wants_disconnect
    assert left.stream.lifecycle.error == right.stream.lifecycle.error == 0


@pytest.mark.parametrize("how", [Shut.WR, Shut.RDWR])
def test_everything_accepted_leaves_before_the_last_word(how: Shut) -> None:
    """100,000 bytes through 8 KiB: the peer reads all of them, then the end."""
    pair = Pair(is_settled=True)
    data = bytes(range(250)) * 400
    assert pair.left.send(data) == 100_000
    pair.left.stream.lifecycle.shut_down(how)
    assert not pair.left.stream.is_drained
    got = bytearray()
    for _ in range(100):
        pair.run()
        got += pair.right.read()
    assert got == data
    assert pair.right.stream.is_ended and pair.left.stream.is_drained


@pytest.mark.rule("rsocket-disconnect")
def test_unread_bytes_are_readable_after_a_disconnect() -> None:
    pair = Pair(is_settled=True)
    pair.left.send(b"unread")
    pair.left.stream.lifecycle.shut_down(Shut.RDWR)
    pair.run()
    right = pair.right.stream
    assert (
        right.lifecycle.state is StreamState.OVER
        and right.lifecycle.reason == "the peer disconnected"
    )
    assert right.wants_disconnect and pair.left.stream.wants_disconnect
    assert errno_of_send(pair.right) == errno.ECONNRESET
    assert right.is_writable  # a send tells at once
    assert pair.right.read(3, peek=True) == b"unr"
    assert pair.right.read() == b"unread"
    assert right.is_ended
    assert pair.right.read() == b""


def test_ending_reading_is_not_told_while_we_write() -> None:
    pair = Pair(is_settled=True)
    pair.right.send(b"there")
    pair.run()
    pair.left.stream.lifecycle.shut_down(Shut.RD)
    pair.run()
    assert controls(pair.left) == []
    assert pair.left.stream.is_readable and not pair.left.stream.is_ended
    assert pair.left.read() == b"there"
    assert pair.left.stream.is_ended
    assert pair.left.send(b"on") == 2
    pair.left.stream.lifecycle.shut_down(Shut.WR)
    pair.run()
    assert controls(pair.left) == [DISCONNECT]
    assert pair.right.read() == b"on"


def test_ending_reading_last_disconnects() -> None:
    pair = Pair(is_settled=True)
    pair.left.stream.lifecycle.shut_down(Shut.WR)
    pair.run()
    pair.left.stream.lifecycle.shut_down(Shut.RD)
    pair.run()
    assert controls(pair.left) == [SHUTDOWN, DISCONNECT]


def test_a_shutdown_that_has_not_left_becomes_a_disconnect() -> None:
    """Either because we end reading as well, or because the peer has ended writing."""
    pair = Pair(is_settled=True)
    pair.left.stream.lifecycle.shut_down(Shut.WR)
    pair.left.stream.lifecycle.shut_down(Shut.RD)
    pair.run()
    assert controls(pair.left) == [DISCONNECT]
    pair = Pair(is_settled=True)
    pair.left.send(b"first")
    pair.left.stream.lifecycle.shut_down(Shut.WR)
    pair.right.stream.lifecycle.shut_down(Shut.WR)
    pair.right.post()
    pair.right.deliver()
    pair.run()
    assert controls(pair.left) == [DISCONNECT]
    assert pair.right.read() == b"first"


def test_ending_twice_is_said_once() -> None:
    pair = Pair(is_settled=True)
    for how in (Shut.WR, Shut.WR, Shut.RDWR, Shut.RDWR):
        pair.left.stream.lifecycle.shut_down(how)
        pair.run()
    pair.left.stream.lifecycle.shut_down(Shut.WR)
    assert controls(pair.left) == [SHUTDOWN, DISCONNECT]


@pytest.mark.parametrize("how", [Shut.WR, Shut.RDWR])
def test_last_words_that_cross_end_both(how: Shut) -> None:
    pair = Pair(is_settled=True)
    for side in (pair.left, pair.right):
        side.send(b"bye")
        side.stream.lifecycle.shut_down(how)
        side.post()
    pair.run()
    for side in (pair.left, pair.right):
        assert side.stream.lifecycle.state is StreamState.OVER
        assert side.stream.wants_disconnect
        assert side.read() == b"bye"
        assert side.stream.is_ended


def test_data_that_cross_our_disconnect_do_no_harm() -> None:
    """Sent before the peer heard of it, they land when ours is done already."""
    pair = Pair(is_settled=True)
    pair.right.send(b"crossing")
    pair.right.post()
    pair.left.stream.lifecycle.shut_down(Shut.RDWR)
    pair.left.post()
    pair.left.landed += pair.left.posted
    pair.left.posted.clear()
    pair.left.complete()
    assert pair.left.stream.lifecycle.state is StreamState.OVER
    pair.right.deliver()
    assert pair.left.stream.is_ended


def test_nothing_is_said_after_a_disconnect() -> None:
    """Not even a credit update that reading makes due, nor a sign of life."""
    pair = Pair(StreamSettings(keepalive_ns=5), is_settled=True)
    pair.right.send(bytes(6000))
    pair.run()
    pair.left.stream.lifecycle.shut_down(Shut.RDWR)
    assert pair.left.post()[-1].imm_data == DISCONNECT
    pair.left.read()
    pair.left.stream.handle_timeout(0)
    pair.left.stream.handle_timeout(5)
    assert pair.left.stream.poll_timeout() is None
    assert pair.left.post() == []


@pytest.mark.parametrize("imm_data", [1, SHUTDOWN, DISCONNECT, emit_imm_data(Op.CREDIT, 384)])
def test_words_after_a_disconnect_are_refused(imm_data: int) -> None:
    pair = Pair(is_settled=True)
    pair.right.stream.receive_data(DISCONNECT)
    with pytest.raises(RemoteProtocolError, match="outside of the connection"):
        pair.right.stream.receive_data(imm_data)


def test_data_after_a_shutdown_are_refused_and_credits_are_not() -> None:
    pair = Pair(is_settled=True)
    pair.right.stream.receive_data(SHUTDOWN)
    pair.right.stream.receive_data(SHUTDOWN)
    pair.right.stream.receive_data(emit_imm_data(Op.CREDIT, 384))
    with pytest.raises(RemoteProtocolError, match="data after SHUTDOWN"):
        pair.right.stream.receive_data(1)


def test_the_word_of_a_keepalive_asks_for_nothing() -> None:
    """The original reserves it and sends none; who does so is left alone."""
    pair = Pair(is_settled=True)
    pair.right.stream.receive_data(emit_imm_data(Op.CONTROL, Control.KEEPALIVE))
    assert pair.right.stream.lifecycle.can_read
    pair.left.send(bytes(5000))
    pair.run()
    pair.right.read()
    assert [post.kind for post in pair.right.post()] == [PostKind.CREDIT]


# -- the peer or the device ends it


def test_a_peers_disconnect_drops_what_waits_and_lets_posts_complete() -> None:
    """The connection goes when the last of them has completed."""
    pair = Pair(is_settled=True)
    left = pair.left.stream
    pair.left.send(bytes(20_000))
    pair.left.post()
    left.receive_data(DISCONNECT)
    assert pair.left.post() == []
    assert (left.lifecycle.state, left.lifecycle.error) == (StreamState.OVER, 0)
    assert not left.is_drained and not left.wants_disconnect
    assert left.unsent_bytes == 8192
    pair.left.deliver()
    pair.left.complete()
    assert left.unsent_bytes == 0 and left.wants_disconnect


def test_a_failed_request_breaks_the_stream() -> None:
    pair = Pair(is_settled=True)
    pair.right.send(b"unread")
    pair.run()
    left = pair.left.stream
    pair.left.send(bytes(20_000), may_zero_copy=True)
    pair.left.post()
    left.handle_disconnected("retries exceeded", errno.EIO)
    assert (
        left.lifecycle.state is StreamState.FAILED and left.lifecycle.reason == "retries exceeded"
    )
    assert (left.sending.zero_copy_bytes, left.unsent_bytes) == (0, 0)
    assert left.is_writable and left.is_readable
    assert errno_of_send(pair.left) == errno.ECONNRESET
    assert pair.left.read() == b"unread"
    assert left.is_ended
    assert (left.lifecycle.take_error(), left.lifecycle.take_error()) == (errno.EIO, 0)
    left.handle_sent()  # a late completion, of a post that is forgotten
    assert pair.left.post() == []


@pytest.mark.parametrize("error", [0, errno.ETIMEDOUT])
def test_a_connection_that_ends_leaves_what_arrived(error: int) -> None:
    pair = Pair(is_settled=True)
    pair.left.send(b"unread")
    pair.run()
    right = pair.right.stream
    pair.right.send(b"lost")
    right.handle_disconnected("gone", error)
    assert right.lifecycle.state is (StreamState.FAILED if error else StreamState.OVER)
    assert right.lifecycle.error == error
    assert pair.right.read() == b"unread"
    assert right.is_ended and right.is_drained and right.wants_disconnect
    right.handle_disconnected("again", errno.EIO)
    assert (right.lifecycle.reason, right.lifecycle.error) == ("gone", error)


def test_a_failure_of_our_own_disconnect_is_none() -> None:
    """A side that has sent its last byte does not mind that the other went first."""
    pair = Pair(is_settled=True)
    pair.left.stream.lifecycle.shut_down(Shut.RDWR)
    pair.left.post()
    pair.left.stream.handle_disconnected("flushed", errno.EIO)
    assert (pair.left.stream.lifecycle.state, pair.left.stream.lifecycle.error) == (
        StreamState.OVER,
        0,
    )
    assert pair.left.stream.wants_disconnect


def test_the_end_before_the_connection() -> None:
    side = Side(StreamSettings(), 0x20_0000_0000)
    side.stream.handle_disconnected("refused", errno.ECONNREFUSED)
    assert side.stream.lifecycle.take_error() == errno.ECONNREFUSED
    assert side.stream.is_ended and not side.stream.lifecycle.is_connected


# -- closing


def test_closing_gives_all_memory_back() -> None:
    """Also while posts are under way and bytes unread: the queue pair is gone by then."""
    pair = Pair(is_settled=True)
    for _ in range(5):
        pair.left.send(bytes(50_000), may_zero_copy=True)
        pair.run()
        pair.right.read()
        pair.run()
    pair.left.send(bytes(50_000), may_zero_copy=True)
    pair.left.send(b"waits")
    pair.run()
    pair.right.send(b"under way")
    pair.right.post()
    for side in (pair.left, pair.right):
        side.stream.close()
        assert side.host.memories == {}
        assert side.stream.lifecycle.state is StreamState.CLOSED
        side.stream.close()
        side.stream.handle_sent()
        assert side.post() == []
        assert side.read() == b"" == side.stream.receive_ring.receive(10)
        assert side.stream.is_ended and side.stream.is_drained
        assert side.stream.unsent_bytes == 0
        assert side.stream.receive_ring.expect(side.host.allocate(100_000), 100_000) == 100_000
    pair.right.stream.receive_data(5)
    assert errno_of_send(pair.left) == errno.ECONNRESET


def test_a_stream_that_never_connected_closes() -> None:
    side = Side(StreamSettings(iomap_slots=4), 0)
    side.stream.close()
    assert side.host.memories == {}


# -- signs of life


def test_a_sign_of_life_goes_out_every_interval_and_one_at_a_time() -> None:
    pair = Pair(StreamSettings(keepalive_ns=100), is_settled=True)
    left = pair.left.stream
    assert left.poll_timeout() == 0
    left.handle_timeout(1000)
    assert left.poll_timeout() == 1100
    left.handle_timeout(1099)
    assert pair.left.post() == []
    left.handle_timeout(1100)
    [post] = pair.left.post()
    assert post.kind is PostKind.KEEPALIVE
    assert (post.data, post.address, post.rkey, post.imm_data) == (b"", 0, 0, None)
    assert left.poll_timeout() == 1200
    left.handle_timeout(1200)
    assert pair.left.post() == []  # the first is not acknowledged
    pair.left.deliver()
    pair.left.complete()
    assert pair.left.post() == []
    left.handle_timeout(1300)
    assert len(pair.left.post()) == 1
    assert left.stats.keepalives_sent == 2


def test_the_interval_may_change_and_end() -> None:
    pair = Pair(is_settled=True)
    left = pair.left.stream
    assert left.poll_timeout() is None
    left.keepalive.set_interval(50)
    left.handle_timeout(10)
    assert left.poll_timeout() == 60
    left.keepalive.set_interval(70)
    left.handle_timeout(20)
    assert left.poll_timeout() == 90
    left.handle_timeout(90)
    left.keepalive.set_interval(None)
    left.handle_timeout(1000)
    assert left.poll_timeout() is None
    assert pair.left.post() == []


def test_a_sign_of_life_waits_for_a_control_slot() -> None:
    settings = StreamSettings(receive_queue=16, keepalive_ns=10, no_delay=True)
    pair = Pair(StreamSettings(no_delay=True), settings, is_settled=True)
    right = pair.right
    for _ in range(4):
        for _ in range(8):
            pair.left.send(b"1")
            pair.left.post()
            pair.left.deliver()
            pair.left.complete()
        right.read()
        right.post()
        right.deliver()
    right.stream.handle_timeout(0)
    right.stream.handle_timeout(10)
    assert right.post() == []
    right.complete(1)
    assert [post.kind for post in right.post()] == [PostKind.KEEPALIVE]


def test_no_sign_of_life_is_asked_for_after_the_end() -> None:
    pair = Pair(StreamSettings(keepalive_ns=10), is_settled=True)
    pair.left.stream.receive_data(DISCONNECT)
    assert pair.left.stream.poll_timeout() is None
