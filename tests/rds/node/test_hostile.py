"""Clients of ill will: whatever they send or leave out, the node serves the others."""

import errno
import os
import random
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from tests.rds.node.conftest import ROOT, WAIT_S, Node, StartNode, environment, wait_until
from urds.rds.wire import node as wire
from urds.rds.wire.node import Request, RequestOp

STATUS = wire.emit_request(Request(operation=RequestOp.STATUS))


def connect(node: Node) -> socket.socket:
    """Connect, and say nothing."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    end.settimeout(WAIT_S)
    end.connect(node.place)
    return end


@pytest.mark.parametrize("seed", range(3))
def test_random_records_with_random_descriptors(node: Node, seed: int) -> None:
    rng = random.Random(seed)
    end = node.open()
    files = [end, 0, os.open("/dev/null", os.O_RDONLY)]
    for _ in range(200):
        record = bytearray(wire.emit_request(Request(operation=RequestOp.STATUS)))
        record[6:8] = rng.randrange(12).to_bytes(2, "little")
        record[8:12] = rng.choice([24, 25, 28, 40, 48, 49, 52, 60, 256]).to_bytes(4, "little")
        record[24:] = rng.randbytes(232)
        if rng.random() < 0.2:
            record = bytearray(rng.randbytes(rng.randrange(300)))
        if record[6:8] in (b"\x0a\0", b"\x09\0"):
            continue  # to stop and to upgrade is for the owner, which this test is
        node.raw(bytes(record), rng.choices(files, k=rng.randrange(4)))
        if len(node.opened) > 100:
            for one in [one for one in node.opened if one != end]:
                node.close(one)
    os.close(files[2])
    assert node.status()["worker"] == node.status()["worker"]
    assert node.ask(RequestOp.FIND, end)
    assert node.status()["deaths"] == 0


@pytest.mark.parametrize("length", [0, 1, 24, 255, 257, 4000])
def test_a_part_of_a_request_is_closed_without_an_answer(node: Node, length: int) -> None:
    data = STATUS.ljust(4096, b"\0")[:length]
    with connect(node) as end:
        end.send(data)
        try:
            assert end.recv(1000) == b""
        except ConnectionResetError:
            pass
    assert node.status()["deaths"] == 0


def test_what_is_no_request_of_this_version_has_its_errno(start_node: StartNode) -> None:
    node = start_node()
    for at, value, code in ((4, 2, errno.EPROTO), (6, 99, errno.ENOSYS), (8, 25, errno.EINVAL)):
        record = bytearray(STATUS)
        record[at] = value
        assert wire.parse_answer(node.raw(bytes(record))).status == code
    wait_until(lambda: len(node.events("request-rejected")) == 3)
    reasons = [one["reason"] for one in node.events("request-rejected")]
    assert any("version 2, not 1" in one for one in reasons)


def test_a_client_that_says_nothing_is_closed(start_node: StartNode) -> None:
    node = start_node("[node]\nrequest_wait_s = 0.2\n")
    with connect(node) as silent:
        assert silent.recv(1) == b""
    assert wait_until(lambda: node.has_told("client-silent"))["pid"] == os.getpid()


def test_silent_clients_hold_up_no_request_for_longer_than_their_time(
    start_node: StartNode,
) -> None:
    node = start_node("[node]\nrequest_wait_s = 0.2\n[quota]\nrequests = 2\n")
    silent = [connect(node) for _ in range(20)]
    assert node.status()["sockets"] == 0  # of the same user: it waits for its turn
    for one in silent:
        assert one.recv(1) == b""
        one.close()


def test_more_connections_than_the_node_takes(start_node: StartNode) -> None:
    prefix = ("prlimit", "--nofile=256:256")
    node = start_node("[node]\nrequest_wait_s = 0.2\n", prefix=prefix)
    silent = [connect(node) for _ in range(300)]
    assert node.status()["deaths"] == 0
    for one in silent:
        one.close()
    ends: list[int] = []
    with pytest.raises(OSError) as error:
        ends.extend(node.open() for _ in range(200))
    assert error.value.errno == errno.EMFILE
    assert 20 < node.status()["sockets"] < 100
    assert node.ask(RequestOp.FIND, node.opened[0])  # it still receives a descriptor
    assert node.status()["deaths"] == 0


def descriptors_at_rest(pid: int) -> set[int]:
    """Return the descriptors of a process once the connections of its last answers are closed."""
    looks: list[set[int]] = []

    def is_at_rest() -> bool:
        looks.append(set(map(int, os.listdir(f"/proc/{pid}/fd"))))
        return len(looks) > 10 and all(one == looks[-1] for one in looks[-10:])

    wait_until(is_at_rest)
    return looks[-1]


def test_without_descriptors_each_request_is_answered_and_the_others_say_so(node: Node) -> None:
    """A connection takes the spare one; its answer says EMFILE instead of being late."""
    end, worker = node.open(), node.status()["worker"]
    used = descriptors_at_rest(worker)
    lowest_free = next(number for number in range(len(used) + 1) if number not in used)
    soft, hard = resource.prlimit(worker, resource.RLIMIT_NOFILE)
    resource.prlimit(worker, resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        for _ in range(3):
            with pytest.raises(OSError) as error:
                node.ask(RequestOp.FIND, end)
            assert error.value.errno == errno.EMFILE
            assert wire.parse_answer(node.raw(STATUS)).status in (0, errno.EMFILE)
    finally:
        resource.prlimit(worker, resource.RLIMIT_NOFILE, (soft, hard))
    assert node.ask(RequestOp.FIND, end)
    assert node.status()["deaths"] == 0


def test_the_limit_of_descriptors_is_raised(start_node: StartNode) -> None:
    node = start_node(prefix=("prlimit", "--nofile=256:300"))
    worker = node.status()["worker"]
    for pid in (worker, node.process.pid):
        assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (300, 300)


def test_a_request_above_the_rate_waits(start_node: StartNode) -> None:
    node = start_node("[quota]\nrequests_per_s = 20\n")
    begun = time.monotonic()
    for _ in range(20 * (1 if os.getuid() else 2) + 10):  # what a second has, and half a second
        assert node.raw(STATUS)
    assert time.monotonic() - begun > 0.1  # all answered, none at once
    assert node.status()["deaths"] == 0


def test_more_than_three_descriptors_are_refused_and_closed(node: Node) -> None:
    worker = node.status()["worker"]
    before = len(os.listdir(f"/proc/{worker}/fd"))
    pipe = os.pipe()
    for _ in range(20):
        assert wire.parse_answer(node.raw(STATUS, [*pipe, *pipe])).status == errno.EMFILE
        assert wire.parse_answer(node.raw(STATUS, [*pipe, pipe[0]])).status == 0
    wait_until(lambda: len(os.listdir(f"/proc/{worker}/fd")) <= before)
    for one in pipe:
        os.close(one)


def test_a_tcp_socket_that_lingers_holds_up_no_request(node: Node) -> None:
    """Its close would wait for a peer that reads nothing, were it of the thread that serves."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = socket.create_connection(listener.getsockname())
        receiver, _ = listener.accept()
        linger = (1).to_bytes(4, "little") + (600).to_bytes(4, "little")
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        sender.setblocking(False)
        with suppress(BlockingIOError):
            while sender.send(bytes(1 << 16)):
                pass
        find = wire.emit_request(Request(operation=RequestOp.FIND))
        # The last copy is the one under way, so the node closes it.
        worker = node.status()["worker"]
        os.kill(worker, signal.SIGSTOP)
        with connect(node) as end:
            socket.send_fds(end, [find], [sender.fileno()])
            os.close(sender.detach())
            os.kill(worker, signal.SIGCONT)
            assert wire.parse_answer(end.recv(1000)).status == errno.ENOTSOCK
        assert node.status()["deaths"] == 0
        receiver.close()


def test_a_client_that_dies_before_its_answer_leaves_nothing(node: Node) -> None:
    program = (
        "import socket, sys\n"
        "end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "end.connect(sys.argv[1])\n"
        "end.send(bytes.fromhex(sys.argv[2]))\n"
    )
    record = wire.emit_request(Request(operation=RequestOp.OPEN, flags=0)).hex()
    for _ in range(5):
        subprocess.run(
            [sys.executable, "-S", "-c", program, node.place, record], check=True, timeout=WAIT_S
        )
    wait_until(lambda: node.status()["sockets"] == 0)


def test_a_stopped_client_holds_up_no_other(node: Node) -> None:
    program = (
        "import socket, sys\n"
        "end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "end.connect(sys.argv[1])\n"
        "print('connected', flush=True)\n"
        "end.recv(1)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-S", "-c", program, node.place],
        stdout=subprocess.PIPE, env=environment(), cwd=ROOT,
    ) as client:  # fmt: skip
        assert client.stdout is not None
        client.stdout.readline()
        client.send_signal(signal.SIGSTOP)
        for _ in range(20):
            assert node.status()
        client.kill()


def test_an_unread_answer_is_no_wait(node: Node) -> None:
    """A connection has room for one answer, and is closed whether that is read or not."""
    ends = [connect(node) for _ in range(30)]
    for end in ends:
        end.send(STATUS)
    for end in ends:
        select.select([end], [], [], WAIT_S)
        end.close()
    assert node.status()["deaths"] == 0
