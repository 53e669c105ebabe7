"""Faults below RDS, made with what TCP sockets offer any user."""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

_SO_ATTACH_FILTER = 26  # Source: linux v6.12 include/uapi/asm-generic/socket.h
_SO_DETACH_FILTER = 27
_SIOCOUTQ = 0x5411
_RETURN_CONSTANT = 0x06  # BPF_RET | BPF_K; the constant 0 drops the packet
_DROP_ALL = struct.pack("HBBI", _RETURN_CONSTANT, 0, 0, 0)


def make_deaf(stream: socket.socket) -> None:
    """Drop every segment that comes in, acknowledgements and resets too, unanswered.

    To both ends it looks as if the network had failed in this direction. Source: socket(7).
    A hardened kernel lets only root attach a filter; there the test is skipped.
    """
    program = ctypes.create_string_buffer(_DROP_ALL, len(_DROP_ALL))
    option = struct.pack("HP", 1, ctypes.addressof(program))
    try:
        stream.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, option)
    except PermissionError:
        pytest.skip("this kernel lets only root attach a socket filter")


def make_hearing(stream: socket.socket) -> None:
    """End `make_deaf`."""
    stream.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)


@contextmanager
def deaf(stream: socket.socket) -> Iterator[None]:
    """Be deaf for a while; the stream may be closed meanwhile."""
    make_deaf(stream)
    try:
        yield
    finally:
        with suppress(OSError):
            make_hearing(stream)


def reset(stream: socket.socket) -> None:
    """Close with a reset; what was received and not read is thrown away."""
    with suppress(OSError):
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.close()


def unacknowledged(stream: socket.socket) -> int:
    """Return the bytes written that the other end's TCP has not acknowledged."""
    byte_count: int = struct.unpack("i", fcntl.ioctl(stream, _SIOCOUTQ, bytes(4)))[0]
    return byte_count


@contextmanager
def silent_host(address: str, port: int) -> Iterator[None]:
    """Leave attempts to connect there without an answer: a full backlog drops what comes."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as listener, ExitStack() as ending:
        listener.bind((address, port))
        listener.listen(0)
        for _ in range(2):
            client = ending.enter_context(socket.socket(family))
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield
