"""One side of RDS traffic inside the guest: the same loops over the kernel's sockets and `urds`.

The guest gets this file with the other benchmarks and `urds`. `interop.py`, on the host, commands
each process through the lab's agent.
"""

import ctypes
import os
from pathlib import Path

from pair import Order, obey, window_for
from peers.base import Kind
from peers.ours import Urds
from peers.rds import KernelRds, RdsPeer

# The kernel listens at its port in every network namespace; ours takes another one.
SETTINGS = {"URDS_TCP_PORT": "16386"}
_CLONE_NEWNET = 0x40000000
_MAKERS: dict[str, type[RdsPeer]] = {one.name: one for one in (Urds, KernelRds)}
_FIRST_WAIT_S, _QUIET_S = 5.0, 0.5
_Address = tuple[str, int]


class Side:
    """A bound socket in a network namespace."""

    def __init__(
        self, maker: str, payload_bytes: int, *, namespace: str, local: _Address, target: _Address
    ) -> None:
        _enter(namespace)
        os.environ.update(SETTINGS)
        self._peer = _MAKERS[maker](payload_bytes)
        self._peer.bind(local)
        self._peer.aim(target)

    def note(self) -> str:
        """Return the note for readers of the table."""
        return self._peer.note()

    def send_first(self) -> None:
        """Send one message, for the connection."""
        self._peer.put(1)

    def listen(self) -> bool:
        """Tell whether that message came; take it, and its duplicates.

        A kernel up to 6.12 may lose or double what is sent while a connection of several paths
        starts: that is not measured here.
        """
        opened = self._peer.socket
        opened.settimeout(_FIRST_WAIT_S)
        came = False
        try:
            while True:
                self._peer.take(1)
                came = True
                opened.settimeout(_QUIET_S)
        except TimeoutError:
            return came
        finally:
            opened.settimeout(None)

    def obey(self, kind: str, receives: bool, count: int) -> tuple[int, int, tuple[int, ...]]:
        """Do this side's part with `count` messages; return its times, see `pair.Answer`."""
        chosen = Kind(kind)
        answer = obey(self._peer, chosen, receives, Order(count, window_for(chosen, count)))
        return answer.elapsed_ns, answer.cpu_ns, answer.round_trips_ns


def _enter(namespace: str) -> None:
    """Move this process, which has one thread, into a network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/run/netns", namespace).open("rb") as opened:
        if libc.setns(opened.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {namespace}")
