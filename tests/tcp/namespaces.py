"""A network namespace with addresses of its own, for what 127/8 cannot show: needs root."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence

_COMMANDS = ("ip", "unshare", "nsenter")
_LINK = "v0"


def missing() -> str:
    """Return why there can be no namespace here, or nothing."""
    if os.geteuid() != 0:
        return "a network namespace needs root"
    absent = [command for command in _COMMANDS if shutil.which(command) is None]
    return f"{', '.join(absent)} not installed" if absent else ""


class Namespace:
    """One namespace with one link that has `addresses` (with prefix lengths)."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._holder = subprocess.Popen(["unshare", "--net", "sleep", "600"])
        own = os.readlink("/proc/self/ns/net")
        place = f"/proc/{self._holder.pid}/ns/net"
        while os.readlink(place) == own:
            time.sleep(0.001)
        self.prefix = ("nsenter", f"--net={place}")
        self.ip("link", "set", "lo", "up")
        self.ip("link", "add", _LINK, "type", "veth", "peer", "name", "v1")
        for link in (_LINK, "v1"):
            self.ip("link", "set", link, "up")
        for address in addresses:
            version6 = ("nodad",) if ":" in address else ()
            self.ip("address", "add", address, "dev", _LINK, *version6)

    def ip(self, *arguments: str) -> str:
        """Run the command `ip` in the namespace; return what it printed."""
        command = [*self.prefix, "ip", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    @property
    def scope(self) -> int:
        """Return the number of the link."""
        return int(self.ip("-oneline", "link", "show", _LINK).partition(":")[0])

    def close(self) -> None:
        """End the namespace."""
        self._holder.kill()
        self._holder.wait()
