"""`python -m benches.verbs`, run as it is run by hand; no figure is judged."""

import json

import pytest

from tests.cli.commands import urds

PROGRAM = "benches.verbs"
SHORT = ("--seconds", "0.01", "--connections", "3")


@pytest.mark.parametrize("device", ["shm0", "tcp0", "udp0"])
def test_each_device_is_measured_beside_plain_sockets(device: str) -> None:
    done = urds("--device", device, "--size", "64", *SHORT, "--json", program=PROGRAM)
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    sends = {row["device"] for row in found["latency"] if row["operation"] == "SEND"}
    writes = {row["device"] for row in found["bandwidth"] if row["operation"] == "WRITE"}
    assert (sends, writes) == ({"tcp", "unix", device}, {device})
    assert all(row["min_us"] <= row["typical_us"] <= row["max_us"] for row in found["latency"])
    [connections] = found["connections"]
    assert (connections["device"], connections["count"]) == (device, 3)
    assert isinstance(connections["bytes_per_qp"], int)  # of three: the allocator's noise is more


def test_the_tables_have_perftests_columns() -> None:
    done = urds("--device", "shm0", "--size", "1", "--size", "4096", *SHORT, program=PROGRAM)
    assert done.code == 0
    for title in ("SEND latency:", "SEND bandwidth:", "WRITE latency:", "WRITE bandwidth:"):
        assert title in done.out
    assert "#bytes #iterations t_min[us] t_max[us] t_typical[us] t_avg[us]" in done.out
    assert "BW average[MB/s] MsgRate[Mpps]" in done.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--size", "0"), "--size 0: must be from 1 to"),
        (("--device", "nosuch"), "--device nosuch: there are"),
        (("--connections", "0"), "--connections 0: must be from 1"),
        (("--seconds", "0"), "--seconds 0.0: must be from"),
    ],
)
def test_what_cannot_be_is_wrong_usage(arguments: tuple[str, ...], words: str) -> None:
    done = urds(*arguments, program=PROGRAM)
    assert done.code == 2
    assert words in done.err
