"""The base of every contender of the benchmarks.

A peer is one side, in one process, of a pair that exchanges messages of one size. It knows nothing
of rounds, processes and tables. Receivers count bytes, so that a short message fails the run.
"""

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

Address = str | int | tuple[str, int]


RUN_MESSAGES = 64  # to one peer, before the next one
BURST_MESSAGES = 64  # in one call


class Kind(Enum):
    """What is measured; the value is the name on the command line."""

    ONE_WAY = "one_way"
    REUSED_ONE_WAY = "reused_one_way"  # all from one buffer that the sender writes to again
    ROUND_TRIP = "round_trip"
    MANY_SENDERS = "many_senders"
    LOOP_ONE_WAY = "loop_one_way"  # in tasks of asyncio or trio
    LOOP_ROUND_TRIP = "loop_round_trip"
    BURSTS_ONE_WAY = "bursts_one_way"  # BURST_MESSAGES in one call where there is such a call
    MEMORY_ONE_WAY = "memory_one_way"  # between processes of one host
    MEMORY_BURSTS = "memory_bursts"
    MEMORY_ROUND_TRIP = "memory_round_trip"
    NODE_ONE_WAY = "node_one_way"  # between programs that are attached to a node
    NODE_ROUND_TRIP = "node_round_trip"
    PEERS_RUNS = "peers_runs"  # RUN_MESSAGES to each of many peers, one after the other
    PEERS_ASKED = "peers_asked"  # a round trip with each of many peers, one after the other

    @property
    def asks(self) -> bool:
        """Tell whether each message is answered before the next one is sent."""
        return self in (
            Kind.ROUND_TRIP,
            Kind.LOOP_ROUND_TRIP,
            Kind.MEMORY_ROUND_TRIP,
            Kind.NODE_ROUND_TRIP,
            Kind.PEERS_ASKED,
        )

    @property
    def counts_wake_ups(self) -> bool:
        """Tell whether the table shows how often a process slept for each message."""
        return self in (Kind.NODE_ONE_WAY, Kind.NODE_ROUND_TRIP)

    @property
    def one_takes_turns(self) -> bool:
        """Tell whether one side goes from peer to peer, so that whole passes are measured."""
        return self in (Kind.PEERS_RUNS, Kind.PEERS_ASKED)


# What a program does over one blocking socket, with one peer or several that send to it.
BLOCKING = frozenset({Kind.ONE_WAY, Kind.ROUND_TRIP, Kind.MANY_SENDERS})


@dataclass(frozen=True, slots=True)
class Window:
    """The messages between which the receiver takes the time: after `start`, up to `stop`."""

    start: int
    stop: int


def written_payload(payload_bytes: int) -> bytes:
    """Return a payload in written memory.

    bytes(n) is calloc'ed: all its pages are the one zero page of the kernel, which stays in the
    first cache level and flatters every copy out of it.
    """
    return b"\xa5" * payload_bytes


class Peer(ABC):
    """One side of a pair. A process makes one, opens it as receiver or as sender, and uses it."""

    name: ClassVar[str]  # on the command line and in JSON
    label: ClassVar[str]  # in the table
    kinds: ClassVar[frozenset[Kind]] = BLOCKING
    payload_bytes_min: ClassVar[int] = 0
    payload_bytes_max: ClassVar[int] = 1 << 20

    def __init__(self, payload_bytes: int) -> None:
        self.payload_bytes = payload_bytes
        self.payload = written_payload(payload_bytes)

    @classmethod
    def missing(cls) -> str | None:
        """Return why this peer cannot run here, or None if it can."""
        return None

    @classmethod
    def fits(cls, kind: Kind, payload_bytes: int) -> bool:
        """Tell whether this peer is measured at this work."""
        return kind in cls.kinds and cls.payload_bytes_min <= payload_bytes <= cls.payload_bytes_max

    @classmethod
    def turn_messages(cls, kind: Kind) -> int:
        """Return how many messages a pass over all peers has; whole passes are measured."""
        return 1

    @abstractmethod
    def open_receiver(self, senders: int) -> Address:
        """Listen, and return the address for that many senders."""

    @abstractmethod
    def open_sender(self, address: Address, index: int) -> None:
        """Connect to `address` as the sender number `index`."""

    @abstractmethod
    def put(self, count: int) -> None:
        """Send `count` messages and leave none of them in memory of this object."""

    @abstractmethod
    def take(self, count: int) -> int:
        """Receive `count` messages; return how many bytes of payload they had."""

    @abstractmethod
    def ask_one(self) -> None:
        """Send one message and receive the reply, as the sender."""

    @abstractmethod
    def echo_one(self) -> None:
        """Receive one message and send it back, as the receiver."""

    def helpers(self) -> list[int]:
        """Return the processes that this side keeps at work besides its own."""
        return []

    def close(self) -> None:
        """End what outlives this process."""
        return

    def note(self) -> str:
        """Return the note for readers of the table about this side, or an empty text."""
        return ""

    def receive(self, count: int, window: Window) -> int:
        """Take `count` messages and return the nanoseconds that those of the window took.

        Raises ValueError if the bytes are not as many as were sent.
        """
        taken_bytes = self.take(window.start)
        start_ns = time.perf_counter_ns()
        taken_bytes += self.take(window.stop - window.start)
        stop_ns = time.perf_counter_ns()
        taken_bytes += self.take(count - window.stop)
        if taken_bytes != count * self.payload_bytes:
            raise ValueError(f"took {taken_bytes} bytes, not {count * self.payload_bytes}")
        return stop_ns - start_ns

    def echo(self, count: int) -> None:
        """Answer `count` messages."""
        echo_one = self.echo_one
        for _ in range(count):
            echo_one()

    def ask(self, count: int) -> list[int]:
        """Send `count` requests, one at a time; return what each took in nanoseconds."""
        ask_one, clock = self.ask_one, time.perf_counter_ns
        taken_ns = []
        for _ in range(count):
            start_ns = clock()
            ask_one()
            taken_ns.append(clock() - start_ns)
        return taken_ns
