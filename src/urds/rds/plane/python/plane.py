"""The data plane of a process: the calls of `contract.Plane`.

`State` owns what the one lock guards, `Progress` does what is done without it, `ProgressThread`
what no call of a program does, `Shutdown` the ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from os import close
from typing import TYPE_CHECKING

from urds.common.types import IPAddress
from urds.rds.plane.contract import (
    Event,
    Interest,
    Limits,
    MailboxSettings,
    Path,
    Received,
    Snapshot,
)
from urds.rds.plane.python.background import ProgressThread
from urds.rds.plane.python.external import ExternalPath
from urds.rds.plane.python.loop_path import LoopPath
from urds.rds.plane.python.mailbox import Mailbox
from urds.rds.plane.python.poll_set import PollSet
from urds.rds.plane.python.progress import Progress
from urds.rds.plane.python.shutdown import Shutdown
from urds.rds.plane.python.snapshots import take_snapshot
from urds.rds.plane.python.state import Host, State
from urds.rds.plane.python.stream_path import StreamPath

if TYPE_CHECKING:
    from urds.rds.plane import contract
    from urds.rds.plane.message_transport import MessageTransport


class Plane:
    """See `contract.Plane`."""

    def __init__(
        self,
        *,
        limits: Limits,
        resolve: Callable[[Mailbox, IPAddress], None],
        clock_ns: Callable[[], int] | None = None,
        generation: int | None = None,
    ) -> None:
        self.limits = limits
        self.generation = generation
        self.resolve = resolve
        with ExitStack() as undo:  # the system may be out of descriptors
            self.state = state = State(limits, clock_ns, generation)
            undo.callback(state.wait_queue.close)
            undo.callback(close, state.interrupts.wake_descriptor)
            poll_set = PollSet(state.lock, state.wait_queue.kick)
            undo.callback(poll_set.close)
            self.passes = Progress(state, poll_set)
            self.progress_thread = ProgressThread(state, self.passes)
            undo.pop_all()
        self._shutdown = Shutdown(state, self.passes, self.progress_thread)

    # -- creating objects

    def mailbox(self, *, local: IPAddress, port: int, settings: MailboxSettings) -> Mailbox:
        """Bind a mailbox; the caller has checked that the port is free."""
        mailbox: Mailbox | None = None
        host = self.host(local)
        try:
            with self.state.lock:
                mailbox = Mailbox(
                    self.state,
                    self.passes,
                    host,
                    port=port,
                    settings=settings,
                    resolve=self._resolve,
                    close=self._shutdown.close_mailbox,
                )
                host.add_mailbox(port, mailbox)
        except BaseException:  # of a signal handler: no caller gets this mailbox
            if mailbox is not None:
                self._shutdown.close_mailbox(mailbox, 0)
            raise
        return mailbox

    def path(
        self, *, local: IPAddress, peer: IPAddress, index: int, sequence_first: int
    ) -> StreamPath:
        """Create a path without a stream."""
        with self.state.lock:
            host = self.state.host(local)
            path = StreamPath(
                self.state,
                self.passes,
                host,
                peer=peer,
                index=index,
                sequence_first=sequence_first,
            )
            host.paths.append(path)
        return path

    def received(self, path: Path) -> Received:
        """Return the peer's numbers on a path."""
        assert isinstance(path, StreamPath)
        with self.state.lock:
            return path.core.receiver.received()

    def expect(self, path: Path, received: Received) -> None:
        """Have a path continue from an earlier one to the same peer."""
        assert isinstance(path, StreamPath)
        with self.state.lock:
            path.core.receiver.expect(received)

    def move_queue(self, path: Path, other: Path, mailboxes: Sequence[contract.Mailbox]) -> None:
        """Route mailboxes over another path to a peer, and move what was never sent there."""
        assert isinstance(path, StreamPath) and isinstance(other, StreamPath)
        with self.state.lock:
            # Routes last: after an interrupt before them, what is new stands behind the moved.
            moved = path.core.sender.move_unsent(other.core.sender)
            for mailbox in mailboxes:
                assert isinstance(mailbox, Mailbox)
                mailbox.sends.set_route(path.peer, other)
            self.state.note_path_room(path)  # senders that wait for room: another path
            path.finish_freed()
            if moved:
                other.check_full()
                other.want()
        other.writer.flush()
        self.passes.deliver()

    def loop(self, *, local: IPAddress, peer: IPAddress) -> LoopPath:
        """Create a path between two addresses of this process."""
        return LoopPath(self.state, local=local, peer=peer)

    def host(self, address: IPAddress) -> Host:
        """Return the tables of a local address."""
        with self.state.lock:
            return self.state.host(address)

    def external_path(
        self,
        *,
        local: IPAddress,
        peer: IPAddress,
        tos: int,
        message_bytes_max: int,
        transport: MessageTransport,
    ) -> ExternalPath:
        """Create the plane's part of a path that a message transport has."""
        with self.state.lock:
            host = self.state.host(local)
            path = ExternalPath(
                self.state,
                self.passes,
                host,
                peer=peer,
                tos=tos,
                message_bytes_max=message_bytes_max,
                transport=transport,
            )
            host.add_external(path)
        return path

    def finish_pass(self) -> None:
        """End a pass of a message transport."""
        self.passes.finish_pass()

    def _resolve(self, mailbox: Mailbox, peer: IPAddress) -> None:
        self.resolve(mailbox, peer)  # as it is by then

    # -- the control plane's calls

    @property
    def batches(self) -> bool:
        """Whether a message may wait for others to join it; `progress` sends it."""
        return self.state.batches

    def help(self, deadline_ns: int | None) -> list[Event]:
        """See `contract.Plane.help`; one thread only."""
        if deadline_ns is not None and deadline_ns <= self.state.clock_ns():
            self.passes.catch_up()
            self.passes.progress()
            with self.state.lock:
                return self.state.take_events()
        return self.progress_thread.run(deadline_ns)

    def wake(self) -> None:
        """Make `help` return early."""
        with self.state.lock:
            self.state.thread.interrupt()
        self.passes.deliver()

    def adopt(self) -> None:
        """Leave reading to an event loop that calls `progress`."""
        self.state.loops.append(None)

    def abandon(self) -> None:
        """End one `adopt`."""
        self.state.loops.pop()
        if not self.state.closed:
            self.passes.ring()

    def is_inside(self) -> bool:
        """See `contract.Plane.is_inside`."""
        return self.passes.is_inside()

    def progress(self) -> int:
        """Make one pass without blocking."""
        return self.passes.progress()

    def fileno(self) -> int:
        """Return the plane's poll set."""
        return self.passes.poll_set.fileno()

    def watch(self, descriptor: int, interest: Interest) -> None:
        """Report `Ready` once."""
        self.passes.poll_set.watch(descriptor, interest)

    def unwatch(self, descriptor: int) -> None:
        """Stop watching."""
        self.passes.poll_set.unwatch(descriptor)

    def snapshot(self) -> Snapshot:
        """Return counters and tables."""
        self.passes.refuse_reentry()
        with self.state.lock:
            return take_snapshot(self.state)

    # -- shutdown

    def drain(self, drain_ns: int) -> int:
        """Send queued messages and wait for their acknowledgement; return the messages left."""
        return self._shutdown.drain(drain_ns)

    def end_streams(self, flush_ns: int = 0) -> None:
        """End the streams in order; wake no thread."""
        self._shutdown.end_streams(flush_ns)

    def close(self, drain_ns: int) -> int:
        """Drain, end the streams in order, wake all threads."""
        return self._shutdown.close(drain_ns)

    def fail(self) -> None:
        """Fail every call with EIO, wake all threads: the control plane failed."""
        self._shutdown.fail()

    def release(self) -> None:
        """Close the plane's own descriptors; kept while a call is still inside."""
        if self.state.wait_queue.is_empty():
            self.progress_thread.close()
            self.passes.poll_set.close()
            self.state.wait_queue.close()

    def abandon_in_child(self) -> None:
        """After a fork, in the child: fail every call, change nothing of the parent's."""
        self._shutdown.abandon_in_child()
