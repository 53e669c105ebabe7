"""The errno table and the exceptions made from it."""

import errno

import pytest

from urds.errors import (
    ERRNO_OF,
    LocalProtocolError,
    Refusal,
    RemoteProtocolError,
    WireError,
    os_error,
)


@pytest.mark.parametrize("refusal", Refusal)
def test_each_refusal_makes_an_os_error_with_its_errno(refusal: Refusal) -> None:
    problem = os_error(refusal)
    assert isinstance(problem, OSError)
    assert problem.errno == ERRNO_OF[refusal]
    assert refusal.name.lower().replace("_", " ") in str(problem).lower()


@pytest.mark.parametrize(
    ("refusal", "code", "subclass"),
    [
        (Refusal.NOT_BOUND, errno.ENOTCONN, OSError),
        (Refusal.DESTINATION_ANY, errno.EDESTADDRREQ, OSError),
        (Refusal.TOO_LONG, errno.EMSGSIZE, OSError),
        (Refusal.QUEUE_FULL, errno.EAGAIN, BlockingIOError),
        (Refusal.NOTHING_TO_RECEIVE, errno.EAGAIN, BlockingIOError),
        (Refusal.PEER_CONGESTED, errno.ENOBUFS, OSError),
        (Refusal.TIMED_OUT, errno.ETIMEDOUT, TimeoutError),
        (Refusal.FLAGS_NOT_SUPPORTED, errno.EOPNOTSUPP, OSError),
        (Refusal.RESERVED_PORT, errno.EINVAL, OSError),
        (Refusal.ADDRESS_IN_USE, errno.EADDRINUSE, OSError),
        (Refusal.NOT_LOCAL, errno.EADDRNOTAVAIL, OSError),
        (Refusal.NO_SUCH_OPTION, errno.ENOPROTOOPT, OSError),
        (Refusal.OPTION_FAULT, errno.EFAULT, OSError),
        (Refusal.NO_SPACE, errno.ENOSPC, OSError),
        (Refusal.CLOSED, errno.EBADF, OSError),
        (Refusal.PEER_UNREACHABLE, errno.EHOSTUNREACH, OSError),
        (Refusal.PEER_NOT_ALLOWED, errno.EACCES, PermissionError),
    ],
)
def test_errno_and_subclass_are_those_of_linux(
    refusal: Refusal, code: int, subclass: type[OSError]
) -> None:
    problem = os_error(refusal)
    assert problem.errno == code
    assert type(problem) is subclass


def test_the_message_has_the_reason_and_the_detail() -> None:
    problem = os_error(Refusal.TOO_LONG, "9 octets, limit 8")
    assert problem.strerror == "Message too long: 9 octets, limit 8"


def test_without_detail_no_colon_is_left() -> None:
    assert os_error(Refusal.NOT_BOUND).strerror == (
        "Transport endpoint is not connected (not bound)"
    )


def test_octet_problems_are_value_errors_and_protocol_problems_are_not() -> None:
    assert issubclass(WireError, ValueError)
    assert not issubclass(RemoteProtocolError, ValueError | OSError)
    assert not issubclass(LocalProtocolError, ValueError | OSError)
