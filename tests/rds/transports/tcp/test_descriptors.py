"""Connections leave the program half of the descriptors that its process may have."""

from __future__ import annotations

import select
import socket
from unittest.mock import Mock

import pytest

from tests.rds.transports.tcp.conftest import Lab
from tests.rds.transports.tcp.processes import NodeProcess
from tests.rds.transports.tcp.test_hostile_floods import peers, talk
from tests.support.waiting import wait_until
from urds.rds.runtime.connect import Streams
from urds.rds.transports.tcp import TcpStream

pytestmark = pytest.mark.loopback_only("the peers have a hundred addresses of 127/8")

LIMIT = 128
CONNECTED_MAX = LIMIT // 2
COMERS = 100
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
