"""Sockets of a program in C, `programs/calls.c`, with the calls of `urds.Socket`.

Arguments and results are changed as CPython's `socket` does it, so what a recording says in the
words of Python can be compared. One program has all sockets of a `Program`.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from socket import AddressFamily
from types import TracebackType
from typing import Any, Self

from tests.rds.sockets import recording, replay, replay_messages

AF_RDS = 21
SOL_RDS = 276
SO_LINGER, SO_RCVTIMEO = 13, 20
NAME_BYTES = 128
BLOCKED_US = 100_000
_US = 1_000_000
_POLL = struct.Struct("=ihh")
_EPOLL_EVENT = struct.Struct("=IQ" if os.uname().machine == "x86_64" else "=I4xQ")
_CONTROL = struct.Struct("=Qii")  # cmsghdr
_SET_BYTES = 128  # fd_set
_EVENTS_MAX = 4
_EVENTS = 0x80000005  # EPOLLIN | EPOLLOUT | EPOLLET
_ADD = 1
Address = tuple[Any, ...] | bytes


class Program:
    """The program, for a `with` block. It is used by one thread at a time."""

    changed_by_failure: list[bytes | int]  # of the last call that failed

    def __init__(self, path: Path, variables: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [path], env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def call(self, name: str, *arguments: int | str) -> tuple[int, list[bytes | int]]:
        """Make a call; return its result and what it changed. Raises OSError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(name, *arguments, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline().split()
        assert answer, f"the program ended with {self._process.wait()}: {name} {arguments}"
        returned, number, *told = answer
        changed = [bytes.fromhex(one[1:]) if one[0] == "b" else int(one) for one in told]
        if int(returned) == -1:
            self.changed_by_failure = changed
            raise OSError(int(number), os.strerror(int(number)), name)
        return int(returned), changed

    def socket(self, family: int = AF_RDS, kind: int = 5, protocol: int = 0) -> CalledSocket:
        """Make a socket there."""
        return CalledSocket(self, self.call("socket", family, kind, protocol)[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.stdout is not None
        self._process.stdout.close()
        code = self._process.wait(20)
        assert code == 0 or error is not None, code


class CalledSocket:
    """See `urds.Socket`; errors are those of C."""

    def __init__(self, program: Program, descriptor: int) -> None:
        self.program = program
        self._descriptor = descriptor
        self._epoll: int | None = None

    def _call(self, name: str, *arguments: int | str) -> tuple[int, list[Any]]:
        return self.program.call(name, self._descriptor, *arguments)

    def raw(self, name: str, *arguments: int | str) -> tuple[int, list[Any]]:
        """Make any call with the descriptor as its first argument."""
        return self._call(name, *arguments)

    def bind(self, address: Address) -> None:
        data = sockaddr(address)
        self._call("bind", read(data), len(data))

    def connect(self, address: Address) -> None:
        data = sockaddr(address)
        self._call("connect", read(data), len(data))

    def connect_ex(self, address: Address) -> int:
        try:
            self.connect(address)
        except OSError as failure:
            return failure.errno or 0
        return 0

    def getsockname(self) -> Any:
        return self._name("getsockname")

    def getpeername(self) -> Any:
        return self._name("getpeername")

    def _name(self, call: str) -> Any:
        _, (data, length) = self._call(call, f">{NAME_BYTES}*", room(NAME_BYTES))
        return shown(data[: integer(length)])

    def listen(self, backlog: int) -> None:
        self._call("listen", backlog)

    def accept(self) -> None:
        self._call("accept", 0, 0)

    def shutdown(self, how: int) -> None:
        self._call("shutdown", how)

    def ioctl(self, request: int, value: int) -> int:
        return integer(self._call("ioctl", request, f">{packed(value).hex()}")[1][0])

    def getsockopt(self, level: int, number: int, length: int = 0) -> int | bytes:
        _, (data, used) = self._call(
            "getsockopt", level, number, f">{length or 4}*", room(length or 4)
        )
        return data[: integer(used)] if length else integer(data)

    def setsockopt(self, level: int, number: int, value: int | bytes) -> None:
        data = packed(value) if isinstance(value, int) else value
        self._call("setsockopt", level, number, read(data), len(data))

    def settimeout(self, wait_s: float | None) -> None:
        """Set SO_RCVTIMEO, which bounds the same waits as the timeout of Python here."""
        seconds, rest = divmod(round((wait_s or 0) * _US), _US)
        self.setsockopt(1, SO_RCVTIMEO, struct.pack("=qq", seconds, rest))

    def send(self, payload: bytes, flags: int = 0) -> int:
        return self._call("send", read(payload), len(payload), flags)[0]

    def sendto(self, payload: bytes, *flags_and_address: Any) -> int:
        *flags, address = flags_and_address
        data = sockaddr(address)
        return self._call(
            "sendto", read(payload), len(payload), *(flags or [0]), read(data), len(data)
        )[0]

    def sendmsg(
        self,
        buffers: Sequence[bytes],
        control: Sequence[tuple[int, int, bytes]] = (),
        flags: int = 0,
        address: Address = b"",
    ) -> int:
        parts = [sockaddr(address), b"".join(map(control_message, control)), *buffers]
        return self._call("sendmsg", "<<" + ",".join(one.hex() for one in parts), flags)[0]

    def recv(self, byte_count: int, flags: int = 0) -> bytes:
        count, (data,) = self._call("recv", f">{byte_count}*", byte_count, flags)
        return bytes(data.ljust(min(count, byte_count), b"\0")[:count])

    def recvfrom(self, byte_count: int, flags: int = 0) -> tuple[bytes, Any]:
        payload, _, _, source = self.recvmsg(byte_count, 0, flags)
        return payload, source

    def recvmsg(self, byte_count: int, control_room: int = 0, flags: int = 0) -> Any:
        count, (name, control, told, data) = self._call(
            "recvmsg", f">>{NAME_BYTES},{control_room},{byte_count}", flags
        )
        return bytes(data[:count]), control_messages(control), told, shown(name)

    def close(self) -> None:
        """Close it as Linux does: its port is free, and what is not acknowledged is cancelled."""
        if self._descriptor >= 0:
            self.setsockopt(1, SO_LINGER, struct.pack("=ii", 1, 0))
            self._call("close")
            if self._epoll is not None:
                self.program.call("close", self._epoll)
        self._descriptor = -1

    # -- what the replay asks of the process that has the socket

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Do there what a function of the replay does here."""
        return _IN_PLACE[function](self, *arguments)

    def poll(self, wait_ms: int = 0, events: int = 0x3FF) -> int:
        """Return the bits that poll tells."""
        asked = _POLL.pack(self._descriptor, events, 0)
        _, (found,) = self.program.call("poll", f">{asked.hex()}", 1, wait_ms)
        assert isinstance(found, bytes)
        return int(_POLL.unpack(found)[2])

    def select(self) -> list[int]:
        """Return how often select finds it for reading, writing, exceptions."""
        bits = bytearray(_SET_BYTES)
        bits[self._descriptor // 8] = 1 << self._descriptor % 8
        sets = [f">{bits.hex()}"] * 3
        _, found = self.program.call("select", self._descriptor + 1, *sets, "<16*")
        return [int(any(one)) for one in found if isinstance(one, bytes)]

    def watch_edges(self) -> None:
        """Register it with an edge-triggered epoll."""
        self._epoll = self.program.call("epoll_create1", 0)[0]
        event = _EPOLL_EVENT.pack(_EVENTS, 0)
        self.program.call("epoll_ctl", self._epoll, _ADD, self._descriptor, read(event))

    def edges(self) -> list[int]:
        """Return the masks of its edges."""
        assert self._epoll is not None
        count, (found,) = self.program.call(
            "epoll_wait", self._epoll, f">{_EVENTS_MAX * _EPOLL_EVENT.size}*", _EVENTS_MAX, 0
        )
        assert isinstance(found, bytes)
        return [
            _EPOLL_EVENT.unpack_from(found, n * _EPOLL_EVENT.size)[0] for n in range(int(count))
        ]

    def blocked(self) -> str:
        """Tell whether a receive waits until a signal comes."""
        self.program.call("ualarm", BLOCKED_US, 0)
        got = recording.outcome(self.recv, 10)
        return "BLOCKS(>1s)" if got == "E:EINTR" else str(got)

    def list_without_room(self, number: int) -> dict[str, Any]:
        """Return what getsockopt says with neither room nor length."""
        try:
            returned, (length,) = self._call("getsockopt", SOL_RDS, number, 0, room(0))
        except OSError as failure:
            (length,) = self.program.changed_by_failure
            code = recording.name_of(failure)
            return {"ret": -1, "errno": code, "optlen": integer(length)}
        return {"ret": returned, "errno": None, "optlen": integer(length)}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()


_IN_PLACE: dict[Callable[..., Any], Callable[..., Any]] = {
    recording.poll_bits: lambda sock: recording.bit_names(sock.poll()),
    recording.readable: lambda sock: sock.poll(recording.READABLE_MS, 1) != 0,
    recording.message: recording.message,
    replay.blocked: CalledSocket.blocked,
    replay.list_without_room: CalledSocket.list_without_room,
    replay_messages.receive_into_four: lambda sock: sock.raw("recv", ">4*", 4, 0x20)[0],
    replay_messages.select_lengths: CalledSocket.select,
    replay_messages.watch_edges: CalledSocket.watch_edges,
    replay_messages.edges: CalledSocket.edges,
}


def read(data: bytes) -> str:
    """Return an argument that is read: long zeros are not spelled out."""
    return f"<{len(data)}*" if len(data) > 64 and not any(data) else f"<{data.hex()}"


def room(length: int) -> str:
    """Return an argument that tells how long another one is, and is told."""
    return f">{packed(length).hex()}"


def packed(value: int) -> bytes:
    """Return an int of C."""
    return struct.pack("=i", value)


def integer(data: bytes | int) -> int:
    """Return the value of an int of C, shorter ones too."""
    assert isinstance(data, bytes)
    return int.from_bytes(data, sys.byteorder, signed=True)


def sockaddr(address: Address) -> bytes:
    """Return the address of C for what Python takes."""
    if isinstance(address, bytes):
        return address
    name, port = address[:2]
    return recording.sockaddr6(name, port) if ":" in name else recording.sockaddr4(name, port)


def shown(data: bytes) -> Any:
    """Return what CPython shows for an address of C."""
    if not data:
        return None
    family = int.from_bytes(data[:2], sys.byteorder)
    if family == AddressFamily.AF_INET:
        return str(IPv4Address(data[4:8])), int.from_bytes(data[2:4], "big")
    if family == AddressFamily.AF_INET6:
        port, flow = struct.unpack_from("!HI", data, 2)
        return str(IPv6Address(data[8:24])), port, flow, int.from_bytes(data[24:28], sys.byteorder)
    return family, data[2:16]


def control_message(one: tuple[int, int, bytes]) -> bytes:
    """Return a control message of C with what aligns the next one."""
    level, kind, data = one
    head = _CONTROL.pack(_CONTROL.size + len(data), level, kind)
    return head + data.ljust(-len(data) // 8 * -8, b"\0")


def control_messages(data: bytes) -> list[tuple[int, int, bytes]]:
    """Return the control messages that came."""
    found = []
    at = 0
    while at + _CONTROL.size <= len(data):
        length, level, kind = _CONTROL.unpack_from(data, at)
        found.append((level, kind, data[at + _CONTROL.size : at + length]))
        at += -length // 8 * -8
    return found
