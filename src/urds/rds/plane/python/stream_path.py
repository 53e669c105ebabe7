"""A path with a stream: a `contract.Path`, and what the lock guards of it.

The value machine is `PathCore`; `StreamWriter` and `StreamReader` own what concerns the two
directions of the stream. No system call that may block is made under the lock.
"""

from __future__ import annotations

import select
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from urds.common.types import IPAddress
from urds.rds.addresses import socket_address
from urds.rds.constants import MAX_MESSAGE_BYTES, PING_PORT, PROBE_PORT
from urds.rds.plane.contract import (
    Agreement,
    ConnectWanted,
    Control,
    Down,
    DownReason,
    FirstFrame,
    Path,
    PathActivity,
    PeerRestarted,
    Stream,
)
from urds.rds.plane.python.path import PathCore
from urds.rds.plane.python.queued_messages import Fence, Owner
from urds.rds.plane.python.receive_side import ReceiveSide
from urds.rds.plane.python.stream_reader import StreamReader
from urds.rds.plane.python.stream_writer import StreamWriter
from urds.rds.types import AckMode, Hold

if TYPE_CHECKING:
    from urds.rds.plane.python.progress import Progress
    from urds.rds.plane.python.state import Host, State

_LEAVING_POLL_S = 0.0002


class StreamPath:
    """See `contract.Path`; the lock guards public attributes."""

    def __init__(
        self,
        state: State,
        progress: Progress,
        host: Host,
        *,
        peer: IPAddress,
        index: int,
        sequence_first: int,
    ) -> None:
        self.local = host.address
        self.peer = peer
        self.index = index
        self._state = state
        self._progress = progress
        self._host = host
        self.core = PathCore(
            state.limits,
            state.counters,
            sequence_first=sequence_first,
            generation=state.generation,
            inboxes=host.inboxes,
            source_of=lambda port: socket_address(peer, port),
            map_bytes=host.map_bytes,
            wall_ns=state.wall_ns,
        )
        self.stream: Stream | None = None
        self.attachment = 0
        self.polled = False  # the stream is in the plane's poll set
        self.full = False
        self.absent = False  # messages have long waited for a stream
        self.message_bytes_max = MAX_MESSAGE_BYTES  # more only after the peer agreed
        self.room_wanted: set[Owner] = set()
        self._wanted = False
        self._first_frame_told = False
        self._dependents: list[StreamPath] = []  # held behind a fence of this path
        self.writer = StreamWriter(self, state, progress)
        self.reader = StreamReader(self, state, progress)

    # -- lock held: sending

    def check_full(self) -> None:
        """Compare the queue with its limit of messages."""
        full = self.core.sender.message_count() >= self._state.limits.path_messages_max
        if full is not self.full:
            self.full = full
            self._state.note_full(self)

    def flush_soon(self) -> None:
        """Have the next timed pass flush this path first."""
        self.writer.flush_soon()

    def due_ns(self) -> int | None:
        """Return when the writer has timed work."""
        return self.writer.due_ns()

    def want_agreement(self) -> bool:
        """Return whether the handshake may still allow a longer message; request it."""
        if self.core.sender.ack_mode is not AckMode.NOT_YET:
            return False
        self.want()
        return True

    def want(self) -> None:
        """Request a stream from the control plane if there is none, once per outage."""
        if self.stream is None and not self._wanted:
            event = ConnectWanted(self)
            self._wanted = True
            self._state.note_wanted(self)
            self._state.events.append(event)  # one step (`progress`)
            self._state.thread.want(now=True)

    def finish_freed(self) -> None:
        """Notify of freed messages: owners, senders at the path's limit, paths behind a fence."""
        freed = self.core.sender.freed
        while freed:  # taken out first: an interrupt must not count them twice
            owner, freed_bytes = freed.popitem()
            owner.note_freed(self, freed_bytes)
        if self.full or self.room_wanted:
            self.check_full()
            if not self.full:
                self._state.note_path_room(self)
        if self._dependents:
            for path in self._dependents:
                path.flush_soon()
            self._dependents = [path for path in self._dependents if path.core.is_gated()]

    def cancel(self, owner: Owner, port: int | None) -> int:
        """Remove a mailbox's messages, to one port or all; return how many."""
        count = self.core.sender.cancel(owner, port)
        self._state.counters.send_cancelled += count
        self.finish_freed()
        return count

    def give_up(self, owner: Owner) -> int:
        """Remove a mailbox's messages to an absent peer; return how many."""
        count = self.core.sender.cancel(owner, None)
        self._state.counters.send_given_up += count
        self.finish_freed()
        return count

    def holds(self, owner: Owner | None = None) -> bool:
        """Return whether messages of one mailbox, or of any, are held."""
        return self.core.sender.holds(owner)

    def counts(self, owner: Owner | None = None) -> tuple[int, int]:
        """Return how many messages of a mailbox, or of all, are unsent and unacknowledged.

        Without a stream, too: an orderly end acknowledges first, so a retransmission may be lost.
        """
        return self.core.sender.counts(owner)

    # -- lock held: receiving

    def report(self) -> bool:
        """Report the results of a read; return whether it brought or freed a message."""
        state, core, receiver = self._state, self.core, self.core.receiver
        freed = core.sender.freed
        is_useful = bool(receiver.touched or freed or receiver.partial.remaining()[1])
        for receives, messages in receiver.touched.items():
            assert isinstance(receives, ReceiveSide), "a mailbox's"
            receives.note_arrival(messages)
            if receives.is_over_hard_bound() and not (
                self.reader.paused and self.reader in receives.pausing
            ):
                self.reader.paused = True
                receives.pause(self.reader)
        receiver.touched.clear()
        if freed or self.full or self.room_wanted or self._dependents:
            self.finish_freed()
        if receiver.frames and not self._first_frame_told:
            self._first_frame_told = True
            generation = receiver.generations.map_generation
            state.emit(FirstFrame(self, self.attachment, generation))
        while receiver.controls:
            state.emit(Control(self, *receiver.controls.popleft(), self.attachment))
        if receiver.restarted:
            state.emit(PeerRestarted(self))
            receiver.restarted = False
            state.counters.peer_restarted += 1
        if receiver.peer_map is not None:
            data, receiver.peer_map = receiver.peer_map, None
            state.note_peer_map(self._host, self.peer, data)
        if core.ack_at_ns is not None:
            state.note_ack_pending(self, core.ack_at_ns)
        return is_useful

    # -- no lock held

    def look_for_acknowledgements(self) -> None:
        """Free acknowledged messages: read the peer's acks, or query the local TCP."""
        self._state.driven = True  # a sender that reads them itself needs no progress thread
        if self.core.sender.ack_mode is AckMode.PEER_ACKNOWLEDGED:
            self.reader.read()
        else:
            self.writer.query_stream()
        self._progress.finish_pass()
        self.writer.note_active()

    def finish_read(self) -> None:
        """Do the work that follows a read: pause, answer."""
        if self.reader.paused:
            self._progress.poll_set.update(self)
        if self.core.wants_to_write():
            self.writer.flush()

    def poll_mask(self) -> int:
        """Return what the path waits for now. Lock held."""
        mask = 0 if self.reader.paused else select.EPOLLIN
        return mask | select.EPOLLOUT if self.writer.blocked else mask

    def serve(self, mask: int, *, others: bool) -> None:
        """Read and write what epoll found ready."""
        if self.reader.paused and mask & (select.EPOLLHUP | select.EPOLLERR):
            self.reader.resume()  # these cannot be masked out: read the little that is left
        if mask & ~select.EPOLLOUT:
            self._state.counters.tcp_data_ready_calls += 1
            self.reader.read(others=others)
        if mask & select.EPOLLOUT:
            self.writer.unblock()

    # -- the stream comes and goes

    def attach(self, stream: Stream, *, hold: Hold, probe: bytes | None = None) -> None:
        """Attach a stream; an earlier one is read until it would block and closed.

        A probe that a later call queues would stand behind what is written at once.
        """
        old = self.detach()
        with self._state.lock:
            if old is not None:
                self.writer.dispose(old)
            self.stream = stream
            self.attachment += 1
            self._wanted = self._first_frame_told = False
            self.writer.begin_stream()
            self.reader.begin_stream()
            self.core.attach(hold)
            if probe is not None:
                self.core.control(
                    source_port=PROBE_PORT, target_port=PING_PORT, extension=probe, hello=False
                )
            self._state.note_attached(self)
            try:
                self._progress.poll_set.add(self)
            except OSError as failure:  # no watches left: a stream that is not polled is none
                self.end(DownReason.ERROR, failure.errno or 0)
        self.writer.flush()
        self._progress.deliver()

    def detach(self) -> Stream | None:
        """Return the stream, read until it would block; no Down follows."""
        stream = self.reader.take_over()
        if stream is None:
            return None
        try:
            self.reader.drain(stream)
        finally:
            with self._state.lock:
                # In one section: no thread may begin to read a detached stream, whose descriptor
                # may soon be another connection.
                self._drop_stream(stream)
                self.reader.reading = False
        while self.writer.writing:
            self._progress.recover()
            time.sleep(_LEAVING_POLL_S)  # the same for a writer, which sees it and leaves
        self._progress.deliver()
        return stream

    def end(self, reason: DownReason, error: int) -> None:
        """End the stream: report it, close it, keep the queue. Lock held."""
        stream = self.stream
        assert stream is not None
        core = self.core
        down = Down(self, reason, error, core.receiver.frames, self.attachment)
        self._drop_stream(stream, down)
        if core.sender.holds():  # a probe or a pong alone needs no stream
            self.want()

    def _drop_stream(self, stream: Stream, down: Down | None = None) -> None:
        """Drop the stream; one that went down is closed and reported. Lock held."""
        core, state = self.core, self._state
        with suppress(OSError, ValueError):  # closed already if an interrupt repeats this
            # Still true after a reset: what the peer's TCP had is delivered, for a kernel.
            core.handle_stream_acknowledged(core.bytes_written - stream.unacknowledged())
        state.dirty.pop(self, None)  # no timed work of it remains
        state.ack_deadlines.pop(self, None)
        self._progress.poll_set.remove(self)
        core.detach()
        self._wanted = False
        self.writer.end_batch()
        # Last and one step (`progress`): until then the next thread ends the stream anew.
        if down is None:
            self.stream = None
        else:
            self.writer.dispose(stream)
            self.stream = None
            state.events.append(down)
            state.thread.want(now=True)
        self.finish_freed()

    # -- calls of the control plane

    def end_hold(self, *, received_by_peer: int | None) -> None:
        """End `Hold.HELLO`."""
        with self._state.lock:
            self.core.end_hold(received_by_peer)
            self.finish_freed()
        self.writer.flush()
        self._progress.deliver()

    def agree(self, agreement: Agreement) -> None:
        """Set what the handshake agreed with the peer."""
        with self._state.lock:
            self.core.agree(ack_mode=agreement.ack_mode, checksum=agreement.checksum)
            self.finish_freed()
            self.message_bytes_max = agreement.message_bytes_max
            self._state.note_path_room(self)  # perhaps a message was too long
            self._state.mark_dirty(self)
        self.writer.flush()
        self._progress.deliver()

    def restart_peer(self) -> int:
        """Note the peer's restart; return how many sent messages are lost with it."""
        with self._state.lock:
            count = self.core.restart_peer()
            self._state.counters.peer_restarted += 1
            self._state.counters.send_given_up += count
            self.finish_freed()
        self._progress.deliver()
        return count

    def remember_handshake(self, generation: int | None) -> None:
        """Note a kernel's generation."""
        with self._state.lock:
            self.core.receiver.generations.generation = generation

    def control(
        self, *, source_port: int, target_port: int, extension: bytes, hello: bool = False
    ) -> None:
        """Queue a ping, pong or probe; dropped without a stream, since it answers a stream.

        A pong is dropped too when as many messages wait as may: the pinging peer does not read.
        """
        with self._state.lock:
            is_pong = not source_port and target_port > PROBE_PORT
            count, limits = self.core.sender.message_count(), self._state.limits
            if not self.core.attached or (is_pong and count >= limits.path_messages_max):
                return
            self.core.control(
                source_port=source_port, target_port=target_port, extension=extension, hello=hello
            )
        self.writer.flush()

    def probe_dead_stream(self) -> None:
        """Send the local map, so that a dead connection answers with a reset."""
        with self._state.lock:
            self.core.map_due = self.core.attached
        self.writer.flush()

    def peer_is_congested(self, port: int) -> bool:
        """Return whether the peer's map marks a port."""
        with self._state.lock:
            return self._host.congested_at(self.peer).test(port)

    def hold_behind(self, other: Path | None) -> None:
        """Hold new messages until `other` has delivered its present queue."""
        assert other is None or isinstance(other, StreamPath)
        with self._state.lock:
            self.core.hold_behind(other.core.sender.fence() if other else Fence())
            if other is not None:
                other._dependents.append(self)
                other.core.request_ack()
        if other is not None:
            other.writer.flush()
        self.writer.flush()

    def drop_queue(self) -> int:
        """Drop every message; the next send of each sender fails once with EHOSTUNREACH."""
        with self._state.lock:
            sender = self.core.sender
            count = sender.drop_all()
            self._state.counters.send_given_up += count
            for owner in sender.freed:
                owner.fail(self.peer)
            self._wanted = False
            self.writer.end_batch()
            self.finish_freed()
        self._progress.deliver()
        return count

    def close(self) -> None:
        """Remove the path; its stream is closed."""
        stream = self.detach()
        with self._state.lock:
            if stream is not None:
                self.writer.dispose(stream)
            self.core.sender.drop_all()
            if self in self._host.paths:
                self._host.paths.remove(self)
            self._state.forget_path(self)
            self.finish_freed()
        self._progress.deliver()

    def holds_messages(self) -> bool:
        """Return whether messages of sockets are queued or unacknowledged."""
        with self._state.lock:
            return self.holds()

    def activity(self) -> PathActivity:
        """Return how far the path is. No lock held."""
        with self._state.lock:
            sender = self.core.sender
            sent = sender.unacked or sender.retransmits  # the lower numbers first
            oldest = sent[0][0] if sent else None
            return PathActivity(self.core.receiver.frames, oldest, sender.sequence_next)

    def has_delivered(self) -> bool:
        """Return whether a message of the peer ever reached a local socket."""
        with self._state.lock:
            return self.core.receiver.has_delivered

    def abandon_in_child(self) -> None:
        """Close this copy of the stream after a fork; a plain close sends nothing while shared."""
        if self.stream is not None:
            self.stream.close()
            self.stream = None
        self.core.attached = False
