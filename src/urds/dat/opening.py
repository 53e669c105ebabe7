"""Open interface adapters by name, and tell which there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from urds.dat.errors import from_os_error
from urds.dat.ia import ASYNC_QLEN_DEFAULT, InterfaceAdapter
from urds.dat.numbers import DAT_THREADSAFE, DAT_VERSION_MAJOR, DAT_VERSION_MINOR
from urds.dat.records import ProviderInfo
from urds.dat.registry import REGISTRY, Provider, Support

if TYPE_CHECKING:
    from collections.abc import Callable

    from urds.dat.evd import EventDispatcher
    from urds.dat.numbers import AsyncEvdHandle
    from urds.verbs.providers.base import Adapter

LOOPBACK: Final = "127.0.0.1"


def open_ia(
    name: str,
    async_qlen: int = ASYNC_QLEN_DEFAULT,
    async_evd: EventDispatcher | AsyncEvdHandle | None = None,
    *,
    major: int = DAT_VERSION_MAJOR,
    minor: int = DAT_VERSION_MINOR,
    is_thread_safe: bool = DAT_THREADSAFE,
) -> InterfaceAdapter:
    """Open an adapter of the registry; `urds.dat.open` is this function.

    Asynchronous events go to a dispatcher that is made with at least `async_qlen` places, to the
    one given, or with AsyncEvdHandle.EXISTS nowhere that is known here. Raises
    DatProviderNotFound, DatInvalidParameter, DatInsufficientResources.
    """
    info, provider = REGISTRY.find(name, major=major, minor=minor, is_thread_safe=is_thread_safe)
    try:
        adapter = provider.open_adapter()
    except OSError as error:
        raise from_os_error(error) from error
    REGISTRY.count_open(provider, 1)
    address = provider.address or str(getattr(adapter, "address", LOOPBACK))
    try:
        return InterfaceAdapter(
            info.ia_name,
            adapter,
            address=address,
            support=provider.support,
            async_qlen=async_qlen,
            async_evd=async_evd,
            on_close=lambda: REGISTRY.count_open(provider, -1),
        )
    except BaseException:
        REGISTRY.count_open(provider, -1)
        adapter.close()
        raise


def providers() -> list[ProviderInfo]:
    """Return the adapters that can be opened by name. Raises DatInternalError: no registry."""
    return REGISTRY.list_providers()


def register(
    name: str,
    open_adapter: Callable[[], Adapter],
    *,
    address: str | None = None,
    support: Support | None = None,
) -> ProviderInfo:
    """Add an adapter to the registry of this process: `open_adapter` is called for each opening.

    `address` is the numeric IP address of the adapter, `None` its attribute of that name or
    loopback. For a simulated network: `register("sim-a", lambda: network.adapter("a"))`. Raises
    DatProviderAlreadyRegistered.
    """
    info = ProviderInfo(name)
    REGISTRY.add(Provider(open_adapter, address, support or Support()), info)
    return info


def unregister(info: ProviderInfo) -> None:
    """Remove an adapter again. Raises DatProviderNotFound, DatProviderInUse."""
    REGISTRY.remove(info)
