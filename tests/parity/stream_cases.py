"""The same random calls, words and writes into both stream cores: each has to come out alike.

`python -m tests.parity.stream_cases --cases 1000000 [--seed N]`

A case is one call, made of both (`stream_twin`), that gave something. A world is a seed: one in
four is two honest sides with applications and a slow queue pair (`tests.sim.rsocket_world`), of
which one may be an emulated librdmacm; the others are a side whose peer writes and says anything
(`fuzz.rsocket_machines`). A failure names the seed and shows the last calls of each side.
"""

from __future__ import annotations

import random
import sys
from typing import Any, Final

from fuzz.rsocket_machines import Besieged, private_data
from tests.parity.runs import Runs, carry_out
from tests.parity.stream_twin import Twin
from tests.sim.rsocket_world import World
from urds.common.errors import RemoteProtocolError
from urds.rsocket.core.stream.core import StreamCore
from urds.rsocket.core.stream.records import MemorySource, StreamSettings, StreamState
from urds.rsocket.wire.stream import (
    ARGUMENT_MAX,
    CREDIT_HAS_ENTRY,
    CREDIT_LIMIT_MASK,
    Control,
    IomapEntry,
    Op,
    Sge,
    emit_imm_data,
)

STEPS_MAX: Final = 300  # of a side whose peer is hostile
POSTS_MAX: Final = 1000  # that one step can cause
CREDITS: Final = 20  # of the hostile peer, see `private_data`
_EMULATED: Final = 2  # flag of `Besieged` for a core that is librdmacm
_ORDERS: Final = ("little", "big")


class Run(Runs):
    """See `Runs`."""

    def __init__(self) -> None:
        super().__init__()
        self._twins: list[Twin] = []

    def make(self, settings: StreamSettings, source: MemorySource) -> Any:
        """Make both cores as one, or Python's emulation of librdmacm."""
        if not settings.is_urds:
            return StreamCore(settings, source)
        self._twins.append(Twin(settings, source))
        return self._twins[-1]

    def make_world(self, seed: int) -> None:
        """Make one world. Raises AssertionError, with its seed and the last calls."""
        self._twins.clear()
        try:
            if not seed % 4:
                are_urds = [(True, True), (True, False), (False, True)][seed // 4 % 3]
                World(seed, are_urds=are_urds, make=self.make).run()
            else:
                besiege(random.Random(seed), self.make)
        except Exception as error:
            lines = [f"  {line}" for twin in self._twins for line in [*twin.log, ""]]
            text = "\n".join(lines)
            raise AssertionError(f"seed {seed}: {error!r}\n{text}") from error
        for twin in self._twins:
            self.count(twin.calls, twin.seen)


class Quick(Besieged):
    """A side whose posts land at once; slots of the send queue are then no limit."""

    def post(self) -> None:
        for _ in range(POSTS_MAX):
            if (post := self.stream.poll_transmit()) is None:
                return
            self._kinds.append(post.kind)
            self.stream.handle_posted()
        raise AssertionError("no end of posts")


def besiege(rng: random.Random, make: Any) -> None:
    """Let a peer connect and say and write nearly good things, among calls of an application."""
    choices = rng.randrange(32) & ~(1 << _EMULATED)
    data = private_data(is_urds=rng.random() < 0.7, is_big=rng.random() < 0.3)
    if rng.random() < 0.1:
        place = rng.randrange(len(data))
        data = data[:place] + rng.randbytes(rng.randrange(1, 9)) + data[place + 1 :]
    try:
        side = rng.choice([Besieged, Quick])(choices, data, make)
    except RemoteProtocolError:
        return
    badness = rng.choice([0, 0.01, 0.1])
    for _ in range(rng.randrange(STEPS_MAX)):
        choice = rng.random()
        if choice < badness:
            side.say(_word(rng))
        elif choice < 0.35:
            _say_what_is_right(rng, side)
        elif choice < 0.45:
            side.write(*_write(rng))
        elif choice < 0.85:
            side.act(rng.randrange(10 if rng.random() < 0.9 else 12), rng.randrange(256))
        else:
            side.complete()
    side.close()


def _say_what_is_right(rng: random.Random, side: Besieged) -> None:
    """Let data arrive, or credits, with an entry or without."""
    core = side.stream
    if rng.random() < 0.05:
        _fill_to_the_edge(rng, side)
        return
    published = core.receive_ring._unfilled_bytes
    if rng.random() < 0.5 and published:
        sizes = [1, min(published, 128), published, rng.randrange(published) + 1]
        side.say(emit_imm_data(Op.DATA, rng.choice(sizes)))
        return
    if rng.random() < 0.2:
        side.say(emit_imm_data(Op.IOMAP, rng.randrange(2)))
        return
    limit = core.sending._sequence + CREDITS & CREDIT_LIMIT_MASK
    argument = limit
    if rng.random() < 0.7:
        order = side.stream.settings.byte_order
        place = 1 << 41 | rng.choice([0, 4000, 8000, 12_000])
        entry = Sge(place, 0x101, rng.choice([1, 700, 4000]))
        side.write(core._remote_sgl._index * 16, entry.emit(order))
        argument |= CREDIT_HAS_ENTRY if core.is_urds_peer else 0
    side.say(emit_imm_data(Op.CREDIT, argument))


def _fill_to_the_edge(rng: random.Random, side: Besieged) -> None:
    """Fill ranges to their ends, and read all of it in the end: then the ring may grow."""
    ring, is_quick = side.stream.receive_ring, rng.random() < 0.5
    for _ in range(rng.randrange(1, 7)):
        unfilled = ring._unfilled
        if not unfilled or side.stream.lifecycle.state is not StreamState.OPEN:
            break
        side.say(emit_imm_data(Op.DATA, unfilled[0].byte_count))
        side.complete()
        if is_quick:
            ring.receive(1 << 16)
            side.post()
    ring.receive(1 << 16)
    side.post()


def _word(rng: random.Random) -> int:
    if rng.random() < 0.2:
        return rng.randrange(1 << 32)
    if rng.random() < 0.4:
        return emit_imm_data(Op.CONTROL, rng.choice(list(Control)))
    op = rng.choice([Op.DATA, Op.CREDIT, Op.IOMAP])
    if op is Op.IOMAP:
        return emit_imm_data(op, rng.choice([0, 1, 2]))
    if op is Op.CREDIT:
        flag = rng.choice([0, CREDIT_HAS_ENTRY])
        return emit_imm_data(op, rng.choice([20, 25, rng.randrange(60), 1 << 17]) | flag)
    return emit_imm_data(op, rng.choice([0, 1, rng.randrange(2100), rng.randrange(ARGUMENT_MAX)]))


def _write(rng: random.Random) -> tuple[int, bytes]:
    """Return an entry of a table, or bytes at any place."""
    order: Any = rng.choice(_ORDERS)
    address = rng.choice([rng.randrange(1 << 41, (1 << 41) + 8000), rng.randrange(1 << 64)])
    length = rng.choice([0, 1, 700, 700, 4000, (1 << 32) - 1])
    choice = rng.random()
    if choice < 0.1:
        return rng.randrange(4) * 16, Sge(address, 0x101, length).emit(order)
    if choice < 0.7:
        offset = rng.choice([rng.randrange(2000), address])
        return 64 + rng.randrange(2) * 24, IomapEntry(offset, address, 0x101, length).emit(order)
    return rng.randrange(256, 1 << 14), rng.randbytes(rng.randrange(600))


if __name__ == "__main__":
    sys.exit(carry_out(Run(), __doc__))
