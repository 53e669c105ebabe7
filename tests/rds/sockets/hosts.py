"""Addresses of hosts for tests: a subnet of 127/8 of its own for each test process.

Two runs beside each other would else ask for the same address, which one process can host.
"""

import os
from typing import Any

from tests.support import backends

_numbers: dict[str, int] = {}


def host(number: int) -> str:
    """Return the address of host 1 to 254 of this process."""
    pid = os.getpid() + 7 * backends.shifted()
    address = f"127.{64 + (pid >> 8) % 64}.{pid % 256}.{number}"
    _numbers[address] = number
    return address


def shifted(value: Any) -> Any:
    """Return a value of a module with the present addresses of the hosts in it."""
    if isinstance(value, str):
        return host(_numbers[value]) if value in _numbers else value
    return tuple(map(shifted, value)) if type(value) is tuple else value
