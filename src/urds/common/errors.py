"""All exceptions of `urds`, and the one table from reason to errno.

A protocol problem is an exception of `urds` and stays inside; an application gets an `OSError` made
by `os_error`, with the errno that Linux gives for the same misuse. Where an errno differs from
Linux's, docs/differences.md says so. Source of the table: docs/reference/rds.md 3, 5, recorded on
linux v6.1 to v7.2.
"""

# ruff: noqa: PIE796 -- reasons that share an errno are members of their own, see `__new__`

import errno
import os
from enum import Enum
from typing import Final, Self


class WireError(ValueError):
    """Bytes are no valid record, or a record does not fit its bytes."""


class RemoteProtocolError(Exception):
    """The peer broke the protocol: drop the connection, count, reconnect."""


class LocalProtocolError(Exception):
    """The caller broke the protocol. No code catches it: the caller is at fault."""


class SettingError(ValueError):
    """A tunable has an invalid value, name or file; the text names key, value, range, source."""


class PlaneError(ImportError):
    """URDS_IMPL asks for the compiled data plane, and there is none of this version."""


class ErrorReason(Enum):
    """Why a call was refused: `reason` of the OSError. Each has an errno; several may share one."""

    code: int

    def __new__(cls, code: int) -> Self:
        """Make a member of its own, whatever its errno: equal values would be one member."""
        member = object.__new__(cls)
        member._value_ = len(cls.__members__)
        member.code = code
        return member

    # Destination
    NOT_BOUND = errno.ENOTCONN  # not EDESTADDRREQ: kernel parity
    NO_DESTINATION_GIVEN = errno.ENOTCONN  # the same
    NOT_CONNECTED = errno.ENOTCONN
    DESTINATION_ANY = errno.EDESTADDRREQ
    # Room and time
    TOO_LONG = errno.EMSGSIZE
    QUEUE_FULL = errno.EAGAIN
    PATH_FULL = errno.EAGAIN
    SHARE_FULL = errno.ENOBUFS  # ours: this destination alone, as if congested
    NOTHING_TO_RECEIVE = errno.EAGAIN
    PEER_CONGESTED = errno.ENOBUFS  # full there, not here: retry after an update
    TIMED_OUT = errno.ETIMEDOUT  # not EAGAIN as other sockets: kernel parity
    NO_SPACE = errno.ENOSPC  # RDS_INFO_*: the buffer is too small
    # What is asked
    FLAGS_NOT_SUPPORTED = errno.EOPNOTSUPP
    NOT_SUPPORTED = errno.EOPNOTSUPP
    BAD_ADDRESS = errno.EINVAL
    ADDRESS_PROTOTYPE = errno.EPROTOTYPE  # connect to IPv6 that is not unicast
    BAD_ARGUMENT = errno.EINVAL
    BAD_CMSG = errno.EINVAL
    FAMILY_MISMATCH = errno.EOPNOTSUPP  # IPv4 to IPv6 or back on one socket
    FAMILY_UNKNOWN = errno.EAFNOSUPPORT
    SOCKET_TYPE = errno.ESOCKTNOSUPPORT
    NOT_A_TTY = errno.ENOTTY
    # Bind
    ALREADY_BOUND = errno.EINVAL
    RESERVED_PORT = errno.EINVAL
    ADDRESS_IN_USE = errno.EADDRINUSE
    ADDRESS_HELD_BY_PROCESS = errno.EADDRINUSE
    PORTS_EXHAUSTED = errno.EADDRINUSE
    NOT_LOCAL = errno.EADDRNOTAVAIL
    # Options
    NO_SUCH_OPTION = errno.ENOPROTOOPT
    OPTION_SIZE = errno.EINVAL
    OPTION_FAULT = errno.EFAULT
    OPTION_RANGE = errno.EDOM  # SO_*TIMEO: microseconds of a second or more
    TRANSPORT_ATTACHED = errno.EOPNOTSUPP
    TRANSPORT_PROTOTYPE = errno.EPROTOTYPE
    TRANSPORT_MISSING = errno.ENOPROTOOPT  # chosen, but not here or not loaded
    # Memory for RDMA
    MEMORY_FAULT = errno.EFAULT  # not mapped, not writable, or an atomic's not aligned
    NO_SUCH_REGION = errno.EINVAL
    TOO_MANY_REGIONS = errno.ENOMEM
    NOT_CONNECTED_YET = errno.EAGAIN  # RDMA_MAP; connecting has begun
    # Lifetime of a socket
    CLOSED = errno.EBADF
    AFTER_FORK = errno.EBADF
    NODE_FAILED = errno.EIO  # ours: a fault of urds itself ended its control thread
    REENTERED = errno.EDEADLK  # ours: the kernel's calls are not interrupted half-way
    # Peers
    PEER_UNREACHABLE = errno.EHOSTUNREACH  # ours: Linux never reports an absent peer
    PEER_NOT_ALLOWED = errno.EACCES  # ours: Linux knows no list of peers
    TOO_MANY_PEERS = errno.EUSERS  # ours; not ENOBUFS, which promises a map update
    NO_DESCRIPTORS_LEFT_TO_SHARE = errno.EUSERS  # ours, as the others of this group
    NETWORK_HAS_ITS_SHARE = errno.EUSERS


_ADVICE = {
    ErrorReason.NODE_FAILED: (
        "a fault of urds, logged as 'urds' with its traceback; restart the process"
    ),
    ErrorReason.REENTERED: (
        "a signal handler or finaliser interrupted a call of urds in this thread; there, a socket"
        " may be closed, polled and given options; set a flag, and send or receive outside"
    ),
}


def os_error(
    error_reason: ErrorReason,
    detail: str = "",
    *,
    limit: int | None = None,
    peer: object = None,
) -> OSError:
    """Return the OSError an application expects, e.g. BlockingIOError for EAGAIN.

    The text is errno's own, the reason in words and, after a colon, `detail`: values and limits,
    or what to do. Python chooses the subclass: TimeoutError, PermissionError and so on. The error
    has the attributes `reason`, `limit` (the number that was exceeded) and `peer` (the address of
    the host concerned, as text), the latter two None where there is none.
    """
    code = error_reason.code
    text = os.strerror(code)
    detail = detail or _ADVICE.get(error_reason, "")
    words = error_reason.name.lower().replace("_", " ")
    if words not in text.lower():
        text = f"{text} ({words})"
    error = OSError(code, f"{text}: {detail}" if detail else text)
    error.__dict__["reason"] = error_reason  # a new object: nothing was interrupted
    error.__dict__["limit"] = limit
    error.__dict__["peer"] = None if peer is None else str(peer)
    return error


_FIXED_LIMIT: Final = "over RDMA and to a kernel 1048576 is the most"


def message_too_long(payload_bytes: int, *, message_bytes_max: int, send_bytes_max: int) -> OSError:
    """Return EMSGSIZE for a payload above a limit of this node, with the remedy and its end."""
    if payload_bytes > message_bytes_max:
        limit, remedy = message_bytes_max, "raise the setting max_message_bytes at both ends"
    else:
        limit = send_bytes_max
        remedy = "raise it with setsockopt(SO_SNDBUF), which the setting wmem_max bounds"
    detail = f"payload of {payload_bytes} bytes, limit {limit}: {remedy}; {_FIXED_LIMIT}"
    return os_error(ErrorReason.TOO_LONG, detail, limit=limit)


def peer_takes_less(payload_bytes: int, peer: object, message_bytes_max: int) -> OSError:
    """Return EMSGSIZE for a payload that the peer does not take."""
    takes = f"{peer} takes {message_bytes_max}: its max_message_bytes, 1 MiB for a kernel or RDMA"
    detail = f"payload of {payload_bytes} bytes, {takes}"
    return os_error(ErrorReason.TOO_LONG, detail, limit=message_bytes_max, peer=peer)
