"""Random changes of bytes, for runs without atheris: no coverage guides them, the seed decides."""

import random
from collections.abc import Sequence

BYTES_MAX = 4096
_CHANGES_MAX = 8
_NUMBERS = (0, 1, 0x7F, 0x80, 0xFF)


def mutate(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """Return bytes with one to eight changes: bits, bytes, numbers, pieces moved or copied."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3, _CHANGES_MAX))):
        _change(found, others, rng)
    return bytes(found[:BYTES_MAX])


def _change(data: bytearray, others: Sequence[bytes], rng: random.Random) -> None:
    start = rng.randrange(len(data) + 1)
    end = min(len(data), start + rng.choice((1, 2, 4, 8, rng.randrange(1, 128))))
    kind = rng.randrange(7)
    if kind == 0 and start < len(data):
        data[start] ^= 1 << rng.randrange(8)
    elif kind == 1 and start < len(data):
        data[start] = rng.choice((*_NUMBERS, rng.randrange(256)))
    elif kind == 2:
        data[start:end] = rng.randbytes(end - start)
    elif kind == 3:
        del data[start:end]
    elif kind == 4:
        data[start:start] = data[start:end] * rng.choice((1, 1, 3, 20))
    elif kind == 5:
        data[start:end] = (rng.choice(_NUMBERS),) * (end - start)
    else:
        other = rng.choice(others)
        place = rng.randrange(len(other) + 1)
        data[start:start] = other[place : place + rng.randrange(1, 256)]
