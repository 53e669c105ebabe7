"""What scenarios of wake-ups need of a plane with real threads, whichever plane it is."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

from tests.parity.planes import Remote
from urds.common.types import IPAddress
from urds.rds.plane.contract import Agreement, Hold, Limits, MailboxSettings
from urds.rds.types import AckMode

LOCAL, PEER = ip_address("127.0.84.1"), ip_address("127.0.84.2")
PEER_ADDRESS = (str(PEER), 4000)
STEP_S = 0.002


def payloads(remote: Remote) -> list[bytes]:
    """Take what has come."""
    return [frame.payload for frame in remote.messages()]


class Stop(ABC):
    """The next thread that comes to a moment stops there."""

    @abstractmethod
    def wait(self) -> None:
        """Wait until a thread has come."""

    @abstractmethod
    def go_on(self) -> None:
        """Let it go on."""


class Scene(ABC):
    """One plane, one path to a peer that the scenario plays, threads that wait.

    Objects of the plane are those of its own, which have more than the contract says.
    """

    def __init__(self, bound_s: float, make_plane: Callable[..., Any]) -> None:
        self.bound_s = bound_s
        self.plane: Any = make_plane(limits=Limits(), resolve=self._resolve)
        self.remotes: list[Remote] = []
        self.threads: list[threading.Thread] = []
        self._paths: dict[IPAddress, Any] = {}

    def _resolve(self, mailbox: Any, peer: IPAddress) -> None:
        loops = peer == LOCAL
        mailbox.route(peer, self.plane.loop(local=LOCAL, peer=LOCAL) if loops else self.path(peer))

    # -- what each plane does in its own way

    @abstractmethod
    def stop(self, moment: str) -> Stop:
        """Stop the next thread at a moment of `native/crates/dataplane/src/rules.rs`."""

    @abstractmethod
    def seats(self) -> int:
        """Count those who sat down to wait: at the moment, or so far."""

    @abstractmethod
    def has_tail(self) -> bool:
        """Tell whether a message waits for more."""

    @abstractmethod
    def is_over(self) -> bool:
        """Tell whether the helper shall end."""

    # -- what a scenario does

    def path(self, peer: IPAddress = PEER) -> Any:
        """Return the path to a peer, made once."""
        if peer not in self._paths:
            path = self.plane.path(local=LOCAL, peer=peer, index=0, sequence_first=1)
            self._paths[peer] = path
        return self._paths[peer]

    def attach(self, *, ack_mode: AckMode = AckMode.PEER_ACKNOWLEDGED) -> Remote:
        """Give the path a stream, let the map go, and return the peer's end."""
        remote = self.attach_remote(self.path())
        self.path().agree(Agreement(ack_mode=ack_mode))
        return remote

    def attach_remote(self, path: Any) -> Remote:
        """Give a path a stream; return the peer's end, its map read."""
        remote = Remote()
        self.remotes.append(remote)
        path.attach(remote.stream, hold=Hold.NOTHING)
        self.wait_for(lambda: bool(remote.frames()))
        return remote

    def routed(self, mailbox: Any) -> Remote:
        """Attach, and send one message there: the next finds its route."""
        remote = self.attach()
        mailbox.sendto(b"route", PEER_ADDRESS)
        self.wait_for(lambda: bool(remote.messages()))
        return remote

    def mailbox(self, port: int, **settings: Any) -> Any:
        """Make a mailbox."""
        return self.plane.mailbox(local=LOCAL, port=port, settings=MailboxSettings(**settings))

    def help(self) -> None:
        """Start the helper's thread."""

        def body() -> None:
            while not self.is_over():
                self.plane.help(None)

        self.start(body)

    def start(self, body: Callable[[], object]) -> list[object]:
        """Run `body` in a thread; the list gets what it returns."""
        results: list[object] = []

        def run() -> None:
            with suppress(OSError, KeyboardInterrupt):  # closed at the end; interrupted on purpose
                results.append(body())

        thread = threading.Thread(target=run, daemon=True)
        self.threads.append(thread)
        thread.start()
        return results

    def receive(self, mailbox: Any, wait_s: float | None = None) -> list[object]:
        """Receive in a thread; return the list that gets the message, after the thread sat down."""
        wait_ns = None if wait_s is None else round(wait_s * 1e9)
        before = self.seats()
        results = self.start(lambda: mailbox.receive(wait_ns=wait_ns))
        self.wait_for(lambda: self.seats() > before)
        return results

    def leave_a_tail(self, mailbox: Any) -> bytes:
        """Send until a message waits for more; return it. On a slow machine many leave at once."""
        for number in range(10_000):
            payload = b"tail %d" % number
            mailbox.sendto(payload, PEER_ADDRESS)
            if self.has_tail():
                return payload
        raise AssertionError("every message left at once")

    def wait_for(self, condition: Callable[[], bool]) -> bool:
        """Look until it is so or the bound is over; return whether it became so."""
        deadline = time.monotonic() + self.bound_s
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(STEP_S)
        return True
