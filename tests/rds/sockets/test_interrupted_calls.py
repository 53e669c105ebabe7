"""A handler that raises at any point of a send or a receive: nothing twice, nothing stuck.

Python plane. What the interrupted call had just taken may be gone, and what it was about to queue
may or may not leave; all else arrives once and in order, accounts return to zero, and the paths go
on. `TEST_INTERRUPTS` says at how many places a case is interrupted, and how many runs it gets in
which the handler raises a second time, in what cleans up after the first.
"""

import os
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from tests.rds.sockets.interrupted_pair import PORT, Pair, take
from tests.rds.sockets.interrupting import Interruption

pytestmark = pytest.mark.reference

ROUNDS = int(os.environ.get("TEST_INTERRUPTS", "60"))
SHORT = [b"%d" % number for number in range(1, 6)]
ALIKE = [b"%04d" % number for number in range(1, 40)]
LONG = [b"%d " % number + bytes(9000) for number in range(1, 6)]
VERY_LONG = [b"%d " % number + bytes(60_000) for number in range(1, 4)]
BUFFER_BYTES = 4096
CONGESTING = [b"%d " % number + bytes(2000) for number in range(1, 13)]  # over four times that
AFTER = [b"after %d" % number for number in range(3)]
TESTS = str(Path(__file__).parents[2])  # whose code is not under test
NOWHERE = 1 << 30  # behind the last place
_BYTES_MAX = 1 << 20


class Case:
    """A pair whose node `here` is interrupted; what lies on its way and what it did."""

    def __init__(self) -> None:
        self.pair = Pair()
        self.here, self.there = self.pair.nodes
        self.sent: list[bytes] = []  # to `there`; the last one by an interrupted call, perhaps
        self.brought: list[bytes] = []  # from `there`
        self.got: list[bytes] = []  # of them, by the interrupted calls
        for node in self.pair.nodes:
            node.mailbox.sendto(b"route", node.target)
            node.other.sendto(b"route", node.other_target)
        self.pair.settle()
        for node in self.pair.nodes:
            assert take(node.mailbox) == take(node.other) == [b"route"]

    def send(self, *payloads: bytes) -> None:
        for payload in payloads:
            self.sent.append(payload)
            self.here.mailbox.sendto(payload, self.here.target)

    def bring(self, *payloads: bytes) -> None:
        """Have messages lie in the stream to `here`."""
        for payload in payloads:
            self.brought.append(payload)
            self.there.mailbox.sendto(payload, self.there.target)
        self.there.plane.progress()

    def receive(self, messages: int) -> None:
        for _ in range(messages):
            self.got.append(self.here.mailbox.recvfrom(_BYTES_MAX)[0])

    def check(self, *, fired: bool) -> None:
        self.pair.settle()
        arrived = take(self.there.mailbox)
        assert arrived in (self.sent, self.sent[:-1] if fired else self.sent)
        here = self.got + take(self.here.mailbox)
        taken = len(self.got)
        without = self.brought[:taken] + self.brought[taken + 1 :] if fired else self.brought
        assert here in (self.brought, without)
        for node, peer in (self.pair.nodes, self.pair.nodes[::-1]):
            for payload in AFTER:
                node.mailbox.sendto(payload, node.target)
                node.other.sendto(payload, node.other_target)
            self.pair.settle()
            assert take(peer.mailbox) == take(peer.other) == AFTER
        self.pair.settle()
        self.pair.check_at_rest()


def sending(payloads: list[bytes]) -> Callable[[Case], Callable[[], object]]:
    return lambda case: lambda: case.send(*payloads)


def gathering(case: Case) -> Callable[[], object]:
    """Send each message from two buffers."""

    def act() -> None:
        for payload in SHORT:
            case.sent.append(payload)
            parts = [payload[:1], payload[1:]]
            case.here.mailbox.send(parts, case.here.target, wait_ns=0)

    return act


def receiving(payloads: list[bytes]) -> Callable[[Case], Callable[[], object]]:
    def prepare(case: Case) -> Callable[[], object]:
        case.bring(*payloads)
        return lambda: case.receive(len(payloads))

    return prepare


def progressing(payloads: list[bytes]) -> Callable[[Case], Callable[[], object]]:
    def prepare(case: Case) -> Callable[[], object]:
        case.bring(*payloads)
        return case.here.plane.progress

    return prepare


def filling(case: Case) -> Callable[[], object]:
    """Have so much come that the port becomes congested."""
    mailbox = case.here.mailbox
    mailbox.configure(replace(mailbox.settings, receive_bytes_max=BUFFER_BYTES))
    for payload in CONGESTING:
        case.bring(payload)

    def act() -> None:
        while len(mailbox.receives.queue) < len(CONGESTING):
            case.there.plane.progress()
            case.here.plane.progress()

    return act


def emptying(case: Case) -> Callable[[], object]:
    """Take what made the port congested, of which the peer knows."""
    filling(case)()
    case.pair.settle()
    assert case.there.path.peer_is_congested(PORT)
    return lambda: case.receive(len(CONGESTING))


def repeated(case: Case) -> Callable[[], object]:
    """Bring on a second stream again what the first one brought and was not acknowledged."""
    case.bring(*SHORT)
    case.here.plane.progress()
    case.pair.connect()
    case.there.plane.progress()
    return lambda: case.receive(len(SHORT))


def repeating(case: Case) -> Callable[[], object]:
    """Do the same from the other side."""
    case.send(*SHORT)
    case.there.plane.progress()
    case.pair.connect()
    return case.here.plane.progress


def answering(case: Case) -> Callable[[], object]:
    """Have what comes acknowledge what was sent."""

    def act() -> None:
        for payload in SHORT:
            case.send(payload)
            case.there.plane.progress()
            case.bring(payload)
            case.receive(1)

    return act


def polled(
    prepare: Callable[[Case], Callable[[], object]],
) -> Callable[[Case], Callable[[], object]]:
    """Show the state of the mailbox on a descriptor."""

    def prepared(case: Case) -> Callable[[], object]:
        case.here.mailbox.fileno()
        return prepare(case)

    return prepared


CASES = {
    "send alone": sending(SHORT[:1]),
    "send short": sending(SHORT),
    "send alike": sending(ALIKE),
    "send long": sending(LONG),
    "send polled": polled(sending(SHORT)),
    "send gathered": gathering,
    "receive alone": receiving(SHORT[:1]),
    "receive short": receiving(SHORT),
    "receive alike": receiving(ALIKE),
    "receive long": receiving(LONG[:1]),
    "receive very long": receiving(VERY_LONG[:1]),
    "receive polled": polled(receiving(SHORT)),
    "receive polled alike": polled(receiving(ALIKE)),
    "progress alone": progressing(SHORT[:1]),
    "progress short": progressing(SHORT),
    "progress alike": progressing(ALIKE),
    "progress polled": polled(progressing(SHORT)),
    "congested": filling,
    "congested no more": emptying,
    "repeated": repeated,
    "repeating": repeating,
    "repeating polled": polled(repeating),
    "answering": answering,
}


def run(name: str, at: int, then: int = 0) -> Interruption:
    """Interrupt a case once, or twice; return where."""
    case = Case()
    try:
        act = CASES[name](case)
        with Interruption(at, then=then, skip=TESTS) as interruption:
            act()
        try:
            case.check(fired=interruption.fired)
        except AssertionError as failure:
            failure.add_note(f"at {at}, then {then}: interrupted in {interruption.positions}")
            raise
    finally:
        case.pair.close()
    return interruption


def places(name: str) -> list[int]:
    """Return the places to interrupt a case at: all, or as many as there shall be."""
    looks = run(name, NOWHERE).looks
    rounds = max(ROUNDS, 1)
    return list(range(1, looks + 1, max(1, looks // rounds)))


@pytest.mark.parametrize("name", CASES)
def test_an_interrupt_anywhere(name: str) -> None:
    for at in places(name):
        run(name, at)


@pytest.mark.parametrize("name", CASES)
def test_a_second_interrupt_in_what_cleans_up(name: str) -> None:
    rng = random.Random(name)
    looks = run(name, NOWHERE).looks
    for _ in range(ROUNDS):
        run(name, rng.randint(1, looks), rng.randint(1, 40))


@pytest.mark.parametrize("name", ["progress alone", "progress short", "progress alike"])
def test_a_wait_for_a_message_is_told(name: str) -> None:
    for at in places(name):
        case = Case()
        told: list[bool] = []
        cancel = case.here.mailbox.subscribe(lambda told=told: told.append(True), room=False)
        act = CASES[name](case)
        with Interruption(at, skip=TESTS):
            act()
        case.pair.settle()
        assert told, f"at {at}"
        assert take(case.here.mailbox) == case.brought
        cancel()
        case.pair.close()


def test_a_wait_for_room_is_told() -> None:
    for at in count(1):
        case = Case()
        case.send(*SHORT)
        case.here.plane.progress()
        told: list[bool] = []
        cancel = case.here.mailbox.subscribe(lambda told=told: told.append(True), room=True)
        case.there.plane.progress()
        case.bring(b"reply")
        with Interruption(at, skip=TESTS) as interruption:
            case.here.plane.progress()
        case.pair.settle()
        assert told, f"at {at}: {interruption.positions}"
        cancel()
        case.pair.close()
        if not interruption.fired:
            break


def test_what_an_interrupt_left_does_not_end_a_later_write() -> None:
    """A write that was over when its thread was interrupted: another one may have begun."""
    case = Case()
    case.send(SHORT[0])
    path = case.here.path
    over = path.writer.writes
    path.writer.writing, path.writer.writes = True, over + 1
    path.writer.abort(over)
    assert path.writer.writing
    assert not path.writer.broken
    path.writer.abort(over + 1)
    assert not path.writer.writing
    assert path.writer.broken
    case.pair.close()


def test_a_write_finds_the_end_of_its_stream_cut_by_an_interrupt() -> None:
    """The path knows no stream any more, and has not let go of it yet."""
    case = Case()
    path, stream = case.here.path, case.here.path.stream
    path.writer.writing = True
    path.core.detach()
    assert path.writer.advance(stream, 1, None) == []
    assert not path.writer.writing
    case.pair.close()
