"""`urds rsocket rstream` and its kernel baseline, run as a user runs them; speed is not judged."""

import json
import re
import subprocess

import pytest

from tests.cli.commands import EXTRAS, command, environment, interrupt, urds
from tests.support.ports import free_port
from urds.cli.rsocket.measure import line
from urds.cli.rsocket.rstream import (
    HEADING,
    SIZES,
    SIZES_ALL,
    RstreamOptions,
    bandwidth_plan,
    latency_plan,
    measured,
    plans,
)

KERNEL = ("-T", "s")
WAYS = {"kernel": KERNEL, "shm0": ("--device", "shm"), "tcp0": ("--device", "tcp0")}
EACH_WAY = pytest.mark.parametrize("way", WAYS)
SHORT = ("-I", "3", "-C", "2", "-S", "64")


def test_sizes_and_counts_are_rstreams() -> None:
    assert SIZES == (64, 4096, 65_536, 1 << 20)
    every = SIZES_ALL
    assert (len(every), every[:4], every[-2:]) == (33, (64, 128, 192, 256), (4 << 20, 6 << 20))
    counts = [bandwidth_plan(size).transfers for size in (64, 1023, 1024, 65_535, 65_536, 1 << 20)]
    assert counts == [100_000, 100_000, 10_000, 10_000, 1000, 100]


def test_a_latency_row_is_one_way_and_totals_count_both_directions() -> None:
    row = measured(latency_plan(64), 0.4)
    assert (row.name, row.transfers, row.iterations) == ("64_lat", 1, 100_000)
    assert row.total_bytes == 12_800_000
    assert row.usec_per_transfer == pytest.approx(2.0)
    assert row.gb_per_s == pytest.approx(0.256)
    assert line(row).split() == ["64_lat", "64", "1", "100k", "12m", "0.40s", "0.26", "2.00"]


def test_a_bandwidth_row_is_one_iteration_of_many_transfers() -> None:
    row = measured(bandwidth_plan(64 << 10), 1.0)
    assert line(row).split() == ["64k_bw", "64k", "1k", "1", "125m", "1.00s", "1.05", "500.00"]


def test_sizes_of_all_keep_their_halves_apart() -> None:
    names = [latency_plan(size).name for size in SIZES_ALL]
    assert len(set(names)) == len(names)
    assert "1.5k_lat" in names


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_table_has_rstreams_columns(extra: str) -> None:
    done = urds("rsocket", "rstream", *KERNEL, *SHORT, extra=extra)
    assert (done.code, done.err) == (0, "")
    heading, row = done.out.splitlines()
    assert heading == HEADING
    titles = ["name", "bytes", "xfers", "iters", "total", "time", "Gb/sec", "usec/xfer"]
    assert heading.split() == titles
    assert re.fullmatch(r"custom +64 +2 +3 +768 +\d+\.\d\ds +\d+\.\d\d +\d+\.\d\d", row)


@EACH_WAY
@pytest.mark.parametrize("manner", ["a", "async", "b", "n"])
def test_each_manner_moves_and_verifies(manner: str, way: str) -> None:
    done = urds(
        *("rsocket", "rstream", *WAYS[way], "-T", manner, "-T", "v"),
        *("-S", "300000", "-C", "3", "-I", "2", "--json"),
    )
    assert (done.code, done.err) == (0, "")
    [row] = json.loads(done.out)
    assert (row["name"], row["size_bytes"], row["total_bytes"]) == ("custom", 300_000, 3_600_000)


@EACH_WAY
@pytest.mark.parametrize(
    "more",
    [("-B", "20000"), ("-i", "16"), ("-k", "5"), ("-T", "r"), ("-b", "127.0.0.1")],
    ids=" ".join,
)
def test_options_that_every_way_knows(more: tuple[str, ...], way: str) -> None:
    done = urds("rsocket", "rstream", *WAYS[way], *SHORT, *more)
    assert (done.code, done.err) == (0, "")
    assert len(done.out.splitlines()) == 2


def test_latency_comes_before_bandwidth_on_connections_of_their_own() -> None:
    latency, bandwidth = plans(RstreamOptions())
    assert [plan.name for plan in latency] == ["64_lat", "4k_lat", "64k_lat", "1m_lat"]
    assert [plan.name for plan in bandwidth] == ["64_bw", "4k_bw", "64k_bw", "1m_bw"]
    latency, bandwidth = plans(RstreamOptions(size="all"))
    assert (len(latency), len(bandwidth)) == (33, 33)
    assert plans(RstreamOptions(transfers=1, iterations=9))[1] == []


@pytest.mark.parametrize(
    "more", [("-T", "f"), ("-T", "r"), ("-f", "ip"), ("-k", "5")], ids=" ".join
)
def test_the_other_letters_work(more: tuple[str, ...]) -> None:
    done = urds("rsocket", "rstream", *KERNEL, *SHORT, *more)
    assert (done.code, done.err) == (0, "")
    assert len(done.out.splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-T", "x"), "-T x: must be one of s, a, b, f, n, r, v"),
        (("-T", "a", "-T", "b"), "exclude each other"),
        (("-S", "0"), "-S 0: must be from 1 to"),
        (("-S", "many"), "-S many: must be from 1 to 67108864, or all"),
        (("-f", "ipx"), "-f ipx: must be one of name, ip, ipv6, gid"),
        (("-s", "h", "--serve"), "either --serve, or -s"),
        (("-s", "localhost", "-f", "ip"), "localhost is no address of -f ip"),
        (("-f", "gid"), "AF_IB"),
        (("--device", "nosuch"), "--device nosuch: there are"),
    ],
)
def test_what_cannot_be_is_wrong_usage(arguments: tuple[str, ...], words: str) -> None:
    done = urds("rsocket", "rstream", *KERNEL, *arguments)
    assert done.code == 2
    assert words in done.err
    assert "Traceback" not in done.err


def test_a_server_that_is_not_there_is_a_failure_on_one_line() -> None:
    done = urds("rsocket", "rstream", *KERNEL, "-s", "127.0.0.1", "-p", "9", *SHORT)
    assert done.code == 1
    assert done.err == "urds rsocket rstream: Connection refused\n"


@pytest.mark.parametrize("run", range(4))
def test_a_client_of_both_devices_finds_a_server_on_the_second(run: int) -> None:
    """Four times: the answer of the second may come while the first still tells of its refusal."""
    port = str(free_port())
    words = ("rsocket", "rstream", "--serve", "--device", "tcp", "-p", port, *SHORT)
    with subprocess.Popen(
        command("without", *words), stdout=subprocess.PIPE, text=True, env=environment()
    ) as server:
        try:
            assert server.stdout is not None
            server.stdout.readline()
            done = urds("rsocket", "rstream", "-s", "127.0.0.1", "-p", port, *SHORT)
            assert (done.code, done.err) == (0, "")
            assert server.wait(10) == 0
        finally:
            server.kill()


def test_no_listener_at_the_port_of_any_device() -> None:
    done = urds("rsocket", "rstream", "-s", "127.0.0.1", "-p", "9", *SHORT)
    assert (done.code, done.out) == (1, "")
    assert "Connection refused" in done.err
    assert len(done.err.splitlines()) == 1


@EACH_WAY
def test_ctrl_c_ends_both_processes(way: str) -> None:
    """The server holds this test's pipe for errors: it would not be read to its end."""
    done = interrupt(
        "rsocket", "rstream", *WAYS[way], "-S", "all", "-I", "100", "-C", "100", after="name"
    )
    assert (done.code, done.err) == (130, "")
