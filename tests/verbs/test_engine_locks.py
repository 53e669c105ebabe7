"""Locks of the compiled verbs engine: collections, threads and closing at any moment.

Each is a process of its own, which a hang of it cannot take this one along: `engine_threads`.
"""

import subprocess
import sys

import pytest

from tests.support.children import ROOT, SOURCES

native = pytest.importorskip("urds_native")
END_S = 100.0  # of a process that has not come to its end: it hangs


def play(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.verbs.engine_threads", name],
        cwd=ROOT, env=SOURCES, check=False, capture_output=True, text=True, timeout=END_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_collection_may_close_what_it_likes() -> None:
    play("collections")


def test_posts_polls_and_closes_of_several_threads_mix() -> None:
    play("races")
