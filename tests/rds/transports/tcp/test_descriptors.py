"""Connections leave the program half of the descriptors that its process may have."""

from __future__ import annotations

import select
import socket
import subprocess
import time
from unittest.mock import Mock

import pytest

from tests.rds.transports.tcp.conftest import Lab
from tests.rds.transports.tcp.processes import NodeProcess
from tests.rds.transports.tcp.test_hostile_floods import peers, talk
from tests.support.children import Child
from tests.support.waiting import wait_until
from urds.rds.runtime.connect import Streams
from urds.rds.transports.tcp import TcpStream

pytestmark = pytest.mark.loopback_only("the peers have a hundred addresses of 127/8")

LIMIT = 128
CONNECTED_MAX = LIMIT // 2
COMERS = 100
# No call makes a descriptor until the limit is there again; nothing has loaded `logging`.
WITHOUT_DESCRIPTORS = """
import resource, sys, urds
sock = urds.Socket()
sock.bind((sys.argv[1], 4000))
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (1, limits[1]))
print("logging" in sys.modules, flush=True)
sys.stdin.readline()
resource.setrlimit(resource.RLIMIT_NOFILE, limits)
print(sock.recv(100), flush=True)
"""
ENDS_WITHOUT_DESCRIPTORS = """
import resource, sys, urds
sock = urds.Socket()
sock.bind((sys.argv[1], 4000))
sock.sendto(b"for no one", (sys.argv[2], 4000))
resource.setrlimit(resource.RLIMIT_NOFILE, (1, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
"""
LIMITED = ("sh", "-c", f'ulimit -n {LIMIT}; exec "$@"', "sh")


def test_half_of_the_descriptors_stay_the_programs(lab: Lab) -> None:
    """At first the newest are refused; later those that only connected give way to others."""
    node = NodeProcess(lab.address(250), prefix=LIMITED, drain_s=0.0, linger_s=0.0)
    try:
        neighbour = lab.process(1)
        node.ask("serve_echo")
        talk(neighbour, node, 20)
        with peers(lab, node, 0, COMERS):
            wait_until(lambda: _refused(node) + _held(node) >= COMERS + 1, wait_s=30.0)
            assert _held(node) <= CONNECTED_MAX
            assert node.descriptor_count <= CONNECTED_MAX + 24, "listeners, poll sets, pipes"
            talk(neighbour, node, 20)
            late = lab.process(3)  # asks again and again, until others have been idle for 2 s
            talk(late, node, 5)
            talk(neighbour, node, 20)
            counters = node.ask("counters")
            assert counters["evicted_connected"] >= 1
            assert counters["connected_peers_max"] == CONNECTED_MAX
            assert counters["connected_peers"] <= CONNECTED_MAX
            assert counters["control_faults"] == 0
            assert not neighbour.ask("counters")["downs"], "it has sent messages, so it stays"
    finally:
        node.close()


def test_a_process_without_descriptors_says_so_once_and_goes_on(lab: Lab) -> None:
    """Its peer sees a connection that nothing answers; why, is known here only."""
    address = lab.address(249)
    child = Child("-c", WITHOUT_DESCRIPTORS, address, errors=subprocess.STDOUT)
    try:
        assert child.hear() == "False"
        lab.node(2).send(b"waiting", address)
        said = child.hear()
        assert said == f"no connection to {address} can be accepted now: Too many open files"
        time.sleep(0.3)  # it tries three times more
        child.say()
        assert child.hear() == "b'waiting'"
    finally:
        child.close()


def test_a_process_without_descriptors_ends_in_order(lab: Lab) -> None:
    """Without the end of its thread the interpreter aborts: it cannot load what ends a thread."""
    names = lab.address(249), lab.address(248)
    environ = {"URDS_DRAIN_S": "0.1"}
    child = Child("-c", ENDS_WITHOUT_DESCRIPTORS, *names, environ=environ, errors=subprocess.STDOUT)
    said, _ = child.process.communicate(timeout=20)
    assert child.process.returncode == 0, said
    assert "1 message never sent within 0.1 s (drain_s)" in said
    assert "Traceback" not in said


def test_bytes_not_read_yet_keep_a_stream() -> None:
    """A kernel's system was told that they are here, so it would not send them again."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = socket.create_connection(listener.getsockname())
        stream = TcpStream.take(listener.accept()[0])
    with sender, stream:
        host, path = Mock(), Mock()
        streams = Streams(Mock())
        assert not streams.has_unread(path)
        streams.take(streams.keep(host, host.peer, stream), path)
        assert not streams.has_unread(path)
        sender.sendall(b"unread")
        select.select([stream], [], [], 5.0)
        assert streams.has_unread(path)


def _held(node: NodeProcess) -> int:
    held: int = node.ask("counters")["connected_peers"]
    return held


def _refused(node: NodeProcess) -> int:
    counters = node.ask("counters")
    refused: int = counters["refused_descriptors"] + counters["refused_pending"]
    return refused + int(counters["evicted_connected"])
