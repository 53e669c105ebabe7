"""The shell of a path: its stream, who reads and writes it, and when a tail leaves.

Writing. Whoever finds `writing` set leaves; the writer looks again before it clears it, so nothing
stays. A send on an idle path writes in the caller's thread; in a burst messages coalesce
(`stream_tails`). A write error does not end the stream, for what the peer sent before is
acknowledged to it already and must be read first. How it is read: `stream_reading`.

Whatever says so is called with the plane's lock held; no system call that may block is made under
it.
"""

from __future__ import annotations

import time
from contextlib import suppress
from os import eventfd_write
from typing import TYPE_CHECKING

from urds.constants import MAX_MESSAGE_BYTES, PROBE_PORT
from urds.dataplane.base import (
    Address,
    Agreement,
    Buffer,
    Down,
    DownReason,
    Hold,
    Path,
    Release,
    Stream,
    Wanted,
)
from urds.dataplane.reference import stream_dues, stream_reading, stream_tails
from urds.dataplane.reference.host import Host, socket_address
from urds.dataplane.reference.outgoing import Fence
from urds.dataplane.reference.path import PathCore
from urds.dataplane.reference.stream_writing import end_direction, write_all

if TYPE_CHECKING:
    from urds.dataplane.reference.accounts import Destination
    from urds.dataplane.reference.mailbox import Mailbox
    from urds.dataplane.reference.plane import Plane

_LEAVING_POLL_S = 0.0002
_BUFFERS_MAX = 1024  # of one sendmsg. Source: linux v6.12 include/uapi/linux/uio.h (UIO_MAXIOV)


class StreamPath:
    """A `base.Path` over a stream. Public attributes are guarded by the plane's lock."""

    def __init__(
        self, plane: Plane, host: Host, *, peer: Address, index: int, sequence_first: int
    ) -> None:
        self.local = host.address
        self.peer = peer
        self.index = index
        self.plane = plane
        self.host = host
        self.core = PathCore(
            plane.limits,
            plane.counters,
            sequence_first=sequence_first,
            generation=plane.generation,
            inboxes=host.inboxes,
            source_of=lambda port: socket_address(peer, port),
            map_octets=host.map_octets,
            wall_ns=plane.wall_ns,
        )
        self.stream: Stream | None = None
        self.attachment = 0
        self.writing = False
        self.writes = 0  # begun so far: the number of the last one
        self.left_to_writer = False  # somebody came to flush meanwhile
        self.reading = False
        self.blocked = False  # the stream took less than offered: wait for POLLOUT
        self.broken = False  # writing failed; what the peer sent is still read
        self.paused = False  # a mailbox is over its hard bound
        self.polled = False  # the stream is in the plane's poll set
        # Nothing to decide before `flush_bytes` are pending: a tail is noted, or no stream is.
        self.settled = False
        self.flush_bytes = plane.flush_bytes  # more while a burst of long messages is a tail
        self.wanted = False
        self.full = False
        self.message_bytes_max = MAX_MESSAGE_BYTES  # more only once the peer said so
        self.room_wanted: set[Mailbox] = set()
        self.destinations: dict[Mailbox, Destination] = {}  # that the sockets' messages count in
        self.absent = False  # messages have long waited for a stream
        self.dependents: list[StreamPath] = []  # held behind a fence of ours
        self.credits = 0  # writes at once before tails are noted
        self.idle_since_ns = 0
        self.tail_since_ns: int | None = None
        self.ack_poll_ns = 0
        self.ack_poll_delay_ns = stream_dues.ACK_POLL_NS
        self.first_frame_told = False
        self.vain = False  # the last read brought nothing for anybody here
        self.expected_octets = 1
        self._doomed: list[Stream] = []  # closed once nobody writes to them

    # -- sending

    def push(self, burst_bytes: int = 0) -> None:
        """Decide, after a message was queued, whether it leaves now (`stream_tails`)."""
        plane = self.plane
        with plane.lock:
            now = stream_tails.leaves_now(self, burst_bytes)
        if now:
            self.flush()
        if self.full:
            plane.settle()
        plane.deliver()

    def judge_full(self) -> None:
        """Compare the queue with its bound of messages. Lock held."""
        full = self.core.outgoing.message_count() >= self.plane.limits.path_messages_max
        if full is not self.full:
            self.full = full
            self.plane.note_full(self)

    def flush_soon(self) -> None:
        """Have whoever serves what is due flush this path next. Lock held."""
        if self.core.wants_to_write():
            self.core.outgoing.plain = False  # a message that is alone would leave this behind
            self.tail_since_ns = self.plane.clock_ns() - stream_dues.TAIL_NS
            self.plane.mark_dirty(self)

    def want_agreement(self) -> bool:
        """Tell whether the handshake may still allow a longer message; ask for it. Lock held."""
        if self.core.outgoing.release is not Release.NOT_YET:
            return False
        self.want()
        return True

    def want(self) -> None:
        """Ask the control plane for a stream if there is none, once per outage. Lock held."""
        if self.stream is None and not self.wanted:
            event = Wanted(self)
            self.wanted = True
            self.plane.note_wanted(self)
            self.plane.events.append(event)  # one step (`interrupts`)
            self.plane.helper.want(now=True)

    def flush(self) -> None:
        """Write until nothing is left or the stream takes no more; never blocks."""
        plane = self.plane
        stream: Stream | None = None
        write_number = 0
        try:
            with plane.lock:
                if self.writing or self.blocked or self.broken or self.stream is None:
                    self.left_to_writer = self.writing
                    return
                stream = self.stream
                self.writing = True
                write_number = self.writes = self.writes + 1
                buffers = self._poll_transmit()
            write_all(self, stream, buffers)
        except BaseException:
            if stream is not None:
                plane.interrupts.writes[self] = write_number
                plane.interrupts.seen = True
                eventfd_write(plane.helper.wake_descriptor, 1)
            raise

    def _poll_transmit(self) -> list[Buffer]:
        """Return what to write next; with nothing left, stop writing. Lock held.

        One critical section for the last look and for clearing `writing`: a message queued in
        between would find a writer that has looked already. What is returned is a copy: the core
        goes on with its own list, and a writer that has stopped must not see a later one's octets.
        """
        buffers = self.core.poll_transmit()[:_BUFFERS_MAX]
        if not buffers:
            self._written()
        return buffers

    def advance(self, stream: Stream, taken: int, failure: OSError | None) -> list[Buffer]:
        """Count what the stream took; return what to write next. Lock held."""
        if self.stream is None or not self.core.attached:  # an interrupt may have cut its end
            self._written()
            return []
        if self.stream is stream:  # else superseded meanwhile; its core began anew
            self.core.transmitted(taken)
            if failure is not None:
                self.blocked = isinstance(failure, BlockingIOError)
                self.broken = not self.blocked
                self.plane.counters.tcp_sndbuf_full += self.blocked
                self._written()
                return []
        return self._poll_transmit()

    def abort_write(self, write_number: int) -> None:
        """End our direction after an interrupt: how much the stream took is not known.

        For the helper, which no handler interrupts.
        """
        with self.plane.lock:
            if not self.writing or self.writes != write_number:
                return  # it was over, and what is being written now is another's
            stream = self.stream  # perhaps a later one than the writer began with
            self.broken = stream is not None
            self._written()
        if stream is not None:
            end_direction(stream)

    def _written(self) -> None:
        """Settle after a write: the tail is gone, acknowledgements may come. Lock held."""
        self.writing = False
        outgoing = self.core.outgoing
        outgoing.plain = self.core.is_plain() and not (self.blocked or self.broken)
        self.left_to_writer = False
        if self.core.poll_timeout() is None:
            self.plane.owing.pop(self, None)  # what was owed has left
        self.idle_since_ns = self.plane.clock_ns()
        self.tail_since_ns = None
        self.settled = False  # also without a stream: the next send must ask for one
        self.judge_full()
        if outgoing.unacked and outgoing.release is not Release.PEER_ACKNOWLEDGED:
            self.ack_poll_delay_ns = stream_dues.ACK_POLL_NS
            self.ack_poll_ns = self.idle_since_ns + stream_dues.ACK_POLL_NS
            self.plane.mark_dirty(self)
        while self._doomed:
            self._doomed.pop().close()

    def look_for_acknowledgements(self) -> None:
        """Free what the peer has: read its acknowledgements, or ask our TCP what its TCP has."""
        stream_dues.look_for_acknowledgements(self)

    # -- receiving

    def read(self, *, others: bool = False) -> bool:
        """Read what is there, a bounded number of times; return whether anything came."""
        return stream_reading.read(self, others=others)

    def settle_freed(self) -> None:
        """Tell whom freed messages concern: owners, senders at our bound, paths behind a fence.

        Lock held.
        """
        outgoing = self.core.outgoing
        while outgoing.freed:  # taken out first: an interrupt must not count them twice
            owner, freed_bytes = outgoing.freed.popitem()
            self.plane.note_freed(self, owner, freed_bytes)  # type: ignore[arg-type]  # owners are mailboxes here
        if self.full or self.room_wanted:
            self.judge_full()
            if not self.full:
                self.plane.note_path_room(self)
        if self.dependents:
            for path in self.dependents:
                path.flush_soon()
            self.dependents = [path for path in self.dependents if path.core.is_gated()]

    def cancel(self, mailbox: Mailbox, port: int | None) -> int:
        """Remove a mailbox's messages, to one port or all; return how many. Lock held."""
        count = self._take_out(mailbox, port)
        self.plane.counters.send_cancelled += count
        return count

    def give_up(self, mailbox: Mailbox) -> int:
        """Remove a mailbox's messages to an absent peer; return how many. Lock held."""
        count = self._take_out(mailbox, None)
        self.plane.counters.send_given_up += count
        return count

    def _take_out(self, mailbox: Mailbox, port: int | None) -> int:
        outgoing = self.core.outgoing
        count = outgoing.cancel(mailbox, port)
        mailbox.give_back(self, outgoing.freed.pop(mailbox, 0))
        self.settle_freed()
        return count

    # -- the stream comes and goes

    def attach(self, stream: Stream, *, hold: Hold) -> None:
        """Take a stream; one attached before is read until it would block and closed."""
        old = self.detach()
        plane = self.plane
        with plane.lock:
            if old is not None:
                self._dispose(old)
            self.stream = stream
            self.expected_octets = 1
            self.attachment += 1
            self.blocked = self.broken = self.paused = self.wanted = False
            self.first_frame_told = False
            self.core.attach(hold)
            plane.note_attached(self)
            self.settled = False
            try:
                plane.poll_set.add(self)
            except OSError as failure:  # no watches left: a stream that nobody polls is none
                self.end(DownReason.ERROR, failure.errno or 0)
        self.flush()
        plane.deliver()

    def detach(self) -> Stream | None:
        """Give the stream back, read until it would block; no Down follows."""
        plane = self.plane
        while True:
            with plane.lock:
                stream = self.stream
                if stream is None:
                    return None
                if not self.reading:
                    self.reading = True
                    break
            plane.interrupts.settle()
            time.sleep(_LEAVING_POLL_S)  # another thread is reading it: a matter of microseconds
        try:
            stream_reading.drain(self, stream)
        finally:
            with plane.lock:
                # In one section: nobody may begin to read a stream that is given away, and whose
                # descriptor may soon be another connection.
                self._release_stream(stream)
                self.reading = False
        while self.writing:
            plane.interrupts.settle()
            time.sleep(_LEAVING_POLL_S)  # the same for whoever writes: he sees it and leaves
        plane.deliver()
        return stream

    def end(self, reason: DownReason, error: int) -> None:
        """End the stream: report it, close it, keep the queue. Lock held."""
        stream = self.stream
        assert stream is not None
        core = self.core
        down = Down(self, reason, error, core.incoming.frames, self.attachment)
        self._release_stream(stream, down)
        if core.outgoing.holds():  # a probe or a pong alone is not worth a stream
            self.want()

    def _dispose(self, stream: Stream) -> None:
        """Close a stream; if it is being written to, the writer does. Lock held."""
        if self.writing:
            self._doomed.append(stream)
        else:
            stream.close()

    def _release_stream(self, stream: Stream, down: Down | None = None) -> None:
        """Let go of the stream; one that went down is closed and reported. Lock held."""
        core = self.core
        with suppress(OSError, ValueError):  # closed already if an interrupt has us do it anew
            # Still true after a reset: what the peer's TCP had is delivered, for a kernel.
            core.handle_stream_acknowledged(core.octets_written - stream.unacknowledged())
        self.plane.forget_stream(self)
        core.detach()
        self.settled = self.wanted = False
        self.tail_since_ns = None
        # Last and one step (`interrupts`): until then whoever follows ends the stream anew.
        if down is None:
            self.stream = None
        else:
            self._dispose(stream)
            self.stream = None
            self.plane.events.append(down)
            self.plane.helper.want(now=True)
        self.settle_freed()

    # -- what the control plane asks for

    def release(self, *, received_by_peer: int | None) -> None:
        """End `Hold.RELEASE`."""
        with self.plane.lock:
            self.core.release(received_by_peer)
            self.settle_freed()
        self.flush()
        self.plane.deliver()

    def agree(self, agreement: Agreement) -> None:
        """Set what a handshake found out about the peer."""
        with self.plane.lock:
            self.core.agree(release=agreement.release, checksum=agreement.checksum)
            self.settle_freed()
            self.message_bytes_max = agreement.message_bytes_max
            self.plane.note_path_room(self)  # perhaps a message was too long
            self.plane.mark_dirty(self)
        self.flush()
        self.plane.deliver()

    def restart_peer(self) -> int:
        """Begin a new life of the peer; return how many messages its old life took with it."""
        with self.plane.lock:
            count = self.core.restart_peer()
            self.plane.counters.peer_restarted += 1
            self.plane.counters.send_given_up += count
            self.settle_freed()
        self.plane.deliver()
        return count

    def remember_handshake(self, generation: int | None) -> None:
        """Note a kernel's generation."""
        with self.plane.lock:
            self.core.incoming.remember_generation(generation)

    def control(
        self, *, source_port: int, target_port: int, extension: bytes, hello: bool = False
    ) -> None:
        """Queue a ping, pong or probe; dropped without a stream, for it answers a stream.

        A pong is dropped too when as many messages wait as may: its asker does not read.
        """
        with self.plane.lock:
            is_pong = not source_port and target_port > PROBE_PORT
            count, limits = self.core.outgoing.message_count(), self.plane.limits
            if not self.core.attached or (is_pong and count >= limits.path_messages_max):
                return
            self.core.control(
                source_port=source_port, target_port=target_port, extension=extension, hello=hello
            )
        self.flush()

    def poke(self) -> None:
        """Send our map, so that a dead connection answers with a reset."""
        with self.plane.lock:
            self.core.map_due = self.core.attached
        self.flush()

    def peer_is_congested(self, port: int) -> bool:
        """Tell whether the peer's map marks a port."""
        with self.plane.lock:
            return self.host.congested_at(self.peer).test(port)

    def hold_behind(self, other: Path | None) -> None:
        """Hold new messages until `other` has delivered what it has queued now."""
        assert other is None or isinstance(other, StreamPath)
        with self.plane.lock:
            self.core.hold_behind(other.core.outgoing.fence() if other else Fence())
            if other is not None:
                other.dependents.append(self)
                other.core.ask()
        if other is not None:
            other.flush()
        self.flush()

    def drop_queue(self) -> int:
        """Drop every message; its senders learn it once, by EHOSTUNREACH."""
        plane = self.plane
        with plane.lock:
            outgoing = self.core.outgoing
            count = outgoing.drop_all()
            plane.counters.send_given_up += count
            for owner in outgoing.freed:
                owner.fail(self.peer)  # type: ignore[attr-defined]  # owners are mailboxes here
            self.wanted = False
            self.settled = False
            self.settle_freed()
        plane.deliver()
        return count

    def close(self) -> None:
        """Forget the path; its stream is closed."""
        stream = self.detach()
        with self.plane.lock:
            if stream is not None:
                self._dispose(stream)
            self.plane.remove_path(self)
            self.settle_freed()
        self.plane.deliver()

    def holds_messages(self) -> bool:
        """Tell whether messages of sockets are queued or unacknowledged."""
        with self.plane.lock:
            return self.holds()

    def has_delivered(self) -> bool:
        """Tell whether a message of the peer ever reached a socket here."""
        with self.plane.lock:
            return self.core.incoming.has_delivered

    def holds(self, mailbox: Mailbox | None = None) -> bool:
        """Tell the same of one mailbox's, or of all. Lock held."""
        return self.core.outgoing.holds(mailbox)

    def counts(self, mailbox: Mailbox | None = None) -> tuple[int, int]:
        """Count a mailbox's messages, or those of all: never sent, and not acknowledged.

        Without a stream, too: who ends in order acknowledges first, so a repeat may be lost.
        """
        return self.core.outgoing.counts(mailbox)

    def abandon_in_child(self) -> None:
        """Close our copy of the stream after a fork; a plain close sends nothing while shared."""
        if self.stream is not None:
            self.stream.close()
            self.stream = None
        self.core.attached = False

    # -- time

    def due_ns(self) -> int | None:
        """Return when `serve` has something to do. Lock held."""
        return stream_dues.due_ns(self)

    def serve(self, now_ns: int) -> None:
        """Do what is due: the tail, an acknowledgement, a question to TCP. No lock held."""
        stream_dues.serve(self, now_ns)

    def unblock(self) -> None:
        """Write again: the stream takes octets."""
        with self.plane.lock:
            self.blocked = False
            self.plane.counters.tcp_write_space_calls += 1
            self.plane.mark_dirty(self)  # an acknowledgement may be owed since
        self.plane.poll_set.update(self)
        self.flush()

    def resume(self) -> None:
        """Read again: the mailbox that paused us is at half."""
        with self.plane.lock:
            self.paused = False
        self.plane.poll_set.update(self)
