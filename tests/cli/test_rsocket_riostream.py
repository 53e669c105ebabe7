"""`urds rsocket riostream`, run as a user runs it; speed is not judged."""

import json

import pytest

from tests.cli.commands import urds

EACH_DEVICE = pytest.mark.parametrize("device", ["shm", "tcp"])


@EACH_DEVICE
@pytest.mark.parametrize("manner", ["b", "n"])
def test_mapped_writes_arrive_whole(device: str, manner: str) -> None:
    done = urds(
        *("rsocket", "riostream", "--device", device, "-T", manner, "-T", "v"),
        *("-S", "70000", "-C", "3", "-I", "2", "--json"),
    )
    assert (done.code, done.err) == (0, "")
    [row] = json.loads(done.out)
    assert (row["name"], row["size_bytes"], row["total_bytes"]) == ("custom", 70_000, 840_000)


@EACH_DEVICE
def test_one_byte_is_its_own_mark(device: str) -> None:
    """Longer than the 250 marks: none is taken for one of an earlier turn."""
    done = urds(
        *("rsocket", "riostream", "--device", device, "-S", "1", "-C", "1", "-I", "300"), "--json"
    )
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out)[0]["total_bytes"] == 600


@pytest.mark.parametrize("letter", ["s", "a", "f"])
def test_letters_that_mapped_buffers_do_not_know(letter: str) -> None:
    done = urds("rsocket", "riostream", "-T", letter)
    assert done.code == 2
    assert f"-T {letter}: must be one of b, n, r, v" in done.err
