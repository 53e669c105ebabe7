"""What a connection knows of its peer, and how a handshake changes it: values.

The mark of a probe or its answer identifies an own node; no mark, or no answer, means Linux.
Between own nodes a generation per start tells a restart. The data plane sees a kernel's restart,
before the duplicate rule; here it only means that the next handshake counts afresh.
"""

from __future__ import annotations

from typing import Final

from urds.common.records import record, replace
from urds.rds.constants import (
    MAX_MESSAGE_BYTES,
    MESSAGE_DOUBLINGS_MAX,
    MESSAGE_DOUBLINGS_SHIFT,
    Capability,
)
from urds.rds.control.events import PeerKind, ReleaseRule
from urds.rds.control.paths import agreed_npaths
from urds.rds.control.settings import ConnectionSettings
from urds.rds.wire.extensions import Handshake, Mark, emit_handshake

_NONE: Final = Capability(0)
_FLAGS: Final = Capability((1 << MESSAGE_DOUBLINGS_SHIFT) - 1)
_PAYLOAD_BYTES_MAX: Final = (1 << 32) - 1  # the header's limit


@record
class PeerFacts:
    """A peer as far as it is known."""

    kind: PeerKind = PeerKind.UNKNOWN
    npaths: int = 1  # what both sides can use
    generation: int | None = None
    sport_index: bool = False  # its TCP source ports carry the path index
    capabilities: Capability = _NONE  # of both sides
    message_bytes_max: int = MAX_MESSAGE_BYTES  # what both sides take; a kernel takes 1 MiB
    stale: bool = False  # it restarted: the number of paths counts afresh

    @property
    def release(self) -> ReleaseRule:
        """What frees a message that was sent to it."""
        if self.kind is PeerKind.UNKNOWN:
            return ReleaseRule.NOT_YET
        if Capability.ACKNOWLEDGEMENTS in self.capabilities:
            return ReleaseRule.PEER_ACKNOWLEDGED
        return ReleaseRule.STREAM_ACKNOWLEDGED

    @property
    def checksum(self) -> bool:
        """Whether every header carries its checksum."""
        return Capability.CHECKSUM in self.capabilities

    @property
    def agreement(self) -> tuple[ReleaseRule, bool, int]:
        """The peer's facts that paths need: release, checksum, longest message."""
        return self.release, self.checksum, self.message_bytes_max

    def has_restarted(self, handshake: Handshake) -> bool:
        """Tell whether an own node restarted; the first generation seen is no restart."""
        return (
            self.kind is PeerKind.URDS
            and handshake.mark is not None
            and None not in (self.generation, handshake.generation)
            and self.generation != handshake.generation
        )

    def learn(self, handshake: Handshake, settings: ConnectionSettings) -> PeerFacts:
        """Return what is known after a handshake.

        The number of paths never shrinks during a generation of the peer.
        """
        kind = PeerKind.URDS if handshake.mark else PeerKind.LINUX
        afresh = self.stale or kind is not self.kind or self.has_restarted(handshake)
        count = agreed_npaths(settings.npaths, handshake.npaths)
        generation = handshake.generation
        if generation is None and kind is self.kind:
            # A probe of an own node that does not know this one has none.
            generation = self.generation
        return PeerFacts(
            kind=kind,
            npaths=count if afresh else max(count, self.npaths),
            generation=generation,
            # The mark implies it: own nodes connect from ports that carry the index.
            sport_index=handshake.sport_index or handshake.mark is not None,
            capabilities=_shared(settings.capabilities, handshake.mark),
            message_bytes_max=_shared_message_bytes(settings.message_bytes_max, handshake.mark),
        )

    def taken_for_linux(self) -> PeerFacts:
        """Return what is known of a peer that stayed silent: one path, TCP's acknowledgements."""
        return PeerFacts(kind=PeerKind.LINUX, npaths=self.npaths, sport_index=self.sport_index)

    def restarted(self) -> PeerFacts:
        """Return what is known of a kernel after the plane saw its restart."""
        return replace(self, stale=True)


def emit_ours(settings: ConnectionSettings, *, generation: bool, sport_index: bool) -> bytes:
    """Return this node's handshake, 16 bytes; the generation is for own nodes only.

    A kernel that sees a new generation drops what it has in flight, and loses it if the stream
    breaks then. Source: docs/reference/linux-peer-notes.md 3 rule 6 (observed with linux v6.1 to
    v7.2).
    """
    return emit_handshake(
        Handshake(
            npaths=settings.npaths,
            generation=settings.generation if generation else None,
            sport_index=sport_index,
            mark=Mark(settings.capabilities | _announced(settings.message_bytes_max)),
        )
    )


def _shared(ours: Capability, mark: Mark | None) -> Capability:
    return ours & mark.capabilities & _FLAGS if mark else _NONE


def _announced(message_bytes_max: int) -> Capability:
    """Return the bits of the longest message that this node takes: 1 MiB, doubled."""
    doublings = ((message_bytes_max + 1) // MAX_MESSAGE_BYTES).bit_length() - 1
    return Capability(min(max(0, doublings), MESSAGE_DOUBLINGS_MAX) << MESSAGE_DOUBLINGS_SHIFT)


def _shared_message_bytes(ours: int, mark: Mark | None) -> int:
    """Return the longest message that both sides take."""
    if mark is None:
        return min(ours, MAX_MESSAGE_BYTES)
    doublings = min(int(mark.capabilities) >> MESSAGE_DOUBLINGS_SHIFT, MESSAGE_DOUBLINGS_MAX)
    return min(ours, MAX_MESSAGE_BYTES << doublings, _PAYLOAD_BYTES_MAX)
