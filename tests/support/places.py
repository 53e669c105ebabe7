"""Where the hosts of a test live: at addresses of 127/8, or in two network namespaces with a link.

Both places have one protocol, `Place`. A namespace lives as long as a process that holds it, and
the holder ends when its input does: a run that is killed leaves nothing behind.

`TEST_PLACES=netns4,netns6` has the suites that obey it run once in each place named.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Final, Protocol

import pytest

from urds.rds.constants import RDS_TCP_PORT

HOSTS_MAX: Final = 254
LINK: Final = "v0"  # what a namespace calls its end of the link
Inside = Callable[[str], AbstractContextManager[None]]  # what `Place.inside` is
CHOSEN: Final = tuple(os.environ.get("TEST_PLACES", "loopback").split(","))
_COMMANDS: Final = ("ip", "unshare", "nsenter")
_LOCK_PORT: Final = RDS_TCP_PORT - 1
_UNSHARED_S: Final = 10.0
_CLONE_NEWNET: Final = 0x40000000  # Source: linux v6.12 include/uapi/linux/sched.h
_counted = itertools.count(os.getpid())


class Place(Protocol):
    """Gives hosts, counted from 0, their addresses."""

    @property
    def name(self) -> str:
        """Return what `take` knows the place by."""

    def address(self, host: int) -> str:
        """Return the address of a host; a higher host has a higher one."""

    def host(self, address: str) -> int:
        """Return the host that has an address."""

    def prefix(self, host: int) -> tuple[str, ...]:
        """Return what is put in front of a command that shall run at a host."""

    def inside(self, address: str) -> AbstractContextManager[None]:
        """Make the sockets and threads that this thread makes meanwhile those of a host."""

    def close(self) -> None:
        """Leave nothing behind."""


class Loopback:
    """A range of 127.8/16 that no other test uses, in this run or in another one."""

    name = "loopback"

    def __init__(self) -> None:
        self._prefix, self._lock = take_subnet(8, 1)

    def address(self, host: int) -> str:
        """Return the address of a host."""
        return f"{self._prefix}.{_checked(host) + 1}"

    def host(self, address: str) -> int:
        """Return the host that has an address."""
        return int(address.rpartition(".")[2]) - 1

    def prefix(self, host: int) -> tuple[str, ...]:
        """Return nothing: every process reaches 127/8."""
        return ()

    def inside(self, address: str) -> AbstractContextManager[None]:
        """Do nothing: every thread reaches 127/8."""
        return nullcontext()

    def close(self) -> None:
        """Leave the range to others."""
        self._lock.close()


class Namespace:
    """One network namespace with its own loopback and no other link."""

    def __init__(self) -> None:
        # `cat` ends with its input, and so does the namespace, however this process ends.
        self._holder = subprocess.Popen(
            ["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        self.file = Path(f"/proc/{self._holder.pid}/ns/net")
        try:
            self._await_unshared()
            self.ip("link set lo up")
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Return the number of the process that holds the namespace."""
        return self._holder.pid

    @property
    def prefix(self) -> tuple[str, ...]:
        """Return what is put in front of a command that shall run here."""
        return ("nsenter", f"--net={self.file}")

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Have this thread be here: a namespace is a thread's, new threads have their maker's.

        Source: network_namespaces(7), setns(2).
        """
        with open("/proc/thread-self/ns/net") as before, self.file.open() as here:
            _set_namespace(here.fileno())
            try:
                yield
            finally:
                _set_namespace(before.fileno())

    def run(self, *command: str) -> str:
        """Run a command here; return what it printed. Raises CalledProcessError if it failed."""
        done = subprocess.run(
            [*self.prefix, *command], check=True, stdout=subprocess.PIPE, text=True, timeout=30
        )
        return done.stdout

    def ip(self, *lines: str) -> None:
        """Run commands of `ip`, one a line."""
        command = [*self.prefix, "ip", "-batch", "-"]
        subprocess.run(command, input="\n".join(lines), check=True, text=True, timeout=30)

    def scope(self, link: str = LINK) -> int:
        """Return the number of a link."""
        return int(self.run("ip", "-oneline", "link", "show", link).partition(":")[0])

    def close(self) -> None:
        """End the namespace: with its last process and socket, that is."""
        self._holder.kill()
        self._holder.communicate()

    def _await_unshared(self) -> None:
        own, deadline_s = os.readlink("/proc/self/ns/net"), time.monotonic() + _UNSHARED_S
        while os.readlink(self.file) == own:
            assert self._holder.poll() is None, "no network namespace can be made here"
            assert time.monotonic() < deadline_s, "unshare made no namespace"
            time.sleep(0.001)


class Namespaces:
    """Two namespaces joined by a veth pair: the left one has the even hosts, the right the odd."""

    def __init__(self, *, ipv6: bool) -> None:
        self.ipv6 = ipv6
        self.name = "netns6" if ipv6 else "netns4"
        self._hosts = {self.address(host): host for host in range(HOSTS_MAX)}
        with ExitStack() as ending:
            self.left = Namespace()
            ending.callback(self.left.close)
            self.right = Namespace()
            ending.callback(self.right.close)
            self._join()
            self._ending = ending.pop_all()

    @property
    def sides(self) -> tuple[Namespace, Namespace]:
        """Return the left and the right namespace."""
        return self.left, self.right

    def side(self, host: int) -> Namespace:
        """Return the namespace of a host."""
        return self.sides[_checked(host) % 2]

    def address(self, host: int) -> str:
        """Return the address of a host."""
        number = _checked(host) + 1
        return f"fd75:7264:73::{number:x}" if self.ipv6 else f"10.117.114.{number}"

    def host(self, address: str) -> int:
        """Return the host that has an address."""
        return self._hosts[address]

    def prefix(self, host: int) -> tuple[str, ...]:
        """Return what is put in front of a command that shall run at a host."""
        return self.side(host).prefix

    def inside(self, address: str) -> AbstractContextManager[None]:
        """Make the sockets and threads that this thread makes meanwhile those of a host."""
        return self.side(self.host(address)).entered()

    def close(self) -> None:
        """End both namespaces, and the link with them."""
        self._ending.close()

    def _join(self) -> None:
        peer = f"peer name {LINK} netns {self.right.pid}"
        self.left.ip(f"link add {LINK} type veth {peer}")
        for parity, side in enumerate(self.sides):
            hosts = range(parity, HOSTS_MAX, 2)
            side.ip(*(self._addition(host) for host in hosts), f"link set {LINK} up")

    def _addition(self, host: int) -> str:
        """Return the command that adds the address of a host."""
        if self.ipv6:  # without `nodad` it could not be bound for a second
            return f"address add {self.address(host)}/64 dev {LINK} nodad"
        return f"address add {self.address(host)}/24 dev {LINK}"


def take(name: str) -> Loopback | Namespaces:
    """Make the place of that name: "loopback", "netns4" or "netns6"."""
    if name == Loopback.name:
        return Loopback()
    assert name in ("netns4", "netns6"), name
    return Namespaces(ipv6=name == "netns6")


def family_of(address: str) -> socket.AddressFamily:
    """Return the family of an address."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def is_loopback() -> bool:
    """Tell whether suites run at addresses of 127/8 alone, which is so unless asked otherwise."""
    return set(CHOSEN) == {Loopback.name}


def generate_tests(metafunc: pytest.Metafunc, fixture: str) -> None:
    """Have a test with that fixture, which calls `taken`, run at each place of `TEST_PLACES`."""
    if fixture in metafunc.fixturenames and not is_loopback():
        metafunc.parametrize(fixture, CHOSEN, indirect=True)


@contextmanager
def taken(request: pytest.FixtureRequest) -> Iterator[Loopback | Namespaces]:
    """Give the place that the test is to run at, as `generate_tests` said."""
    name = getattr(request, "param", Loopback.name)
    if name != Loopback.name and (reason := missing()):
        pytest.skip(reason)
    place = take(name)
    try:
        yield place
    finally:
        place.close()


def missing() -> str:
    """Return why there can be no namespace here, or nothing."""
    if os.geteuid() != 0:
        return "a network namespace needs root"
    absent = [command for command in _COMMANDS if shutil.which(command) is None]
    return f"{', '.join(absent)} not installed" if absent else ""


def _set_namespace(descriptor: int) -> None:
    """Move this thread. Python has `os.setns` from 3.12 on."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.setns(descriptor, _CLONE_NEWNET):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _checked(host: int) -> int:
    assert 0 <= host < HOSTS_MAX, f"host {host}, not 0 to {HOSTS_MAX - 1}"
    return host


def take_subnet(first: int, networks: int) -> tuple[str, socket.socket]:
    """Return `127.X.Y` that no other test process has, and the lock that keeps it.

    X is one of `networks` numbers from `first`.
    """
    return _taken(
        f"127.{first + number // 256}.{number % 256}" for number in _numbers(networks * 256)
    )


def take_networks(first: int, blocks: int) -> tuple[int, socket.socket]:
    """Return X of networks `127.X` to `127.(X + 3)` that no other test process has, and the lock.

    They are one of so many blocks from `first`.
    """
    prefix, lock = _taken(f"127.{first + 4 * number}.255" for number in _numbers(blocks))
    return int(prefix.split(".")[1]), lock


def _numbers(count: int) -> Iterator[int]:
    """Yield all numbers below `count`, each process from another one on."""
    return (next(_counted) % count for _ in range(count))


def _taken(prefixes: Iterable[str]) -> tuple[str, socket.socket]:
    for prefix in prefixes:
        lock = socket.socket()
        try:
            lock.bind((f"{prefix}.255", _LOCK_PORT))
        except OSError:
            lock.close()
        else:
            return prefix, lock
    raise AssertionError("too many tests at once")


if __name__ == "__main__":  # why two namespaces cannot be made, or nothing, for the Makefile
    print(missing())
