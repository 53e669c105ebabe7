"""One ordered stream to a peer, as a value machine: octets and calls go in, octets come out.

`PathCore` joins the two directions: what is received acknowledges what was sent, what is sent
carries the acknowledgement of what was received. It knows nothing of sockets, threads or clocks;
the shell (`dataplane.reference.plane`) and the simulator drive it with the same calls:

    attach, detach         a stream came, a stream went
    receive_data           octets off the stream
    poll_transmit, transmitted
                           octets for the stream, and how many of them it took
    handle_stream_acknowledged, poll_timeout, handle_timeout

Order on a fresh stream: our congestion map; the hello, if any; then, once not held, repeats and
new messages. Acknowledgements and maps are not numbered and stand between whole messages only.

Numbers belong to a life of the node that gave them. The header of a map tells the life, so that the
first octets of a stream say whose numbers follow; and nothing acknowledges before the peer's first
frame, which says whose numbers it would be about. See docs/adr/0008-the-map-tells-the-life.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from urds.constants import PROBE_PORT, Capability, HeaderFlag
from urds.dataplane.base import Buffer, DownReason, Hold, Limits, Release, SocketAddress
from urds.dataplane.reference.counters import Counters
from urds.dataplane.reference.inbox import Inbox
from urds.dataplane.reference.incoming import Incoming
from urds.dataplane.reference.outgoing import REFERENCE_BYTES, Fence, Outgoing, Owner
from urds.dataplane.reference.rare_frames import emit_header, emit_map
from urds.wire.exthdr import Handshake, Mark, emit_handshake

_WRITE_BYTES = 65536
# Long messages travel as buffers of their own, so a write costs by their number: more of them fit.
LONG_WRITE_BYTES = 524288
_NO_EXTENSION = b""
_NO_CAPABILITY = Capability(0)


class PathCore:
    """State of one path; no locks, whoever drives it serialises the calls."""

    def __init__(
        self,
        limits: Limits,
        counters: Counters,
        *,
        sequence_first: int,
        generation: int | None = None,
        inboxes: Mapping[int, Inbox],
        source_of: Callable[[int], SocketAddress],
        map_octets: Callable[[], bytes],
        wall_ns: Callable[[], int] = lambda: 0,
    ) -> None:
        self.limits = limits
        self.counters = counters
        self.outgoing = Outgoing(limits, counters, sequence_first=sequence_first)
        self.incoming = Incoming(
            limits, counters, inboxes=inboxes, source_of=source_of, wall_ns=wall_ns
        )
        self._map_octets = map_octets
        self._life = _NO_EXTENSION
        if generation is not None:
            self._life = emit_handshake(Handshake(generation=generation, mark=Mark(_NO_CAPABILITY)))
        self.attached = False
        self.hold = Hold.NOTHING
        self.map_due = False
        self._hellos: dict[tuple[int, int], bytes] = {}  # ports to extension
        self._out: list[Buffer] = []
        self._out_octets = 0
        self.octets_written = 0  # handed to the current stream
        self._owed_since_ns: int | None = None

    # -- the stream comes and goes

    def attach(self, hold: Hold) -> None:
        """Begin a stream with our congestion map; nothing else leaves while held."""
        assert not self.attached, "the shell detaches first"
        self.attached = True
        self.hold = hold
        self.map_due = True
        self._hellos.clear()
        self.octets_written = 0
        self.incoming.begin_stream()

    def detach(self) -> None:
        """End the stream: what is unacknowledged will be repeated, what is partial is forgotten."""
        self.attached = False
        self.hold = Hold.NOTHING
        self.map_due = False
        self._hellos.clear()
        self._out.clear()
        self._out_octets = 0
        self._owed_since_ns = None
        self.outgoing.end_stream()
        self.incoming.end_stream()
        self.counters.conn_reset += 1

    def release(self, received_by_peer: int | None) -> None:
        """End `Hold.RELEASE`; what the peer says it has is not repeated."""
        if received_by_peer is not None:
            self.outgoing.forget_repeats(received_by_peer)
        if self.hold is Hold.RELEASE:
            self.hold = Hold.NOTHING

    def agree(self, *, release: Release, checksum: bool) -> None:
        """Set what the handshake found out about the peer."""
        own_node = release is Release.PEER_ACKNOWLEDGED
        self.outgoing.plain = False
        self.outgoing.release = release
        self.outgoing.checksum = checksum
        self.incoming.checksum = checksum
        self.incoming.acknowledging = own_node
        self.incoming.watch_restarts = not own_node
        # What arrived before the agreement was not counted as owed; tell it at once. The peer may
        # have done so already.
        self.incoming.acknowledgement_due = own_node and self.incoming.frames > 0
        if own_node and self.incoming.acknowledged:
            self.outgoing.handle_peer_acknowledged(self.incoming.acknowledged)

    def restart_peer(self) -> int:
        """Begin a new life of the peer; return how many messages its old life took with it."""
        self.incoming.restart_peer()
        return self.outgoing.drop_handed_over()

    # -- what goes out

    def send(
        self,
        owner: Owner,
        source_port: int,
        target_port: int,
        payload: Buffer,
        extension: bytes = b"",
    ) -> None:
        """Queue a message of a socket; the caller has checked every bound."""
        self.outgoing.queue(owner, source_port, target_port, payload, extension)

    def control(self, *, source_port: int, target_port: int, extension: bytes, hello: bool) -> None:
        """Queue a message of the control plane.

        A hello waits for the peer's first frame; it replaces one of its ports that has not left.
        """
        if hello:
            self._hellos[source_port, target_port] = extension
        else:
            if PROBE_PORT in (source_port, target_port):
                self.outgoing.forget_probes()
            self.outgoing.queue(None, source_port, target_port, b"", extension, ahead=True)
            self.counters.send_pong += 1

    def hold_behind(self, fence: Fence) -> None:
        """Hold new messages back until another path's fence is open."""
        self.outgoing.gate = fence
        self.outgoing.plain = False

    def wants_to_write(self) -> bool:
        """Tell whether `poll_transmit` would return octets."""
        if not self.attached:
            return False
        if self._out or self.map_due or self.incoming.acknowledgement_due:
            return True
        if self.outgoing.asks():
            return True
        if self._hellos and self.incoming.frames:
            return True
        outgoing = self.outgoing
        if self.hold is not Hold.NOTHING:
            return False
        return bool(outgoing.repeats) or (bool(outgoing.unsent) and not self.is_gated())

    def is_plain(self) -> bool:
        """Tell whether the next message may become octets at once, if no other waits for that."""
        outgoing = self.outgoing
        return (
            self.attached
            and self.hold is Hold.NOTHING
            and outgoing.release is Release.PEER_ACKNOWLEDGED
            and outgoing.gate is None
            and not (self._out or self.map_due or self._hellos)
            and not (outgoing.repeats or outgoing.fences)
            and not (outgoing.acknowledgement_wanted or outgoing.question_due)
            and self.limits.path_messages_max > 1  # else one more fills it
            and self.limits.unacked_packets_max > 1  # else each asks for an acknowledgement
            and self.limits.unacked_bytes_max > REFERENCE_BYTES
        )

    def is_gated(self) -> bool:
        """Tell whether new messages wait for another path's fence."""
        gate = self.outgoing.gate
        return gate is not None and not gate.open

    def poll_transmit(self) -> list[Buffer]:
        """Return buffers for the stream, 64 KiB or some long messages; [] if there is nothing.

        The same buffers are returned until `transmitted` says that they were taken.
        """
        if self.attached and self._out_octets < _WRITE_BYTES:
            if self.map_due:
                self._frame_map()
            if self._hellos and self.incoming.frames:
                self._frame_hellos()
            if self.hold is Hold.NOTHING and (self.outgoing.unsent or self.outgoing.repeats):
                self._frame_messages()
            if self.incoming.acknowledgement_due or self.outgoing.asks():
                self._frame_acknowledgement()
        return self._out

    def _frame_map(self) -> None:
        """Frame our map; it tells our life unless the peer is known to be a kernel."""
        self.map_due = False
        to_kernel = self.outgoing.release is Release.STREAM_ACKNOWLEDGED
        extension = _NO_EXTENSION if to_kernel else self._life
        octets = self._map_octets()
        self._append(emit_map(octets, extension=extension, checksum=self.outgoing.checksum))
        self.counters.cong_update_queued += 1

    def _frame_hellos(self) -> None:
        for (source_port, target_port), extension in self._hellos.items():
            self._append(
                emit_header(
                    sequence=0,
                    acknowledgement=max(0, self.incoming.sequence_expected - 1),
                    payload_bytes=0,
                    source_port=source_port,
                    target_port=target_port,
                    flags=0,
                    extension=extension,
                    checksum=self.outgoing.checksum,
                )
            )
        self._hellos.clear()

    def _frame_messages(self) -> None:
        outgoing, incoming = self.outgoing, self.incoming
        acknowledgement = max(0, incoming.sequence_expected - 1) if incoming.acknowledging else 0
        octets_max = LONG_WRITE_BYTES if outgoing.is_long() else _WRITE_BYTES
        made = outgoing.frame(self._out, octets_max - self._out_octets, acknowledgement)
        self._out_octets += made
        if made and incoming.acknowledging:
            incoming.reset_owed()  # every data header carries it
            self._owed_since_ns = None

    def _frame_acknowledgement(self) -> None:
        """At most one: it tells the newest number, and counts as sent once it is octets.

        It asks for the peer's if somebody waits for that.
        """
        if self.incoming.acknowledging:
            flags = 0
            if self.outgoing.asks():
                self.outgoing.question_due = False
                flags = HeaderFlag.ACK_REQUIRED
                self.counters.send_ack_required += 1
            self._append(
                emit_header(
                    sequence=0,
                    acknowledgement=max(0, self.incoming.sequence_expected - 1),
                    payload_bytes=0,
                    source_port=0,
                    target_port=0,
                    flags=flags,
                    extension=b"",
                    checksum=self.outgoing.checksum,
                )
            )
            self.counters.ack_sent += 1
        self.incoming.reset_owed()
        self._owed_since_ns = None

    def _append(self, octets: bytes) -> None:
        # Unnumbered frames count as stream octets: Linux frees by the stream's count.
        self._out.append(octets)
        self._out_octets += len(octets)
        self.outgoing.position += len(octets)

    def resume_with(self, octets: bytes) -> None:
        """Have `poll_transmit` give octets that were framed apart from it."""
        self._out.append(octets)
        self._out_octets += len(octets)

    def transmitted(self, octets: int) -> None:
        """Note that the stream took the first `octets` of what `poll_transmit` gave."""
        self.octets_written += octets
        self._out_octets -= octets
        if not self._out_octets:
            self._out = []
            return
        taken = 0
        for buffer in self._out:
            if octets < len(buffer):
                break
            octets -= len(buffer)
            taken += 1
        del self._out[:taken]
        if octets:
            self._out[0] = memoryview(self._out[0])[octets:]

    # -- what comes in

    def receive_data(self, data: bytes | memoryview, now_ns: int) -> DownReason | None:
        """Take octets off the stream; return why it must end, None while it is well."""
        incoming = self.incoming
        reason = incoming.receive_data(data, now_ns)
        if incoming.frames and self.hold is Hold.FIRST_FRAME:
            self.hold = Hold.NOTHING
        if incoming.acknowledging:
            if incoming.messages_owed and self._owed_since_ns is None:
                self._owed_since_ns = now_ns
            if incoming.acknowledged and not self.outgoing.handle_peer_acknowledged(
                incoming.acknowledged
            ):
                return reason or DownReason.BAD_ACKNOWLEDGEMENT
        return reason

    def handle_stream_acknowledged(self, octets: int) -> None:
        """Free what lies in the first `octets`, which the peer's TCP has.

        Nothing is freed before the peer's first frame: TCP acknowledges also what a peer that then
        refuses the connection never reads.
        """
        if self.incoming.frames and self.outgoing.release is Release.STREAM_ACKNOWLEDGED:
            self.outgoing.handle_stream_acknowledged(octets)

    def acknowledge(self) -> None:
        """Make an acknowledgement due at once if one is owed: later there may be no stream."""
        incoming = self.incoming
        incoming.acknowledgement_due |= self.attached and incoming.messages_owed > 0

    def ask(self) -> None:
        """Have the peer acknowledge what is queued or sent as soon as it has it: somebody waits."""
        self.outgoing.question_due = self.outgoing.message_count() > 0
        self.outgoing.plain = False

    # -- time

    def is_held(self) -> bool:
        """Tell whether messages wait for the peer's first frame or hello."""
        return self.hold is not Hold.NOTHING

    def poll_timeout(self) -> int | None:
        """Return when `handle_timeout` has something to do."""
        if self._owed_since_ns is None:
            return None
        return self._owed_since_ns + self.limits.acknowledge_delay_ns

    def handle_timeout(self, now_ns: int) -> None:
        """Make an acknowledgement due that found no message to ride on."""
        deadline_ns = self.poll_timeout()
        if deadline_ns is not None and now_ns >= deadline_ns:
            self.incoming.acknowledgement_due = True
