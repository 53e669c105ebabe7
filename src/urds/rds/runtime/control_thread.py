"""The control thread: one loop over `plane.help`, one lock, one dispatch in each direction.

Reports of the plane go to the connection that they concern; actions of the local addresses are done
in the order in which they come. This module holds no rule of the protocol. The control lock guards
local addresses and tables; the thread gives it up while it is in `plane.help`, and an application
thread holds it while it binds or resolves. It is never taken with the plane's lock held.
"""

from __future__ import annotations

import errno
import os
import resource
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from random import Random
from time import monotonic_ns as now_ns
from typing import TYPE_CHECKING, Protocol

from urds.common.errors import ErrorReason, os_error
from urds.common.logs import LogQueue
from urds.common.reentry import new_lock
from urds.common.types import IPAddress
from urds.rds.constants import MAX_MESSAGE_BYTES, Transport
from urds.rds.control.connected import PEERS_MAX, Connected
from urds.rds.control.events import PeerKind
from urds.rds.control.local_address import LocalAddress
from urds.rds.control.settings import ConnectionSettings, LocalAddressSettings
from urds.rds.control.stats import Stats
from urds.rds.control.tcp_peer import TcpPeer
from urds.rds.plane import contract as base
from urds.rds.plane.choose import shm_stream_class
from urds.rds.plane.contract import Interest, Mailbox, MailboxSettings, Path, Plane
from urds.rds.runtime.accept import Acceptor
from urds.rds.runtime.actions import Actions
from urds.rds.runtime.connect import Streams
from urds.rds.runtime.guard import Guard
from urds.rds.runtime.information_socket import InformationSocket
from urds.rds.runtime.local_addresses import LocalAddressState, PeerPaths
from urds.rds.runtime.looks import Looks
from urds.rds.runtime.peer_events import events
from urds.rds.runtime.rdma import Rdma, delays_of, wants_rdma
from urds.rds.runtime.releases import Releases
from urds.rds.runtime.shm_connect import ShmStreams
from urds.rds.settings import Settings
from urds.rds.transports import subnets, tcp
from urds.rds.transports.peer_history import TURNED_AWAY, PeerName, Peers

if TYPE_CHECKING:
    from urds.rds.runtime.connections import Found

_MS = 1_000_000
_S = 1_000 * _MS
_REST_NS = 100 * _MS  # when watches are used up
_HANDSHAKE_NS = 500 * _MS  # how long an end waits for those of new connections
_HANDSHAKE_POLL_S = 0.002
_HARMLESS = frozenset({base.DownReason.END_OF_STREAM, base.DownReason.ERROR})
_STARTED_NS = time.time_ns() - time.monotonic_ns()
_SEQUENCE_SHIFT = 20  # a million messages per millisecond would be needed to overtake the clock


class Clients(Protocol):
    """The worker of a node, which is told of the sockets of other processes."""

    def note(self, event: base.Left | base.ClientError) -> None:
        """Take a report; the control thread calls, with the control lock held."""

    def fail_route(self, mailbox: Mailbox, peer: IPAddress, code: int) -> None:
        """Drop what waits for a route that cannot be; the next send fails with that errno."""


class Driver:
    """Owns the plane, local addresses and the thread; made with the first bind of a process."""

    def __init__(
        self,
        settings: Settings,
        make_plane: Callable[..., Plane],
        on_unused: Callable[[], bool] | None = None,
    ) -> None:
        """Begin. After `idle_s` without a socket the thread calls `on_unused`; if true, it ends."""
        self.settings = settings
        self._on_unused = on_unused
        self._idle_ns = round(settings.idle_s * _S)
        self._unused_since_ns = now_ns()
        # When to check whether there is a socket; None while there was one at the last check.
        self._unused_at_ns = None if on_unused is None else self._unused_since_ns + self._idle_ns
        self.lock, self.holds_lock = new_lock()
        self.random = Random(os.urandom(16))
        self.stats = Stats()
        self.log = LogQueue()
        self.peers = Peers(
            self.log.part("control"), base.Carrier.TCP, now_ns=now_ns, on_event=events.emit
        )
        self.looks = Looks()
        self.pongs_kept_back = 0
        self.generation = self.random.randrange(1, 1 << 32)
        self.hosts: dict[IPAddress, LocalAddressState] = {}
        self.plane = make_plane(
            limits=limits_of(settings), resolve=self.resolve, generation=self.generation
        )
        self.tcp = tcp_settings_of(settings)
        self.connected = connected_of(settings)  # now, so a later setrlimit changes nothing
        self.guard = Guard(self)
        self.streams = Streams(self)
        self.acceptor = Acceptor(self)
        self.releases = Releases(self)
        self.actions = Actions(self)
        self.rdma = Rdma(self)
        self._paths: dict[Path, tuple[LocalAddressState, IPAddress]] = {}
        self._handlers: dict[int, Callable[[], None]] = {}
        self._unwatched: dict[int, Interest] = {}  # for want of a watch; tried again
        self._watch_at_ns: int | None = None
        self.stopping = self._ended_unused = False
        self.failed = False  # see `fail`
        # Sockets that were forgotten, or closed by a handler inside another call. Any thread may
        # append inside any call, so an append takes no lock and rings the doorbell.
        self._abandoned: deque[tuple[Mailbox, int | None]] = deque()
        self._information: InformationSocket | None = None
        self.clients: Clients | None = None  # of a node: programs with sockets here
        with ExitStack() as undo:  # the system may have no descriptor left
            undo.callback(self.plane.release)
            self.shm_streams = ShmStreams(self, shm_stream_class(self.plane))
            self._doorbell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            undo.callback(os.close, self._doorbell)
            self.serve_now(self._doorbell, self._answer_doorbell, Interest.READ)
            self._thread = threading.Thread(
                target=self.guard.run, args=[self._run], name="urds-driver", daemon=True
            )
            self._thread.start()
            undo.pop_all()

    # -- for application threads

    def bind(
        self,
        address: IPAddress,
        port: int,
        settings: MailboxSettings,
        transport: Transport | None = None,
    ) -> Mailbox:
        """Bind a mailbox; the first of an address makes this process the host of it.

        Raises OSError: EADDRNOTAVAIL, EADDRINUSE (port, or address held elsewhere), EINVAL, EIO,
        ENOPROTOOPT for RDMA without a device.
        """
        self.refuse_reentry()
        mailbox: Mailbox | None = None
        try:
            with self.lock:
                self._close_abandoned()
                mailbox = self._bind(address, port, settings, transport)
        except BaseException:  # perhaps of a signal handler, as late as that
            if mailbox is not None:
                self.abandon(mailbox)
            raise
        return mailbox

    def _bind(
        self,
        address: IPAddress,
        port: int,
        settings: MailboxSettings,
        transport: Transport | None,
    ) -> Mailbox:
        mailbox: Mailbox | None = None
        if self.failed:
            raise os_error(ErrorReason.NODE_FAILED)
        if self._ended_unused:  # just now: the caller uses the next one
            raise os_error(ErrorReason.CLOSED, f"no socket for {self.settings.idle_s} s (idle_s)")
        host = self.hosts.get(address) or self._open(address)
        if host.is_released:
            self.releases.listen_anew(host)
        over_rdma = wants_rdma(transport, self.settings)
        if over_rdma:
            self.rdma.open(address, local_address_settings_of(self.settings, address))
        chosen = host.endpoint.bind(port)
        try:
            mailbox = self.plane.mailbox(local=address, port=chosen, settings=settings)
            host.mailboxes.add(mailbox)
            if over_rdma:
                self.rdma.add(mailbox)
        except BaseException:
            if mailbox is not None:
                mailbox.close(0)
                self.unbind(mailbox)
            host.endpoint.release(chosen)
            raise
        return mailbox

    def unbind(self, mailbox: Mailbox) -> None:
        """Give the port back; the mailbox is closed."""
        self.rdma.free_regions(mailbox)  # without the lock: a peer may be copying at this moment
        with self.lock:
            host = self.hosts.get(mailbox.local)
            if host is None or mailbox not in host.mailboxes:
                return
            self.rdma.forget(mailbox)
            for peer in host.peers.values():
                peer.mailboxes.discard(mailbox)
            host.endpoint.release(mailbox.port)
            if len(host.mailboxes) == 1:
                self._unused_since_ns = now_ns()
                if self._unused_at_ns is None and self._on_unused is not None:
                    self._unused_at_ns = self._unused_since_ns + self._idle_ns
                    self.plane.wake()  # else the thread may sleep for ever
            host.mailboxes.discard(mailbox)  # last: an interrupted call is made again

    def is_inside(self) -> bool:
        """Tell whether the calling thread holds the control lock, a plane's or a device's."""
        return self.holds_lock() or self.plane.is_inside() or self.rdma.is_inside()

    def refuse_reentry(self) -> None:
        """Refuse a call of a handler or finaliser inside another. Raises OSError (EDEADLK)."""
        if self.is_inside():
            raise os_error(ErrorReason.REENTERED)

    def abandon(self, mailbox: Mailbox, linger_ns: int | None = None) -> None:
        """Have a mailbox closed soon, or by the next bind; takes no lock."""
        self._abandoned.append((mailbox, linger_ns))
        if not self.stopping:  # else the plane closes it with everything
            os.eventfd_write(self._doorbell, 1)

    def _answer_doorbell(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._doorbell)
        self._close_abandoned()
        self.serve(self._doorbell, self._answer_doorbell, Interest.READ)

    def _close_abandoned(self) -> None:
        """Close what was abandoned and free its ports. Control lock held."""
        while self._abandoned:
            mailbox, linger_ns = self._abandoned[0]  # stays there should an interrupt end this
            mailbox.close(None if linger_ns else linger_ns)  # no caller waits here
            self.unbind(mailbox)
            self._abandoned.popleft()

    def inform(self, report: Callable[[], bytes]) -> None:
        """Answer `urds info` with what `report` returns; it is called in the control thread."""
        with self.lock:
            self._information = InformationSocket.open(report, self.settings.info_directory)
            self._watch_information()

    def _watch_information(self) -> None:
        information = self._information
        if information is not None:

            def answer() -> None:
                with self.guard.confine():
                    information.handle_ready()
                self._watch_information()

            self.serve(information.fileno(), answer, Interest.READ)

    def resolve(self, mailbox: Mailbox, peer: IPAddress) -> None:
        """Route a mailbox to a peer, in the sender's thread.

        Raises OSError: EACCES for a peer that is not allowed, EUSERS when there are too many, EBADF
        for a mailbox that was unbound, EDEADLK in a handler or finaliser that interrupted another
        call.
        """
        self.refuse_reentry()
        with self.lock:
            self._make_route(mailbox, peer)

    def _make_route(self, mailbox: Mailbox, peer: IPAddress) -> None:
        """Route a mailbox to a peer. Control lock held."""
        host = self.hosts[mailbox.local]
        if mailbox not in host.mailboxes:
            raise os_error(ErrorReason.CLOSED)
        if mailbox in self.rdma:
            self.rdma.bound.resolve(mailbox, peer)
            return
        if peer in self.hosts and not self.hosts[peer].is_released:
            mailbox.route(peer, self.plane.loop(local=mailbox.local, peer=peer))
            return
        if not self.stopping:  # else no thread would serve the connection
            host.endpoint.connection(peer, now_ns())
            # An eviction for it, at any address, is over before its peer is resolved anew.
            for one in self.hosts.values():
                self.carry_out(one)
        paths = self.paths_to(host, peer)
        paths.mailboxes.add(mailbox)
        mailbox.route(peer, paths.path_for(mailbox.port))

    def connect_again(self, pairs: Iterable[tuple[IPAddress, IPAddress]]) -> None:
        """Connect at once between these local addresses and peers: an earlier process did.

        Of a local address without a socket, and of a peer that is none any more, nothing is done.
        """
        with self.lock:
            for local, peer in pairs:
                host = self.hosts.get(local)
                if host is None or host.is_released or peer in self.hosts:
                    continue
                with suppress(OSError):  # not allowed, or one too many
                    host.endpoint.connection(peer, now_ns()).handle_was_connected(now_ns())
                self.carry_out(host)
        self.plane.wake()

    def snapshot(self) -> base.Snapshot:
        """Return counters and tables of the process. Raises OSError as `Plane.snapshot`."""
        if not self.is_inside():
            with self.lock:
                self._close_abandoned()
        return self.rdma.complete(self.plane.snapshot())

    def told_snapshot(self) -> base.Snapshot:
        """Return the same, with what the control planes know of each path."""
        from urds.rds.runtime.connections import with_facts

        snapshot = self.snapshot()
        with self.lock:
            at_ns = now_ns()
            return with_facts(snapshot, lambda row: self._find(row, at_ns), at_ns)

    def _find(self, row: base.PathRow, at_ns: int) -> Found | None:
        """Return what is known of the path of a row; None if it is gone."""
        if row.rdma is not None:
            return self.rdma.find(row, at_ns)
        host = self.hosts.get(row.local)
        connection = None if host is None else host.endpoint.find(row.peer)
        if host is None or connection is None or row.peer not in host.peers:
            return None
        report, paths = connection.report(row.index), host.peers[row.peer].paths
        if report is None or row.index >= len(paths):
            return None
        history = self.peers.of(PeerName(row.local, row.peer))
        return report, history, self.looks.look(paths[row.index], at_ns)

    def failure(self, local: IPAddress, peer: IPAddress) -> str:
        """Return why the last attempt to connect to a peer failed, "" if it did not."""
        with self.lock:
            number = self.peers.of(PeerName(local, peer)).connect_errno
            return os.strerror(number).lower() if number else self.rdma.failure(local, peer)

    def break_connections(self) -> int:
        """Reset every connection of this process, as a fault would; return how many."""
        with self.lock:
            return self.streams.break_all() + self.rdma.break_connections()

    def drain(self, drain_ns: int) -> int:
        """Send what is queued and wait for its acknowledgement; return the messages left."""
        return self.plane.drain(drain_ns)

    def close(
        self, drain_ns: int, *, at_exit: bool = False, goes_on: bool = False, flush_ns: int = 0
    ) -> int:
        """Drain, end the thread, close the plane; return the messages that were left.

        `at_exit` ends the connections and nothing else: waiting calls go on waiting, as in system
        calls, and no call is refused for it. The thread ends before the streams do: else a peer
        that comes back at once would be accepted, and send its messages to a node that is about to
        end. `goes_on` says that another process sends what is left, so that nothing is told of it;
        `flush_ns` is then how long kernels have to answer for what they were sent.
        """
        if self.stopping:
            return 0
        left = self.drain(drain_ns)
        if left and not goes_on:
            from urds.rds.runtime.undelivered import tell_left

            tell_left(self, left, drain_ns / _S)
        self._wait_for_handshakes()
        self.stopping = True
        self.end(at_exit=at_exit, flush_ns=flush_ns)
        return left

    def _wait_for_handshakes(self) -> None:
        """Wait, up to a limit, until each peer whose messages arrived is known.

        Before that nothing can be acknowledged to it, and the messages of a new connection may
        overtake its handshake. The control thread serves it.
        """
        until_ns = now_ns() + _HANDSHAKE_NS
        while self._thread.is_alive() and now_ns() < until_ns:
            with self.lock:
                if not any(self._awaits_handshake(host) for host in self.hosts.values()):
                    return
            time.sleep(_HANDSHAKE_POLL_S)

    def _awaits_handshake(self, host: LocalAddressState) -> bool:
        """Tell whether a peer with a stream has delivered a message and is not known."""
        for peer, paths in host.peers.items():
            connection = host.endpoint.find(peer)
            if connection is None or connection.facts.kind is not PeerKind.UNKNOWN:
                continue
            if connection.has_stream and any(path.has_delivered() for path in paths.paths):
                return True
        return False

    def stop_if_unused(self) -> bool:
        """Take no more sockets if there is none, nor a message of a closed one; `end` is next."""
        since_ns = self._unused_since_ns
        left = self.plane.drain(0)
        with self.lock:
            if left or self.stopping or self._is_used() or since_ns != self._unused_since_ns:
                return False
            self.stopping = self._ended_unused = True
            return True

    def _is_used(self) -> bool:
        return self.failed or any(host.mailboxes for host in self.hosts.values())

    def _is_unused_for_long(self, at_ns: int) -> bool:
        """Tell whether there was no socket for `idle_s`; note when to check again."""
        if self._unused_at_ns is None or at_ns < self._unused_at_ns:
            return False
        due_ns = self._unused_since_ns + self._idle_ns
        if self._is_used():
            self._unused_at_ns = None
        elif due_ns > at_ns:
            self._unused_at_ns = due_ns
        else:
            self._unused_at_ns = at_ns + max(self._idle_ns, _REST_NS)  # should it not end now
            return True
        return False

    def end(self, *, at_exit: bool = False, flush_ns: int = 0) -> None:
        """End the thread, if it is not the caller, the connections and the plane."""
        self.plane.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=1.0)
        with self.lock:
            self._close_pending()
            self.rdma.stop_listening()
            if self._information is not None:
                self._information.close()
        self.rdma.end_connections()
        if at_exit:
            self.plane.end_streams(flush_ns)
        else:
            self.plane.close(0)
        self.rdma.close()
        is_over = threading.current_thread() is self._thread or not self._thread.is_alive()
        if not at_exit and is_over:
            self.plane.release()
            os.close(self._doorbell)

    def fail(self) -> None:
        """Refuse every call of every socket with EIO: the control thread ends by a fault."""
        self.failed = True
        self.plane.fail()  # before anything that may fail as well: it wakes all waiters
        self.rdma.end_connections()
        with self.lock:
            self._close_pending()
            self.rdma.close()
            if self._information is not None:
                self._information.close()

    def abandon_in_child(self) -> None:
        """After a fork, in the child: close the copies of the parent's descriptors.

        The lock is renewed: its holder, if it had one, is not here.
        """
        self.stopping = True
        self.lock, self.holds_lock = new_lock()
        self.log.abandon_in_child()
        os.close(self._doorbell)
        self._close_pending()
        self.rdma.abandon_in_child()
        if self._information is not None:
            self._information.abandon_in_child()

    def _close_pending(self) -> None:
        """Close the listeners, and what is attached to no path."""
        for host in self.hosts.values():
            host.listener.close()
        self.shm_streams.close()
        self.streams.close()
        self.acceptor.close()

    # -- for the dispatchers; control lock held

    def serve(self, descriptor: int, handler: Callable[[], None], interest: Interest) -> None:
        """Call `handler` in the control thread once, when the descriptor is ready.

        Where the system has no watch left (ENOSPC, ENOMEM), it is tried again after a pause.
        """
        try:
            self.serve_now(descriptor, handler, interest)
        except OSError:
            self._handlers[descriptor] = handler
            self._unwatched[descriptor] = interest
            self._watch_at_ns = now_ns() + _REST_NS

    def serve_now(self, descriptor: int, handler: Callable[[], None], interest: Interest) -> None:
        """Serve as `serve` does, or leave nothing behind. Raises OSError."""
        self._handlers[descriptor] = handler
        try:
            self.plane.watch(descriptor, interest)
        except BaseException:
            del self._handlers[descriptor]
            raise

    def stop_serving(self, descriptor: int) -> None:
        """Forget a descriptor before it is closed."""
        self._unwatched.pop(descriptor, None)
        if self._handlers.pop(descriptor, None) is not None:
            self.plane.unwatch(descriptor)

    def paths_to(self, host: LocalAddressState, peer: IPAddress) -> PeerPaths:
        """Return the paths to a peer; the first is made here."""
        paths = host.peers.get(peer)
        if paths is None:
            paths = host.peers[peer] = PeerPaths([self.new_path(host, peer, 0)])
        return paths

    def new_path(self, host: LocalAddressState, peer: IPAddress, index: int) -> Path:
        """Make one path; of a peer that was evicted it goes on where the earlier one ended."""
        path = self.plane.path(
            local=host.address, peer=peer, index=index, sequence_first=first_sequence()
        )
        received = host.recall(peer, index)
        if received is not None:
            self.plane.expect(path, received)
        self._paths[path] = (host, peer)
        return path

    def forget_path(self, path: Path) -> None:
        """Close a path for good."""
        self._paths.pop(path, None)
        self.streams.forget(path)
        self.looks.forget(path)
        path.close()

    # -- the thread

    def _run(self) -> None:
        deadline_ns = self._unused_at_ns
        while True:
            events = self.plane.help(deadline_ns)
            with self.lock:
                if self.stopping:
                    self.report_last(events)
                    return
                for event in events:
                    self._report(event)
                is_unused = self._is_unused_for_long(now_ns())
                deadline_ns = self._progress()
            if is_unused and self._on_unused is not None and self._on_unused():
                return

    def _progress(self) -> int | None:
        """Run due timers, do actions, return the next deadline."""
        now = now_ns()
        if self._watch_at_ns is not None and self._watch_at_ns <= now:
            self._watch_again()
        self.streams.handle_timeout(now)
        self.shm_streams.handle_timeout(now)
        deadlines = [self.rdma.progress(now)]
        for host in list(self.hosts.values()):
            due_ns = host.endpoint.poll_timeout()
            if due_ns is not None and due_ns <= now:
                self.guard.run_timers(host, now)
            accepting_at_ns = self.acceptor.handle_timeout(host, now)
            self.carry_out(host)
            deadlines += [host.endpoint.poll_timeout(), accepting_at_ns]
        deadlines += [self._watch_at_ns, self.streams.next_ns(), self.shm_streams.next_ns()]
        deadlines.append(self._unused_at_ns)
        return min((at_ns for at_ns in deadlines if at_ns is not None), default=None)

    def _watch_again(self) -> None:
        unwatched, self._unwatched, self._watch_at_ns = self._unwatched, {}, None
        for descriptor, interest in unwatched.items():
            self.serve(descriptor, self._handlers[descriptor], interest)

    def carry_out(self, host: LocalAddressState) -> None:
        """Do what the core of a local address has decided."""
        while (action := host.endpoint.poll_event()) is not None:
            with self.guard.confine(host, action.peer):
                self.actions.carry_out(host, action)

    def report_last(self, events: Sequence[base.Event]) -> None:
        """Report what was cancelled during the drain, and answer handshakes.

        Without its answer a peer would not know that the acknowledgements that follow are some. No
        other notice matters any more.
        """
        for event in events:
            if isinstance(event, base.LingerOver | base.Control):
                self._report(event)
            elif isinstance(event, base.LingerEnded):
                self.rdma.take(event)
        for host in self.hosts.values():
            self.carry_out(host)

    def _tell_linger_over(self, event: base.LingerOver) -> None:
        from urds.rds.runtime.undelivered import tell_linger_over

        tell_linger_over(self, event)

    def _report(self, event: base.Event) -> None:
        """Pass one report of the plane to the connection that it concerns."""
        if isinstance(event, base.Ready):
            handler = self._handlers.pop(event.descriptor, None)
            if handler is not None:
                handler()
            return
        if isinstance(event, base.LingerOver):
            self._tell_linger_over(event)
            return
        if isinstance(event, base.OfTransport):
            self.rdma.take(event)
            return
        if isinstance(event, base.OfClient):
            self._report_client(event)
            return
        host, peer = self._paths.get(event.path, (None, None))
        if host is None or peer is None:
            return  # the path was forgotten meanwhile
        connection = host.endpoint.find(peer)
        if connection is not None:
            with self.guard.confine(host, peer):
                self._report_to(host, connection, event)

    def _report_client(self, event: base.OfClient) -> None:
        if self.clients is None:
            return
        if not isinstance(event, base.RouteWanted):
            self.clients.note(event)
            return
        try:
            self._make_route(event.mailbox, event.peer)
        except OSError as refused:
            self.clients.fail_route(event.mailbox, event.peer, refused.errno or errno.EIO)

    def _report_to(self, host: LocalAddressState, connection: TcpPeer, event: base.OfPath) -> None:
        index, now = event.path.index, now_ns()
        if isinstance(event, base.ConnectWanted):
            connection.handle_wanted(index, now)
        elif isinstance(event, base.FirstFrame):
            connection.handle_first_frame(index, event.attachment, now)
        elif isinstance(event, base.Down):
            protocol_error = event.reason not in _HARMLESS
            name = PeerName(host.address, connection.peer)
            if not event.frames:  # it was attached, and ended before the peer's first frame
                self.peers.note_failed(name, event.errno or errno.ECONNRESET, TURNED_AWAY)
            elif not index:
                self.peers.expect_loss(name, _reason_of(event))
            self.looks.end(event.path, event.frames, now)
            connection.handle_down(
                index, event.attachment, event.frames, now, protocol_error=protocol_error
            )
        elif isinstance(event, base.PeerRestarted):
            connection.handle_peer_restarted(now)
        else:
            connection.handle_control(
                index,
                event.attachment,
                acknowledgement=event.acknowledgement,
                source_port=event.source_port,
                target_port=event.target_port,
                extension=event.extension,
                now_ns=now,
            )

    # -- local addresses

    def _open(self, address: IPAddress) -> LocalAddressState:
        """Become the host of an address: listen, and decide which peers may connect."""
        listener = tcp.listen(address, self.tcp)
        host = LocalAddressState(
            address=address,
            endpoint=LocalAddress(
                local=address,
                settings=local_address_settings_of(self.settings, address),
                connection_settings=connection_settings_of(self.settings, self.generation),
                random=self.random,
                stats=self.stats,
                may_evict=lambda peer: self._take_routes(self.hosts[address], peer),
                may_disconnect=lambda peer: self._may_disconnect(self.hosts[address], peer),
                connected=self.connected,
            ),
            listener=listener,
        )
        try:
            self.serve_now(listener.fileno(), self.acceptor.handler(host), Interest.READ)
        except BaseException:
            listener.close()
            raise
        self.hosts[address] = host
        self.shm_streams.listen(host)
        return host

    def _may_disconnect(self, host: LocalAddressState, peer: IPAddress) -> bool:
        """Remove the routes to a connected peer, unless it had messages for a socket."""
        paths = host.peers.get(peer)
        if paths is not None and any(
            path.has_delivered() or self.streams.has_unread(path) for path in paths.paths
        ):
            return False
        return self._take_routes(host, peer)

    def _take_routes(self, host: LocalAddressState, peer: IPAddress) -> bool:
        """Remove the routes to an idle peer; false if a message for it was queued before that."""
        paths = host.peers.get(peer)
        if paths is None:
            return True
        if any(path.holds_messages() for path in paths.paths):
            return False
        for mailbox in paths.mailboxes:
            mailbox.route(peer, None)
        # A message queued meanwhile stays, and the next send restores the route by `resolve`.
        return not any(path.holds_messages() for path in paths.paths)


def _reason_of(event: base.Down) -> str:
    """Return in words why a stream ended."""
    if event.reason is base.DownReason.END_OF_STREAM:
        return "the peer closed it"
    if event.reason is base.DownReason.ERROR:
        return os.strerror(event.errno)
    return f"protocol error of the peer: {event.reason.name.lower().replace('_', ' ')}"


def first_sequence() -> int:
    """Return where a path's numbers start: from the clock, so that no earlier start had them.

    It is the clock of this process's start: one that was put back since would give a peer that was
    evicted and comes again numbers that it takes for retransmits.
    """
    return (_STARTED_NS + time.monotonic_ns()) // _MS << _SEQUENCE_SHIFT


def limits_of(settings: Settings) -> base.Limits:
    """Return the plane's bounds."""
    return base.Limits(
        message_bytes_max=settings.max_message_bytes,
        frame_bytes_max=max(settings.max_message_bytes, MAX_MESSAGE_BYTES),
        unacked_packets_max=settings.max_unacked_packets,
        unacked_bytes_max=settings.max_unacked_bytes,
        linger_ns=round(settings.linger_s * _S),
    )


def tcp_settings_of(settings: Settings) -> tcp.TcpSettings:
    """Return the options of TCP connections."""
    return tcp.TcpSettings(
        port=settings.tcp_port,
        send_buffer_bytes=settings.tcp_sndbuf,
        receive_buffer_bytes=settings.tcp_rcvbuf,
        keepalive_idle_s=settings.keepalive_idle_s,
        keepalive_interval_s=settings.keepalive_interval_s,
        keepalive_count=settings.keepalive_count,
    )


def connection_settings_of(settings: Settings, generation: int) -> ConnectionSettings:
    """Return what connections share."""
    return ConnectionSettings(
        generation=generation,
        npaths=settings.npaths,
        message_bytes_max=settings.max_message_bytes,
        **delays_of(settings),
    )


def connected_of(settings: Settings) -> Connected:
    """Return the table of connected peers; unless `peers_max` is set, it leaves descriptors."""
    if settings.peers_max:
        return Connected(settings.peers_max)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors_max = None if soft == resource.RLIM_INFINITY else soft
    return Connected(PEERS_MAX, descriptors_max, npaths=settings.npaths)


def local_address_settings_of(settings: Settings, address: IPAddress) -> LocalAddressSettings:
    """Return what an address allows: its own subnet, and what URDS_ALLOW adds."""
    subnet = subnets.subnet_of(address)
    own = () if subnet is None else (subnet,)
    return LocalAddressSettings(
        allowed=(*own, *settings.networks()),
        peers_max=settings.peers_max or PEERS_MAX,
        pending_max=settings.pending_max,
        pending_per_address_max=settings.pending_per_address_max,
        pending_wait_ns=round(settings.pending_wait_s * _S),
    )
