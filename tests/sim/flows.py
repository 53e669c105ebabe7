"""What was sent, what came, and whether that is right.

A message names its sender's life, its ports and its number in that flow; the rest of the payload
follows from these. A flow is judged per life of the receiver: its numbers rise by one, without a
gap. Only where the receiver's life began in the middle may they start above zero: what was handed
to an earlier generation, or fell with it, belongs to that generation. What the sender had not sent
when it learned of the restart does not: with the first of that a flow starts at the latest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from ipaddress import IPv4Address
from struct import Struct

_HEAD = Struct(">HHHI")
PORTS = (4000, 4001, 4002, 4005)  # of 8 paths: 1, 2, 6, 0

Number = tuple[int, int, int, int]  # life, source port, target port, number
SIZES = (10, 10, 10, 11, 64, 300, 1_500, 9_000, 30_000)


def payload_of(number: Number) -> bytes:
    """Return the payload of a message; its length varies with the number."""
    head = _HEAD.pack(*number)
    size = SIZES[(number[3] * 7 + number[1]) % len(SIZES)]
    filler = (number[3] * 31 + number[1]).to_bytes(4, "big")
    return (head + filler * (size // 4 + 1))[: max(size, _HEAD.size)]


def number_of(payload: bytes) -> Number:
    """Return what a message says it is. Raises AssertionError if it is not whole."""
    number: Number = _HEAD.unpack_from(payload)
    assert payload == payload_of(number), f"{number} came damaged: {len(payload)} bytes"
    return number


class Flows:
    """The referee of one simulation."""

    def __init__(self, seed: int, *, ports: tuple[int, ...] = PORTS) -> None:
        self.seed = seed
        self.ports = ports
        self.protocol_errors_allowed = False
        self.received = 0
        self._lives: list[IPv4Address] = []
        self._sent: Counter[tuple[int, int, int]] = Counter()
        self._expected: dict[tuple[int, int, int, int], int] = {}
        self._unsent: dict[tuple[int, int, int], int] = {}  # the first of a flow, at a restart

    def new_life(self, address: IPv4Address) -> int:
        """Return the generation of a node."""
        self._lives.append(address)
        return len(self._lives) - 1

    def next_sent(self, life: int, source_port: int, target_port: int) -> Number:
        """Return the number of the flow's next message."""
        flow = (life, source_port, target_port)
        number = self._sent[flow]
        self._sent[flow] += 1
        return (*flow, number)

    def note_unsent(self, life: int, numbers: Iterable[Number]) -> None:
        """Note what a sender has not sent when it learns that its peer restarted."""
        self._unsent |= {flow: sent for flow, sent in self._sent.items() if flow[0] == life}
        for *flow, number in numbers:
            key = (flow[0], flow[1], flow[2])
            self._unsent[key] = min(number, self._unsent[key])

    def check(
        self, payload: bytes, source: tuple[str, int] | object, *, receiver: int, target_port: int
    ) -> None:
        """Judge a message that an application took: this is safety."""
        life, source_port, meant_for, number = number_of(payload)
        where = f"seed {self.seed}: {life}:{source_port} to {receiver}:{target_port}"
        assert meant_for == target_port, f"{where}: was for port {meant_for}"
        assert isinstance(source, tuple)
        assert source[:2] == (str(self._lives[life]), source_port), f"{where}: came from {source}"
        key = (life, source_port, target_port, receiver)
        expected = self._expected.get(key)
        if expected is None:
            first_meeting = not self._had_earlier_receiver(life, receiver)
            latest = self._unsent.get(key[:3], number)
            expected = 0 if first_meeting else min(number, latest)
        verb = "doubled or reordered" if number < expected else "lost"
        assert number == expected, f"{where}: {verb}: {number} came, {expected} was next"
        self._expected[key] = number + 1
        self.received += 1

    def _had_earlier_receiver(self, sender: int, receiver: int) -> bool:
        """Tell whether the sender may have sent to an earlier generation of the receiver."""
        return sender < receiver and self._lives[receiver] in self._lives[:receiver]

    def assert_complete(self, sender: int, receiver: int) -> None:
        """Judge what did not come: this is liveness. Both lives are over the disturbance."""
        for (life, source_port, target_port), sent in self._sent.items():
            if life != sender:
                continue
            key = (life, source_port, target_port, receiver)
            came = self._expected.get(key)
            if came is None and self._had_earlier_receiver(sender, receiver):
                continue  # all of it may have gone to the earlier life
            where = f"seed {self.seed}: {life}:{source_port} to {receiver}:{target_port}"
            assert (came or 0) == sent, f"{where}: {came} of {sent} came"
