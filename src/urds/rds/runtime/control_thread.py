"""The control thread: one loop over `plane.help`, one lock, one dispatch in each direction.

Reports of the plane go to the connection that they concern; actions of the local addresses are done
in the order in which they come. This module holds no rule of the protocol. The control lock guards
local addresses and tables; the thread gives it up while it is in `plane.help`, and an application
thread holds it while it binds or resolves. It is never taken with the plane's lock held.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from random import Random
from time import monotonic_ns as now_ns
from typing import TYPE_CHECKING, Protocol

from urds.common.errors import ErrorReason, os_error
from urds.common.logs import LogQueue
from urds.common.reentry import new_lock
from urds.common.types import IPAddress
from urds.rds.constants import Transport
from urds.rds.control.local_address import LocalAddress
from urds.rds.control.stats import Stats
from urds.rds.plane import contract as base
from urds.rds.plane.choose import shm_stream_class
from urds.rds.plane.contract import Interest, Mailbox, MailboxSettings, Plane
from urds.rds.runtime.abandoned import Abandoned
from urds.rds.runtime.accept import Acceptor
from urds.rds.runtime.actions import Actions
from urds.rds.runtime.connect import Streams
from urds.rds.runtime.guard import Guard
from urds.rds.runtime.idle import IdleTime
from urds.rds.runtime.information import Information
from urds.rds.runtime.local_addresses import LocalAddressState
from urds.rds.runtime.looks import Looks
from urds.rds.runtime.paths import Paths
from urds.rds.runtime.peer_events import events
from urds.rds.runtime.rdma import Rdma, wants_rdma
from urds.rds.runtime.releases import Releases
from urds.rds.runtime.reports import Reports
from urds.rds.runtime.shm_connect import ShmStreams
from urds.rds.runtime.tunables import (
    connected_of,
    connection_settings_of,
    limits_of,
    local_address_settings_of,
    tcp_settings_of,
)
from urds.rds.runtime.undelivered import tell_left
from urds.rds.runtime.watches import Watches
from urds.rds.settings import Settings
from urds.rds.transports import tcp
from urds.rds.transports.peer_history import PeerName, Peers

if TYPE_CHECKING:
    from urds.rds.runtime.connections import Found

_MS = 1_000_000
_S = 1_000 * _MS
_HANDSHAKE_NS = 500 * _MS  # how long an end waits for those of new connections
_HANDSHAKE_POLL_S = 0.002


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
        self._idle = IdleTime(round(settings.idle_s * _S), is_endless=on_unused is None)
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
        self.watches = Watches(self.plane)
        self.guard = Guard(self)
        self.streams = Streams(self)
        self.paths = Paths(self.plane, self.looks, self.streams)
        self.acceptor = Acceptor(self)
        self.releases = Releases(self)
        self.actions = Actions(self)
        self.reports = Reports(self)
        self.rdma = Rdma(self)
        self.stopping = self._is_closed = False
        self.failed = False  # see `fail`
        self.information = Information(self.watches, self.guard.confine)
        self.clients: Clients | None = None  # of a node: programs with sockets here
        with ExitStack() as undo:  # the system may have no descriptor left
            undo.callback(self.plane.release)
            self.shm_streams = ShmStreams(self, shm_stream_class(self.plane))
            self.abandoned = Abandoned(self.watches, self.unbind, lambda: self.stopping)
            undo.callback(self.abandoned.release)
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
        *,
        takes_port: bool = True,
    ) -> Mailbox:
        """Bind a mailbox; the first of an address makes this process the host of it.

        One that takes no port has it as the source of what it sends; another one may have it too.

        Raises OSError: EADDRNOTAVAIL, EADDRINUSE (port, or address held elsewhere), EINVAL, EIO,
        ENOPROTOOPT for RDMA without a device.
        """
        self.refuse_reentry()
        mailbox: Mailbox | None = None
        try:
            with self.lock:
                self.abandoned.close_all()
                mailbox = self._bind(address, port, settings, transport, takes_port)
        except BaseException:  # perhaps of a signal handler, as late as that
            if mailbox is not None:
                self.abandoned.add(mailbox)
            raise
        return mailbox

    def _bind(
        self,
        address: IPAddress,
        port: int,
        settings: MailboxSettings,
        transport: Transport | None,
        takes_port: bool,
    ) -> Mailbox:
        if self.failed:
            raise os_error(ErrorReason.NODE_FAILED)
        if self._is_closed:  # if for want of sockets, the caller uses the next one
            raise os_error(ErrorReason.CLOSED)
        before = self.hosts.get(address)
        host = before or self._open(address)
        is_new = before is None or before.is_released
        if host.is_released:
            self.releases.listen_anew(host)
        mailbox, chosen = None, 0
        try:
            over_rdma = wants_rdma(transport, self.settings)
            if over_rdma:
                self.rdma.open(address, local_address_settings_of(self.settings, address))
            if takes_port:
                port = chosen = host.endpoint.bind(port)
            mailbox = self.plane.mailbox(local=address, port=port, settings=settings)
            if not takes_port:
                host.portless.add(mailbox)
            host.mailboxes.add(mailbox)
            if over_rdma:
                self.rdma.add(mailbox)
        except BaseException:
            if mailbox is not None:
                mailbox.close(0)
                self.unbind(mailbox)
            if chosen:
                host.endpoint.release(chosen)
            if is_new:
                self.releases.release(host)  # for other processes, as it was before
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
            if mailbox not in host.portless:
                host.endpoint.release(mailbox.port)
            if len(host.mailboxes) == 1 and self._idle.begin():
                self.plane.wake()  # else the thread may sleep for ever
            host.mailboxes.discard(mailbox)  # last: an interrupted call is made again
            host.portless.discard(mailbox)

    def is_inside(self) -> bool:
        """Tell whether the calling thread holds the control lock, a plane's or a device's."""
        return self.holds_lock() or self.plane.is_inside() or self.rdma.is_inside()

    def refuse_reentry(self) -> None:
        """Refuse a call of a handler or finaliser inside another. Raises OSError (EDEADLK)."""
        if self.is_inside():
            raise os_error(ErrorReason.REENTERED)

    def inform(self, report: Callable[[], bytes]) -> None:
        """Answer `urds info` with what `report` returns; it is called in the control thread."""
        with self.lock:
            self.information.open(report, self.settings.info_directory)

    def resolve(self, mailbox: Mailbox, peer: IPAddress) -> None:
        """Route a mailbox to a peer, in the sender's thread.

        Raises OSError: EACCES for a peer that is not allowed, EUSERS when there are too many, EBADF
        for a mailbox that was unbound, EDEADLK in a handler or finaliser that interrupted another
        call.
        """
        self.refuse_reentry()
        with self.lock:
            self.make_route(mailbox, peer)

    def make_route(self, mailbox: Mailbox, peer: IPAddress) -> None:
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
        paths = self.paths.to(host, peer)
        paths.mailboxes.add(mailbox)
        mailbox.route(peer, paths.path_for(mailbox.port))

    def snapshot(self) -> base.Snapshot:
        """Return counters and tables of the process. Raises OSError as `Plane.snapshot`."""
        if not self.is_inside():
            with self.lock:
                self.abandoned.close_all()
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
        found = None if host is None else host.report(row.peer, row.index)
        if found is None:
            return None
        report, path = found
        history = self.peers.of(PeerName(row.local, row.peer))
        return report, history, self.looks.look(path, at_ns)

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
            tell_left(self, left, drain_ns / _S)
        self._wait_for_handshakes()
        self.stopping = True
        self.end(at_exit=at_exit, flush_ns=flush_ns)
        return left

    def _wait_for_handshakes(self) -> None:
        """Wait, up to a limit, until each peer whose messages arrived is known.

        Before that nothing can be acknowledged to it, and messages may overtake its handshake.
        """
        until_ns = now_ns() + _HANDSHAKE_NS
        while self._thread.is_alive() and now_ns() < until_ns:
            with self.lock:
                if not any(host.awaits_handshake() for host in self.hosts.values()):
                    return
            time.sleep(_HANDSHAKE_POLL_S)

    def stop_if_unused(self) -> bool:
        """Take no more sockets if there is none, nor a message of a closed one; `end` is next."""
        since_ns = self._idle.since_ns
        left = self.plane.drain(0)
        with self.lock:
            if left or self.stopping or self._is_used() or since_ns != self._idle.since_ns:
                return False
            self.stopping = self._is_closed = True
            return True

    def _is_used(self) -> bool:
        return self.failed or any(host.mailboxes for host in self.hosts.values())

    def end(self, *, at_exit: bool = False, flush_ns: int = 0) -> None:
        """End the thread, if it is not the caller, the connections and the plane."""
        self.plane.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=1.0)
        with self.lock:
            self._is_closed = not at_exit  # a bind from now on would listen for ever
            if flush_ns:
                self.streams.attach_decided()
            self._close_pending()
            self.rdma.stop_listening()
            self.information.close()
        self.rdma.end_connections()
        if at_exit:
            self.plane.end_streams(flush_ns)
        else:
            self.plane.close(0)
        self.rdma.close()
        is_over = threading.current_thread() is self._thread or not self._thread.is_alive()
        if not at_exit and is_over:
            self.plane.release()
            self.abandoned.release()

    def fail(self) -> None:
        """Refuse every call of every socket with EIO: the control thread ends by a fault."""
        self.failed = True
        self.plane.fail()  # before anything that may fail as well: it wakes all waiters
        self.rdma.end_connections()
        with self.lock:
            self._close_pending()
            self.rdma.close()
            self.information.close()

    def abandon_in_child(self) -> None:
        """After a fork, in the child: close the copies of the parent's descriptors.

        The lock is renewed: its holder, if it had one, is not here.
        """
        self.stopping = True
        self.lock, self.holds_lock = new_lock()
        self.log.abandon_in_child()
        self.abandoned.release()
        self._close_pending()
        self.rdma.abandon_in_child()
        self.information.abandon_in_child()

    def _close_pending(self) -> None:
        """Close the listeners, and what is attached to no path."""
        for host in self.hosts.values():
            host.listener.close()
        self.shm_streams.close()
        self.streams.close()
        self.acceptor.close()

    # -- the thread

    def _run(self) -> None:
        deadline_ns = self._idle.next_ns()
        while True:
            events = self.plane.help(deadline_ns)
            with self.lock:
                if self.stopping:
                    self.reports.take_last(events)
                    for host in self.hosts.values():
                        self.carry_out(host)
                    return
                for event in events:
                    self.reports.take(event)
                is_unused = self._idle.is_over(now_ns(), is_used=self._is_used())
                deadline_ns = self._progress()
            if is_unused and self._on_unused is not None and self._on_unused():
                return

    def _progress(self) -> int | None:
        """Run due timers, do actions, return the next deadline."""
        now = now_ns()
        self.watches.handle_timeout(now)
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
        deadlines += [self.watches.next_ns(), self.streams.next_ns(), self.shm_streams.next_ns()]
        deadlines.append(self._idle.next_ns())
        return min((at_ns for at_ns in deadlines if at_ns is not None), default=None)

    def carry_out(self, host: LocalAddressState) -> None:
        """Do what the core of a local address has decided."""
        while (action := host.endpoint.poll_event()) is not None:
            with self.guard.confine(host, action.peer):
                self.actions.carry_out(host, action)

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
                may_evict=lambda peer: self.paths.take_routes(self.hosts[address], peer),
                may_disconnect=lambda peer: self.paths.may_disconnect(self.hosts[address], peer),
                connected=self.connected,
                npaths_before=lambda peer: self.paths.take_before(address, peer),
            ),
            listener=listener,
        )
        try:
            self.watches.serve_now(listener.fileno(), self.acceptor.handler(host), Interest.READ)
        except BaseException:
            listener.close()
            raise
        self.hosts[address] = host
        self.shm_streams.listen(host)
        return host
