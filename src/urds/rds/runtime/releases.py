"""Local addresses without a socket: released after a time, so that other processes may have them.

In a node alone: a process without one ends all its addresses together. In both, an address whose
first bind fails is released at once.
"""

from __future__ import annotations

from typing import Any, Protocol

from urds.common.types import IPAddress
from urds.rds.plane.contract import Interest
from urds.rds.runtime.local_addresses import LocalAddressState
from urds.rds.runtime.paths import Paths
from urds.rds.runtime.watches import Watches
from urds.rds.settings import Settings
from urds.rds.transports import tcp


class Owner(Protocol):
    """The driver, as far as it is needed here."""

    settings: Settings
    tcp: tcp.TcpSettings
    hosts: dict[IPAddress, LocalAddressState]
    lock: Any
    watches: Watches
    paths: Paths
    acceptor: Any
    shm_streams: Any

    def carry_out(self, host: LocalAddressState) -> None:
        """Do what the core of a local address has decided."""


class Releases:
    """Releases the addresses of a driver, and takes them back."""

    def __init__(self, driver: Owner) -> None:
        self._driver = driver
        self._unused_since_s: dict[IPAddress, float] = {}

    def release_unused(self, now_s: float) -> None:
        """Release each address that had no socket for `idle_s`, by the clock of the caller.

        Its connections end; what is known of peers stays for the next bind. An address with
        messages that were not acknowledged stays.
        """
        driver = self._driver
        with driver.lock:
            for address, host in driver.hosts.items():
                if host.mailboxes or host.is_released:
                    self._unused_since_s.pop(address, None)
                    continue
                since_s = self._unused_since_s.setdefault(address, now_s)
                if now_s - since_s >= driver.settings.idle_s and not _holds_messages(host):
                    self.release(host)

    def release(self, host: LocalAddressState) -> None:
        """Close the listeners of an address, and its connections. Control lock held."""
        driver = self._driver
        host.is_released, host.listen_at_ns = True, None
        driver.watches.stop(host.listener.fileno())
        host.listener.close()
        driver.shm_streams.stop_listening(host)
        driver.acceptor.forget(host)
        host.endpoint.forget_peers()
        driver.carry_out(host)
        self._forget_routes(host.address)

    def listen_anew(self, host: LocalAddressState) -> None:
        """Be the host of a released address again. Control lock held. Raises OSError as a bind."""
        driver = self._driver
        listener = tcp.listen(host.address, driver.tcp)
        try:
            driver.watches.serve_now(
                listener.fileno(), driver.acceptor.handler(host), Interest.READ
            )
        except BaseException:
            listener.close()
            raise
        host.listener, host.is_released = listener, False
        driver.shm_streams.listen(host)
        self._lead_here(host.address)

    def _forget_routes(self, address: IPAddress) -> None:
        """Have each socket look anew where an address is."""
        for host in self._driver.hosts.values():
            for mailbox in host.mailboxes:
                mailbox.route(address, None)

    def _lead_here(self, address: IPAddress) -> None:
        """Have sockets look anew where an address is; it was elsewhere.

        Those with messages on their way there keep their path, or what they send next would
        overtake these. They follow when its connection is idle.
        """
        for host in self._driver.hosts.values():
            if self._driver.paths.take_routes(host, address):
                continue
            paths = host.peers[address]
            for mailbox in paths.mailboxes:  # one was queued meanwhile
                mailbox.route(address, paths.path_for(mailbox.port))


def _holds_messages(host: LocalAddressState) -> bool:
    return any(path.holds_messages() for peer in host.peers.values() for path in peer.paths)
