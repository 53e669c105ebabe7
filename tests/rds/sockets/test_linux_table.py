"""Every row of the recording from Linux 6.1, compared with what our sockets do.

The calls are made five times: the second host in this process, with default settings and with
`strict_linux`; in another one, over TCP and over RDMA on two devices. Over nodes there is no RDMA.
A row is compared as it stands, differs on purpose (`DIFFERS`, a line of docs/differences.md), or
does not apply (`NOT_APPLICABLE`, with the reason); the three together are the whole recording.
"""

import json
import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import urds
from tests.rds.sockets.conftest import backend_with
from tests.rds.sockets.hosts import host
from tests.rds.sockets.remote import RemotePeer
from tests.rds.sockets.replay import (
    World,
    replay_bind,
    replay_connect,
    replay_options,
    replay_socket,
)
from tests.rds.sockets.replay_messages import replay_recv, replay_send
from tests.support import carriers
from tests.support.ports import sole_ipv6_host

DATA = Path(__file__).parent / "data" / "linux-6.1-api.json"
PAGE = Path(__file__).resolve().parents[3] / "docs" / "differences.md"
RECORDED: dict[str, dict[str, Any]] = json.loads(DATA.read_text())
Key = tuple[str, str]
NEAR, FAR = host(1), host(2)
# The recording's addresses and what stands in for them; see `replay`.
STAND_INS = {
    "10.77.0.99": "198.51.100.99",
    "192.0.2.1": "198.51.100.1",
    "10.77.0.2": FAR,
    "10.77.0.1": NEAR,
}
OPTIONS = "sockopt SOL_RDS"


@dataclass(frozen=True, slots=True)
class Differs:
    """A row that we answer otherwise on purpose."""

    line: str  # of docs/differences.md
    ours: Any
    strict: bool = True  # also with `strict_linux`


_FORCED_SIZES: Key = ("send", "forced sndbuf: sizes")
DIFFERS: dict[Key, Differs] = {
    ("socket", "poll unbound"): Differs("poll-wrband", "POLLOUT|POLLWRNORM|POLLWRBAND"),
    (OPTIONS, "set TRANSPORT=0 unbound"): Differs("rdma-anywhere", [None, 0, None]),
    # That bind has brought the lists of RDMA connections, as its module does for Linux.
    (OPTIONS, "RDS_INFO 10008 with NULL/0"): Differs(
        "rdma-anywhere", {"ret": 68, "errno": None, "optlen": 0}
    ),
    (OPTIONS, "RDS_INFO 10017 with NULL/0"): Differs(
        "rdma-anywhere", {"ret": 92, "errno": None, "optlen": 0}
    ),
    (OPTIONS, "CANCEL_SENT_TO 0 bytes"): Differs("cancel-all", None, strict=False),
    (OPTIONS, "get CONG_MONITOR buf 2"): Differs("monitor-mask", "E:EINVAL", strict=False),
    (OPTIONS, "get CONG_MONITOR buf 16"): Differs(
        "monitor-mask", "b:0000000000000000", strict=False
    ),
    ("socket", "getsockopt SO_SNDBUF"): Differs("buffer-sizes", 2 << 20, strict=False),
    **{
        ("socket", f"set {name}={size} -> get"): Differs(
            "buffer-sizes", [None, 2 * size], strict=False
        )
        for name in ("SO_SNDBUF", "SO_RCVBUF")
        for size in (1 << 20, 16 << 20)
    },
    ("send", "SO_SNDBUF default"): Differs("buffer-sizes", 2 << 20, strict=False),
    ("send", "SO_SNDBUF=8M: get"): Differs("buffer-sizes", 16 << 20, strict=False),
    ("send", "default sndbuf: sizes"): Differs(
        "buffer-sizes",
        {
            **{str(size): size for size in (1, 4096, 65535, 65536)},
            **{
                str(size): "E:ENOBUFS"
                for size in (106496, 106497, 212992, 212993, 229376, 425984, 425985, 1 << 20)
            },
            **{str(size): "E:EMSGSIZE" for size in ((1 << 20) + 1, 2 << 20)},
        },
        strict=False,
    ),
    _FORCED_SIZES: Differs(
        "long-messages",
        {
            **{
                str(size): [size, [size]]
                for size in (1 << 20, (1 << 20) + 1, 1052672, 2 << 20, 4 << 20)
            },
            str(8 << 20): [8 << 20, [4 << 20]],  # as much as the recording's receive asks for
            str(16 << 20): ["E:EMSGSIZE", []],
        },
        strict=False,
    ),
    ("send", "flag MSG_NOSIGNAL"): Differs("msg-nosignal", 13, strict=False),
    ("send", "no route 192.0.2.1"): Differs("peers-allowed", "E:EACCES"),
    ("recv", "poll bound idle"): Differs("poll-first", "POLLOUT|POLLWRNORM|POLLWRBAND"),
    ("recv", "poll with data"): Differs(
        "poll-wrband", "POLLIN|POLLOUT|POLLRDNORM|POLLWRNORM|POLLWRBAND"
    ),
}
# Rows that Linux answers by transport, with the answer of the other one.
# Source: linux v6.12 net/rds/rdma.c; docs/reference/rds.md 3.2, 4.3.
OVER_RDMA: dict[Key, Any] = {
    (OPTIONS, "get TRANSPORT bound"): 0,
    (OPTIONS, "GET_MR (tcp)"): "E:EINVAL",  # of no bytes
    (OPTIONS, "FREE_MR (tcp)"): None,  # cookie 0: those no longer used
    ("send", "sendmsg cmsg RDMA_MAP(3)"): "E:EINVAL",
    _FORCED_SIZES: RECORDED[_FORCED_SIZES[0]][_FORCED_SIZES[1]],  # 1 MiB at most, by either
}
# Rows of sockets of a node, which is over TCP and makes no device: differences.md, rdma-of-nodes.
OVER_NODES: dict[Key, Any] = {
    (OPTIONS, "set TRANSPORT=0 unbound"): [None, 0, "E:ENOPROTOOPT"],
    **{
        (OPTIONS, row): RECORDED[OPTIONS][row]
        for row in ("RDS_INFO 10008 with NULL/0", "RDS_INFO 10017 with NULL/0")
    },
}
# With MSG_NOSIGNAL accepted its message arrives as well, behind the first one.
_ALL_RECEIVED: Key = ("send", "all received at 4000")
_NOSIGNAL = {
    "ret": 13,
    "data": "b:" + b"fMSG_NOSIGNAL".hex(),
    "cmsg": [],
    "flags": "0x0",
    "addr": [NEAR, 4010],
}

NOT_APPLICABLE: dict[Key, str] = {
    ("socket", "socketpair"): "makes two sockets of the kernel; ours has no such function",
    ("socket", "sysctl"): "a listing of /proc/sys; the tunables have a page and tests of their own",
    ("socket", "modinfo params"): "a listing of the module's parameters",
    ("bind", "same port other netns same addr (lo)"): "a process has one network namespace",
    ("connect", "os.write"): "differences.md, descriptor: no message goes through it",
    ("connect", "os.read"): "differences.md, descriptor: no message goes through it",
    ("recv", "raw recvfrom sockaddr"): "Python gives addresses as tuples, not as C structures",
    ("recv", "FIONREAD with 3 msgs"): "differences.md, descriptor: Socket.ioctl is in `socket`",
}
# What is there but not the same from run to run: compared by its shape.
RANDOM_PORTS = {
    ("bind", "port 0"),
    ("bind", "8 ephemeral ports (kept open)"),
    ("bind", "5 ephemeral ports (closed between)"),
    (OPTIONS, "RDS_INFO 10000 with NULL/0"),
}
REPLAYS: dict[str, Callable[[World], dict[str, Any]]] = {
    "socket": replay_socket,
    OPTIONS: replay_options,
    "bind": replay_bind,
    "connect": replay_connect,
    "send": replay_send,
    "recv": replay_recv,
}
WITH_A_PEER = {"connect", "send", "recv"}
KEYS = [(group, row) for group, rows in RECORDED.items() for row in rows]
COMPARED = [key for key in KEYS if key not in NOT_APPLICABLE]


@dataclass(frozen=True, slots=True)
class Way:
    """How the calls of the recording are made."""

    carrier: str
    strict: bool = False
    two_processes: bool = False
    over_nodes: bool = carriers.IS_ATTACHED

    def __str__(self) -> str:
        return self.carrier + ", strict" * self.strict + ", two processes" * self.two_processes


ALONE = [
    Way(carrier, strict)
    for carrier, strict in (("tcp", False), ("tcp", True), ("shm0", False))
    if carrier in carriers.here()
]
WITH_ANOTHER = [
    Way("tcp"),
    Way("tcp", strict=True),
    *(Way(carrier, two_processes=True) for carrier in carriers.here()),
]
CASES = [
    pytest.param(way.carrier, key, way, id=f"{key[0]}: {key[1]} {way}")
    for key in COMPARED
    for way in (WITH_ANOTHER if key[0] in WITH_A_PEER else ALONE)
]


@pytest.fixture(autouse=True)
def fresh_addresses() -> None:
    """Keep the addresses: calls are made once for many tests."""


@cache
def replayed(group: str, way: Way) -> dict[str, Any]:
    """Make a group's calls once per way; return its rows as JSON has them."""
    settings = {"strict_linux": way.strict, "drain_s": 0, "linger_s": 0}
    if group == OPTIONS:  # it uses both transports in one process, which the Python plane can
        settings["rdma_devices"] = ["shm0"]
    with ExitStack() as stack:
        stack.enter_context(sole_ipv6_host())
        stack.enter_context(backend_with(**settings))
        new_far: Callable[[], Any] = urds.Socket
        if way.two_processes:
            new_far = stack.enter_context(RemotePeer(**settings)).socket
        rows = REPLAYS[group](World(near=NEAR, far=FAR, new_far=new_far))
    made: dict[str, Any] = json.loads(json.dumps(rows))
    return made


def expected(key: Key, way: Way) -> Any:
    """Return what our sockets shall answer."""
    if way.carrier not in {carriers.TCP, carriers.SHM} and key in OVER_RDMA:
        return OVER_RDMA[key]
    if way.over_nodes and key in OVER_NODES:
        return OVER_NODES[key]
    differs = DIFFERS.get(key)
    if differs and (differs.strict or not way.strict):
        return differs.ours
    value = RECORDED[key[0]][key[1]]
    text = json.dumps(value)
    for theirs, ours in STAND_INS.items():
        text = text.replace(f'"{theirs}"', f'"{ours}"')
    value = json.loads(text)
    if key == _ALL_RECEIVED and not way.strict:
        return [value[0], _NOSIGNAL, *value[1:]]
    return adapted(key, value)


def beside_far(number: int) -> str:
    """Return another host beside the second one."""
    return f"{FAR.rpartition('.')[0]}.{number}"


def adapted(key: Key, value: Any) -> Any:
    """Return a recorded row with the addresses that a bind of it uses here."""
    group, row = key
    if (group, row) == ("bind", "127.0.0.1:4000"):
        return [None, [FAR, 4000]]
    if (group, row) == ("bind", "127.0.0.5:4000"):
        return [None, [beside_far(5), 4000]]
    return value


def shape(key: Key, value: Any) -> Any:
    """Return a row without what chance and time put into it."""
    if key not in RANDOM_PORTS:
        return masked_times(value)
    if isinstance(value, dict):  # a longer list of counters: differences.md, info-counters
        assert value["optlen"] % 40 == 0 and value["optlen"] >= 40 * 41
        return {**value, "optlen": "a multiple of 40"}
    ports = value if isinstance(value[0], int) else [value[1][1]]
    assert len(set(ports)) == len(ports)
    assert all(2 <= port <= 65535 for port in ports)
    return [len(ports), value[0] is None]


def masked_times(value: Any) -> Any:
    """Hide the bytes of timestamps, after a look at them."""
    for one in value if isinstance(value, list) else [value]:
        for control in one.get("cmsg", ()) if isinstance(one, dict) else ():
            if control[:2] == [1, 29]:
                data = bytes.fromhex(control[2])
                seconds, microseconds = (
                    int.from_bytes(data[at : at + 8], "little") for at in (0, 8)
                )
                assert seconds > 1_600_000_000 and microseconds < 1_000_000
                control[2] = "a timeval"
    return value


@pytest.mark.parametrize(("carrier", "key", "way"), CASES, indirect=["carrier"])
def test_a_row_is_as_on_linux(key: Key, way: Way) -> None:
    group, row = key
    ours = replayed(group, way)[row]
    assert shape(key, ours) == shape(key, expected(key, way))


def test_no_row_of_the_recording_is_left_out() -> None:
    """Each is compared, with the value of Linux or ours, or it does not apply."""
    assert set(DIFFERS) <= set(KEYS)
    assert set(NOT_APPLICABLE) <= set(KEYS)
    assert not set(DIFFERS) & set(NOT_APPLICABLE)
    assert set(COMPARED) | set(NOT_APPLICABLE) == set(KEYS)
    assert all(NOT_APPLICABLE.values())


def test_a_difference_is_one() -> None:
    """A row that equals Linux's does not belong into the table."""
    for key, differs in DIFFERS.items():
        assert differs.ours != RECORDED[key[0]][key[1]]


def test_each_differing_row_names_a_line_of_the_page() -> None:
    lines = set(re.findall(r"^\| `([\w-]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert {differs.line for differs in DIFFERS.values()} <= lines
