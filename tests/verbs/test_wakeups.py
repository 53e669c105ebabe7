"""One sparse scenario per rule of waking, over each provider; each fails when its rule is broken.

Heavy traffic hides a lost wake-up, for the next message repeats the last one. So each scenario
sends one message at the worst moment and then nothing more, and what hides a lost wake-up, the
bounded sleeps and the looks of the progress thread, takes an hour. A rule has two tests: the
scenario holds, and with the rule broken on purpose it finds the hang within its bound.

`shm-native` is the compiled engine, in which threads wait themselves: its rules are broken where
they are Python; those of the engine are broken by `tools/mutants.toml`.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import MethodType
from typing import Any

import pytest

from tests.verbs.pair import End, connect
from urds.common.progress import NAP_NS, PARK_NS, ProgressLoop
from urds.verbs import Context, RecvWR
from urds.verbs.providers.base import LoopAdapter
from urds.verbs.providers.shm.adapter import ShmAdapter
from urds.verbs.providers.tcp import TcpAdapter
from urds.verbs.providers.udp import UdpAdapter

HOLDS_S = 10.0
BROKEN_S = 0.4
HOUR_NS = 3600 * 10**9
NATIVE = "shm-native"
PROVIDERS = ("shm", "tcp", "udp")
ALL = (*PROVIDERS, NATIVE)


def has_native() -> bool:
    return find_spec("urds_native") is not None


class World:
    """Two connected ends; threads wait at the right one, and the left one sends."""

    def __init__(self, left: End, right: End, bound_s: float) -> None:
        self.left, self.right, self.bound_s = left, right, bound_s
        adapter = right.adapter
        assert isinstance(adapter, LoopAdapter)
        self.adapter, self.loop = adapter, adapter.loop
        assert isinstance(left.adapter, LoopAdapter)
        self.loops: tuple[ProgressLoop, ...] = (left.adapter.loop, adapter.loop)
        self.flags: set[str] = set()
        self.is_over = False
        self.threads: list[threading.Thread] = []

    def wait_for(self, is_true: Callable[[], bool]) -> bool:
        """Return whether it becomes true within the bound, here without any progress."""
        end_s = time.monotonic() + self.bound_s
        while not is_true():
            if time.monotonic() > end_s:
                return False
            time.sleep(0.001)
        return True

    def waiter(self, is_ready: Callable[[], bool], timeout_ns: int | None = None) -> list[bool]:
        """Let a thread wait; return the list that gets how it went, once the thread sleeps."""
        said: list[bool] = []
        before = self.waiting()

        def run() -> None:
            said.append(self.adapter.wait(lambda: self.is_over or is_ready(), timeout_ns))

        thread = threading.Thread(target=run, daemon=True)
        self.threads.append(thread)
        thread.start()
        assert self.wait_for(lambda: bool(said) or self.sleepers() > before)
        return said

    def waiting(self) -> int:
        engine = self.engine
        return len(self.loop._waiters) if engine is None else int(engine.sleepers)

    @property
    def engine(self) -> Any:
        """The compiled engine, if threads wait there."""
        return getattr(self.adapter, "channel_engine", None)

    def sleepers(self) -> int:
        if self.engine is not None:
            return self.waiting()
        with self.adapter.lock:
            return sum(
                waiter.is_asleep or waiter is self.loop.leader for waiter in self.loop._waiters
            )

    def receive(self, count: int = 1) -> None:
        for number in range(count):
            self.right.qp.post_recv(RecvWR(number, [self.right.mr.sge(0, 8)]))

    def arrived(self, count: int) -> Callable[[], bool]:
        return lambda: len(self.right.cq) >= count

    def send(self) -> None:
        self.left.send(0, b"12345678")

    def close(self) -> None:
        """Wake all by force: a scenario with a broken rule ends too."""
        self.is_over = True
        with self.adapter.lock:
            self.loop._waiters.wake_all()
            self.loop._ring()
        for thread in self.threads:
            thread.join(HOLDS_S)
        self.left.context.close()
        self.right.context.close()


def native_adapter(place: Path) -> ShmAdapter:
    from urds.verbs.providers.shm.native_adapter import NativeShmAdapter

    return NativeShmAdapter(directory=place)


def break_loops(
    patch: pytest.MonkeyPatch, scene: World, name: str, made: Callable[..., Any]
) -> None:
    """Break a method of these loops alone: other tests have left devices open in this process."""
    for loop in scene.loops:
        patch.setattr(loop, name, MethodType(made, loop))


def break_waiters(
    patch: pytest.MonkeyPatch, scene: World, name: str, made: Callable[..., Any]
) -> None:
    """Break a method of what waits for these loops."""
    for loop in scene.loops:
        patch.setattr(loop._waiters, name, MethodType(made, loop._waiters))


def forget_look(loop: ProgressLoop) -> None:
    """Have the progress thread not look: one that was planned before a rule is broken keeps it."""
    with loop._lock:
        if loop._check is not None:
            loop._check.cancel()
            loop._check = None


@contextmanager
def world(provider: str, place: Path, bound_s: float) -> Iterator[World]:
    """Yield a pair that only its callers drive."""
    make: dict[str, Callable[[], Any]] = {
        "shm": lambda: ShmAdapter(directory=place),
        "tcp": TcpAdapter,
        "udp": UdpAdapter,
        NATIVE: lambda: native_adapter(place),
    }
    left, right = (End(Context(adapter=make[provider]())) for _ in range(2))
    connect(left, right, ("127.0.0.1", 0))
    scene = World(left, right, bound_s)
    for loop in scene.loops:
        loop.park_ns = loop.nap_ns = HOUR_NS
    try:
        for end in (left, right):
            if scene.engine is not None:
                end.adapter.channel_engine.nap_ns = HOUR_NS  # type: ignore[attr-defined]  # it has one
            end.adapter.progress()
            timer = getattr(end.adapter, "_timer", None)
            if timer is not None:  # of the connect: it would wake a thread in between
                timer.cancel()
            forget_look(end.adapter.loop)  # type: ignore[attr-defined]  # it has one
            if scene.engine is not None:
                end.adapter.channel_engine.plan_loop(None)  # type: ignore[attr-defined]  # as above
        yield scene
    finally:
        for loop in scene.loops:
            loop.park_ns, loop.nap_ns = PARK_NS, NAP_NS
        scene.close()


# -- leader and followers


def a_follower_takes_over(scene: World) -> bool:
    """Let the leader have what it wants and leave; the next message is the follower's."""
    scene.receive(2)
    first, second = scene.waiter(scene.arrived(1)), scene.waiter(scene.arrived(2))
    scene.send()
    if not scene.wait_for(lambda: bool(first)):
        return False
    scene.send()
    return scene.wait_for(lambda: bool(second))


def no_successor(patch: pytest.MonkeyPatch, scene: World) -> None:
    break_waiters(patch, scene, "wake_successor", lambda self: None)


def a_follower_hears_what_the_leader_took_in(scene: World) -> bool:
    scene.receive()
    scene.waiter(lambda: False)
    said = scene.waiter(scene.arrived(1))
    scene.send()
    return scene.wait_for(lambda: bool(said))


def no_follower_is_told(patch: pytest.MonkeyPatch, scene: World) -> None:
    break_waiters(patch, scene, "wake_ready", lambda self: False)


def a_leader_hears_of_another_threads_doing(scene: World) -> bool:
    said = scene.waiter(lambda: "done" in scene.flags)
    with scene.adapter.lock:
        scene.flags.add("done")
        scene.adapter.notify()
    return scene.wait_for(lambda: bool(said))


def no_ring(patch: pytest.MonkeyPatch, scene: World) -> None:
    break_loops(patch, scene, "_ring", lambda self: None)
    if scene.engine is not None:
        break_waiters(patch, scene, "wake_ready", lambda self: False)
        break_loops(patch, scene, "defer", ProgressLoop.defer)
        break_loops(patch, scene, "_tell_pass", lambda self, has_heard: None)


def a_call_without_the_lock_is_heard(scene: World) -> bool:
    """Call when the leader has seen that there is no call, and is about to sleep."""
    original = scene.loop._sleep_s

    def sleep_s(end_ns: int | None) -> float:
        found = original(end_ns)
        if "called" not in scene.flags:
            scene.flags.add("called")
            scene.adapter.call_soon(lambda: scene.flags.add("done"))
        return found

    scene.loop._sleep_s = sleep_s  # type: ignore[method-assign]  # the worst moment
    said = scene.waiter(lambda: "done" in scene.flags)
    return scene.wait_for(lambda: bool(said))


def a_call_is_only_listed(patch: pytest.MonkeyPatch, scene: World) -> None:
    break_loops(patch, scene, "call_soon", lambda self, call: self._soon.append(call))


def an_earlier_timer_shortens_a_sleep(scene: World) -> bool:
    said = scene.waiter(lambda: "due" in scene.flags)
    with scene.adapter.lock:
        soon_ns = time.monotonic_ns() + 1_000_000
        scene.loop.call_at(soon_ns, lambda: scene.flags.add("due"))
    return scene.wait_for(lambda: bool(said))


def timers_are_only_listed(patch: pytest.MonkeyPatch, scene: World) -> None:
    break_loops(patch, scene, "call_at", lambda self, at_ns, call: self._timers.add(at_ns, call))


def close_wakes_all(scene: World) -> bool:
    said = [scene.waiter(lambda: False) for _ in range(3)]
    closer = threading.Thread(target=scene.right.context.close, daemon=True)
    closer.start()
    return scene.wait_for(lambda: all(said))


def a_close_tells_only_the_leader(patch: pytest.MonkeyPatch, scene: World) -> None:
    break_waiters(patch, scene, "wake_all", lambda self: None)
    break_waiters(patch, scene, "wake_successor", lambda self: None)


# -- the progress thread


def the_thread_takes_over_for_a_sleeper_outside(scene: World) -> bool:
    """Leave a wait while another thread sleeps on a descriptor."""
    scene.receive()
    said = scene.waiter(lambda: False, 20_000_000)
    with scene.adapter.lock:
        scene.adapter.add_external_waiter()
    if not scene.wait_for(lambda: bool(said)):
        return False
    scene.send()
    return scene.wait_for(scene.arrived(1))


def no_lead_for_the_thread(patch: pytest.MonkeyPatch, scene: World) -> None:
    break_loops(patch, scene, "_lead_in_thread", lambda self: None)


def a_waiter_takes_the_lead_and_gives_it_back(scene: World) -> bool:
    scene.receive()
    with scene.adapter.lock:
        scene.adapter.add_external_waiter()
    said = scene.waiter(lambda: False, 20_000_000)
    if not scene.wait_for(lambda: bool(said)):
        return False
    scene.send()
    return scene.wait_for(scene.arrived(1))


def no_lead_is_given_back(patch: pytest.MonkeyPatch, scene: World) -> None:
    break_loops(patch, scene, "_leave", lambda self: None)


def the_thread_leads_where_no_thread_waits(scene: World) -> bool:
    """Have the progress thread look, which here it does at once."""
    scene.loop.park_ns = 1_000_000
    scene.receive()
    scene.waiter(lambda: True)
    forget_look(scene.loop)  # for which it was given an hour
    scene.adapter.progress()
    scene.send()
    return scene.wait_for(scene.arrived(1))


def the_thread_only_looks(patch: pytest.MonkeyPatch, scene: World) -> None:
    break_loops(patch, scene, "_check_in_thread", lambda self: None)


def what_was_put_off_is_done(scene: World) -> bool:
    """Put something off in a thread that polls, while another one sleeps."""
    scene.waiter(lambda: False)
    with scene.adapter.lock:
        done = partial(scene.flags.add, "done")
        scene.loop._soon.append(lambda: scene.loop.defer(done))
    scene.adapter.progress()
    return scene.wait_for(lambda: "done" in scene.flags)


# -- memory


def a_sleeper_asks_for_the_doorbell(scene: World) -> bool:
    scene.receive()
    said = scene.waiter(scene.arrived(1))
    scene.send()
    return scene.wait_for(lambda: bool(said))


def no_doorbell_is_asked_for(patch: pytest.MonkeyPatch, scene: World) -> None:
    for end in (scene.left, scene.right):
        patch.setattr(end.adapter, "arm_doorbell", lambda: True)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule, the scenario that needs it, and how it is broken on purpose."""

    name: str
    scenario: Callable[[World], bool]
    broken: Callable[[pytest.MonkeyPatch, World], None]
    providers: tuple[str, ...] = PROVIDERS


RULES = [
    Rule("name a successor", a_follower_takes_over, no_successor),
    Rule("tell followers", a_follower_hears_what_the_leader_took_in, no_follower_is_told, ALL),
    Rule("ring the leader", a_leader_hears_of_another_threads_doing, no_ring, ALL),
    Rule("lead before the last look", a_call_without_the_lock_is_heard, a_call_is_only_listed),
    Rule("ring for a timer", an_earlier_timer_shortens_a_sleep, timers_are_only_listed, ALL),
    Rule("close wakes all", close_wakes_all, a_close_tells_only_the_leader, ALL),
    Rule(
        "lead for sleepers outside",
        the_thread_takes_over_for_a_sleeper_outside,
        no_lead_for_the_thread,
        ALL,
    ),
    Rule(
        "give the lead back", a_waiter_takes_the_lead_and_gives_it_back, no_lead_is_given_back, ALL
    ),
    Rule("lead in the end", the_thread_leads_where_no_thread_waits, the_thread_only_looks, ALL),
    Rule("ring for what was put off", what_was_put_off_is_done, no_ring, ALL),
    Rule(
        "ask for the doorbell",
        a_sleeper_asks_for_the_doorbell,
        no_doorbell_is_asked_for,
        providers=("shm",),
    ),
]

CASES = [
    pytest.param(rule, provider, id=f"{rule.name}-{provider}")
    for rule in RULES
    for provider in rule.providers
    if provider != NATIVE or has_native()
]
TRIES = 5

each_case = pytest.mark.parametrize(("rule", "provider"), CASES)


HOLD_CASES = [
    *CASES,
    *(
        pytest.param(rule, NATIVE, id=f"{rule.name}-{NATIVE}")
        for rule in RULES
        if rule.name in ("name a successor", "ask for the doorbell") and has_native()
    ),
]


@pytest.mark.parametrize(("rule", "provider"), HOLD_CASES)
def test_the_scenario_ends_well(rule: Rule, provider: str, tmp_path: Path) -> None:
    with world(provider, tmp_path / "meet", HOLDS_S) as scene:
        assert rule.scenario(scene)


@each_case
def test_the_scenario_finds_the_broken_rule(
    rule: Rule, provider: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something else may wake a thread just then: one of several tries has to hang."""
    for _ in range(TRIES):
        place = tmp_path / "meet"
        with world(provider, place, BROKEN_S) as scene, monkeypatch.context() as patch:
            rule.broken(patch, scene)
            hangs = not rule.scenario(scene)
        if hangs:
            return
    pytest.fail(f"the scenario does not need the rule {rule.name!r}")
