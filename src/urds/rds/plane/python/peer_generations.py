"""Which generation of the peer its maps and probes announce: a value machine."""

from __future__ import annotations

from urds.rds.constants import PROBE_PORT, HeaderFlag
from urds.rds.wire.extensions import parse_handshake

_RETRANSMITTED = int(HeaderFlag.RETRANSMITTED)

# Header fields in the order of wire.header.HEADER.
Fields = tuple[int, int, int, int, int, int, int, int, int, int, int]


class PeerGenerations:
    """The known present generation of the peer, by which a restart is detected.

    A urds node sends its generation in each map; a kernel sends one in each probe from linux v7.0
    on, and none before: then a second probe is a restart, unless it is the first one retransmitted.
    """

    __slots__ = ("generation", "map_generation", "probe_sequence")

    def __init__(self) -> None:
        self.probe_sequence: int | None = None  # of the last probe
        self.generation: int | None = None  # of a kernel
        self.map_generation: int | None = None  # in a urds node's maps

    def is_new_by_map(self, extension: bytes) -> bool:
        """Return whether a map carries another generation of a urds node; note it.

        The first one sent is no restart: towards a supposed kernel a node sends none.
        """
        handshake = parse_handshake(extension)
        if handshake.mark is None or handshake.generation is None:
            return False
        known, self.map_generation = self.map_generation, handshake.generation
        return known not in (None, handshake.generation)

    def is_new_by_probe(self, fields: Fields) -> bool:
        """Return whether a message is a probe of a restarted kernel; note its generation."""
        sequence, _, _, source_port, target_port, flags = fields[:6]
        if source_port != PROBE_PORT or target_port:
            return False
        handshake = parse_handshake(extension_of(fields))
        if handshake.mark is not None:
            return False  # a urds node sends it in its maps
        if handshake.generation is not None:
            # Noted here too: the next probe may come before the control plane has read this one.
            known, self.generation = self.generation, handshake.generation
            return known not in (None, handshake.generation)
        if self.probe_sequence is None:
            return False
        return not (flags & _RETRANSMITTED and sequence == self.probe_sequence)


def extension_of(fields: Fields) -> bytes:
    """Return the extension header of a frame, 16 bytes."""
    return (fields[9] << 64 | fields[10]).to_bytes(16, "big")
