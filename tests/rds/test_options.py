"""Socket options as a table: what bytes do, what is refused, what is read back."""

import errno
import struct

import pytest

from urds.rds import options
from urds.rds.constants import SOL_RDS, SOL_SOCKET, SockOpt, Transport
from urds.rds.options import Options
from urds.rds.settings import Settings

SETTINGS = Settings()
STRICT = Settings(strict_linux=True)
NEW = options.defaults(SETTINGS)


def put(
    level: int, option: int, value: int | bytes, *, at: Options = NEW, settings: Settings = SETTINGS
) -> Options:
    data = value if isinstance(value, bytes) else struct.pack("=i", value)
    return options.set_option(at, level=level, option=option, data=data, settings=settings)


def get(at: Options, level: int, option: int, *, room: int = 64) -> bytes:
    return options.get_option(at, level=level, option=option, buffer_bytes=room)


def number(at: Options, level: int, option: int) -> int:
    value: int = struct.unpack("=i", get(at, level, option))[0]
    return value


@pytest.mark.rule("rds7-buffer-defaults")
def test_a_new_socket_has_the_defaults_of_the_settings() -> None:
    settings = Settings(wmem_default=8000, rmem_default=6000)
    new = options.defaults(settings)
    assert (new.send_bytes_max, new.receive_bytes_max) == (4000, 3000)
    assert number(new, SOL_SOCKET, options.SO_SNDBUF) == 8000


@pytest.mark.rule("rds7-so-sndbuf", "rds7-so-rcvbuf", "rds7-buffer-tuning")
@pytest.mark.parametrize(
    ("asked", "usable_to_send", "usable_to_receive"),
    [
        (1, 2304, 1152),
        (4096, 4096, 4096),
        (65536, 65536, 65536),
        (212_992, 212_992, 212_992),
        (5 << 20, 5 << 20, 5 << 20),
        (65 << 20, 64 << 20, 64 << 20),
        (-1, 64 << 20, 64 << 20),  # a huge number to the kernel
        (0, 2304, 1152),
    ],
)
def test_a_buffer_is_bounded_and_reads_back_doubled(
    asked: int, usable_to_send: int, usable_to_receive: int
) -> None:
    send = put(SOL_SOCKET, options.SO_SNDBUF, asked)
    receive = put(SOL_SOCKET, options.SO_RCVBUF, asked)
    assert send.send_bytes_max == usable_to_send
    assert receive.receive_bytes_max == usable_to_receive
    assert number(send, SOL_SOCKET, options.SO_SNDBUF) == 2 * usable_to_send
    assert number(receive, SOL_SOCKET, options.SO_RCVBUF) == 2 * usable_to_receive


def test_a_forced_buffer_passes_the_maximum() -> None:
    send = put(SOL_SOCKET, options.SO_SNDBUFFORCE, 8 << 20)
    receive = put(SOL_SOCKET, options.SO_RCVBUFFORCE, 8 << 20)
    assert number(send, SOL_SOCKET, options.SO_SNDBUF) == 16 << 20
    assert number(receive, SOL_SOCKET, options.SO_RCVBUF) == 16 << 20
    smallest = put(SOL_SOCKET, options.SO_SNDBUFFORCE, -5)
    assert smallest.send_bytes_max == 2304


@pytest.mark.parametrize(
    ("level", "option", "data", "code"),
    [
        (SOL_RDS, SockOpt.RECVERR, b"\1", errno.EINVAL),
        (SOL_RDS, SockOpt.CONG_MONITOR, b"\1", errno.EINVAL),
        (SOL_RDS, SockOpt.TRANSPORT, bytes(8), errno.EINVAL),
        (SOL_RDS, SockOpt.TRANSPORT, struct.pack("=i", 1), errno.EPROTOTYPE),
        (SOL_RDS, SockOpt.TRANSPORT, struct.pack("=i", 3), errno.EINVAL),
        (SOL_RDS, SockOpt.TRANSPORT, struct.pack("=i", -1), errno.EINVAL),
        (SOL_RDS, SockOpt.MSG_RXPATH_LATENCY, bytes(5), errno.EFAULT),
        (SOL_RDS, SockOpt.MSG_RXPATH_LATENCY, bytes([4, 0, 1, 2]), errno.EFAULT),
        (SOL_RDS, SockOpt.MSG_RXPATH_LATENCY, bytes([1, 3, 0, 0]), errno.EFAULT),
        (SOL_RDS, SockOpt.TIMESTAMP_OLD, bytes(8), errno.EFAULT),
        (SOL_RDS, SockOpt.TIMESTAMP_NEW, bytes(2), errno.EFAULT),
        (SOL_RDS, 0, bytes(4), errno.ENOPROTOOPT),
        (SOL_RDS, 4, bytes(4), errno.ENOPROTOOPT),
        (SOL_RDS, 99, bytes(4), errno.ENOPROTOOPT),
        (SOL_SOCKET, options.SO_TYPE, bytes(4), errno.ENOPROTOOPT),
        (SOL_SOCKET, options.SO_SNDBUF, bytes(3), errno.EINVAL),
        (SOL_SOCKET, options.SO_LINGER, bytes(4), errno.EINVAL),
        (SOL_SOCKET, options.SO_SNDTIMEO, bytes(8), errno.EINVAL),
        (SOL_SOCKET, options.SO_RCVTIMEO, struct.pack("=qq", 0, 1_000_000), errno.EDOM),
        (SOL_SOCKET, options.SO_RCVTIMEO, struct.pack("=qq", 0, -1), errno.EDOM),
        (SOL_SOCKET, 60, struct.pack("=i", 2), errno.EINVAL),
        (6, 1, bytes(4), errno.ENOPROTOOPT),
    ],
)
def test_a_bad_value_is_refused_with_the_errno_of_linux(
    level: int, option: int, data: bytes, code: int
) -> None:
    with pytest.raises(OSError) as refused:
        put(level, option, data)
    assert refused.value.errno == code


@pytest.mark.parametrize(
    ("level", "option"),
    [
        (SOL_RDS, SockOpt.CANCEL_SENT_TO),
        (SOL_RDS, SockOpt.GET_MR),
        (SOL_RDS, SockOpt.MSG_RXPATH_LATENCY),
        (SOL_RDS, SockOpt.CONG_MONITOR),  # until a mask was installed
        (SOL_RDS, SockOpt.TIMESTAMP_OLD),
        (SOL_SOCKET, options.SO_SNDBUFFORCE),
        (SOL_RDS, 99),
        (6, 1),
    ],
)
def test_what_cannot_be_got(level: int, option: int) -> None:
    with pytest.raises(OSError) as refused:
        get(NEW, level, option)
    assert refused.value.errno == errno.ENOPROTOOPT


@pytest.mark.parametrize("option", [SockOpt.RECVERR, SockOpt.TRANSPORT])
def test_options_of_rds_need_room_for_the_whole_value(option: SockOpt) -> None:
    with pytest.raises(OSError) as refused:
        get(NEW, SOL_RDS, option, room=2)
    assert refused.value.errno == errno.EINVAL


def test_options_of_sockets_are_cut_instead() -> None:
    assert get(NEW, SOL_SOCKET, options.SO_TYPE, room=1) == b"\5"


@pytest.mark.parametrize("value", [1, 2, -1])
def test_a_switch_takes_any_number_but_zero_for_on(value: int) -> None:
    on = put(SOL_RDS, SockOpt.RECVERR, value)
    assert number(on, SOL_RDS, SockOpt.RECVERR) == 1
    assert number(put(SOL_RDS, SockOpt.RECVERR, 0, at=on), SOL_RDS, SockOpt.RECVERR) == 0


def test_a_transport_can_be_chosen_once() -> None:
    chosen = put(SOL_RDS, SockOpt.TRANSPORT, int(Transport.TCP))
    assert chosen.transport is Transport.TCP
    with pytest.raises(OSError) as refused:
        put(SOL_RDS, SockOpt.TRANSPORT, int(Transport.TCP), at=chosen)
    assert refused.value.errno == errno.EOPNOTSUPP


def test_no_transport_reads_minus_one() -> None:
    assert number(NEW, SOL_RDS, SockOpt.TRANSPORT) == -1
    over_rdma = put(SOL_RDS, SockOpt.TRANSPORT, int(Transport.IB))
    assert over_rdma.transport is Transport.IB
    assert number(over_rdma, SOL_RDS, SockOpt.TRANSPORT) == 0


def test_four_bytes_switch_the_monitor() -> None:
    on = put(SOL_RDS, SockOpt.CONG_MONITOR, 1)
    assert (on.monitor, on.monitor_mask) == (True, None)
    assert put(SOL_RDS, SockOpt.CONG_MONITOR, 0, at=on).monitor is False


@pytest.mark.rule("rds7-monitor-readable")
def test_eight_bytes_install_a_mask_that_reads_back() -> None:
    mask = struct.pack("=Q", 1 << 63 | 5)
    on = put(SOL_RDS, SockOpt.CONG_MONITOR, mask)
    assert (on.monitor, on.monitor_mask) == (True, 1 << 63 | 5)
    assert get(on, SOL_RDS, SockOpt.CONG_MONITOR) == mask
    off = put(SOL_RDS, SockOpt.CONG_MONITOR, bytes(8), at=on)
    assert off.monitor is False
    with pytest.raises(OSError) as refused:
        get(on, SOL_RDS, SockOpt.CONG_MONITOR, room=4)
    assert refused.value.errno == errno.EINVAL


def test_strictness_reads_a_mask_as_a_switch() -> None:
    on = put(SOL_RDS, SockOpt.CONG_MONITOR, struct.pack("=Q", 1), settings=STRICT)
    assert (on.monitor, on.monitor_mask) == (True, None)
    off = put(SOL_RDS, SockOpt.CONG_MONITOR, struct.pack("=Q", 1 << 40), settings=STRICT)
    assert off.monitor is False  # the first four bytes are zero


@pytest.mark.rule("rds7-timeout-zero")
def test_waiting_times_are_timevals() -> None:
    timed = put(SOL_SOCKET, options.SO_SNDTIMEO, struct.pack("=qq", 2, 500_000))
    assert timed.send_wait_ns == 2_500_000_000
    assert get(timed, SOL_SOCKET, options.SO_SNDTIMEO) == struct.pack("=qq", 2, 500_000)
    endless = put(SOL_SOCKET, options.SO_SNDTIMEO, bytes(16), at=timed)
    assert endless.send_wait_ns is None
    never = put(SOL_SOCKET, options.SO_RCVTIMEO, struct.pack("=qq", -1, 0))
    assert never.receive_wait_ns == 0


def test_linger_is_on_with_its_seconds_or_off() -> None:
    on = put(SOL_SOCKET, options.SO_LINGER, struct.pack("=ii", 1, 3))
    assert on.linger_s == 3
    assert get(on, SOL_SOCKET, options.SO_LINGER) == struct.pack("=ii", 1, 3)
    assert put(SOL_SOCKET, options.SO_LINGER, struct.pack("=ii", 0, 3), at=on).linger_s is None


def test_each_kind_of_timestamp_is_the_only_one() -> None:
    old = put(SOL_SOCKET, options.SO_TIMESTAMP, 1)
    assert number(old, SOL_SOCKET, options.SO_TIMESTAMP) == 1
    assert number(old, SOL_SOCKET, options.SO_TIMESTAMPNS) == 0
    new = put(SOL_RDS, SockOpt.TIMESTAMP_NEW, 1, at=old)
    assert number(new, SOL_SOCKET, options.SO_TIMESTAMP) == 0
    assert put(SOL_RDS, SockOpt.TIMESTAMP_OLD, 0, at=new).timestamp == 0


def test_traces_are_counted_positions() -> None:
    assert put(SOL_RDS, SockOpt.MSG_RXPATH_LATENCY, bytes([2, 0, 1, 9])).traces == (0, 1)
    assert put(SOL_RDS, SockOpt.MSG_RXPATH_LATENCY, bytes(4)).traces == ()


def test_constants_of_the_kind_of_socket() -> None:
    wanted = {options.SO_TYPE: 5, options.SO_DOMAIN: 21, options.SO_PROTOCOL: 0}
    wanted |= {options.SO_ERROR: 0, options.SO_ACCEPTCONN: 0}
    assert {option: number(NEW, SOL_SOCKET, option) for option in wanted} == wanted


@pytest.mark.rule("rds7-cancel-all", "rds7-cancel-address")
def test_a_cancel_names_its_destination_or_everything() -> None:
    data = struct.pack("=H2s4s8x", 0, (4000).to_bytes(2, "big"), bytes([10, 0, 0, 1]))
    address, port = options.cancel_target(data, SETTINGS)
    assert (str(address), port) == ("10.0.0.1", 4000)  # whatever the family says
    assert options.cancel_target(b"", SETTINGS) == (None, None)


@pytest.mark.parametrize(("data", "settings"), [(bytes(15), SETTINGS), (b"", STRICT)])
def test_a_short_cancel_is_refused(data: bytes, settings: Settings) -> None:
    with pytest.raises(OSError) as refused:
        options.cancel_target(data, settings)
    assert refused.value.errno == errno.EINVAL


def test_a_time_to_poll_busily_is_kept_as_linux_keeps_it() -> None:
    """Of a new socket it is the tunable; Source: linux v6.18, asked of SOL_SOCKET."""
    busy = options.defaults(Settings(busy_poll_us=30))
    assert number(busy, SOL_SOCKET, options.SO_BUSY_POLL) == 30
    assert number(NEW, SOL_SOCKET, options.SO_BUSY_POLL) == 0
    for asked in (50, (1 << 31) - 1, 0):
        set_to = put(SOL_SOCKET, options.SO_BUSY_POLL, asked, at=busy)
        assert number(set_to, SOL_SOCKET, options.SO_BUSY_POLL) == asked
    for wrong in (-1, b"\1\0"):
        with pytest.raises(OSError) as raised:
            put(SOL_SOCKET, options.SO_BUSY_POLL, wrong)
        assert raised.value.errno == errno.EINVAL
