"""What the thin `dat_*` calls share: exceptions become return values, outputs stand beside them.

A call without outputs returns `ret`; one with outputs returns `(ret, first, second, ...)` in the
order of the C call, each `None` when `ret` is not SUCCESS. Source: dat.md section 20.1.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from urds.dat.errors import DatError, bad_argument, dat_error, demand_bits, from_os_error
from urds.dat.handles import DatObject, live
from urds.dat.returns import DatReturn, ReturnType, Subtype

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
ObjectT = TypeVar("ObjectT", bound=DatObject)

SUCCESS: Final = DatReturn(ReturnType.SUCCESS)


def _run(call: Callable[[], A]) -> tuple[DatReturn, A | None]:
    try:
        return SUCCESS, call()
    except DatError as error:
        return error.ret, None
    except OSError as error:
        return from_os_error(error).ret, None
    except MemoryError:
        kind = ReturnType.INSUFFICIENT_RESOURCES
        return DatReturn.error(kind, Subtype.RESOURCE_MEMORY), None


def no_output(call: Callable[[], object]) -> DatReturn:
    """Return how the call went."""
    return _run(call)[0]


def one_output(call: Callable[[], A]) -> tuple[DatReturn, A | None]:
    """Return how the call went, and its output."""
    return _run(call)


def two_outputs(call: Callable[[], tuple[A, B]]) -> tuple[DatReturn, A | None, B | None]:
    """Return how the call went, and its two outputs."""
    ret, outputs = _run(call)
    return (ret, None, None) if outputs is None else (ret, *outputs)


def three_outputs(
    call: Callable[[], tuple[A, B, C]],
) -> tuple[DatReturn, A | None, B | None, C | None]:
    """Return how the call went, and its three outputs."""
    ret, outputs = _run(call)
    return (ret, None, None, None) if outputs is None else (ret, *outputs)


def queried(
    handle: object, kind: type[ObjectT], query: Callable[[ObjectT], A], mask: int, known: int
) -> tuple[DatReturn, A | None]:
    """Return how the query of a handle went, and its record; an unknown bit of `mask` is refused.

    A query fills all fields whatever the mask says.
    """

    def call() -> A:
        found = live(handle, kind)
        demand_bits("mask", mask, known, argument=2)
        return query(found)

    return one_output(call)


def segments_of(count: int, iov: Sequence[A] | None) -> Sequence[A]:
    """Return the first `count` segments of a list, arguments 2 and 3 of the calls that post.

    Raises DatInvalidParameter: fewer are there, or it is no list.
    """
    given: Sequence[A] = () if iov is None else iov
    if not isinstance(given, Sequence):
        raise bad_argument(3, f"{given!r} is no list of segments")
    if not 0 <= count <= len(given):
        raise bad_argument(2, f"{count} segments of {len(given)}")
    return given[:count]


def octets_of(count_bytes: int, data: bytes | None, *, argument: int) -> bytes:
    """Return the first octets of private data. Raises DatInvalidParameter: fewer are there."""
    given = b"" if data is None else bytes(data)
    if not 0 <= count_bytes <= len(given):
        raise bad_argument(argument, f"{count_bytes} octets of private data of {len(given)}")
    return given[:count_bytes]


def choice(kind: Callable[[int], A], value: int, *, argument: int) -> A:
    """Return the member of an enum. Raises DatInvalidParameter: it has none of this value."""
    try:
        return kind(value)
    except ValueError as error:
        raise bad_argument(argument, str(error)) from None


def queue_is_empty() -> DatError:
    """Return the error of a dequeue that found nothing."""
    return dat_error(ReturnType.QUEUE_EMPTY)
