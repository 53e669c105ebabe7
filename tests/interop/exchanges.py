"""What several tests do: exchange numbered messages while something breaks, then judge the wire."""

import shutil
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from .conftest import Ends, Note
from .lab.guest import Lab
from .lab.judge import Verdict, judge
from .lab.message_log import MessageLog
from .lab.wire import Direction, Orders

IDLE_S = 20.0
FINISH_TIMEOUT_S = 280.0
EXCHANGE = "exchange(s, target, count=count, seed=seed, idle_s=idle_s, size=size)"
LATE_S = 0.5  # time for a message that comes once too often
# What crossed the wire is kept here where a side is at fault.
EVIDENCE = Path(__file__).parents[2] / ".reports"
DIRECTIONS = {Direction.TO_HOST: "to_us", Direction.TO_GUEST: "to_kernel"}


class KernelFault(UserWarning):
    """What a kernel lost, doubled or reordered by itself, shown by the wire."""


@contextmanager
def judged_exchange(
    ends: Ends,
    lab: Lab,
    note: Note,
    *,
    count: int,
    seed: int,
    kernel_size: str,
    our_size: str | None = None,
    may_lose: Direction | None = None,
) -> Iterator[None]:
    """Exchange `count` messages each way while the body makes trouble; then judge what came.

    The sizes are functions of the workload; ours is the kernel's if there is none. Needs the
    sockets `s` of both ends. Nothing may be lost, doubled or reordered but by the kernel, and only
    where the wire shows that; in the direction `may_lose` messages may be lost, and are counted.
    """
    with judged(ends, lab, note, count=count, may_lose=may_lose) as received:
        names = {"count": count, "seed": seed, "idle_s": IDLE_S}
        ends.guest.start(EXCHANGE, target=ends.us, size=kernel_size, **names)
        ends.ours.start(EXCHANGE, target=ends.kernel, size=our_size or kernel_size, **names)
        yield
        received[Direction.TO_GUEST] = ends.guest.finish(timeout_s=FINISH_TIMEOUT_S)
        received[Direction.TO_HOST] = ends.ours.finish(timeout_s=FINISH_TIMEOUT_S)


@contextmanager
def received_in_rounds(
    ends: Ends, lab: Lab, note: Note, *, rounds: int, count: int
) -> Iterator[Iterator[range]]:
    """Give the body the numbers to send each way in each of `rounds`; then judge what came."""
    whole = rounds * count
    with judged(ends, lab, note, count=whole) as received:
        yield (range(first, first + count) for first in range(0, whole, count))
        receive = "receive_numbers(s, count)"
        received[Direction.TO_GUEST] = ends.guest(receive, count=whole)
        received[Direction.TO_HOST] = ends.ours(receive, count=whole)


@contextmanager
def judged(
    ends: Ends, lab: Lab, note: Note, *, count: int, may_lose: Direction | None = None
) -> Iterator[dict[Direction, list[int]]]:
    """Record the wire while the body notes what each side received; then judge it.

    Needs the sockets `s` of both ends. See `judged_exchange`.
    """
    received: dict[Direction, list[int]] = {}
    cuts_before = lab.counts()["cuts"]
    with lab.recorded() as recording:
        yield received
        lab.order(Orders())
        time.sleep(LATE_S)
        received[Direction.TO_GUEST] += ends.guest("drain(s)")
        received[Direction.TO_HOST] += ends.ours("drain(s)")
    note(messages=2 * count, resets=lab.counts()["cuts"] - cuts_before)
    log = MessageLog.read(recording).transmissions
    verdicts = {
        direction: judge(numbers, count=count, direction=direction, log=log)
        for direction, numbers in received.items()
    }
    assert_faultless(note, verdicts, recording, may_lose=may_lose)


def assert_faultless(
    note: Note,
    verdicts: dict[Direction, Verdict],
    recording: Path,
    *,
    may_lose: Direction | None = None,
) -> None:
    """Note the verdicts, warn of the kernel's faults, fail for ours but for losses `may_lose`."""
    for direction, verdict in verdicts.items():
        name = DIRECTIONS[direction]
        note(**{name: verdict.ours.counts, f"{name}_by_kernel": verdict.kernel.counts})
        if verdict.kernel:
            note(**{f"{name}_evidence": list(verdict.evidence)})
            told = "\n  ".join([*verdict.evidence, _kept(recording)])
            warnings.warn(f"{name}: {verdict.kernel}\n  {told}", KernelFault, stacklevel=2)
    lost = {way: verdict.ours.lost for way, verdict in verdicts.items()}
    forgiven = lost.get(may_lose, ()) if may_lose is not None else ()
    ours = [
        replace(v.ours, lost=() if way is may_lose else lost[way]) for way, v in verdicts.items()
    ]
    if forgiven:
        warnings.warn(f"{len(forgiven)} lost with killed workers", KernelFault, stacklevel=2)
    if any(ours):
        told = "\n".join(f"{DIRECTIONS[way]}: {v.ours}" for way, v in verdicts.items())
        raise AssertionError(f"{told}\n{_kept(recording)}")


def _kept(recording: Path) -> str:
    """Keep a recording; say where it is."""
    EVIDENCE.mkdir(exist_ok=True)
    kept = EVIDENCE / f"interop-evidence-{time.time_ns()}.pcap"
    shutil.copy(recording, kept)
    return f"what crossed the wire: {kept}"
