"""`urds dask demo` where Dask is not installed, and its lines. The rest is in tests/dask."""

import pytest

from tests.cli.commands import urds
from urds.cli.dask.demo import Outcome, comparison, summary


def _outcome(scheme: str, result: str, workers_lost: int = 0) -> Outcome:
    return Outcome(
        scheme=scheme, result=result, reason="KilledWorker" if result == "lost" else None, tasks=5,
        tasks_total=9, workers_lost=workers_lost, resets=7, seconds=1.25,
    )  # fmt: skip


def test_without_dask_it_says_what_to_install() -> None:
    done = urds("dask", "demo")
    assert (done.code, done.out) == (1, "")
    assert (
        done.err == "urds dask demo: Dask is not installed: in a checkout, pip install '.[dask]'\n"
    )


def test_a_wrong_option_is_told_before() -> None:
    done = urds("dask", "demo", "--workers", "1")
    assert (done.code, done.err) == (2, "urds dask demo: --workers 1: must be from 2 to 16\n")


def test_a_line_tells_what_became_of_a_job() -> None:
    assert summary(_outcome("tcp", "lost", 3)) == (
        "tcp://  job lost (KilledWorker) after 1.2 s: tasks 5 of 9, workers lost 3, resets 7"
    )
    assert "result wrong after" in summary(_outcome("rds", "wrong"))


@pytest.mark.parametrize(
    ("tcp", "rds", "words"),
    [
        (("lost", 3), ("right", 0), "Over RDS the job never knew"),
        (("right", 1), ("right", 0), "Both results are right; workers lost: 1 and 0."),
        (("lost", 3), ("lost", 1), "which is a fault"),
        (("wrong", 0), ("right", 0), "Over RDS the job never knew"),
    ],
)
def test_both_are_compared(tcp: tuple[str, int], rds: tuple[str, int], words: str) -> None:
    assert words in comparison(_outcome("tcp", *tcp), _outcome("rds", *rds))
