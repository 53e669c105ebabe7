"""Datagram sockets, each on devices of its own, as those of several processes are."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator

from urds.common.types import HostPort
from urds.rsocket.core.datagram import DatagramSettings
from urds.rsocket.link.datagram_link import DatagramLink
from urds.rsocket.link.devices import DeviceContext
from urds.verbs.device import find_device
from urds.verbs.providers.base import Adapter
from urds.verbs.providers.sim import SimNetwork

DEVICES = ("sim", "shm0", "tcp0", "udp0")
WAIT_S = 20.0
# A second is long for a test: here a datagram goes over UDP again ten times as often.
HASTY = DatagramSettings(udp_again_ns=100_000_000, answer_pause_ns=5_000_000)


class Ends:
    """Openings of devices, and the sockets over them. Hosts are numbered from 2: 127.0.0.2."""

    def __init__(self) -> None:
        self.links: list[DatagramLink] = []
        self.adapters: list[Adapter] = []
        self._network = SimNetwork(seed=1)

    def context(self, device: str, host: str) -> DeviceContext:
        """Open a device once more."""
        if device == "sim":
            adapter: Adapter = self._network.adapter(address=host)
        else:
            adapter = find_device(device).open_adapter()
        self.adapters.append(adapter)
        return DeviceContext(adapter)

    def link(
        self,
        *names: str,
        host: str = "127.0.0.2",
        port: int = 0,
        settings: DatagramSettings = HASTY,
        bound: bool = True,
    ) -> DatagramLink:
        """Make a socket with openings of its own."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        link = DatagramLink([self.context(name, host) for name in names], settings, family)
        self.links.append(link)
        if bound:
            link.bind((host, port))
        return link

    def die(self, link: DatagramLink) -> None:
        """Let a socket and its devices be gone, as with its process."""
        link.close()
        for context in link.contexts:
            context.adapter.close()

    def close(self) -> None:
        """Close everything."""
        for link in self.links:
            link.close()
        for adapter in self.adapters:
            adapter.close()


@contextlib.contextmanager
def ends() -> Iterator[Ends]:
    """Have ends for a while."""
    made = Ends()
    try:
        yield made
    finally:
        made.close()


def address_of(link: DatagramLink) -> HostPort:
    """Return where a socket is bound."""
    assert link.local is not None
    return link.local


def take(link: DatagramLink, timeout_s: float = WAIT_S) -> tuple[bytes, HostPort]:
    """Wait for a datagram."""
    assert link.wait(lambda: link.readiness().readable, timeout_s), f"nothing came: {link.stats}"
    datagram = link.receive()
    assert datagram is not None
    return datagram


def exchange(here: DatagramLink, there: DatagramLink, payload: bytes) -> None:
    """Send there and back; both sides see the right bytes and the right sender."""
    here.send(payload, address_of(there))
    assert take(there) == (payload, address_of(here))
    there.send(payload, address_of(here))
    assert take(here) == (payload, address_of(there))


def until(is_done: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
    """Try something again and again until it is true."""
    end_s = time.monotonic() + timeout_s
    while not is_done():
        assert time.monotonic() < end_s, "too late"


def use_queue_pairs(here: DatagramLink, there: DatagramLink) -> None:
    """Exchange datagrams until both sides send theirs by queue pair."""

    def both_do() -> bool:
        before = [link.stats.sent_by_queue_pair for link in (here, there)]
        exchange(here, there, b"warm")
        after = [link.stats.sent_by_queue_pair for link in (here, there)]
        return all(a > b for a, b in zip(after, before, strict=True))

    until(both_do)
