"""The same random calls and bytes through two planes: every step must come out alike.

`python -m tests.parity.random_crossings --cases 1000000 [--seed N] [--planes python
native]`

A case is one call, one piece of bytes from a peer, or one turn. What the call gave is compared;
then, unless a plane has yet to read something, both make a pass at the same time of their clocks,
and the bytes on every stream and readiness are compared; at a turn also reports, and counters
and tables unless it is a short one between two steps: they take the most time. A world lives for
some two hundred cases; its seed and the last steps stand in a failure.

When exactly a message leaves before a pass, and with which others in one write, is the plane's own
affair, and with it when the messages of a path are counted. So is what it reads first: no two
streams have something to read, nothing is sent while one has, and all is read before the clock
moves on. How much it reads at once is made alike.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from typing import Final

from tests.parity.lockstep import Lockstep, reading_alike
from tests.parity.planes import LOCAL, MS, OTHER, PEER
from tests.parity.random_peer import RandomPeer
from tests.parity.sides import PEERS, REFUSED, SECOND, Side
from tests.support.planes import PLANES
from urds.rds.constants import MessageFlag
from urds.rds.plane.contract import (
    Agreement,
    Hold,
    Limits,
    MailboxSettings,
    Plane,
)
from urds.rds.types import AckMode

WORLD_CASES: Final = 200
_PORTS: Final = {"x": (LOCAL, 5000), "y": (LOCAL, 5001), "z": (SECOND, 6000)}
_NEVER: Final = 0  # what a call waits
_HARD_BYTES: Final = (1000, 17_000)
_UNREAD_BYTES_MAX: Final = 16_000  # read at once by both, which look at the hard bound then
_HUGE_CHANCE: Final = 0.01  # of a message of a mebibyte and more
MakePlane = Callable[..., Plane]


class Crossing:
    """Two planes side by side, and a generator of steps."""

    def __init__(self, seed: int, one: MakePlane, other: MakePlane) -> None:
        self.rng = random.Random(seed)
        limits = self._limits()
        self.by_descriptor = self.rng.random() < 0.5
        self.is_bounded = limits.path_messages_max < Limits().path_messages_max
        self.is_hard = limits.receive_hard_bytes in _HARD_BYTES
        self.sides = [Side(make, limits, by_descriptor=self.by_descriptor) for make in (one, other)]
        self.lockstep = Lockstep(seed, self.sides)
        releases = [AckMode.NOT_YET, AckMode.PEER_ACKNOWLEDGED, AckMode.PEER_ACKNOWLEDGED]
        if not self.by_descriptor:  # else what our TCP tells depends on where writes end
            releases.append(AckMode.STREAM_ACKNOWLEDGED)
        self.release = self.rng.choice(releases)
        self.checksum = self.rng.random() < 0.5
        self.peers = {
            name: RandomPeer(self.rng, checksum=self.checksum, ports=[5000, 5001, 5002])
            for name in PEERS
        }
        # In which order several streams are read, and let go by a full mailbox, is not told.
        self.names = ["a"] if self.is_hard else list(PEERS)
        # In worlds of their own: those that once differed have others of the call's draws.
        self.moves_queues = seed % 8 in (5, 6)
        self._closed: set[str] = set()  # mailboxes
        self._said = ""  # by whose stream bytes may still have to be read
        self._begin()

    def _begin(self) -> None:
        for name, (local, port) in _PORTS.items():
            settings = self._settings()
            self.both(f"bind {name}", lambda s: s.bind(name, local, port, settings))  # noqa: B023 - called at once
        for name in self.names:
            if self.rng.random() < 0.8:
                self._attach(name)

    def run(self) -> int:
        """Make the steps of one world; return how many cases they were. Raises Difference."""
        try:
            while self.lockstep.steps < WORLD_CASES:
                self._step()
            self._turn()
        finally:
            ends = self.lockstep.close()
        self.lockstep.compare("close", *ends)
        return self.lockstep.steps

    def both(self, label: str, call: Callable[[Side], object]) -> None:
        """Make one call on both planes and compare."""
        self.lockstep.both(label, call)
        if not self._said:
            for name, data in self.lockstep.look().items():
                self.peers[name].read(data)

    # -- worlds

    def _limits(self) -> Limits:
        rng = self.rng
        if rng.random() < 0.3:
            return Limits()
        return Limits(
            message_bytes_max=rng.choice([3000, 20_000, 1 << 20, 4 << 20]),
            frame_bytes_max=rng.choice([3000, 20_000, 20_000, 1 << 20, 1 << 20]),
            control_events_max=rng.choice([2, 64]),
            receive_hard_bytes=rng.choice([*_HARD_BYTES, 1 << 24, 1 << 24]),
            receive_hard_factor=rng.choice([1, 4]),
            flush_bytes=rng.choice([500, 32768]),
            path_messages_max=rng.choice([3, 20, 65536]),
            acknowledge_delay_ns=rng.choice([MS, 40 * MS]),
            acknowledge_messages=rng.choice([3, 256]),
            acknowledge_bytes=rng.choice([1000, 256 << 10]),
            unacked_packets_max=rng.choice([1, 8]),
            unacked_bytes_max=rng.choice([4000, 16 << 20]),
        )

    def _settings(self) -> MailboxSettings:
        rng = self.rng
        return MailboxSettings(
            send_bytes_max=rng.choice([700, 5000, 106_496, 106_496, 4 << 20]),
            receive_bytes_max=rng.choice([256, 1000, 5000, 106_496]),
            send_wait_ns=rng.choice([None, 0, MS]),
            receive_wait_ns=rng.choice([None, 0, MS]),
            monitor=rng.random() < 0.2,
            monitor_mask=rng.choice([(1 << 64) - 1, 1 << (4000 % 64)]),
            timestamps=rng.random() < 0.1,
            traces=rng.choice([(), (), (), (2,), (0, 2, 1)]),
        )

    # -- steps

    def _step(self) -> None:
        step = self.rng.choices(_STEPS, _WEIGHTS)[0]
        if self._said and step in _SENDING:
            self._turn()
        step(self)

    def _send(self) -> None:
        rng = self.rng
        name, target = self._mailbox(), self._target()
        payload = b"" if name in self._closed else self._payload()  # else too long, or closed
        if rng.random() < 0.15:
            extension = rng.randbytes(16) if rng.random() < 0.5 else b""
            pieces = [payload[: len(payload) // 2], payload[len(payload) // 2 :]]
            self.both(
                f"send {name} {target} {len(payload)} {extension.hex()}",
                lambda s: s.mailboxes[name].send(pieces, target, wait_ns=0, extension=extension),
            )
            return
        frozen = rng.choice([bytes, bytes, bytes, bytearray, memoryview])(payload)
        flags = rng.choice([None, None, None, 0, MessageFlag.DONTWAIT, MessageFlag.NOSIGNAL])
        arguments = (frozen, target) if flags is None else (frozen, int(flags), target)
        label = f"sendto {name} {target} {len(payload)} {type(frozen).__name__} {flags}"
        self.both(label, lambda s: s.mailboxes[name].sendto(*arguments))

    def _burst(self) -> None:
        name, target = self._mailbox(), self._target()
        payload = b"" if name in self._closed else self._payload()[:2000]
        count = self.rng.randrange(2, 40)

        def send(side: Side) -> int:
            mailbox = side.mailboxes[name]
            return sum(mailbox.sendto(payload, target) for _ in range(count))

        self.both(f"burst {name} {target} {count} of {len(payload)}", send)

    def _take(self) -> None:
        rng, name = self.rng, self._mailbox()
        if rng.random() < 0.3:
            peek = rng.random() < 0.3
            self.both(
                f"receive {name} {peek}",
                lambda s: s.mailboxes[name].receive(wait_ns=_NEVER, peek=peek),
            )
            return
        bytes_max = rng.choice([1 << 20, 1 << 20, 100, 3, 0])
        flags = rng.choice([0, 0, 0, 0, int(MessageFlag.DONTWAIT), int(MessageFlag.PEEK)])
        label = f"recvfrom {name} {bytes_max} {flags}"
        self.both(label, lambda s: s.mailboxes[name].recvfrom(bytes_max, flags))

    def _take_all(self) -> None:
        name = self._mailbox()

        def take(side: Side) -> list[object]:
            mailbox, taken = side.mailboxes[name], []
            while (message := mailbox.receive(wait_ns=_NEVER)) is not None and len(taken) < 500:
                taken.append(side.plain(message))
            return taken

        self.both(f"take all of {name}", take)

    def _say(self) -> None:
        """Have a peer write; the planes read it at once, later, or in two pieces."""
        name = self.rng.choice(self.names)
        if self._said not in {"", name}:
            self._turn()
        link = self.sides[0].links.get(name)
        if (link is None or link.ended) and self.rng.random() < 0.7:
            self._turn()
            self._attach(name)
        label, data = self.peers[name].say()
        if self.is_hard:
            unread_bytes = 0 if link is None else link.unread_bytes()
            data = data if unread_bytes + len(data) <= _UNREAD_BYTES_MAX else b""
        self._said = name
        cut = self.rng.randrange(len(data) + 1) if self.rng.random() < 0.2 else len(data)
        for piece in (data[:cut], data[cut:]):
            if piece:
                self.both(
                    f"{name} says {label}: {len(piece)} of {len(data)} bytes",
                    lambda s: self._write(s, name, piece),  # noqa: B023 - called at once
                )
                if self.rng.random() < 0.7:
                    self._turn(ms=self.rng.choice([0, 0, 0, 0.1, 2]))

    def _write(self, side: Side, name: str, data: bytes) -> None:
        if name in side.links:
            side.links[name].write(data)

    def _turn(self, ms: float | None = None) -> None:
        is_step = ms is None
        if ms is None:
            ms = self.rng.choice([0, 0, 0.01, 0.1, 0.5, 1, 2, 2, 20, 2000])
        for side in self.sides:
            side.settle()
            side.now_ns += round(ms * MS)
        self._said = ""
        self.both(f"turn {ms}", Side.settle)
        self.lockstep.compare("events", *(side.events() for side in self.sides))
        if is_step:
            self.lockstep.compare("tables", *(side.tables() for side in self.sides))

    # -- rarer steps

    def _stream(self) -> None:
        rng, name = self.rng, self.rng.choice(self.names)
        if self._said and not self.is_hard:
            self._turn()
        step = rng.randrange(7)
        if step < 3:
            self._attach(name)
        elif step == 3:
            self.both(f"detach {name}", lambda s: s.paths[name].detach())
            self._turn(ms=0)
        elif step == 4:
            self.both(f"{name} ends", lambda s: name in s.links and s.links[name].close())
            for side in self.sides:
                side.links.pop(name, None)
            self._turn()
        elif step == 5 and not self.by_descriptor:
            room = rng.choice([None, 0, 10, 48, 100, 3000, 30_000])
            self.both(f"room {room} on {name}", lambda s: self._set(s, name, "room_bytes", room))
        elif step == 6 and not self.by_descriptor:
            unacknowledged = rng.choice([0, 0, 1, 50, 3000])
            self.both(
                f"unacknowledged {unacknowledged} on {name}",
                lambda s: self._set(s, name, "unacknowledged_bytes", unacknowledged),
            )

    def _set(self, side: Side, name: str, attribute: str, value: object) -> None:
        if name in side.links:
            setattr(side.links[name].stream, attribute, value)

    def _attach(self, name: str) -> None:
        hold = self.rng.choice([Hold.NOTHING, Hold.NOTHING, *Hold])
        if self.rng.random() < 0.8:
            self._agree(name)
        self.peers[name].begin()

        def attach(side: Side) -> None:
            side.paths[name].attach(side.connect(name).stream, hold=hold)

        self.both(f"attach {name} {hold.name}", attach)
        self._turn(ms=0)  # what the stream before still brought shows now
        if hold is Hold.HELLO and self.rng.random() < 0.8:
            self._release(name)

    def _agree(self, name: str) -> None:
        agreement = Agreement(
            ack_mode=self.release,
            checksum=self.checksum,
            message_bytes_max=self.rng.choice([1 << 20, 1 << 20, 2 << 20]),
        )
        self.both(f"agree {name} {agreement}", lambda s: s.paths[name].agree(agreement))

    def _release(self, name: str) -> None:
        received = self.rng.choice([None, self.peers[name].seen, 0])
        self.both(
            f"release {name} {received}",
            lambda s: s.paths[name].end_hold(received_by_peer=received),
        )

    def _control(self) -> None:
        rng, name = self.rng, self.rng.choice(self.names)
        source_port, target_port = rng.choice([(0, 1), (1, 0), (0, 4000), (5000, 0)])
        extension, hello = rng.choice([bytes(16), rng.randbytes(16)]), rng.random() < 0.3
        self.both(
            f"control {name} {source_port} {target_port} {hello}",
            lambda s: s.paths[name].control(
                source_port=source_port, target_port=target_port, extension=extension, hello=hello
            ),
        )

    def _path(self) -> None:
        if self.moves_queues and self.rng.random() < 0.5:
            self._move()
            return
        rng, name = self.rng, self.rng.choice(self.names)
        port, generation = rng.choice([4000, 4001]), rng.choice([None, 1, 2])
        calls: dict[str, Callable[[Side], object]] = {
            "probe_dead_stream": lambda s: s.paths[name].probe_dead_stream(),
            "restart_peer": lambda s: s.paths[name].restart_peer(),
            f"remember {generation}": lambda s: s.paths[name].remember_handshake(generation),
            f"peer_is_congested {port}": lambda s: s.paths[name].peer_is_congested(port),
            "hold a1 behind a": lambda s: s.paths["a1"].hold_behind(s.paths["a"]),
            "hold a1 behind nothing": lambda s: s.paths["a1"].hold_behind(None),
            "holds_messages": lambda s: s.paths[name].holds_messages(),
            "drop_queue": lambda s: s.paths[name].drop_queue(),
            "received": lambda s: s.plane.received(s.paths[name]),
        }
        label = rng.choice([*calls, "agree", "release", "new path"])
        if label == "agree":
            self._agree(name)
        elif label == "release":
            self._release(name)
        elif label == "new path":
            self._renew(name)
        else:
            self.both(f"{label} {name}", calls[label])

    def _move(self) -> None:
        """Have a socket send over a path, often one that is held, and move the queue to another."""
        rng = self.rng
        if self._said:
            self._turn()
        one, other = rng.choice([("a1", "a"), ("a", "a1")])
        moving = rng.choice(["", "x", "xy"])
        if rng.random() < 0.7:
            self.both(f"hold {one}", lambda s: s.paths[one].hold_behind(None))
        self.both(f"route by {one}", lambda s: s.mailboxes["x"].route(PEER, s.paths[one]))
        for _ in range(rng.randrange(6)):
            self._send()

        def move(side: Side) -> None:
            mailboxes = [side.mailboxes[name] for name in moving]
            side.plane.move_queue(side.paths[one], side.paths[other], mailboxes)

        self.both(f"move {one} to {other} with {moving}", move)
        if rng.random() < 0.8:
            self.both(
                f"hold {one} behind {other}",
                lambda s: s.paths[one].hold_behind(s.paths[other]),
            )

    def _renew(self, name: str) -> None:
        """Forget a path, with nothing to read; another to the same peer goes on where it ended."""
        self._turn()
        if self.is_hard:  # it may pause
            return

        def renew(side: Side) -> None:
            received = side.plane.received(side.paths[name])
            side.paths[name].close()
            for mailbox in side.mailboxes.values():
                mailbox.route(PEERS[name], None)
            side.make_path(name, 1000)
            side.plane.expect(side.paths[name], received)

        self.peers[name].seen = 999
        self.both(f"new path {name}", renew)

    def _mailbox_call(self) -> None:
        rng, name = self.rng, self._mailbox()
        settings, target = self._settings(), rng.choice([None, PEER, OTHER])
        port, linger_ns = rng.choice([None, 4000]), rng.choice([None, 0, MS])
        local, own_port = _PORTS[name]
        calls: dict[str, Callable[[Side], object]] = {
            f"configure {settings}": lambda s: s.mailboxes[name].configure(settings),
            f"cancel {target} {port}": lambda s: s.mailboxes[name].cancel(target, port),
            "forget a route": lambda s: s.mailboxes[name].route(PEER, None),
            "route by a1": lambda s: s.mailboxes[name].route(PEER, s.paths["a1"]),
            "fileno": lambda s: s.show(name),
            "has_route": lambda s: s.mailboxes[name].has_route,
        }
        label = rng.choice([*calls, "close"])
        if name in self._closed:
            self._closed.remove(name)
            self.both(f"bind {name}", lambda s: s.bind(name, local, own_port, settings))
        elif label != "close":
            self.both(f"{label} {name}", calls[label])
        else:
            self._closed.add(name)
            self.both(f"close {name} {linger_ns}", lambda s: s.unbind(name, linger_ns))
            if rng.random() < 0.5:
                self._closed.remove(name)
                self.both(f"bind {name}", lambda s: s.bind(name, local, own_port, settings))

    def _odd(self) -> None:
        """Call as no program should."""
        rng, name = self.rng, self._mailbox()
        host = str(PEER)
        arguments = rng.choice([
            (b"x", None), (b"x", ()), (b"x", (host,)), (b"x", (host, "4000")), (b"x", 0, None),
            (b"x", (host, 65536)), (b"x", (host, -1)), (b"x", ("::1", 4000)), (b"x", ("", 4000)),
            (b"x", (host, 4000, 0, 0)), (b"x", (5, 4000)), (b"x", [host, 4000]),
            ("text", (host, 4000)), (5, (host, 4000)), (b"x", 1 << 31, (host, 4000)),
            (b"x", int(MessageFlag.ZEROCOPY), (host, 4000)), (b"x", "flags", (host, 4000)),
            (b"x", int(MessageFlag.OOB), (host, 4000)), (b"x", (str(REFUSED), 4000)),
            (memoryview(bytes(64))[::2], (host, 4000)), (b"x", ("192.0.2.1", 4000)),
            (memoryview(bytes(64)).cast("Q"), (host, 4000)), (b"x", ("255.255.255.255", 4000)),
        ])  # fmt: skip
        if rng.random() < 0.7:
            if self.is_bounded and arguments[-1] in ((host, 4000, 0, 0), [host, 4000]):
                return  # another spelling is another address to one plane: it counts messages then
            self.both(f"sendto {name} {arguments}", lambda s: s.mailboxes[name].sendto(*arguments))
            return
        taking = rng.choice([(10, int(MessageFlag.OOB)), (10, int(MessageFlag.ERRQUEUE)),
            (10, 1 << 40), (10, int(MessageFlag.TRUNC)), ()])  # fmt: skip
        self.both(f"recvfrom {name} {taking}", lambda s: s.mailboxes[name].recvfrom(*taking))

    # -- choices

    def _mailbox(self) -> str:
        return self.rng.choice(["x", "x", "x", "y", "y", "z"])

    def _target(self) -> tuple[str, int]:
        peer = self.rng.choice([PEER, PEER, PEER, OTHER, LOCAL, SECOND])
        ports = [5000, 5001, 7000, 0] if peer == LOCAL else [6000, 7000, 0]
        return str(peer), self.rng.choice([4000, 4000, 4001] if peer in {PEER, OTHER} else ports)

    def _payload(self) -> bytes:
        rng = self.rng
        byte_count = rng.choice([0, 1, 64, 64, 64, 70, 71, 300, 1500, 4096, 8191, 8192, 30_000])
        if rng.random() < _HUGE_CHANCE:
            byte_count = rng.choice([(1 << 20) - 48, 1 << 20, (1 << 20) + 1, (2 << 20) + 1])
        return rng.randbytes(4) * (byte_count // 4) + bytes(byte_count % 4)


_STEPS: Final = [
    Crossing._send, Crossing._burst, Crossing._take, Crossing._take_all, Crossing._say,
    Crossing._turn, Crossing._stream, Crossing._control, Crossing._path, Crossing._mailbox_call,
    Crossing._odd,
]  # fmt: skip
_SENDING: Final = [Crossing._send, Crossing._burst, Crossing._odd]
_WEIGHTS: Final = [20, 5, 15, 5, 22, 14, 4, 2, 3, 4, 1]


def cross(seed: int, cases: int, one: MakePlane, other: MakePlane) -> int:
    """Make worlds from `seed` on until there were so many cases; return how many there were."""
    done = 0
    with reading_alike():
        while done < cases:
            done += Crossing(seed, one, other).run()
            seed += 1
    return done


def main() -> int:
    """Compare two planes for as long as asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first world")
    parser.add_argument("--planes", nargs=2, default=list(PLANES), choices=list(PLANES))
    arguments = parser.parse_args()
    began_s = time.monotonic()
    one, other = (PLANES[name] for name in arguments.planes)
    cases = cross(arguments.seed, arguments.cases, one, other)
    print(f"{cases} cases alike in {time.monotonic() - began_s:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
