"""Each rule broken on purpose turns the simulation red. The list is kept in docs/testing.md.

What fails must be safety or liveness, not the patch. Private names are patched because that is
where the rules are.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.sim.broken import Patch, demand_felt, instead, nothing
from tests.sim.simulation import HIGH, LOW, Simulation
from tests.sim.world import Socket
from urds.rds.control.connector import Connector
from urds.rds.control.events import Hold
from urds.rds.control.tcp_path import TcpPath
from urds.rds.control.tcp_peer import TcpPeer
from urds.rds.control.tcp_streams import TcpStreams
from urds.rds.plane.python import sender
from urds.rds.plane.python.path import PathCore
from urds.rds.plane.python.receiver import Receiver
from urds.rds.plane.python.sender import Sender
from urds.rds.types import AckMode

pytestmark = pytest.mark.sim

SEEDS_MAX = 150


@dataclass(frozen=True, slots=True)
class Broken:
    """A rule, the patch that breaks it, and simulations that feel it."""

    rule: str
    patch: Patch
    settings: dict[str, Any] = field(default_factory=dict)
    seed_first: int = 0  # those below feel nothing, and take long

    def run(self, seed: int) -> None:
        """Run the simulation of a seed."""
        Simulation(seed, **self.settings).run()


def before(owner: type, name: str, extra: Callable[..., None]) -> Patch:
    """Do something wrong in front of a method."""
    original = getattr(owner, name)

    def broken(self: Any, *args: Any, **kwargs: Any) -> Any:
        extra(self, *args, **kwargs)
        return original(self, *args, **kwargs)

    return lambda patch: patch.setattr(owner, name, broken)


def _acknowledge_one_too_many(patch: pytest.MonkeyPatch) -> None:
    original = Sender.handle_peer_acknowledged
    patch.setattr(
        Sender,
        "handle_peer_acknowledged",
        lambda self, sequence: original(self, min(sequence + 1, self.sequence_next - 1)),
    )


def _free_at_write(patch: pytest.MonkeyPatch) -> None:
    original = Sender.handle_stream_acknowledged
    patch.setattr(
        Sender,
        "handle_stream_acknowledged",
        lambda self, data: original(self, self.position),
    )


def _keep_half_a_message(patch: pytest.MonkeyPatch) -> None:
    original = Receiver.end_stream

    def end_stream(self: Receiver) -> None:
        begun = self.partial.begun
        original(self)
        self.partial.begun = begun

    patch.setattr(Receiver, "end_stream", end_stream)


def _numbers_from_one(patch: pytest.MonkeyPatch) -> None:
    original = Sender.__init__

    def init(self: Sender, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **{**kwargs, "sequence_first": 1})

    patch.setattr(Sender, "__init__", init)


def _reset_at_restart(self: Receiver) -> None:
    self.sequence_expected = 0


def _forget_early_acknowledgement(patch: pytest.MonkeyPatch) -> None:
    original = PathCore.agree

    def agree(self: PathCore, *, ack_mode: AckMode, checksum: bool) -> None:
        self.receiver.acknowledged = 0
        original(self, ack_mode=ack_mode, checksum=checksum)

    patch.setattr(PathCore, "agree", agree)


def _greet_at_once(patch: pytest.MonkeyPatch) -> None:
    original = PathCore.control

    def control(self: PathCore, **fields: Any) -> None:
        original(self, **fields)
        self._frame_hellos()

    patch.setattr(PathCore, "control", control)


def _any_stream_will_do(self: TcpPeer, index: int, attachment: int) -> TcpPath | None:
    path = self._path(index)
    return path if path is not None and path.stream is not None else None


def _never_hold(self: TcpStreams, path: TcpPath) -> Hold:
    return Hold.NOTHING


def _send_at_once(patch: pytest.MonkeyPatch) -> None:
    """Two rules guard this: messages are held, and what TCP acknowledged is not freed."""
    patch.setattr(TcpStreams, "_hold_of", _never_hold)
    patch.setattr(PathCore, "handle_stream_acknowledged", _free_whatever_tcp_has)


def _free_whatever_tcp_has(self: PathCore, byte_count: int) -> None:
    if self.sender.ack_mode is AckMode.STREAM_ACKNOWLEDGED:
        self.sender.handle_stream_acknowledged(byte_count)


def _look_at_the_error_first(patch: pytest.MonkeyPatch) -> None:
    """Break the shell's rule; to a kernel, what our TCP acknowledged is delivered."""
    original = Socket.recv

    def recv(self: Socket, bytes_max: int) -> bytes | None:
        if self._failed:
            raise ConnectionResetError
        return original(self, bytes_max)

    patch.setattr(Socket, "recv", recv)


def _reverse(self: Sender) -> None:
    self.unacked.reverse()


def _renumber_repeats(patch: pytest.MonkeyPatch) -> None:
    original = Sender.end_stream

    def end_stream(self: Sender) -> None:
        original(self)
        for number, sent in enumerate(self.retransmits):
            self.retransmits[number] = (sent[0] + 1, *sent[1:])

    patch.setattr(Sender, "end_stream", end_stream)


MANY = {"npaths": 8}
RESTARTS = {"restarts": (LOW, HIGH)}
CLOCKS_SET = {**RESTARTS, "clocks_set": True}
MANY_RESTARTS = {**MANY, **RESTARTS}
KERNEL_LOW, KERNEL_HIGH = {"kernels": {LOW: 6}}, {"kernels": {HIGH: 6}}

BROKEN = [
    Broken("only what is in the receiver's queue is acknowledged", _acknowledge_one_too_many),
    Broken("a retransmit carries the flag", instead(sender, "_RETRANSMITTED", 0), seed_first=16),
    Broken("a retransmit keeps its number", _renumber_repeats),
    Broken("retransmits keep their order", before(Sender, "end_stream", _reverse)),
    Broken("half a message dies with its stream", _keep_half_a_message, seed_first=150),
    Broken(
        "towards a kernel TCP's acknowledgement frees, not the write", _free_at_write, KERNEL_LOW
    ),
    Broken(
        "towards a kernel numbers start from the clock",
        _numbers_from_one,
        {**KERNEL_LOW, "restarts": (HIGH,)},
    ),
    Broken(
        "a restart leaves the expected number",
        before(Receiver, "restart_peer", _reset_at_restart),
        RESTARTS,
        seed_first=13,
    ),
    Broken(
        "a map tells the generation", instead(Receiver, "_note_generation", nothing), CLOCKS_SET
    ),
    Broken("a hello waits for the peer's first frame", _greet_at_once, CLOCKS_SET),
    Broken(
        "a kernel's restart is seen before the duplicate rule",
        instead(Receiver, "_is_restart", lambda *_: False),
        {**KERNEL_LOW, "restarts": (LOW,), "rounds": 100},
        seed_first=145,
    ),
    Broken(
        "an acknowledgement before the agreement counts",
        _forget_early_acknowledgement,
        {"restarts": (LOW, HIGH), "clocks_set": True},
    ),
    Broken(
        "what moves to another path waits for path 0",
        instead(PathCore, "hold_behind", nothing),
        MANY,
    ),
    Broken(
        "what was never sent outlives its path",
        instead(Sender, "move_unsent", lambda *_: 0),
        {"npaths": (1, 2, 8), **RESTARTS},
        seed_first=3,
    ),
    Broken("towards a kernel nothing counts before its first frame", _send_at_once, KERNEL_HIGH),
    Broken(
        "unknown peers with several paths get nothing before the handshake",
        instead(TcpStreams, "_hold_of", _never_hold),
        MANY_RESTARTS,
        seed_first=1,
    ),
    Broken(
        "a stream on the wrong path is dropped",
        instead(TcpStreams, "drop_misplaced", lambda *_: False),
        MANY_RESTARTS,
        seed_first=5,
    ),
    Broken(
        "a node with one path takes no stream of another",
        instead(TcpStreams, "_is_placed", lambda *_: True),
        {"npaths": (1, 2, 8), **CLOCKS_SET},
        seed_first=33,
    ),
    Broken(
        "a second stream waits for an answer on the first",
        instead(TcpStreams, "_needs_liveness_check", lambda *_: False),
        {"thief": True},
    ),
    Broken(
        "a report about an earlier stream is ignored",
        instead(TcpPeer, "_current", _any_stream_will_do),
        {"npaths": 2, "restarts": (LOW, HIGH)},
        seed_first=91,
    ),
    Broken("a lost path is reconnected", instead(Connector, "retry_later", nothing)),
    Broken("what arrived before an error is read", _look_at_the_error_first, KERNEL_LOW),
]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.rule)
def test_a_broken_rule_is_felt(broken: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = range(broken.seed_first, broken.seed_first + SEEDS_MAX)
    demand_felt(broken.rule, broken.patch, broken.run, seeds, monkeypatch)


def test_the_list_in_the_documentation_is_this_one() -> None:
    text = (Path(__file__).parents[2] / "docs/testing.md").read_text(encoding="utf-8")
    section = text.partition("## Rules broken on purpose")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| (.+?) \| `sim` \|", section, re.MULTILINE)
    assert listed == [broken.rule for broken in BROKEN]
