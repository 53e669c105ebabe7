"""Addresses of hosts for tests: a subnet of 127/8 of its own for each test process.

Two runs beside each other would else ask for the same address, which one process can host.
"""

import os

from tests.support import backends


def host(number: int) -> str:
    """Return the address of host 1 to 254 of this process."""
    pid = os.getpid() + 7 * backends.shifted()
    return f"127.{64 + (pid >> 8) % 64}.{pid % 256}.{number}"
