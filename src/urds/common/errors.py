"""All exceptions of `urds`, and the one table from reason to errno.

A protocol problem is an exception of `urds` and stays inside; an application gets an `OSError` made
by `os_error`, with the errno that Linux gives for the same misuse. Where an errno differs from
Linux's, docs/differences.md says so. Source of the table: docs/reference/rds.md 3, 5, recorded on
linux v6.1 to v7.2.
"""

import errno
import os
from enum import Enum, auto


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
    """Why a call was refused. One member per reason; several may share an errno."""

    # Destination
    NOT_BOUND = auto()
    NO_DESTINATION_GIVEN = auto()
    NOT_CONNECTED = auto()
    DESTINATION_ANY = auto()
    # Room and time
    TOO_LONG = auto()
    QUEUE_FULL = auto()
    PATH_FULL = auto()
    SHARE_FULL = auto()
    NOTHING_TO_RECEIVE = auto()
    PEER_CONGESTED = auto()
    TIMED_OUT = auto()
    NO_SPACE = auto()
    # What is asked
    FLAGS_NOT_SUPPORTED = auto()
    NOT_SUPPORTED = auto()
    BAD_ADDRESS = auto()
    ADDRESS_PROTOTYPE = auto()
    BAD_ARGUMENT = auto()
    BAD_CMSG = auto()
    FAMILY_MISMATCH = auto()
    FAMILY_UNKNOWN = auto()
    SOCKET_TYPE = auto()
    NOT_A_TTY = auto()
    # Bind
    ALREADY_BOUND = auto()
    RESERVED_PORT = auto()
    ADDRESS_IN_USE = auto()
    ADDRESS_HELD_BY_PROCESS = auto()
    PORTS_EXHAUSTED = auto()
    NOT_LOCAL = auto()
    # Options
    NO_SUCH_OPTION = auto()
    OPTION_SIZE = auto()
    OPTION_FAULT = auto()
    OPTION_RANGE = auto()
    TRANSPORT_ATTACHED = auto()
    TRANSPORT_PROTOTYPE = auto()
    TRANSPORT_MISSING = auto()
    # Memory for RDMA
    MEMORY_FAULT = auto()
    NO_SUCH_REGION = auto()
    TOO_MANY_REGIONS = auto()
    NOT_CONNECTED_YET = auto()
    # Lifetime of a socket
    CLOSED = auto()
    AFTER_FORK = auto()
    NODE_FAILED = auto()
    REENTERED = auto()
    # Peers
    PEER_UNREACHABLE = auto()
    PEER_NOT_ALLOWED = auto()
    TOO_MANY_PEERS = auto()
    NO_DESCRIPTORS_LEFT_TO_SHARE = auto()
    NETWORK_HAS_ITS_SHARE = auto()


ERRNO_OF: dict[ErrorReason, int] = {
    ErrorReason.NOT_BOUND: errno.ENOTCONN,  # not EDESTADDRREQ: kernel parity
    ErrorReason.NO_DESTINATION_GIVEN: errno.ENOTCONN,  # the same
    ErrorReason.NOT_CONNECTED: errno.ENOTCONN,
    ErrorReason.DESTINATION_ANY: errno.EDESTADDRREQ,
    ErrorReason.TOO_LONG: errno.EMSGSIZE,
    ErrorReason.QUEUE_FULL: errno.EAGAIN,
    ErrorReason.PATH_FULL: errno.EAGAIN,
    ErrorReason.NOTHING_TO_RECEIVE: errno.EAGAIN,
    ErrorReason.SHARE_FULL: errno.ENOBUFS,  # ours: this destination alone, as if congested
    ErrorReason.PEER_CONGESTED: errno.ENOBUFS,  # full there, not here: retry after an update
    ErrorReason.TIMED_OUT: errno.ETIMEDOUT,  # not EAGAIN as other sockets: kernel parity
    ErrorReason.NO_SPACE: errno.ENOSPC,  # RDS_INFO_*: the buffer is too small
    ErrorReason.FLAGS_NOT_SUPPORTED: errno.EOPNOTSUPP,
    ErrorReason.NOT_SUPPORTED: errno.EOPNOTSUPP,
    ErrorReason.BAD_ADDRESS: errno.EINVAL,
    ErrorReason.ADDRESS_PROTOTYPE: errno.EPROTOTYPE,  # connect to IPv6 that is not unicast
    ErrorReason.BAD_ARGUMENT: errno.EINVAL,
    ErrorReason.BAD_CMSG: errno.EINVAL,
    ErrorReason.FAMILY_MISMATCH: errno.EOPNOTSUPP,  # IPv4 to IPv6 or back on one socket
    ErrorReason.FAMILY_UNKNOWN: errno.EAFNOSUPPORT,
    ErrorReason.SOCKET_TYPE: errno.ESOCKTNOSUPPORT,
    ErrorReason.NOT_A_TTY: errno.ENOTTY,
    ErrorReason.ALREADY_BOUND: errno.EINVAL,
    ErrorReason.RESERVED_PORT: errno.EINVAL,
    ErrorReason.ADDRESS_IN_USE: errno.EADDRINUSE,
    ErrorReason.ADDRESS_HELD_BY_PROCESS: errno.EADDRINUSE,
    ErrorReason.PORTS_EXHAUSTED: errno.EADDRINUSE,
    ErrorReason.NOT_LOCAL: errno.EADDRNOTAVAIL,
    ErrorReason.NO_SUCH_OPTION: errno.ENOPROTOOPT,
    ErrorReason.OPTION_SIZE: errno.EINVAL,
    ErrorReason.OPTION_FAULT: errno.EFAULT,
    ErrorReason.OPTION_RANGE: errno.EDOM,  # SO_*TIMEO: microseconds of a second or more
    ErrorReason.TRANSPORT_ATTACHED: errno.EOPNOTSUPP,
    ErrorReason.TRANSPORT_PROTOTYPE: errno.EPROTOTYPE,
    ErrorReason.TRANSPORT_MISSING: errno.ENOPROTOOPT,  # chosen, but not here or not loaded
    ErrorReason.MEMORY_FAULT: errno.EFAULT,  # not mapped, not writable, or an atomic's not aligned
    ErrorReason.NO_SUCH_REGION: errno.EINVAL,
    ErrorReason.TOO_MANY_REGIONS: errno.ENOMEM,
    ErrorReason.NOT_CONNECTED_YET: errno.EAGAIN,  # RDMA_MAP; connecting has begun
    ErrorReason.CLOSED: errno.EBADF,
    ErrorReason.AFTER_FORK: errno.EBADF,
    ErrorReason.NODE_FAILED: errno.EIO,  # ours: a fault of urds itself ended its control thread
    ErrorReason.REENTERED: errno.EDEADLK,  # ours: the kernel's calls are not interrupted half-way
    ErrorReason.PEER_UNREACHABLE: errno.EHOSTUNREACH,  # ours: Linux never reports an absent peer
    ErrorReason.PEER_NOT_ALLOWED: errno.EACCES,  # ours: Linux knows no list of peers
    ErrorReason.TOO_MANY_PEERS: errno.EUSERS,  # ours; not ENOBUFS, which promises a map update
    ErrorReason.NO_DESCRIPTORS_LEFT_TO_SHARE: errno.EUSERS,  # ours, as the others of this group
    ErrorReason.NETWORK_HAS_ITS_SHARE: errno.EUSERS,
}
assert ERRNO_OF.keys() == set(ErrorReason), "each reason has exactly one errno"

_ADVICE = {
    ErrorReason.NODE_FAILED: (
        "a fault of urds, logged as 'urds' with its traceback; restart the process"
    ),
    ErrorReason.REENTERED: (
        "a signal handler or finaliser interrupted a call of urds in this thread; there, a socket"
        " may be closed, polled and given options; set a flag, and send or receive outside"
    ),
}


def os_error(error_reason: ErrorReason, detail: str = "") -> OSError:
    """Return the OSError an application expects, e.g. BlockingIOError for EAGAIN.

    The text is errno's own, the reason in words and, after a colon, `detail`: values and limits,
    or what to do. Python chooses the subclass: TimeoutError, PermissionError and so on.
    """
    code = ERRNO_OF[error_reason]
    text = os.strerror(code)
    detail = detail or _ADVICE.get(error_reason, "")
    words = error_reason.name.lower().replace("_", " ")
    if words not in text.lower():
        text = f"{text} ({words})"
    error = OSError(code, f"{text}: {detail}" if detail else text)
    error.__dict__["error_reason"] = error_reason  # a new object: nothing was interrupted
    return error


def message_too_long(payload_bytes: int, *, message_bytes_max: int, send_bytes_max: int) -> OSError:
    """Return EMSGSIZE for a payload above a limit of this node, with the remedy."""
    if payload_bytes > message_bytes_max:
        limit = f"limit {message_bytes_max}: raise the setting max_message_bytes at both ends"
    else:
        limit = (
            f"limit {send_bytes_max}: raise it with setsockopt(SO_SNDBUF),"
            " which the setting wmem_max bounds"
        )
    return os_error(ErrorReason.TOO_LONG, f"payload of {payload_bytes} bytes, {limit}")


def peer_takes_less(payload_bytes: int, peer: object, message_bytes_max: int) -> OSError:
    """Return EMSGSIZE for a payload that the peer does not take."""
    limit = f"{peer} takes {message_bytes_max}: its max_message_bytes, 1 MiB for a kernel or RDMA"
    return os_error(ErrorReason.TOO_LONG, f"payload of {payload_bytes} bytes, {limit}")
