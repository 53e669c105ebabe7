"""Scenarios that break connections between hosts which live on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from tests.faults.kernel import Link, kill_sockets
from tests.faults.processes import ProxyProcess
from tests.faults.run import Run
from tests.faults.scale import Scale
from tests.support.carriers import control_counter
from tests.support.places import Namespaces

CUT_EVERY_S: Final = 0.05
_HALF_OPEN_EVERY_S: Final = 0.15
_DUEL_EVERY_S: Final = 0.15
_DUEL_NOTICE_S: Final = 0.02  # so that every host hears of the moment before it comes
_DUEL_HOSTS: Final = 4
_LOST_STATE_S: Final = 0.02  # in which a reset would have come, and is lost with all the rest
_STORM_REST_S: Final = 0.4
Notes = dict[str, Any]


def resets(run: Run, scale: Scale) -> Notes:
    """Cut each connection every 50 ms, with a reset at any byte to one end or to both."""
    proxy = run.add_relayed_pair()
    run.aim_evenly()
    while run.going(CUT_EVERY_S):
        proxy.order(cut=True)
        run.fault_over()
    return seen(proxy)


def kills(run: Run, scale: Scale) -> Notes:
    """Have the kernel abort the sockets of one host, or of the other, every 50 ms: `ss -K`."""
    run.add_mesh(2)
    run.aim_evenly()
    place, killed = run.terms.place, 0
    while run.going(CUT_EVERY_S):
        host = run.random.randrange(2)
        prefix = place.prefix(host)
        killed += kill_sockets(place.address(host), place.address(1 - host), prefix=prefix)
        run.fault_over()
    return {"sockets_killed": killed}


def holes(run: Run, scale: Scale) -> Notes:
    """Let nothing through for a while, neither bytes nor acknowledgements nor resets."""
    return _silences(run, [(("up", "down"), hole_s) for hole_s in scale.holes_s])


def partitions(run: Run, scale: Scale) -> Notes:
    """Let nothing through in one direction for a while, then in the other one."""
    return _silences(
        run, [((way,), hole_s) for hole_s in scale.partitions_s for way in ("up", "down")]
    )


def half_open(run: Run, scale: Scale) -> Notes:
    """Have one host lose its connection while the other one knows nothing of it."""
    proxy, forget = _forgetful(run)
    run.aim_evenly()
    while run.going(run.random.uniform(0.5, 1.5) * _HALF_OPEN_EVERY_S):
        forget(run.random.choice(("up", "down")))
        run.fault_over()
        run.recover()
    return seen(proxy) if proxy else {}


def duels(run: Run, scale: Scale) -> Notes:
    """Have four hosts reset all their connections at one moment, so that both sides dial."""
    run.add_mesh(_DUEL_HOSTS)
    run.aim_evenly()
    while run.going(_DUEL_EVERY_S):
        at_s = time.monotonic() + _DUEL_NOTICE_S
        for lives in run.lives.values():
            lives[-1].child.say(break_at_s=at_s)
        run.going(_DUEL_NOTICE_S)
        run.fault_over()
    reports = [lives[-1].report()["counters"] for lives in run.lives.values()]
    return {
        name: sum(report[name] for report in reports)
        for name in map(control_counter, ("connects", "accepts"))
    }


def storm(run: Run, scale: Scale) -> Notes:
    """Mix all that a proxy can do, at random: cuts, half-open ends, silence one way or both."""
    proxy = run.add_relayed_pair()
    run.aim_evenly()
    while run.going(CUT_EVERY_S):
        kind = run.random.random()
        if kind < 0.85:
            proxy.order(cut=True)
        elif kind < 0.95:
            proxy.order(forget=run.random.choice(("UP", "DOWN")))
        else:
            ways = run.random.choice((["UP"], ["DOWN"], ["UP", "DOWN"]))
            proxy.order(silence=ways)
            run.going(run.random.uniform(0.02, scale.storm_silence_s))
            proxy.order(silence=[])
            run.going(_STORM_REST_S)
        run.fault_over()
    return seen(proxy)


def seen(proxy: ProxyProcess) -> Notes:
    """Return what a proxy counted."""
    proxy.order()
    return dict(proxy.counts)


def _silences(run: Run, plan: list[tuple[tuple[str, ...], float]]) -> Notes:
    """Be silent as often as planned, spread evenly over the traffic."""
    silence = _silencer(run)
    run.aim_evenly()
    for number, (ways, hole_s) in enumerate(plan, 1):
        if not run.until(number / (len(plan) + 1)):
            break
        silence(ways)
        run.going(hole_s)
        silence(())
        run.fault_over()
        run.recover()
    recoveries_s = [round(took_s, 2) for took_s in run.recovery.took_s]
    return {"silences_s": [hole_s for _, hole_s in plan], "recoveries_s": recoveries_s}


def _silencer(run: Run) -> Callable[[tuple[str, ...]], None]:
    """Start two hosts; return what makes the ways between them silent."""
    place = run.terms.place
    if not isinstance(place, Namespaces):
        proxy = run.add_relayed_pair()
        return lambda ways: proxy.order(silence=[way.upper() for way in ways])
    run.add_mesh(2)
    link = Link(place)

    def silence(ways: tuple[str, ...]) -> None:
        for host, way in enumerate(("up", "down")):
            (link.silence if way in ways else link.heal)(host, 1 - host)

    return silence


def _forgetful(run: Run) -> tuple[ProxyProcess | None, Callable[[str], None]]:
    """Start two hosts; return what makes one lose its connection, and the proxy, if it is one."""
    place = run.terms.place
    if not isinstance(place, Namespaces):
        proxy = run.add_relayed_pair()
        return proxy, lambda way: proxy.order(forget=way.upper())
    run.add_mesh(2)
    link = Link(place)

    def forget(way: str) -> None:
        host = 0 if way == "up" else 1
        for one in (0, 1):
            link.silence(one, 1 - one)
        kill_sockets(place.address(host), place.address(1 - host), prefix=place.prefix(host))
        run.going(_LOST_STATE_S)
        for one in (0, 1):
            link.heal(one, 1 - one)

    return None, forget
