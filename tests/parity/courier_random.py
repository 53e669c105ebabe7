"""Random calls and frames for a connection that a courier carries, and for one of the core alone.

Of four worlds three have plain traffic, which a courier carries: bursts of sends, frames of several
messages, parts of long ones, acknowledgements, congestion maps, receives, time, and now and then a
link that is lost. In the fourth the numbers move as well: operations, extensions, pings, repeats,
tables, cancelling, ends of sockets, frames that break the protocol, links without a courier.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tests.parity.courier_sides import (
    MS,
    TARGET_ADDRESS,
    TARGET_BYTES,
    TARGET_KEY,
    THERE,
    Side,
)
from tests.parity.lockstep import Lockstep
from tests.rds.transports.rdma_core.rdma_core_world import ack_only, frames, map_frames
from urds.rds.constants import CONGESTION_MAP_BYTES, HeaderFlag
from urds.rds.plane.contract import (
    AtomicOperation,
    Limits,
    MailboxSettings,
    Plane,
    RdmaTransfer,
)
from urds.rds.transports.rdma.core import CoreLimits
from urds.rds.wire.frame_format import FrameFormat

STEPS: Final = 120  # of a world, of several cases each
MakePlane = Callable[..., Plane]
_PORTS: Final = {"x": 5000, "y": 5001}
_UNBOUND: Final = 6000
WITH_KEY: Final = b"\x02\0\0\0\x07".ljust(16, b"\0")
_SIZES: Final = (0, 1, 64, 64, 64, 70, 200, 1000, 4047, 4095, 4096, 8192)
_LONG_SIZES: Final = (20_000, 65_488, 65_536, 65_537, 131_072, 200_000)
_HUGE_CHANCE: Final = 0.004  # of a message of a mebibyte and more
_BACK_CHANCE: Final = 0.3  # of a link that was lost, before each step
_FRAMES_MAX: Final = 12  # at once: fewer than a new connection has receives
_PAYLOAD: Final = random.Random(0).randbytes(1 << 21)
_PLAIN: Final = HeaderFlag(0)


@dataclass(frozen=True, slots=True)
class Traffic:
    """What is said in a world; chances are of 1."""

    weights: tuple[int, ...]  # of each of `_STEPS`
    formats: tuple[int, ...]  # of frames, which a connection is agreed on
    extended: float  # of a send with several buffers
    odd: float  # of a message of the peer
    looks: float  # of one at tables, which takes the numbers
    acknowledged: float  # of what the peer says between two rests


_MIXED_TRAFFIC: Final = Traffic(
    weights=(20, 12, 5, 20, 15, 3, 14, 3, 3, 3, 2, 1),
    formats=(3, 3, 3, 3, 2, 1),
    extended=0.05,
    odd=0.06,
    looks=0.2,
    acknowledged=0.3,
)
_PLAIN_TRAFFIC: Final = Traffic(
    weights=(20, 12, 8, 20, 20, 4, 14, 1, 1, 0, 1, 0),
    formats=(3,),
    extended=0,
    odd=0,
    looks=0.02,
    acknowledged=0.6,
)


class CourierWorld:
    """Two sides, one with a courier, and a generator of steps."""

    def __init__(self, seed: int, makers: tuple[MakePlane, MakePlane]) -> None:
        self.rng = rng = random.Random(seed)
        self.traffic = _PLAIN_TRAFFIC if seed % 4 else _MIXED_TRAFFIC
        core_limits = CoreLimits(
            send_ring=rng.choice([16, 20, 48]),
            receive_ring=rng.choice([16, 20, 64, 100]),
            message_bytes_max=rng.choice([1 << 20, 1 << 20, 100_000]),
            unacked_packets_max=rng.choice([1, 5, 8]),
            unacked_bytes_max=rng.choice([4000, 90_000, 16 << 20]),
        )
        self.fragment_bytes = 0
        self.ack_chance = rng.choice([0.0, 0.02, 0.15])  # of messages of the peer that ask for it
        self.sides = [Side(make, Limits(), core_limits) for make in makers]
        self.lockstep = Lockstep(seed, self.sides)
        self.core_limits = core_limits
        self.message_bytes_max = core_limits.message_bytes_max
        self.peer_next = 1
        self.seen = 0  # the highest number that the peer has got
        self.formats: list[FrameFormat] = []
        self.happened: Counter[str] = Counter()
        for name in _PORTS:
            self._bind(name)
        self._attach()

    @property
    def cases(self) -> int:
        """How many there were."""
        return self.lockstep.steps

    def run(self) -> None:
        """Make the steps of one world. Raises Difference."""
        try:
            for _ in range(STEPS):
                step = self.rng.choices(_STEPS, self.traffic.weights)[0]
                if not self.fragment_bytes and self.rng.random() < _BACK_CHANCE:
                    step = CourierWorld._break
                self.happened[step.__name__] += 1
                step(self)
                self.look()
            self._end()
        finally:
            ends = self.lockstep.close()
        self.lockstep.compare("close", *ends)

    def both(self, label: str, call: Callable[[Side], object]) -> None:
        """Make one call on both sides; what it gave is equal."""
        self.happened["by a courier" if self.sides[1].has_courier() else "by the core"] += 1
        self.lockstep.both(label, call)

    def look(self) -> None:
        """Have both come to rest, and compare."""
        with_tables = self.rng.random() < self.traffic.looks
        for side in self.sides:
            side.has_tables = with_tables
        self.lockstep.look()
        self.seen = max(self.seen, self.sides[0].sequence_seen)
        if self.sides[0].is_cut:
            self.happened["cut"] += 1
            self._detach()
            self.lockstep.look()
            self._attach()
            self.lockstep.look()

    def _end(self) -> None:
        """Acknowledge everything, and take everything."""
        if self.sides[0].path.link is None:
            self._attach()
            self.look()
        self.both("acknowledge all", lambda side: side.peer.say(ack_only(self.seen)))
        self.look()
        for name in _PORTS:
            self._take_all(name)
        self.look()

    # -- sockets

    def _settings(self) -> MailboxSettings:
        rng = self.rng
        return MailboxSettings(
            send_bytes_max=rng.choice([5000, 106_496, 106_496, 4 << 20]),
            receive_bytes_max=rng.choice([1000, 5000, 106_496, 106_496, 1 << 20]),
            send_wait_ns=0,
            receive_wait_ns=0,
            monitor=rng.random() < 0.2,
        )

    def _bind(self, name: str) -> None:
        settings = self._settings()
        self.both(f"bind {name} {settings}", lambda side: side.bind(name, _PORTS[name], settings))

    def _name(self) -> str:
        return self.rng.choice(list(_PORTS))

    def _send(self) -> None:
        rng, name = self.rng, self._name()
        target = (str(THERE), rng.choice([4000, 4000, 4001, 4002]))
        payload = self._payload()
        kind = rng.choice(["sendto", "sendto", "send", "send_many"])
        if kind == "sendto":
            self.both(
                f"sendto {name} {len(payload)} {target[1]}",
                lambda side: side.mailboxes[name].sendto(payload, target),
            )
        elif kind == "send":
            cut = rng.randrange(len(payload) + 1)
            buffers = [payload[:cut], payload[cut:]]
            extension = WITH_KEY if rng.random() < self.traffic.extended else b""
            self.both(
                f"send {name} {len(payload)} {target[1]} {extension!r}",
                lambda side: side.send(name, buffers, target, extension=extension),
            )
        else:
            messages = [(self._payload(), target) for _ in range(rng.randrange(1, 20))]
            self.both(
                f"send_many {name} {[len(one) for one, _ in messages]} {target[1]}",
                lambda side: side.mailboxes[name].send_many(messages, None),
            )

    def _payload(self) -> bytes:
        rng = self.rng
        size = rng.choice(_SIZES if rng.random() < 0.9 else _LONG_SIZES)
        if rng.random() < _HUGE_CHANCE:
            size = rng.choice([1 << 20, (1 << 20) - 1, (1 << 20) + 1])
        at = rng.randrange(1 << 20)
        return _PAYLOAD[at : at + size]

    def _burst(self) -> None:
        """Send, and have frames come meanwhile; nothing of it is looked at before the end."""
        rng = self.rng
        left = _FRAMES_MAX
        for _ in range(rng.choice([1, 1, 3, 10, 60, 300])):
            if rng.random() < 0.9:
                self._send()
                continue
            said = self._frames()
            if len(said) <= left:
                left -= len(said)
                self._say(said)

    def _operate(self) -> None:
        """Send a message that brings operations."""
        rng, name = self.rng, self._name()
        size = rng.choice([1, 100, 1000])
        at = rng.randrange(TARGET_BYTES - 1000)
        kind = rng.choice(["write", "read", "add"])
        flags = {"notify": rng.random() < 0.5, "silent": rng.random() < 0.2, "token": at}
        payload, data = self._payload(), _PAYLOAD[at : at + size]
        key = TARGET_KEY if rng.random() < 0.95 else TARGET_KEY + 1

        def operation() -> Any:
            values: dict[str, Any] = {"key": key, "remote_address": TARGET_ADDRESS + at, **flags}
            if kind == "add":
                values["remote_address"] &= ~7
                result = memoryview(bytearray(8))
                return AtomicOperation(is_compare=False, operand=at, result=result, **values)
            pieces = (memoryview(bytearray(data)),)
            return RdmaTransfer(is_write=kind == "write", pieces=pieces, **values)

        target = (str(THERE), 4000)
        self.both(
            f"{kind} of {size} with {len(payload)} by {name} {flags}",
            lambda side: side.send(name, [payload], target, operations=(operation(),)),
        )

    def _take(self) -> None:
        rng, name = self.rng, self._name()
        size, count, peek = rng.choice([10, 4096, 1 << 21]), rng.randrange(1, 9), rng.random() < 0.5
        calls: dict[str, Callable[[Side], object]] = {
            f"recvfrom {size}": lambda s: s.mailboxes[name].recvfrom(size),
            f"recv_many {count} {size}": lambda s: s.mailboxes[name].recv_many(count, size),
            f"receive {peek}": lambda s: s.mailboxes[name].receive(wait_ns=0, peek=peek),
        }
        label = rng.choice(list(calls))
        self.both(f"{label} of {name}", calls[label])

    def _drain(self) -> None:
        self._take_all(self._name())

    def _take_all(self, name: str) -> None:
        self.both(f"take all of {name}", lambda side: side.take_all(name))

    def _mailbox_call(self) -> None:
        rng, name = self.rng, self._name()
        settings, port, linger_ns = self._settings(), rng.choice([None, 4000]), rng.choice([0, MS])
        calls: dict[str, Callable[[Side], object]] = {
            f"configure {settings}": lambda s: s.mailboxes[name].configure(settings),
            f"cancel {port}": lambda s: s.mailboxes[name].cancel(THERE, port),
            "fileno": lambda s: s.show(name),
            "unacknowledged": lambda s: s.mailboxes[name].unacknowledged(),
            f"close {linger_ns}": lambda s: s.unbind(name, linger_ns),
        }
        label = rng.choice(list(calls))
        self.both(f"{label} of {name}", calls[label])
        if label.startswith("close"):
            self.look()
            self._bind(name)

    # -- the peer

    def _say(self, said: list[bytes]) -> None:
        if self.fragment_bytes:
            for data in said:
                self.both(f"frame of {len(data)}", lambda side: side.peer.say(data))  # noqa: B023 - called at once

    def _frames(self, ack: int = 0) -> list[bytes]:
        """Draw the frames of some messages; the first header acknowledges."""
        rng = self.rng
        if not self.fragment_bytes:
            return []
        if rng.random() < 0.1:
            return self._long(ack)
        parts = []
        count = rng.randrange(1, 30) if self.is_packed else 1
        for number in range(count):
            parts.append(self._one(rng.choice((0, 3, 64, 300)), ack if number == 0 else 0))
        data = b"".join(parts)
        return [data]

    @property
    def is_packed(self) -> bool:
        """Whether frames of the connection may hold several messages."""
        return self.formats[-1] is FrameFormat.PACKED

    def _one(self, size: int, ack: int) -> bytes:
        rng = self.rng
        flags = HeaderFlag.ACK_REQUIRED if rng.random() < self.ack_chance else _PLAIN
        values: dict[str, Any] = {"source_port": 4000, "target_port": rng.choice([5000, 5001])}
        sequence = self.peer_next
        if rng.random() < self.traffic.odd:
            kind = rng.choice(["repeat", "extension", "ping", "unbound", "unbound", "hole"])
            if kind == "repeat":
                flags |= HeaderFlag.RETRANSMITTED
                sequence -= min(sequence, rng.randrange(3))
            elif kind == "extension":
                values["extension"] = WITH_KEY
            elif kind == "ping":
                values["target_port"], size = 0, 0
            elif kind == "unbound":
                values["target_port"] = _UNBOUND
            else:
                self.peer_next += rng.randrange(3)
                sequence = self.peer_next
        self.peer_next = max(self.peer_next, sequence + 1)
        at = rng.randrange(1 << 20)
        payload = _PAYLOAD[at : at + size]
        (data,) = frames(sequence, payload, flags=flags, ack=ack, fragment_bytes=1 << 16, **values)
        return data

    def _long(self, ack: int) -> list[bytes]:
        rng = self.rng
        size = rng.choice([4096, 5000, 8192, 30_000, 65_536])
        if self.fragment_bytes > 4096:
            size = rng.choice([size, 65_537, 131_072, 300_000])
        size = min(size, self.message_bytes_max)
        at, sequence = rng.randrange(1 << 20), self.peer_next
        self.peer_next += 1
        return frames(
            sequence,
            _PAYLOAD[at : at + size],
            ack=ack,
            source_port=4000,
            target_port=rng.choice([5000, 5001]),
            fragment_bytes=self.fragment_bytes,
        )

    def _peer_speaks(self) -> None:
        """Frames, some of which acknowledge."""
        rng = self.rng
        left = _FRAMES_MAX
        for _ in range(rng.choice([1, 1, 2, 6])):
            said = self._frames(self._number() if rng.random() < self.traffic.acknowledged else 0)
            if len(said) <= left:
                left -= len(said)
                self._say(said)

    def _number(self) -> int:
        """Return a number to acknowledge."""
        return max(0, self.seen - self.rng.choice([0, 0, 0, 1, 2, 10, 100]))

    def _acknowledge(self) -> None:
        number = self._number()
        if number:
            self._say([ack_only(number)])

    def _map(self) -> None:
        ports = self.rng.sample([4000, 4001, 4002], self.rng.choice([0, 0, 1, 3]))
        data = bytearray(CONGESTION_MAP_BYTES)
        for port in ports:
            data[port // 8] |= 1 << port % 8
        if self.fragment_bytes:
            self._say(map_frames(bytes(data), fragment_bytes=self.fragment_bytes))

    def _break_rules(self) -> None:
        """Say what no peer may say, or what is odd at least."""
        rng = self.rng
        if not self.fragment_bytes:
            return
        data = bytearray(rng.choice(self._frames()))
        kind = rng.randrange(5)
        if kind == 0:
            del data[rng.randrange(len(data)) :]
        elif kind == 1:
            data[rng.randrange(min(48, len(data)))] ^= 1 << rng.randrange(8)
        elif kind == 2:
            data = bytearray(ack_only(self.seen + 1 + rng.randrange(1000)))
        elif kind == 3:
            data += b"behind"
        else:
            data = bytearray(frames(self.peer_next, bytes(2 << 20), fragment_bytes=4096)[0])
        self._say([bytes(data)])

    # -- the connection, time

    def _attach(self) -> None:
        rng = self.rng
        chosen = FrameFormat(rng.choice(self.traffic.formats))
        self.formats.append(chosen)
        self.fragment_bytes = 4096 if chosen is FrameFormat.SHORT else 65_536
        acknowledged = rng.choice([0, self._number()])
        self.both(f"attach {chosen.name}", lambda side: side.attach(chosen, acknowledged))

    def _detach(self) -> None:
        self.fragment_bytes = 0
        self.both("detach", lambda side: side.detach())

    def _break(self) -> None:
        """End the connection, or begin the next one."""
        rng = self.rng
        if self.fragment_bytes:
            self._detach()
            if rng.random() < 0.5:
                return
        if rng.random() < 0.3:
            self.both("restart the peer", lambda side: side.path.restart_peer())
            self.peer_next = 1
        elif rng.random() < 0.1:
            self.both("drop the queue", lambda side: side.path.drop_queue())
        for _ in range(rng.randrange(3)):
            self._send()
        self._attach()

    def _time(self) -> None:
        spent_ns = round(self.rng.choice([0.1, 1, 2, 50, 2000]) * MS)
        self.both(f"{spent_ns} ns", lambda side: side.spend(spent_ns))

    def _look_at(self) -> None:
        rng = self.rng
        calls: dict[str, Callable[[Side], object]] = {
            "count_up": lambda side: side.path.count_up(),
            "holds_messages": lambda side: side.path.holds_messages(),
            "is_useful": lambda side: side.path.is_useful(),
            "send_map": lambda side: side.path.send_map(),
            "push": lambda side: side.path.push(),
        }
        label = rng.choice(list(calls))
        self.both(label, calls[label])


_STEPS: Final = [
    CourierWorld._burst, CourierWorld._take, CourierWorld._drain, CourierWorld._peer_speaks,
    CourierWorld._acknowledge, CourierWorld._map, CourierWorld._time, CourierWorld._look_at,
    CourierWorld._mailbox_call, CourierWorld._operate, CourierWorld._break,
    CourierWorld._break_rules,
]  # fmt: skip
STEP_NAMES: Final = {step.__name__ for step in _STEPS}
