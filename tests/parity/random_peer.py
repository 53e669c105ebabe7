"""A peer that says random frames: mostly right ones, some repeats and restarts, few errors."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from tests.rds.plane.path_world import message
from urds.rds.constants import Capability, HeaderFlag
from urds.rds.wire.congestion_map import CongestionMap
from urds.rds.wire.extensions import Handshake, Mark, emit_handshake
from urds.rds.wire.header import HEADER_BYTES, Header

_NO_FLAG: Final = HeaderFlag(0)
_LENGTHS: Final = [0, 1, 64, 64, 64, 500, 2999, 8191, 8192, 20_000]
_REPEATABLE_MAX: Final = 40


class RandomPeer:
    """The numbers of one peer and what it has seen of ours."""

    def __init__(self, rng: random.Random, *, checksum: bool, ports: Sequence[int]) -> None:
        self.rng = rng
        self.seen = 0  # highest number of ours
        # The same on this stream. What is acknowledged before it is repeated is freed with the next
        # read, which one is each plane's own affair.
        self._seen_here = 0
        self._checksum = checksum
        self._ports = ports
        self._sequence = 1
        self._life = 1
        self._unread = b""

    def begin(self) -> None:
        """Begin to read another stream."""
        self._unread = b""
        self._seen_here = 0

    def read(self, data: bytes) -> None:
        """Note the numbers in whole frames of ours."""
        self._unread += data
        while len(self._unread) >= HEADER_BYTES:
            header = Header.parse(self._unread[:HEADER_BYTES], verify=False)
            end = HEADER_BYTES + header.payload_bytes
            if len(self._unread) < end:
                break
            self.seen = max(self.seen, header.sequence)
            self._seen_here = max(self._seen_here, header.sequence)
            self._unread = self._unread[end:]

    def say(self) -> tuple[str, bytes]:
        """Return the name of what is said, and its bytes."""
        said = self.rng.choices(_SAID, _WEIGHTS)[0]
        return said.__name__.strip("_"), said(self)

    def _frame(self, sequence: int, payload: bytes = b"", **fields: object) -> bytes:
        rng = self.rng
        fields = {
            "ack": self._seen_here if rng.random() < 0.3 else 0,
            "source_port": rng.choice([4000, 4000, 4001]),
            "target_port": rng.choice(self._ports),
            "checksum": self._checksum,
            **fields,
        }
        return message(sequence, payload, **fields)  # type: ignore[arg-type]  # fields of it

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence - 1

    def _payload(self) -> bytes:
        return self.rng.randbytes(2) * (self.rng.choice(_LENGTHS) // 2)

    # -- what is said

    def _plain(self) -> bytes:
        asks = self.rng.random() < 0.2
        flags = HeaderFlag.ACK_REQUIRED if asks else _NO_FLAG
        return self._frame(self._next(), self._payload(), flags=flags)

    def _run(self) -> bytes:
        payload, count = self._payload()[:600], self.rng.randrange(2, 60)
        port = self.rng.choice(self._ports)
        return b"".join(
            self._frame(self._next(), payload, target_port=port, source_port=4000, ack=0)
            for _ in range(count)
        )

    def _mixed(self) -> bytes:
        said = [self._plain, self._run, self._acknowledgement, self._map, self._repeat]
        return b"".join(self.rng.choice(said)() for _ in range(self.rng.randrange(2, 5)))

    def _extended(self) -> bytes:
        return self._frame(self._next(), b"extended", extension=self.rng.randbytes(16))

    def _repeat(self) -> bytes:
        """Repeat what a stream before may have carried."""
        first = max(1, self._sequence - self.rng.randrange(1, _REPEATABLE_MAX))
        flags = HeaderFlag.RETRANSMITTED
        return b"".join(
            self._frame(number, b"again", flags=flags) for number in range(first, self._sequence)
        )

    def _skip(self) -> bytes:
        self._sequence += self.rng.choice([1, 1000, 1 << 40])
        return self._plain()

    def _fall_back(self) -> bytes:
        self._sequence = max(1, self._sequence - self.rng.choice([1, 5, 1 << 41]))
        return self._plain()

    def _acknowledgement(self) -> bytes:
        here = self._seen_here
        ack = self.rng.choice([here, here, max(0, here - 2), 0])
        return self._frame(0, source_port=0, target_port=0, ack=ack)

    def _map(self) -> bytes:
        rng = self.rng
        ports = rng.choice([[], [], [4000], [4000, 4001, 9], [65535]])
        extension = bytes(16)
        if rng.random() < 0.5:
            self._life += rng.random() < 0.2
            mark = Mark(Capability(0))
            extension = emit_handshake(Handshake(generation=self._life, mark=mark))
        return self._frame(
            0,
            CongestionMap(ports).emit(),
            flags=HeaderFlag.CONG_BITMAP,
            source_port=0,
            target_port=0,
            extension=extension,
        )

    def _talk(self) -> bytes:
        """Say a probe, its answer, a ping, or a hello without a number."""
        rng = self.rng
        source, target = rng.choice([(1, 0), (0, 1), (4000, 0), (0, 5000)])
        generation = rng.choice([None, 1, 1, 2])
        mark = Mark(Capability(3)) if rng.random() < 0.3 else None
        extension = emit_handshake(Handshake(npaths=1, generation=generation, mark=mark))
        sequence = 0 if rng.random() < 0.4 else self._next()
        flags = rng.choice([_NO_FLAG, _NO_FLAG, HeaderFlag.RETRANSMITTED])
        return self._frame(
            sequence, source_port=source, target_port=target, extension=extension, flags=flags
        )

    def _flood(self) -> bytes:
        return b"".join(self._talk() for _ in range(self.rng.randrange(2, 90)))

    def _odd_flags(self) -> bytes:
        return self._frame(self._next(), b"odd", flags=HeaderFlag(self.rng.randrange(64)))

    def _odd_field(self) -> bytes:
        """Change one byte of a header; its checksum may be right again by being none."""
        frame = bytearray(self._frame(self._next(), b"odd"))
        frame[self.rng.randrange(HEADER_BYTES)] = self.rng.randrange(256)
        return bytes(frame)

    def _protocol_error(self) -> bytes:
        rng = self.rng
        protocol_error = rng.randrange(5)
        if protocol_error == 0:
            return self._frame(self._next(), ack=self.seen + rng.choice([1, 1 << 50]))
        if protocol_error == 1:
            payload_bytes = rng.choice([3001, 20_001, (1 << 20) + 1])
            return Header(sequence=self._next(), payload_bytes=payload_bytes).emit()
        if protocol_error == 2:
            data = bytes(rng.choice([0, 64, 8193]))
            flags = HeaderFlag.CONG_BITMAP
            return self._frame(0, data, flags=flags, source_port=0, target_port=0)
        if protocol_error == 3:
            return rng.randbytes(rng.randrange(1, 200))
        return message(self._next(), b"bad", source_port=4000, target_port=5000)[:-1]


_SAID: Final[list[Callable[[RandomPeer], bytes]]] = [
    RandomPeer._plain, RandomPeer._run, RandomPeer._mixed, RandomPeer._extended,
    RandomPeer._repeat, RandomPeer._skip, RandomPeer._fall_back, RandomPeer._acknowledgement,
    RandomPeer._map, RandomPeer._talk, RandomPeer._flood, RandomPeer._odd_flags,
    RandomPeer._odd_field, RandomPeer._protocol_error,
]  # fmt: skip
_WEIGHTS: Final = [40, 12, 8, 4, 5, 2, 2, 12, 5, 4, 0.5, 2, 1, 0.7]
