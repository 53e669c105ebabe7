"""Parsers of what programs and configuration files give: each refuses as its docstring promises.

No unknown peer reaches these, but a program passes on what it was given itself, and a process that
ends with a traceback over a slip in a file does not show where the slip is.
"""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial

from fuzz.script import Script, step
from urds.common.errors import SettingError
from urds.rds import addresses, cmsg, options
from urds.rds.constants import SOL_RDS, Cmsg
from urds.rds.settings import CONFIG_VARIABLE, ENVIRONMENT_PREFIX, Settings, names
from urds.rsocket import addresses as rsocket_addresses
from urds.rsocket import options as rsocket_options
from urds.rsocket import settings as rsocket_settings

STEPS_MAX = 100
_CMSG_HEADER_BYTES = 16
_LIFE = rsocket_options.SocketInfo(rsocket_options.TcpState.ESTABLISHED, 4096)


def control_messages(raw: bytes) -> None:
    """Read the ancillary data of a sendmsg; lay some into a buffer of any size."""
    script = Script(raw)
    given: list[tuple[int, int, bytes]] = []
    buffer_bytes = script.number()
    while script and len(given) < STEPS_MAX:
        level, kind = (SOL_RDS, script.number()) if script.number() & 3 else (1, 29)
        given.append((level, kind, script.piece()))
    with suppress(OSError):
        request = cmsg.read(given)
        assert cmsg.rdma_bytes(given) == (request.rdma.remote_bytes if request.rdma else 0)
    laid, flags = cmsg.fit(given, buffer_bytes)
    assert sum(_CMSG_HEADER_BYTES + len(data) for _, _, data in laid) <= buffer_bytes
    assert bool(flags) == (laid != given)


def socket_options(data: bytes) -> None:
    """Set options of an RDS socket, one after the other; each that can be got is got."""
    script, settings = Script(data), _settings()
    chosen = options.defaults(settings)
    rows = [(level, option) for level, row in options.OPTIONS.items() for option in row]
    while script:
        level, option = rows[script.number() % len(rows)]
        value = script.piece()
        with suppress(OSError):
            chosen = options.set_option(
                chosen, level=level, option=option, data=value, settings=settings
            )
        with suppress(OSError):
            got = options.get_option(
                chosen, level=level, option=option, buffer_bytes=script.number()
            )
            assert isinstance(got, bytes)
        with suppress(OSError):
            address, port = options.cancel_target(value, settings)
            assert address is None or 0 <= (port or 0) < 1 << 16
    assert 0 < chosen.send_bytes_max < 1 << 31 and 0 < chosen.receive_bytes_max < 1 << 31


def rsocket_socket_options(data: bytes) -> None:
    """Set options of an rsocket, one after the other; make a connection's settings of them."""
    script = Script(data)
    chosen = rsocket_options.defaults(rsocket_settings.RsocketSettings())
    rows = [(level, option) for level, row in rsocket_options.OPTIONS.items() for option in row]
    while script:
        level, option = rows[script.number() % len(rows)]
        flags, value = script.number(), script.piece()
        with suppress(OSError):
            chosen = rsocket_options.set_option(
                chosen, level=level, option=option, data=value, has_begun=bool(flags & 1)
            )
        with suppress(OSError):
            got = rsocket_options.get_option(
                chosen, _LIFE, level=level, option=option, buffer_bytes=flags
            )
            assert len(got) <= flags
    rsocket_options.stream_settings(chosen)


def socket_address(data: bytes) -> None:
    """Read an address that a program gave: bytes of C, or a host as text, which is not asked for.

    As with `socket.socket`, ValueError is for a host with a null character, or that is no text.
    """
    script = Script(data)
    choice, port, scope = script.number(), script.number(3), script.number(4)
    call = tuple(addresses.Call)[choice % len(addresses.Call)]
    text = script.rest().decode("utf-8", "surrogateescape")
    with _without_resolver():
        for given in ((text, port), (text, port, 0, scope), data):
            with suppress(OSError, OverflowError):
                _reads(text, partial(addresses.parse, given, call))
        for family in (socket.AF_INET, socket.AF_INET6):
            with suppress(OSError, OverflowError, TypeError):
                given = (text, port) if family == socket.AF_INET else (text, port, 0, scope)
                _reads(text, partial(rsocket_addresses.parse, given, family, "bind"))


@contextmanager
def _without_resolver() -> Iterator[None]:
    """Have every look-up of a name fail at once."""

    def unresolved(*_: object, **__: object) -> None:
        raise socket.gaierror

    before = socket.getaddrinfo
    socket.getaddrinfo = unresolved  # type: ignore[assignment]  # the parsers call it by this name
    try:
        yield
    finally:
        socket.getaddrinfo = before


def _reads(text: str, parse: Callable[[], tuple[object, int]]) -> None:
    try:
        _, port = parse()
    except ValueError:
        assert "\0" in text or not text.isprintable(), f"no word of ours for {text!r}"
    else:
        assert 0 <= port < 1 << 16


def settings_sources(data: bytes) -> None:
    """Read tunables from a file and from the environment; a bad one is named."""
    script = Script(data)
    known = names()
    environ = {}
    for _ in range(script.number() % 4):
        name = known[script.number() % len(known)]
        variable = ENVIRONMENT_PREFIX + name.upper()
        environ[variable] = script.piece().decode("utf-8", "replace")
    descriptor = os.memfd_create("settings")
    try:
        os.write(descriptor, script.rest())
        environ[CONFIG_VARIABLE] = f"/proc/self/fd/{descriptor}"
        with suppress(SettingError):
            Settings.load(environ=environ).networks()
    finally:
        os.close(descriptor)


@cache
def _settings() -> Settings:
    return Settings()


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (
        control_messages, socket_options, rsocket_socket_options, socket_address, settings_sources,
    )
}  # fmt: skip

_SOCKADDR = bytes.fromhex("0200 0fa0 7f000001 0000000000000000")
_SOCKADDR6 = bytes.fromhex("0a00 0fa0 00000000 fe800000000000000000000000000001 01000000")
_TOML = b"""npaths = 4
allow = ["10.0.0.0/8", "fd00::/8"]
reconnect_max_delay_ms = 5000
drain_s = 0.5
ping_enable = false
"""


def _control(*parts: tuple[int, bytes], room: int = 255) -> bytes:
    return bytes([room]) + b"".join(
        bytes([1, kind]) + len(data).to_bytes(2, "big") + data for kind, data in parts
    )


SEEDS: dict[str, tuple[bytes, ...]] = {
    "control_messages": (
        _control((Cmsg.RDMA_ARGS, bytes(range(56)))),
        _control((Cmsg.RDMA_DEST, bytes(8)), (Cmsg.ZCOPY_COOKIE, bytes(4)), room=40),
        _control((Cmsg.ATOMIC_CSWP, bytes(72)), (Cmsg.RDMA_MAP, bytes(32))),
    ),
    "socket_options": tuple(
        b"".join(step(row, data=value) + b"\xff" for row in range(28))
        for value in (bytes([1, 0, 0, 0]), bytes(8), b"\1" + bytes(15), b"\xff" * 16, _SOCKADDR6)
    ),
    "rsocket_socket_options": tuple(
        b"".join(step(row, 0xFE, data=value) for row in range(24))
        for value in (bytes([1, 0, 0, 0]), bytes(8), bytes([0, 1, 0, 0]), b"\xff" * 8)
    ),
    "socket_address": (
        _SOCKADDR,
        _SOCKADDR6,
        bytes([2, 0, 16, 0, 0, 0, 0, 1]) + b"fe80::1%1",
        bytes([1, 0, 16, 0, 0, 0, 0, 1]) + b"127.0.0.1",
        bytes([0, 0, 16, 0, 0, 0, 0, 1]) + b"::ffff:10.0.0.1",
        bytes([0, 0, 16, 0, 0, 0, 0, 1]) + b"<broadcast>",
    ),
    "settings_sources": (
        b"\0" + _TOML,
        b"\2" + step(0, data=b"0x10") + step(27, data=b"10.0.0.0/8, any") + _TOML,
        b"\3" + step(5, data=b"1") + step(2, data=b"1e3") + step(9, data=b"on"),
        b"\0rds_tcp_sndbuf = 4096\nrdma_devices = [\"tcp0\"]\nnode = '/run/urds'\n",
    ),
}
