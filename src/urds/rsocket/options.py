"""Socket options: one row each. Setting and getting are look-ups, not branches.

A socket's options are one frozen record; setting one gives the next record. What a connection is
made of (queues, inline bytes, slots, route) is fixed when connecting or listening begins; an
accepted socket has its listener's. Values are bytes in host order, as in C. Whatever is not here
is refused with ENOTSUP. Source: docs/reference/rsocket.md 12 (rdma-core 691953d8,
librdmacm/rsocket.c).
"""

from __future__ import annotations

import errno
import socket
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Final

from urds.rsocket.constants import (
    INLINE_BYTES_MAX,
    IOMAP_SLOTS_MAX,
    QUEUE_MAX,
    QUEUE_MIN,
    SOL_RDMA,
    RdmaOpt,
)
from urds.rsocket.core.stream.records import StreamSettings
from urds.rsocket.errors import os_error
from urds.rsocket.settings import (
    BUFFER_BYTES_MAX,
    SEND_BYTES_MIN,
    RsocketSettings,
    keepalive_default_s,
)
from urds.rsocket.wire.stream import scale_slots, slots_of

ROUTE_BYTES_MAX: Final = 1 << 16
MAXSEG_DEFAULT: Final = 2048  # librdmacm's answer while the path is not known

_NS: Final = 1_000_000_000
_INT: Final = struct.Struct("=i")
_LINGER: Final = struct.Struct("=ii")
_TOS_MAX: Final = 255
_TIMEVAL_BYTES: Final = struct.calcsize("@ll")
# struct tcp_info as far as librdmacm fills it. Source: linux v6.12 include/uapi/linux/tcp.h.
_TCP_INFO_BYTES: Final = 104
_TCP_INFO_WINDOW: Final = struct.Struct("=I")
_TCP_INFO_WINDOW_AT: Final = 80


class TcpState(IntEnum):
    """What TCP_INFO calls the states. Source: linux v6.12 include/net/tcp_states.h."""

    ESTABLISHED = 1
    SYN_SENT = 2
    CLOSE = 7
    LISTEN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RsocketOptions:
    """Everything that options and configuration files have set on one socket."""

    send_queue: int
    receive_queue: int
    inline_bytes: int
    iomap_slots: int
    send_bytes: int
    receive_bytes: int
    is_receive_fixed: bool  # SO_RCVBUF or a file asked for a size: no tuning
    reuse_address: bool = False
    linger_s: int | None = None  # None: off
    keepalive: bool = False
    keepalive_idle_s: int | None = None  # None: the system's
    oob_inline: bool = False
    type_of_service: int = 0
    no_delay: bool = False
    v6_only: bool = False
    route: bytes = b""  # path records, kept and given back: no device here has routes


@dataclass(frozen=True, slots=True)
class SocketInfo:
    """What a reader of options wants to know of the socket itself."""

    state: TcpState
    segment_bytes: int | None  # of the device; None while there is none
    family: int = socket.AF_INET


def defaults(settings: RsocketSettings) -> RsocketOptions:
    """Return the options of a new socket."""
    return RsocketOptions(
        send_queue=settings.sqsize_default,
        receive_queue=settings.rqsize_default,
        inline_bytes=settings.inline_default,
        iomap_slots=slots_of(scale_slots(settings.iomap_size)),
        send_bytes=settings.wmem_default,
        receive_bytes=settings.mem_default or _RECEIVE_BYTES_DEFAULT,
        is_receive_fixed=settings.mem_default is not None,
    )


def stream_settings(options: RsocketOptions) -> StreamSettings:
    """Return what a connection of a socket with these options is made of."""
    return StreamSettings(
        send_queue=options.send_queue,
        receive_queue=options.receive_queue,
        receive_bytes=options.receive_bytes,
        is_receive_fixed=options.is_receive_fixed,
        send_bytes=options.send_bytes,
        iomap_slots=options.iomap_slots,
        byte_order=sys.byteorder,
        no_delay=options.no_delay,
        keepalive_ns=keepalive_ns(options),
    )


def keepalive_ns(options: RsocketOptions) -> int | None:
    """Return how long a connection may be silent before a sign of life is sent; None: for ever."""
    return _keepalive_s(options) * _NS if options.keepalive else None


Write = Callable[[bytes, RsocketOptions], dict[str, Any]]
Read = Callable[[RsocketOptions, SocketInfo], bytes]


@dataclass(frozen=True, slots=True)
class Option:
    """One row: what setting changes in the record, and what getting returns."""

    write: Write | None = None  # None: cannot be set
    read: Read | None = None  # None: cannot be got
    is_early: bool = False  # to be set before connecting or listening begins
    is_unbound: bool = False  # to be set before the socket has an address


def set_option(
    options: RsocketOptions,
    *,
    level: int,
    option: int,
    data: bytes,
    has_begun: bool,
    is_bound: bool = False,
) -> RsocketOptions:
    """Return the options with one set; `has_begun`: the socket connects, listens, or did.

    Raises OSError: ENOTSUP for an unknown option, EINVAL for a value out of its range or too late.
    """
    row = _row(level, option)
    if row.write is None:
        raise _unknown(level, option, "cannot be set")
    if row.is_early and has_begun:
        name = RdmaOpt(option).name
        raise _invalid(f"RDMA_{name} after connecting or listening began")
    if row.is_unbound and is_bound:
        raise _invalid(f"level {level:#x} option {option} of a socket that has an address")
    return replace(options, **row.write(data, options))


def get_option(
    options: RsocketOptions, info: SocketInfo, *, level: int, option: int, buffer_bytes: int
) -> bytes:
    """Return the value of an option, cut at `buffer_bytes`. Raises OSError: ENOTSUP."""
    row = _row(level, option)
    if row.read is None:
        raise _unknown(level, option, "cannot be got")
    return row.read(options, info)[:buffer_bytes]


# -- how bytes become values


def _integer(data: bytes, low: int = -(1 << 31), high: int = (1 << 31) - 1) -> int:
    """Read an integer; bytes beyond four are not looked at, as in C."""
    if len(data) < _INT.size:
        raise _invalid(f"{len(data)} bytes, not {_INT.size}")
    value: int = _INT.unpack_from(data)[0]
    if not low <= value <= high:
        raise _invalid(f"{value} is not from {low} to {high}")
    return value


def _switch(field: str) -> Write:
    """Any integer but 0 is on."""
    return lambda data, _options: {field: _integer(data) != 0}


def _within(field: str, low: int, high: int) -> Write:
    return lambda data, _options: {field: _integer(data, low, high)}


def _clipped(field: str, low: int, high: int) -> Write:
    """Bring a number into its range, as librdmacm does; no range has negative ones."""
    return lambda data, _options: {field: min(max(_integer(data, 0), low), high)}


def _slots(data: bytes, _options: RsocketOptions) -> dict[str, Any]:
    """Round to what eight bits can announce; docs/reference/rsocket.md 2.1."""
    wanted = min(_integer(data, 0), IOMAP_SLOTS_MAX)
    return {"iomap_slots": slots_of(scale_slots(wanted))}


def _route(data: bytes, _options: RsocketOptions) -> dict[str, Any]:
    if len(data) > ROUTE_BYTES_MAX:
        raise _invalid(f"route of {len(data)} bytes, limit {ROUTE_BYTES_MAX}")
    return {"route": data}


def _send_buffer(data: bytes, _options: RsocketOptions) -> dict[str, Any]:
    return {"send_bytes": max(_doubled(data), SEND_BYTES_MIN)}


def _receive_buffer(data: bytes, _options: RsocketOptions) -> dict[str, Any]:
    return {"receive_bytes": max(_doubled(data), _RECEIVE_BYTES_MIN), "is_receive_fixed": True}


def _doubled(data: bytes) -> int:
    return min(2 * _integer(data, 0), BUFFER_BYTES_MAX)


def _linger_timer(data: bytes, _options: RsocketOptions) -> dict[str, Any]:
    if len(data) < _LINGER.size:
        raise _invalid(f"{len(data)} bytes, not {_LINGER.size}")
    on, seconds = _LINGER.unpack_from(data)
    return {"linger_s": max(0, seconds) if on else None}


def _not_shared(data: bytes, _options: RsocketOptions) -> dict[str, Any]:
    if _integer(data):
        raise os_error(errno.ENOTSUP, "SO_REUSEPORT: a port has one listening rsocket")
    return {}


def _nothing(_bytes: bytes, _options: RsocketOptions) -> dict[str, Any]:
    """Accept and forget."""
    return {}


# -- how values become bytes


def _field(name: str) -> Read:
    return lambda options, _info: _INT.pack(int(getattr(options, name)))


def _constant(value: int) -> Read:
    return lambda _options, _info: _INT.pack(value)


def _keepalive_s(options: RsocketOptions) -> int:
    return options.keepalive_idle_s or keepalive_default_s()


def _read_keepalive_idle(options: RsocketOptions, _info: SocketInfo) -> bytes:
    return _INT.pack(_keepalive_s(options))


def _read_linger(options: RsocketOptions, _info: SocketInfo) -> bytes:
    return _LINGER.pack(options.linger_s is not None, options.linger_s or 0)


def _of_socket(value: Callable[[SocketInfo], int]) -> Read:
    return lambda _options, info: _INT.pack(value(info))


def _read_no_time_limit(_options: RsocketOptions, _info: SocketInfo) -> bytes:
    # As the kernel answers while nothing was set; `settimeout` does not set it there either.
    return bytes(_TIMEVAL_BYTES)


def _read_info(options: RsocketOptions, info: SocketInfo) -> bytes:
    """Return a struct tcp_info with the state and the congestion window, which is the queue."""
    data = bytearray(_TCP_INFO_BYTES)
    data[0] = info.state
    _TCP_INFO_WINDOW.pack_into(data, _TCP_INFO_WINDOW_AT, options.send_queue)
    return bytes(data)


# -- refusals


def _row(level: int, option: int) -> Option:
    row = OPTIONS.get(level, {}).get(option)
    if row is None:
        raise _unknown(level, option, "is not known")
    return row


def _unknown(level: int, option: int, words: str) -> OSError:
    return os_error(errno.ENOTSUP, f"level {level:#x} option {option} {words}")


def _invalid(detail: str) -> OSError:
    return os_error(errno.EINVAL, detail)


# -- the rows

_RECEIVE_BYTES_DEFAULT: Final = 1 << 17
_RECEIVE_BYTES_MIN: Final = 2048

_RDMA: Final[dict[int, Option]] = {
    RdmaOpt.SQSIZE: Option(
        _clipped("send_queue", QUEUE_MIN, QUEUE_MAX),
        _field("send_queue"),
        is_early=True,
    ),
    RdmaOpt.RQSIZE: Option(
        _clipped("receive_queue", QUEUE_MIN, QUEUE_MAX),
        _field("receive_queue"),
        is_early=True,
    ),
    RdmaOpt.INLINE: Option(
        _clipped("inline_bytes", 0, INLINE_BYTES_MAX),
        _field("inline_bytes"),
        is_early=True,
    ),
    RdmaOpt.IOMAPSIZE: Option(_slots, _field("iomap_slots"), is_early=True),
    RdmaOpt.ROUTE: Option(_route, lambda options, _info: options.route, is_early=True),
}
_SOCKET: Final[dict[int, Option]] = {
    socket.SO_REUSEADDR: Option(_switch("reuse_address"), _field("reuse_address")),
    socket.SO_RCVBUF: Option(_receive_buffer, _field("receive_bytes")),
    socket.SO_SNDBUF: Option(_send_buffer, _field("send_bytes")),
    socket.SO_LINGER: Option(_linger_timer, _read_linger),
    socket.SO_KEEPALIVE: Option(_switch("keepalive"), _field("keepalive")),
    socket.SO_OOBINLINE: Option(_switch("oob_inline"), _field("oob_inline")),
    socket.SO_BROADCAST: Option(read=_constant(0)),
    socket.SO_TYPE: Option(read=_constant(socket.SOCK_STREAM)),
    socket.SO_DOMAIN: Option(read=_of_socket(lambda info: info.family)),
    socket.SO_PROTOCOL: Option(read=_constant(socket.IPPROTO_TCP)),
    socket.SO_ACCEPTCONN: Option(read=_of_socket(lambda info: info.state is TcpState.LISTEN)),
    socket.SO_REUSEPORT: Option(_not_shared, _constant(0)),
    socket.SO_RCVTIMEO: Option(read=_read_no_time_limit),
    socket.SO_SNDTIMEO: Option(read=_read_no_time_limit),
}
_IP: Final[dict[int, Option]] = {
    socket.IP_TOS: Option(_within("type_of_service", 0, _TOS_MAX), _field("type_of_service")),
}
_TCP: Final[dict[int, Option]] = {
    socket.TCP_NODELAY: Option(_switch("no_delay"), _field("no_delay")),
    socket.TCP_MAXSEG: Option(
        _nothing, _of_socket(lambda info: info.segment_bytes or MAXSEG_DEFAULT)
    ),
    socket.TCP_CONGESTION: Option(_nothing, _constant(1)),
    socket.TCP_KEEPIDLE: Option(
        _within("keepalive_idle_s", 1, (1 << 31) - 1), _read_keepalive_idle
    ),
    socket.TCP_KEEPCNT: Option(_nothing, _constant(1)),
    socket.TCP_KEEPINTVL: Option(_nothing, _constant(1)),
    socket.TCP_INFO: Option(read=_read_info),
}
_IPV6: Final[dict[int, Option]] = {
    socket.IPV6_V6ONLY: Option(_switch("v6_only"), _field("v6_only"), is_unbound=True),
}

OPTIONS: Final[dict[int, dict[int, Option]]] = {
    SOL_RDMA: _RDMA,
    socket.SOL_SOCKET: _SOCKET,
    socket.IPPROTO_IP: _IP,
    socket.IPPROTO_TCP: _TCP,
    socket.IPPROTO_IPV6: _IPV6,
}
