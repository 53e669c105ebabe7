"""How a new life of the peer shows in what it sends: by its maps or by its probes.

A value machine. An own node says its life in each map; a kernel says a generation in each probe
from linux v7.0 on, and before that nothing: then a second probe means a new life, unless it is the
first one repeated. See docs/adr/0008-the-map-tells-the-life.md and docs/protocol/rds-tcp.md.
"""

from __future__ import annotations

from urds.constants import HeaderFlag
from urds.wire.exthdr import parse_handshake

RETRANSMITTED = int(HeaderFlag.RETRANSMITTED)
PROBE_PORT = 1

# Header fields in the order of wire.header.HEADER.
Fields = tuple[int, int, int, int, int, int, int, int, int, int, int]


class PeerLives:
    """What is known of the peer's present life."""

    __slots__ = ("generation", "life", "probe_sequence")

    def __init__(self) -> None:
        self.probe_sequence: int | None = None  # of the last probe
        self.generation: int | None = None  # a kernel's
        self.life: int | None = None  # the generation in an own node's maps

    def is_new_by_map(self, extension: bytes) -> bool:
        """Tell whether a map tells another life of an own node; note the one it tells.

        A first word on it begins no life: a node that took us for a kernel kept it to itself.
        """
        handshake = parse_handshake(extension)
        if handshake.mark is None or handshake.generation is None:
            return False
        known, self.life = self.life, handshake.generation
        return known not in (None, handshake.generation)

    def is_new_by_probe(self, fields: Fields) -> bool:
        """Tell whether a message is a probe of a kernel that began anew; note its generation."""
        sequence, _, _, source_port, target_port, flags = fields[:6]
        if source_port != PROBE_PORT or target_port:
            return False
        handshake = parse_handshake(extension_of(fields))
        if handshake.mark is not None:
            return False  # an own node tells in its maps
        if handshake.generation is not None:
            # Noted here too: the next probe may come before the control plane has read this one.
            known, self.generation = self.generation, handshake.generation
            return known not in (None, handshake.generation)
        if self.probe_sequence is None:
            return False
        return not (flags & RETRANSMITTED and sequence == self.probe_sequence)


def extension_of(fields: Fields) -> bytes:
    """Return the extension header of a frame, 16 octets."""
    return (fields[9] << 64 | fields[10]).to_bytes(16, "big")
