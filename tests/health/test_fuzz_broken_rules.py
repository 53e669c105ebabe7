"""The machines of `fuzz/` see what they are there to see: a rule broken on purpose is a finding.

Random changes of the seeds find it, as `test_fuzz` makes them; a guided search is better still.
"""

import random
from contextlib import suppress
from typing import Any

import pytest

from fuzz.mutation import mutate
from fuzz.targets import SEEDS, TARGETS
from tests.sim.broken import Patch, around, instead, nothing
from urds.common.errors import WireError
from urds.rds.constants import HeaderFlag
from urds.rds.control import tcp_streams
from urds.rds.control.pending import PendingConnections
from urds.rds.control.tcp_peer import TcpPeer
from urds.rds.plane.python import sender
from urds.rds.plane.python.control_budget import ControlBudget
from urds.rds.plane.python.path import PathCore
from urds.rds.plane.python.receiver import Receiver
from urds.rds.plane.python.sender import Sender

INPUTS_MAX = 500


def _forget_everything(self: Sender) -> None:
    self.unacked.clear()
    self.retransmits.clear()
    self.position = 0


def _take_repeats(judge: Any, self: Receiver, fields: Any, payload: bytes) -> Any:
    return judge(self, (*fields[:5], fields[5] & ~HeaderFlag.RETRANSMITTED, *fields[6:]), payload)


def _acknowledge_one_too_many(frame: Any, self: PathCore) -> None:
    self.receiver.sequence_expected += 1
    frame(self)
    self.receiver.sequence_expected -= 1


def _believe_late_reports(self: TcpPeer, index: int, _: int) -> Any:
    path = self._path(index)
    return None if path is None or path.stream is None else path


RULES: dict[str, tuple[str, Patch]] = {
    "a retransmit carries the flag": ("rds_path", instead(sender, "_RETRANSMITTED", 0)),
    "what is not acknowledged is kept": (
        "rds_path",
        instead(Sender, "end_stream", _forget_everything),
    ),
    "control messages have a bound": (
        "rds_path",
        instead(ControlBudget, "admits", lambda *_, **__: True),
    ),
    "retransmits are dropped": ("rds_pair", around(Receiver, "_take", _take_repeats)),
    "half a message dies with its stream": ("rds_pair", instead(Receiver, "end_stream", nothing)),
    "only what is in the inbox is acknowledged": (
        "rds_pair",
        around(PathCore, "_frame_acknowledgement", _acknowledge_one_too_many),
    ),
    "a report about an earlier stream is ignored": (
        "rds_pair",
        instead(TcpPeer, "_current", _believe_late_reports),
    ),
    "parked streams have a bound": ("rds_endpoint", instead(tcp_streams, "_PARKED_MAX", 1000)),
    "a pending connection that is gone counts no more": (
        "rds_endpoint",
        instead(PendingConnections, "forget", nothing),
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_machine_finds_a_broken_rule(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, patch = RULES[rule]
    patch(monkeypatch)
    with pytest.raises(AssertionError):
        _run_all(name, random.Random(rule))


def _run_all(name: str, rng: random.Random) -> None:
    seeds = SEEDS[name]
    changed = (mutate(rng.choice(seeds), seeds, rng) for _ in range(INPUTS_MAX))
    for data in (*seeds, *changed):
        with suppress(WireError):
            TARGETS[name](data)
