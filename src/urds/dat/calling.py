"""What the thin `dat_*` calls share: exceptions become return values, outputs stand beside them.

A call without outputs returns `ret`; one with outputs returns `(ret, first, second, ...)` in the
order of the C call, each `None` when `ret` is not SUCCESS. Source: docs/reference/dat.md 20.1.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

from urds.dat.errors import DatError, demand_bits, from_os_error
from urds.dat.handles import DatObject, live
from urds.dat.returns import DatReturn, ReturnType, Subtype

P = ParamSpec("P")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
ObjectT = TypeVar("ObjectT", bound=DatObject)

SUCCESS: Final = DatReturn(ReturnType.SUCCESS)


def _run(call: Callable[P, A], args: Any, kwargs: Any) -> tuple[DatReturn, A | None]:
    try:
        return SUCCESS, call(*args, **kwargs)
    except DatError as error:
        return error.ret, None
    except OSError as error:
        return from_os_error(error).ret, None
    except MemoryError:
        kind = ReturnType.INSUFFICIENT_RESOURCES
        return DatReturn.error(kind, Subtype.RESOURCE_MEMORY), None


def no_output(call: Callable[P, object]) -> Callable[P, DatReturn]:
    """Let a call return how it went."""

    @wraps(call)
    def returned(*args: P.args, **kwargs: P.kwargs) -> DatReturn:
        return _run(call, args, kwargs)[0]

    return returned


def one_output(call: Callable[P, A]) -> Callable[P, tuple[DatReturn, A | None]]:
    """Let a call return how it went, and its output."""

    @wraps(call)
    def returned(*args: P.args, **kwargs: P.kwargs) -> tuple[DatReturn, A | None]:
        return _run(call, args, kwargs)

    return returned


def two_outputs(
    call: Callable[P, tuple[A, B]],
) -> Callable[P, tuple[DatReturn, A | None, B | None]]:
    """Let a call return how it went, and its two outputs."""

    @wraps(call)
    def returned(*args: P.args, **kwargs: P.kwargs) -> tuple[DatReturn, A | None, B | None]:
        ret, outputs = _run(call, args, kwargs)
        return (ret, None, None) if outputs is None else (ret, *outputs)

    return returned


def three_outputs(
    call: Callable[P, tuple[A, B, C]],
) -> Callable[P, tuple[DatReturn, A | None, B | None, C | None]]:
    """Let a call return how it went, and its three outputs."""

    @wraps(call)
    def returned(
        *args: P.args, **kwargs: P.kwargs
    ) -> tuple[DatReturn, A | None, B | None, C | None]:
        ret, outputs = _run(call, args, kwargs)
        return (ret, None, None, None) if outputs is None else (ret, *outputs)

    return returned


def queried(
    handle: object, kind: type[ObjectT], query: Callable[[ObjectT], A], mask: int, known: int
) -> tuple[DatReturn, A | None]:
    """Return how the query of a handle went, and its record; an unknown bit of `mask` is an error.

    A query fills all fields whatever the mask says.
    """

    def call() -> A:
        found = live(handle, kind)
        demand_bits("mask", mask, known, argument=2)
        return query(found)

    return one_output(call)()
