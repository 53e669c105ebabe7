"""The provider library of urds' own devices, as dat.conf names it.

`dat_provider_init` and `dat_provider_fini` are the two entry points that a registry looks for in
a library. Source: docs/reference/dat.md 16.
"""

from urds.dat.records import ProviderInfo
from urds.dat.registry import REGISTRY, Provider, parse_params
from urds.verbs.device import find_device


def dat_provider_init(info: ProviderInfo, instance_data: str) -> None:
    """Add the device that `instance_data` names, the seventh field of dat.conf.

    Raises ValueError: not of the form of `urds.dat.registry.parse_params`.
    """
    device, address, support = parse_params(instance_data)
    REGISTRY.add(Provider(lambda: find_device(device).open_adapter(), address, support), info)


def dat_provider_fini(info: ProviderInfo) -> None:
    """Remove the device again. Raises DatProviderNotFound, DatProviderInUse."""
    REGISTRY.remove(info)
