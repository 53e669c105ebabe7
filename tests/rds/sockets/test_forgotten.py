"""Sockets that go out of scope without a close, or whose close a signal handler ends."""

import errno
import signal
import socket
import struct
import sys
import threading
import time
import warnings
from collections.abc import Callable
from itertools import count

import pytest

import urds
from tests.rds.sockets.conftest import NewSocket
from tests.rds.sockets.hosts import host
from tests.rds.sockets.interrupting import Interruption
from tests.support import backends
from tests.support.waiting import BUSY_S, ENDLESS_S, wait_until
from urds.rds.constants import SOL_RDS, InfoOpt
from urds.rds.runtime.inprocess import InProcess

PORT = 4000
ABSENT = (host(99), PORT)


def bound(port: int = PORT) -> urds.Socket:
    sock = urds.Socket()
    sock.bind((host(1), port))
    return sock


@pytest.mark.usefixtures("backend")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_port_of_a_forgotten_socket_is_free_at_once() -> None:
    for _ in range(200):
        sock = bound()
        del sock


@pytest.mark.usefixtures("backend")
def test_warnings_that_are_errors_do_not_keep_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda hook: told.append(hook.exc_type))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            sock = bound()
            sock.fileno()
            del sock
    assert told == [ResourceWarning] * 3


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_list_of_sockets_has_neither_a_forgotten_one_nor_its_peer(
    new_socket: NewSocket, backend: InProcess
) -> None:
    asker = new_socket(2)

    def sockets() -> int:
        return len(asker.getsockopt(SOL_RDS, InfoOpt.SOCKETS, 1 << 16))

    before = sockets()
    sock = bound()
    sock.connect(ABSENT)
    del sock
    if backends.IS_ATTACHED:  # the node hears of it a moment later
        wait_until(lambda: sockets() == before)
    assert sockets() == before
    with bound():
        listed = asker.getsockopt(SOL_RDS, InfoOpt.SOCKETS, 1 << 16)
        assert socket.inet_aton(ABSENT[0]) not in listed


def is_without_sockets(backend: InProcess) -> bool:
    """Tell whether no socket is left; a node hears of each close a moment later."""
    if backends.IS_ATTACHED:
        wait_until(lambda: not backend.snapshot().mailboxes)
    return not backend.snapshot().mailboxes


def is_without_faults(backend: InProcess) -> bool:
    """Tell whether the control thread had no fault, where it is in this process."""
    return backends.IS_ATTACHED or not backend._driver.stats.control_faults


def lingering(sock: urds.Socket, linger_s: int = 1) -> Callable[[], object]:
    """Have a message on its way to an absent peer, and a close that waits for it."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, linger_s))
    sock.sendto(b"unheard", ABSENT)
    return sock.close


def plain(sock: urds.Socket) -> Callable[[], object]:
    sock.fileno()
    return sock.close


@pytest.mark.parametrize("prepare", [plain, lingering])
def test_a_close_that_a_handler_ends_leaves_the_port_free_or_the_socket_open(
    backend: InProcess, prepare: Callable[[urds.Socket], Callable[[], object]]
) -> None:
    if backends.IS_ATTACHED and prepare is lingering:
        pytest.skip("over a node the wait is in Python: more places than there is time for")
    for at in count(1):
        sock = bound()
        close = prepare(sock)
        start = time.monotonic()
        with Interruption(at) as interruption:
            close()
        if not interruption.fired or time.monotonic() - start > 0.8:
            break  # the end of the wait, which is one call of the compiled plane
        if sock.fileno() >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
        assert sock.fileno() == -1
        bound().close()
        assert is_without_sockets(backend), interruption.positions
    assert at > 1
    assert is_without_faults(backend)


def test_an_interrupted_wait_of_a_close_frees_the_port(new_socket: NewSocket) -> None:
    """The handler comes while the call sleeps."""
    sock = bound()
    lingering(sock, round(ENDLESS_S))
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        _raise_soon(sock.close)
    assert time.monotonic() - start < BUSY_S
    assert sock.fileno() == -1
    bound().close()


def _raise_soon(call: Callable[[], object]) -> None:
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.2, signal.pthread_kill, [main, signal.SIGUSR2])

    def handle(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR2, handle)
    try:
        timer.start()
        call()
    finally:
        timer.join()
        signal.signal(signal.SIGUSR2, before)


def binding(sock: urds.Socket) -> Callable[[], object]:
    sock.fileno()
    return lambda: sock.bind((host(1), PORT))


def test_a_bind_that_a_handler_ends_is_none_or_whole(backend: InProcess) -> None:
    """A caller that finds it bound has its methods; the port of one that is not is free."""
    bound(PORT + 1).close()
    for at in count(1):
        sock = urds.Socket()
        run = binding(sock)
        with Interruption(at) as interruption:
            run()
        name = sock.getsockname()
        if name == (host(1), PORT):
            sock.sendto(b"own", name)
            if backends.IS_ATTACHED:  # it goes by way of the node
                sock.settimeout(ENDLESS_S)
            flags = 0 if backends.IS_ATTACHED else urds.MSG_DONTWAIT
            assert sock.recv(10, flags) == b"own", interruption.positions
        sock.close()
        bound().close()
        assert is_without_sockets(backend), interruption.positions
        if not interruption.fired:
            break
    assert at > 5
    assert is_without_faults(backend)


def test_a_bind_without_a_descriptor_left_is_none(
    new_socket: NewSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    sock = new_socket()
    sock.fileno()

    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "")

    with monkeypatch.context() as patch:
        patch.setattr("urds.common.readiness.Placeholder.become", refuse)
        with pytest.raises(OSError, match="24"):
            sock.bind((host(1), PORT))
    assert sock.getsockname() != (host(1), PORT)
    assert not {"sendto", "recvfrom"} & vars(sock).keys()
    sock.bind((host(1), PORT))
