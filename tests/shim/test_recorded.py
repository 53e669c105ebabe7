"""Every row of the recording from Linux 6.1, with the calls made by a program in C under the hooks.

See `tests.rds.sockets.test_linux_table`: the rows and the differences are the same, and rows that
cannot be asked of sockets of Python can be asked here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.rds.sockets import test_linux_table as table
from tests.rds.sockets.hosts import host
from tests.rds.sockets.recording import in_place, outcome, readable
from tests.rds.sockets.replay import World
from tests.shim import called
from tests.shim.conftest import Programs
from tests.support.ports import sole_ipv6_host
from urds.rds.node import commands

WAY = table.Way("tcp", over_nodes=True)
# Rows that only a program in C can ask.
OF_C = {
    ("socket", "socketpair"), ("connect", "os.write"), ("connect", "os.read"),
    ("recv", "raw recvfrom sockaddr"), ("recv", "FIONREAD with 3 msgs"),
}  # fmt: skip
COMPARED = [key for key in table.KEYS if key not in table.NOT_APPLICABLE.keys() - OF_C]
# Rows of hooks alone, with the line of docs/differences.md and the answer.
DIFFERS: dict[table.Key, tuple[str, Any]] = {
    ("socket", "socketpair"): ("socketpair", "E:EAFNOSUPPORT"),
    ("connect", "os.write"): ("write-sends", 2),
    # As Linux without a device.
    (table.OPTIONS, "set TRANSPORT=0 unbound"): ("rdma-of-nodes", ["E:ENOPROTOOPT", -1, None]),
}
# Where near and far socket are, and which calls are made there; only messages need two of them.
GROUPS = {
    "one program": table.REPLAYS.keys(),
    "two programs": table.WITH_A_PEER,
    "two nodes": table.WITH_A_PEER,
}
Rows = dict[table.Key, Any]


def more(world: World) -> Rows:
    """Make the calls of `OF_C`."""
    near, far = world.new_near(), world.new_far()
    near.bind((world.near, 4030))
    far.bind((world.far, 4030))
    rows: Rows = {("socket", "socketpair"): _pair(near)}
    near.connect((world.far, 4030))

    def put(*payloads: bytes) -> None:
        for payload in payloads:
            near.send(payload)
        assert in_place(far, readable)

    rows["connect", "os.write"] = outcome(lambda: near.raw("write", "<7772", 2)[0])
    far.recv(10)
    put(b"rd")
    rows["connect", "os.read"] = _read(far)
    put(b"raw")
    count, (data, name, _) = far.raw("recvfrom", ">10*", 10, 0, ">16*", called.room(16))
    rows["recv", "raw recvfrom sockaddr"] = [count, f"b:{data[:count].hex()}", f"b:{name.hex()}"]
    put(b"a", b"b", b"c")
    rows["recv", "FIONREAD with 3 msgs"] = outcome(far.ioctl, 0x541B, 0)
    for sock in (near, far):
        sock.close()
    return rows


def _pair(sock: called.CalledSocket) -> Any:
    return outcome(lambda: sock.program.call("socketpair", called.AF_RDS, 5, 0, ">8*"))


def _read(sock: called.CalledSocket) -> Any:
    count, (data,) = sock.raw("read", ">10*", 10)
    return [count, None, f"b:{data[:count].hex()}"]


@pytest.fixture(scope="module")
def rows_of(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Rows]:
    """Make every call of a world, once, over nodes that have the addresses to themselves."""
    path = programs.compiled("calls")

    @cache
    def rows_of(where: str) -> Rows:
        made: Rows = {}
        with ExitStack() as ending:
            ending.enter_context(sole_ipv6_host())  # until the nodes have ended

            def node() -> Programs:
                place = str(tmp_path_factory.mktemp("node") / "node.sock")
                ending.callback(_stop, place)
                return Programs(Path(place).parent, place)

            def program(at: Programs) -> called.Program:
                return ending.enter_context(called.Program(path, at.variables()))

            first = node()
            near = far = program(first)
            if where != "one program":
                far = program(first if where == "two programs" else node())
            world = World(table.NEAR, table.FAR, far.socket, near.socket)
            for group in GROUPS[where]:
                found = json.loads(json.dumps(table.REPLAYS[group](world)))
                made |= {(group, row): value for row, value in found.items()}
            return {**made, **more(world)}

    return rows_of


def _stop(place: str) -> None:
    with suppress(OSError):
        commands.stop(place)


CASES = [
    pytest.param(world, key, id=f"{world}, {key[0]}: {key[1]}")
    for world, groups in GROUPS.items()
    for key in COMPARED
    if key[0] in groups
]


@pytest.mark.parametrize(("where", "key"), CASES)
def test_a_row_is_as_on_linux(where: str, key: table.Key, rows_of: Callable[[str], Rows]) -> None:
    assert table.shape(key, rows_of(where)[key]) == table.shape(key, _expected(key))


def test_no_row_is_left_out() -> None:
    assert len(COMPARED) + len(table.NOT_APPLICABLE) - len(OF_C) == len(table.KEYS)
    assert {key for one in CASES for key in one.values if key in COMPARED} == set(COMPARED)


def test_each_differing_row_names_a_line_of_the_page() -> None:
    page = table.PAGE.read_text("utf-8")
    assert [line for line, _ in DIFFERS.values() if f"| `{line}` |" not in page] == []


def _expected(key: table.Key) -> Any:
    if key in DIFFERS:
        return DIFFERS[key][1]
    if key != ("recv", "raw recvfrom sockaddr"):
        return table.expected(key, WAY)
    near = called.sockaddr((host(1), 4030)).hex()
    count, payload, _ = table.RECORDED[key[0]][key[1]]
    return [count, payload, f"b:{near}"]
