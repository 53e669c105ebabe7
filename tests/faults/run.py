"""One fault run: hosts and their lives, what each sends to which other, how long recovery takes.

A scenario adds hosts, sets goals, and breaks things for as long as `going` or `until` say that
there is traffic. Nothing here judges; `verdict` does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.faults.board import Taken
from tests.faults.host import HostPlan
from tests.faults.messages import Sizes
from tests.faults.processes import HostLife, ProxyProcess
from tests.faults.proxy import ProxyPlan
from tests.rds.transports.tcp.relay import HIGHER_PORT, LOWER_PORT
from tests.support.places import Namespaces, Place

_LOOK_EVERY_S: Final = 0.004
_QUIET_S: Final = 0.25  # after the last expected message: one too many would come now
_SETTINGS: Final = {"wmem_default": 4 << 20}  # a send queue of half of it: two of the longest
Way = tuple[int, int]  # from a host to a host


def show_nothing(done: float, text: str) -> None:
    """Show no progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What all runs are told."""

    place: Place | Namespaces
    folder: Path  # for boards
    messages: int  # of all ways together
    seed: int
    broken_rule: str = ""  # that every host breaks
    stall_s: float  # without a single message for so long a run counts as stuck
    show: Callable[[float, str], None] = show_nothing  # how much is done, of 1, and words for it


@dataclass(slots=True)
class Recovery:
    """How long after the end of each fault every unfinished way had moved again."""

    took_s: list[float] = field(default_factory=list)
    _open: list[tuple[float, dict[Way, object]]] = field(default_factory=list)

    @property
    def is_due(self) -> bool:
        """Tell whether a way has not moved since the last fault."""
        return bool(self._open)

    def mark(self, state: Mapping[Way, object], now_s: float) -> None:
        """Note the end of a fault; `state` is anything that changes as a way moves."""
        self._open.append((now_s, dict(state)))

    def look(self, state: Mapping[Way, object], now_s: float) -> None:
        """Note which ways have moved; a way that is not in `state` is finished."""
        for _, before in self._open:
            for way in [way for way, one in before.items() if state.get(way) != one]:
                del before[way]
        self.took_s += [now_s - ended_s for ended_s, before in self._open if not before]
        self._open = [one for one in self._open if one[1]]


class Run:
    """Hosts counted from 0, in the order of their addresses; a context that ends all processes."""

    def __init__(self, terms: Terms, *, sizes: Sizes = Sizes.MIXED) -> None:
        self.terms = terms
        self.random = Random(terms.seed)
        self.lives: dict[int, list[HostLife]] = {}
        self.faults = 0
        self.stalled = False
        self.given_up_before = 0  # messages, by lives that were killed later
        self.problems: list[str] = []  # that a scenario found itself
        self.recovery = Recovery()
        self.goals: dict[Way, int] = {}
        self._sizes = sizes
        self._peers: dict[int, list[int]] = {}
        self._settings: dict[int, Mapping[str, Any]] = {}
        self._ending = ExitStack()
        self._start_s = time.monotonic()
        self._moved_s = self._start_s
        self._delivered = 0

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    # -- hosts

    def add(self, peers: Mapping[int, Sequence[int]], **settings: Any) -> None:
        """Start hosts, each with the peers that it may send to or hear from."""
        for host, others in peers.items():
            self._peers[host] = list(others)
            self._settings[host] = settings
        started = [self._start(host) for host in peers]
        for life in started:
            life.await_ready()

    def add_mesh(self, count: int, **settings: Any) -> None:
        """Start hosts of which each may talk with each."""
        self.add({one: [h for h in range(count) if h != one] for one in range(count)}, **settings)

    def add_relayed_pair(self) -> ProxyProcess:
        """Start hosts 0 and 1 with a proxy between them."""
        place = self.terms.place
        files = None
        if isinstance(place, Namespaces):
            files = (str(place.side(0).file), str(place.side(1).file))
        plan = ProxyPlan(
            lower=place.address(0), higher=place.address(1), seed=self.terms.seed, namespaces=files
        )
        proxy = ProxyProcess(plan, self.terms.folder)
        self._ending.callback(proxy.child.close)
        self.add({0: [1]}, tcp_port=LOWER_PORT)
        self.add({1: [0]}, tcp_port=HIGHER_PORT)
        return proxy

    def live(self, host: int) -> HostLife:
        """Return the current life of a host."""
        return self.lives[host][-1]

    def peers_of(self, host: int) -> list[int]:
        """Return the hosts that a host may talk with."""
        return self._peers[host]

    def restart(self, host: int) -> None:
        """Begin the next life of a host that was killed; it sends as much as the one before."""
        life = self._start(host)
        life.await_ready()
        self._tell_goals([host])

    def _start(self, host: int) -> HostLife:
        place, lives = self.terms.place, self.lives.setdefault(host, [])
        plan = HostPlan(
            address=place.address(host),
            peers=[place.address(peer) for peer in self._peers[host]],
            life=len(lives),
            seed=self.terms.seed,
            sizes=self._sizes,
            board=str(self.terms.folder / f"{host}-{len(lives)}"),
            settings={**_SETTINGS, **self._settings[host]},
            broken_rule=self.terms.broken_rule,
        )
        life = HostLife(plan, prefix=place.prefix(host))
        self._ending.callback(life.close)
        lives.append(life)
        return life

    # -- traffic

    @property
    def ways(self) -> list[Way]:
        """Return all ways between hosts that know each other."""
        return [pair for pair in permutations(self.lives, 2) if pair[1] in self._peers[pair[0]]]

    def aim(self, goals: Mapping[Way, int]) -> None:
        """Have each way carry so many messages in the current life of its source."""
        self.goals |= goals
        self._moved_s = time.monotonic()
        self._tell_goals({source for source, _ in goals})

    def aim_evenly(self) -> None:
        """Share the messages of the run out among all ways."""
        ways = self.ways
        self.aim(dict.fromkeys(ways, max(1, self.terms.messages // len(ways))))

    def _tell_goals(self, sources: Iterator[int] | Sequence[int] | set[int]) -> None:
        for host in sources:
            goals = {
                self.terms.place.address(target): count
                for (source, target), count in self.goals.items()
                if source == host
            }
            self.live(host).child.say(goals=goals)

    def taken(self, way: Way) -> Taken:
        """Return what the current life of the target took from the current life of the source."""
        source, target = self.live(way[0]), self.live(way[1])
        return target.board.taken(source.address, source.plan.life)

    def accepted(self, way: Way) -> int:
        """Return how many messages the socket of the source's current life took."""
        source, target = self.live(way[0]), self.live(way[1])
        return source.board.sent(target.address).accepted

    @property
    def state(self) -> dict[Way, object]:
        """Return for each unfinished way what changes as it moves."""
        return {
            way: (len(self.lives[way[0]]), len(self.lives[way[1]]), taken.next, taken.delivered)
            for way, goal in self.goals.items()
            if (taken := self.taken(way)).next < goal or taken.missing
        }

    @property
    def delivered(self) -> int:
        """Return how many different messages were taken, by all lives from all lives."""
        return sum(
            life.board.taken(self.terms.place.address(peer), number).delivered
            for host, lives in self.lives.items()
            for life in lives
            for peer in self._peers[host]
            for number in range(len(self.lives[peer]))
        )

    # -- time

    def going(self, wait_s: float) -> bool:
        """Wait; tell whether there is traffic left. False at once when all is there, or stuck."""
        end_s = time.monotonic() + wait_s
        while True:
            if not self._look():
                return False
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                return True
            time.sleep(min(left_s, _LOOK_EVERY_S))

    def until(self, fraction: float) -> bool:
        """Wait for that much of what is to be carried; tell whether there is traffic left."""
        while self.done_fraction < fraction:
            if not self.going(_LOOK_EVERY_S):
                return False
        return True

    def recover(self) -> bool:
        """Wait until all ways moved since the last fault; tell whether there is traffic left."""
        while self.recovery.is_due:
            if not self.going(_LOOK_EVERY_S):
                return False
        return True

    def fault_over(self) -> None:
        """Count a fault that has just ended; from now on recovery is measured."""
        self.faults += 1
        self.recovery.mark(self.state, time.monotonic())

    def finish(self) -> None:
        """Wait until everything is there, or nothing moves any more, and a little longer."""
        while self.going(0.05):
            pass
        time.sleep(_QUIET_S)

    @property
    def done_fraction(self) -> float:
        """Return how much of the goals is reached."""
        whole = sum(self.goals.values())
        return sum(self.taken(way).next for way in self.goals) / whole if whole else 1.0

    def _look(self) -> bool:
        """Take in where the run stands; tell whether there is traffic left."""
        now_s, state = time.monotonic(), self.state
        self.recovery.look(state, now_s)
        delivered = self.delivered
        if delivered != self._delivered:
            self._delivered, self._moved_s = delivered, now_s
        for lives in self.lives.values():
            if lives[-1].is_alive:
                lives[-1].child.check()
        elapsed_s = now_s - self._start_s
        text = f"{elapsed_s:6.1f} s  delivered {delivered}  faults {self.faults}"
        self.terms.show(self.done_fraction, text)
        self.stalled = now_s - self._moved_s > self.terms.stall_s
        return bool(state) and not self.stalled
