"""The sockets of the tools of `urds rsocket`: rsockets of chosen devices, or kernel sockets.

Both have the calls of `socket.socket`, so every tool has one set of loops and a baseline of the
same program (`-T s`). Which devices rsockets open is decided once per process, before the first
one is made; a tool that compares devices therefore starts a process for each.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from urds import verbs
from urds.cli.output import UsageError
from urds.cli.parser import option

if TYPE_CHECKING:
    from urds import rsocket

AnySocket: TypeAlias = "socket.socket | rsocket.Socket"

KERNEL: Final = "kernel"  # in place of a device: its TCP or UDP
DEVICES_VARIABLE: Final = "URDS_RSOCKET_DEVICES"
LOOPBACK: Final = "127.0.0.1"
FORMATS: Final = ("name", "ip", "ipv6", "gid")
_FAMILIES: Final = {"name": socket.AF_UNSPEC, "ip": socket.AF_INET, "ipv6": socket.AF_INET6}
_SHORT_NAMES: Final = {"shm": "shm0", "tcp": "tcp0", "udp": "udp0"}


def device_option(default: str = "") -> Any:
    """Return the field of `--device`."""
    return option(
        "--device", metavar="NAMES", default=default, help="Devices: shm, tcp, or both by a comma."
    )


def bind_option() -> Any:
    """Return the field of `-b`, the local address."""
    return option("-b", metavar="ADDRESS", help="Local address; a server's is else 127.0.0.1.")


def port_option(default: int | str) -> Any:
    """Return the field of `-p`; `default` is the port without it, for the help."""
    return option(
        "-p", metavar="PORT", low=1, high=65_535,
        help=f"Port, {default} without it; a server of its own takes a free one.",
    )  # fmt: skip


def device_names(text: str) -> tuple[str, ...]:
    """Return the devices of a comma list; `shm` is short for shm0. Raises UsageError."""
    names = tuple(_SHORT_NAMES.get(name, name) for name in text.split(",") if name)
    known = [device.name for device in verbs.get_device_list()]
    for name in names:
        if name not in known:
            raise UsageError(f"--device {name}: there are {', '.join(known)}")
    return names


def choose_devices(names: tuple[str, ...]) -> None:
    """Let the rsockets of this process, and of its children, open these devices; none: default."""
    if names:
        os.environ[DEVICES_VARIABLE] = ",".join(names)


def new_socket(
    *, is_kernel: bool, family: int = socket.AF_INET, kind: int = socket.SOCK_STREAM
) -> AnySocket:
    """Make a socket of the kernel, or an rsocket."""
    if is_kernel:
        return socket.socket(family, kind)
    from urds import rsocket

    return rsocket.Socket(family, kind)


def new_memory(byte_count: int, *, is_kernel: bool) -> memoryview:
    """Return zeroed memory to receive into: what rsockets reach without a copy, if it is theirs."""
    if is_kernel:
        return memoryview(bytearray(byte_count))
    from urds import rsocket

    return rsocket.allocate(byte_count)


@contextmanager
def listening(sock: AnySocket, address: Any, *, backlog: int = 16) -> Iterator[AnySocket]:
    """Listen at an address; port 0 takes a free one."""
    with sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(backlog)
        yield sock


# -- addresses


def resolved(
    host: str, port: int, address_format: str, *, by_verbs: bool = False
) -> tuple[int, Any]:
    """Return family and address of a host. Raises UsageError for a format it is not in, OSError."""
    if address_format == "gid":
        raise UsageError("-f gid: GIDs of software devices have no addresses (AF_IB); use ip, ipv6")
    if by_verbs:  # as rdma_getaddrinfo does
        from urds.verbs.cm_parameters import AddrInfo

        address = AddrInfo(dst=host, dst_service=port).dst
        assert address is not None, "a host was given"
        return socket.AF_INET6 if ":" in address[0] else socket.AF_INET, address
    flags = 0 if address_format == "name" else socket.AI_NUMERICHOST
    try:
        return _first_address(host, port, _FAMILIES[address_format], flags)
    except OSError:
        if flags:
            raise UsageError(f"{host} is no address of -f {address_format}") from None
        raise


def local_address(host: str, port: int, family: int | None) -> tuple[int, Any]:
    """Return family and address to bind; "" is 127.0.0.1. Raises OSError."""
    return _first_address(host or LOOPBACK, port, family or socket.AF_UNSPEC, 0)


def _first_address(host: str, port: int, family: int, flags: int) -> tuple[int, Any]:
    try:
        found = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=flags)
    except socket.gaierror as unknown:
        raise OSError(f"{host}: {unknown.strerror}") from None
    return found[0][0], found[0][4]
