"""Which local address a process takes, with a node and without one.

Without a node an address belongs to one process. A process that needs a loopback address and finds
it taken takes one of 127.0.0.0/8 of its own; any other address it gets as it is or not at all,
for what it would announce in its place cannot be known here.
"""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Iterator
from functools import lru_cache
from ipaddress import IPv4Address, ip_address
from socket import SO_RCVBUF, SO_SNDBUF, SOL_SOCKET
from typing import Final

from urds.common.errors import ErrorReason
from urds.rds.runtime.process import current
from urds.rds.socket import Socket

_ATTEMPTS: Final = 32  # at an address of 127.0.0.0/8 that no other process has
_SEND_BUFFER_BYTES: Final = 16 << 20
_RECEIVE_BUFFER_BYTES: Final = 32 << 20  # sessions bound what arrives; a port that is congested
# holds up all of them
_ADVICE: Final = (
    "without a node an address belongs to one process: start `urds node`, which shares addresses,"
    " or give this process an address of its own"
)
_lock = threading.Lock()
_own: list[str] = []  # loopback addresses that this process had; tried before others


def open_listening(host: str, port: int) -> Socket:
    """Return a socket bound to `host`, or to an address in its place; port 0 chooses one.

    Another address is taken for a loopback address of IPv4 with port 0 alone. Raises OSError, of
    EADDRINUSE with what to do.
    """
    try:
        return _bind(host, port)
    except OSError as refused:
        if not _is_held(refused, port):
            raise
        if port or not _is_loopback4(host):
            raise _explained(refused, host) from refused
    return _bind_loopback(host)


def open_towards(peer: str) -> Socket:
    """Return a socket from which the host `peer` can be reached, at a port chosen here.

    Raises OSError as `open_listening`.
    """
    host = source_towards(peer)
    if _is_loopback4(host):
        return _bind_loopback(peer)
    try:
        return _bind(host, 0)
    except OSError as refused:
        if not _is_held(refused, 0):
            raise
        if host == peer and ip_address(host).version == 4:  # another process of this host
            return _bind_loopback(peer)
        raise _explained(refused, host) from refused


def source_towards(peer: str) -> str:
    """Return the local address that the routes name for a peer; a loopback address is its own."""
    if _is_loopback4(peer):
        return peer
    from distributed.utils import get_ip, get_ipv6

    found = get_ip(peer) if ip_address(peer).version == 4 else get_ipv6(peer)
    return str(found)


def are_loopback(host: str, other: str) -> bool:
    """Tell whether both are loopback addresses of IPv4: each reaches the other."""
    return _is_loopback4(host) and _is_loopback4(other)


def is_shared() -> bool:
    """Tell whether a node shares addresses between processes."""
    from urds.rds.runtime.inprocess import InProcess

    return not isinstance(current(), InProcess)


def _bind_loopback(peer: str) -> Socket:
    refused: OSError | None = None
    for host in _loopback_addresses():
        try:
            return _bind(host, 0)
        except OSError as problem:
            if not _is_held(problem, 0):
                raise
            refused = problem
    assert refused is not None
    raise _explained(refused, f"every address tried of 127.0.0.0/8, towards {peer},") from refused


def _loopback_addresses() -> Iterator[str]:
    with _lock:
        own = tuple(_own)
    yield from own
    if is_shared():
        yield "127.0.0.1"
    for _ in range(_ATTEMPTS):
        low, high = IPv4Address("127.1.0.0"), IPv4Address("127.255.255.254")
        yield str(IPv4Address(random.randint(int(low), int(high))))


def _bind(host: str, port: int) -> Socket:
    sock = Socket()
    try:
        sock.setsockopt(SOL_SOCKET, SO_SNDBUF, _SEND_BUFFER_BYTES)
        sock.setsockopt(SOL_SOCKET, SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
        sock.bind((host, port))
    except BaseException:
        sock.close()
        raise
    if _is_loopback4(host):
        with _lock:
            if host not in _own:
                _own.append(host)
    return sock


def _is_held(refused: OSError, port: int) -> bool:
    """Tell whether another process has the address; a port in use is another matter.

    A node says of both that the address is in use: with port 0 it is the former.
    """
    reason = getattr(refused, "reason", None)
    if refused.errno != errno.EADDRINUSE or reason is ErrorReason.PORTS_EXHAUSTED:
        return False
    return reason is ErrorReason.ADDRESS_HELD_BY_PROCESS or not port


@lru_cache(maxsize=1024)  # each comm asks for both ends
def _is_loopback4(host: str) -> bool:
    address = ip_address(host)
    return address.version == 4 and address.is_loopback


def _explained(refused: OSError, host: str) -> OSError:
    return OSError(errno.EADDRINUSE, f"{host} is held by another process; {_ADVICE} ({refused})")
