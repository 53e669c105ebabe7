"""Handshakes with a peer over TCP: what this node tells, and what it knows of the peer.

The mark of a probe or its answer identifies a urds node; no mark, or no answer, means Linux.
Between urds nodes a generation per start tells a restart. The data plane sees a kernel's restart,
before the duplicate rule; here it only means that the next handshake counts afresh.

Towards a known urds node, every new stream is held until both sides have exchanged *hellos*:
generation and highest received number. What follows from a handshake for streams and the number of
paths is in `tcp_peer`. Source: docs/reference/rds.md 1.8 (linux v6.12, v7.0);
docs/reference/linux-peer-notes.md 1, 3 (observed with linux v6.1, v6.12, v7.2).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from urds.common.records import record, replace
from urds.rds.constants import MAX_MESSAGE_BYTES, PING_PORT, PROBE_PORT, Capability
from urds.rds.control.events import (
    Agree,
    PeerKind,
    PeerKnown,
    PeerStartedAnew,
    Release,
    RememberHandshake,
    SendControl,
)
from urds.rds.control.paths import agreed_npaths
from urds.rds.control.settings import ConnectionSettings
from urds.rds.control.tcp_path import PeerContext, TcpPath
from urds.rds.numbers import MESSAGE_DOUBLINGS_MAX, MESSAGE_DOUBLINGS_SHIFT
from urds.rds.types import AckMode
from urds.rds.wire.extensions import Handshake, Mark, emit_handshake

_NO_EXTENSION: Final = bytes(16)
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
    def ack_mode(self) -> AckMode:
        """What frees a message that was sent to it."""
        if self.kind is PeerKind.UNKNOWN:
            return AckMode.NOT_YET
        if Capability.ACKNOWLEDGEMENTS in self.capabilities:
            return AckMode.PEER_ACKNOWLEDGED
        return AckMode.STREAM_ACKNOWLEDGED

    @property
    def checksum(self) -> bool:
        """Whether every header carries its checksum."""
        return Capability.CHECKSUM in self.capabilities

    @property
    def agreement(self) -> tuple[AckMode, bool, int]:
        """The peer's facts that paths need: acknowledgements, checksum, longest message."""
        return self.ack_mode, self.checksum, self.message_bytes_max

    def has_restarted(self, handshake: Handshake) -> bool:
        """Tell whether a urds node restarted; the first generation seen is no restart."""
        return (
            self.kind is not PeerKind.LINUX
            and handshake.mark is not None
            and None not in (self.generation, handshake.generation)
            and self.generation != handshake.generation
        )

    @property
    def has_only_map(self) -> bool:
        """Whether a map told that the peer is a urds node, and no handshake has."""
        return self.kind is PeerKind.UNKNOWN and self.generation is not None

    def learn(self, handshake: Handshake, settings: ConnectionSettings) -> PeerFacts:
        """Return what is known after a handshake.

        The number of paths never shrinks during a generation of the peer.
        """
        kind = PeerKind.URDS if handshake.mark else PeerKind.LINUX
        afresh = self.stale or kind is not self.kind or self.has_restarted(handshake)
        count = agreed_npaths(settings.npaths, handshake.npaths)
        generation = handshake.generation
        known = (kind, PeerKind.UNKNOWN) if kind is PeerKind.URDS else (kind,)
        if generation is None and self.kind in known:
            # A probe of a urds node that does not know this one has none.
            generation = self.generation
        return PeerFacts(
            kind=kind,
            npaths=count if afresh else max(count, self.npaths),
            generation=generation,
            # The mark implies it: urds nodes connect from ports that carry the index.
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


class Handshakes:
    """The handshakes with one peer: its identity, and what it was told on each stream."""

    __slots__ = ("_announced", "_context", "facts")

    def __init__(self, context: PeerContext, npaths: int) -> None:
        self._context = context
        self.facts = PeerFacts(npaths=npaths)
        self._announced = False  # SPORT_IDX was sent to this generation of the peer

    # -- what is sent

    def leading_probe(self, path: TcpPath) -> bytes | None:
        """Return the probe that goes with a new stream to a peer not known, ahead of all new.

        Behind that, a stream that is cut early would carry none, and the next one begins with
        retransmissions. A path that is held to its first hello takes only that, which `greet`
        sends; one that may have sent on earlier streams needs a number. A stream that only a urds
        node has begins with the hellos of both sides, which tell all that a probe asks for.
        """
        may_hear_hello = self._context.lower or self._context.settings.npaths > 1
        takes_hello = path.held and (may_hear_hello or self.facts.has_only_map)
        if takes_hello or path.acquainted or self.facts.kind is not PeerKind.UNKNOWN:
            return None
        path.probe_sent = True
        self._context.stats.probes += 1
        return self._ours(generation=False)

    def greet(self, path: TcpPath, now_ns: int) -> None:
        """Send the first frame on a new stream, unless it went with that."""
        if path.acquainted:
            self._context.stats.hellos += 1
            path.hello_sent = True
            self._send(path, PROBE_PORT, PING_PORT, self._ours(generation=True), hello=True)
        elif self.facts.kind is not PeerKind.LINUX:
            self.probe(path)  # a urds node is not introduced by it: the stream may be misplaced
        elif path.held:
            self.await_answer(path, now_ns)

    def probe(self, path: TcpPath) -> None:
        """Send a probe for the peer's identity, once per stream."""
        if path.probe_sent:
            return
        path.probe_sent = True
        self._context.stats.probes += 1
        # A held path takes only a hello. Its number 0 does no harm to a kernel peer: a path that
        # was held until now has sent nothing that could be retransmitted and delivered twice.
        self._send(path, PROBE_PORT, PING_PORT, self._ours(generation=False), hello=path.held)

    def probe_again(self, path: TcpPath, now_ns: int) -> None:
        """Send a probe on a stream that had one, and wait for its answer."""
        path.confirmed = path.probe_sent = False
        self.probe(path)
        self.await_answer(path, now_ns)

    def probe_liveness(self, path: TcpPath) -> None:
        """Probe a urds node, on the stream that it has."""
        # A hello is not sent again on a later stream, and it goes out at once; one without a
        # generation is answered whatever the peer has sent before.
        self._send(path, PROBE_PORT, PING_PORT, self._ours(generation=False), hello=True)

    def await_answer(self, path: TcpPath, now_ns: int) -> None:
        """Set the time at which the peer counts as silent."""
        path.await_answer(self._context.settings.handshake_wait_ns, now_ns)

    def answer(self, path: TcpPath, *, is_urds: bool) -> None:
        """Answer a probe, or the hello of a urds node."""
        self._send(path, PING_PORT, PROBE_PORT, self._ours(generation=is_urds), hello=is_urds)

    def answer_ping(self, path: TcpPath, port: int) -> None:
        """Answer a ping of a program."""
        self._send(path, PING_PORT, port, _NO_EXTENSION, hello=False)

    def _send(
        self, path: TcpPath, source_port: int, target_port: int, extension: bytes, *, hello: bool
    ) -> None:
        peer = self._context.peer
        self._context.emit(
            SendControl(peer, path.index, source_port, target_port, extension, hello)
        )

    def _ours(self, *, generation: bool) -> bytes:
        """Return this node's handshake. SPORT_IDX only answers a peer's own: older kernels log it.

        Source: linux v6.1, v6.12 (observed): "ignoring unknown exthdr type 0x8".
        """
        settings = self._context.settings
        announced = settings.npaths > 1 and self.facts.sport_index
        self._announced |= announced
        return emit_ours(settings, generation=generation, sport_index=announced)

    def has_to_announce(self) -> bool:
        """Tell whether a kernel must learn, before fan-out, that source ports carry the index."""
        told = self._announced or self._context.settings.npaths == 1
        from_index = self.facts.kind is PeerKind.LINUX and self.facts.sport_index
        return self._context.lower and from_index and not told

    def release(self, path: TcpPath, received_by_peer: int | None = None) -> None:
        """Let a held path send."""
        if path.held:
            path.held = False
            self._context.emit(Release(self._context.peer, path.index, received_by_peer))

    # -- what is known

    def note_map(self, generation: int) -> None:
        """Note what a first map told before any handshake did.

        Messages go out behind it. A peer may end with some of them before any of its handshakes
        has come, and is known by this generation when it is back.
        """
        if self.facts.kind is PeerKind.UNKNOWN and self.facts.generation is None:
            self.facts = replace(self.facts, generation=generation)

    def learn(self, handshake: Handshake) -> PeerFacts:
        """Note what the peer tells, and return what was known before; `tell_news` reports it."""
        before = self.facts
        self.facts = before.learn(handshake, self._context.settings)
        return before

    def take_for_linux(self) -> None:
        """Note that the peer stays silent."""
        before, self.facts = self.facts, self.facts.taken_for_linux()
        self.tell_news(before)

    def handle_restart(self) -> None:
        """Count a kernel's next handshake afresh: the plane saw that it restarted."""
        self._context.emit(PeerStartedAnew(self._context.peer))
        self.facts = self.facts.restarted()
        self._announced = False

    def tell_news(self, before: PeerFacts) -> None:
        """Report what is new about the peer."""
        facts, peer = self.facts, self._context.peer
        if facts.agreement != before.agreement:
            self._context.emit(Agree(peer, *facts.agreement))
        if facts.kind is PeerKind.LINUX and (
            before.kind is not PeerKind.LINUX or before.generation != facts.generation
        ):
            self._context.emit(RememberHandshake(peer, facts.generation))
        if (facts.kind, facts.npaths, facts.capabilities) != (
            before.kind, before.npaths, before.capabilities,
        ):  # fmt: skip
            self._context.emit(PeerKnown(peer, facts.kind, facts.npaths, facts.capabilities))

    def tell_new_paths(self) -> None:
        """Report to paths that were just made what the others have been told."""
        self._context.emit(Agree(self._context.peer, *self.facts.agreement))
        if self.facts.kind is PeerKind.LINUX:
            self._context.emit(RememberHandshake(self._context.peer, self.facts.generation))


@lru_cache(maxsize=16)  # the same for every peer
def emit_ours(settings: ConnectionSettings, *, generation: bool, sport_index: bool) -> bytes:
    """Return this node's handshake, 16 bytes; the generation is for urds nodes only.

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
