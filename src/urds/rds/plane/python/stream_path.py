"""The shell of a path: its stream, which thread reads and writes it, and when a batch leaves.

Writing. A thread that finds `writing` set leaves; the writer checks again before it clears it, so
no message stays. A send on an idle path writes in the caller's thread; in a burst messages coalesce
(`stream_writing`). A write error does not end the stream: data that the peer sent before is
acknowledged to it already and must be read first. Reading: see `stream_reading`.

Methods marked so are called with the plane's lock held; no system call that may block is made under
it.
"""

from __future__ import annotations

import time
from contextlib import suppress
from os import eventfd_write
from typing import TYPE_CHECKING

from urds.common.types import IPAddress
from urds.rds.constants import MAX_MESSAGE_BYTES, PROBE_PORT
from urds.rds.plane.contract import (
    Agreement,
    Buffer,
    ConnectWanted,
    Down,
    DownReason,
    Hold,
    Path,
    PathActivity,
    Release,
    Stream,
)
from urds.rds.plane.python import stream_reading, stream_writing
from urds.rds.plane.python.host import Host, socket_address
from urds.rds.plane.python.outgoing import Fence
from urds.rds.plane.python.path import PathCore
from urds.rds.plane.python.stream_writing import end_direction, write_all

if TYPE_CHECKING:
    from urds.rds.plane.python.accounts import Destination
    from urds.rds.plane.python.mailbox import Mailbox
    from urds.rds.plane.python.plane import Plane

_LEAVING_POLL_S = 0.0002
_BUFFERS_MAX = 1024  # of one sendmsg. Source: linux v6.12 include/uapi/linux/uio.h (UIO_MAXIOV)


class StreamPath:
    """A `contract.Path` over a stream. Public attributes are guarded by the plane's lock."""

    def __init__(
        self, plane: Plane, host: Host, *, peer: IPAddress, index: int, sequence_first: int
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
            map_bytes=host.map_bytes,
            wall_ns=plane.wall_ns,
        )
        self.stream: Stream | None = None
        self.attachment = 0
        self.writing = False
        self.writes = 0  # number of writes begun, and of the last one
        self.reading = False
        self.blocked = False  # the stream took less than was written: wait for POLLOUT
        self.broken = False  # writing failed; data from the peer is still read
        self.paused = False  # a mailbox is over its hard bound
        self.polled = False  # the stream is in the plane's poll set
        # Nothing is decided before `flush_bytes` are pending: a batch is open, or no stream exists.
        self.is_batching = False
        self.flush_bytes = plane.flush_bytes  # more while a burst of long messages is a batch
        self.wanted = False
        self.full = False
        self.message_bytes_max = MAX_MESSAGE_BYTES  # more only after the peer agreed
        self.room_wanted: set[Mailbox] = set()
        self.destinations: dict[Mailbox, Destination] = {}  # of the sockets' messages
        self.absent = False  # messages have long waited for a stream
        self.dependents: list[StreamPath] = []  # held behind a fence of this path
        self.credits = 0  # writes at once before batches open
        self.idle_since_ns = 0
        self.tail_since_ns: int | None = None
        self.ack_poll_ns = 0
        self.ack_poll_delay_ns = stream_writing.ACK_POLL_NS
        self.first_frame_told = False
        self.last_read_was_empty = False  # the last read brought nothing for any socket here
        self.expected_bytes = 1
        self._streams_to_close: list[Stream] = []  # closed once no thread writes to them

    # -- sending

    def push(self, burst_bytes: int = 0) -> None:
        """Decide, after a message was queued, whether it leaves now (`stream_writing`)."""
        plane = self.plane
        with plane.lock:
            now = stream_writing.leaves_now(self, burst_bytes)
        if now:
            self.flush()
        if self.full:
            plane.finish_pass()
        plane.deliver()

    def is_in_batch(self) -> bool:
        """Return whether a batch is open, or no stream exists, and it is too short to leave."""
        return self.is_batching and self.core.outgoing.pending_bytes < self.flush_bytes

    def check_full(self) -> None:
        """Compare the queue with its limit of messages. Lock held."""
        full = self.core.outgoing.message_count() >= self.plane.limits.path_messages_max
        if full is not self.full:
            self.full = full
            self.plane.note_full(self)

    def flush_soon(self) -> None:
        """Have the next timed pass flush this path first. Lock held."""
        if self.core.wants_to_write():
            self.tail_since_ns = self.plane.clock_ns() - stream_writing.TAIL_NS
            self.plane.mark_dirty(self)

    def want_agreement(self) -> bool:
        """Return whether the handshake may still allow a longer message; request it. Lock held."""
        if self.core.outgoing.release is not Release.NOT_YET:
            return False
        self.want()
        return True

    def want(self) -> None:
        """Request a stream from the control plane if there is none, once per outage. Lock held."""
        if self.stream is None and not self.wanted:
            event = ConnectWanted(self)
            self.wanted = True
            self.plane.note_wanted(self)
            self.plane.events.append(event)  # one step (`interrupts`)
            self.plane.progress_thread.want(now=True)

    def flush(self) -> None:
        """Write until nothing is left or the stream takes no more; never blocks."""
        plane = self.plane
        stream: Stream | None = None
        write_number = 0
        try:
            with plane.lock:
                if self.writing or self.blocked or self.broken or self.stream is None:
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
                eventfd_write(plane.progress_thread.wake_descriptor, 1)
            raise

    def _poll_transmit(self) -> list[Buffer]:
        """Return the next buffers to write; with nothing left, stop writing. Lock held.

        The last check and the clearing of `writing` share a critical section: a message queued in
        between would find a writer that has checked already. The result is a copy: the core goes on
        with its own list, and a writer that has stopped must not see a later one's bytes.
        """
        buffers = self.core.poll_transmit()[:_BUFFERS_MAX]
        if not buffers:
            self._written()
        return buffers

    def advance(self, stream: Stream, taken: int, failure: OSError | None) -> list[Buffer]:
        """Count the bytes that the stream took; return the next to write. Lock held."""
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
        """End the local direction after an interrupt: the bytes that the stream took are unknown.

        For the progress thread, which no handler interrupts.
        """
        with self.plane.lock:
            if not self.writing or self.writes != write_number:
                return  # it was over, and the present write is another's
            stream = self.stream  # perhaps a later one than the writer began with
            self.broken = stream is not None
            self._written()
        if stream is not None:
            end_direction(stream)

    def _written(self) -> None:
        """Finish a write: close the batch, expect acknowledgements. Lock held."""
        self.writing = False
        outgoing = self.core.outgoing
        if self.core.poll_timeout() is None:
            self.plane.ack_deadlines.pop(self, None)  # pending acknowledgements have left
        self.idle_since_ns = self.plane.clock_ns()
        self.tail_since_ns = None
        self.is_batching = False  # also without a stream: the next send must request one
        self.check_full()
        if outgoing.unacked and outgoing.release is not Release.PEER_ACKNOWLEDGED:
            self.ack_poll_delay_ns = stream_writing.ACK_POLL_NS
            self.ack_poll_ns = self.idle_since_ns + stream_writing.ACK_POLL_NS
            self.plane.mark_dirty(self)
        while self._streams_to_close:
            self._streams_to_close.pop().close()

    def look_for_acknowledgements(self) -> None:
        """Free acknowledged messages: read the peer's acks, or query the local TCP."""
        stream_writing.look_for_acknowledgements(self)

    # -- receiving

    def read(self, *, others: bool = False) -> bool:
        """Read available bytes, a bounded number of times; return whether any came."""
        return stream_reading.read(self, others=others)

    def finish_freed(self) -> None:
        """Notify of freed messages: owners, senders at the path's limit, paths behind a fence.

        Lock held.
        """
        outgoing = self.core.outgoing
        while outgoing.freed:  # taken out first: an interrupt must not count them twice
            owner, freed_bytes = outgoing.freed.popitem()
            self.plane.note_freed(self, owner, freed_bytes)  # type: ignore[arg-type]  # owners are mailboxes here
        if self.full or self.room_wanted:
            self.check_full()
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
        self.finish_freed()
        return count

    # -- the stream comes and goes

    def attach(self, stream: Stream, *, hold: Hold) -> None:
        """Attach a stream; an earlier one is read until it would block and closed."""
        old = self.detach()
        plane = self.plane
        with plane.lock:
            if old is not None:
                self._dispose(old)
            self.stream = stream
            self.expected_bytes = 1
            self.attachment += 1
            self.blocked = self.broken = self.paused = self.wanted = False
            self.first_frame_told = False
            self.core.attach(hold)
            plane.note_attached(self)
            self.is_batching = False
            try:
                plane.poll_set.add(self)
            except OSError as failure:  # no watches left: a stream that is not polled is none
                self.end(DownReason.ERROR, failure.errno or 0)
        self.flush()
        plane.deliver()

    def detach(self) -> Stream | None:
        """Return the stream, read until it would block; no Down follows."""
        plane = self.plane
        while True:
            with plane.lock:
                stream = self.stream
                if stream is None:
                    return None
                if not self.reading:
                    self.reading = True
                    break
            plane.interrupts.finish_pass()
            time.sleep(_LEAVING_POLL_S)  # another thread is reading it: a matter of microseconds
        try:
            stream_reading.drain(self, stream)
        finally:
            with plane.lock:
                # In one section: no thread may begin to read a detached stream, whose descriptor
                # may soon be another connection.
                self._release_stream(stream)
                self.reading = False
        while self.writing:
            plane.interrupts.finish_pass()
            time.sleep(_LEAVING_POLL_S)  # the same for a writer, which sees it and leaves
        plane.deliver()
        return stream

    def end(self, reason: DownReason, error: int) -> None:
        """End the stream: report it, close it, keep the queue. Lock held."""
        stream = self.stream
        assert stream is not None
        core = self.core
        down = Down(self, reason, error, core.incoming.frames, self.attachment)
        self._release_stream(stream, down)
        if core.outgoing.holds():  # a probe or a pong alone needs no stream
            self.want()

    def _dispose(self, stream: Stream) -> None:
        """Close a stream; if a thread writes to it, that thread does. Lock held."""
        if self.writing:
            self._streams_to_close.append(stream)
        else:
            stream.close()

    def _release_stream(self, stream: Stream, down: Down | None = None) -> None:
        """Drop the stream; one that went down is closed and reported. Lock held."""
        core = self.core
        with suppress(OSError, ValueError):  # closed already if an interrupt repeats this
            # Still true after a reset: what the peer's TCP had is delivered, for a kernel.
            core.handle_stream_acknowledged(core.bytes_written - stream.unacknowledged())
        self.plane.forget_stream(self)
        core.detach()
        self.is_batching = self.wanted = False
        self.tail_since_ns = None
        # Last and one step (`interrupts`): until then the next thread ends the stream anew.
        if down is None:
            self.stream = None
        else:
            self._dispose(stream)
            self.stream = None
            self.plane.events.append(down)
            self.plane.progress_thread.want(now=True)
        self.finish_freed()

    # -- calls of the control plane

    def release(self, *, received_by_peer: int | None) -> None:
        """End `Hold.RELEASE`."""
        with self.plane.lock:
            self.core.release(received_by_peer)
            self.finish_freed()
        self.flush()
        self.plane.deliver()

    def agree(self, agreement: Agreement) -> None:
        """Set what the handshake agreed with the peer."""
        with self.plane.lock:
            self.core.agree(release=agreement.release, checksum=agreement.checksum)
            self.finish_freed()
            self.message_bytes_max = agreement.message_bytes_max
            self.plane.note_path_room(self)  # perhaps a message was too long
            self.plane.mark_dirty(self)
        self.flush()
        self.plane.deliver()

    def restart_peer(self) -> int:
        """Note the peer's restart; return how many sent messages are lost with it."""
        with self.plane.lock:
            count = self.core.restart_peer()
            self.plane.counters.peer_restarted += 1
            self.plane.counters.send_given_up += count
            self.finish_freed()
        self.plane.deliver()
        return count

    def remember_handshake(self, generation: int | None) -> None:
        """Note a kernel's generation."""
        with self.plane.lock:
            self.core.incoming.generations.generation = generation

    def control(
        self, *, source_port: int, target_port: int, extension: bytes, hello: bool = False
    ) -> None:
        """Queue a ping, pong or probe; dropped without a stream, since it answers a stream.

        A pong is dropped too when as many messages wait as may: the pinging peer does not read.
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

    def probe_dead_stream(self) -> None:
        """Send the local map, so that a dead connection answers with a reset."""
        with self.plane.lock:
            self.core.map_due = self.core.attached
        self.flush()

    def peer_is_congested(self, port: int) -> bool:
        """Return whether the peer's map marks a port."""
        with self.plane.lock:
            return self.host.congested_at(self.peer).test(port)

    def hold_behind(self, other: Path | None) -> None:
        """Hold new messages until `other` has delivered its present queue."""
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
        """Drop every message; the next send of each sender fails once with EHOSTUNREACH."""
        plane = self.plane
        with plane.lock:
            outgoing = self.core.outgoing
            count = outgoing.drop_all()
            plane.counters.send_given_up += count
            for owner in outgoing.freed:
                owner.fail(self.peer)  # type: ignore[attr-defined]  # owners are mailboxes here
            self.wanted = False
            self.is_batching = False
            self.finish_freed()
        plane.deliver()
        return count

    def close(self) -> None:
        """Remove the path; its stream is closed."""
        stream = self.detach()
        with self.plane.lock:
            if stream is not None:
                self._dispose(stream)
            self.plane.remove_path(self)
            self.finish_freed()
        self.plane.deliver()

    def holds_messages(self) -> bool:
        """Return whether messages of sockets are queued or unacknowledged."""
        with self.plane.lock:
            return self.holds()

    def activity(self) -> PathActivity:
        """Return how far the path is. No lock held."""
        with self.plane.lock:
            outgoing = self.core.outgoing
            sent = outgoing.unacked or outgoing.retransmits  # the lower numbers first
            oldest = sent[0][0] if sent else None
            return PathActivity(self.core.incoming.frames, oldest, outgoing.sequence_next)

    def has_delivered(self) -> bool:
        """Return whether a message of the peer ever reached a local socket."""
        with self.plane.lock:
            return self.core.incoming.has_delivered

    def holds(self, mailbox: Mailbox | None = None) -> bool:
        """Return whether messages of one mailbox, or of any, are held. Lock held."""
        return self.core.outgoing.holds(mailbox)

    def counts(self, mailbox: Mailbox | None = None) -> tuple[int, int]:
        """Return how many messages of a mailbox, or of all, are unsent and unacknowledged.

        Without a stream, too: an orderly end acknowledges first, so a retransmission may be lost.
        """
        return self.core.outgoing.counts(mailbox)

    def abandon_in_child(self) -> None:
        """Close this copy of the stream after a fork; a plain close sends nothing while shared."""
        if self.stream is not None:
            self.stream.close()
            self.stream = None
        self.core.attached = False

    def unblock(self) -> None:
        """Write again: the stream takes bytes."""
        with self.plane.lock:
            self.blocked = False
            self.plane.counters.tcp_write_space_calls += 1
            self.plane.mark_dirty(self)  # an acknowledgement may be pending since
        self.plane.poll_set.update(self)
        self.flush()

    def resume(self) -> None:
        """Read again: the mailbox that paused the path is at half."""
        with self.plane.lock:
            self.paused = False
        self.plane.poll_set.update(self)
