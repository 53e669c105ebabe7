"""What the Python path makes of random calls, for the compiled one to repeat.

    python -m tests.unit.path_record [--plain]

writes `native/crates/path/tests/reference.txt`, which `reference.rs` beside it replays. A line is a
call, `=`, and the Adler-32 of what can be seen behind it; with `--plain` what can be seen itself,
to look for a difference.
"""

import random
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

from urds.constants import HeaderFlag
from urds.dataplane.base import Hold, Limits, Release
from urds.dataplane.reference.counters import Counters
from urds.dataplane.reference.inbox import Inbox
from urds.dataplane.reference.path import PathCore
from urds.wire.exthdr import Handshake, Mark, emit_handshake
from urds.wire.header import Header

RECORD = Path(__file__).parents[2] / "native/crates/path/tests/reference.txt"
SEEDS, CALLS = 40, 50
TARGET = 5000
HOLDS, RELEASES = list(Hold), list(Release)
LENGTHS = (0, 1, 40, 78, 79, 300, 8191, 8192, 20_000)


class Account:
    def __init__(self) -> None:
        self.send_queued_bytes = 0
        self.given_up = 0


class World:
    """One path core; each method is a call that a line can name."""

    def __init__(self, first: int, generation: int, packets: int, octets: int) -> None:
        limits = Limits(
            unacked_packets_max=packets,
            unacked_bytes_max=octets,
            acknowledge_messages=5,
            acknowledge_bytes=30_000,
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
            map_octets=lambda: bytes(8192),
        )
        self.fence = None
        self.news = ""

    def attach(self, hold: int) -> None:
        self.core.attach(HOLDS[hold])

    def detach(self) -> None:
        self.core.detach()

    def release(self, sequence: int) -> None:
        self.core.release(sequence if sequence >= 0 else None)

    def agree(self, release: int, checksum: int) -> None:
        self.core.agree(release=RELEASES[release], checksum=bool(checksum))

    def restart(self) -> None:
        self.news = str(self.core.restart_peer())

    def send(self, owner: int, target: int, octets: int, extension: int) -> None:
        payload = bytes([octets & 255]) * octets
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
        octets = b"".join(self.core.poll_transmit())
        taken = len(octets) * share // 8
        if octets:
            self.core.transmitted(taken)
        self.news = f"{len(octets)}:{zlib.adler32(octets)}"

    def receive(self, sequence, ack, flags, source, target, octets, checksum, cut) -> None:
        header = Header(
            sequence=sequence, ack=ack, payload_bytes=octets, source_port=source,
            target_port=target, flags=HeaderFlag(flags),
        )  # fmt: skip
        data = header.emit(checksum=bool(checksum)) + bytes([9]) * min(octets, 60_000)
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

    def octets(self, count: int) -> None:
        self.core.handle_stream_acknowledged(count)

    def timeout(self, now_ns: int) -> None:
        self.core.handle_timeout(now_ns)

    def acknowledge(self) -> None:
        self.core.acknowledge()

    def ask(self) -> None:
        self.core.ask()

    def cancel(self, owner: int, port: int) -> None:
        self.news = str(self.core.outgoing.cancel(self.accounts[owner], port or None))

    def drop(self) -> None:
        self.news = str(self.core.outgoing.drop_all())

    def wanted(self) -> None:
        self.core.outgoing.acknowledgement_wanted = True

    def poke(self) -> None:
        self.core.map_due = self.core.attached

    def fence_here(self) -> None:
        self.fence = self.core.outgoing.fence()

    def seen(self) -> str:
        """Return all that can be seen, in the words of `reference.rs`."""
        core = self.core
        own, incoming = core.outgoing, core.incoming
        timeout = core.poll_timeout()
        parts = [
            self.news, own.position, own.sequence_next, own.pending_bytes, len(own.unsent),
            len(own.repeats), len(own.unacked), int(own.is_long()),
            *(f"{one.send_queued_bytes}/{one.given_up}" for one in self.accounts),
            int(core.wants_to_write()), int(core.is_plain()), int(core.is_held()),
            -1 if timeout is None else timeout, core.octets_written, int(core.attached),
            incoming.sequence_expected, incoming.frames, incoming.messages_owed,
            incoming.bytes_owed, int(incoming.acknowledgement_due), incoming.acknowledged,
            len(incoming.controls), int(incoming.restarted),
            len(self.inbox.queue), self.inbox.receive_queued_bytes,
            -1 if self.fence is None else int(self.fence.open),
            int(own.holds()),
            ",".join(str(value) for value in self.counters.as_dict().values()),
        ]  # fmt: skip
        self.news = ""
        return " ".join(str(part) for part in parts)


def call(world: World, chance: random.Random) -> tuple[object, ...]:
    """Choose a call that the shell might make now."""
    core = world.core
    own, incoming = core.outgoing, core.incoming
    owner, port = chance.randrange(2), chance.choice((TARGET, TARGET, 6000))
    extension = chance.choice((0, 0, 0, 5))
    numbered = (
        chance.choice((incoming.sequence_expected, incoming.sequence_expected + 1, 1, 7)),
        chance.choice((0, 0, max(0, own.sequence_next - 1), own.sequence_next, 3)),
        chance.choice((0, 0, 0, 2, 4, 6, 1)),
        chance.choice((4000, 4000, 4000, 0, 1)),
        chance.choice((TARGET, TARGET, TARGET, 6000, 0, 1)),
        chance.choice(LENGTHS) if chance.random() < 0.98 else 50_001,
        chance.randrange(2),
        chance.choice((0, 10, 48, 60, 9000, 10_000, 100_000)),
    )
    always = [
        *[("send", owner, port, chance.choice(LENGTHS), extension)] * 8,
        ("agree", chance.randrange(3), chance.randrange(2)),
        ("agree", 2, 1),
        ("release", chance.choice((-1, own.sequence_next - 1, own.sequence_next - 2, 999))),
        ("restart",),
        ("timeout", chance.randrange(20_000)),
        ("timeout", 1 << 40),
        ("octets", chance.randrange(30_000)),
        ("acknowledge",),
        ("ask",),
        ("cancel", owner, chance.choice((0, port))),
        ("wanted",),
        ("fence_here",),
    ]
    if chance.random() < 0.03:
        return ("drop",)
    if not core.attached:
        return chance.choice([*always, *[("attach", chance.choice((0, 0, 1, 2)))] * 8])
    return chance.choice([
        *always,
        *[("write", chance.choice((8, 8, 8, 4, 1, 0)))] * 12,
        *[("receive", *numbered)] * 8,
        ("map", chance.choice((0, 8, 9))),
        ("map", 8),
        ("control", chance.choice((0, 1, 7)), chance.choice((0, 1, 4000)), 5, chance.randrange(2)),
        ("control", 1, 0, 6, chance.randrange(2)),
        ("detach",),
        ("poke",),
    ])  # fmt: skip


def lines(*, plain: bool = False) -> Iterator[str]:
    """Yield the record."""
    for seed in range(SEEDS):
        chance = random.Random(seed)
        made = (
            chance.choice((1, 1000, 1 << 60)), chance.choice((0, 8)),
            chance.choice((1, 3, 8)), chance.choice((1, 500, 1 << 24)),
        )  # fmt: skip
        world = World(*made)
        yield " ".join(map(str, ("new", *made)))
        for _ in range(CALLS):
            name, *values = call(world, chance)
            getattr(world, name)(*values)
            seen = world.seen()
            result = seen if plain else zlib.adler32(seen.encode())
            yield " ".join(map(str, (name, *values, "=", result)))


if __name__ == "__main__":
    RECORD.write_text("".join(f"{line}\n" for line in lines(plain="--plain" in sys.argv)))
