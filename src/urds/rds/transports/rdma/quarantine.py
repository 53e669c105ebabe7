"""Hosts that broke the protocol: until when none of their connections is made, either way.

A host has up to 256 connections to an address, one for each type of service, and may break the
protocol on all of them at once: each breach makes the rest longer. So what a host may try that
way, guesses of keys for one, has a rate that does not depend on how many connections it uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from urds.proto.paths import Address

if TYPE_CHECKING:
    from random import Random


class HostRests:
    """When each host may connect again. A value: no clock, no lock.

    each_max_ns: the longest rest after one breach; how long it is is drawn.  all_max_ns: the
    longest rest after any number of them.  hosts_max: how many hosts are remembered; beyond it
    the one whose rest ends first is forgotten.
    """

    def __init__(
        self, *, each_max_ns: int, all_max_ns: int, hosts_max: int, random: Random
    ) -> None:
        self._each_max_ns = each_max_ns
        self._all_max_ns = all_max_ns
        self._hosts_max = hosts_max
        self._random = random
        self._until_ns: dict[Address, int] = {}

    def until_ns(self, host: Address) -> int:
        """Return when a host may connect again; 0 or a time that is over: now."""
        return self._until_ns.get(host, 0)

    def extend(self, host: Address, now_ns: int) -> None:
        """Let a host rest, or rest longer."""
        rest_ns = self._random.randrange(self._each_max_ns)
        began_ns = max(now_ns, self._until_ns.pop(host, 0))
        if len(self._until_ns) >= self._hosts_max:
            self._make_room(now_ns)
        self._until_ns[host] = min(began_ns + rest_ns, now_ns + self._all_max_ns)

    def __len__(self) -> int:
        return len(self._until_ns)

    def _make_room(self, now_ns: int) -> None:
        over = [host for host, until_ns in self._until_ns.items() if until_ns <= now_ns]
        for host in over or [min(self._until_ns, key=self._until_ns.__getitem__)]:
            del self._until_ns[host]
