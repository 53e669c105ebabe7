"""A proxy between two hosts, in a process of its own, that breaks what passes through it.

`python -m tests.faults.proxy PLAN`; one order per line of standard input, each answered by a line
with the counts. The hosts differ in their TCP port, as with `tests.rds.transports.tcp.relay`: the
lower one has
16385, the higher one 16386, so each believes to reach the other where the proxy listens. It passes
bytes on as they come, without knowing frames, and holds 256 KiB per direction at most.

* `cut` reads what is there, passes a random part of it on, and resets both ends, or one, with an
  end of stream to the other; connections that never carried a byte too;
* `silence` names the ways `UP`, `DOWN`, both or none, and drops every segment that comes that way,
  with acknowledgements and resets, and all that would open a connection;
* `forget` resets one end only; the other hears nothing until it says something, and then a reset.

The last is what a host does that has lost a connection's state.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import socket
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Final

from tests.rds.transports.tcp.faults import make_deaf, make_hearing, reset
from tests.rds.transports.tcp.relay import HIGHER_PORT, LOWER_PORT, Way

_CHUNK_BYTES: Final = 1 << 18
_CONNECT_S: Final = 2.0
_CLONE_NEWNET: Final = 0x40000000  # Source: linux v6.12 include/uapi/linux/sched.h


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyPlan:
    """Its two hosts; `namespaces` are files to enter for the lower and the higher host's side."""

    lower: str
    higher: str
    seed: int
    namespaces: tuple[str, str] | None = None


@dataclass(slots=True)
class Counts:
    """What the proxy saw and did."""

    accepted_up: int = 0  # connections that the lower host opened
    accepted_down: int = 0
    refused: int = 0  # of those, for lack of a listener at the other end
    cut: int = 0
    forgotten: int = 0
    byte_count: int = 0


def back(way: Way) -> Way:
    """Return the other direction."""
    return Way.DOWN if way is Way.UP else Way.UP


@dataclass(eq=False, slots=True)
class Link:
    """One connection and its continuation."""

    ends: dict[Way, socket.socket]  # by the way on which they are read
    waiting: dict[Way, bytes] = field(default_factory=lambda: dict.fromkeys(Way, b""))
    forgotten: Way | None = None  # the end read on this way is told nothing until it speaks

    def close(self, tell: tuple[Way, ...] = tuple(Way)) -> None:
        """End it: with a reset for those ends that are named, with an end of stream for others."""
        for way, end in self.ends.items():
            if way in tell:
                reset(end)
            else:
                end.close()


class Proxy:
    """Passes on what comes, and obeys."""

    def __init__(self, plan: ProxyPlan) -> None:
        self.counts = Counts()
        self._plan = plan
        self._random = Random(plan.seed)
        self._selector = selectors.DefaultSelector()
        self._links: list[Link] = []
        self._silent: frozenset[Way] = frozenset()
        places = {Way.UP: (plan.higher, LOWER_PORT), Way.DOWN: (plan.lower, HIGHER_PORT)}
        self._listeners = {way: self._listen(way, place) for way, place in places.items()}

    def run(self) -> None:
        """Work until standard input ends."""
        self._selector.register(sys.stdin, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    line = sys.stdin.readline()
                    if not line:
                        return
                    self._obey(json.loads(line))
                elif isinstance(key.data, Way):
                    self._accept(key.data)
                elif key.data in self._links:
                    self._serve(key.data)

    # -- orders

    def _obey(self, order: dict[str, object]) -> None:
        if order.get("cut"):
            for link in list(self._links):
                self._cut(link)
        if order.get("forget"):
            for link in list(self._links):
                self._forget(link, Way[str(order["forget"])])
        if "silence" in order:
            names = order["silence"]
            assert isinstance(names, list)
            self._silence(frozenset(Way[name] for name in names))
        print(json.dumps(asdict(self.counts)), flush=True)

    def _cut(self, link: Link) -> None:
        way = self._random.choice(list(Way))
        with suppress(OSError, KeyError):  # of a forgotten end
            data = link.ends[way].recv(_CHUNK_BYTES)
            kept = self._random.randint(0, len(data))
            if not link.waiting[way]:
                link.ends[back(way)].send(data[:kept])
        told = self._random.choice([(Way.UP,), (Way.DOWN,), tuple(Way)])
        self._drop(link, told)
        self.counts.cut += 1

    def _forget(self, link: Link, way: Way) -> None:
        """Have the host at the end that is read on `way` lose its connection, alone."""
        if link.forgotten is not None:
            return
        end = link.ends.pop(way)
        with suppress(KeyError):
            self._selector.unregister(end)
        reset(end)
        link.forgotten = back(way)
        link.waiting = dict.fromkeys(Way, b"")
        self.counts.forgotten += 1
        self._watch(link)

    def _silence(self, ways: frozenset[Way]) -> None:
        self._silent = ways
        for link in self._links:
            for way, end in link.ends.items():
                (make_deaf if way in ways else _hear)(end)
            self._watch(link)
        for listener in self._listeners.values():
            (make_deaf if ways else _hear)(listener)

    # -- connections

    def _listen(self, way: Way, place: tuple[str, int]) -> socket.socket:
        """Listen where the host that is called on `way` is expected, in its namespace."""
        self._enter(back(way))
        family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
        listener = socket.create_server(place, family=family, backlog=64)
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, way)
        return listener

    def _enter(self, caller: Way) -> None:
        """Have the next socket in the namespace of the lower host, or else the higher one's."""
        if self._plan.namespaces is None:
            return
        with open(self._plan.namespaces[caller is Way.DOWN]) as file:
            library = ctypes.CDLL(None, use_errno=True)
            if library.setns(file.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def _accept(self, way: Way) -> None:
        try:
            connection, caller = self._listeners[way].accept()
        except BlockingIOError:
            return
        if way is Way.UP:
            self.counts.accepted_up += 1
            source, target = self._plan.lower, (self._plan.higher, HIGHER_PORT)
        else:
            self.counts.accepted_down += 1
            source, target = self._plan.higher, (self._plan.lower, LOWER_PORT)
        self._enter(way)
        onward = socket.socket(self._listeners[way].family)
        onward.settimeout(_CONNECT_S)
        onward.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            onward.bind((source, caller[1]))  # the port tells which path it is
            onward.connect(target)
        except OSError:
            reset(connection)
            onward.close()
            self.counts.refused += 1
            return
        link = Link({way: connection, back(way): onward})
        for end in link.ends.values():
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._links.append(link)
        for one, end in link.ends.items():
            if one in self._silent:
                make_deaf(end)
        self._watch(link)

    def _watch(self, link: Link) -> None:
        """Wait for what each end can do: read if nothing of it waits, write if something does."""
        for way, end in link.ends.items():
            events = 0
            if not link.waiting[way] and way not in self._silent:
                events |= selectors.EVENT_READ
            if link.waiting[back(way)] and way not in self._silent:
                events |= selectors.EVENT_WRITE
            known = self._selector.get_map().get(end)
            if known is not None and not events:
                self._selector.unregister(end)
            elif known is not None and known.events != events:
                self._selector.modify(end, events, link)
            elif known is None and events:
                self._selector.register(end, events, link)

    def _serve(self, link: Link) -> None:
        """Pass on what is there, both ways."""
        for way in Way:
            if link not in self._links or way in self._silent or way not in link.ends:
                continue
            try:
                if link.forgotten is not None:
                    link.ends[way].recv(1)  # a byte or the end: it knows nothing of either
                    self._drop(link)
                else:
                    self._pass_on(link, way)
            except BlockingIOError:
                pass
            except OSError:
                self._drop(link)
        if link in self._links:
            self._watch(link)

    def _pass_on(self, link: Link, way: Way) -> None:
        target = link.ends[back(way)]
        data = link.waiting[way]
        if not data:
            data = link.ends[way].recv(_CHUNK_BYTES)
            if not data:
                raise ConnectionResetError
            self.counts.byte_count += len(data)
        try:
            passed = target.send(data)
        except BlockingIOError:
            passed = 0
        link.waiting[way] = data[passed:]

    def _drop(self, link: Link, told: tuple[Way, ...] = tuple(Way)) -> None:
        for end in link.ends.values():
            with suppress(KeyError):
                self._selector.unregister(end)
        self._links.remove(link)
        link.close(told)


def _hear(end: socket.socket) -> None:
    with suppress(OSError):  # it was never deaf
        make_hearing(end)


def main() -> None:
    """Carry out the plan of the first argument."""
    proxy = Proxy(ProxyPlan(**json.loads(sys.argv[1])))
    print(json.dumps(asdict(proxy.counts)), flush=True)
    proxy.run()


if __name__ == "__main__":
    main()
