"""A host that the setting `allow` of another leaves out: both sides say so.

The link has one network, which both hosts allow. So the left one has an address of another network
as well, and the right one a route to it.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.commands import HOST, RUN_S_MAX, command, environment
from tests.namespaces.test_tools import run
from tests.support.places import LINK, Namespaces

FOREIGN = {4: ("10.118.7.1", "10.118.7.0/24"), 6: ("fd75:7264:74::1", "fd75:7264:74::/64")}
CLOSES = "the peer accepts and closes at once: it may not allow this address (its setting allow)"
# Sends, and asks until there is an error to tell; the test's own limit ends one that finds none.
SENDER = """
import sys, time, urds
sock = urds.socket(urds.AF_RDS, urds.SOCK_SEQPACKET)
sock.bind((sys.argv[1], 4000))
sock.sendto(b"for you", (sys.argv[2], 4000))
while not any(one.last_error for one in urds.connections()):
    time.sleep(0.05)
[one] = urds.connections()
print(one.state, one.attempts > 0, one.last_error, sep="|", flush=True)
"""


@pytest.fixture
def foreign(hosts: Namespaces) -> tuple[str, str]:
    """Give the left host an address that is foreign to the right one; return it and its network."""
    address, network = FOREIGN[6 if hosts.ipv6 else 4]
    hosts.left.ip(
        f"address add {address}/128 dev {LINK} nodad"
        if hosts.ipv6
        else f"address add {address}/32 dev {LINK}"
    )
    hosts.right.ip(f"route add {network} dev {LINK}")
    return address, network


@contextmanager
def listening(
    hosts: Namespaces, changes: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[str]]:
    """Have a socket at the right host; its log is in a file."""
    words = [command("without")[0], "-c", HOST, hosts.address(1)]
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [*hosts.prefix(1), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=errors, text=True, env=environment(changes),
        ) as host,
    ):  # fmt: skip
        try:
            assert host.stdout is not None
            assert host.stdout.readline() == "ready\n"
            yield host
        finally:
            host.kill()


def test_both_sides_tell_why_the_setting_allow_leaves_a_host_out(
    hosts: Namespaces, foreign: tuple[str, str], tmp_path: Path
) -> None:
    here, there = foreign[0], hosts.address(1)
    changes = {"XDG_RUNTIME_DIR": str(tmp_path)}
    log = tmp_path / "log"
    with listening(hosts, changes, log):
        ping = run(hosts.prefix(0), "ping", "-c", "2", "-i", "0.5", "-I", here, there)
        sent = subprocess.run(
            [*hosts.prefix(0), command("without")[0], "-c", SENDER, here, there],
            check=True, capture_output=True, text=True, timeout=RUN_S_MAX,
            env=environment({"URDS_ALLOW": there, "URDS_DRAIN_S": "0"}),
        )  # fmt: skip
        info = run(hosts.prefix(1), "info", "-c", "--json", changes=changes)
    assert ping.code == 1, ping
    assert CLOSES in ping.out + ping.err, ping
    state, has_tried, error = sent.stdout.strip().split("|")
    assert (has_tried, error) == ("True", CLOSES)
    assert state != "up"
    assert json.loads(info.out)["counters"]["refused_not_allowed"] >= 2
    said = f"connection of {here} refused: not allowed (setting: URDS_ALLOW)"
    assert log.read_text().count(said) == 1, "a line that a peer causes comes once a minute"


def test_a_host_that_the_setting_names_is_served(
    hosts: Namespaces, foreign: tuple[str, str], tmp_path: Path
) -> None:
    """The same hosts and addresses, so that nothing but the setting refuses above."""
    here, there = foreign[0], hosts.address(1)
    changes = {"XDG_RUNTIME_DIR": str(tmp_path), "URDS_ALLOW": foreign[1]}
    log = tmp_path / "log"
    with listening(hosts, changes, log):
        ping = run(hosts.prefix(0), "ping", "-c", "2", "-i", "0.5", "-I", here, there)
    assert (ping.code, ping.err) == (0, "")
    assert log.read_text() == ""
