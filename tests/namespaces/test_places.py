"""The place itself: two hosts, apart from this machine's own network, that leave nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.health.sources import ROOT
from tests.rds.transports.tcp.processes import NodeProcess
from tests.support.places import LINK, Namespaces, family_of

MAKER = """
import sys, time
from tests.support.places import Namespaces
made = Namespaces(ipv6=False)
print(*(side.pid for side in made.sides), flush=True)
time.sleep(60)
"""


def packets_of(hosts: Namespaces) -> int:
    """Return how many packets the left end of the link has sent."""
    name = f"/sys/class/net/{LINK}/statistics/tx_packets"
    mounted = "mount -t sysfs sysfs /sys && cat"
    return int(hosts.left.run("unshare", "--mount", "sh", "-c", f"{mounted} {name}"))


def test_what_goes_between_even_and_odd_hosts_goes_over_the_link(hosts: Namespaces) -> None:
    before = packets_of(hosts)
    nodes = [NodeProcess(hosts.address(one), prefix=hosts.prefix(one)) for one in (0, 1, 2)]
    try:
        nodes[0].ask("send", target=hosts.address(2), count=1000)
        assert len(nodes[2].ask("collect", count=1000, wait_s=5.0)[0]) == 1000
        assert packets_of(hosts) - before < 20, "both are even"
        nodes[0].ask("send", target=hosts.address(1), count=1000, payload_bytes=2000)
        assert len(nodes[1].ask("collect", count=1000, wait_s=5.0)[0]) == 1000
        # A packet of a virtual link may have up to 64 KiB, whatever the MTU.
        assert packets_of(hosts) - before > 1000 * 2000 / 65536
    finally:
        for node in nodes:
            node.close()


def test_this_machine_and_the_hosts_do_not_reach_each_other(hosts: Namespaces) -> None:
    address = hosts.address(1)
    with socket.socket(family_of(address)) as outside, pytest.raises(OSError):
        outside.bind((address, 0))
    with hosts.inside(address):
        inside = socket.socket(family_of(address))
    with inside:
        inside.bind((address, 0))


def test_a_killed_run_leaves_nothing_behind() -> None:
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}"}
    with subprocess.Popen(
        [sys.executable, "-c", MAKER], stdout=subprocess.PIPE, text=True, env=environ
    ) as maker:
        assert maker.stdout is not None
        holders = [int(pid) for pid in maker.stdout.readline().split()]
        assert all(holds(pid) for pid in holders)
        maker.send_signal(signal.SIGKILL)
    deadline_s = time.monotonic() + 5.0
    while any(holds(pid) for pid in holders):
        assert time.monotonic() < deadline_s, "a namespace outlives its run"
        time.sleep(0.01)


def holds(pid: int) -> bool:
    """Tell whether a process has a namespace."""
    try:
        return bool(Path(f"/proc/{pid}/ns/net").readlink())
    except OSError:
        return False
