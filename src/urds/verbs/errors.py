"""Errors of the verbs objects: each an `OSError` with errno, its message with values and limits.

`PyverbsError` has three kinds; here they are `VerbsError` itself, wrong arguments, missing
capabilities, and timeouts. A work request that fails later is no error: its completion carries a
status. Source: docs/reference/verbs-and-roce.md 18.
"""

import errno
from typing import Any, SupportsIndex

from urds.common.seconds import waiting_time


class VerbsError(OSError):
    """A verbs call failed."""

    @property
    def error_code(self) -> int:
        """Return the errno, under pyverbs' name."""
        return self.errno or 0

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args, vars(self))


class VerbsArgumentError(VerbsError):
    """An argument is invalid, or does not fit the state of its object (EINVAL)."""

    def __init__(self, message: str) -> None:
        super().__init__(errno.EINVAL, message)


class VerbsNotSupportedError(VerbsError):
    """The device lacks the capability that a call needs (EOPNOTSUPP)."""

    def __init__(self, device: str, capability: str) -> None:
        super().__init__(errno.EOPNOTSUPP, f"device {device} has no capability `{capability}`")
        self.device = device
        self.capability = capability


class VerbsClosedError(VerbsError):
    """The object, or one that it depends on, is closed (EBADF)."""

    def __init__(self, what: str) -> None:
        super().__init__(errno.EBADF, f"{what} is closed")


class VerbsTimeoutError(VerbsError, TimeoutError):
    """The wait timed out, or, in virtual time, can never end."""

    def __init__(self, message: str) -> None:
        super().__init__(errno.ETIMEDOUT, message)


class VerbsPostError(VerbsError):
    """A list of work requests was rejected at `bad_wr`; those before it are posted."""

    def __init__(self, error_number: int, message: str, bad_wr: int) -> None:
        super().__init__(error_number, f"work request {bad_wr} of the list: {message}")
        self.bad_wr = bad_wr

    @classmethod
    def of(cls, error: OSError, bad_wr: int) -> "VerbsPostError":
        """Return this error for the one that rejected the request at `bad_wr`."""
        return cls(error.errno or errno.EIO, error.strerror or str(error), bad_wr)


def _restored(
    kind: type[VerbsError], arguments: tuple[Any, ...], fields: dict[str, Any]
) -> VerbsError:
    """Return a pickled error: each kind has a constructor of its own, all end in OSError's."""
    error = kind.__new__(kind)
    OSError.__init__(error, *arguments)
    vars(error).update(fields)
    return error


def demand_kind(value: object, kind: type | tuple[type, ...], what: str) -> None:
    """Raise TypeError, with what is wanted and what was given, for a value of another kind."""
    if not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        titles = ("an integer" if one is SupportsIndex else one.__name__ for one in kinds)
        names = " or ".join(dict.fromkeys(titles))  # a record has two classes of one name
        given = "None" if value is None else type(value).__name__
        raise TypeError(f"{what} must be {names}, not {given}")


def demand_integer(value: object, what: str) -> None:
    """Raise TypeError, with what was given, for a value that is no integer."""
    # The class first: a protocol takes microseconds to ask, and each poll asks.
    if type(value) is not int:
        demand_kind(value, SupportsIndex, what)


def demand_waiting_time(timeout_s: object) -> float | None:
    """Return how many seconds a call waits; infinity is `None`, for ever.

    Raises TypeError: no number; VerbsArgumentError: NaN, or negative.
    """
    try:
        return waiting_time(timeout_s)
    except ValueError as error:
        raise VerbsArgumentError(str(error)) from None


def verbs_error(error: OSError) -> VerbsError:
    """Return the error of this module for one that an engine or a provider raised."""
    if isinstance(error, VerbsError):
        return error
    message = error.strerror or str(error)
    if error.errno == errno.EINVAL:
        return VerbsArgumentError(message)
    return VerbsError(error.errno or errno.EIO, message)
