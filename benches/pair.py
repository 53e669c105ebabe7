"""The processes of one peer at one work: a receiver, and a sender or several.

The parent gives orders through pipes and waits for each answer no longer than a limit. A side that
is late is a finding, not a reason to wait: the parent ends all sides, by their own handles.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Self

import usage
from peers import BY_NAME
from peers.base import RUN_MESSAGES, Address, Kind, Peer, Window
from works import Work

_END_WAIT_S = 2.0
_TURN_PATIENCE = 3


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back while a process starts: KeyboardInterrupt comes at the end.

    A start that is cut leaves a process that fails in its first lines, and that is not known. What
    is started inherits the mask; it ignores the signal anyway.
    """
    resource_tracker.ensure_running()  # started before, for it would let the signal through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class PairError(Exception):
    """A peer did not finish: the text is for the table."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The result of one measurement; times are 0 where the kind of work has none."""

    messages: int
    elapsed_ns: int  # of the messages counted
    cpu_ns: int  # of all processes, per message
    p50_ns: int = 0
    p99_ns: int = 0
    wake_ups: float = 0.0  # of all processes, per message

    @property
    def rate(self) -> float:
        """Return messages per second."""
        return self.messages * 1e9 / max(1, self.elapsed_ns)


@dataclass(frozen=True, slots=True)
class _Opened:
    address: Address
    note: str


@dataclass(frozen=True, slots=True)
class Order:
    """Send, or receive, `count` messages."""

    count: int
    window: Window


@dataclass(frozen=True, slots=True)
class Answer:
    """One side's answer to an order: its own times, those of each round trip on request."""

    elapsed_ns: int
    cpu_ns: int
    round_trips_ns: tuple[int, ...] = ()
    wake_ups: int = 0


class Pair:
    """All processes of one peer; a context manager that leaves none behind."""

    def __init__(
        self,
        peer_name: str,
        work: Work,
        cpus: tuple[frozenset[int], frozenset[int]],
        *,
        limit_s: float,
    ) -> None:
        self._work = work
        # The first pass over a thousand peers makes a thousand connections.
        self._limit_s = limit_s * (_TURN_PATIENCE if work.kind.one_takes_turns else 1)
        self._turn_messages = BY_NAME[peer_name].turn_messages(work.kind)
        self._sides: list[tuple[multiprocessing.process.BaseProcess, Connection]] = []
        self.note = ""
        try:
            self._open(peer_name, cpus)
        except BaseException:
            self.close()
            raise

    def _open(self, peer_name: str, cpus: tuple[frozenset[int], frozenset[int]]) -> None:
        receiver = self._start(peer_name, cpus[0], None, 0)
        opened = self._answers([receiver])[0]
        assert isinstance(opened, _Opened)
        self.note = opened.note
        senders = range(self._work.senders)
        self._answers([self._start(peer_name, cpus[1], opened.address, i) for i in senders])

    def _start(
        self, peer_name: str, cpus: frozenset[int], address: Address | None, index: int
    ) -> Connection:
        # Spawned and not forked: a side must not inherit streams and threads of the parent.
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_serve, args=(theirs, peer_name, self._work, cpus, address, index), daemon=True
        )
        with uninterrupted():
            process.start()
            self._sides.append((process, ours))
        theirs.close()
        return ours

    def _answers(self, connections: list[Connection]) -> list[object]:
        """Return one answer of each. Raises PairError if a side ends or is late."""
        deadline = time.monotonic() + self._limit_s
        answers: dict[Connection, object] = {}
        while len(answers) < len(connections):
            open_ones = [one for one in connections if one not in answers]
            ready = wait(open_ones, max(0.0, deadline - time.monotonic()))
            if not ready:
                raise PairError(f"cut after {self._limit_s:g} s")
            for one in open_ones:
                if one in ready:
                    try:
                        answers[one] = one.recv()
                    except (EOFError, ConnectionError):
                        raise PairError("a process ended, see its message above") from None
        failed = [answer for answer in answers.values() if isinstance(answer, OSError)]
        if failed:
            raise PairError(f"failed: {failed[0]}")
        return [answers[one] for one in connections]

    def measure(self, count: int) -> Sample:
        """Exchange at least `count` messages. Raises PairError if it does not end in time."""
        each = max(1, count // self._work.senders)
        each += -each % self._turn_messages
        total = each * self._work.senders
        order = Order(total, window_for(self._work.kind, total))
        receiver, *senders = (connection for _, connection in self._sides)
        try:
            receiver.send(order)
            for sender in senders:
                sender.send(Order(each, order.window))
        except ConnectionError:
            raise PairError("a process ended, see its message above") from None
        answers = [one for one in self._answers([receiver, *senders]) if isinstance(one, Answer)]
        assert len(answers) == 1 + len(senders), "each side answers an order with an answer"
        return sample_of(self._work.kind, order, answers)

    def close(self) -> None:
        """End all sides: at the end of its pipe one ends by itself, else it is killed."""
        for _, connection in self._sides:
            connection.close()
        deadline = time.monotonic() + _END_WAIT_S
        for process, _ in self._sides:
            process.join(max(0.0, deadline - time.monotonic()))
            process.kill()
            process.join(_END_WAIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def sample_of(kind: Kind, order: Order, answers: list[Answer]) -> Sample:
    """Return the receiver's result of an order; its answer comes first.

    One way, a stream is no faster than its slower side: a receiver that begins late finds messages
    that wait for it, and is done with them before the sender could have sent them.
    """
    cpu_ns = sum(one.cpu_ns for one in answers) // order.count
    wake_ups = sum(one.wake_ups for one in answers) / order.count
    if kind.asks:
        times_ns = sorted(answers[1].round_trips_ns)
        p50_ns, p99_ns = times_ns[order.count // 2], times_ns[order.count * 99 // 100]
        return Sample(order.count, answers[1].elapsed_ns, cpu_ns, p50_ns, p99_ns, wake_ups)
    counted = order.window.stop - order.window.start
    elapsed_ns = answers[0].elapsed_ns
    if len(answers) == 2:
        elapsed_ns = max(elapsed_ns, answers[1].elapsed_ns)
    return Sample(counted, elapsed_ns, cpu_ns, wake_ups=wake_ups)


def window_for(kind: Kind, count: int) -> Window:
    """Return which messages count: of many senders the middle, in which all are at work.

    Of runs to each peer all but the first: they are taken run by run.
    """
    if kind is Kind.MANY_SENDERS:
        return Window(count // 10, count - count // 10)
    if kind is Kind.PEERS_RUNS:
        return Window(RUN_MESSAGES, count)
    return Window(min(1, count - 1), count)


def _serve(
    connection: Connection,
    peer_name: str,
    work: Work,
    cpus: frozenset[int],
    address: Address | None,
    index: int,
) -> None:
    """Be one side, until the parent ends this process or its pipe does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its sides
    # Before anything starts a thread: a later change would hold for this thread alone.
    os.sched_setaffinity(0, cpus)
    peer = BY_NAME[peer_name](work.payload_bytes)
    receives = address is None
    try:
        if address is None:
            address = peer.open_receiver(work.senders)
        else:
            peer.open_sender(address, index)
        connection.send(_Opened(address, peer.note()))
        while True:
            connection.send(obey(peer, work.kind, receives, connection.recv()))
    except (EOFError, BrokenPipeError):  # the parent has closed the pipe
        return
    except OSError as error:
        with suppress(BrokenPipeError):
            connection.send(OSError(f"{'receiver' if receives else 'sender'}: {error}"))
    finally:
        peer.close()


def obey(peer: Peer, kind: Kind, receives: bool, order: Order) -> Answer:
    """Do one side's part of an order."""
    pids = [os.getpid(), *peer.helpers()]
    before = usage.of(pids)
    start_ns = time.perf_counter_ns()
    round_trips_ns: tuple[int, ...] = ()
    elapsed_ns = 0
    if kind.asks and receives:
        peer.echo(order.count)
    elif kind.asks:
        round_trips_ns = tuple(peer.ask(order.count))
    elif receives:
        elapsed_ns = peer.receive(order.count, order.window)
    else:
        peer.put(order.count)
    elapsed_ns = elapsed_ns or time.perf_counter_ns() - start_ns
    used = usage.of(pids)
    wake_ups = used.wake_ups - before.wake_ups
    return Answer(elapsed_ns, used.cpu_ns - before.cpu_ns, round_trips_ns, wake_ups)
