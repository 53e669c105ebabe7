"""Each line of docs/differences.md about the calls of C: `test_difference_` and its name."""

from collections.abc import Iterator

import pytest

from tests.cli.commands import address
from tests.rds.sockets.recording import outcome
from tests.shim import called
from tests.shim.conftest import Programs


@pytest.fixture
def program(programs: Programs) -> Iterator[called.Program]:
    """Start the program that makes calls."""
    with called.Program(programs.compiled("calls"), programs.variables()) as started:
        yield started


def test_difference_write_sends(program: called.Program) -> None:
    with program.socket() as near, program.socket() as far:
        near.bind((address(11), 0))
        far.bind((address(11), 0))
        near.connect(far.getsockname())
        assert near.raw("write", "<6869", 2)[0] == 2
        far.settimeout(20)
        assert far.recv(10) == b"hi"


def test_difference_socketpair(program: called.Program) -> None:
    def pair() -> None:
        program.call("socketpair", called.AF_RDS, 5, 0, ">8*")

    assert outcome(pair) == "E:EAFNOSUPPORT"
