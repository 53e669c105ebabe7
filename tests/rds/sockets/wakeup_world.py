"""A plane with real threads and paused moments, for scenarios that find lost wake-ups.

A `Pause` stops threads at a named call, before or after it: windows of nanoseconds become as wide
as the scenario needs. `World.closing` opens every pause and wakes all by force, so that even
a scenario with a broken rule ends.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address

import pytest

from tests.parity.planes import Remote
from urds.common.types import IPAddress
from urds.rds.plane.contract import (
    Agreement,
    Hold,
    Limits,
    MailboxSettings,
    Path,
)
from urds.rds.plane.python.mailbox import Mailbox
from urds.rds.plane.python.plane import Plane
from urds.rds.plane.python.stream_path import StreamPath
from urds.rds.types import AckMode

LOCAL, PEER = ip_address("127.0.84.1"), ip_address("127.0.84.2")
PEER_ADDRESS = (str(PEER), 4000)
_STEP_S = 0.002


class Pause:
    """Stops the threads that `when` chooses at one call until `go`; counts who came."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.go = threading.Event()

    def stop(self) -> None:
        self.reached.set()
        self.go.wait(10)


class World:
    """One plane, one path to a peer that the scenario plays, threads that wait."""

    def __init__(self, bound_s: float) -> None:
        self.bound_s = bound_s
        self.plane = Plane(limits=Limits(), resolve=self._resolve)
        self.remotes: list[Remote] = []
        self.threads: list[threading.Thread] = []
        self._pauses: list[Pause] = []
        self._paths: dict[IPAddress, StreamPath] = {}
        self._restore: list[Callable[[], None]] = []

    def _resolve(self, mailbox: Mailbox, peer: IPAddress) -> None:
        if peer == LOCAL:
            mailbox.route(peer, self.plane.loop(local=LOCAL, peer=LOCAL))
        else:
            mailbox.route(peer, self.path(peer))

    def path(self, peer: IPAddress = PEER) -> StreamPath:
        path = self._paths.get(peer)
        if path is None:
            path = self.plane.path(local=LOCAL, peer=peer, index=0, sequence_first=1)
            self._paths[peer] = path
        return path

    def attach(self, *, release: AckMode = AckMode.PEER_ACKNOWLEDGED) -> Remote:
        """Give the path a stream, let the map go, and return the peer's end."""
        remote = Remote()
        self.remotes.append(remote)
        self.path().attach(remote.stream, hold=Hold.NOTHING)
        self.path().agree(Agreement(ack_mode=release))
        self.wait_for(lambda: bool(remote.frames()))
        return remote

    def attach_remote(self, path: Path) -> Remote:
        """Give another path a stream; return the peer's end, its map read."""
        remote = Remote()
        self.remotes.append(remote)
        path.attach(remote.stream, hold=Hold.NOTHING)
        self.wait_for(lambda: bool(remote.frames()))
        return remote

    def mailbox(self, port: int, **settings: object) -> Mailbox:
        return self.plane.mailbox(local=LOCAL, port=port, settings=MailboxSettings(**settings))

    def help(self) -> None:
        """Start the helper's thread."""

        def body() -> None:
            while not self.plane.state.closed:
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

    def receive(self, mailbox: Mailbox, wait_s: float | None = None) -> list[object]:
        """Receive in a thread; return the list that gets the message, after the thread sleeps."""
        wait_ns = None if wait_s is None else round(wait_s * 1e9)
        before = self.waiting()
        results = self.start(lambda: mailbox.receive(wait_ns=wait_ns))
        self.wait_for(lambda: self.waiting() > before)
        return results

    def leave_a_tail(self, mailbox: Mailbox) -> bytes:
        """Send until a message waits for more; return it. On a slow machine many leave at once."""
        for number in range(10_000):
            payload = b"tail %d" % number
            mailbox.sendto(payload, PEER_ADDRESS)
            if self.path().writer.batch_since_ns is not None:
                return payload
        raise AssertionError("every message left at once")

    def seats(self) -> int:
        """Count those who sat down, as the world of the compiled plane does."""
        return self.waiting()

    def waiting(self) -> int:
        """Count those who sat down."""
        wait_queue = self.plane.state.wait_queue
        with self.plane.state.lock:
            return len(wait_queue.followers) + (wait_queue.leader is not None)

    def wait_for(self, condition: Callable[[], bool]) -> bool:
        """Look until it is so or the bound is over; return whether it became so."""
        deadline = time.monotonic() + self.bound_s
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(_STEP_S)
        return True

    def pause(
        self,
        owner: object,
        name: str,
        *,
        when: Callable[..., bool] = lambda *_, **__: True,
        after: bool = False,
        times: int = 1,
    ) -> Pause:
        """Stop the next `times` calls of a method, before or after their work."""
        pause = Pause()
        self._pauses.append(pause)
        original, placed = getattr(owner, name), name in vars(owner)
        left = [times]

        def paused(*arguments: object, **named: object) -> object:
            stops = left[0] > 0 and when(*arguments, **named)
            if stops:
                left[0] -= 1
            if stops and not after:
                pause.stop()
            result = original(*arguments, **named)
            if stops and after:
                pause.stop()
            return result

        setattr(owner, name, paused)
        self._restore.append(
            lambda: setattr(owner, name, original) if placed else delattr(owner, name)
        )
        return pause

    def close(self) -> None:
        """End everything, also what a broken rule left asleep."""
        for restore in reversed(self._restore):
            with suppress(AttributeError):
                restore()
        for pause in self._pauses:
            pause.go.set()
        for remote in self.remotes:
            remote.close()
        self.plane.close(0)
        wait_queue = self.plane.state.wait_queue
        for _ in range(500):
            if not any(thread.is_alive() for thread in self.threads):
                break
            with self.plane.state.lock:  # a broken rule may have left them on no list
                sleepers = [
                    *wait_queue.followers,
                    *([wait_queue.leader] if wait_queue.leader else []),
                ]
                for waiter in sleepers:
                    wait_queue.notify(waiter)
            self.plane.passes.deliver()
            self.plane.wake()
            os.eventfd_write(wait_queue.kick, 1)
            time.sleep(_STEP_S)
        for thread in self.threads:
            thread.join(1)
            assert not thread.is_alive(), "a thread of the scenario is still in the plane"
        self.plane.release()


@contextmanager
def world(bound_s: float) -> Iterator[World]:
    """Make a world; close it whatever happens."""
    made = World(bound_s)
    try:
        yield made
    finally:
        made.close()


Scenario = Callable[[World], bool]
Breakage = Callable[[pytest.MonkeyPatch], None]
