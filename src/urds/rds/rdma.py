"""The results of a socket's RDMA calls: a region of its memory, an operation under way.

The methods of `Socket` make both, and any thread may use them. Numbers and directions are those of
rds-rdma(7): a *region* is memory that a peer may read, and write if it is writable; its *cookie* is
what the peer is told. Source: rds-rdma(7); docs/reference/rds.md 4.3.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from urds.common.errors import ErrorReason, os_error
from urds.rds.constants import RdmaStatus

if TYPE_CHECKING:
    from urds.rds.runtime.backend import AtomicOperation, Backend, Mailbox, Operation

_NS: Final = 1_000_000_000
_KEY_BITS: Final = 32
_KEY_MASK: Final = (1 << _KEY_BITS) - 1
_U64_MASK: Final = (1 << 64) - 1


class MemoryRegion:
    """A buffer that peers may reach; see `Socket.get_mr`. As a context manager it frees itself.

    The buffer is used as it is, never copied, and stays exported (a bytearray cannot be resized)
    until the region is over: freed here, used by a peer if it was for one use, or its socket
    closed.
    """

    def __init__(
        self, backend: Backend, mailbox: Mailbox, *, cookie: int, region_bytes: int
    ) -> None:
        self.cookie: Final = cookie  # 64 bits, for the peer: `Socket.send_region` gives it to one
        self.region_bytes: Final = region_bytes
        self._backend = backend
        self._mailbox = mailbox

    @property
    def is_over(self) -> bool:
        """Tell whether the region has ended.

        After `free` no peer reaches the memory. A region for one use that was used is taken off the
        devices some moments later: its peer may reach it until then, as with Linux.
        """
        return not self._backend.regions().owns(self._mailbox, self.cookie)

    def free(self) -> None:
        """Take the memory back; from here on the cookie is refused. Once more does nothing.

        Waits for a peer that is copying at this moment, at most about a second.
        """
        with suppress(OSError):  # over already: used up by a peer, or the socket is closed
            self._backend.regions().free(self._mailbox, self.cookie)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.free()

    def __repr__(self) -> str:
        state = "over" if self.is_over else f"cookie={self.cookie:#x}"
        return f"<urds.MemoryRegion {self.region_bytes} bytes, {state}>"


class PendingOperation:
    """A transfer or an atomic operation that a socket has queued; it ends exactly once.

    Its memory is the operation's until then. How it ended is a status and no exception: SUCCESS,
    REMOTE_ERROR (the peer's memory refused it), CANCELED, DROPPED (the connection broke; it may
    have been done) or OTHER_ERROR.
    """

    def __init__(self, mailbox: Mailbox, operation: Operation) -> None:
        self._mailbox = mailbox
        self._operation = operation

    @property
    def status(self) -> RdmaStatus | None:
        """Return how it ended; None while it has not."""
        return self._operation.status

    def wait(self, wait_s: float | None = None) -> RdmaStatus:
        """Wait until it has ended, at most `wait_s` seconds (None: for ever); return its status.

        Raises TimeoutError (ETIMEDOUT) when the time is over and OSError (EBADF) if its socket is
        closed first; the operation goes on, or is canceled with its socket.
        """
        status = self._operation.status
        if status is None:
            wait_ns = None if wait_s is None else max(0, round(wait_s * _NS))
            self._mailbox.wait_operation(self._operation, wait_ns)
            status = self._operation.status
        if status is None:
            raise os_error(ErrorReason.TIMED_OUT, f"the operation has not ended in {wait_s} s")
        return status

    def __repr__(self) -> str:
        state = "pending" if self.status is None else self.status.name
        return f"<urds.{type(self).__name__} {state}>"


class PendingAtomic(PendingOperation):
    """An atomic operation under way."""

    _operation: AtomicOperation

    @property
    def old_value(self) -> int:
        """Return what the peer's eight bytes held before, 64 bits without sign.

        Raises LookupError: it has not ended with SUCCESS, so the value is not known.
        """
        if self.status is not RdmaStatus.SUCCESS:
            raise LookupError(f"no value of an operation that is {self.status!r}")
        return int.from_bytes(self._operation.result, sys.byteorder)


def key_of(cookie: int) -> int:
    """Return the key in a cookie: its lower half."""
    return cookie & _KEY_MASK


def remote_address(cookie: int, address: int) -> int:
    """Return an address in a peer's region as its device knows it.

    The upper half of the cookie is where in a page the region begins; sums wrap at 64 bits.
    """
    return (cookie >> _KEY_BITS) + address & _U64_MASK


def spans(buffers: object, *, writable: bool) -> tuple[memoryview, ...]:
    """Return one buffer, or an iterable of them, as views of bytes; empty ones are left out.

    Raises TypeError: no buffer, or not contiguous. ValueError: read-only where bytes shall come.
    """
    try:
        views = [memoryview(buffers)]  # type: ignore[arg-type]  # the question is whether it is one
    except TypeError:
        views = [memoryview(one) for one in buffers]  # type: ignore[attr-defined]  # as above
    for view in views:
        if writable and view.readonly:
            raise ValueError(f"{type(view.obj).__name__} is read-only: nothing can be read into it")
    return tuple(view.cast("B") for view in views if view.nbytes)
