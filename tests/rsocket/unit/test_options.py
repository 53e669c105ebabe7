"""Each line of the table of options: what can be set, to what, and what is read back."""

import errno
import socket
import struct
from socket import IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET

import pytest

from urds.rsocket import options
from urds.rsocket.constants import SOL_RDMA, RdmaOpt
from urds.rsocket.options import RsocketOptions, SocketInfo, TcpState
from urds.rsocket.settings import RsocketSettings

IDLE = SocketInfo(TcpState.CLOSE, None)


def change(
    level: int,
    option: int,
    value: int | bytes,
    *,
    before: RsocketOptions | None = None,
    late: bool = False,
) -> RsocketOptions:
    """Set one option, given as an integer or as bytes, on a new socket."""
    data = value if isinstance(value, bytes) else struct.pack("=i", value)
    return options.set_option(
        before or options.defaults(RsocketSettings()),
        level=level,
        option=option,
        data=data,
        has_begun=late,
    )


def read(level: int, option: int, found: RsocketOptions, info: SocketInfo = IDLE) -> int:
    data = options.get_option(found, info, level=level, option=option, buffer_bytes=4)
    number: int = struct.unpack("=i", data)[0]
    return number


def refused(level: int, option: int, value: int | bytes, *, late: bool = False) -> OSError:
    with pytest.raises(OSError) as caught:
        change(level, option, value, late=late)
    return caught.value


SWITCHES = [
    (SOL_SOCKET, socket.SO_REUSEADDR),
    (SOL_SOCKET, socket.SO_KEEPALIVE),
    (SOL_SOCKET, socket.SO_OOBINLINE),
    (IPPROTO_TCP, socket.TCP_NODELAY),
    (IPPROTO_IPV6, socket.IPV6_V6ONLY),
]


@pytest.mark.parametrize(("level", "option"), SWITCHES)
def test_a_switch_is_off_then_on_then_off(level: int, option: int) -> None:
    assert read(level, option, options.defaults(RsocketSettings())) == 0
    on = change(level, option, 5)
    assert read(level, option, on) == 1
    assert read(level, option, change(level, option, 0, before=on)) == 0


NUMBERS = [
    (SOL_RDMA, RdmaOpt.SQSIZE, 500, 500),
    (SOL_RDMA, RdmaOpt.SQSIZE, 3, 16),
    (SOL_RDMA, RdmaOpt.SQSIZE, 1 << 20, 0xFFFE),
    (SOL_RDMA, RdmaOpt.RQSIZE, 500, 500),
    (SOL_RDMA, RdmaOpt.RQSIZE, 0, 16),
    (SOL_RDMA, RdmaOpt.RQSIZE, 0xFFFF, 0xFFFE),
    (SOL_RDMA, RdmaOpt.INLINE, 0, 0),
    (SOL_RDMA, RdmaOpt.INLINE, 0xFFFF, 0xFFFE),
    (SOL_RDMA, RdmaOpt.IOMAPSIZE, 128, 128),
    (SOL_RDMA, RdmaOpt.IOMAPSIZE, 129, 128),
    (SOL_RDMA, RdmaOpt.IOMAPSIZE, 256, 256),
    (SOL_RDMA, RdmaOpt.IOMAPSIZE, 1 << 20, 32_512),
    (SOL_SOCKET, socket.SO_RCVBUF, 100_000, 200_000),
    (SOL_SOCKET, socket.SO_RCVBUF, 0, 2048),
    (SOL_SOCKET, socket.SO_SNDBUF, 100_000, 200_000),
    (SOL_SOCKET, socket.SO_SNDBUF, 1, 4096),
    (SOL_SOCKET, socket.SO_SNDBUF, (1 << 31) - 1, 1 << 28),
    (IPPROTO_IP, socket.IP_TOS, 255, 255),
    (IPPROTO_TCP, socket.TCP_KEEPIDLE, 30, 30),
]


@pytest.mark.parametrize(("level", "option", "value", "result"), NUMBERS)
def test_a_number_is_read_back_within_its_limits(
    level: int, option: int, value: int, result: int
) -> None:
    assert read(level, option, change(level, option, value)) == result


OUT_OF_RANGE = [
    (SOL_RDMA, RdmaOpt.SQSIZE, -1),
    (SOL_RDMA, RdmaOpt.IOMAPSIZE, -1),
    (SOL_SOCKET, socket.SO_RCVBUF, -1),
    (IPPROTO_IP, socket.IP_TOS, 256),
    (IPPROTO_IP, socket.IP_TOS, -1),
    (IPPROTO_TCP, socket.TCP_KEEPIDLE, 0),
    (IPPROTO_TCP, socket.TCP_KEEPIDLE, -5),
    (SOL_RDMA, RdmaOpt.ROUTE, bytes(options.ROUTE_BYTES_MAX + 1)),
    (SOL_SOCKET, socket.SO_LINGER, 1),  # four bytes, a struct linger has eight
    (SOL_SOCKET, socket.SO_KEEPALIVE, b"\1\0\0"),
]


@pytest.mark.parametrize(("level", "option", "value"), OUT_OF_RANGE)
def test_a_bad_value_is_einval_and_named(level: int, option: int, value: int | bytes) -> None:
    error = refused(level, option, value)
    assert error.errno == errno.EINVAL
    assert str(len(value) if isinstance(value, bytes) else value) in str(error) or value == 1


@pytest.mark.parametrize("option", RdmaOpt)
def test_what_a_connection_is_made_of_is_set_before_it_begins(option: RdmaOpt) -> None:
    error = refused(SOL_RDMA, option, 64, late=True)
    assert error.errno == errno.EINVAL
    assert f"RDMA_{option.name}" in str(error)


def test_other_options_may_be_set_late() -> None:
    assert change(IPPROTO_TCP, socket.TCP_NODELAY, 1, late=True).no_delay


@pytest.mark.parametrize(
    ("level", "option"),
    [(SOL_SOCKET, 0x7F), (99, 1), (SOL_RDMA, 5), (IPPROTO_TCP, 0x7F), (SOL_SOCKET, -1)],
)
def test_an_unknown_option_is_enotsup_and_named(level: int, option: int) -> None:
    error = refused(level, option, 1)
    assert error.errno == errno.ENOTSUP
    assert f"{level:#x} option {option}" in str(error)
    with pytest.raises(OSError) as caught:
        read(level, option, options.defaults(RsocketSettings()))
    assert caught.value.errno == errno.ENOTSUP


@pytest.mark.parametrize(
    ("level", "option"),
    [
        (SOL_SOCKET, socket.SO_ERROR),
        (SOL_SOCKET, socket.SO_BROADCAST),
        (IPPROTO_TCP, socket.TCP_INFO),
    ],
)
def test_what_can_only_be_read_cannot_be_set(level: int, option: int) -> None:
    assert refused(level, option, 1).errno == errno.ENOTSUP


@pytest.mark.parametrize(
    "option", [socket.TCP_MAXSEG, socket.TCP_CONGESTION, socket.TCP_KEEPCNT, socket.TCP_KEEPINTVL]
)
def test_what_means_nothing_is_accepted(option: int) -> None:
    assert change(IPPROTO_TCP, option, 7) == options.defaults(RsocketSettings())


def test_the_segment_is_the_devices_or_the_originals_guess() -> None:
    new = options.defaults(RsocketSettings())
    assert read(IPPROTO_TCP, socket.TCP_MAXSEG, new) == 2048
    assert read(IPPROTO_TCP, socket.TCP_MAXSEG, new, SocketInfo(TcpState.ESTABLISHED, 4096)) == 4096


def test_linger_is_off_until_it_is_set() -> None:
    new = options.defaults(RsocketSettings())
    assert new.linger_s is None
    on = change(SOL_SOCKET, socket.SO_LINGER, struct.pack("=ii", 1, 3), before=new)
    assert on.linger_s == 3
    data = options.get_option(on, IDLE, level=SOL_SOCKET, option=socket.SO_LINGER, buffer_bytes=8)
    assert struct.unpack("=ii", data) == (1, 3)
    off = change(SOL_SOCKET, socket.SO_LINGER, struct.pack("=ii", 0, 3), before=on)
    assert off.linger_s is None


def test_info_tells_the_state_and_the_queue() -> None:
    """Offsets of struct tcp_info, linux v6.12: the state at 0, the congestion window at 80."""
    found = change(SOL_RDMA, RdmaOpt.SQSIZE, 77)
    data = options.get_option(
        found,
        SocketInfo(TcpState.ESTABLISHED, 4096),
        level=IPPROTO_TCP,
        option=socket.TCP_INFO,
        buffer_bytes=256,
    )
    assert data[0] == 1
    assert struct.unpack_from("=I", data, 80) == (77,)
    assert len(data) == 104


def test_a_route_is_kept_and_given_back() -> None:
    found = change(SOL_RDMA, RdmaOpt.ROUTE, b"path record")
    assert (
        options.get_option(found, IDLE, level=SOL_RDMA, option=RdmaOpt.ROUTE, buffer_bytes=100)
        == b"path record"
    )


def test_a_stream_is_made_of_what_was_set() -> None:
    chosen = options.defaults(RsocketSettings(sqsize_default=100, iomap_size=300))
    for level, option, value in (
        (SOL_RDMA, RdmaOpt.RQSIZE, 50),
        (SOL_RDMA, RdmaOpt.INLINE, 32),
        (SOL_SOCKET, socket.SO_RCVBUF, 10_000),
        (SOL_SOCKET, socket.SO_SNDBUF, 20_000),
        (IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (IPPROTO_TCP, socket.TCP_KEEPIDLE, 9),
    ):
        chosen = change(level, option, value, before=chosen)
    made = options.stream_settings(chosen)
    assert (made.send_queue, made.receive_queue) == (100, 50)
    assert (made.receive_bytes, made.is_receive_fixed, made.send_bytes) == (20_000, True, 40_000)
    assert (made.iomap_slots, made.no_delay, made.keepalive_ns) == (256, True, 9_000_000_000)


def test_a_new_stream_tunes_its_window_and_sends_no_signs_of_life() -> None:
    made = options.stream_settings(options.defaults(RsocketSettings()))
    assert not made.is_receive_fixed
    assert made.keepalive_ns is None


def test_a_window_from_a_file_is_fixed() -> None:
    made = options.stream_settings(options.defaults(RsocketSettings(mem_default=1 << 16)))
    assert (made.receive_bytes, made.is_receive_fixed) == (1 << 16, True)
