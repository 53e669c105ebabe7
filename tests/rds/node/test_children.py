"""What a fork server said before its end counts, though no thread listened in time."""

import os
import signal
import socket

import pytest

from urds.rds.node.children import ForkServerProcess
from urds.rds.node.plan import Plan

WORKER = 4711
PROGRAM = f"""
import os, sys, time
from urds.rds.node.channel import Channel
from urds.rds.node.plan import Plan
plan = Plan.of(sys.argv[-1])
channel = Channel.of_descriptor(plan.channel)
channel.send("ready")
channel.send("ended", worker={WORKER}, status=-9)
channel.send("failed", reason="no memory")
os.write(plan.listener, b"said")
"""


def start(then: str) -> ForkServerProcess:
    """Return a fork server that said all that it says; `then` is what else it does."""
    own, other = socket.socketpair()
    plan = Plan(
        place="", config=None, listener=-1, channel=-1, idle_exit_s=0, log="", log_level="",
        journal=False,
    )  # fmt: skip
    with own, other:
        server = ForkServerProcess(["-c", PROGRAM + then], plan, other)
        own.settimeout(60)
        assert own.recv(4) == b"said"
    return server


def test_what_one_that_ended_said_is_known() -> None:
    server = start("sys.exit(3)")
    server._process.wait()
    assert server.discard() == 3
    assert (server.is_ready, server.failure) == (True, "no memory")
    assert server.status_of(WORKER) == -9
    assert server.discard() == 3, "again"


@pytest.mark.parametrize("is_asked", [False, True], ids=["idle", "with a request unread"])
def test_what_one_that_is_killed_said_is_known(is_asked: bool) -> None:
    server = start("time.sleep(600)")
    if is_asked:
        server.channel.send("fork")
    assert server.discard() == -signal.SIGKILL
    assert (server.is_ready, server.failure) == (True, "no memory")
    assert server.status_of(WORKER) == -9


def test_a_worker_that_was_forked_too_late_leaves_no_descriptor() -> None:
    server = start('channel.send("forked", [0, 0], worker=1); sys.exit(0)')
    server._process.wait()
    before = os.listdir("/proc/self/fd")
    server.hear()
    assert os.listdir("/proc/self/fd") == before
    server.discard()
