"""Hosts that broke the protocol: until when connections to and from them are refused.

A host has up to 256 connections to an address, one for each type of service, and may break the
protocol on all of them at once: each protocol error makes the quarantine longer. So attempts of a
host, such as guesses of keys, have a rate that does not depend on its number of connections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from urds.common.types import IPAddress

if TYPE_CHECKING:
    from random import Random


class Quarantine:
    """When each host may connect again. A value: no clock, no lock.

    each_max_ns: the longest quarantine after one protocol error; its length is drawn.  all_max_ns:
    the longest one after any number of them.  hosts_max: how many hosts are remembered; beyond it
    the one whose quarantine ends first is forgotten.
    """

    def __init__(
        self, *, each_max_ns: int, all_max_ns: int, hosts_max: int, random: Random
    ) -> None:
        self._each_max_ns = each_max_ns
        self._all_max_ns = all_max_ns
        self._hosts_max = hosts_max
        self._random = random
        self._until_ns: dict[IPAddress, int] = {}

    def until_ns(self, host: IPAddress) -> int:
        """Return when a host may connect again; 0 or a time that is over: now."""
        return self._until_ns.get(host, 0)

    def extend(self, host: IPAddress, now_ns: int) -> None:
        """Begin or extend the quarantine of a host."""
        quarantine_ns = self._random.randrange(self._each_max_ns)
        began_ns = max(now_ns, self._until_ns.pop(host, 0))
        if len(self._until_ns) >= self._hosts_max:
            self._make_room(now_ns)
        self._until_ns[host] = min(began_ns + quarantine_ns, now_ns + self._all_max_ns)

    def __len__(self) -> int:
        return len(self._until_ns)

    def _make_room(self, now_ns: int) -> None:
        over = [host for host, until_ns in self._until_ns.items() if until_ns <= now_ns]
        for host in over or [min(self._until_ns, key=self._until_ns.__getitem__)]:
            del self._until_ns[host]
