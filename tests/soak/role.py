"""One process of the soak: `python -m tests.soak.role PLAN`, the plan in JSON.

It plays the role that its plan names until its standard input ends, and tells its counts in lines
of JSON on its standard output. What it needs of the others it finds at addresses that follow from
the plan's network.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from random import Random
from typing import Final

import urds
from tests.soak.messages import HEAD_BYTES, MESSAGE_BYTES_MAX, Counters
from urds.rds.runtime import process as backend
from urds.rds.runtime.inprocess import InProcess

ASK_PORT: Final = 4000  # what comes here is answered
SINK_PORT: Final = 4001  # as well, but most of it asks for no answer
STREAM_PORT: Final = 7471
ROLES: Final = {
    "server": ("rds_roles", "serve"),
    "asker": ("rds_roles", "ask"),
    "source": ("rds_roles", "burst"),
    "restarted": ("rds_roles", "ask_from_one_port"),
    "tasks": ("task_roles", "play"),
    "rdma-server": ("rdma_roles", "serve"),
    "rdma-client": ("rdma_roles", "ask"),
    "stream-server": ("stream_roles", "serve"),
    "stream-client": ("stream_roles", "ask"),
}
HOSTS: Final = {role: number for number, role in enumerate(ROLES, start=1)}
ANSWER_S: Final = 30.0  # longer than any pause that a restart or a reset makes
SEND_BUFFER_BYTES: Final = 4 * MESSAGE_BYTES_MAX  # twice what it holds; receives stay as they are
_END_S: Final = 20.0
# Sizes as programs have them: mostly small, now and then as long as may be.
_SIZES: Final = ((40, 200), (30, 2000), (18, 9000), (9, 70_000), (3, MESSAGE_BYTES_MAX))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one process does."""

    role: str
    network: str  # the first three numbers of all addresses
    seed: int
    cpu_share: float  # of a core; who only answers is not held back
    reset_every_s: float
    socket_life_s: float
    report_every_s: float


class Stage:
    """What every role needs: counts, pace, chance, and to know when it is over."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.counters = Counters()
        self.random = Random(f"{plan.seed} {plan.role}")
        self.over = threading.Event()
        self._reset_at_s = time.monotonic() + plan.reset_every_s
        self._began_s, self._used_s = time.monotonic(), time.process_time()

    def address(self, role: str | None = None) -> str:
        """Return the address of a role, our own by default."""
        return f"{self.plan.network}.{HOSTS[role or self.plan.role]}"

    def message_bytes(self) -> int:
        """Draw the length of a message, its head included."""
        (_, bytes_max), *_ = self.random.choices(_SIZES, [weight for weight, _ in _SIZES])
        if bytes_max == MESSAGE_BYTES_MAX and self.random.random() < 0.2:
            return MESSAGE_BYTES_MAX
        return self.random.randint(HEAD_BYTES, bytes_max)

    def end_of_life_s(self) -> float:
        """Draw when a socket that is opened now will be closed."""
        return time.monotonic() + self.plan.socket_life_s * self.random.uniform(0.5, 1.5)

    def is_reset_due(self) -> bool:
        """Tell whether it is time to break something; then the next time is drawn."""
        now_s = time.monotonic()
        if now_s < self._reset_at_s:
            return False
        self._reset_at_s = now_s + self.plan.reset_every_s * self.random.uniform(0.5, 1.5)
        return True

    def reset_now_and_then(self) -> None:
        """Reset all connections of this process, if it is time."""
        if self.is_reset_due():
            place = backend.current()
            assert isinstance(place, InProcess)
            self.counters.resets += place.break_connections()

    def rest_s(self) -> float:
        """Return how long to rest before this process is back at its share of a core."""
        elapsed_s = time.monotonic() - self._began_s
        due_s = (time.process_time() - self._used_s) / self.plan.cpu_share - elapsed_s
        if due_s < -1.0:  # what was not used is not saved up
            self._began_s, self._used_s = time.monotonic(), time.process_time()
        return min(max(due_s, 0.0), 2.0)

    def rest(self) -> None:
        """Rest until this process is back at its share of a core."""
        self.over.wait(self.rest_s())

    def report(self) -> None:
        """Tell the counts so far."""
        counts = self.counters.as_dict()
        if backend.process._backend is not None:  # no public look that makes none
            counts["control_faults"] = backend.current().counters()["control_faults"]
        print(json.dumps(counts), flush=True)


def _watch_input(stage: Stage) -> None:
    for _ in sys.stdin:
        pass
    stage.over.set()
    time.sleep(_END_S)  # a role that does not come to its end shall not outlive the soak
    os._exit(3)


def _report_often(stage: Stage) -> None:
    while not stage.over.wait(stage.plan.report_every_s):
        stage.report()


def player(role: str) -> Callable[[Stage], None]:
    """Return what plays a role; a process imports its own part only."""
    module, function = ROLES[role]
    found: Callable[[Stage], None] = getattr(import_module(f"tests.soak.{module}"), function)
    return found


def main() -> int:
    """Play the role of the plan."""
    plan = Plan(**json.loads(sys.argv[1]))
    play = player(plan.role)
    stage = Stage(plan)  # from here on counts what is spent
    threading.Thread(target=_watch_input, args=(stage,), daemon=True).start()
    reporter = threading.Thread(target=_report_often, args=(stage,), daemon=True)
    reporter.start()
    urds.configure(info_socket=False, wmem_default=SEND_BUFFER_BYTES, wmem_max=SEND_BUFFER_BYTES)
    try:
        play(stage)
    except BaseException:
        stage.counters.refused += 1
        raise
    finally:
        stage.over.set()
        reporter.join(1.0)
        stage.report()
    return 0


if __name__ == "__main__":
    sys.exit(main())
