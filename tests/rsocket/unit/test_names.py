"""Names of rsockets: what is understood, what is refused, what is shown. No resolver is asked."""

import socket
from socket import AF_INET, AF_INET6

import pytest

from urds.rsocket import addresses

LOOPBACK = socket.if_indextoname(1) if hasattr(socket, "if_indextoname") else "lo"


@pytest.mark.parametrize(
    ("given", "family", "address"),
    [
        (("127.0.0.1", 80), AF_INET, ("127.0.0.1", 80)),
        (("", 0), AF_INET, ("0.0.0.0", 0)),
        (("", 0), AF_INET6, ("::", 0)),
        (("::1", 65_535), AF_INET6, ("::1", 65_535)),
        (("::1", 1, 0), AF_INET6, ("::1", 1)),
        (("::1", 1, 0, 3), AF_INET6, ("::1", 1)),  # no scope where there is none
        (("fe80::1", 1, 0, 1), AF_INET6, ("fe80::1%1", 1)),
        (("fe80::1%7", 1, 0, 3), AF_INET6, ("fe80::1%7", 1)),
    ],
)
def test_a_name_becomes_an_address(given, family: int, address) -> None:
    assert addresses.parse(given, family, "bind") == address


@pytest.mark.parametrize(
    ("given", "family", "error"),
    [
        ("127.0.0.1:80", AF_INET, TypeError),
        (["127.0.0.1", 80], AF_INET, TypeError),
        (("127.0.0.1", 80, 0, 0), AF_INET, TypeError),
        (("::1",), AF_INET6, TypeError),
        (("127.0.0.1", 8.0), AF_INET, TypeError),
        ((b"127.0.0.1", 80), AF_INET, TypeError),
        (("127.0.0.1", -1), AF_INET, OverflowError),
        (("127.0.0.1", 65_536), AF_INET, OverflowError),
    ],
)
def test_what_is_no_name(given, family: int, error: type[Exception]) -> None:
    with pytest.raises(error, match="bind"):
        addresses.parse(given, family, "bind")


@pytest.mark.parametrize(
    ("address", "family", "name"),
    [
        (("127.0.0.1", 80), AF_INET, ("127.0.0.1", 80)),
        (("::1", 80), AF_INET6, ("::1", 80, 0, 0)),
        (("fe80::1%3", 80), AF_INET6, ("fe80::1", 80, 0, 3)),
        ((f"fe80::1%{LOOPBACK}", 80), AF_INET6, ("fe80::1", 80, 0, 1)),
        (("10.0.0.1", 80), AF_INET6, ("::ffff:10.0.0.1", 80, 0, 0)),
    ],
)
def test_an_address_is_shown_as_a_name(address, family: int, name) -> None:
    assert addresses.shown(address, family) == name


def test_a_connect_to_any_address_goes_to_this_host() -> None:
    assert addresses.reachable(("0.0.0.0", 9)) == ("127.0.0.1", 9)
    assert addresses.reachable(("::", 9)) == ("::1", 9)
    assert addresses.reachable(("10.0.0.1", 9)) == ("10.0.0.1", 9)
