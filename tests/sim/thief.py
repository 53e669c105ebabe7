"""A process in the network that connects from the address of a peer that lives."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from tests.sim.flows import number_of
from tests.sim.world import MS, Socket
from urds.rds.constants import PROBE_PORT, Capability, HeaderFlag
from urds.rds.wire.congestion_map import CongestionMap
from urds.rds.wire.extensions import Handshake, Mark, emit_handshake
from urds.rds.wire.header import HEADER_BYTES, Header

if TYPE_CHECKING:
    from tests.sim.own_node import OwnNode

_MARK = Mark(Capability.ACKNOWLEDGEMENTS | Capability.CHECKSUM | Capability.GENERATION_HELLO)


class Thief:
    """Connects to a node as its peer, and says to be another start of it, a kernel, or nothing."""

    def __init__(self, victim: OwnNode) -> None:
        self._victim = victim
        self._world = victim.world
        self.taken = 0  # messages that it was handed
        self.connects = 0

    def connect(self) -> None:
        """Come once, for any path, and leave some time later."""
        victim, random = self._victim, self._world.random
        self.connects += 1
        port = 40_000 + random.randrange(32)
        victim.network.connect(victim.peer, victim.local, port, self._say)

    def _say(self, socket: Socket | None) -> None:
        if socket is None:
            return
        random = self._world.random
        generation = random.choice([None, random.randrange(1, 1 << 32)])
        mark = _MARK if generation is not None else None
        told = Handshake(npaths=random.choice([1, 2, 8]), generation=generation, mark=mark)
        extension = emit_handshake(told)
        ports = random.choice([(PROBE_PORT, 0), (0, PROBE_PORT)])
        frames = [
            # Without its generation: a plane believes that of a path's first map, see ADR 19.
            _frame((0, 0), bytes(16), CongestionMap(set()).emit(), HeaderFlag.CONG_BITMAP),
            *(_frame(ports, extension) for _ in range(random.randrange(3))),
        ]
        data = b"".join(frames[: random.randrange(len(frames) + 1)])
        got = bytearray()
        socket.on_change = lambda: self._read(socket, got)
        if data:
            with suppress(OSError):  # refused at once
                socket.sendmsg([data])
        self._world.after(self._world.some(400 * MS), lambda: self._leave(socket, got))

    def _read(self, socket: Socket, got: bytearray) -> None:
        with suppress(OSError):
            while data := socket.recv(1 << 16):
                got += data

    def _leave(self, socket: Socket, got: bytearray) -> None:
        self._read(socket, got)
        self.taken += _messages(bytes(got))
        socket.reset()


def _frame(
    ports: tuple[int, int],
    extension: bytes,
    payload: bytes = b"",
    flags: int = 0,
) -> bytes:
    header = Header(
        sequence=0,
        ack=0,
        payload_bytes=len(payload),
        source_port=ports[0],
        target_port=ports[1],
        flags=HeaderFlag(flags),
        extension=extension,
    )
    return header.emit() + payload


def _messages(data: bytes) -> int:
    """Count the whole messages of sockets in what a node sent."""
    count = 0
    while len(data) >= HEADER_BYTES:
        header = Header.parse(data[:HEADER_BYTES], verify=False)
        payload = data[HEADER_BYTES : HEADER_BYTES + header.payload_bytes]
        if header.target_port > PROBE_PORT and len(payload) == header.payload_bytes:
            number_of(payload)
            count += 1
        data = data[HEADER_BYTES + header.payload_bytes :]
    return count
