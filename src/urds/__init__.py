"""RDS in user space: reliable datagrams with the API of rds(7).

Re-exports only. `urds.socket(urds.AF_RDS, urds.SOCK_SEQPACKET)` makes a socket, `urds.install()`
has `socket.socket` make the same, `urds.aio` is for asyncio and trio, `urds.configure` sets
tunables. Names of constants are those of rds.h and of Python's socket module. Constants are here
at once; what costs more is imported when it is first asked for. Type checkers read
`__init__.pyi`, which `tools.stubs` writes.
"""

import typing as _typing

from urds.common.errors import ErrorReason, PlaneError, SettingError
from urds.common.errors import os_error as _os_error
from urds.rds import constants as _constants
from urds.rds.constants import *  # noqa: F403 - each name is defined once, there

_LAZY = {
    "ConnectionInfo": "urds.rds.runtime.connections",
    "ConnectionState": "urds.rds.runtime.connections",
    "MemoryRegion": "urds.rds.rdma",
    "PeerEvent": "urds.rds.runtime.peer_events",
    "PeerEventKind": "urds.rds.runtime.peer_events",
    "PendingAtomic": "urds.rds.rdma",
    "PendingOperation": "urds.rds.rdma",
    "Settings": "urds.rds.settings",
    "Socket": "urds.rds.socket",
    "configure": "urds.rds.runtime.process",
    "connections": "urds.rds.runtime.process",
    "drain": "urds.rds.runtime.process",
    "install": "urds.rds.install",
    "on_peer_event": "urds.rds.runtime.peer_events",
    "socket": "urds.rds.socket",
    "stats": "urds.rds.runtime.process",
    "uninstall": "urds.rds.install",
}
_LAZY_MODULES = frozenset({"aio"})

__all__ = ["ErrorReason", "PlaneError", "SettingError", *_constants.__all__, *_LAZY]  # noqa: PLE0604 - all text


def __getattr__(name: str) -> _typing.Any:
    if name in _LAZY_MODULES:
        return _imported(f"{__name__}.{name}")
    if name == "__version__":
        from urds.common.version import VERSION

        return VERSION
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(_imported(_LAZY[name]), name)
    return found


def _imported(name: str) -> _typing.Any:
    """Import a module.

    A signal handler that interrupted an import of this thread would get a module without the names
    that come later, and cannot wait for them. Raises OSError (EDEADLK) then, as its calls do.
    """
    from importlib import import_module

    try:
        module: _typing.Any = import_module(name)
    except ImportError as failure:  # a module that this one needs is half-way
        if "partially initialized" not in str(failure):
            raise
        raise _os_error(ErrorReason.REENTERED) from failure
    if module.__spec__._initializing:
        raise _os_error(ErrorReason.REENTERED)
    return module


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY, *_LAZY_MODULES])
