"""Random applications on both ends of a stream, and what must hold whatever they do.

Each side sends, receives, peeks, waits for whole buffers, maps buffers and writes into the peer's;
writes, words and completions are late by rng. A side may shut down or leave, and one run in four
is cut at some moment. What is checked, beside what `rsocket_pair` checks of every write:

- what arrives is a prefix of what was accepted from the sender, at each moment;
- a stream that ends in order, or runs on, brings all of it, as soon as the readers read;
- lent bytes are the caller's again when the call and its posts are over;
- direct writes land in their order;
- at the end all memory is given back.
"""

import errno
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from tests.sim.rsocket_pair import Pair, Side
from urds.rsocket.core.stream.core import StreamCore
from urds.rsocket.core.stream.records import (
    DIRECT_BYTES_MIN,
    ZERO_COPY_BYTES_MIN,
    Memory,
    MemorySource,
    Shut,
    StreamSettings,
    StreamState,
)
from urds.rsocket.wire.stream import ByteOrder

SOURCE = random.Random(0).randbytes(1 << 21)  # what is sent, from a place that the seed chooses
STEPS = 800  # at random, before all sides do what there is to do
SWEEPS_MAX = 20_000  # of all sides; a stream needs as many only if it stands still
MAPPED_BYTES = (600, 40_000)
MAPS_MAX = 6  # of one side in one run
TOTALS = (0, 1, 100, 3_000, 20_000, 60_000, 250_000)
SENDS = (  # sizes, and how much an application with such sizes sends at most
    ((1, 2, 63), 3_000),
    ((64, 65, 1000, 2048), 60_000),
    ((1, 700, 5000, 16_383, 16_384, 40_000, 100_000), 250_000),
)
READS = ((1, 10, 64), (1000, 4096, 8192), (10, 1000, 20_000, 100_000))


def settings_of(rng: random.Random, *, is_urds: bool) -> StreamSettings:
    """Choose small queues and windows, so that every limit is met."""
    byte_order: ByteOrder = rng.choice(["little", "big"])
    return StreamSettings(
        send_queue=rng.choice([16, 17, 40]),
        receive_queue=rng.choice([16, 21, 64]),
        receive_bytes=rng.choice([512, 1024, 4096, 7 * 512, 1 << 16]),
        is_receive_fixed=rng.random() < 0.3,
        ring_first_bytes=rng.choice([512, 2048, 8192]),
        ring_max_bytes=rng.choice([2048, 8192, 1 << 16]),
        send_bytes=rng.choice([2048, 4096, 1 << 16]),
        chunk_max_bytes=rng.choice([700, 4096, 1 << 18]),
        iomap_slots=rng.choice([0, 1, 3]),
        table_entries=rng.choice([2, 3, 8, 16]) if is_urds else 2,
        byte_order=byte_order,
        is_urds=is_urds,
        no_delay=rng.random() < 0.5,
        keepalive_ns=rng.choice([None, 50]),
    )


@dataclass
class Mapping:
    """A buffer of one side, and what it should hold once all that was written has landed."""

    memory: Memory
    offset: int
    shadow: bytearray
    is_mapped: bool = True


@dataclass
class Wait:
    """A wait for a whole buffer."""

    memory: Memory
    byte_count: int
    direct_from: int
    copied: int = 0


@dataclass
class Actor:
    """The application of one side, and what it has seen."""

    side: Side
    source: memoryview
    total: int
    send_sizes: tuple[int, ...]
    read_sizes: tuple[int, ...]
    read_chance: float
    accepted: int = 0
    got: int = 0
    wait: Wait | None = None
    mappings: list[Mapping] = field(default_factory=list)
    left: list[Memory] = field(default_factory=list)  # buffers that the peer may still fill
    last_call: Shut | None = None  # what it will do when all is sent, or at `leaves_at`
    leaves_at: int = 1 << 62  # accepted bytes after which it leaves, whatever is under way
    deaf_at: int = 1 << 62  # read bytes after which it shuts down reading
    was_refused: bool = False  # a large lent send, which is_writable then speaks of

    @property
    def is_deaf(self) -> bool:
        """Return whether it wants no more bytes."""
        return self.last_call is Shut.RDWR or self.got >= self.deaf_at

    @property
    def read_bytes(self) -> int:
        """Return how many bytes are read: those too that arrived in place, in their turn."""
        wait = self.wait
        if wait is None or wait.copied < wait.direct_from:
            return self.got
        return (
            self.got
            + wait.byte_count
            - wait.direct_from
            - self.side.core.receive_ring.expected_left
        )


class World:
    """Two actors and their pair."""

    def __init__(
        self,
        seed: int,
        *,
        are_urds: tuple[bool, bool] = (True, True),
        make: Callable[[StreamSettings, MemorySource], StreamCore] = StreamCore,
    ) -> None:
        self.rng = rng = random.Random(f"{seed}{are_urds}")
        settings = [settings_of(rng, is_urds=is_urds) for is_urds in are_urds]
        self.pair = Pair(f"seed {seed}", (settings[0], settings[1]), make)
        self.cut_at = rng.randrange(2 * STEPS) if rng.random() < 0.25 else -1
        self.actors = [self._actor(side) for side in self.pair.sides]
        # Who starves: of each kind of step, how often it is taken.
        self.weights = [rng.choice([1, 1, 4, 0.03]) for _ in self._steps()]

    def _actor(self, side: Side) -> Actor:
        rng = self.rng
        send_sizes, total_max = rng.choice([*SENDS, SENDS[-1]])
        actor = Actor(
            side,
            memoryview(SOURCE)[rng.randrange(1 << 20) :],
            min(rng.choice(TOTALS), total_max),
            send_sizes,
            rng.choice(READS),
            rng.choice([0, 0.1, 1]),
        )
        if rng.random() < 0.2:
            side.arena.close()
        actor.last_call = rng.choice([None, Shut.WR, Shut.WR, Shut.RDWR])
        if actor.last_call is Shut.RDWR and rng.random() < 0.5:
            actor.leaves_at = rng.randrange(actor.total + 1)
        # Not both: two that send and do not read would wait for each other for ever.
        if side.name == "A" and actor.last_call is Shut.WR and rng.random() < 0.2:
            actor.deaf_at = rng.randrange(20_000)
        return actor

    def _steps(self) -> list[Callable[[], object]]:
        return [
            partial(step, actor)
            for actor in self.actors
            for step in (
                lambda actor: self.pair.deliver(actor.side),
                lambda actor: self.pair.land(actor.side, self.rng.choice([1, 16, 700])),
                lambda actor: self.pair.complete(actor.side),
                self.take_word,
                self.send,
                self.receive,
                self.use_iomap,
                self.pass_time,
                self.leave,
            )
        ]

    def fail(self, what: str) -> AssertionError:
        return self.pair.fail(what)

    def peer(self, actor: Actor) -> Actor:
        return self.actors[actor is self.actors[0]]

    # -- the run

    def run(self) -> None:
        """Do things at random, then everything that there is to do, and look at what is left."""
        steps = self._steps()
        for number, step in enumerate(self.rng.choices(steps, self.weights, k=STEPS)):
            if number == self.cut_at:
                self.pair.cut(self.rng.choice([errno.ECONNRESET, errno.EIO]))
            step()
            self._hang_up()
        for _ in range(SWEEPS_MAX):
            if all(self._is_through(actor) for actor in self.actors):
                break
            self._sweep()
        else:
            raise self.fail(f"stands still: {self._describe()}")
        if self.cut_at >= 0 and not self.pair.is_cut:
            self.pair.cut(errno.ECONNRESET)
        self._check_end()
        for actor in self.actors:
            self._close(actor)

    def _sweep(self) -> None:
        """Let each side do what poll says is to be done."""
        for actor in self.actors:
            actor.read_chance = 1
            if actor.side.core.is_writable:
                self.send(actor)
            self.leave(actor)
            while self.pair.deliver(actor.side):
                pass
            while self.pair.complete(actor.side):
                pass
        for actor in self.actors:
            while self.take_word(actor):
                pass
            if actor.side.core.is_readable or actor.wait is not None:
                self.receive(actor)
        self._hang_up()

    def _is_through(self, actor: Actor) -> bool:
        """Return whether there is nothing left to do for an actor."""
        side = actor.side
        is_read = actor.got == side.taken_bytes or actor.got >= actor.deaf_at
        if side.words or actor.wait is not None or not is_read:
            return False
        if self.pair.is_cut:
            return side.is_over
        is_sent = actor.accepted == actor.total or not side.core.lifecycle.can_write
        has_called = actor.last_call is None or not side.core.lifecycle.can_write
        return is_sent and has_called and not side.kinds and not side.core.wants_disconnect

    def _hang_up(self) -> None:
        """End the connection for a side that asks for it; tell of its end, some time later."""
        if self.rng.random() < 0.7:
            return
        if self.pair.is_cut:
            self.pair.end(self.rng.choice(self.actors).side)
        elif any(actor.side.core.wants_disconnect for actor in self.actors):
            self.pair.cut(0)

    def _check_end(self) -> None:
        for actor in self.actors:
            peer = self.peer(actor)
            is_lost = self.pair.error or peer.is_deaf
            if actor.accepted != peer.got and not is_lost:
                raise self.fail(
                    f"{actor.side.name} had {actor.accepted} bytes accepted, "
                    f"{peer.side.name} got {peer.got}"
                )
            has_end = actor.side.core.is_ended or actor.is_deaf
            is_over = self.pair.is_cut or not peer.side.core.lifecycle.can_write
            if is_over and not has_end and not self.pair.error:
                raise self.fail(
                    f"{actor.side.name} has no end: {actor.side.core.lifecycle.state.name}"
                )
            for mapping in actor.mappings:
                if not self.pair.is_cut and mapping.memory.view != mapping.shadow:
                    raise self.fail(f"direct writes to {actor.side.name} are not what was written")

    def _close(self, actor: Actor) -> None:
        side = actor.side
        side.core.close()
        for memory in [*actor.left, *(mapping.memory for mapping in actor.mappings)]:
            side.arena.release(memory)
        if side.arena.live:
            raise self.fail(f"{side.name} keeps {len(side.arena.live)} regions")
        if side.core.poll_transmit() is not None:
            raise self.fail(f"{side.name} has something to say after its close")

    def _describe(self) -> str:
        return "; ".join(
            f"{actor.side.name} sent {actor.accepted} of {actor.total}, read {actor.got}, "
            f"{len(actor.side.kinds)} requests, {len(actor.side.words)} words, "
            f"{actor.side.core.lifecycle.state.name}"
            for actor in self.actors
        )

    # -- what applications do

    def send(self, actor: Actor) -> None:
        core = actor.side.core
        left = actor.total - actor.accepted
        if not left or not core.lifecycle.can_write:
            return
        byte_count = min(left, self.rng.choice(actor.send_sizes))
        may_zero_copy = self.rng.random() < 0.7
        buffer = bytearray(actor.source[actor.accepted : actor.accepted + byte_count])
        is_zero_copy = may_zero_copy and byte_count >= ZERO_COPY_BYTES_MIN
        is_promised = core.is_writable and is_zero_copy == actor.was_refused
        taken = core.send(memoryview(buffer), may_zero_copy=may_zero_copy)
        if not is_promised <= taken <= byte_count:
            raise self.fail(f"{actor.side.name} took {taken} of {byte_count} bytes")
        actor.was_refused = is_zero_copy and not taken
        actor.accepted += taken
        self.pair.post_pending(actor.side)
        buffer[:] = b"\xee" * byte_count  # it is ours again

    def leave(self, actor: Actor) -> None:
        """Shut down once all is sent, or in the middle."""
        if actor.last_call is None or actor.accepted < min(actor.total, actor.leaves_at):
            return
        if (
            actor.side.core.lifecycle.state is StreamState.OPEN
            and actor.side.core.lifecycle.can_write
        ):
            actor.side.core.lifecycle.shut_down(actor.last_call)
            self.pair.post_pending(actor.side)

    def receive(self, actor: Actor) -> None:
        if self.rng.random() >= actor.read_chance:
            return
        if actor.wait is not None:
            self._go_on_waiting(actor)
            return
        if actor.got >= actor.deaf_at:
            actor.side.core.lifecycle.shut_down(Shut.RD)
            self.pair.post_pending(actor.side)
            return
        wanted, choice = self.rng.choice(actor.read_sizes), self.rng.random()
        if choice < 0.2 and wanted >= DIRECT_BYTES_MIN and actor.side.core.lifecycle.can_read:
            self._begin_to_wait(actor, wanted)
            return
        buffer = bytearray(wanted)
        taken = actor.side.core.receive_ring.receive_into(memoryview(buffer), peek=choice > 0.8)
        self._check_bytes(actor, buffer[:taken])
        if choice <= 0.8:
            self._note_read(actor, taken)

    def _begin_to_wait(self, actor: Actor, byte_count: int) -> None:
        memory = actor.side.arena.register(byte_count)
        direct_from = actor.side.core.receive_ring.expect(memory, byte_count)
        if direct_from >= byte_count:
            actor.side.arena.release(memory)
            return
        actor.wait = Wait(memory, byte_count, direct_from)
        self.pair.post_pending(actor.side)

    def _go_on_waiting(self, actor: Actor) -> None:
        """Read what comes before the direct part; end when all is there, or in the middle."""
        wait, core = actor.wait, actor.side.core
        assert wait is not None
        # More is asked for than may be given: what is in place is not for this call.
        buffer = bytearray(self.rng.choice(actor.read_sizes))
        taken = core.receive_ring.receive_into(memoryview(buffer))
        self._check_bytes(actor, buffer[:taken])
        wait.copied += taken
        if wait.copied > wait.direct_from:
            raise self.fail(f"{actor.side.name} reads beyond {wait.direct_from} bytes of a wait")
        self._note_read(actor, taken)
        is_ahead_read = wait.copied == wait.direct_from
        is_full = is_ahead_read and not core.receive_ring.expected_left
        if is_full or self._is_hopeless(actor) or self.rng.random() < 0.05:
            in_place = core.receive_ring.end_expect()
            if in_place and not is_ahead_read:
                raise self.fail(f"{actor.side.name} has bytes in place before others are read")
            actor.wait = None
            self._check_bytes(
                actor, wait.memory.view[wait.direct_from : wait.direct_from + in_place]
            )
            self._note_read(actor, in_place)
            actor.left.append(wait.memory)
        self._release_left(actor)

    def _is_hopeless(self, actor: Actor) -> bool:
        """Return whether what an actor waits for will never be sent."""
        wait = actor.wait
        assert wait is not None
        is_enough = actor.got - wait.copied + wait.byte_count <= self.peer(actor).total
        return actor.side.is_over or not actor.side.core.lifecycle.can_read or not is_enough

    def _release_left(self, actor: Actor) -> None:
        for memory in [each for each in actor.left if not actor.side.core.receive_ring.holds(each)]:
            actor.side.arena.release(memory)
            actor.left.remove(memory)

    def _check_bytes(self, actor: Actor, data: bytes | memoryview) -> None:
        peer = self.peer(actor)
        end = actor.got + len(data)
        if end > peer.accepted or data != peer.source[actor.got : end]:
            raise self.fail(f"{actor.side.name} reads what was not sent, at {actor.got} to {end}")

    def _note_read(self, actor: Actor, byte_count: int) -> None:
        actor.got += byte_count
        self.pair.note_read(actor.side, actor.read_bytes)
        self.pair.post_pending(actor.side)

    def take_word(self, actor: Actor) -> bool:
        if not self.pair.take_word(actor.side):
            return False
        self._note_read(actor, 0)
        return True

    def pass_time(self, actor: Actor) -> None:
        self.pair.now_ns += self.rng.randrange(100)
        if actor.side.core.poll_timeout() is not None:
            actor.side.core.handle_timeout(self.pair.now_ns)
            self.pair.post_pending(actor.side)

    # -- buffers mapped for the peer

    def use_iomap(self, actor: Actor) -> None:
        """Map a buffer of this side, or end that, or write into one of the peer's."""
        if actor.side.core.lifecycle.state is not StreamState.OPEN:
            return
        choice = self.rng.random()
        if choice < 0.3 and len(actor.mappings) < MAPS_MAX:
            self._map(actor)
        elif choice < 0.4:
            for mapping in [each for each in actor.mappings if each.is_mapped][:1]:
                actor.side.core.unmap(mapping.memory)
                mapping.is_mapped = False
                self.pair.post_pending(actor.side)
        elif self.peer(actor).mappings and actor.side.core.lifecycle.can_write:
            self._write_mapped(actor)

    def _map(self, actor: Actor) -> None:
        byte_count = self.rng.choice(MAPPED_BYTES)
        memory = actor.side.arena.register(byte_count)
        offset = self.rng.choice([None, MAPPED_BYTES[-1] * len(actor.mappings)])
        try:
            named = actor.side.core.map_buffer(memory, offset)
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            actor.side.arena.release(memory)
            return
        actor.mappings.append(Mapping(memory, named, bytearray(byte_count)))
        self.pair.post_pending(actor.side)

    def _write_mapped(self, actor: Actor) -> None:
        mapping = self.rng.choice(self.peer(actor).mappings)
        start = self.rng.randrange(len(mapping.shadow))
        data = self.rng.randbytes(self.rng.randrange(1, len(mapping.shadow) + 1 - start))
        buffer = bytearray(data)
        taken = actor.side.core.write_mapped(
            memoryview(buffer), mapping.offset + start, may_zero_copy=self.rng.random() < 0.5
        )
        mapping.shadow[start : start + taken] = data[:taken]
        self.pair.post_pending(actor.side)
        buffer[:] = b"\xee" * len(buffer)
