"""Processes that were killed and have not ended: their memory takes its time to go."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from urds.common import ending
from urds.common.ending import is_ending, peer_process

Start = Callable[[str], "subprocess.Popen[str]"]

# `flags` and `signal` of a thread's `stat`; nothing for one that has no memory any more.
NO_MEMORY: tuple[int, ...] = ()
RUNS, LEAVES, KILLED, TERMINATED = (0x400040, 0), (0x40800C, 0), (0x400040, 256), (0x400040, 16384)
THREAD = "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start(); "
STAYS = THREAD + "print(1, flush=True); time.sleep(60)"
SYS_EXIT = 60 if os.uname().machine == "x86_64" else 93
LEADER_ENDS = (
    THREAD + f"import ctypes; print(1, flush=True); ctypes.CDLL(None).syscall({SYS_EXIT}, 0)"
)


@pytest.mark.parametrize(
    ("threads", "expected"),
    [
        ([RUNS], False),
        ([KILLED], True),
        ([LEAVES], True),
        ([LEAVES, KILLED], True),
        ([KILLED, RUNS], False),
        ([LEAVES, RUNS], False),
        ([TERMINATED], False),
        ([NO_MEMORY, KILLED], True),
        ([NO_MEMORY, RUNS], False),
        ([], False),
    ],
)
def test_all_threads_are_at_their_end(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    threads: list[tuple[int, ...]],
    expected: bool,
) -> None:
    monkeypatch.setattr(ending, "_PROC", tmp_path)
    (tmp_path / "7" / "task").mkdir(parents=True)
    for number, thread in enumerate(threads):
        folder = tmp_path / "7" / "task" / str(number)
        folder.mkdir()
        flags, pending = thread or (0, 0)
        if thread:
            (folder / "exe").symlink_to("program")
        fields = ["R", "1", "7", "7", "0", "-1", str(flags), *["0"] * 21, str(pending), "0", "0"]
        (folder / "stat").write_text(f"{number} (a) R b) {' '.join(fields)}\n")
    assert is_ending(7) is expected


def test_of_what_is_not_there_nothing_is_known() -> None:
    assert not is_ending(0)
    assert not is_ending(1 << 30)


@pytest.fixture
def start() -> Iterator[Start]:
    """Yield what starts a process of two threads, which says when it has both."""
    made: list[subprocess.Popen[str]] = []

    def start_one(code: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", code]
        made.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert made[-1].stdout is not None
        made[-1].stdout.readline()
        return made[-1]

    yield start_one
    for process in made:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("code", [STAYS, LEADER_ENDS], ids=["both", "one has ended"])
def test_a_process_is_ending_from_its_kill_until_it_was_waited_for(start: Start, code: str) -> None:
    process = start(code)
    assert not is_ending(process.pid)
    if code == STAYS:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert not is_ending(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert is_ending(process.pid)
    process.wait()
    assert not is_ending(process.pid)


def test_each_end_of_a_connection_knows_the_others_process() -> None:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right:
        assert peer_process(left) == peer_process(right) == os.getpid()
