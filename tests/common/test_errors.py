"""The errno table and the exceptions made from it."""

import copy
import errno
import pickle
from collections.abc import Callable
from ipaddress import ip_address

import pytest

from urds.common.errors import (
    ErrorReason,
    LocalProtocolError,
    RemoteProtocolError,
    WireError,
    message_too_long,
    os_error,
)


@pytest.mark.parametrize("reason", ErrorReason)
def test_each_error_reason_makes_an_os_error_with_its_errno(reason: ErrorReason) -> None:
    problem = os_error(reason)
    assert isinstance(problem, OSError)
    assert problem.errno == reason.code
    assert reason.name.lower().replace("_", " ") in str(problem).lower()


@pytest.mark.parametrize(
    ("reason", "code", "subclass"),
    [
        (ErrorReason.NOT_BOUND, errno.ENOTCONN, OSError),
        (ErrorReason.DESTINATION_ANY, errno.EDESTADDRREQ, OSError),
        (ErrorReason.TOO_LONG, errno.EMSGSIZE, OSError),
        (ErrorReason.QUEUE_FULL, errno.EAGAIN, BlockingIOError),
        (ErrorReason.NOTHING_TO_RECEIVE, errno.EAGAIN, BlockingIOError),
        (ErrorReason.PEER_CONGESTED, errno.ENOBUFS, OSError),
        (ErrorReason.TIMED_OUT, errno.ETIMEDOUT, TimeoutError),
        (ErrorReason.FLAGS_NOT_SUPPORTED, errno.EOPNOTSUPP, OSError),
        (ErrorReason.RESERVED_PORT, errno.EINVAL, OSError),
        (ErrorReason.ADDRESS_IN_USE, errno.EADDRINUSE, OSError),
        (ErrorReason.NOT_LOCAL, errno.EADDRNOTAVAIL, OSError),
        (ErrorReason.NO_SUCH_OPTION, errno.ENOPROTOOPT, OSError),
        (ErrorReason.OPTION_FAULT, errno.EFAULT, OSError),
        (ErrorReason.NO_SPACE, errno.ENOSPC, OSError),
        (ErrorReason.CLOSED, errno.EBADF, OSError),
        (ErrorReason.PEER_UNREACHABLE, errno.EHOSTUNREACH, OSError),
        (ErrorReason.PEER_NOT_ALLOWED, errno.EACCES, PermissionError),
    ],
)
def test_errno_and_subclass_are_those_of_linux(
    reason: ErrorReason, code: int, subclass: type[OSError]
) -> None:
    problem = os_error(reason)
    assert problem.errno == code
    assert type(problem) is subclass


def test_the_message_has_the_reason_and_the_detail() -> None:
    problem = os_error(ErrorReason.TOO_LONG, "9 bytes, limit 8")
    assert problem.strerror == "Message too long: 9 bytes, limit 8"


def test_without_detail_no_colon_is_left() -> None:
    assert os_error(ErrorReason.NOT_BOUND).strerror == (
        "Transport endpoint is not connected (not bound)"
    )


def test_an_error_has_its_reason_limit_and_peer() -> None:
    problem = os_error(ErrorReason.SHARE_FULL, limit=8, peer=ip_address("10.0.0.2"))
    found = vars(problem)
    assert found == {"reason": ErrorReason.SHARE_FULL, "limit": 8, "peer": "10.0.0.2"}
    assert vars(os_error(ErrorReason.CLOSED)) == {
        "reason": ErrorReason.CLOSED,
        "limit": None,
        "peer": None,
    }


@pytest.mark.parametrize("copied", [copy.copy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_of_an_error_has_them_too(copied: Callable[[OSError], OSError]) -> None:
    """An error crosses to another process: concurrent.futures does that."""
    problem = copied(os_error(ErrorReason.QUEUE_FULL, "9 of 8", limit=8, peer="::1"))
    assert type(problem) is BlockingIOError
    assert problem.errno == errno.EAGAIN
    assert "9 of 8" in str(problem)
    assert vars(problem) == {"reason": ErrorReason.QUEUE_FULL, "limit": 8, "peer": "::1"}


@pytest.mark.parametrize(
    ("payload_bytes", "limit"), [(90, 80), (300, 200)], ids=["the send buffer", "the setting"]
)
def test_a_message_too_long_tells_the_limit_that_it_exceeds(payload_bytes: int, limit: int) -> None:
    problem = message_too_long(payload_bytes, message_bytes_max=200, send_bytes_max=80)
    assert vars(problem)["limit"] == limit
    assert f"limit {limit}:" in str(problem)


def test_byte_problems_are_value_errors_and_protocol_problems_are_not() -> None:
    assert issubclass(WireError, ValueError)
    assert not issubclass(RemoteProtocolError, ValueError | OSError)
    assert not issubclass(LocalProtocolError, ValueError | OSError)
