"""The tools between two hosts: RDS over TCP and RDMA, rsockets, uDAPL; what arrives is checked.

The devices are those that reach another host: tcp0 and udp0.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.commands import HOST, RUN_S_MAX, Done, command, environment
from tests.cli.test_stress import judge_table
from tests.support.places import Namespaces

OVER = {
    "tcp": {"URDS_TRANSPORT": "tcp"},
    "ib": {"URDS_TRANSPORT": "ib", "URDS_RDMA_DEVICES": "tcp0"},
}
DEVICES = pytest.mark.parametrize("device", ["tcp", "udp"])
CARRIERS = pytest.mark.parametrize("over", OVER)


@contextmanager
def started(
    prefix: Sequence[str], words: Sequence[str], changes: Mapping[str, str], *, ready: str
) -> Iterator[subprocess.Popen[str]]:
    """Run a process that prints a line beginning with `ready`; end it by force if need be."""
    child = subprocess.Popen(
        [*prefix, *words], stdout=subprocess.PIPE, text=True, env=environment(changes),
        stdin=subprocess.PIPE,
    )  # fmt: skip
    with child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline().startswith(ready)
            yield child
        finally:
            child.kill()


def run(prefix: Sequence[str], *words: str, changes: Mapping[str, str] | None = None) -> Done:
    """Run `urds` at a host to its end."""
    done = subprocess.run(
        [*prefix, *command("without", *words)], check=False, capture_output=True, text=True,
        timeout=RUN_S_MAX, env=environment(changes), stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return Done(done.returncode, done.stdout, done.stderr)


def served(
    hosts: Namespaces,
    server: Sequence[str],
    client: Sequence[str],
    *,
    changes: Mapping[str, str] | None = None,
    ready: str = "listening on port",
) -> str:
    """Run a server on the right and its client on the left; return what the client printed."""
    words = command("without", *server)
    with started(hosts.prefix(1), words, changes or {}, ready=ready):
        done = run(hosts.prefix(0), *client, changes=changes)
    assert (done.code, done.err) == (0, "")
    return done.out


# -- RDS


@CARRIERS
def test_ping_and_info_see_the_other_host(hosts: Namespaces, over: str, tmp_path: Path) -> None:
    here, there = hosts.address(0), hosts.address(1)
    changes = {**OVER[over], "XDG_RUNTIME_DIR": str(tmp_path)}
    python = [command("without")[0], "-c", HOST]
    with (
        started(hosts.prefix(1), [*python, there], changes, ready="ready"),
        started(hosts.prefix(0), [*python, here], changes, ready="ready"),
    ):
        words = ("ping", "-c", "3", "-i", "0.5", "-I", hosts.address(2), there, "--json")
        ping = run(hosts.prefix(0), *words, changes=changes)
        info = run(hosts.prefix(0), "info", "-n", "-k", "--json", changes=changes)
    assert (ping.code, ping.err, info.code) == (0, "", 0)
    *replies, summary = map(json.loads, ping.out.splitlines())
    # Each ping has a port, hence a path, of its own; one may overtake another, and the first may
    # wait so long for its connection that a line says why.
    assert sorted(reply["number"] for reply in replies if "from" in reply) == [1, 2, 3]
    assert summary["received"] == 3
    found = json.loads(info.out)
    assert {row["local"] for row in found["sockets"]} >= {here, there}
    [connection] = [row for row in found["connections"] if row["local"] == there]
    assert connection["peer"] == hosts.address(2)
    assert connection["transport"] == {"tcp": "tcp", "ib": "infiniband"}[over]


@CARRIERS
@pytest.mark.parametrize("hosts", ["netns4"], indirect=True)
def test_stress_checks_each_byte(hosts: Namespaces, over: str) -> None:
    """The protocol of rds-stress knows IPv4 only."""
    here, there = hosts.address(0), hosts.address(1)
    more = ("-D", "4k") if over == "ib" else ("-q", "20k", "-a", "1k")
    active = served(
        hosts,
        ("stress", "-r", there, "--start-up", "0"),
        ("stress", "-s", there, "-r", here, "-T", "3", "-v", "-d", "4", *more, "--start-up", "0"),
        changes=OVER[over],
        ready="waiting for incoming connection",
    )
    judge_table(active)


# -- rsockets


def family(hosts: Namespaces) -> tuple[str, ...]:
    """Return the option that has a host read as IPv6, if it is."""
    return ("-f", "ipv6") if hosts.ipv6 else ()


@DEVICES
@pytest.mark.parametrize("tool", ["rstream", "riostream"])
def test_bytes_of_streams_and_mapped_buffers_are_verified(
    hosts: Namespaces, tool: str, device: str
) -> None:
    there, common = hosts.address(1), ("-C", "4", "-I", "3", "-S", "70000", "-T", "v")
    tools = ("rsocket", tool, "--device", device, *family(hosts), *common)
    out = served(hosts, (*tools, "--serve", "-b", there), (*tools, "-s", there, "--json"))
    [row] = json.loads(out)
    assert (row["size_bytes"], row["total_bytes"]) == (70_000, 2 * 4 * 3 * 70_000)


@DEVICES
def test_datagrams_come_back(hosts: Namespaces, device: str) -> None:
    there = hosts.address(1)
    tools = ("rsocket", "udpong", "--device", device)
    client = (*tools, "-s", there, "-T", "e", "-C", "5", "-S", "256", "--json")
    [row] = json.loads(served(hosts, (*tools, "--serve", "-b", there), client))
    assert row["transfers"] == 5
    assert row["lost"] <= 1, "one is under way at a time"


@DEVICES
def test_a_file_arrives_whole(hosts: Namespaces, device: str, tmp_path: Path) -> None:
    source, into = tmp_path / "source.bin", tmp_path / "into"
    source.write_bytes(os.urandom(2_500_003))
    into.mkdir()
    tools = ("rsocket", "rcopy", "--device", device)
    there = hosts.address(1)
    target = f"[{there}]:copy.bin" if hosts.ipv6 else f"{there}:copy.bin"
    anywhere = "::/0" if hosts.ipv6 else "0.0.0.0/0"
    serve = (*tools, "--serve", "-b", there, "--into", str(into), "--allow", anywhere)
    served(hosts, serve, (*tools, str(source), target))
    assert (into / "copy.bin").read_bytes() == source.read_bytes()


# -- uDAPL


@pytest.mark.parametrize("device", ["tcp0", "udp0"])
def test_dtests_steps_pass(hosts: Namespaces, device: str, tmp_path: Path) -> None:
    """Each host has its own registry, in which its adapter has its address."""
    changes = {}
    for host in (0, 1):
        registry = tmp_path / f"dat{host}.conf"
        instance = f'"{device} {hosts.address(host)}"'
        registry.write_text(
            f'far u1.2 threadsafe default urds.dat.devices urds.1.2 {instance} ""\n'
        )
        changes[host] = {"DAT_OVERRIDE": str(registry)}
    tools = ("dat", "test", "-P", "far", "-D", "-b", "5000")
    words = command("without", *tools, "-s")
    with started(hosts.prefix(1), words, changes[1], ready="server") as server:
        done = run(hosts.prefix(0), *tools, "-h", hosts.address(1), changes=changes[0])
        assert server.wait(RUN_S_MAX) == 0
    assert (done.code, done.err) == (0, ""), done.out
    assert done.out.splitlines()[-1] == "PASSED"
