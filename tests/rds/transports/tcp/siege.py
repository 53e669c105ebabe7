"""Attacks on a node over TCP, each in a process of its own beside an honest pair of processes.

`python -m tests.rds.transports.tcp.siege NAME TARGET HOW_MANY` attacks until its input ends, as
fast as one
process can, unless the name of the attack says a rate. A `Siege` is the victim, its neighbour, and
whatever attacks.
"""

from __future__ import annotations

import argparse
import select
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import cycle
from random import Random
from typing import Any, Final

from tests.health.sources import ROOT
from tests.rds.transports.tcp.faults import reset
from tests.rds.transports.tcp.frames import emit_frame, emit_map
from tests.rds.transports.tcp.nodes import PORT
from tests.rds.transports.tcp.processes import NodeProcess
from urds.rds.constants import MAX_MESSAGE_BYTES, PROBE_PORT, RDS_TCP_PORT, Capability, HeaderFlag
from urds.rds.wire.extensions import Handshake, Mark, emit_handshake

UNBOUND_PORT: Final = 9
_FLOOD_FRAMES: Final = 500  # in one write
_UNDER_WAY_MAX: Final = 10_000  # attempts to connect at once
_BIND_ADDRESS_NO_PORT: Final = 24  # Source: linux v6.12 include/uapi/linux/in.h


def is_over(wait_s: float = 0.0) -> bool:
    """Tell whether the attack is to end: the input has."""
    return bool(select.select([sys.stdin], [], [], wait_s)[0])


# -- single connections


def begin_connect(source: str, target: str) -> socket.socket:
    """Begin to connect from an address, as its host would."""
    connection = socket.socket()
    connection.setsockopt(socket.IPPROTO_IP, _BIND_ADDRESS_NO_PORT, 1)
    connection.bind((source, 0))
    connection.setblocking(False)
    connection.connect_ex((target, RDS_TCP_PORT))
    return connection


def connect(source: str, target: str) -> socket.socket:
    """Connect from an address and say the first word of a kernel: the map."""
    connection = begin_connect(source, target)
    connection.settimeout(5.0)
    select.select([], [connection], [], 5.0)
    connection.sendall(emit_map())
    return connection


def keep_sending(make: Callable[[], bytes], source: str, target: str) -> None:
    """Send the same bytes again and again on one connection; what comes back is read.

    A connection that is cut is made anew.
    """
    data = make()
    while not is_over():
        with suppress(OSError):
            connection = connect(source, target)
            try:
                _send_until_cut(connection, data)
            finally:
                reset(connection)


def _send_until_cut(connection: socket.socket, data: bytes) -> None:
    connection.setblocking(False)
    view, offset = memoryview(data), 0
    while not is_over():
        readable, writable, _ = select.select([connection], [connection], [], 0.05)
        if readable and not connection.recv(1 << 18):
            return
        if writable:
            with suppress(BlockingIOError):
                offset += connection.send(view[offset : offset + (1 << 18)])
            offset %= len(data)


def small_frames(target_port: int, payload: bytes = b"") -> bytes:
    """Return many frames without a flag; their number falls back at each turn, as Linux allows."""
    frame = partial(emit_frame, payload, source_port=7, target_port=target_port)
    return b"".join(frame(sequence=1 + number) for number in range(_FLOOD_FRAMES))


def probe_frames() -> bytes:
    """Return handshakes, each with another generation, as of a kernel that restarts each time."""
    frames = []
    for number in range(_FLOOD_FRAMES):
        extension = emit_handshake(Handshake(npaths=1, generation=number + 1))
        frames.append(emit_frame(sequence=1 + number, source_port=PROBE_PORT, extension=extension))
    return b"".join(frames)


def random_headers() -> bytes:
    """Return headers with random fields, the same in each run; none announces a payload."""
    rng = Random(17)
    draw = rng.getrandbits
    return b"".join(
        emit_frame(
            sequence=draw(64),
            ack=draw(64),
            source_port=draw(16),
            target_port=draw(16),
            flags=draw(8) & ~HeaderFlag.CONG_BITMAP,  # a map of no bytes ends the connection
            extension=rng.randbytes(16),
        )
        for _ in range(_FLOOD_FRAMES)
    )


def burn() -> None:
    """Keep a processor busy without touching the victim: what the others are compared with."""
    while not is_over():
        sum(range(100_000))


def break_rules(data: bytes, sources: list[str], target: str, per_s: float) -> None:
    """Connect, break the protocol, and come again, from many addresses."""
    for source in _paced(cycle(sources), per_s):
        with suppress(OSError):
            connection = connect(source, target)
            with suppress(OSError):
                connection.sendall(data)
                select.select([connection], [], [], 1.0)
            reset(connection)


def _paced(items: Iterator[str], per_s: float) -> Iterator[str]:
    """Give items until the end, so many in a second; 0 is as fast as they are taken."""
    began_s = time.monotonic()
    for number, item in enumerate(items):
        wait_s = began_s + number / per_s - time.monotonic() if per_s else 0.0
        if is_over(max(0.0, wait_s)):
            return
        yield item


# -- crowds


def crowd(sources: list[str], target: str, *, greeting: bytes, per_s: float, each_max: int) -> None:
    """Open connections from all addresses in turn and hold them; one byte a second on each.

    With a greeting they say it once and rest. What the victim closes is opened anew, until each
    address has opened `each_max`.
    """
    poll, open_now = select.epoll(), {}
    under_way: deque[socket.socket] = deque()
    next_drip_s = time.monotonic() + 1.0
    for source in _paced(_rounds(sources, each_max), per_s):
        while len(under_way) >= _UNDER_WAY_MAX:
            _settle(poll, open_now, under_way, greeting, wait_s=0.01)
        with suppress(OSError):
            connection = begin_connect(source, target)
            open_now[connection.fileno()] = connection
            under_way.append(connection)
            poll.register(connection, select.EPOLLOUT | select.EPOLLIN)
        _settle(poll, open_now, under_way, greeting, wait_s=0.0)
        if not greeting and time.monotonic() > next_drip_s:
            next_drip_s += 1.0
            _drip(open_now)
    while not is_over(0.2):
        _settle(poll, open_now, under_way, greeting, wait_s=0.0)
        if not greeting and time.monotonic() > next_drip_s:
            next_drip_s += 1.0
            _drip(open_now)
    for connection in open_now.values():
        reset(connection)


def _rounds(sources: list[str], each_max: int) -> Iterator[str]:
    for _ in range(each_max):
        yield from sources


def _settle(
    poll: select.epoll,
    open_now: dict[int, socket.socket],
    under_way: deque[socket.socket],
    greeting: bytes,
    wait_s: float,
) -> None:
    """Greet on connections that stand, forget those that were closed."""
    for descriptor, mask in poll.poll(wait_s, 256):
        connection = open_now[descriptor]
        with suppress(ValueError):
            under_way.remove(connection)
        try:
            if mask & (select.EPOLLERR | select.EPOLLHUP):
                raise ConnectionError
            if mask & select.EPOLLOUT:
                connection.send(greeting or b"\0")
                poll.modify(descriptor, select.EPOLLIN)
            elif not connection.recv(1 << 14):
                raise ConnectionError
        except OSError:
            del open_now[descriptor]
            poll.unregister(descriptor)
            reset(connection)


def _drip(open_now: dict[int, socket.socket]) -> None:
    for connection in open_now.values():
        with suppress(OSError):
            connection.send(b"\0")


def tell_lives(source: str, target: str) -> None:
    """Say on one connection, again and again, to be a urds node that has restarted."""
    mark = Mark(Capability.ACKNOWLEDGEMENTS | Capability.CHECKSUM | Capability.GENERATION_HELLO)
    lives = (
        emit_handshake(Handshake(npaths=1, generation=generation, mark=mark))
        for generation in range(1, 2 + _FLOOD_FRAMES)
    )
    frames = [emit_frame(source_port=1, extension=extension) for extension in lives]
    keep_sending(lambda: b"".join(frames), source, target)


# -- the list


def _hosts(target: str, many: int) -> list[str]:
    """Return so many addresses below the target's: of its /24, or of a /16 of their own."""
    if many <= 240:
        return [f"{target.rpartition('.')[0]}.{last}" for last in range(5, 5 + many)]
    third = range(2 + many // 250)
    return [f"127.7.{one}.{last}" for one in third for last in range(1, 251)][:many]


_TOO_LONG = emit_frame(payload_bytes=(1 << 32) - 1, target_port=PORT)


def _large() -> bytes:
    return emit_frame(bytes(MAX_MESSAGE_BYTES), sequence=1, source_port=7, target_port=PORT)


def attack(name: str, target: str, how_many: int) -> None:
    """Do one attack of `ATTACKS` until the input ends; crowds are of `how_many` connections."""
    near = _hosts(target, 240)
    each = 1 + how_many // len(near)
    attacks: dict[str, Callable[[], None]] = {
        "lengths": partial(break_rules, _TOO_LONG, near, target, 0),
        "lengths-100": partial(break_rules, _TOO_LONG, near, target, 100),
        "slow-loris": partial(crowd, near, target, greeting=b"", per_s=0, each_max=each),
        "slow-loris-500": partial(crowd, near, target, greeting=b"", per_s=500, each_max=each),
        "congested": partial(keep_sending, _large, near[0], target),
        "unbound": partial(keep_sending, lambda: small_frames(UNBOUND_PORT), near[0], target),
        "pings": partial(keep_sending, lambda: small_frames(0), near[0], target),
        "maps": partial(keep_sending, emit_map, near[0], target),
        "lives": partial(tell_lives, near[0], target),
        "probes": partial(keep_sending, probe_frames, near[0], target),
        "bad-headers": partial(keep_sending, random_headers, near[0], target),
        "burn": burn,
        "peers": partial(
            crowd, _hosts(target, how_many), target, greeting=emit_map(), per_s=0, each_max=1
        ),
    }
    print("under way", flush=True)
    attacks[name]()


ATTACKS: Final = (
    "burn", "pings", "probes", "maps", "lives", "bad-headers", "unbound", "congested", "lengths",
    "lengths-100", "slow-loris", "slow-loris-500", "peers",
)  # fmt: skip


class Siege:
    """A victim and its neighbour in processes of their own."""

    name = "tcp"

    def __init__(
        self,
        address: Callable[[int], str],
        *,
        environ: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        self.victim = NodeProcess(address(250), environ=environ, **settings)
        self.neighbour = NodeProcess(address(1), environ=environ)
        self.victim.ask("serve_echo")
        self.others_are_well(20)

    def others_are_well(self, count: int, payload_bytes: int = 100) -> list[int]:
        """Exchange messages between the two; return the ns that each round trip took."""
        took_ns: list[int] = self.neighbour.ask(
            "talk", target=self.victim.address, count=count, payload_bytes=payload_bytes
        )
        return took_ns

    @contextmanager
    def under(self, name: str, how_many: int = 10_000) -> Iterator[None]:
        """Have an attack on the victim go on meanwhile."""
        with under_way(name, self.victim.address, how_many):
            yield

    def close(self) -> None:
        """End everything."""
        self.neighbour.close()
        self.victim.close()


@contextmanager
def under_way(name: str, target: str, how_many: int) -> Iterator[None]:
    """Have a process attack a node meanwhile."""
    command = [sys.executable, "-m", "tests.rds.transports.tcp.siege", name, target, str(how_many)]
    environ = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None and process.stdout.readline()
        yield
    finally:
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def main() -> None:
    """Attack as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("target")
    parser.add_argument("how_many", type=int)
    arguments = parser.parse_args()
    attack(arguments.name, arguments.target, arguments.how_many)


if __name__ == "__main__":
    main()
