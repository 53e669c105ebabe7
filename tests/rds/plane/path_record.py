"""What the Python path makes of random calls, for the compiled one to repeat.

    python -m tests.rds.plane.path_record [--plain]

writes `native/crates/path/tests/reference.txt`, which `reference.rs` beside it replays. A line is a
call, `=`, and the Adler-32 of what can be seen behind it; with `--plain` what can be seen itself,
to look for a difference.
"""

import random
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

from urds.rds.constants import HeaderFlag
from urds.rds.plane.contract import (
    Hold,
    Limits,
)
from urds.rds.plane.python.counters import Counters
from urds.rds.plane.python.inbox import Inbox
from urds.rds.plane.python.path import PathCore
from urds.rds.types import AckMode
from urds.rds.wire.extensions import Handshake, Mark, emit_handshake
from urds.rds.wire.header import Header

RECORD = Path(__file__).parents[3] / "native/crates/path/tests/reference.txt"
SEEDS, CALLS = 40, 50
TARGET = 5000
HOLDS, ACK_MODES = list(Hold), list(AckMode)
LENGTHS = (0, 1, 40, 78, 79, 300, 8191, 8192, 20_000)


class Account:
    def __init__(self) -> None:
        self.send_queued_bytes = 0
        self.given_up = 0


class World:
    """One path core; each method is a call that a line can name."""

    def __init__(self, first: int, generation: int, packets: int, byte_count: int) -> None:
        limits = Limits(
            unacked_packets_max=packets,
            unacked_bytes_max=byte_count,
            acknowledge_messages=5,
            acknowledge_bytes=30_000,
            acknowledge_delay_ns=40_000_000,
            control_events_max=3,
            frame_bytes_max=50_000,
        )
        self.counters = Counters()
        self.accounts = [Account(), Account()]
        self.inbox = Inbox(port=TARGET, buffer_bytes=1 << 20)
        self.core = PathCore(
            limits,
            self.counters,
            sequence_first=first,
            generation=generation or None,
            inboxes={TARGET: self.inbox},
            source_of=lambda port: ("peer", port),
            map_bytes=lambda: bytes(8192),
        )
        self.fence = None
        self.news = ""

    def attach(self, hold: int) -> None:
        self.core.attach(HOLDS[hold])

    def detach(self) -> None:
        self.core.detach()

    def release(self, sequence: int) -> None:
        self.core.end_hold(sequence if sequence >= 0 else None)

    def agree(self, ack_mode: int, checksum: int) -> None:
        self.core.agree(ack_mode=ACK_MODES[ack_mode], checksum=bool(checksum))

    def restart(self) -> None:
        self.news = str(self.core.restart_peer())

    def send(self, owner: int, target: int, byte_count: int, extension: int) -> None:
        payload = bytes([byte_count & 255]) * byte_count
        space = bytes([extension]) * 16 if extension else b""
        self.core.send(self.accounts[owner], 4000 + owner, target, payload, space)

    def control(self, source: int, target: int, extension: int, hello: int) -> None:
        self.core.control(
            source_port=source,
            target_port=target,
            extension=bytes([extension]) * 16,
            hello=bool(hello),
        )

    def write(self, share: int) -> None:
        """Have the stream take so many eighths of what is offered."""
        data = b"".join(self.core.poll_transmit())
        taken = len(data) * share // 8
        if data:
            self.core.transmitted(taken)
        self.news = f"{len(data)}:{zlib.adler32(data)}"

    def receive(self, sequence, ack, flags, source, target, raw, checksum, cut) -> None:
        header = Header(
            sequence=sequence, ack=ack, payload_bytes=raw, source_port=source,
            target_port=target, flags=HeaderFlag(flags),
        )  # fmt: skip
        data = header.emit(checksum=bool(checksum)) + bytes([9]) * min(raw, 60_000)
        cut = min(cut, len(data))
        reason = None
        for part in (data[:cut], data[cut:]):
            if part and reason is None:
                reason = self.core.receive_data(part, sequence * 1000)
        self.news = "" if reason is None else reason.name
        if reason is not None:
            self.core.detach()

    def map(self, generation: int) -> None:
        extension = bytes(16)
        if generation:
            extension = emit_handshake(Handshake(generation=generation, mark=Mark(0)))
        header = Header(payload_bytes=8192, flags=HeaderFlag.CONG_BITMAP, extension=extension)
        reason = self.core.receive_data(header.emit() + bytes(8192), 1)
        self.news = "" if reason is None else reason.name

    def acknowledged(self, count: int) -> None:
        self.core.handle_stream_acknowledged(count)

    def timeout(self, now_ns: int) -> None:
        self.core.handle_timeout(now_ns)

    def acknowledge(self) -> None:
        self.core.acknowledge()

    def ask(self) -> None:
        self.core.request_ack()

    def cancel(self, owner: int, port: int) -> None:
        self.news = str(self.core.sender.cancel(self.accounts[owner], port or None))

    def drop(self) -> None:
        self.news = str(self.core.sender.drop_all())

    def wanted(self) -> None:
        self.core.sender.ack_wanted = True

    def probe_dead_stream(self) -> None:
        self.core.map_due = self.core.attached

    def fence_here(self) -> None:
        self.fence = self.core.sender.fence()

    def seen(self) -> str:
        """Return all that can be seen, in the words of `reference.rs`."""
        core = self.core
        own, incoming = core.sender, core.receiver
        timeout = core.ack_at_ns
        parts = [
            self.news, own.position, own.sequence_next, own.pending_bytes, len(own.unsent),
            len(own.retransmits), len(own.unacked), int(own.is_long()),
            *(f"{one.send_queued_bytes}/{one.given_up}" for one in self.accounts),
            int(core.wants_to_write()), int(core.is_plain()), int(core.is_held()),
            -1 if timeout is None else timeout, core.bytes_written, int(core.attached),
            incoming.sequence_expected, incoming.frames, incoming.ack_pending_messages,
            incoming.ack_pending_bytes, int(incoming.ack_due), incoming.acknowledged,
            len(incoming.controls), int(incoming.restarted),
            len(self.inbox.queue), self.inbox.receive_queued_bytes,
            -1 if self.fence is None else int(self.fence.open),
            int(own.holds()),
            ",".join(str(value) for value in self.counters.as_dict().values()),
        ]  # fmt: skip
        self.news = ""
        return " ".join(str(part) for part in parts)


def call(world: World, rng: random.Random) -> tuple[object, ...]:
    """Choose a call that the shell might make now."""
    core = world.core
    own, incoming = core.sender, core.receiver
    owner, port = rng.randrange(2), rng.choice((TARGET, TARGET, 6000))
    extension = rng.choice((0, 0, 0, 5))
    numbered = (
        rng.choice((incoming.sequence_expected, incoming.sequence_expected + 1, 1, 7)),
        rng.choice((0, 0, max(0, own.sequence_next - 1), own.sequence_next, 3)),
        rng.choice((0, 0, 0, 2, 4, 6, 1)),
        rng.choice((4000, 4000, 4000, 0, 1)),
        rng.choice((TARGET, TARGET, TARGET, 6000, 0, 1)),
        rng.choice(LENGTHS) if rng.random() < 0.98 else 50_001,
        rng.randrange(2),
        rng.choice((0, 10, 48, 60, 9000, 10_000, 100_000)),
    )
    always = [
        *[("send", owner, port, rng.choice(LENGTHS), extension)] * 8,
        ("agree", rng.randrange(3), rng.randrange(2)),
        ("agree", 2, 1),
        ("release", rng.choice((-1, own.sequence_next - 1, own.sequence_next - 2, 999))),
        ("restart",),
        ("timeout", rng.randrange(20_000)),
        ("timeout", 1 << 40),
        ("acknowledged", rng.randrange(30_000)),
        ("acknowledge",),
        ("ask",),
        ("cancel", owner, rng.choice((0, port))),
        ("wanted",),
        ("fence_here",),
    ]
    if rng.random() < 0.03:
        return ("drop",)
    if not core.attached:
        return rng.choice([*always, *[("attach", rng.choice((0, 0, 1, 2)))] * 8])
    return rng.choice([
        *always,
        *[("write", rng.choice((8, 8, 8, 4, 1, 0)))] * 12,
        *[("receive", *numbered)] * 8,
        ("map", rng.choice((0, 8, 9))),
        ("map", 8),
        ("control", rng.choice((0, 1, 7)), rng.choice((0, 1, 4000)), 5, rng.randrange(2)),
        ("control", 1, 0, 6, rng.randrange(2)),
        ("detach",),
        ("probe_dead_stream",),
    ])  # fmt: skip


def lines(*, plain: bool = False) -> Iterator[str]:
    """Yield the record."""
    for seed in range(SEEDS):
        rng = random.Random(seed)
        made = (
            rng.choice((1, 1000, 1 << 60)), rng.choice((0, 8)),
            rng.choice((1, 3, 8)), rng.choice((1, 500, 1 << 24)),
        )  # fmt: skip
        world = World(*made)
        yield " ".join(map(str, ("new", *made)))
        for _ in range(CALLS):
            name, *values = call(world, rng)
            getattr(world, name)(*values)
            seen = world.seen()
            result = seen if plain else zlib.adler32(seen.encode())
            yield " ".join(map(str, (name, *values, "=", result)))


if __name__ == "__main__":
    RECORD.write_text("".join(f"{line}\n" for line in lines(plain="--plain" in sys.argv)))
