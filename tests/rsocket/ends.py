"""Two ends on devices of their own: openings, a listener and links, over each provider."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from urds.rsocket.core.stream.records import StreamSettings
from urds.rsocket.link import devices
from urds.rsocket.link.devices import DeviceContext
from urds.rsocket.link.listener import StreamListener
from urds.rsocket.link.stream_link import LinkState, StreamLink
from urds.verbs.device import find_device
from urds.verbs.providers.sim import SimNetwork

DEVICES = ("sim", "shm0", "tcp0", "udp0")
WAIT_S = 20.0
SETTINGS = StreamSettings()


class Ends:
    """A listening and a connecting opening of one device."""

    def __init__(self, device: str, settings: StreamSettings = SETTINGS) -> None:
        self.settings = settings
        if device == "sim":
            network = SimNetwork(seed=1)
            self.adapters = [network.adapter("here"), network.adapter("there")]
            self.host = self.adapters[1].address
        else:
            self.adapters = [find_device(device).open_adapter() for _ in range(2)]
            self.host = "127.0.0.1"
        self.here, self.there = (DeviceContext(adapter) for adapter in self.adapters)
        self.listener = StreamListener((self.host, 0), 16, settings, [self.there])

    def connect(self, settings: StreamSettings | None = None) -> tuple[StreamLink, StreamLink]:
        """Connect a link; return both sides."""
        link = StreamLink([self.here], settings or self.settings)
        link.connect(self.listener.local, timeout_s=WAIT_S)
        self.wait(lambda: link.state is not LinkState.CONNECTING)
        assert link.state is LinkState.CONNECTED, (link.state, link.reason)
        self.wait(lambda: self.listener.readiness().readable)
        accepted = self.listener.accept()
        assert accepted is not None
        return link, accepted

    def wait(self, is_ready: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
        """Wait for something that may happen on either side; fail if it does not."""
        end_s = time.monotonic() + timeout_s
        while not is_ready():
            assert devices.wait([self.here], is_ready, 0.01) or time.monotonic() < end_s, "too late"

    def close(self) -> None:
        """Close both devices."""
        self.listener.close()
        for adapter in self.adapters:
            adapter.close()


@contextlib.contextmanager
def ends(device: str, **changes: object) -> Iterator[Ends]:
    """Open two ends for a while."""
    both = Ends(device, replace(SETTINGS, **changes))  # type: ignore[arg-type]  # fields by name
    try:
        yield both
    finally:
        both.close()


def send_all(
    both: Ends, link: StreamLink, data: bytes, sink: StreamLink, *, step: int = 1 << 20
) -> bytes:
    """Send all of `data` over a link and return what the other side got of it."""
    got = bytearray()
    room = memoryview(bytearray(step))
    sent = 0
    while len(got) < len(data):
        taken = link.send(memoryview(data)[sent:]) if sent < len(data) else 0
        sent += taken
        count = sink.receive_into(room)
        got += room[:count]
        if not taken and not count:
            both.wait(partial(_either, sink, link if sent < len(data) else None))
    return bytes(got)


def _either(sink: StreamLink, source: StreamLink | None) -> bool:
    return sink.readiness().readable or (source is not None and source.readiness().writable)
