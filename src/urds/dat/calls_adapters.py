"""Calls for adapters, handles, the registry and return values. Source: dat.md sections 8 and 20.1.

Inputs stand in the order of C without the output pointers; handles are the objects, `None` is
DAT_HANDLE_NULL. No call raises for what DAT has a return value for.
"""

from typing import Any

from urds.dat.calling import SUCCESS, choice, no_output, one_output, three_outputs, two_outputs
from urds.dat.devices import dat_provider_fini, dat_provider_init
from urds.dat.errors import DatError, bad_argument, dat_error
from urds.dat.evd import EventDispatcher
from urds.dat.handles import DatObject, live
from urds.dat.ia import InterfaceAdapter
from urds.dat.numbers import (
    DAT_THREADSAFE,
    DAT_VERSION_MAJOR,
    DAT_VERSION_MINOR,
    AsyncEvdHandle,
    CloseFlag,
    HandleType,
)
from urds.dat.opening import open_ia
from urds.dat.records import IaAttr, ProviderAttr, ProviderInfo
from urds.dat.registry import REGISTRY, Provider
from urds.dat.returns import DatReturn, ReturnType, Subtype, names_of

__all__ = [
    "dat_get_consumer_context", "dat_get_handle_type", "dat_ia_close", "dat_ia_open",
    "dat_ia_openv", "dat_ia_query", "dat_provider_fini", "dat_provider_init",
    "dat_registry_add_provider", "dat_registry_list_providers", "dat_registry_remove_provider",
    "dat_set_consumer_context", "dat_strerror",
]  # fmt: skip

AsyncEvd = EventDispatcher | AsyncEvdHandle


def dat_ia_open(
    name: str, async_evd_min_qlen: int, async_evd_handle: AsyncEvd | None
) -> tuple[DatReturn, AsyncEvd | None, InterfaceAdapter | None]:
    """Open an adapter; `ret, async_evd, ia`. Without a dispatcher one is made."""
    return dat_ia_openv(
        name,
        async_evd_min_qlen,
        async_evd_handle,
        DAT_VERSION_MAJOR,
        DAT_VERSION_MINOR,
        DAT_THREADSAFE,
    )


def dat_ia_openv(
    name: str,
    async_evd_min_qlen: int,
    async_evd_handle: AsyncEvd | None,
    dat_major: int,
    dat_minor: int,
    thread_safety: bool,
) -> tuple[DatReturn, AsyncEvd | None, InterfaceAdapter | None]:
    """Open an adapter of this version and thread safety; `ret, async_evd, ia`."""

    def call() -> tuple[AsyncEvd, InterfaceAdapter]:
        ia = open_ia(
            name,
            async_evd_min_qlen,
            async_evd_handle,
            major=dat_major,
            minor=dat_minor,
            is_thread_safe=thread_safety,
        )
        return ia.async_evd, ia

    return two_outputs(call)


def dat_ia_query(
    ia: object, ia_attr_mask: int, provider_attr_mask: int
) -> tuple[DatReturn, AsyncEvd | None, IaAttr | None, ProviderAttr | None]:
    """Ask for attributes; `ret, async_evd, ia_attr, provider_attr`, all fields filled."""

    def call() -> tuple[AsyncEvd, IaAttr, ProviderAttr]:
        found = live(ia, InterfaceAdapter)
        return (found.async_evd, *found.query(ia_attr_mask, provider_attr_mask))

    return three_outputs(call)


def dat_ia_close(ia: object, close_flags: int) -> DatReturn:
    """Close an adapter; DAT_CLOSE_ABRUPT_FLAG frees all of its objects."""

    def call() -> None:
        found = live(ia, InterfaceAdapter)
        found.close(choice(CloseFlag, close_flags, argument=2) is CloseFlag.GRACEFUL)

    return no_output(call)


def dat_set_consumer_context(handle: object, context: Any) -> DatReturn:
    """Keep a 64-bit number or an object of the program beside a handle."""

    def call() -> None:
        live(handle, DatObject, Subtype.NO_SUBTYPE).context = context

    return no_output(call)


def dat_get_consumer_context(handle: object) -> tuple[DatReturn, Any]:
    """Return what the program keeps beside a handle, `None` if nothing; `ret, context`."""
    return one_output(lambda: live(handle, DatObject, Subtype.NO_SUBTYPE).context)


def dat_get_handle_type(handle: object) -> tuple[DatReturn, HandleType | None]:
    """Return what kind of object a handle is; `ret, type`."""
    return one_output(lambda: live(handle, DatObject, Subtype.NO_SUBTYPE).handle_type)


def dat_registry_list_providers(
    max_to_return: int,
) -> tuple[DatReturn, int | None, list[ProviderInfo] | None]:
    """List the adapters that can be opened; `ret, count, list`.

    More than `max_to_return` are INVALID_PARAMETER, and the count tells how many there are.
    """
    try:
        found = REGISTRY.list_providers()
        if not max_to_return or max_to_return < len(found):
            ret = DatReturn.error(ReturnType.INVALID_PARAMETER, Subtype.INVALID_ARG1)
            return ret, len(found), None
    except DatError as error:
        return error.ret, None, None
    return SUCCESS, len(found), found


def dat_registry_add_provider(provider: object, info: object) -> DatReturn:
    """Add a `Provider` under a name and version; the call of a provider's library."""

    def call() -> None:
        if not isinstance(provider, Provider):
            raise bad_argument(1, f"{provider!r} is no provider")
        if not isinstance(info, ProviderInfo):
            raise bad_argument(2, f"{info!r} names no provider")
        REGISTRY.add(provider, info)

    return no_output(call)


def dat_registry_remove_provider(provider: object, info: object) -> DatReturn:
    """Remove a provider; `provider` is not looked at, `info` names it."""

    def call() -> None:
        if not isinstance(info, ProviderInfo):
            raise bad_argument(2, f"{info!r} names no provider")
        REGISTRY.remove(info)

    return no_output(call)


def dat_strerror(value: int) -> tuple[DatReturn, str | None, str | None]:
    """Return the names of a return value's type and subtype; `ret, major, minor`."""

    def call() -> tuple[str, str]:
        try:
            return names_of(value)
        except LookupError as error:
            raise dat_error(ReturnType.INVALID_PARAMETER, detail=str(error)) from error

    return two_outputs(call)
