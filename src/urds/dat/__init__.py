"""uDAPL 1.2 in user space: `dat_*` calls with their C names and numbers, and the objects behind.

    with dat.open("shm0") as ia, ia.create_pz() as pz: ...

The calls return DAT return values and raise nothing; the methods of the objects raise `DatError`
and its kinds. Both work on the same objects, so a program may mix them. docs/dat.md tells more.
Type checkers read `__init__.pyi`, which `tools.stubs` writes.
"""

# ruff: noqa: F401 - `__all__` is made of what is imported here

from types import ModuleType as _ModuleType

from urds.dat import constants as _constants
from urds.dat import returns as _returns
from urds.dat.api import *  # noqa: F403 - each call is defined once, there
from urds.dat.constants import *  # noqa: F403 - each number is defined once, there
from urds.dat.devices import dat_provider_fini, dat_provider_init
from urds.dat.endpoint import ConnectionEvent, DtoCompletionEvent, Endpoint, EpParam
from urds.dat.errors import *  # noqa: F403 - each kind is defined once, there
from urds.dat.evd import *  # noqa: F403 - each event is defined once, there
from urds.dat.ia import InterfaceAdapter, open_ia, providers, register, unregister
from urds.dat.memory import (
    LmrParam,
    LocalMemory,
    ProtectionZone,
    PzParam,
    RemoteMemory,
    RmrBindCompletionEvent,
    RmrParam,
)
from urds.dat.records import *  # noqa: F403 - each record is defined once, there
from urds.dat.registry import Provider, Support
from urds.dat.returns import DatReturn, ReturnType, Subtype
from urds.dat.service_points import (
    ConnectionRequest,
    ConnectionRequestEvent,
    CrParam,
    PspParam,
    PublicServicePoint,
    ReservedServicePoint,
    RspParam,
)
from urds.dat.srq import SharedReceiveQueue, SrqParam

globals().update(_constants.FLAT | _returns.FLAT)

__all__ = [
    name
    for name, value in globals().items()
    if not name.startswith("_") and not isinstance(value, _ModuleType)
]
# Not in `__all__`: an import of everything must not hide the builtin.
open = open_ia
