"""The calls of the recording from Linux, made on our sockets: sending and receiving."""

from __future__ import annotations

import select
import time
from typing import Any

from tests.rds.sockets.recording import (
    DONTWAIT,
    in_place,
    message,
    outcome,
    sockaddr4,
    sockaddr6,
)
from tests.rds.sockets.replay import SOL_SOCKET, Rows, World, pause, set_receive_wait
from urds.rds.constants import SOL_RDS

SEND_FLAGS = {
    "MSG_OOB": 1, "MSG_PEEK": 2, "MSG_DONTROUTE": 4, "MSG_EOR": 0x80, "MSG_CONFIRM": 0x800,
    "MSG_NOSIGNAL": 0x4000, "MSG_MORE": 0x8000, "MSG_ZEROCOPY": 0x4000000,
}  # fmt: skip
RECEIVE_FLAGS = {
    "MSG_OOB": 1, "MSG_WAITALL": 0x100, "MSG_ERRQUEUE": 0x2000, "MSG_CMSG_CLOEXEC": 0x40000000,
    "MSG_DONTROUTE": 4, "MSG_EOR": 0x80,
}  # fmt: skip
DEFAULT_SIZES = (
    1, 4096, 65535, 65536, 106496, 106497, 212992, 212993, 229376, 425984, 425985,
    1 << 20, (1 << 20) + 1, 1 << 21,
)  # fmt: skip
FORCED_SIZES = (
    1 << 20, (1 << 20) + 1, (1 << 20) + 4096, 1 << 21, 4 << 20, 8 << 20, 16 << 20,
)  # fmt: skip
QUIET_S = 0.2
RECEIVE_BYTES = 1 << 22


def taken(sock: Any, byte_count: int = 100, flags: int = DONTWAIT) -> Any:
    """Take one message, wherever the socket is."""
    return outcome(in_place, sock, message, byte_count, flags)


def drained(sock: Any) -> list[int]:
    """Take messages until none came for a while; return their lengths."""
    lengths: list[int] = []
    quiet_at = time.monotonic() + QUIET_S
    while time.monotonic() < quiet_at:
        try:
            lengths.append(len(sock.recv(RECEIVE_BYTES, DONTWAIT)))
            quiet_at = time.monotonic() + QUIET_S
        except BlockingIOError:
            time.sleep(0.005)
    return lengths


def replay_send(world: World) -> Rows:
    """Make the calls of the group `send`."""
    near, far = world.new_near(), world.new_far()
    near.bind((world.near, 4010))
    far.bind((world.far, 4000))
    target = (world.far, 4000)
    rows: Rows = {}
    for name, payload, address in (
        ("to ANY", b"x", ("0.0.0.0", 4000)),
        ("to bcast", b"x", ("255.255.255.255", 4000)),
        ("to mcast", b"x", ("224.0.0.5", 4000)),
        ("to unbound port", b"x", (world.far, 4999)),
        ("zero length", b"", target),
        ("to self addr (own port)", b"self", (world.near, 4010)),
        ("to 127.0.0.1 from 10.77.0.1", b"x", ("127.0.0.1", 4000)),
    ):
        rows[name] = outcome(near.sendto, payload, address)
    unreachable = (world.far.rpartition(".")[0] + ".99", 4000)
    rows["no route 192.0.2.1"] = outcome(near.sendto, b"x", DONTWAIT, ("198.51.100.1", 4000))
    rows["nonexistent host"] = outcome(near.sendto, b"x", DONTWAIT, unreachable)
    for name, flag in SEND_FLAGS.items():
        payload = b"f" + name.encode()
        rows[f"flag {name}"] = outcome(near.sendto, payload, flag | DONTWAIT, target)
    rows |= _raw_sends(near, world)
    rows |= _sends_with_control(near, target)
    near.sendto(b"end", target)  # ours: over TCP it tells when all the others are there
    rows["all received at 4000"] = _received_until_end(far)
    world.wait_readable(near)
    rows["own loopback recv"] = taken(near)
    rows["SO_SNDBUF default"] = near.getsockopt(SOL_SOCKET, 7)
    sizes = {}
    for size in DEFAULT_SIZES:
        sizes[size] = outcome(near.sendto, bytes(size), DONTWAIT, target)
        pause()
    rows["default sndbuf: sizes"] = sizes
    rows["received sizes"] = drained(far)
    near.setsockopt(SOL_SOCKET, 7, 8 << 20)
    rows["SO_SNDBUF=8M: get"] = near.getsockopt(SOL_SOCKET, 7)
    forced = world.new_near()
    forced.setsockopt(SOL_SOCKET, 32, 8 << 20)
    far.setsockopt(SOL_SOCKET, 33, 8 << 20)
    forced.bind((world.near, 4011))
    rows["SO_SNDBUFFORCE=8M: get"] = forced.getsockopt(SOL_SOCKET, 7)
    rows["SO_RCVBUFFORCE=8M get"] = far.getsockopt(SOL_SOCKET, 8)
    rows["forced sndbuf: sizes"] = {
        size: [outcome(forced.sendto, bytes(size), DONTWAIT, target), drained(far)]
        for size in FORCED_SIZES
    }
    for sock in (near, far, forced):
        sock.close()
    return rows


def _raw_sends(sock: Any, world: World) -> Rows:
    def send(payload: bytes, address: bytes) -> int:
        count: int = sock.sendmsg([payload], [], 0, address)
        return count

    far = sockaddr4(world.far, 4000)
    return {
        "raw len 8 addr": outcome(send, b"x", far[:8]),
        "raw family AF_RDS": outcome(send, b"x", sockaddr4(world.far, 4000, 21)),
        "raw family UNSPEC": outcome(send, b"x", sockaddr4(world.far, 4000, 0)),
        "raw v6 dest from v4-bound": outcome(send, b"x", sockaddr6("::1", 4000)),
        "raw v4mapped dest": outcome(send, b"v4mapped", sockaddr6(f"::ffff:{world.far}", 4000)),
    }


def _sends_with_control(sock: Any, target: tuple[str, int]) -> Rows:
    def send(buffers: list[bytes], control: list[tuple[int, int, bytes]]) -> Any:
        return outcome(sock.sendmsg, buffers, control, 0, target)

    return {
        "sendmsg cmsg SOL_RDS type 99": send([b"x"], [(SOL_RDS, 99, b"")]),
        "sendmsg cmsg RDMA_ARGS": send([b"x"], [(SOL_RDS, 1, bytes(48))]),
        "sendmsg cmsg RDMA_MAP(3)": send([b"x"], [(SOL_RDS, 3, bytes(32))]),
        "sendmsg cmsg RDMA_DEST(2)": send([b"x"], [(SOL_RDS, 2, bytes(8))]),
        "sendmsg cmsg SOL_SOCKET": send([b"sk"], [(1, 1, bytes(4))]),
        "sendmsg 3 iov": send([b"a", b"bb", b"ccc"], []),
        "sendmsg no iov": send([], []),
    }


def _received_until_end(sock: Any) -> list[Any]:
    """Take messages until `end`, which is not part of the recording; then one more try."""
    got: list[Any] = []
    while len(got) < 20:
        sock.settimeout(3)
        one = taken(sock, flags=0)
        if isinstance(one, str) or one["data"] == "b:" + b"end".hex():
            break
        got.append(one)
    sock.settimeout(None)
    return [*got, taken(sock)]


def replay_recv(world: World) -> Rows:
    """Make the calls of the group `recv`."""
    near, far = world.new_near(), world.new_far()
    near.bind((world.near, 4020))
    far.bind((world.far, 4020))

    def put(*payloads: bytes) -> None:
        for payload in payloads:
            near.sendto(payload, (world.far, 4020))
        world.wait_readable(far)
        pause()

    rows: Rows = {
        "poll bound idle": world.poll(far),
        "recv DONTWAIT empty": outcome(far.recv, 10, DONTWAIT),
    }
    set_receive_wait(far, 200_000)
    rows["recv SO_RCVTIMEO 200ms"] = outcome(far.recv, 10)
    put(b"0123456789")
    rows["poll with data"] = world.poll(far)
    rows["PEEK"], rows["PEEK again"] = taken(far, 100, 2), taken(far, 4, 2)
    rows["recv after PEEK"], rows["then"] = taken(far, 100, 0), outcome(far.recv, 10, DONTWAIT)
    put(b"0123456789", b"next")
    rows["truncated recv(4)"], rows["after truncation"] = taken(far, 4, 0), taken(far, 100, 0)
    put(b"0123456789", b"next")
    rows["truncated recv(4, MSG_TRUNC)"] = [_length_of_next(far)]
    rows["after MSG_TRUNC"] = taken(far, 100, 0)
    put(b"0123456789", b"next")
    for name, size in (("recv(0)", 0), ("after recv(0)", 100), ("after that", 100)):
        rows[name] = taken(far, size)
    put(b"PK0")
    rows["PEEK size 0"], rows["after PEEK 0"] = taken(far, 0, 0x42), taken(far)
    put(b"", b"z")
    rows["zero-length message"], rows["next"] = taken(far), taken(far)
    for name, flag in RECEIVE_FLAGS.items():
        put(b"msg")
        rows[f"recv flag {name}"] = taken(far, 100, flag | DONTWAIT)
        drained(far)
    rows |= _timestamps(far, put)
    put(b"a", b"b", b"c")
    rows["order"] = [outcome(far.recv, 10, DONTWAIT) for _ in range(4)]
    put(b"q")
    rows["select readable"] = in_place(far, select_lengths)
    far.recv(10)
    rows |= _edges(far, put)
    rows["recvmmsg-like fill: default SO_RCVBUF"] = outcome(far.getsockopt, SOL_SOCKET, 8)
    near.close()
    far.close()
    return rows


def _length_of_next(sock: Any) -> int:
    return int(in_place(sock, receive_into_four))


def receive_into_four(sock: Any) -> int:
    """Take a message into four bytes and ask for its whole length."""
    count: int = sock.recv_into(bytearray(4), 4, 0x20)
    return count


def select_lengths(sock: Any) -> list[int]:
    """Return how many descriptors select finds for reading, writing, exceptions."""
    return [len(ready) for ready in select.select([sock], [sock], [sock], 0)]


def _timestamps(far: Any, put: Any) -> Rows:
    rows: Rows = {}
    for name, number, payload in (("", 29, b"ts"), ("NS", 35, b"tns")):
        far.setsockopt(SOL_SOCKET, number, 1)
        put(payload)
        rows[f"SO_TIMESTAMP{name} cmsg"] = taken(far)
        far.setsockopt(SOL_SOCKET, number, 0)
    rows["SO_TIMESTAMP set/get"] = [
        outcome(far.setsockopt, SOL_SOCKET, 29, 1),
        outcome(far.getsockopt, SOL_SOCKET, 29),
    ]
    far.setsockopt(SOL_SOCKET, 29, 0)
    latency = bytes([2, 0, 0, 0, 0])  # five bytes, as recorded: too long
    rows["RXPATH_LATENCY set"] = outcome(far.setsockopt, SOL_RDS, 10, latency)
    put(b"lat")
    rows["RXPATH cmsg"] = taken(far)
    return rows


_EPOLLS: list[select.epoll] = []


def watch_edges(sock: Any) -> None:
    """Register a socket with an edge-triggered epoll of its process."""
    _EPOLLS.append(select.epoll())
    _EPOLLS[-1].register(sock, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)


def edges(_sock: Any) -> list[int]:
    """Return the masks of the edges since the last call."""
    return [mask for _, mask in _EPOLLS[-1].poll(0)]


def _edges(far: Any, put: Any) -> Rows:
    in_place(far, watch_edges)
    rows = {"epoll ET": in_place(far, edges)}
    put(b"q")
    rows["epoll ET after data"] = in_place(far, edges)
    rows["epoll ET again"] = in_place(far, edges)
    far.recv(10)
    return rows
