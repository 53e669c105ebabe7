"""Numbers that address and path arithmetic share: order, port hash, source ports.

A socket sends all its messages over one path, chosen by a hash of its port; the receiver takes any
message on any path. Linux hashes with Bob Jenkins' lookup3 (public domain) for one word. Source:
linux v6.12 net/rds/send.c (rds_send_mprds_hash), include/linux/jhash.h; examples in
docs/reference/rds.md 1.8.
"""

from collections.abc import Iterator
from typing import Final

from urds.common.records import record
from urds.common.types import IPAddress
from urds.rds.constants import PATHS_MAX

_MASK: Final = 0xFFFFFFFF
_LOOKUP3_START: Final = 0xDEADBEEF
_WORD_BYTES: Final = 4
_MAPPED_PREFIX: Final = bytes(10) + b"\xff\xff"


def address_bytes(address: IPAddress) -> bytes:
    """Return the 16 bytes by which addresses compare: IPv4 as v4-mapped, scope left out."""
    return _MAPPED_PREFIX + address.packed if address.version == 4 else address.packed


def port_hash(port: int) -> int:
    """Return lookup3's hash of one 32-bit word with the initial value 0.

    Linux draws its initial value once, but only for the first socket; all later ones use 0. Source:
    docs/reference/rds.md 1.8 (derived from linux v6.12).
    """
    start = (_LOOKUP3_START + _WORD_BYTES) & _MASK
    a, b, c = (start + port) & _MASK, start, start
    c = ((c ^ b) - _rotated(b, 14)) & _MASK
    a = ((a ^ c) - _rotated(c, 11)) & _MASK
    b = ((b ^ a) - _rotated(a, 25)) & _MASK
    c = ((c ^ b) - _rotated(b, 16)) & _MASK
    a = ((a ^ c) - _rotated(c, 4)) & _MASK
    b = ((b ^ a) - _rotated(a, 14)) & _MASK
    return ((c ^ b) - _rotated(b, 24)) & _MASK


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (32 - bits)) & _MASK


def path_of_port(port: int, npaths: int) -> int:
    """Return the index of the path of the socket bound to `port`; `npaths` is a power of two."""
    return port_hash(port) & (npaths - 1)


def agreed_npaths(ours: int, theirs: int | None) -> int:
    """Return how many paths both sides can use: the smaller number, down to a power of two.

    Linux takes the bare minimum; it and `urds` send powers of two only, since the hash is a mask.
    """
    least = max(1, min(ours, theirs or 1, PATHS_MAX))
    return 1 << (least.bit_length() - 1)


@record
class SourcePortRule:
    """TCP source ports of which the remainder by 8 is the index of the path.

    The accepting side takes `source port % npaths` for the path, so a port outside the rule would
    put the stream on another path: where no port is free, the attempt fails. A node with one path
    follows the rule too, for the peer may remember an earlier start of it with more. Source: linux
    v7.0 net/rds/tcp_connect.c.
    """

    index: int
    attempt: int  # of this path, counted; so that a port in TIME_WAIT is not met again at once

    def ports(self, *, range_low: int, range_high: int) -> Iterator[int]:
        """Yield every port of the rule in the range once, from the attempt's group of eight on.

        The caller tries the next one after EADDRINUSE or EADDRNOTAVAIL of `bind` or `connect`.
        """
        aligned = -(-range_low // PATHS_MAX) * PATHS_MAX
        groups = (range_high - aligned + 1) // PATHS_MAX
        for step in range(groups):
            yield aligned + (self.attempt + step) % groups * PATHS_MAX + self.index
