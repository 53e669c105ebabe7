"""How a call's outcome is written down: in the very words of the recording from Linux.

`E:ENOTCONN` is an OSError with that errno, `b:…` are bytes in hex, a message is a dictionary. So
a row of ours and a row of Linux are compared as they stand.
"""

import errno
import select
import socket
import struct
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address
from typing import Any

DONTWAIT = 0x40
HEX_BYTES_MAX = 64
READABLE_MS = 3000
POLL_BITS = {
    "POLLIN": 1, "POLLPRI": 2, "POLLOUT": 4, "POLLERR": 8, "POLLHUP": 16, "POLLNVAL": 32,
    "POLLRDNORM": 64, "POLLRDBAND": 128, "POLLWRNORM": 256, "POLLWRBAND": 512,
}  # fmt: skip


def outcome(call: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a call gave, or the name of its errno."""
    try:
        return rendered(call(*arguments))
    except OSError as failure:
        return "E:" + name_of(failure)


def name_of(failure: OSError) -> str:
    """Return the name of an errno."""
    return errno.errorcode.get(failure.errno or 0, str(failure.errno))


def rendered(value: Any) -> Any:
    """Return a value as JSON can hold it."""
    if isinstance(value, bytes | bytearray):
        short = len(value) <= HEX_BYTES_MAX
        return f"b:{value.hex()}" if short else f"b:{len(value)} bytes"
    if isinstance(value, list | tuple):
        return [rendered(one) for one in value]
    return value if isinstance(value, int | str | dict | None) else "ok"


def message(sock: Any, byte_count: int = 4096, flags: int = 0, room: int = 256) -> dict[str, Any]:
    """Take one message with everything that recvmsg tells."""
    payload, ancillary, result_flags, source = sock.recvmsg(byte_count, room, flags)
    return {
        "ret": len(payload),
        "data": rendered(payload),
        "cmsg": [[level, kind, data.hex()] for level, kind, data in ancillary],
        "flags": hex(result_flags),
        "addr": rendered(source),
    }


def poll_bits(sock: Any, wait_ms: int = 0) -> str:
    """Return the names of what poll tells of a descriptor."""
    poll = select.poll()
    poll.register(sock.fileno(), 0x3FF)
    return bit_names(dict(poll.poll(wait_ms)).get(sock.fileno(), 0))


def bit_names(mask: int) -> str:
    """Return the names of bits of poll."""
    return "|".join(name for name, bit in POLL_BITS.items() if mask & bit) or "0"


def in_place(sock: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function with a socket, in the process that has it."""
    run = getattr(sock, "run", None)
    return run(function, *arguments) if run else function(sock, *arguments)


def readable(sock: Any) -> bool:
    """Wait until something can be received; False after three seconds."""
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    return bool(poll.poll(READABLE_MS))


def sockaddr4(host: str, port: int, family: int = socket.AF_INET) -> bytes:
    """Return a struct sockaddr_in."""
    return struct.pack("=H", family) + struct.pack("!H", port) + IPv4Address(host).packed + bytes(8)


def sockaddr6(host: str, port: int) -> bytes:
    """Return a struct sockaddr_in6 without a scope."""
    head = struct.pack("=H", socket.AF_INET6) + struct.pack("!HI", port, 0)
    return head + IPv6Address(host).packed + bytes(4)
