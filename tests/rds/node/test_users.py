"""Users of a node: quotas, ports and their grace, addresses; two users where there is root."""

import errno
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from ipaddress import IPv4Address
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.rds.node.conftest import ROOT, WAIT_S, Node, StartNode, environment, wait_until
from urds.rds.node.settings import NodeSettings
from urds.rds.node.users import Ports, Users

A, B = IPv4Address("10.0.0.1"), IPv4Address("10.0.0.2")
FIRST, SECOND = 12_001, 12_002
needs_root = pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("setpriv") is None, reason="two users need root and setpriv"
)

ASK = """
import json, os, sys
from ipaddress import ip_address
from urds.rds.runtime import node_requests
from urds.rds.wire.node import Name, Request, RequestOp
place, steps = sys.argv[1], json.loads(sys.argv[2])
ends, codes = [], []
for host, port in steps:
    try:
        _, found = node_requests.ask(place, Request(operation=RequestOp.OPEN, flags=0))
        ends.append(found[0])
        request = Request(
            operation=RequestOp.BIND, name=Name(ip_address(host), port), transport=0xFFFFFFFF
        )
        node_requests.ask(place, request, [found[0]])
        codes.append(0)
    except OSError as error:
        codes.append(error.errno)
print(json.dumps(codes), flush=True)
sys.stdin.read()
"""


def asking(
    node: Node, uid: int, *steps: tuple[str, int], prefix: tuple[str, ...] = ()
) -> "subprocess.Popen[str]":
    """Start a program of a user that opens and binds; it keeps its sockets."""
    user = prefix or ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups")
    return subprocess.Popen(
        [*user, sys.executable, "-c", ASK, node.place, json.dumps(steps)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(), cwd=ROOT,
    )  # fmt: skip


def codes_of(program: "subprocess.Popen[str]") -> list[int]:
    """Return the errno of each step."""
    assert program.stdout is not None
    found: list[int] = json.loads(program.stdout.readline())
    return found


def end(program: "subprocess.Popen[str]") -> None:
    program.communicate("", timeout=WAIT_S)


@pytest.fixture
def open_node(start_node: StartNode) -> Iterator[Node]:
    """Start a node that all users reach; pytest's own folders are for one user."""
    with TemporaryDirectory(prefix="urds-node-") as name:
        Path(name).chmod(0o755)
        yield _started(start_node, Path(name))


def _started(start_node: StartNode, folder: Path) -> Node:
    return start_node(
        f"[node]\nsocket_mode = '0666'\n[quota]\nsockets = 3\n"
        f"[addresses]\n'*' = ['127.0.0.0/8']\n{SECOND} = ['127.0.0.2']\n",
        place=str(folder / "node.sock"),
    )


@needs_root
def test_a_port_is_of_the_user_that_bound_it(open_node: Node) -> None:
    first = asking(open_node, FIRST, ("127.0.0.2", 4000))
    assert codes_of(first) == [0]
    second = asking(open_node, SECOND, ("127.0.0.2", 4000), ("127.0.0.2", 4001))
    assert codes_of(second) == [errno.EADDRINUSE, 0]
    end(first)
    wait_until(lambda: open_node.status()["sockets"] == 2)
    again = asking(open_node, SECOND, ("127.0.0.2", 4000))  # within its grace
    assert codes_of(again) == [errno.EADDRINUSE]
    owner = asking(open_node, FIRST, ("127.0.0.2", 4000))
    assert codes_of(owner) == [0]
    for one in (second, again, owner):
        end(one)


@needs_root
def test_addresses_and_sockets_of_a_user_are_bounded(open_node: Node) -> None:
    limited = asking(open_node, SECOND, ("127.0.0.3", 0), ("127.0.0.2", 0))
    other = asking(open_node, FIRST, ("127.0.0.3", 0), ("10.0.0.1", 0), *[("127.0.0.2", 0)] * 2)
    assert codes_of(limited) == [errno.EACCES, 0]
    assert codes_of(other) == [0, errno.EACCES, 0, errno.EMFILE]
    users = {one["uid"]: one["sockets"] for one in open_node.status()["users"]}
    assert (users[FIRST], users[SECOND]) == (3, 2)
    for one in (limited, other):
        end(one)


@needs_root
def test_a_user_that_a_namespace_does_not_map_is_refused(open_node: Node) -> None:
    program = asking(open_node, 65_534, ("127.0.0.2", 0))
    assert codes_of(program) == [errno.EACCES]
    end(program)


@needs_root
def test_only_its_owner_and_root_stop_a_node(open_node: Node) -> None:
    command = ("setpriv", f"--reuid={FIRST}", f"--regid={FIRST}", "--clear-groups")
    program = (
        "import sys\nfrom urds.rds.node import commands\n"
        "getattr(commands, sys.argv[2])(sys.argv[1])\n"
    )
    for action in ("stop", "upgrade"):
        done = subprocess.run(
            [*command, sys.executable, "-c", program, open_node.place, action],
            env=environment(), capture_output=True, text=True, timeout=WAIT_S, check=False,
        )  # fmt: skip
        assert "Operation not permitted" in done.stderr
    assert open_node.status()["starts"] == 1


@needs_root
def test_a_users_node_is_closed_to_others(start_node: StartNode, tmp_path: object) -> None:
    node = start_node()
    assert os.stat(node.place).st_mode & 0o777 == 0o600


def test_a_port_has_a_grace_for_its_user_alone() -> None:
    ports = Ports(60.0)
    ports.take(1, (A, 5))
    ports.check(1, (A, 5), 0.0)
    ports.check(2, (A, 6), 0.0)
    ports.check(2, (B, 5), 0.0)
    for now_s in (0.0, 1.0):
        with pytest.raises(OSError, match="another user's") as error:
            ports.check(2, (A, 5), now_s)
        assert error.value.errno == errno.EADDRINUSE
        ports.give_back((A, 5), 0.0)
    ports.check(1, (A, 5), 59.9)
    ports.check(2, (A, 5), 60.0)
    assert ports.closed(60.0) == []


def test_a_port_that_is_bound_again_has_no_end() -> None:
    ports = Ports(1.0)
    ports.take(1, (A, 5))
    ports.give_back((A, 5), 0.0)
    assert ports.closed(0.5) == [("10.0.0.1", 5, 1, 0.5)]
    ports.take(1, (A, 5))
    with pytest.raises(OSError, match="another user's"):
        ports.check(2, (A, 5), 100.0)


def test_quotas_of_sockets_peers_routes_and_memory() -> None:
    users = Users(NodeSettings(sockets=2, peers=2, routes=2, memory=1 << 20))
    user, root = users.of(7), users.of(0)
    for _ in range(2):
        users.take_socket(user)
    with pytest.raises(OSError) as error:
        users.take_socket(user)
    assert error.value.errno == errno.EMFILE
    for _ in range(4):
        users.take_socket(root)
    with pytest.raises(OSError):
        users.take_socket(root)
    first: Counter[IPv4Address] = Counter()
    second: Counter[IPv4Address] = Counter()
    users.take_route(user, first, A)
    users.take_route(user, first, A)
    users.take_route(user, second, A)
    users.take_route(user, first, B)
    third = IPv4Address("10.0.0.3")
    for routes in (first, second):  # of the socket, of the user
        with pytest.raises(OSError) as error:
            users.take_route(user, routes, third)
        assert error.value.errno == errno.EUSERS
    users.give_back(user, first)
    assert (user.sockets, dict(user.peers)) == (1, {A: 1})
    users.take_route(user, second, third)
    user.memory_bytes = (1 << 20) + 1
    assert users.check_quota(user)
    user.memory_bytes = 1 << 21
    assert not users.check_quota(user), "it is over already"
    with pytest.raises(OSError) as error:
        users.take_socket(user)
    assert error.value.errno == errno.ENOBUFS
    user.memory_bytes = 0
    assert users.check_quota(user)
    users.take_socket(user)


def test_the_rate_of_requests() -> None:
    users = Users(NodeSettings(requests_per_s=10))
    user = users.of(7)
    assert [users.may_ask(user, 0.0) for _ in range(11)] == [True] * 10 + [False]
    assert [users.may_ask(user, 0.25) for _ in range(3)] == [True, True, False]
    assert sum(users.may_ask(user, 100.0) for _ in range(20)) == 10


def test_an_unmapped_user_is_refused() -> None:
    with pytest.raises(PermissionError):
        Users(NodeSettings()).check(65_534)
