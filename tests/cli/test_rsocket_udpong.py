"""`urds rsocket udpong` and its kernel baseline, run as a user runs them; speed is not judged."""

import json
import socket
import subprocess

import pytest

from tests.cli.commands import command, environment, urds
from tests.support.ports import free_port
from urds.cli.rsocket.udpong import SIZES

KERNEL = ("-T", "s")
WAYS = {"kernel": KERNEL, "shm0": ("--device", "shm"), "tcp0": ("--device", "tcp")}


def test_the_table_has_udpongs_columns_and_sizes() -> None:
    done = urds("rsocket", "udpong", *KERNEL, "-C", "20", "-S", "all")
    assert (done.code, done.err) == (0, "")
    heading, *rows = [line.split() for line in done.out.splitlines()]
    assert heading == ["name", "bytes", "xfers", "total", "time", "Gb/sec", "usec/xfer", "lost"]
    assert [row[1] for row in rows][:2] + [row[1] for row in rows][-2:] == [
        "64",
        "128",
        "1k",
        "1.5k",
    ]
    assert (SIZES[0], SIZES[-1], len(rows)) == (64, 1536, len(SIZES))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("manner", ["a", "b", "n"])
def test_every_datagram_of_loopback_comes_back(manner: str, way: str) -> None:
    """Holds because one is under way at a time, and a machine that stops for 0.1 s is rare."""
    done = urds(
        *("rsocket", "udpong", *WAYS[way], "-T", "e", "-T", manner),
        *("-C", "5", "-S", "256", "--json"),
    )
    assert (done.code, done.err) == (0, "")
    [row] = json.loads(done.out)
    assert row["transfers"] == 5
    assert row["lost"] <= 1
    assert row["total_bytes"] == 2 * (5 - row["lost"]) * 256


def test_a_size_beyond_the_device_is_left_out() -> None:
    """Datagrams of tcp0 end at 1400 bytes, header included."""
    done = urds("rsocket", "udpong", "--device", "tcp", "-C", "3")
    assert done.code == 0
    assert [line.split()[1] for line in done.out.splitlines()][-1] == "1k"
    assert "1.5k left out: datagram of 1536 bytes, limit 1392" in done.err


def test_datagrams_that_are_not_taken_are_counted_as_lost() -> None:
    """The queue of this server has room for one or two of them."""
    port = str(free_port())
    with subprocess.Popen(
        command("without", "rsocket", "udpong", *KERNEL, "--serve", "-p", port, "-B", "2304"),
        stdout=subprocess.PIPE, text=True, env=environment(),
    ) as server:  # fmt: skip
        assert server.stdout is not None
        assert server.stdout.readline() == f"listening on port {port}\n"
        done = urds(
            *("rsocket", "udpong", *KERNEL, "-s", "127.0.0.1", "-p", port),
            *("-S", "1536", "-C", "3000", "--json"),
        )
        server.terminate()
    [row] = json.loads(done.out)
    assert done.code == 0
    assert row["lost"] > 0
    assert row["total_bytes"] == (3000 - row["lost"]) * 1536


def test_a_server_passes_over_what_is_no_message_of_it() -> None:
    port = str(free_port())
    with subprocess.Popen(
        command("without", "rsocket", "udpong", *KERNEL, "--serve", "-p", port),
        stdout=subprocess.PIPE, text=True, env=environment(),
    ) as server:  # fmt: skip
        assert server.stdout is not None
        server.stdout.readline()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unknown_peer:
            for data in (b"", b"\x00", b"\xff" * 8, bytes([2]) * 2000):
                unknown_peer.sendto(data, ("127.0.0.1", int(port)))
        done = urds(
            *("rsocket", "udpong", *KERNEL, "-s", "127.0.0.1", "-p", port),
            *("-C", "3", "-S", "64", "--json"),
        )
        server.terminate()
    assert json.loads(done.out)[0]["lost"] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-T", "f"), "-T f: must be one of s, a, b, n, e"),
        (("-S", "4"), "-S 4: must be from 8 to 2000"),
        (("-S", "2001"), "-S 2001: must be from 8 to 2000"),
        (("-s", "127.0.0.1", "--serve"), "either --serve, or -s"),
    ],
)
def test_what_cannot_be_is_wrong_usage(arguments: tuple[str, ...], words: str) -> None:
    done = urds("rsocket", "udpong", *arguments)
    assert done.code == 2
    assert words in done.err
