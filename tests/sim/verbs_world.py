"""Random work for two queue pairs over a bad link, and what must hold of it whatever happens.

Both sides post at the same time: sends, writes with and without immediate data, reads, atomic
additions; receives come late, so that the peer has to wait for them. What is checked:

- receives complete in message order, each message once, with its bytes;
- requests complete in posting order with success;
- an atomic addition happens once, and each tells the value before it;
- writes to one place land in order, and a read sees the writes before it;
- the receive buffers held span at least as many messages as there are buffers.
"""

import random
from dataclasses import dataclass, field

from tests.sim.verbs_pair import US, Pair, Side
from urds.verbs.engine.numbers import ReceiveOrder, SendFlag, WCOpcode, WCStatus, WROpcode
from urds.verbs.engine.queue_pair import QPCap
from urds.verbs.engine.receives import SharedReceiveQueue

SOURCE_BYTES = 4096  # random bytes that sends and writes take their data from
SLOT_BYTES = 320
SLOTS = 64
TARGET_AT = SOURCE_BYTES + SLOTS * SLOT_BYTES  # what the peer writes and reads
TARGET_BYTES = 512
CELL_AT = TARGET_AT + TARGET_BYTES  # what the peer adds to
RESULT_AT = CELL_AT + 8
RESULT_BYTES = 512  # per request: where reads and atomics put what they bring
REQUESTS = 40
MEMORY_BYTES = RESULT_AT + REQUESTS * RESULT_BYTES
POSTED_MAX = 12


@dataclass
class Post:
    """What one request asked for, for the check of how it ended."""

    opcode: WROpcode
    data: bytes = b""
    at: int = 0
    expected: bytes | None = None  # of a read or atomic
    result_at: int = 0
    signalled: bool = True


@dataclass
class Actor:
    """One side with its work and what it has seen."""

    side: Side
    random: random.Random
    posts: list[Post] = field(default_factory=list)
    messages: list[Post] = field(default_factory=list)  # those that take a receive
    slots_free: list[int] = field(default_factory=lambda: list(range(SLOTS)))
    sends_done: int = 0
    receives_done: int = 0
    added: int = 0
    # What the peer's target holds once all that was posted so far is carried out.
    shadow: bytearray = field(default_factory=lambda: bytearray(TARGET_BYTES))

    def __post_init__(self) -> None:
        self.side.memory[:SOURCE_BYTES] = self.random.randbytes(SOURCE_BYTES)

    def post(self, peer: Side) -> None:
        """Post one random request."""
        choice = self.random
        opcode = choice.choice(
            [
                *[WROpcode.SEND] * 4, WROpcode.SEND_WITH_IMM,
                *[WROpcode.RDMA_WRITE] * 3, WROpcode.RDMA_WRITE_WITH_IMM,
                *[WROpcode.RDMA_READ] * 2, WROpcode.ATOMIC_FETCH_AND_ADD,
            ]
        )  # fmt: skip
        number = len(self.posts)
        length = choice.choice([0, 1, 63, 64, 65, choice.randrange(300)])
        offset = choice.randrange(SOURCE_BYTES - length)
        at = choice.randrange(TARGET_BYTES - length)
        post = Post(opcode, bytes(self.side.memory[offset : offset + length]), at)
        post.result_at = RESULT_AT + number * RESULT_BYTES
        flags = SendFlag(choice.choice([0, SendFlag.SIGNALED, SendFlag.SIGNALED]))
        post.signalled = bool(flags)
        if opcode in (WROpcode.SEND, WROpcode.SEND_WITH_IMM):
            self.side.send(number, offset, length, opcode=opcode, send_flags=flags, imm_data=number)
        elif opcode is WROpcode.RDMA_READ:
            post.expected = bytes(self.shadow[at : at + length])
            self.side.remote(
                number, opcode, peer, at=TARGET_AT + at, offset=post.result_at, length=length,
                send_flags=flags,
            )  # fmt: skip
        elif opcode is WROpcode.ATOMIC_FETCH_AND_ADD:
            post.expected = self.added.to_bytes(8, "little")
            value = choice.randrange(1, 1 << 40)
            self.added += value
            self.side.remote(
                number, opcode, peer, at=CELL_AT, offset=post.result_at, length=8,
                compare_add=value, send_flags=flags,
            )  # fmt: skip
        else:
            self.shadow[at : at + length] = post.data
            self.side.remote(
                number, opcode, peer, at=TARGET_AT + at, offset=offset, length=length,
                # Without the fence a write may overtake the answer of a read before it.
                imm_data=number, send_flags=flags | SendFlag.FENCE,
            )  # fmt: skip
        if opcode not in (WROpcode.RDMA_WRITE, WROpcode.RDMA_READ, WROpcode.ATOMIC_FETCH_AND_ADD):
            self.messages.append(post)
        self.posts.append(post)

    def receive(self) -> None:
        """Post one receive into a slot that is free."""
        slot = self.slots_free.pop(self.random.randrange(len(self.slots_free)))
        self.side.receive(slot, SOURCE_BYTES + slot * SLOT_BYTES, SLOT_BYTES)


class World:
    """Two actors and the link."""

    def __init__(
        self,
        seed: int,
        receive_order: ReceiveOrder,
        *,
        shared: bool,
        lossless: bool,
        names_places: bool = True,
    ) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        sides = [
            {
                "memory_bytes": MEMORY_BYTES,
                "receive_order": receive_order,
                "cap": QPCap(POSTED_MAX, SLOTS, 4, 4, 64),
                "srq": SharedReceiveQueue(SLOTS, 4) if shared else None,
            }
            for _ in range(2)
        ]
        bad = 0 if lossless else 1
        self.pair = Pair(
            seed=seed,
            lossless=lossless,
            names_places=names_places,
            loss=bad * self.random.choice([0.0, 0.05, 0.2]),
            duplicate=bad * self.random.choice([0.0, 0.2]),
            jitter_ns=bad * self.random.choice([1, 20 * US, 60 * US]),
            a=sides[0],
            b=sides[1],
            # PSNs begin shortly before they wrap.
            attr={"rq_psn": 0xFFFFE0, "sq_psn": 0xFFFFE0, "max_rd_atomic": 4, "min_rnr_timer": 1},
        )
        self.actors = [
            Actor(side, random.Random(f"{seed}{side.qpn}")) for side in (self.pair.a, self.pair.b)
        ]

    def fail(self, what: str) -> AssertionError:
        return AssertionError(f"seed {self.seed}: {what}")

    def run(self, *, steps_max: int = 30_000) -> None:
        """Post at random times until all is done; the link is whole from two thirds on."""
        for number in range(steps_max):
            if number == 2 * steps_max // 3:
                self.pair.loss = self.pair.duplicate = 0.0
                self.pair.jitter_ns = 0
            self.post()
            self.pair.step()
            for actor, peer in zip(self.actors, reversed(self.actors), strict=True):
                self.check(actor, peer)
            if self.is_done():
                self.check_end()
                return
        raise self.fail(f"not done after {steps_max} steps, {self.pair.now_ns} ns")

    def post(self) -> None:
        for actor, peer in zip(self.actors, reversed(self.actors), strict=True):
            if (
                len(actor.posts) < REQUESTS
                and actor.side.qp.outstanding_requests < POSTED_MAX
                and self.random.random() < 0.5
            ):
                actor.post(peer.side)
            if actor.slots_free and self.random.random() < 0.15:
                actor.receive()

    def is_done(self) -> bool:
        return all(
            len(actor.posts) == REQUESTS
            and actor.side.qp.outstanding_requests == 0
            and peer.receives_done == len(actor.messages)
            for actor, peer in zip(self.actors, reversed(self.actors), strict=True)
        )

    def check(self, actor: Actor, peer: Actor) -> None:
        """Judge what has completed since the last time."""
        count, span = actor.side.qp.recv_query()
        if not 0 <= count <= span and (count, span) != (0, 0):
            raise self.fail(f"{count} buffers in a span of {span}")
        for wc in actor.side.received():
            if wc.status is not WCStatus.SUCCESS or actor.receives_done >= len(peer.messages):
                raise self.fail(f"{wc} after {actor.receives_done} messages")
            message = peer.messages[actor.receives_done]
            actor.receives_done += 1
            self.check_message(actor, message, wc.wr_id, wc.byte_len, wc.opcode)
            actor.slots_free.append(wc.wr_id)
        for wc in actor.side.sent():
            while not actor.posts[actor.sends_done].signalled:
                actor.sends_done += 1
            if wc.status is not WCStatus.SUCCESS or wc.wr_id != actor.sends_done:
                raise self.fail(f"{wc}, expected the end of request {actor.sends_done}")
            self.check_result(actor, wc.wr_id)
            actor.sends_done += 1

    def check_message(
        self, actor: Actor, message: Post, slot: int, byte_len: int, opcode: WCOpcode
    ) -> None:
        if byte_len != len(message.data):
            raise self.fail(f"message of {byte_len} bytes, sent were {len(message.data)}")
        if message.opcode is WROpcode.RDMA_WRITE_WITH_IMM:
            if opcode is not WCOpcode.RECV_RDMA_WITH_IMM:
                raise self.fail(f"{opcode.name} for a write")
            return
        at = SOURCE_BYTES + slot * SLOT_BYTES
        if actor.side.memory[at : at + byte_len] != message.data:
            raise self.fail(f"message {actor.receives_done} has other bytes")

    def check_result(self, actor: Actor, number: int) -> None:
        post = actor.posts[number]
        if post.expected is None:
            return
        at = post.result_at
        found = actor.side.memory[at : at + len(post.expected)]
        if found != post.expected:
            raise self.fail(f"{post.opcode.name} {number} brought what it should not")

    def check_end(self) -> None:
        for actor, peer in zip(self.actors, reversed(self.actors), strict=True):
            for number in range(REQUESTS):
                self.check_result(actor, number)
            target = peer.side.memory[TARGET_AT : TARGET_AT + TARGET_BYTES]
            if target != actor.shadow:
                raise self.fail("writes did not land in order")
            cell = int.from_bytes(peer.side.memory[CELL_AT : CELL_AT + 8], "little")
            if cell != actor.added % (1 << 64):
                raise self.fail("an addition was lost or happened twice")
            if actor.side.srq is not None and actor.side.qp.recv_query() != (0, 0):
                raise self.fail(f"{actor.side.qp.recv_query()} buffers are left")
