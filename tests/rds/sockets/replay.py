"""The calls of the recording from Linux, made on our sockets: socket, options, bind, connect.

Each function makes the calls of one group in the order of the recording and returns a dictionary
of the same keys. Hosts of the recording are hosts of 127/8; where it needs an address that is not
local, one of 198.51.100.0/24 stands in, to which nothing is ever sent.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import urds
from tests.rds.sockets.recording import (
    DONTWAIT,
    in_place,
    outcome,
    poll_bits,
    readable,
    sockaddr4,
    sockaddr6,
)
from tests.support import carriers
from urds.rds.constants import SOL_RDS
from urds.rds.runtime import info

Rows = dict[str, Any]
SOL_SOCKET = 1
OPTION_NUMBERS = {
    "CANCEL_SENT_TO": 1, "GET_MR": 2, "FREE_MR": 3, "RECVERR": 5, "CONG_MONITOR": 6,
    "GET_MR_FOR_DEST": 7, "TRANSPORT": 8, "SO_RXPATH_LATENCY": 10,
}  # fmt: skip
SOCKET_OPTIONS = {
    "SO_TYPE": 3, "SO_DOMAIN": 39, "SO_PROTOCOL": 38, "SO_ERROR": 4, "SO_ACCEPTCONN": 30,
    "SO_SNDBUF": 7, "SO_RCVBUF": 8, "SO_REUSEADDR": 2, "SO_BROADCAST": 6,
}  # fmt: skip
NOT_LOCAL = ("198.51.100.99", "198.51.100.2", "198.51.100.255")
BLOCKED_S = 0.1


@dataclass(frozen=True, slots=True)
class World:
    """Two hosts, and what makes a socket for each, here or in another process."""

    near: str
    far: str
    new_far: Callable[[], Any]
    new_near: Callable[..., Any] = urds.Socket

    def poll(self, sock: Any) -> str:
        """Return the poll bits of a socket, wherever it is."""
        return str(in_place(sock, poll_bits))

    def wait_readable(self, sock: Any) -> None:
        """Wait until a message is there."""
        assert in_place(sock, readable), "nothing came"


def replay_socket(world: World) -> Rows:
    """Make the calls of the group `socket`."""
    rows: Rows = {}
    kinds = (("STREAM", 1), ("DGRAM", 2), ("RAW", 3), ("RDM", 4), ("SEQPACKET", 5))
    for name, kind in kinds:
        rows[f"SOCK_{name}"] = _made(world, kind, 0)
    for protocol in (1, 17):
        rows[f"SEQPACKET proto={protocol}"] = _made(world, 5, protocol)
    with world.new_near() as sock:
        rows["getsockname unbound raw"] = outcome(sock.getsockname)
        rows["getpeername unbound"] = outcome(sock.getpeername)
        rows["poll unbound"] = world.poll(sock)
        rows["recv nonblock unbound"] = outcome(sock.recv, 10, DONTWAIT)
        with world.new_near() as other:
            rows["recv block unbound"] = in_place(other, blocked)
        rows["send() unbound unconnected"] = outcome(sock.send, b"x")
        rows["sendto unbound"] = outcome(sock.sendto, b"x", ("127.0.0.1", 4000))
        rows["listen"], rows["accept"] = outcome(sock.listen, 5), outcome(sock.accept)
        for name, how in (("RD", 0), ("WR", 1), ("RDWR", 2)):
            rows[f"shutdown {name}"] = outcome(sock.shutdown, how)
        for name, number in SOCKET_OPTIONS.items():
            rows[f"getsockopt {name}"] = outcome(sock.getsockopt, SOL_SOCKET, number)
        for value in (1, 4096, 65536, 1 << 20, 1 << 24):
            for name in ("SO_SNDBUF", "SO_RCVBUF"):
                number = SOCKET_OPTIONS[name]
                rows[f"set {name}={value} -> get"] = [
                    outcome(sock.setsockopt, SOL_SOCKET, number, value),
                    outcome(sock.getsockopt, SOL_SOCKET, number),
                ]
        for name, request, value in (
            ("FIONREAD", 0x541B, 0),
            ("SIOCOUTQ", 0x5411, 0),
            ("FIONBIO", 0x5421, 0),
            ("SIOCRDSGETTOS(0x89e1)", 0x89E1, 0),
            ("SIOCRDSSETTOS(0x89e0)=5", 0x89E0, 5),
            ("SIOCRDSGETTOS after", 0x89E1, 0),
            ("SIOCRDSSETTOS again =6", 0x89E0, 6),
        ):
            rows[f"ioctl {name}"] = outcome(sock.ioctl, request, value)
    return rows


def _made(world: World, kind: int, protocol: int) -> Any:
    def make() -> str:
        world.new_near(21, kind, protocol).close()
        return "ok"

    return outcome(make)


def blocked(sock: Any) -> str:
    """Tell whether a receive of an unbound socket waits; a close lets it go."""
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(outcome(sock.recv, 10)), daemon=True)
    thread.start()
    thread.join(BLOCKED_S)
    waits = thread.is_alive()
    sock.close()
    thread.join()
    return "BLOCKS(>1s)" if waits and got == ["E:EBADF"] else str(got)


def replay_options(world: World) -> Rows:
    """Make the calls of the group `sockopt SOL_RDS`."""
    rows: Rows = {}
    with world.new_near() as sock:
        for name, number in OPTION_NUMBERS.items():
            rows[f"get {name} unbound"] = outcome(sock.getsockopt, SOL_RDS, number)
        for name in ("RECVERR", "CONG_MONITOR"):
            number = OPTION_NUMBERS[name]
            for value in (1, 2, 0, -1):
                rows[f"set {name}={value} -> get"] = _set_and_get(sock, number, value)
            rows[f"set {name} 1-byte"] = outcome(sock.setsockopt, SOL_RDS, number, b"\1")
            rows[f"set {name} 8-byte"] = outcome(sock.setsockopt, SOL_RDS, number, bytes(8))
            rows[f"get {name} buf 2"] = outcome(sock.getsockopt, SOL_RDS, number, 2)
            rows[f"get {name} buf 16"] = outcome(sock.getsockopt, SOL_RDS, number, 16)
        rows["set option 0"] = outcome(sock.setsockopt, SOL_RDS, 0, 1)
        rows["set option 99"] = outcome(sock.setsockopt, SOL_RDS, 99, 1)
        rows["get option 99"] = outcome(sock.getsockopt, SOL_RDS, 99)
        rows["set level IPPROTO_TCP nodelay"] = outcome(sock.setsockopt, 6, 1, 1)
        rows["get level IPPROTO_TCP"] = outcome(sock.getsockopt, 6, 1)
        far = sockaddr4(world.far, 4000)
        rows["CANCEL_SENT_TO unbound"] = outcome(sock.setsockopt, SOL_RDS, 1, far)
        for value in (0, 1, 2, 3, 77):
            with world.new_near() as other:
                rows[f"set TRANSPORT={value} unbound"] = [
                    *_set_and_get(other, 8, value),
                    outcome(other.bind, (world.near, 0)),
                ]
        with world.new_near() as other:
            twice = [outcome(other.setsockopt, SOL_RDS, 8, 2) for _ in range(2)]
            rows["TRANSPORT=TCP then TCP again"] = twice
        sock.bind((world.near, 4100))
        rows["get TRANSPORT bound"] = outcome(sock.getsockopt, SOL_RDS, 8)
        rows["set TRANSPORT bound"] = outcome(sock.setsockopt, SOL_RDS, 8, 2)
        rows |= _cancels(sock, world)
        rows["GET_MR (tcp)"] = outcome(sock.setsockopt, SOL_RDS, 2, bytes(32))
        rows["FREE_MR (tcp)"] = outcome(sock.setsockopt, SOL_RDS, 3, bytes(16))
        rows["SO_TIMESTAMP"] = [
            outcome(sock.setsockopt, SOL_SOCKET, 29, 1),
            outcome(sock.getsockopt, SOL_SOCKET, 29),
        ]
        for number in range(10000, 10018):
            rows[f"RDS_INFO {number} with NULL/0"] = in_place(sock, list_without_room, number)
    return rows


def _set_and_get(sock: Any, number: int, value: int) -> list[Any]:
    return [
        outcome(sock.setsockopt, SOL_RDS, number, value),
        outcome(sock.getsockopt, SOL_RDS, number),
    ]


def _cancels(sock: Any, world: World) -> Rows:
    far = sockaddr4(world.far, 1)
    values = {
        "0 bytes": b"",
        "4 bytes": bytes(4),
        "15 bytes": far[:15],
        "16 bytes": far,
        "17 bytes": far + b"\0",
        "28 v6": sockaddr6("::1", 1),
        "family 0": sockaddr4(world.far, 1, 0),
        "ANY addr": sockaddr4("0.0.0.0", 1),
        "all zero": sockaddr4("0.0.0.0", 0),
        "port 0": sockaddr4(world.far, 0),
    }
    return {
        f"CANCEL_SENT_TO {name}": outcome(sock.setsockopt, SOL_RDS, 1, value)
        for name, value in values.items()
    }


def list_without_room(sock: Any, number: int) -> Rows:
    """Return what getsockopt(…, NULL, &zero) says in C: return value, errno, length needed."""
    try:
        data = sock.getsockopt(SOL_RDS, number, 1 << 20)
    except OSError:
        return {"ret": -1, "errno": outcome(sock.getsockopt, SOL_RDS, number, 1)[2:], "optlen": 0}
    if not data:
        element_bytes = info.element_bytes(number, rdma_in_use=True)  # there is such a list
        return {"ret": element_bytes, "errno": None, "optlen": 0}
    refused = outcome(sock.getsockopt, SOL_RDS, number, len(data) - 1)
    return {"ret": -1, "errno": refused[2:], "optlen": len(data)}


def replay_bind(world: World) -> Rows:
    """Make the calls of the group `bind`."""
    rows: Rows = {}
    nonlocal_address, foreign, broadcast = NOT_LOCAL
    for name, address in (
        ("port 0", (world.near, 0)),
        ("ANY port 0", ("0.0.0.0", 0)),
        ("ANY port 4000", ("0.0.0.0", 4000)),
        ("nonlocal", (nonlocal_address, 4000)),
        ("peer addr", (foreign, 4000)),
        ("127.0.0.1:4000", (world.far, 4000)),
        ("127.0.0.5:4000", (world.far.rpartition(".")[0] + ".5", 4000)),
        ("multicast", ("224.1.1.1", 4000)),
        ("broadcast", ("255.255.255.255", 4000)),
        ("subnet bcast", (broadcast, 4000)),
        ("port 1", (world.near, 1)),
        ("port 16385", (world.near, 16385)),
        ("port 65535", (world.near, 65535)),
    ):
        with world.new_near() as sock:
            rows[name] = [outcome(sock.bind, address), outcome(sock.getsockname)]
    rows |= _rebinds(world)
    rows |= _raw_binds(world)
    kept = [world.new_near() for _ in range(8)]
    for sock in kept:
        sock.bind((world.near, 0))
    rows["8 ephemeral ports (kept open)"] = [sock.getsockname()[1] for sock in kept]
    for sock in kept:
        sock.close()
    ports = []
    for _ in range(5):
        with world.new_near() as sock:
            sock.bind((world.near, 0))
            ports.append(sock.getsockname()[1])
    rows["5 ephemeral ports (closed between)"] = ports
    return rows


def _rebinds(world: World) -> Rows:
    first, second, third, fourth = (world.new_near() for _ in range(4))
    rows = {
        "first 4001": outcome(first.bind, (world.near, 4001)),
        "second same addr:port": outcome(second.bind, (world.near, 4001)),
        "second after failure other port": outcome(second.bind, (world.near, 4002)),
        "rebind bound socket same": outcome(first.bind, (world.near, 4001)),
        "rebind bound socket other port": outcome(first.bind, (world.near, 4003)),
        "other addr same port": outcome(third.bind, (world.far, 4001)),
    }
    fourth.setsockopt(SOL_SOCKET, 2, 1)
    rows["same addr:port with SO_REUSEADDR"] = outcome(fourth.bind, (world.near, 4001))
    first.close()
    with world.new_near() as again:
        rows["4001 again right after close"] = outcome(again.bind, (world.near, 4001))
    for sock in (second, third, fourth):
        sock.close()
    return rows


def _raw_binds(world: World) -> Rows:
    near = sockaddr4(world.near, 4005)
    values = {
        "family AF_UNSPEC": sockaddr4(world.near, 4005, 0),
        "family AF_RDS": sockaddr4(world.near, 4005, 21),
        "len 8": near[:8],
        "len 15": near[:15],
        "len 2": near[:2],
        "len 0": b"",
        "len 1": near[:1],
        "len 24 v4": near + bytes(8),
        "v6 fd77::1": sockaddr6("::1", 4006),
        "v6 ::1": sockaddr6("::1", 4005),
        "v6 any": sockaddr6("::", 4005),
        "v6 v4mapped": sockaddr6(f"::ffff:{world.near}", 4005),
        "v6 len 16": sockaddr6("::1", 4005)[:16],
        "v6 nonlocal": sockaddr6("2001:db8::99", 4005),
    }
    rows = {}
    for name, value in values.items():
        with world.new_near() as sock:
            rows[name] = outcome(raw, sock.bind, value)
    return rows


def raw(call: Callable[[bytes], None], address: bytes) -> int:
    """Make a call with a C address; return 0 as C does."""
    call(address)
    return 0


def replay_connect(world: World) -> Rows:
    """Make the calls of the group `connect`."""
    rows: Rows = {}
    anchor = world.new_far()
    anchor.bind((world.far, 9))  # the second host is there, with port 4000 unbound
    sock = world.new_near()
    rows["connect unbound"] = [
        outcome(sock.connect, (world.far, 4000)),
        outcome(sock.getpeername),
        outcome(sock.getsockname),
    ]
    rows["send after connect but unbound"] = outcome(sock.send, b"hi")
    bound = outcome(sock.bind, (world.near, 4010))
    rows["bind after connect"] = [bound, outcome(sock.getsockname)]
    rows["send after bind"] = outcome(sock.send, b"hi")
    sock.sendto(b"behind it", (world.far, 9))
    world.wait_readable(anchor)
    for name, address in (
        ("ANY", ("0.0.0.0", 4000)),
        ("port 0", (world.far, 0)),
        ("bcast", ("255.255.255.255", 1)),
        ("mcast", ("224.1.1.1", 1)),
        ("nonexistent", ("198.51.100.99", 1)),
        ("no route", ("198.51.100.1", 1)),
        ("127.0.0.1 from 10.77", ("127.0.0.1", 1)),
        ("self", (world.near, 4010)),
        ("again B", (world.far, 4000)),
    ):
        rows[f"connect {name}"] = [outcome(sock.connect, address), outcome(sock.getpeername)]
    unspecified = outcome(raw, sock.connect, sockaddr4("0.0.0.0", 0, 0))
    rows["AF_UNSPEC disconnect"] = [unspecified, outcome(sock.getpeername)]
    rows["len 8"] = outcome(raw, sock.connect, sockaddr4(world.far, 4000)[:8])
    rows["v6 dest on v4-bound"] = outcome(raw, sock.connect, sockaddr6("::1", 4000))
    mapped = outcome(raw, sock.connect, sockaddr6(f"::ffff:{world.far}", 4000))
    rows["v4mapped"] = [mapped, outcome(sock.getpeername)]
    twice = [sock.connect_ex((world.far, port)) for port in (4000, 4001)]
    rows["connect_ex EISCONN? twice"] = twice
    first, second = world.new_far(), world.new_far()
    first.bind((world.far, 4000))
    second.bind((world.far, 4001))
    sock.connect((world.far, 4000))
    rows["send()"] = outcome(sock.send, b"connected")
    rows["sendto other dest while connected"] = outcome(sock.sendto, b"other", (world.far, 4001))
    world.wait_readable(second)
    rows["recv 4000"] = [outcome(first.recvfrom, 100, DONTWAIT) for _ in range(3)]
    rows["recv 4001"] = outcome(second.recvfrom, 100, DONTWAIT)
    second.sendto(b"from 4001", (world.near, 4010))
    rows["connected socket receives from non-peer"] = outcome(sock.recvfrom, 100)
    for one in (sock, first, second, anchor):
        one.close()
    return rows


def set_receive_wait(sock: Any, microseconds: int) -> None:
    """Set SO_RCVTIMEO."""
    sock.setsockopt(SOL_SOCKET, 20, struct.pack("=qq", 0, microseconds))


def pause() -> None:
    """Let the progress thread find congestion and tell the peer; see `rds.plane.python.inbox`.

    Over RDMA a thread more has to run at each end before the peer knows.
    """
    time.sleep(0.15 if carriers.is_rdma() else 0.05)
