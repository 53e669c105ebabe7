"""Parameters have the names of `socket.socket`, and a TypeError tells no internal name."""

import inspect
import re
import socket
from typing import Any

import pytest

import urds
from tests.rds.sockets.conftest import NewSocket

# Source: cpython v3.13 Modules/socketmodule.c, Doc/library/socket.rst.
NAMES = {
    "bind": "address", "connect": "address", "connect_ex": "address", "getpeername": "",
    "getsockname": "", "getsockopt": "level optname buflen", "recv": "bufsize flags",
    "recv_into": "buffer nbytes flags", "recvfrom": "bufsize flags",
    "recvfrom_into": "buffer nbytes flags", "recvmsg": "bufsize ancbufsize flags",
    "recvmsg_into": "buffers ancbufsize flags", "send": "data flags", "sendall": "data flags",
    "sendmsg": "buffers ancdata flags address copy", "setblocking": "flag",
    "setsockopt": "level optname value optlen", "settimeout": "timeout",
}  # fmt: skip
NEEDS_ARGUMENTS = sorted({*NAMES, "sendto"} - {"getpeername", "getsockname"})
INTERNAL = re.compile(r"Mailbox|SocketBase|RdmaSocket|Inbox|_bytes_max|wait_s|payload")


@pytest.mark.parametrize("name", NAMES)
def test_a_parameter_has_the_name_of_the_socket_module(name: str) -> None:
    found = list(inspect.signature(getattr(urds.Socket, name)).parameters)[1:]
    assert found == NAMES[name].split()
    assert hasattr(socket.socket, name)


@pytest.mark.parametrize("name", NEEDS_ARGUMENTS)
def test_a_call_without_arguments_tells_no_internal_name(name: str, new_socket: NewSocket) -> None:
    for sock in (new_socket(), new_socket(1)):
        with pytest.raises(TypeError) as caught:
            getattr(sock, name)()
        text = str(caught.value)
        assert re.match(rf"(Socket\.)?{name}\(\) ", text), text
        assert INTERNAL.search(text) is None, text


@pytest.mark.parametrize("name", ["sendto", "recvfrom"])
def test_a_call_with_too_many_arguments_tells_none_either(name: str, new_socket: NewSocket) -> None:
    with pytest.raises(TypeError) as caught:
        getattr(new_socket(1), name)(1, 2, 3, 4, 5)
    assert INTERNAL.search(str(caught.value)) is None, str(caught.value)


@pytest.mark.parametrize(
    "given", [["127.0.0.1", 1], ([], 1), bytearray(16), memoryview(bytearray(16))]
)
def test_what_is_no_address_is_told_in_the_words_of_the_socket_module(
    given: Any, new_socket: NewSocket
) -> None:
    """What cannot be a key of a table, too."""
    with pytest.raises(TypeError, match=r"sendto\(\): AF_RDS address must be "):
        new_socket(1).sendto(b"", given)
