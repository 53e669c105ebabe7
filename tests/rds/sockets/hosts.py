"""Addresses of hosts for tests: a subnet of 127/8 of its own for each test process.

Two runs beside each other would else ask for the same address, which one process can host. Over
nodes, which keep their addresses, each test of a process has another one of 1,020 subnets.
"""

from typing import Any

from tests.support import backends
from tests.support.places import take_networks, take_subnet

# Taken before any test counts descriptors, and held until the process ends.
if backends.IS_ATTACHED:
    _network, _lock = take_networks(128, 16)
else:
    _prefix, _lock = take_subnet(64, 64)
_lock.detach()
_numbers: dict[str, int] = {}


def host(number: int) -> str:
    """Return the address of host 1 to 254 of this process."""
    address = f"{_subnet()}.{number}"
    _numbers[address] = number
    return address


def _subnet() -> str:
    if not backends.IS_ATTACHED:
        return _prefix
    network, subnet = divmod(backends.shifted() % (4 * 255), 255)  # 255 has the lock
    return f"127.{_network + network}.{subnet}"


def shifted(value: Any) -> Any:
    """Return a value of a module with the present addresses of the hosts in it."""
    if isinstance(value, str):
        return host(_numbers[value]) if value in _numbers else value
    return tuple(map(shifted, value)) if type(value) is tuple else value
