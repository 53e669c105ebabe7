"""Opening the devices that RDS over RDMA uses, by their names."""

from __future__ import annotations

import errno
from collections.abc import Sequence

from urds.rds.transports.rdma.device import RdmaDevice
from urds.verbs.device import find_device


def open_devices(names: Sequence[str]) -> list[RdmaDevice]:
    """Open devices in the order in which peers are tried on them.

    Raises OSError: ENODEV for no name or one that no device has, or its provider's error; then
    none of them stays open.
    """
    if not names:
        raise OSError(errno.ENODEV, "no device is named")
    opened: list[RdmaDevice] = []
    try:
        for name in names:
            opened.append(RdmaDevice(find_device(name).open_adapter()))
    except OSError:
        for device in opened:
            device.close()
        raise
    return opened
