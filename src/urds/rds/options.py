"""Socket options: one row each. Setting and getting are look-ups, not branches.

A socket's options are one frozen record; setting one makes the next record, which the socket passes
to its mailbox. Values are bytes in host order, as in C. A row says how its bytes become the value
of a field and how the field becomes bytes again. Options that do something instead of holding a
value (cancel, memory regions) have no field; sockets do them. An option that the data plane obeys
also has a field in `plane.contract.MailboxSettings`, which `Socket._mailbox_settings` fills and
native/crates/pymodule/src/values.rs hands to Rust's.
Source: linux v6.12 net/rds/af_rds.c, net/core/sock.c; docs/reference/rds.md 3.2; golden bytes of
linux v6.1.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from urds.common.errors import ErrorReason, os_error
from urds.common.records import record, replace
from urds.common.types import IPAddress
from urds.rds.addresses import unpack_sockaddr
from urds.rds.constants import (
    AF_RDS,
    RDS_MSG_RX_DGRAM_TRACE_MAX,
    SO_ZEROCOPY,
    SOCK_SEQPACKET,
    SOL_RDS,
    SOL_SOCKET,
    SockOpt,
    Transport,
)
from urds.rds.settings import Settings

# Level SOL_SOCKET. Source: linux v6.12 include/uapi/asm-generic/socket.h.
SO_REUSEADDR: Final = 2
SO_TYPE: Final = 3
SO_ERROR: Final = 4
SO_BROADCAST: Final = 6
SO_SNDBUF: Final = 7
SO_RCVBUF: Final = 8
SO_KEEPALIVE: Final = 9
SO_LINGER: Final = 13
SO_RCVTIMEO: Final = 20
SO_SNDTIMEO: Final = 21
SO_TIMESTAMP: Final = 29
SO_ACCEPTCONN: Final = 30
SO_SNDBUFFORCE: Final = 32
SO_RCVBUFFORCE: Final = 33
SO_TIMESTAMPNS: Final = 35
SO_PROTOCOL: Final = 38
SO_DOMAIN: Final = 39
SO_BUSY_POLL: Final = 46
SO_TIMESTAMP_NEW: Final = 63
SO_TIMESTAMPNS_NEW: Final = 64
SO_RCVTIMEO_NEW: Final = 66
SO_SNDTIMEO_NEW: Final = 67

# The kernel's figure is twice what the queue holds. Source: linux v6.12 include/net/sock.h.
_SEND_BYTES_MIN: Final = 4608 // 2
_RECEIVE_BYTES_MIN: Final = 2304 // 2
_BUFFER_BYTES_MAX: Final = (1 << 31) // 2 - 1

_INT: Final = struct.Struct("=i")
_MASK: Final = struct.Struct("=Q")
_LINGER: Final = struct.Struct("=ii")
_TIMEVAL: Final = struct.Struct("=qq")
_NS: Final = 1_000_000_000
_US: Final = 1_000


@record(kw_only=True)
class Options:
    """Everything that options have set on one socket."""

    send_bytes_max: int
    receive_bytes_max: int
    send_wait_ns: int | None = None  # None waits for ever; SO_SNDTIMEO
    receive_wait_ns: int | None = None
    linger_s: int | None = None  # SO_LINGER; None is off
    report_errors: bool = False
    monitor: bool = False
    monitor_mask: int | None = None  # as installed with 8 bytes; None watches all groups
    timestamp: int = 0  # the option that asked for timestamps; 0 none
    traces: tuple[int, ...] = ()
    transport: Transport | None = None
    tos: int = 0  # type of service; SIOCRDSSETTOS
    reuse_address: bool = False
    broadcast: bool = False
    keepalive: bool = False
    zerocopy: bool = False
    busy_poll_us: int = 0


def defaults(settings: Settings) -> Options:
    """Return the options of a new socket."""
    return Options(
        send_bytes_max=settings.send_bytes_default,
        receive_bytes_max=settings.receive_bytes_default,
        busy_poll_us=settings.busy_poll_us,
    )


Write = Callable[[bytes, Options, Settings], dict[str, Any]]
Read = Callable[[Options], bytes]


@record
class Option:
    """One row: what setting changes in the record, and what getting returns."""

    write: Write | None = None  # None: cannot be set
    read: Read | None = None  # None: cannot be got
    exact: bool = False  # getting needs room for the whole value, else EINVAL


def set_option(
    options: Options, *, level: int, option: int, data: bytes, settings: Settings
) -> Options:
    """Return the options with one set. Raises OSError for a bad value or an unknown option."""
    row = _row(level, option)
    if row.write is None:
        raise os_error(ErrorReason.NO_SUCH_OPTION, f"level {level} option {option} cannot be set")
    return replace(options, **row.write(data, options, settings))


def get_option(options: Options, *, level: int, option: int, buffer_bytes: int) -> bytes:
    """Return the value of an option, cut at `buffer_bytes` where Linux cuts it."""
    row = _row(level, option)
    if row.read is None:
        raise os_error(ErrorReason.NO_SUCH_OPTION, f"level {level} option {option} cannot be got")
    data = row.read(options)
    if row.exact and buffer_bytes < len(data):
        raise os_error(ErrorReason.OPTION_SIZE, f"{len(data)} bytes needed, {buffer_bytes} given")
    return data[:buffer_bytes]


def cancel_target(data: bytes, settings: Settings) -> tuple[IPAddress | None, int | None]:
    """Return the destination whose messages RDS_CANCEL_SENT_TO cancels; (None, None) is all.

    Raises OSError for less than a sockaddr_in, unless it is empty: rds(7) promises that (see
    docs/differences.md). The family is not looked at: kernel parity.
    """
    if not data and not settings.strict_linux:
        return None, None
    if len(data) < _SOCKADDR_BYTES_MIN:
        detail = f"{len(data)} bytes, not a socket address"
        raise os_error(ErrorReason.OPTION_SIZE, detail)
    return unpack_sockaddr(data)


_SOCKADDR_BYTES_MIN: Final = 16
# What sockets do instead of a row; `rdma` reads their values.
REGION_ACTIONS: Final = frozenset({SockOpt.GET_MR, SockOpt.FREE_MR, SockOpt.GET_MR_FOR_DEST})


# -- how bytes become values


def _integer(data: bytes) -> int:
    if len(data) < _INT.size:
        raise os_error(ErrorReason.OPTION_SIZE, f"{len(data)} bytes, not {_INT.size}")
    value: int = _INT.unpack_from(data)[0]
    return value


def _exact_integer(data: bytes, reason: ErrorReason) -> int:
    if len(data) != _INT.size:
        raise os_error(reason, f"{len(data)} bytes, not {_INT.size}")
    return _integer(data)


def _switch(field: str) -> Write:
    """Any integer but 0 is on; more bytes than four are not looked at: kernel parity."""
    return lambda data, _options, _settings: {field: _integer(data) != 0}


def _monitor(data: bytes, _options: Options, settings: Settings) -> dict[str, Any]:
    """Four bytes are a switch as in Linux, eight a mask as in rds(7); docs/differences.md."""
    if len(data) == _MASK.size and not settings.strict_linux:
        mask = _MASK.unpack(data)[0]
        return {"monitor": mask != 0, "monitor_mask": mask}
    return {"monitor": _integer(data) != 0, "monitor_mask": None}


def _transport(data: bytes, options: Options, _settings: Settings) -> dict[str, Any]:
    if options.transport is not None:
        raise os_error(ErrorReason.TRANSPORT_ATTACHED, f"{options.transport.name}")
    value = _exact_integer(data, ErrorReason.OPTION_SIZE)
    if value not in (Transport.IB, Transport.GAP, Transport.TCP):
        raise os_error(ErrorReason.BAD_ARGUMENT, f"transport {value}")
    if value == Transport.GAP:
        raise os_error(
            ErrorReason.TRANSPORT_PROTOTYPE, f"transport {value} is gone; take IB or TCP"
        )
    return {"transport": Transport(value)}


def _traces(data: bytes, _options: Options, _settings: Settings) -> dict[str, Any]:
    """Read struct rds_rx_trace_so: a count, then three positions."""
    if len(data) != 1 + RDS_MSG_RX_DGRAM_TRACE_MAX:
        raise os_error(ErrorReason.OPTION_FAULT, f"{len(data)} bytes, not 4")
    count, *positions = data
    chosen = tuple(positions[:count])
    if count > RDS_MSG_RX_DGRAM_TRACE_MAX or any(
        position >= RDS_MSG_RX_DGRAM_TRACE_MAX for position in chosen
    ):
        raise os_error(ErrorReason.OPTION_FAULT, f"{count} traces at positions {positions}")
    return {"traces": chosen}


def _timestamp(option: int, *, exact: bool) -> Write:
    """Ask for timestamps; at level SOL_RDS the size is exact, another is EFAULT."""

    def write(data: bytes, _options: Options, _settings: Settings) -> dict[str, Any]:
        value = _exact_integer(data, ErrorReason.OPTION_FAULT) if exact else _integer(data)
        return {"timestamp": option if value else 0}

    return write


def _buffer(field: str, bytes_min: int, limit: str) -> Write:
    """Read the size of a buffer, which the setting `limit` bounds."""

    def write(data: bytes, _options: Options, settings: Settings) -> dict[str, Any]:
        value = _integer(data) & 0xFFFFFFFF  # a negative one is a huge one: kernel parity
        return {field: max(min(value, getattr(settings, limit)), bytes_min)}

    return write


def _buffer_force(field: str, bytes_min: int) -> Write:
    return lambda data, _options, _settings: {
        field: min(max(_integer(data), bytes_min), _BUFFER_BYTES_MAX)
    }


def _wait(field: str) -> Write:
    """Read a timeval; all zero waits for ever, a negative one never waits."""

    def write(data: bytes, _options: Options, _settings: Settings) -> dict[str, Any]:
        if len(data) < _TIMEVAL.size:
            detail = f"{len(data)} bytes, not a timeval of {_TIMEVAL.size}"
            raise os_error(ErrorReason.OPTION_SIZE, detail)
        seconds, microseconds = _TIMEVAL.unpack_from(data)
        if not 0 <= microseconds < _NS // _US:
            raise os_error(ErrorReason.OPTION_RANGE, f"{microseconds} microseconds")
        if not seconds and not microseconds:
            return {field: None}
        return {field: 0 if seconds < 0 else seconds * _NS + microseconds * _US}

    return write


def _linger(data: bytes, _options: Options, _settings: Settings) -> dict[str, Any]:
    if len(data) < _LINGER.size:
        raise os_error(ErrorReason.OPTION_SIZE, f"{len(data)} bytes, not {_LINGER.size}")
    on, seconds = _LINGER.unpack_from(data)
    return {"linger_s": max(0, seconds) if on else None}


def _zerocopy(data: bytes, _options: Options, _settings: Settings) -> dict[str, Any]:
    value = _integer(data)
    if value not in (0, 1):
        raise os_error(ErrorReason.BAD_ARGUMENT, f"SO_ZEROCOPY = {value}")
    return {"zerocopy": bool(value)}


def _busy_poll(data: bytes, _options: Options, _settings: Settings) -> dict[str, Any]:
    """Any user may ask for any time. Source: linux v6.18 net/core/sock.c; up to v6.6 only less."""
    value = _integer(data)
    if value < 0:
        raise os_error(ErrorReason.BAD_ARGUMENT, f"SO_BUSY_POLL = {value}")
    return {"busy_poll_us": value}


# -- how values become bytes


def _field(name: str) -> Read:
    return lambda options: _INT.pack(int(getattr(options, name)))


def _constant(value: int) -> Read:
    return lambda _options: _INT.pack(value)


def _doubled(name: str) -> Read:
    return lambda options: _INT.pack(2 * getattr(options, name))


def _is_timestamp(option: int) -> Read:
    return lambda options: _INT.pack(int(options.timestamp == option))


def _timeval(name: str) -> Read:
    def read(options: Options) -> bytes:
        wait_ns = getattr(options, name) or 0
        return _TIMEVAL.pack(wait_ns // _NS, wait_ns % _NS // _US)

    return read


def _read_linger(options: Options) -> bytes:
    return _LINGER.pack(options.linger_s is not None, options.linger_s or 0)


def _read_mask(options: Options) -> bytes:
    if options.monitor_mask is None:
        raise os_error(ErrorReason.NO_SUCH_OPTION, "RDS_CONG_MONITOR: no mask was installed")
    return _MASK.pack(options.monitor_mask)


def _read_transport(options: Options) -> bytes:
    number = -1 if options.transport is None else int(options.transport)
    return _INT.pack(number)


# -- the rows

_RDS: Final[dict[int, Option]] = {
    SockOpt.RECVERR: Option(_switch("report_errors"), _field("report_errors"), exact=True),
    SockOpt.CONG_MONITOR: Option(_monitor, _read_mask, exact=True),
    SockOpt.TRANSPORT: Option(_transport, _read_transport, exact=True),
    SockOpt.MSG_RXPATH_LATENCY: Option(_traces),
    SockOpt.TIMESTAMP_OLD: Option(_timestamp(SO_TIMESTAMP, exact=True)),
    SockOpt.TIMESTAMP_NEW: Option(_timestamp(SO_TIMESTAMP_NEW, exact=True)),
}

_SOCKET: Final[dict[int, Option]] = {
    SO_SNDBUF: Option(
        _buffer("send_bytes_max", _SEND_BYTES_MIN, "wmem_max"), _doubled("send_bytes_max")
    ),
    SO_RCVBUF: Option(
        _buffer("receive_bytes_max", _RECEIVE_BYTES_MIN, "rmem_max"), _doubled("receive_bytes_max")
    ),
    SO_SNDBUFFORCE: Option(_buffer_force("send_bytes_max", _SEND_BYTES_MIN)),
    SO_RCVBUFFORCE: Option(_buffer_force("receive_bytes_max", _RECEIVE_BYTES_MIN)),
    SO_SNDTIMEO: Option(_wait("send_wait_ns"), _timeval("send_wait_ns")),
    SO_RCVTIMEO: Option(_wait("receive_wait_ns"), _timeval("receive_wait_ns")),
    SO_SNDTIMEO_NEW: Option(_wait("send_wait_ns"), _timeval("send_wait_ns")),
    SO_RCVTIMEO_NEW: Option(_wait("receive_wait_ns"), _timeval("receive_wait_ns")),
    SO_LINGER: Option(_linger, _read_linger),
    SO_TIMESTAMP: Option(_timestamp(SO_TIMESTAMP, exact=False), _is_timestamp(SO_TIMESTAMP)),
    SO_TIMESTAMPNS: Option(_timestamp(SO_TIMESTAMPNS, exact=False), _is_timestamp(SO_TIMESTAMPNS)),
    SO_TIMESTAMP_NEW: Option(
        _timestamp(SO_TIMESTAMP_NEW, exact=False), _is_timestamp(SO_TIMESTAMP_NEW)
    ),
    SO_TIMESTAMPNS_NEW: Option(
        _timestamp(SO_TIMESTAMPNS_NEW, exact=False), _is_timestamp(SO_TIMESTAMPNS_NEW)
    ),
    SO_BUSY_POLL: Option(_busy_poll, _field("busy_poll_us")),
    SO_ZEROCOPY: Option(_zerocopy, _field("zerocopy")),
    SO_REUSEADDR: Option(_switch("reuse_address"), _field("reuse_address")),
    SO_BROADCAST: Option(_switch("broadcast"), _field("broadcast")),
    SO_KEEPALIVE: Option(_switch("keepalive"), _field("keepalive")),
    SO_TYPE: Option(read=_constant(SOCK_SEQPACKET)),
    SO_DOMAIN: Option(read=_constant(AF_RDS)),
    SO_PROTOCOL: Option(read=_constant(0)),
    SO_ERROR: Option(read=_constant(0)),
    SO_ACCEPTCONN: Option(read=_constant(0)),
}

OPTIONS: Final[dict[int, dict[int, Option]]] = {SOL_RDS: _RDS, SOL_SOCKET: _SOCKET}


def _row(level: int, option: int) -> Option:
    row = OPTIONS.get(level, {}).get(option)
    if row is None:
        raise os_error(ErrorReason.NO_SUCH_OPTION, f"level {level} option {option}")
    return row
