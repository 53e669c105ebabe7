"""Datagram sockets under loss, repeats, overtaking and restarts, and with each rule broken.

Safety: what is received was sent to that socket, by the sender that is named. Liveness: in a
network that is whole again all goes by queue pair, but for one datagram a second, and arrives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.sim.datagram_world import World
from urds.rsocket.core.datagram import DatagramCore, DatagramDestination

pytestmark = pytest.mark.sim

SEEDS_MAX = 40

Patch = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("seed", range(60))
def test_datagrams_find_their_queue_pairs_whatever_happens(seed: int) -> None:
    World(seed).run(trouble=(seed % 5) / 10, restarts=seed % 7)


def instead(owner: Any, name: str, value: Any) -> Patch:
    """Put something wrong in place of a method."""
    return lambda patch: patch.setattr(owner, name, value)


def without_asking_again(self: DatagramCore, *arguments: Any, **keywords: Any) -> None:
    _BEGIN(self, *arguments, **keywords)
    object.__setattr__(self.settings, "udp_again_ns", 1 << 62)


def naming_the_peer(self: DatagramCore, target: Any, local_host: str) -> None:
    _ADD(self, target, target[0])


def forgetting_nothing(self: DatagramCore, destination: DatagramDestination) -> None:
    pass


def comparing_numbers_only(
    self: DatagramCore, header: Any, rest: Any, source: Any, now: int
) -> None:
    destination = self._destinations.find(source)
    if destination is not None:
        destination.peer_bind_id = None
    _CONTROL(self, header, rest, source, now)


def always_looking_up_later(
    self: DatagramCore, destination: DatagramDestination, now_ns: int
) -> None:
    _NEXT(self, destination, now_ns)
    destination.look_up_not_before_ns = 1 << 62


_BEGIN = DatagramCore.__init__
_ADD = DatagramCore.add_destination
_CONTROL = DatagramCore._receive_control
_NEXT = DatagramCore._look_up_next

BROKEN: dict[str, Patch] = {
    "ask over UDP again": instead(DatagramCore, "__init__", without_asking_again),
    "name ourselves": instead(DatagramCore, "add_destination", naming_the_peer),
    "forget the way to a peer that changed": instead(
        DatagramCore, "_forget_queue_pair", forgetting_nothing
    ),
    "compare openings, not numbers alone": instead(
        DatagramCore, "_receive_control", comparing_numbers_only
    ),
    "try again after a failed look-up": instead(
        DatagramCore, "_look_up_next", always_looking_up_later
    ),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_is_seen(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BROKEN[rule](monkeypatch)
    for seed in range(SEEDS_MAX):
        try:
            World(seed).run(trouble=0.3, restarts=4)
        except AssertionError:
            break
    else:
        pytest.fail(f"{SEEDS_MAX} seeds without a failure")
    monkeypatch.undo()
    World(seed).run(trouble=0.3, restarts=4)
