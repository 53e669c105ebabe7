"""The scenarios by name, and how one is run."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.faults import breaks, crowd, restarts
from tests.faults.breaks import Notes
from tests.faults.kernel import missing_filter, missing_kill
from tests.faults.messages import Sizes
from tests.faults.run import Run, Terms, show_nothing
from tests.faults.scale import Scale
from tests.faults.verdict import Outcome, judge
from tests.support.carriers import is_rdma
from tests.support.places import Loopback, Namespaces


def _nothing_missing() -> str:
    return ""


def _missing_proxy() -> str:
    return "over RDMA nothing goes through the proxy" if is_rdma() else ""


def _missing_silence() -> str:
    return _missing_proxy() or missing_filter()


@dataclass(frozen=True, slots=True)
class Scenario:
    """What happens, and what it needs."""

    play: Callable[[Run, Scale], Notes]
    sizes: Sizes = Sizes.MIXED
    missing: Callable[[], str] = _nothing_missing  # why it cannot be run here, or nothing

    @property
    def summary(self) -> str:
        """Return the sentence that describes it."""
        return (self.play.__doc__ or "").splitlines()[0]


SCENARIOS: Final[Mapping[str, Scenario]] = {
    "resets": Scenario(breaks.resets, missing=_missing_proxy),
    "kills": Scenario(breaks.kills, missing=missing_kill),
    "holes": Scenario(breaks.holes, missing=_missing_silence),
    "partitions": Scenario(breaks.partitions, missing=_missing_silence),
    "half-open": Scenario(breaks.half_open, missing=_missing_proxy),
    "duels": Scenario(breaks.duels),
    "storm": Scenario(breaks.storm, missing=_missing_silence),
    "restarts": Scenario(restarts.restarts),
    "told": Scenario(restarts.told, Sizes.SHORT),
    "slow-receiver": Scenario(crowd.slow_receiver, Sizes.SHORT),
}


def run_scenario(
    name: str,
    place: Loopback | Namespaces,
    scale: Scale,
    *,
    seed: int,
    messages: int | None = None,
    broken_rule: str = "",
    show: Callable[[float, str], None] = show_nothing,
) -> Outcome:
    """Run one scenario and judge it. Raises FaultRunError if there is nothing to judge."""
    scenario, start_s = SCENARIOS[name], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="urds-faults-") as folder:
        terms = Terms(
            place=place,
            folder=Path(folder),
            messages=messages or scale.messages,
            seed=seed,
            broken_rule=broken_rule,
            stall_s=scale.stall_s,
            show=show,
        )
        with Run(terms, sizes=scenario.sizes) as run:
            notes = scenario.play(run, scale)
            run.finish()
            return judge(run, name, seconds=time.monotonic() - start_s, notes=notes)
