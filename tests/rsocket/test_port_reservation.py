"""A free port is one that every device can listen at, and it stays free until then."""

import contextlib
import errno
import socket
from typing import Any, ClassVar

import pytest

from tests.rsocket.polling_world import HOST, world
from tests.rsocket.socket_pairs import error_of
from urds.common.socket_class import KernelSocket
from urds.rsocket.link import listener


def taken_udp_port(closing: contextlib.ExitStack) -> int:
    """Return a port that is free for TCP and that a UDP socket has."""
    taken = closing.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    with contextlib.suppress(OSError), socket.socket() as free:
        taken.bind((HOST, 0))
        free.bind(taken.getsockname())
        return int(taken.getsockname()[1])
    return taken_udp_port(closing)


def test_a_port_that_a_datagram_socket_has_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.ExitStack() as closing:
        first = taken_udp_port(closing)

        class Chosen(KernelSocket):
            """The kernel's sockets, of which the first is given that port."""

            __slots__ = ()
            ports: ClassVar = [first]

            def bind(self, address: Any, /) -> None:
                host, port = address
                super().bind((host, port or (self.ports.pop() if self.ports else 0)))

        monkeypatch.setattr(listener, "KernelSocket", Chosen)
        made = closing.enter_context(world("udp0"))
        server = made.socket()
        server.bind((HOST, 0))
        assert not Chosen.ports
        assert server.getsockname()[1] != first
        server.listen()


def test_a_port_that_is_named_is_refused_where_a_device_cannot_have_it() -> None:
    with contextlib.ExitStack() as closing:
        port = taken_udp_port(closing)
        server = closing.enter_context(world("udp0")).socket()
        server.bind((HOST, port))
        assert error_of(server.listen) == errno.EADDRINUSE


@pytest.mark.parametrize("then", ["listen", "connect", "close"])
def test_no_other_takes_the_port_between_bind_and_its_use(then: str) -> None:
    with contextlib.ExitStack() as closing:
        made = closing.enter_context(world("udp0"))
        there, here = made.listener(), made.socket()
        here.bind((HOST, 0))
        name = here.getsockname()
        other = closing.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        assert error_of(other.bind, name) == errno.EADDRINUSE
        if then == "listen":
            here.listen()
        elif then == "connect":
            here.connect(there.getsockname())
        else:
            here.close()
            other.bind(name)
