"""Who lost it? What one direction lost, doubled or reordered, laid at the kernel's door or ours.

A fault counts as the kernel's only if the wire shows it; whatever the wire leaves open is ours.

- To us lost: the kernel never let the whole message out, on any connection, and went on with later
  ones. No receiver can take what was never sent.
- To us doubled: it came whole a second time without the mark of a repeat, or with another number.
- To the kernel lost: it crossed whole, its TCP acknowledged it on a connection that it had welcomed
  with a frame of its own, and it was not a repeat behind higher numbers, which any receiver drops.
- To the kernel doubled: every further copy had the same number and the mark of a repeat.
- Reordered: the wire's order decides, a message counting where it first crossed whole.
"""

from bisect import bisect
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from .message_log import Transmission
from .wire import Direction

EVIDENCE_LINES_MAX = 6  # of one message


@dataclass(frozen=True, slots=True)
class Faults:
    """Numbers of messages that one side lost, doubled and reordered."""

    lost: tuple[int, ...] = ()
    doubled: tuple[int, ...] = ()
    reordered: tuple[int, ...] = ()

    @property
    def counts(self) -> list[int]:
        """Return how many were lost, doubled and reordered."""
        return [len(self.lost), len(self.doubled), len(self.reordered)]

    def __add__(self, other: "Faults") -> "Faults":
        return Faults(
            self.lost + other.lost,
            self.doubled + other.doubled,
            self.reordered + other.reordered,
        )

    def __bool__(self) -> bool:
        return bool(self.lost or self.doubled or self.reordered)

    def __str__(self) -> str:
        named = (("lost", self.lost), ("doubled", self.doubled), ("reordered", self.reordered))
        return ", ".join(f"{kind} {numbers[:10]}, {len(numbers)} in all" for kind, numbers in named)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The faults of one direction, divided, and what the wire saw of those of the kernel."""

    ours: Faults
    kernel: Faults
    evidence: tuple[str, ...]


def judge(
    received: list[int],
    *,
    count: int,
    direction: Direction,
    log: Iterable[Transmission],
    one_path: bool = True,
) -> Verdict:
    """Judge what came of the messages 0 to `count` of one socket in one direction.

    With several paths the numbers of two connections are only compared if they are the same one.
    """
    sent = _Sent(direction, log, one_path=one_path)
    found = _faults(received, count)
    to_us = direction is Direction.TO_HOST
    is_lost_by_kernel = sent.never_sent_whole if to_us else sent.was_taken
    is_doubled_by_kernel = sent.was_sent_as_new_twice if to_us else sent.was_repeated_rightly
    kernel = Faults(
        lost=tuple(filter(is_lost_by_kernel, found.lost)),
        doubled=tuple(filter(is_doubled_by_kernel, found.doubled)),
        reordered=tuple(number for number in found.reordered if sent.in_order(number) is not to_us),
    )
    ours = Faults(
        lost=_without(found.lost, kernel.lost),
        doubled=_without(found.doubled, kernel.doubled),
        reordered=_without(found.reordered, kernel.reordered),
    )
    guilty = sorted({*kernel.lost, *kernel.doubled, *kernel.reordered})
    return Verdict(ours, kernel, tuple(sent.tell(number) for number in guilty))


def together(verdicts: Iterable[Verdict]) -> Verdict:
    """Add up the verdicts of several sockets."""
    whole = Verdict(Faults(), Faults(), ())
    for one in verdicts:
        whole = Verdict(
            whole.ours + one.ours, whole.kernel + one.kernel, whole.evidence + one.evidence
        )
    return whole


class _Sent:
    """The transmissions of one direction by the workload's numbers."""

    def __init__(
        self, direction: Direction, log: Iterable[Transmission], *, one_path: bool
    ) -> None:
        self._one_path = one_path
        self._of: dict[int, list[Transmission]] = defaultdict(list)
        self._nameless: dict[int, list[Transmission]] = defaultdict(list)
        for sent in log:
            if sent.direction is direction and sent.number is not None:
                self._of[sent.number].append(sent)
            elif sent.direction is direction:
                self._nameless[sent.sequence].append(sent)
        self._first_place = {
            number: min(copy.place for copy in copies if copy.place is not None)
            for number, copies in self._of.items()
            if any(copy.whole for copy in copies)
        }

    def never_sent_whole(self, number: int) -> bool:
        """Say whether no copy crossed whole though the sender went on."""
        return number not in self._first_place and any(
            later > number for later in self._first_place
        )

    def was_taken(self, number: int) -> bool:
        """Say whether the receiver's TCP acknowledged a copy that it had no right to drop."""
        return any(
            copy.whole and copy.acknowledged and copy.welcome and not self._is_stale(copy)
            for copy in self._of[number]
        )

    def was_sent_as_new_twice(self, number: int) -> bool:
        """Say whether a further copy was no repeat by its own word."""
        copies = self._whole(number)
        return any(not self._is_repeat_of(copies[0], copy) for copy in copies[1:])

    def was_repeated_rightly(self, number: int) -> bool:
        """Say whether each further copy was a repeat with the first one's number."""
        copies = self._whole(number)
        return bool(copies) and all(self._is_repeat_of(copies[0], copy) for copy in copies[1:])

    def in_order(self, number: int) -> bool:
        """Say whether `number` crossed before every higher one."""
        place = self._first_place.get(number)
        return place is not None and all(
            place < other for later, other in self._first_place.items() if later > number
        )

    def tell(self, number: int) -> str:
        """Return what the wire saw of a message, in one line."""
        sequence, neighbours = self._place_of(number)
        copies = self._of.get(number, [])
        if sequence is not None:
            copies = copies + self._nameless[sequence]
        told = [str(copy) for copy in copies[:EVIDENCE_LINES_MAX]]
        if len(copies) > EVIDENCE_LINES_MAX:
            told.append(f"{len(copies) - EVIDENCE_LINES_MAX} more")
        if not told:
            told = [f"nothing of it crossed, but {neighbours} did"]
        return f"message {number}: " + "; ".join(told)

    def _place_of(self, number: int) -> tuple[int | None, str]:
        """Return the sequence number of a message, and its neighbours in words.

        The neighbours tell the number of one of which too little crossed, where the path numbered
        nothing else between them.
        """
        numbers = sorted(self._first_place)
        at = bisect(numbers, number)
        around = [*numbers[max(0, at - 1) : at], *numbers[at : at + 1]]
        sequences = [self._of[near][0].sequence for near in around]
        named = zip(around, sequences, strict=True)
        words = " and ".join(f"message {near} with sequence {known}" for near, known in named)
        if copies := self._of.get(number):
            return copies[0].sequence, words
        if len(around) == 2 and sequences[1] - sequences[0] == around[1] - around[0]:
            return sequences[0] + number - around[0], words
        return None, words

    def _whole(self, number: int) -> list[Transmission]:
        return [copy for copy in self._of[number] if copy.whole]

    @staticmethod
    def _is_repeat_of(first: Transmission, copy: Transmission) -> bool:
        return copy.repeated and copy.sequence == first.sequence

    def _is_stale(self, copy: Transmission) -> bool:
        """Say whether the duplicate rule drops `copy`: a repeat below what had come before."""
        assert copy.place is not None
        return copy.repeated and any(
            other.place is not None
            and other.place < copy.place
            and other.sequence > copy.sequence
            and (self._one_path or other.connection == copy.connection)
            for copies in self._of.values()
            for other in copies
        )


def _faults(received: list[int], count: int) -> Faults:
    """Compare what was received with 0 to `count`."""
    seen: set[int] = set()
    doubled: list[int] = []
    reordered: list[int] = []
    highest = -1
    for number in received:
        if number in seen:
            doubled.append(number)
        elif number < highest:
            reordered.append(number)
        seen.add(number)
        highest = max(highest, number)
    return Faults(tuple(sorted(set(range(count)) - seen)), tuple(doubled), tuple(reordered))


def _without(numbers: tuple[int, ...], taken: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(number for number in numbers if number not in set(taken))
