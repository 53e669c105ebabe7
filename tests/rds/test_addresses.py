"""Socket addresses: forms that programs give, and what each call refuses."""

import errno
import socket
import struct
from ipaddress import IPv4Address, IPv6Address

import pytest

from urds.common.types import IPAddress
from urds.rds import addresses
from urds.rds.addresses import Call

V4 = IPv4Address("10.0.0.1")


def sockaddr4(host: str, port: int, family: int = socket.AF_INET) -> bytes:
    return struct.pack("=H", family) + struct.pack("!H", port) + IPv4Address(host).packed + bytes(8)


def sockaddr6(host: str, port: int, scope: int = 0) -> bytes:
    packed = IPv6Address(host).packed
    return (
        struct.pack("=H", socket.AF_INET6)
        + struct.pack("!HI", port, 0)
        + packed
        + struct.pack("=I", scope)
    )


@pytest.mark.rule("rds7-addresses")
@pytest.mark.parametrize("call", Call)
@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (("10.0.0.1", 7), (V4, 7)),
        (("::ffff:10.0.0.1", 7), (V4, 7)),
        (("fd00::1", 7), (IPv6Address("fd00::1"), 7)),
        (("fd00::1", 7, 0, 0), (IPv6Address("fd00::1"), 7)),
        (("fe80::1", 7, 0, 3), (IPv6Address("fe80::1%3"), 7)),
        (("fe80::1%3", 7), (IPv6Address("fe80::1%3"), 7)),
        (("fe80::1%3", 7, 0, 5), (IPv6Address("fe80::1%5"), 7)),  # as socket.socket has it
        (sockaddr4("10.0.0.1", 7), (V4, 7)),
        (sockaddr4("10.0.0.1", 7) + bytes(8), (V4, 7)),
        (sockaddr6("fd00::1", 7), (IPv6Address("fd00::1"), 7)),
        (sockaddr6("::ffff:10.0.0.1", 7), (V4, 7)),
        (sockaddr6("fe80::1", 7, 3), (IPv6Address("fe80::1%3"), 7)),
    ],
)
def test_an_address_is_understood(given: object, wanted: tuple[IPAddress, int], call: Call) -> None:
    assert addresses.parse(given, call) == wanted


@pytest.mark.rule("rds7-bind-no-wildcard", "rds7-unicast-only")
@pytest.mark.parametrize(
    ("given", "bind", "connect", "send"),
    [
        (("0.0.0.0", 1), errno.EINVAL, errno.EDESTADDRREQ, errno.EINVAL),
        (("", 1), errno.EINVAL, errno.EDESTADDRREQ, errno.EINVAL),
        (("255.255.255.255", 1), errno.EINVAL, errno.EINVAL, errno.EINVAL),
        (("<broadcast>", 1), errno.EINVAL, errno.EINVAL, errno.EINVAL),
        (("224.1.1.1", 1), errno.EINVAL, errno.EINVAL, errno.EINVAL),
        (("::", 1), errno.EINVAL, errno.EPROTOTYPE, errno.EINVAL),
        (("ff02::1", 1, 0, 0), errno.EINVAL, errno.EPROTOTYPE, errno.EINVAL),
        (("fe80::1", 1), errno.EINVAL, errno.EINVAL, errno.EINVAL),
        (sockaddr4("10.0.0.1", 1, 0), errno.EINVAL, errno.EAFNOSUPPORT, errno.EINVAL),
        (sockaddr4("10.0.0.1", 1, 21), errno.EINVAL, errno.EAFNOSUPPORT, errno.EINVAL),
        (sockaddr4("10.0.0.1", 1)[:15], errno.EINVAL, errno.EINVAL, errno.EINVAL),
        (sockaddr6("fd00::1", 1)[:27], errno.EINVAL, errno.EINVAL, errno.EINVAL),
        (b"\2", errno.EINVAL, errno.EINVAL, errno.EINVAL),
        (b"", errno.EINVAL, errno.EINVAL, errno.EINVAL),
    ],
)
def test_an_address_is_refused(given: object, bind: int, connect: int, send: int) -> None:
    found = []
    for call in (Call.BIND, Call.CONNECT, Call.SEND):
        with pytest.raises(OSError) as refused:
            addresses.parse(given, call)
        found.append(refused.value.errno)
    assert found == [bind, connect, send]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("10.0.0.1", TypeError),
        (None, TypeError),
        (("10.0.0.1",), TypeError),
        (("10.0.0.1", 1, 2), TypeError),
        (("10.0.0.1", "1"), TypeError),
        ((1, 1), TypeError),
        (("10.0.0.1", -1), OverflowError),
        (("10.0.0.1", 65536), OverflowError),
    ],
)
def test_what_is_no_address_is_refused_as_the_socket_module_does(
    given: object, error: type[Exception]
) -> None:
    with pytest.raises(error):
        addresses.parse(given, Call.SEND)


def test_a_name_is_looked_up_and_ipv4_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [
        (socket.AF_INET6, 0, 0, "", ("::1", 0, 0, 0)),
        (socket.AF_INET, 0, 0, "", ("127.0.0.1", 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers)
    assert addresses.parse(("localhost", 5), Call.BIND) == (IPv4Address("127.0.0.1"), 5)
    answers.pop()
    assert addresses.parse(("localhost", 5), Call.BIND) == (IPv6Address("::1"), 5)


def test_an_unknown_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(socket.gaierror):
        addresses.parse(("nowhere.invalid", 5), Call.CONNECT)


def test_a_socket_reaches_only_its_own_family() -> None:
    assert addresses.parse_target(("::ffff:10.0.0.2", 1), V4) == (IPv4Address("10.0.0.2"), 1)
    for given, local in ((("fd00::1", 1), V4), (("10.0.0.1", 1), IPv6Address("fd00::1"))):
        with pytest.raises(OSError) as refused:
            addresses.parse_target(given, local)
        assert refused.value.errno == errno.EOPNOTSUPP


def test_a_program_sees_two_members_or_four() -> None:
    assert addresses.socket_address(V4, 1) == ("10.0.0.1", 1)
    assert addresses.socket_address(IPv6Address("fd00::1"), 1) == ("fd00::1", 1, 0, 0)
    assert addresses.socket_address(IPv6Address("fe80::1%3"), 1) == ("fe80::1", 1, 0, 3)


@pytest.mark.parametrize("scope", ["²", "9" * 5000, "no such interface"])
def test_a_scope_that_is_no_number_is_sought_among_interfaces(scope: str) -> None:
    with pytest.raises(OSError):
        addresses.parse((f"fe80::1%{scope}", 7), Call.SEND)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_who_binds_a_wildcard_is_told_that_there_is_none(host: str) -> None:
    with pytest.raises(OSError, match=r"not unicast; RDS has no wildcard, give one address$"):
        addresses.parse((host, 7), Call.BIND)
