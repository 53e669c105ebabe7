"""Memory regions: an application's buffer, known to the device under two keys.

Any writable C-contiguous buffer will do: bytearray, memoryview, mmap, array, a ctypes or NumPy
array. While a region is open its buffer stays exported: a bytearray cannot be resized. Nothing
here follows an address: keys lead to views, addresses only count octets within them.
Source: verbs-and-roce.md sections 11 and 18.
"""

import ctypes
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from urds.verbs.engine.numbers import AccessFlag
from urds.verbs.engine.work import SGE
from urds.verbs.errors import VerbsArgumentError
from urds.verbs.pd import PD
from urds.verbs.resource import Resource

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class MR(Resource):
    """A registered buffer.

    buffer: the memory, or a number of octets to allocate where peers can reach it best.
    access: LOCAL_WRITE unless told; REMOTE_WRITE and REMOTE_ATOMIC need it beside them.
    address: what work requests and peers call the first octet; the buffer's real address unless
    told. Keys and `buf` are for SGEs and for the peer; `view` is the memory itself.
    Closing it raises VerbsError (EBUSY) while memory windows are bound to it.
    """

    close_rank: ClassVar[int] = 4

    def __init__(
        self,
        pd: PD,
        buffer: "ReadableBuffer | int",
        access: int = AccessFlag.LOCAL_WRITE,
        address: int | None = None,
    ) -> None:
        """Register memory. No octet is copied.

        Raises VerbsArgumentError: a buffer that is read-only, not contiguous, empty or beyond
        `max_mr_size`, access flags that cannot be. TypeError: no buffer. VerbsError: ENOMEM.
        """
        self.pd = pd
        with pd._calling():
            view = self._view_of(buffer)
            self._address = _address_of(view)
            named = self._address if address is None else address
            keys = pd.context.adapter.keys
            self.engine = keys.register(pd.engine, view, named, AccessFlag(access))
            self._view = view
        super().__init__(pd.context.adapter.lock, pd)

    # -- what it is

    @property
    def buf(self) -> int:
        """Return the address under which work requests and peers name the first octet."""
        return self.engine.address

    @property
    def length(self) -> int:
        """Return how many octets are registered; 0 once closed."""
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
        """Return what may be done with the memory."""
        return self.engine.access

    @property
    def view(self) -> memoryview:
        """Return the memory as octets; not a copy. Released when the region is closed."""
        self._demand_open()
        return self._view

    # -- using it

    def sge(self, offset: int = 0, length: int | None = None) -> SGE:
        """Return the piece of `length` octets from `offset`, to the end unless told.

        Raises VerbsArgumentError: the piece is not inside.
        """
        self._demand_open()
        length = self._checked_length(offset, length)
        return SGE(self.engine.address + offset, length, self.engine.lkey)

    def read(self, length: int | None = None, offset: int = 0) -> bytes:
        """Return a copy of `length` octets from `offset`, to the end unless told.

        Raises VerbsArgumentError: they are not inside.
        """
        with self._calling():
            length = self._checked_length(offset, length)
            return bytes(self._view[offset : offset + length])

    def write(self, data: "ReadableBuffer", length: int | None = None, offset: int = 0) -> int:
        """Copy the first `length` octets of `data`, all unless told, to `offset`; return how many.

        Raises VerbsArgumentError: they do not fit, or `data` has fewer.
        """
        octets = memoryview(data).cast("B")
        count = octets.nbytes if length is None else length
        if count > octets.nbytes:
            raise VerbsArgumentError(f"{count} octets of {octets.nbytes}")
        with self._calling():
            self._checked_length(offset, count)
            self._view[offset : offset + count] = octets[:count]
        return count

    def rereg(
        self,
        *,
        pd: PD | None = None,
        buffer: "ReadableBuffer | None" = None,
        access: int | None = None,
        address: int | None = None,
    ) -> None:
        """Change what is given. The region gets new keys, the old ones fail from here on.

        A new buffer without an address is named by its own. Raises VerbsError: EBUSY while memory
        windows are bound; VerbsArgumentError as registration. Then nothing has changed.
        """
        with self._calling():
            view = None if buffer is None else self._view_of(buffer)
            real = self._address if view is None else _address_of(view)
            named = real if address is None and view is not None else address
            target = self.pd if pd is None else pd
            target._demand_open()
            if target.context is not self.pd.context:
                raise VerbsArgumentError("the protection domain is another device's")
            self.pd.context.adapter.keys.reregister(
                self.engine,
                pd=target.engine,
                view=view,
                address=named,
                access=None if access is None else AccessFlag(access),
            )
            self._move_to(target)
            if view is not None:
                self._forget_view()
                self._view, self._address = view, real

    # -- inside

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
                f"bytearray with a copy of its {view.nbytes} octets"
            )
        if not view.c_contiguous:
            raise VerbsArgumentError(
                f"{type(buffer).__name__} of shape {view.shape} and strides {view.strides} is not "
                "C-contiguous: register a contiguous copy"
            )
        return _octets(view)

    def _checked_length(self, offset: int, length: int | None) -> int:
        whole = self.engine.length
        count = whole - offset if length is None else length
        if not 0 <= offset <= whole or not 0 <= count <= whole - offset:
            raise VerbsArgumentError(f"{count} octets at offset {offset} of {whole}")
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
        keys = self.pd.context.adapter.keys
        if forced:
            keys.unbind_all(self.engine)
        keys.deregister(self.engine)
        self._forget_view()


def _demand_size(count: int, limit: int) -> None:
    if not 1 <= count <= limit:
        raise VerbsArgumentError(f"memory region of {count} octets, from 1 to {limit}")


def _octets(view: memoryview) -> memoryview:
    """Return a view of octets on the same memory, whatever its items are."""
    try:
        return view.cast("B")
    except (ValueError, TypeError):
        # Items that memoryview cannot cast: records, complex numbers, the other byte order.
        whole: Any = (ctypes.c_char * view.nbytes).from_buffer(view)
        return memoryview(whole).cast("B")


def _address_of(view: memoryview) -> int:
    """Return where the first octet is."""
    return ctypes.addressof((ctypes.c_char * 0).from_buffer(view))
