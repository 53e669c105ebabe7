"""Devices: enumeration and opening.

A device is a provider under a name: `shm0` for the processes of one host, `udp0` and `tcp0`
between hosts. A simulated device is made by code: `Context(adapter=network.adapter("a"))`.
"""

import errno
import os
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final

from urds.verbs.errors import VerbsError
from urds.verbs.providers.base import Adapter

if TYPE_CHECKING:
    from urds.verbs.context import Context

DEVICE_VARIABLE: Final = "URDS_VERBS_DEVICE"

# Name of the device to the module with its `open_adapter(name)`. The first is the default.
_PROVIDERS: Final = {
    "shm0": "urds.verbs.providers.shm",
    "udp0": "urds.verbs.providers.udp",
    "tcp0": "urds.verbs.providers.tcp",
}


@dataclass(frozen=True, slots=True)
class Device:
    """One device that can be opened."""

    name: str
    provider: str  # what moves its packets: shm, udp, tcp

    def open(self) -> "Context":
        """Open the device. Raises VerbsError."""
        from urds.verbs.context import Context

        return Context(self)

    def open_adapter(self) -> Adapter:
        """Open the device for a context. Raises OSError from the provider."""
        adapter: Adapter = import_module(_PROVIDERS[self.name]).open_adapter(self.name)
        return adapter


def get_device_list() -> list[Device]:
    """Return the devices of this host, the default one first unless URDS_VERBS_DEVICE names it."""
    return [
        Device(name, module.rpartition(".")[2])
        for name, module in _PROVIDERS.items()
        if _is_there(module)
    ]


def find_device(name: str | None) -> Device:
    """Return the device of that name; without one, URDS_VERBS_DEVICE's or else the first.

    Raises VerbsError: ENODEV, with the names that there are.
    """
    devices = get_device_list()
    wanted = name or os.environ.get(DEVICE_VARIABLE) or (devices[0].name if devices else "")
    for device in devices:
        if device.name == wanted:
            return device
    known = ", ".join(device.name for device in devices) or "none"
    raise VerbsError(errno.ENODEV, f"no device {wanted!r}; there are: {known}")


def _is_there(module: str) -> bool:
    try:
        return hasattr(import_module(module), "open_adapter")
    except ImportError:
        return False
