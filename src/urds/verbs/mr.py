"""Memory regions: an application's buffer, known to the device under two keys.

Any writable C-contiguous buffer will do: bytearray, memoryview, mmap, array, a ctypes or NumPy
array. While a region is open its buffer stays exported: a bytearray cannot be resized. Nothing
here follows an address: keys lead to views, addresses only count bytes within them.
Source: docs/reference/verbs-and-roce.md 11, 18.
"""

from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar, Final

from urds.common.buffers import address_of, bytes_of
from urds.verbs.context import PD
from urds.verbs.engine.keys import WindowBinding
from urds.verbs.engine.numbers import AccessFlag, SendFlag, UnsupportedAccessFlag
from urds.verbs.errors import (
    VerbsArgumentError,
    VerbsNotSupportedError,
    demand_integer,
    demand_kind,
)
from urds.verbs.records import SGE
from urds.verbs.resource import Resource

_UNSUPPORTED_ACCESS: Final = sum(UnsupportedAccessFlag)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class MR(Resource):
    """A registered buffer.

    buffer: the memory, or a number of bytes to allocate where peers can map it if possible.
    access: LOCAL_WRITE by default; REMOTE_WRITE and REMOTE_ATOMIC need it too.
    address: the first byte's address in work requests and for peers; the buffer's real address by
    default. Keys and `buf` are for SGEs and for the peer; `view` is the memory itself.
    Closing it raises VerbsError (EBUSY) while memory windows are bound to it.
    """

    close_rank: ClassVar[int] = 4

    def __init__(
        self,
        pd: PD,
        buffer: "ReadableBuffer | int",
        access: int = AccessFlag.LOCAL_WRITE,
        *,
        address: int | None = None,
    ) -> None:
        """Register memory, without a copy.

        Raises VerbsArgumentError: a buffer that is read-only, not contiguous, empty or beyond
        `max_mr_size`, invalid access flags. VerbsNotSupportedError: flags that no device has
        (ZERO_BASED, ON_DEMAND, HUGETLB). TypeError: no domain, no buffer. VerbsError: ENOMEM.
        """
        demand_kind(pd, PD, "MR(): pd")
        self.pd = pd
        with pd._calling():
            view = self._view_of(buffer)
            self._address = address_of(view)
            named = self._address if address is None else address
            adapter = pd.context.adapter
            self.engine = adapter.register(pd.engine, view, named, self._supported(access))
            self._view = view
        super().__init__(pd.context.adapter.lock, pd)

    # -- what it is

    @property
    def buf(self) -> int:
        """Return the address of the first byte in work requests and for peers."""
        return self.engine.address

    @property
    def length(self) -> int:
        """Return how many bytes are registered; 0 once closed."""
        return self.engine.length

    @property
    def lkey(self) -> int:
        """Return the key for SGEs of this side."""
        return self.engine.lkey

    @property
    def rkey(self) -> int:
        """Return the key to give to a peer."""
        return self.engine.rkey

    @property
    def access(self) -> AccessFlag:
        """Return the access rights."""
        return self.engine.access

    @property
    def view(self) -> memoryview:
        """Return the memory as bytes; not a copy. Released when the region is closed."""
        self._demand_open()
        return self._view

    # -- using it

    def sge(self, offset: int = 0, length: int | None = None) -> SGE:
        """Return the piece of `length` bytes from `offset`, to the end unless told.

        Raises VerbsArgumentError: the piece is not inside.
        """
        self._demand_open()
        length = self._checked_length(offset, length)
        return SGE(self.engine.address + offset, length, self.engine.lkey)

    def read(self, length: int | None = None, offset: int = 0) -> bytes:
        """Return a copy of `length` bytes from `offset`, to the end unless told.

        Raises VerbsArgumentError: they are not inside.
        """
        with self._calling():
            length = self._checked_length(offset, length)
            return bytes(self._view[offset : offset + length])

    def write(self, data: "ReadableBuffer", length: int | None = None, offset: int = 0) -> int:
        """Copy the first `length` bytes of `data`, all unless told, to `offset`; return how many.

        Raises VerbsArgumentError: they do not fit, or `data` has fewer.
        """
        raw = memoryview(data).cast("B")
        count = raw.nbytes if length is None else length
        if count > raw.nbytes:
            raise VerbsArgumentError(f"{count} bytes of {raw.nbytes}")
        with self._calling():
            self._checked_length(offset, count)
            self._view[offset : offset + count] = raw[:count]
        return count

    def rereg(
        self,
        *,
        pd: PD | None = None,
        buffer: "ReadableBuffer | None" = None,
        access: int | None = None,
        address: int | None = None,
    ) -> None:
        """Change what is given; with another buffer or address the region gets new keys.

        The old ones become invalid then. A change of access or domain alone keeps the keys.

        A new buffer without an address is named by its own. Raises VerbsError: EBUSY while memory
        windows are bound; VerbsArgumentError as registration. Then nothing has changed.
        """
        if pd is not None:
            demand_kind(pd, PD, "rereg(): pd")
        with self._calling():
            view = None if buffer is None else self._view_of(buffer)
            real = self._address if view is None else address_of(view)
            named = real if address is None and view is not None else address
            target = self.pd if pd is None else pd
            target._demand_open()
            if target.context is not self.pd.context:
                raise VerbsArgumentError("the protection domain is another device's")
            self.pd.context.adapter.reregister(
                self.engine,
                pd=target.engine,
                view=view,
                address=named,
                access=None if access is None else self._supported(access),
            )
            self._move_to(target)
            if view is not None:
                self._forget_view()
                self._view, self._address = view, real

    # -- inside

    def _supported(self, access: int) -> AccessFlag:
        demand_integer(access, "access")
        if unsupported := access & _UNSUPPORTED_ACCESS:
            named = UnsupportedAccessFlag(unsupported)
            raise VerbsNotSupportedError(self.pd.context.name, f"access {named.name}")
        return AccessFlag(access)

    def _view_of(self, buffer: "ReadableBuffer | int") -> memoryview:
        attributes = self.pd.context.attributes
        if isinstance(buffer, int):
            _demand_size(buffer, attributes.max_mr_size)
            return self.pd.context.adapter.allocate(buffer)
        view = memoryview(buffer)
        _demand_size(view.nbytes, attributes.max_mr_size)
        if view.readonly:
            raise VerbsArgumentError(
                f"{type(buffer).__name__} is read-only: register a writable buffer, such as a "
                f"bytearray with a copy of its {view.nbytes} bytes"
            )
        if not view.c_contiguous:
            raise VerbsArgumentError(
                f"{type(buffer).__name__} of shape {view.shape} and strides {view.strides} is not "
                "C-contiguous: register a contiguous copy"
            )
        return bytes_of(view)

    def _checked_length(self, offset: int, length: int | None) -> int:
        whole = self.engine.length
        count = whole - offset if length is None else length
        if not 0 <= offset <= whole or not 0 <= count <= whole - offset:
            raise VerbsArgumentError(f"{count} bytes at offset {offset} of {whole}")
        return count

    def _move_to(self, pd: PD) -> None:
        if pd is not self.pd:
            self.pd._remove_child(self)
            pd._add_child(self)
            self.pd, self._parents = pd, (pd,)

    def _forget_view(self) -> None:
        # A slice or an array over the view keeps the buffer alive; then it is its holder's.
        with suppress(BufferError):
            self._view.release()

    def _release(self, *, forced: bool) -> None:
        self.pd.context.adapter.deregister(self.engine, unbind=forced)
        self._forget_view()


def _demand_size(count: int, limit: int) -> None:
    if not 1 <= count <= limit:
        raise VerbsArgumentError(f"memory region of {count} bytes, from 1 to {limit}")


class MWType(IntEnum):
    """Kinds of memory window."""

    TYPE_1 = 1
    TYPE_2 = 2


@dataclass(frozen=True, slots=True)
class MWBindInfo:
    """The part of a region that a window covers: `length` bytes at address `addr`; 0 unbinds."""

    mr: MR
    addr: int
    length: int
    mw_access_flags: int = AccessFlag.REMOTE_READ

    def binding(self) -> WindowBinding:
        """Return the engine's form. Raises TypeError: no region."""
        demand_kind(self.mr, MR, "MWBindInfo(): mr")
        return WindowBinding(
            self.mr.engine, self.addr, self.length, AccessFlag(self.mw_access_flags)
        )


@dataclass(frozen=True, slots=True)
class MWBind:
    """A bind request for `QP.bind_mw`."""

    info: MWBindInfo
    _: KW_ONLY
    wr_id: int = 0
    send_flags: SendFlag = SendFlag.SIGNALED


class MW(Resource):
    """A memory window: a part of a region under a remote key that can be revoked.

    A window of type 1 serves every queue pair of its domain and may be bound again at any time. One
    of type 2 serves the queue pair that bound it, until a LOCAL_INV there or a SEND_WITH_INV of the
    peer invalidates it. Binding is a work request: it happens in the order of the send queue, and
    `rkey` is the new key once its completion is there. Closing it invalidates its key, bound or
    not. Source: docs/reference/verbs-and-roce.md 11.
    """

    close_rank: ClassVar[int] = 3

    def __init__(self, pd: PD, mw_type: int = MWType.TYPE_1) -> None:
        """Make an unbound window.

        Raises VerbsNotSupportedError: the device has no windows; VerbsError: EINVAL, ENOMEM;
        TypeError: no domain.
        """
        demand_kind(pd, PD, "MW(): pd")
        attributes = pd.context.attributes
        if not attributes.memory_windows:
            raise VerbsNotSupportedError(attributes.name, "memory_windows")
        self.pd = pd
        with pd._calling():
            self.engine = pd.context.adapter.window(pd.engine, mw_type)
        self.mw_type = MWType(mw_type)
        # A bound region must not be collected before its window.
        self.bound_mr: MR | None = None
        super().__init__(pd.context.adapter.lock, pd)

    @property
    def rkey(self) -> int:
        """Return the key to give to a peer; a new one after each bind."""
        return self.engine.rkey

    @property
    def is_bound(self) -> bool:
        """Return whether the window is bound."""
        return self.engine.region is not None

    def _release(self, *, forced: bool) -> None:
        self.pd.context.adapter.free_window(self.engine)
        self.bound_mr = None
