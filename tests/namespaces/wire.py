"""A link of two tun devices whose packets this process carries: it loses, delays, reorders them.

What `tc netem` does where the kernel has it; this wire needs only /dev/net/tun, and its chances
have a seed. One thread; packets that are under way wait in a heap until they are due.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import select
import struct
import threading
import time
from dataclasses import dataclass
from typing import Final

from tests.support.places import Namespaces

_TUN: Final = "/dev/net/tun"
# Source: linux v6.12 include/uapi/linux/if_tun.h; struct ifreq of netdevice(7).
_TUNSETIFF: Final = 0x400454CA
_IFF_TUN_NO_PI: Final = 0x1001
_IFREQ: Final = struct.Struct("16sH22x")
_DEVICE: Final = "t0"
_PACKET_BYTES_MAX: Final = 65536
_TURN_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Weather:
    """What happens to packets from now on; chances from 0 to 1."""

    loss: float = 0.0
    delay_s: float = 0.0
    late: float = 0.0  # the chance that a packet is overtaken by those of the next `late_s`
    late_s: float = 0.005
    twice: float = 0.0


def missing() -> str:
    """Return why there can be no wire here, or nothing."""
    return "" if os.access(_TUN, os.R_OK | os.W_OK) else f"{_TUN} is not here"


class Wire:
    """Joins the two namespaces once more, by addresses of their own: `addresses`."""

    def __init__(self, hosts: Namespaces, *, seed: int) -> None:
        net = "fd75:7264:74::" if hosts.ipv6 else "10.117.115."
        self.addresses = (f"{net}1", f"{net}2")
        self.weather = Weather()
        self.lost = self.overtaken = self.forwarded = 0
        self._rng = random.Random(seed)
        self._ends = [self._open(hosts, host) for host in (0, 1)]
        self._under_way: list[tuple[float, int, int, bytes]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End both devices."""
        self._stop.set()
        self._thread.join()
        for end in self._ends:
            os.close(end)

    def _open(self, hosts: Namespaces, host: int) -> int:
        """Make the device of a host; return the descriptor with its packets."""
        side = hosts.sides[host]
        with side.entered():
            end = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(end, _TUNSETIFF, _IFREQ.pack(_DEVICE.encode(), _IFF_TUN_NO_PI))
        length = "/64 nodad" if hosts.ipv6 else "/24"
        side.ip(
            f"address add dev {_DEVICE} {self.addresses[host]}{length}",
            f"link set {_DEVICE} up mtu 1500",
        )
        return end

    def _run(self) -> None:
        while not self._stop.is_set():
            wait_s = self._under_way[0][0] - time.monotonic() if self._under_way else _TURN_S
            ready, _, _ = select.select(self._ends, [], [], min(max(wait_s, 0.0), _TURN_S))
            for end in ready:
                self._take(end, self._ends[1 - self._ends.index(end)])
            while self._under_way and self._under_way[0][0] <= time.monotonic():
                _, _, target, packet = heapq.heappop(self._under_way)
                _write(target, packet)

    def _take(self, end: int, target: int) -> None:
        weather, rng = self.weather, self._rng
        while (packet := _read(end)) is not None:
            self.forwarded += 1
            if rng.random() < weather.loss:
                self.lost += 1
                continue
            for _ in range(1 + (rng.random() < weather.twice)):
                due_s = time.monotonic() + weather.delay_s
                if rng.random() < weather.late:
                    self.overtaken += 1
                    due_s += weather.late_s
                heapq.heappush(self._under_way, (due_s, self.forwarded, target, packet))


def _read(end: int) -> bytes | None:
    try:
        return os.read(end, _PACKET_BYTES_MAX)
    except BlockingIOError:
        return None


def _write(end: int, packet: bytes) -> None:
    try:
        os.write(end, packet)
    except OSError:
        pass  # the queue of the device is full, or it is down: one more that is lost
