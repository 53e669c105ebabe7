"""Random changes of octets, for runs without atheris: no coverage guides them, the seed decides."""

import random
from collections.abc import Sequence

OCTETS_MAX = 4096
_CHANGES_MAX = 8
_NUMBERS = (0, 1, 0x7F, 0x80, 0xFF)


def mutate(octets: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    """Return octets with one to eight changes: bits, octets, numbers, pieces moved or repeated."""
    found = bytearray(octets)
    for _ in range(chance.choice((1, 1, 2, 3, _CHANGES_MAX))):
        _change(found, others, chance)
    return bytes(found[:OCTETS_MAX])


def _change(octets: bytearray, others: Sequence[bytes], chance: random.Random) -> None:
    start = chance.randrange(len(octets) + 1)
    end = min(len(octets), start + chance.choice((1, 2, 4, 8, chance.randrange(1, 128))))
    kind = chance.randrange(7)
    if kind == 0 and start < len(octets):
        octets[start] ^= 1 << chance.randrange(8)
    elif kind == 1 and start < len(octets):
        octets[start] = chance.choice((*_NUMBERS, chance.randrange(256)))
    elif kind == 2:
        octets[start:end] = chance.randbytes(end - start)
    elif kind == 3:
        del octets[start:end]
    elif kind == 4:
        octets[start:start] = octets[start:end] * chance.choice((1, 1, 3, 20))
    elif kind == 5:
        octets[start:end] = (chance.choice(_NUMBERS),) * (end - start)
    else:
        other = chance.choice(others)
        place = chance.randrange(len(other) + 1)
        octets[start:start] = other[place : place + chance.randrange(1, 256)]
