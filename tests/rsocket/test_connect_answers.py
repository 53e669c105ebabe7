"""A connect whose answer is none of an rsocket ends, whatever the number of devices."""

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.rsocket.socket_pairs import WAIT_S
from urds.common.types import HostPort
from urds.rsocket.link.devices import DeviceContext
from urds.rsocket.link.stream_link import parameters_with
from urds.rsocket.socket import Socket
from urds.verbs.device import find_device
from urds.verbs.providers.base import ConnectionEventKind, PortSpace, VerbsConnectionEvent


class NoLink:
    """In the place of a link: it takes what comes and says nothing."""

    def handle_received(self, wc: object) -> None:
        """Take a completion."""

    handle_sent = handle_received

    def finish_pass(self) -> None:
        """Have nothing to say."""


@contextmanager
def answering(device: str, private_data: bytes) -> Iterator[HostPort]:
    """Listen on a device and accept each request with these private data."""
    context = DeviceContext(find_device(device).open_adapter())
    adapter = context.adapter

    def accept(event: VerbsConnectionEvent) -> None:
        if event.kind is ConnectionEventKind.REQUEST:
            event.connection.on_event = lambda _: None
            qp = context.queue_pair(NoLink(), 16)  # type: ignore[arg-type]  # enough of a link
            adapter.call_soon(lambda: event.connection.accept(qp, parameters_with(private_data)))

    with adapter.lock:
        listener = adapter.listen(("127.0.0.1", 0), PortSpace.TCP, backlog=5, on_event=accept)
    try:
        yield listener.local
    finally:
        adapter.close()


@pytest.mark.parametrize("private_data", [b"\x09" * 40, b"", b"\x01" * 39])
@pytest.mark.parametrize("devices", ["tcp0", "shm0,tcp0"])
def test_an_answer_that_is_none_is_refused(
    devices: str, private_data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("URDS_RSOCKET_DEVICES", devices)
    with answering("tcp0", private_data) as address, Socket() as one:
        one.settimeout(WAIT_S)
        with pytest.raises(OSError, match="private data") as caught:
            one.connect(address)
        assert caught.value.errno == errno.ENOTSUP
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0  # told already


def test_a_shm_answer_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("URDS_RSOCKET_DEVICES", "shm0")
    with answering("shm0", b"\x02" * 40) as address, Socket() as one:
        one.settimeout(WAIT_S)
        with pytest.raises(OSError, match="version 2 of rsockets, not 1"):
            one.connect(address)
