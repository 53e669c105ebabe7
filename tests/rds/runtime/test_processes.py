"""Asking another process for its report, where what answers is not to be trusted."""

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from urds.rds.runtime.processes import GREETING, Silent, ask


@pytest.fixture
def place(tmp_path: Path) -> Iterator[tuple[Path, socket.socket]]:
    path = tmp_path / "7.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(path))
        listener.listen()
        yield path, listener


def answer(listener: socket.socket, greeting: bytes, descriptor: int) -> threading.Thread:
    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            socket.send_fds(connection, [greeting], [descriptor])

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def test_a_pipe_is_no_report(place: tuple[Path, socket.socket]) -> None:
    """Its other end stays open: to read it would never end."""
    path, listener = place
    reading, writing = os.pipe()
    thread = answer(listener, GREETING, reading)
    assert ask(7, path) == Silent(7, "its report is no memory file")
    thread.join()
    os.close(reading)
    os.close(writing)


def test_another_release_is_told(place: tuple[Path, socket.socket]) -> None:
    path, listener = place
    with open(os.devnull, "rb") as file:
        thread = answer(listener, b"urds report 0\n", file.fileno())
        assert ask(7, path) == Silent(7, "it is of another release")
        thread.join()
