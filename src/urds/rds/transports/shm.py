"""How two processes of one user connect through shared memory instead of TCP.

The host of an address listens at a name of its own, which holds the user, the address and the TCP
port. Names are abstract, so they are found where TCP's address is: in the same network namespace.
The connecting side sends one greeting with the memory, sealed against shrinking; the accepting side
checks it and answers; from then on the connection carries nothing but the doorbell, and its end is
the end of the process. Both sides ask the system for the user of the other process. Any mismatch
ends the connection, and the connecting side uses TCP. `runtime.shm_connect` decides when to connect
and when to use TCP; the memory is that of docs/protocol/shm-stream.md.

The higher address connects too, where it would request a call-back: what it greets with is an
*offer*. Who takes it answers with the port that its own connection would have come from.
"""

from __future__ import annotations

import os
import select
import socket
from array import array
from contextlib import suppress
from struct import Struct
from typing import Final

from urds.common.ip_sockets import name_of
from urds.common.passed_files import receive_with_files, send_with_files
from urds.common.records import record
from urds.common.types import IPAddress
from urds.rds.addresses import address_of, packed_of

_MAGIC: Final = b"urdslane"
VERSION: Final = 2
#                        magic version port ring family local scope peer scope
_GREETING: Final = Struct(">8s H H I B 16s I 16s I")
ANSWER: Final = Struct(">8s H").pack(_MAGIC, VERSION)
_TAKEN: Final = Struct(">8s H")  # the magic of an answer to an offer, and the port of its taker
_TAKEN_MAGIC: Final = b"urdstake"
assert _TAKEN.size == len(ANSWER)
_CREDENTIALS: Final = Struct("3i")  # pid, uid, gid
_BACKLOG: Final = 64
_DESCRIPTORS_MAX: Final = 4  # that are looked at; one is expected
_SO_PEERPIDFD: Final = 77  # Source: linux v6.5 include/uapi/asm-generic/socket.h
_OVERFLOW_UID: Final = 65_534  # the user that the system reports for users that it cannot name


@record
class Greeting:
    """The two ends of a connection: the addresses and port that a TCP one would have."""

    local: IPAddress  # of the connecting side
    peer: IPAddress
    source_port: int
    ring_bytes: int


def is_possible() -> bool:
    """Tell whether this user can be told from others."""
    return os.geteuid() != _OVERFLOW_UID


def listen(local: IPAddress, port: int) -> socket.socket | None:
    """Listen for shm streams to a local address; None if another process has the name.

    None too if there is no descriptor left: TCP is used then.
    """
    try:
        listener = _new_socket()
    except OSError:
        return None
    try:
        listener.bind(_name(local, port))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        return None
    return listener


def accept(listener: socket.socket) -> socket.socket | None:
    """Take the next connection; None if it is of a process that is not this user's.

    Raises OSError, BlockingIOError if none waits.
    """
    control, _ = listener.accept()
    try:
        control.setblocking(False)
        if _is_ours(control):
            return control
    except BaseException:
        control.close()
        raise
    control.close()
    return None


def connect(peer: IPAddress, port: int) -> socket.socket | None:
    """Connect to the listener of an address, if it is of this user; never waits."""
    try:
        control = _new_socket()
    except OSError:
        return None
    try:
        if control.connect_ex(_name(peer, port)) == 0 and _is_ours(control):
            return control
    except OSError:
        pass  # without credentials it is not this user's
    control.close()
    return None


def send_greeting(control: socket.socket, greeting: Greeting, memory: int) -> None:
    """Send the greeting with the memory. Raises OSError."""
    data = packed(greeting)
    if send_with_files(control, data, [memory]) != len(data):
        raise OSError("a greeting was cut")


def packed(greeting: Greeting) -> bytes:
    """Return a greeting as it is sent."""
    return _GREETING.pack(
        _MAGIC,
        VERSION,
        greeting.source_port,
        greeting.ring_bytes,
        greeting.local.version,
        *packed_of(greeting.local),
        *packed_of(greeting.peer),
    )


def taken(port: int) -> bytes:
    """Return the answer that takes an offer, with the port of its sender."""
    return _TAKEN.pack(_TAKEN_MAGIC, port)


def port_of_taker(answer: bytes) -> int | None:
    """Return the port in an answer that takes an offer; None for any other answer."""
    if len(answer) != _TAKEN.size:
        return None
    magic, port = _TAKEN.unpack(answer)
    return int(port) if magic == _TAKEN_MAGIC else None


def receive_greeting(control: socket.socket) -> tuple[Greeting, int]:
    """Return a greeting and the descriptor that came with it.

    Raises OSError, or ValueError for what is no greeting; then no descriptor is left.
    """
    raw, descriptors, _ = receive_with_files(control, _GREETING.size, _DESCRIPTORS_MAX)
    try:
        greeting = _parse(raw)
        if len(descriptors) != 1:
            raise ValueError(f"a greeting with {len(descriptors)} descriptors")
        if not is_local(greeting.local):
            raise ValueError(f"{greeting.local} is not of this host")
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    return greeting, descriptors[0]


def is_local(address: IPAddress) -> bool:
    """Tell whether an interface of this host has an address."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind(name_of(str(address), 0))
        return True
    return False


def _parse(data: bytes) -> Greeting:
    if len(data) != _GREETING.size:
        raise ValueError(f"a greeting of {len(data)} bytes")
    magic, version, source_port, ring_bytes, family, *ends = _GREETING.unpack(data)
    if (magic, version) != (_MAGIC, VERSION) or family not in (4, 6):
        raise ValueError("a greeting of another kind")
    address_bytes = 4 if family == 4 else 16
    local, peer = (address_of(ends[at][:address_bytes], ends[at + 1]) for at in (0, 2))
    return Greeting(local, peer, source_port, ring_bytes)


def _name(address: IPAddress, port: int) -> str:
    data, scope = packed_of(address)
    return f"\0urds-shm/{os.geteuid()}/{data.hex()}/{scope}/{port}"


def _new_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)


def _is_ours(control: socket.socket) -> bool:
    """Tell whether the other end is a process of this user; root is another user here.

    And of this user namespace: with the host's network two containers meet here that have the same
    user number, root's before all, and are two users. Raises OSError.
    """
    data = control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _gid = _CREDENTIALS.unpack(data)
    if uid != os.geteuid() or pid <= 0:  # 0: a process outside this pid namespace
        return False
    process = _peer_process(control)
    try:
        same = _user_namespace(str(pid)) == _user_namespace("self")
        # The number was still that process's at that time: it has not ended.
        return same and (process is None or not _has_ended(process))
    except OSError:  # it has ended, or is hidden from this user
        return False
    finally:
        if process is not None:
            os.close(process)


def _peer_process(control: socket.socket) -> int | None:
    """Return a pidfd of the other end; None before Linux 6.5, which has none to give."""
    try:
        data = control.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, array("i").itemsize)
    except OSError:
        return None
    return array("i", data)[0]


def _has_ended(process: int) -> bool:
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(0))


def _user_namespace(process: str) -> tuple[int, int]:
    found = os.stat(f"/proc/{process}/ns/user")  # noqa: PTH116 - pathlib is not worth its import
    return found.st_dev, found.st_ino
