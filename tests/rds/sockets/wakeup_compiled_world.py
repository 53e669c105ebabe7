"""A compiled plane with real threads and stopped moments, in a process of its own.

`urds_native` is the module built with the feature `broken-rules` (`tools.native rules`). It keeps
its switches for the whole process, so there is one scenario in each, and what a broken rule leaves
asleep ends with the process.
"""

import queue
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address

import urds_native

from tests.parity.planes import Remote
from urds.common.types import IPAddress
from urds.rds.plane.contract import (
    Agreement,
    Hold,
    Limits,
    MailboxSettings,
)
from urds.rds.plane.native import Mailbox, Path, Plane
from urds.rds.types import AckMode

LOCAL, PEER = ip_address("127.0.84.1"), ip_address("127.0.84.2")
PEER_ADDRESS = (str(PEER), 4000)
_STEP_S = 0.002


class Interrupted(Exception):
    """What a signal raises in the main thread."""


class Stop:
    """The next thread that comes to a moment of `native/crates/dataplane/src/rules.rs` stops."""

    def __init__(self, scene: "Scene", moment: str) -> None:
        self._scene, self._moment = scene, moment
        urds_native.stop_at(moment)

    def is_reached(self) -> bool:
        return urds_native.seen(self._moment)[1]

    def wait(self) -> None:
        assert self._scene.wait_for(self.is_reached), f"no thread came to {self._moment}"

    def go_on(self) -> None:
        urds_native.go_on(self._moment)


class Scene:
    """One plane, one path to a peer that the scenario plays, threads that wait.

    The scenario runs in a thread; `victim` has the main thread wait, which alone gets signals.
    """

    def __init__(self, bound_s: float) -> None:
        self.bound_s, self.is_over = bound_s, False
        self.plane = Plane(limits=Limits(), resolve=self._resolve)
        self.remotes: list[Remote] = []
        self.threads: list[threading.Thread] = []
        self.tasks: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._paths: dict[IPAddress, Path] = {}

    def _resolve(self, mailbox: Mailbox, peer: IPAddress) -> None:
        loops = peer == LOCAL
        mailbox.route(peer, self.plane.loop(local=LOCAL, peer=LOCAL) if loops else self.path())

    def path(self) -> Path:
        if PEER not in self._paths:
            path = self.plane.path(local=LOCAL, peer=PEER, index=0, sequence_first=1)
            self._paths[PEER] = path
        return self._paths[PEER]

    def attach(self) -> Remote:
        """Give the path a stream, let the map go, and return the peer's end."""
        remote = Remote()
        self.remotes.append(remote)
        self.path().attach(remote.stream, hold=Hold.NOTHING)
        self.path().agree(Agreement(ack_mode=AckMode.PEER_ACKNOWLEDGED))
        self.wait_for(lambda: bool(remote.frames()))
        return remote

    def routed(self, mailbox: Mailbox) -> Remote:
        """Do the same, and send one message there: the next finds its route."""
        remote = self.attach()
        mailbox.sendto(b"route", PEER_ADDRESS)
        self.wait_for(lambda: bool(remote.messages()))
        return remote

    def mailbox(self, port: int, **settings: int) -> Mailbox:
        return self.plane.mailbox(local=LOCAL, port=port, settings=MailboxSettings(**settings))

    def help(self) -> None:
        """Start the helper's thread."""

        def body() -> None:
            while not self.is_over:
                self.plane.help(None)

        self.start(body)

    def start(self, body: Callable[[], object]) -> list[object]:
        """Run `body` in a thread; the list gets what it returns."""
        results: list[object] = []

        def run() -> None:
            with suppress(OSError):  # closed at the end
                results.append(body())

        thread = threading.Thread(target=run, daemon=True)
        self.threads.append(thread)
        thread.start()
        return results

    def receive(self, mailbox: Mailbox, wait_s: float | None = None) -> list[object]:
        """Receive in a thread; return the list that gets the message, after the thread sat down."""
        wait_ns = None if wait_s is None else round(wait_s * 1e9)
        before = self.seats()
        results = self.start(lambda: mailbox.receive(wait_ns=wait_ns))
        self.wait_for(lambda: self.seats() > before)
        return results

    def victim(self, mailbox: Mailbox) -> None:
        """Receive in the main thread."""
        before = self.seats()
        self.tasks.put(lambda: mailbox.receive(wait_ns=None))
        self.wait_for(lambda: self.seats() > before)

    def interrupt(self) -> Stop:
        """End the sleep of the victim by a signal, and stop it before it leaves the lists."""
        stop = Stop(self, "Interrupted")
        main = threading.main_thread().ident
        assert main is not None, "the main thread runs"

        def reached() -> bool:
            # One that comes before the system call ends nothing: once more.
            signal.pthread_kill(main, signal.SIGUSR1)
            return stop.is_reached()

        assert self.wait_for(reached), "the signal ended no sleep"
        return stop

    def leave_a_tail(self, mailbox: Mailbox) -> bytes:
        """Send until a message waits for more; return it. On a slow machine many leave at once."""
        for number in range(10_000):
            payload = b"tail %d" % number
            mailbox.sendto(payload, PEER_ADDRESS)
            if self.plane.batches:
                return payload
        raise AssertionError("every message left at once")

    def seats(self) -> int:
        """Count how often a wait began so far."""
        return self.leads() + urds_native.seen("FollowerSleeps")[0]

    def leads(self) -> int:
        """Count how often a leader sat down so far."""
        return urds_native.seen("LeaderSleeps")[0]

    def close(self) -> None:
        """End what ended well."""
        self.is_over = True
        self.plane.close(0)
        self.plane.wake()
        for remote in self.remotes:
            remote.close()

    def wait_for(self, condition: Callable[[], bool]) -> bool:
        """Look until it is so or the bound is over; return whether it became so."""
        deadline = time.monotonic() + self.bound_s
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(_STEP_S)
        return True
