"""Files that one process passes another."""

from __future__ import annotations

import fcntl
import os
import socket

import pytest

from urds.common.passed_files import receive_with_files, sealed_file, send_with_files


def test_a_passed_file_is_the_same_one_and_no_program_inherits_it() -> None:
    file = sealed_file("test", 4096)
    near, far = socket.socketpair()
    with near, far:
        assert send_with_files(near, b"greeting", [file]) == 8
        data, [arrived], flags = receive_with_files(far, 64, 1)
    assert (data, flags & socket.MSG_CTRUNC) == (b"greeting", 0)
    assert os.fstat(arrived).st_ino == os.fstat(file).st_ino
    assert not os.get_inheritable(arrived)
    os.close(arrived)
    os.close(file)


def test_files_beyond_the_limit_are_told_by_a_flag_and_closed() -> None:
    file = sealed_file("test", 4096)
    near, far = socket.socketpair()
    before = len(os.listdir("/proc/self/fd"))
    with near, far:
        send_with_files(near, b"two", [file] * 5)
        _, descriptors, flags = receive_with_files(far, 64, 2)
        assert flags & socket.MSG_CTRUNC
        for descriptor in descriptors:
            os.close(descriptor)
        assert (len(descriptors), len(os.listdir("/proc/self/fd"))) == (2, before)
    os.close(file)


def test_a_message_without_files() -> None:
    near, far = socket.socketpair()
    with near, far:
        send_with_files(near, b"plain", [])
        assert receive_with_files(far, 64, 2)[:2] == (b"plain", [])


def test_the_size_of_a_sealed_file_stays() -> None:
    file = sealed_file("test", 4096)
    for length in (0, 8192):
        with pytest.raises(PermissionError):
            os.ftruncate(file, length)
    assert fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SEAL
    os.close(file)
