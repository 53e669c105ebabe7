"""Do the actions of the control core: one method for each kind of action."""

from __future__ import annotations

import errno
from collections.abc import Callable
from time import monotonic_ns as now_ns
from typing import TYPE_CHECKING, Any

from urds.common.logs import messages
from urds.common.types import IPAddress
from urds.rds.control import events
from urds.rds.control.connected import ERROR_REASONS
from urds.rds.plane import contract as base
from urds.rds.plane.contract import Path
from urds.rds.runtime.local_addresses import LocalAddressState, PeerPaths
from urds.rds.transports.peer_history import PeerName

if TYPE_CHECKING:
    from urds.rds.runtime.control_thread import Driver


_CAUSES = {
    events.LossCause.ENDED: "it ended",
    events.LossCause.DROPPED: "ended by this side",
    events.LossCause.SUPERSEDED: "the peer connected anew",
}


class Actions:
    """The dispatch table of a driver; control lock held."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._log = driver.log.part("control")
        self._methods: dict[type, Callable[[LocalAddressState, Any], None]] = {
            events.Connect: self._connect,
            events.RequestCallBack: self._request_call_back,
            events.Attach: self._attach,
            events.Refuse: self._refuse,
            events.Detach: self._detach,
            events.SendControl: self._send_control,
            events.Release: self._release,
            events.Agree: self._agree,
            events.RestartPeer: self._restart_peer,
            events.RememberHandshake: self._remember_handshake,
            events.ProbeDeadStream: self._probe_dead_stream,
            events.FanOut: self._fan_out,
            events.FanIn: self._fan_in,
            events.GiveUp: self._give_up,
            events.Forget: self._forget,
            events.PathUp: self._path_up,
            events.PathLost: self._path_lost,
            events.PeerKnown: self._peer_known,
            events.PeerStartedAnew: self._peer_started_anew,
            events.Refused: self._refused,
        }

    def carry_out(self, host: LocalAddressState, action: events.Action) -> None:
        """Do one action, or log one notice."""
        self._methods[type(action)](host, action)

    # -- streams

    def _connect(self, host: LocalAddressState, action: events.Connect) -> None:
        self._driver.streams.connect(host, action.peer, action.index, action.source_ports)

    def _request_call_back(self, host: LocalAddressState, action: events.RequestCallBack) -> None:
        self._driver.streams.request_call_back(host, action.peer)

    def _attach(self, host: LocalAddressState, action: events.Attach) -> None:
        path = self._path(host, action.peer, action.index)
        stream = self._driver.streams.take(action.stream, path)
        if stream is not None:
            path.attach(stream, hold=action.hold, probe=action.probe)

    def _refuse(self, host: LocalAddressState, action: events.Refuse) -> None:
        self._driver.streams.refuse(action.stream)

    def _detach(self, host: LocalAddressState, action: events.Detach) -> None:
        path = self._path(host, action.peer, action.index)
        self._driver.looks.look(path, now_ns())
        path.detach()
        self._driver.streams.end(path)
        connection = host.endpoint.find(action.peer)
        if connection is not None and path.holds_messages():
            # The plane asks for a stream once per outage, which this was none until now.
            connection.handle_wanted(action.index, now_ns())

    # -- paths

    def _path(self, host: LocalAddressState, peer: IPAddress, index: int) -> Path:
        paths = self._driver.paths.to(host, peer)
        while len(paths.paths) <= index:
            paths.paths.append(self._driver.paths.make(host, peer, len(paths.paths)))
            if paths.agreed is not None:
                paths.paths[-1].agree(paths.agreed)
        return paths.paths[index]

    def _send_control(self, host: LocalAddressState, action: events.SendControl) -> None:
        if not action.source_port and not self._may_answer(host, action):
            self._driver.pongs_kept_back += 1
            return
        self._path(host, action.peer, action.index).control(
            source_port=action.source_port,
            target_port=action.target_port,
            extension=action.extension,
            hello=action.hello,
        )

    def _may_answer(self, host: LocalAddressState, action: events.SendControl) -> bool:
        """Tell whether a pong may be sent: this node answers pings, and the target has room."""
        path = self._path(host, action.peer, action.index)
        enabled = self._driver.settings.ping_enable
        return enabled and not path.peer_is_congested(action.target_port)

    def _release(self, host: LocalAddressState, action: events.Release) -> None:
        self._path(host, action.peer, action.index).end_hold(
            received_by_peer=action.received_by_peer
        )

    def _agree(self, host: LocalAddressState, action: events.Agree) -> None:
        paths = self._driver.paths.to(host, action.peer)
        paths.agreed = base.Agreement(
            ack_mode=action.ack_mode,
            checksum=action.checksum,
            message_bytes_max=action.message_bytes_max,
        )
        for path in paths.paths:
            path.agree(paths.agreed)

    def _restart_peer(self, host: LocalAddressState, action: events.RestartPeer) -> None:
        paths = self._driver.paths.to(host, action.peer)
        lost = sum(path.restart_peer() for path in paths.paths)
        if lost:
            text = "%s restarted: %s sent to it may be lost"
            self._log.warning(text, action.peer, messages(lost))

    def _remember_handshake(
        self, host: LocalAddressState, action: events.RememberHandshake
    ) -> None:
        for path in self._driver.paths.to(host, action.peer).paths:
            path.remember_handshake(action.generation)

    def _probe_dead_stream(self, host: LocalAddressState, action: events.ProbeDeadStream) -> None:
        self._path(host, action.peer, action.index).probe_dead_stream()

    def _fan_out(self, host: LocalAddressState, action: events.FanOut) -> None:
        paths = self._driver.paths.to(host, action.peer)
        if paths.fan_out_from is None:
            # Told again after a fault. To hold a path anew would be behind the wrong one: its
            # sockets may have had another path than path 0, and that may not be empty yet.
            if action.count <= paths.npaths:
                return
            paths.fan_out_from = paths.npaths
        before = paths.fan_out_from  # of one that a fault cut short, too
        others = [self._path(host, action.peer, index) for index in range(before, action.count)]
        for path in others:
            path.hold_behind(None)
        self._route(action.peer, paths, action.count)
        # Behind the path that its sockets had only now: until then they went on sending there.
        for path in others:
            path.hold_behind(paths.paths[path.index & (before - 1)])
        paths.fan_out_from = None

    def _fan_in(self, host: LocalAddressState, action: events.FanIn) -> None:
        paths, count = self._driver.paths.to(host, action.peer), action.count
        closing = paths.paths[count:]
        # Held: one may wait for what its sockets left on another of these, which moves before.
        for path in closing:
            path.hold_behind(None)
        for path in closing:
            moving = [one for one in paths.mailboxes if paths.path_for(one.port) is path]
            self._driver.plane.move_queue(path, paths.paths[path.index & (count - 1)], moving)
        paths.npaths = min(paths.npaths, count)
        if count <= (paths.fan_out_from or 0):
            paths.fan_out_from = None  # none of its paths is left
        for path in closing:
            path.drop_queue()
            self._driver.paths.forget(path)
        del paths.paths[count:]

    def _route(self, peer: IPAddress, paths: PeerPaths, npaths: int) -> None:
        paths.npaths = npaths
        for mailbox in paths.mailboxes:
            mailbox.route(peer, paths.path_for(mailbox.port))

    def _give_up(self, host: LocalAddressState, action: events.GiveUp) -> None:
        dropped = self._path(host, action.peer, action.index).drop_queue()
        seconds = action.down_ns / 1e9
        text = "%s unreachable for %.1f s: dropped %s that it has not acknowledged"
        self._log.warning(text, action.peer, seconds, messages(dropped))
        reason = f"unreachable for {seconds:.1f} s: {messages(dropped)} dropped"
        self._driver.peers.note_given_up(PeerName(host.address, action.peer), reason)

    def _forget(self, host: LocalAddressState, action: events.Forget) -> None:
        paths = host.peers.pop(action.peer, None)
        if paths is None:
            return
        for mailbox in paths.mailboxes:
            mailbox.route(action.peer, None)
        for path in paths.paths:
            path.drop_queue()
            host.remember(action.peer, path.index, self._driver.plane.received(path))
            self._driver.paths.forget(path)
        self._driver.peers.forget(PeerName(host.address, action.peer))

    # -- notices

    def _path_up(self, host: LocalAddressState, action: events.PathUp) -> None:
        """Tell of a connection by its path 0, of the others in a line of level DEBUG."""
        if action.index:
            self._log.debug("%s: path %d to %s is up", host.address, action.index, action.peer)
        else:
            self._driver.peers.note_up(PeerName(host.address, action.peer))

    def _path_lost(self, host: LocalAddressState, action: events.PathLost) -> None:
        if action.index:
            self._log.debug("%s: path %d to %s is lost", host.address, action.index, action.peer)
        else:
            name = PeerName(host.address, action.peer)
            self._driver.peers.note_lost(name, _CAUSES[action.cause])

    def _peer_known(self, host: LocalAddressState, action: events.PeerKnown) -> None:
        self._log.info("%s is %s, %d path(s)", action.peer, action.kind.name.lower(), action.npaths)

    def _peer_started_anew(self, host: LocalAddressState, action: events.PeerStartedAnew) -> None:
        self._driver.peers.note_restarted(PeerName(host.address, action.peer))

    def _refused(self, host: LocalAddressState, action: events.Refused) -> None:
        name, reason = PeerName(host.address, action.peer), _reason_of(self._driver, action.reason)
        if action.reason in ERROR_REASONS and action.peer in host.peers:
            self._driver.peers.note_failed(name, errno.EUSERS, reason)
        if action.reason is events.Reason.STILL_CONNECTED:
            text = "another process connects as %s, which still answers: refused"
            is_new = self._log.warning_once(text, action.peer)
        else:
            is_new = self._log.warning_once("connection of %s refused: %s", action.peer, reason)
        if is_new:
            self._driver.peers.note_refused(name, reason)


def _reason_of(driver: Driver, reason: events.Reason) -> str:
    """Return in words why a connection was refused."""
    if reason in ERROR_REASONS:
        return driver.connected.explain(reason)
    hint = " (setting: URDS_ALLOW)" if reason is events.Reason.NOT_ALLOWED else ""
    return reason.name.lower().replace("_", " ") + hint
