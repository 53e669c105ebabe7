"""Exceptions of the object layer, one per return type, and what they are in calls.

An exception is also of the builtin type that a Python program would catch, where there is one.
A completion that failed is no exception: its event has a status. The thin `dat_*` calls raise
nothing: exceptions become return values there, and outputs stand beside them.
Source: docs/reference/dat.md 6, 20.1, 20.3.
"""

import errno
from collections.abc import Callable
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from urds.dat.constants import DtoStatus
from urds.dat.returns import DatReturn, ReturnType, Subtype

P = ParamSpec("P")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")

SUCCESS: Final = DatReturn(ReturnType.SUCCESS)
EXCEPTION_OF: Final[dict[ReturnType, type["DatError"]]] = {}


class DatError(Exception):
    """A DAT call that failed: `ret` is what the C call would have returned."""

    def __init_subclass__(cls, *, kind: ReturnType | None = None) -> None:
        super().__init_subclass__()
        if kind is not None:
            EXCEPTION_OF[kind] = cls

    def __init__(self, ret: int, detail: str = "") -> None:
        self.ret = DatReturn(ret)
        self.detail = detail
        super().__init__(ret, detail)
        _set_errno(self, self.ret, detail)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (int(self.ret), self.detail)

    @property
    def type(self) -> int:
        """Return the type of `ret`."""
        return self.ret.type

    @property
    def subtype(self) -> int:
        """Return the subtype of `ret`."""
        return self.ret.subtype

    def __str__(self) -> str:
        return f"{self.ret.name}: {self.detail}" if self.detail else self.ret.name


def _set_errno(error: BaseException, ret: DatReturn, detail: str) -> None:
    """Give an OSError its errno and text: it has taken its arguments for them."""
    if isinstance(error, OSError):
        error.errno = _ERRNO_OF.get(ret.type, errno.EIO)
        error.strerror, error.filename = detail or ret.name, None


_ERRNO_OF: Final[dict[int, int]] = {
    ReturnType.CONN_QUAL_IN_USE: errno.EADDRINUSE,
    ReturnType.CONN_QUAL_UNAVAILABLE: errno.EADDRNOTAVAIL,
    ReturnType.PRIVILEGES_VIOLATION: errno.EACCES,
    ReturnType.PROTECTION_VIOLATION: errno.EPERM,
    ReturnType.TIMEOUT_EXPIRED: errno.ETIMEDOUT,
    ReturnType.INVALID_ADDRESS: errno.EADDRNOTAVAIL,
    ReturnType.INTERRUPTED_CALL: errno.EINTR,
}


class DatAbort(DatError, kind=ReturnType.ABORT):
    """A wait was broken off: the adapter was closed or the dispatcher destroyed."""


class DatConnQualInUse(DatError, OSError, kind=ReturnType.CONN_QUAL_IN_USE):
    """This connection qualifier is in use by a listener."""


class DatInsufficientResources(DatError, kind=ReturnType.INSUFFICIENT_RESOURCES):
    """Memory, a queue or a limit of the device is exhausted."""


class DatInternalError(DatError, kind=ReturnType.INTERNAL_ERROR):
    """A fault of the provider."""


class DatInvalidHandle(DatError, kind=ReturnType.INVALID_HANDLE):
    """Not a live object of the kind that is asked for."""


class DatInvalidParameter(DatError, ValueError, kind=ReturnType.INVALID_PARAMETER):
    """A value that is not allowed."""


class DatInvalidState(DatError, kind=ReturnType.INVALID_STATE):
    """The object is in another state, or in use."""


class DatLengthError(DatError, ValueError, kind=ReturnType.LENGTH_ERROR):
    """A buffer is too small for the transfer."""


class DatModelNotSupported(DatError, NotImplementedError, kind=ReturnType.MODEL_NOT_SUPPORTED):
    """A legal wish that this provider cannot serve."""


class DatProviderNotFound(DatError, LookupError, kind=ReturnType.PROVIDER_NOT_FOUND):
    """The registry knows no such adapter."""


class DatPrivilegesViolation(DatError, PermissionError, kind=ReturnType.PRIVILEGES_VIOLATION):
    """The memory lacks the right that is needed."""


class DatProtectionViolation(DatError, PermissionError, kind=ReturnType.PROTECTION_VIOLATION):
    """The memory belongs to another protection zone."""


class DatQueueEmpty(DatError, kind=ReturnType.QUEUE_EMPTY):
    """No event is queued, or nothing triggered a notification object in time."""


class DatQueueFull(DatError, kind=ReturnType.QUEUE_FULL):
    """No room for a software event."""


class DatTimeoutExpired(DatError, TimeoutError, kind=ReturnType.TIMEOUT_EXPIRED):
    """Fewer events than the threshold came in time."""


class DatProviderAlreadyRegistered(DatError, kind=ReturnType.PROVIDER_ALREADY_REGISTERED):
    """The registry has an adapter of this name already."""


class DatProviderInUse(DatError, kind=ReturnType.PROVIDER_IN_USE):
    """The adapter is open."""


class DatInvalidAddress(DatError, OSError, kind=ReturnType.INVALID_ADDRESS):
    """The remote address cannot be used."""


class DatInterruptedCall(DatError, InterruptedError, kind=ReturnType.INTERRUPTED_CALL):
    """A signal ended a wait."""


class DatConnQualUnavailable(DatError, OSError, kind=ReturnType.CONN_QUAL_UNAVAILABLE):
    """No connection qualifier is free."""


class DatNotImplemented(DatError, NotImplementedError, kind=ReturnType.NOT_IMPLEMENTED):
    """The provider does not have this call."""


class DatCompletionError(Exception):
    """A completion that did not succeed, made an exception by `raise_for_status`."""

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        super().__init__(text)


assert EXCEPTION_OF.keys() == set(ReturnType) - {ReturnType.SUCCESS}
__all__ = [each.__name__ for each in (DatError, DatCompletionError, *EXCEPTION_OF.values())]

# Source: docs/reference/dat.md 6; what the errno of a verbs call means to a DAT program.
RETURN_OF_ERRNO: Final[dict[int, tuple[ReturnType, Subtype]]] = {
    errno.EOVERFLOW: (ReturnType.LENGTH_ERROR, Subtype.NO_SUBTYPE),
    errno.EACCES: (ReturnType.PRIVILEGES_VIOLATION, Subtype.NO_SUBTYPE),
    errno.EPERM: (ReturnType.PROTECTION_VIOLATION, Subtype.NO_SUBTYPE),
    errno.EINVAL: (ReturnType.INVALID_PARAMETER, Subtype.NO_SUBTYPE),
    errno.EISCONN: (ReturnType.INVALID_STATE, Subtype.INVALID_STATE_EP_CONNECTED),
    errno.ECONNREFUSED: (ReturnType.INVALID_STATE, Subtype.INVALID_STATE_EP_NOTREADY),
    errno.ETIMEDOUT: (ReturnType.TIMEOUT_EXPIRED, Subtype.NO_SUBTYPE),
    errno.ENETUNREACH: (ReturnType.INVALID_ADDRESS, Subtype.INVALID_ADDRESS_UNREACHABLE),
    errno.EADDRINUSE: (ReturnType.CONN_QUAL_IN_USE, Subtype.NO_SUBTYPE),
    errno.EALREADY: (ReturnType.INVALID_STATE, Subtype.INVALID_STATE_EP_ACTCONNPENDING),
    errno.ENOMEM: (ReturnType.INSUFFICIENT_RESOURCES, Subtype.NO_SUBTYPE),
    errno.EAGAIN: (ReturnType.QUEUE_EMPTY, Subtype.NO_SUBTYPE),
    errno.EINTR: (ReturnType.INTERRUPTED_CALL, Subtype.NO_SUBTYPE),
    errno.EAFNOSUPPORT: (ReturnType.INVALID_ADDRESS, Subtype.INVALID_ADDRESS_MALFORMED),
}


def dat_error(
    kind: ReturnType, subtype: Subtype = Subtype.NO_SUBTYPE, detail: str = ""
) -> DatError:
    """Return the exception of this type; `detail` tells a person the values and limits."""
    return EXCEPTION_OF[kind](DatReturn.error(kind, subtype), detail)


def bad_argument(number: int, detail: str) -> DatError:
    """Return the error of the `number`-th argument, 1 to 10."""
    subtype = Subtype(Subtype.INVALID_ARG1 + number - 1)
    return dat_error(ReturnType.INVALID_PARAMETER, subtype, detail)


def demand_bits(name: str, bits: int, known: int, *, argument: int) -> None:
    """Raise DatInvalidParameter for a mask or flags with an unknown bit."""
    if bits & ~int(known):  # a flag's own inverse has known bits only
        raise bad_argument(argument, f"{name} {bits:#x}, known are {int(known):#x}")


def from_os_error(error: OSError) -> DatError:
    """Return the DAT error that stands for an OSError of a verbs call."""
    kind, subtype = RETURN_OF_ERRNO.get(
        error.errno or 0, (ReturnType.INTERNAL_ERROR, Subtype.NO_SUBTYPE)
    )
    return dat_error(kind, subtype, error.strerror or str(error))


def raise_for(status: DtoStatus, what: str) -> None:
    """Raise DatCompletionError for a status that is not SUCCESS; `what` has completed."""
    if status is not DtoStatus.SUCCESS:
        raise DatCompletionError(status, f"{what}: {status.name}")


# -- calls that return instead of raising


_FAILURES: Final = (DatError, OSError, MemoryError)


def ret_of(error: BaseException) -> DatReturn:
    """Return what a call returns that ended with one of `_FAILURES`."""
    if isinstance(error, DatError):
        return error.ret
    if isinstance(error, OSError):
        return from_os_error(error).ret
    return DatReturn.error(ReturnType.INSUFFICIENT_RESOURCES, Subtype.RESOURCE_MEMORY)


def no_output(call: Callable[P, object]) -> Callable[P, DatReturn]:
    """Let a call return how it went."""

    @wraps(call)
    def returned(*args: P.args, **kwargs: P.kwargs) -> DatReturn:
        try:
            call(*args, **kwargs)
        except _FAILURES as error:
            return ret_of(error)
        return SUCCESS

    return returned


def one_output(call: Callable[P, A]) -> Callable[P, tuple[DatReturn, A | None]]:
    """Let a call return how it went, and its output."""

    @wraps(call)
    def returned(*args: P.args, **kwargs: P.kwargs) -> tuple[DatReturn, A | None]:
        try:
            return SUCCESS, call(*args, **kwargs)
        except _FAILURES as error:
            return ret_of(error), None

    return returned


def two_outputs(
    call: Callable[P, tuple[A, B]],
) -> Callable[P, tuple[DatReturn, A | None, B | None]]:
    """Let a call return how it went, and its two outputs."""

    @wraps(call)
    def returned(*args: P.args, **kwargs: P.kwargs) -> tuple[DatReturn, A | None, B | None]:
        try:
            return SUCCESS, *call(*args, **kwargs)
        except _FAILURES as error:
            return ret_of(error), None, None

    return returned


def three_outputs(
    call: Callable[P, tuple[A, B, C]],
) -> Callable[P, tuple[DatReturn, A | None, B | None, C | None]]:
    """Let a call return how it went, and its three outputs."""

    @wraps(call)
    def returned(
        *args: P.args, **kwargs: P.kwargs
    ) -> tuple[DatReturn, A | None, B | None, C | None]:
        try:
            return SUCCESS, *call(*args, **kwargs)
        except _FAILURES as error:
            return ret_of(error), None, None, None

    return returned
