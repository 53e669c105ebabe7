"""`urds demo`: hosts that exchange verified messages while their connections are reset on purpose.

Each host is a process with an address of its own in 127/8, so there is real TCP between any two of
them, and none needs root. Every host sends numbered messages to every other, checks each one it
gets, and now and then resets all of its connections. At the end the coordinator, which has no
socket itself, compares the accepted messages of the senders with the counts of the receivers.
"""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from ipaddress import IPv4Address
from random import SystemRandom
from typing import IO, Any, Final, Self

from urds.cli.output import BAD, GOOD, TITLE, Exit, Output, Progress, UsageError, complain
from urds.cli.parser import Command, check_ranges, json_option, option
from urds.cli.processes import ctrl_c_held, start
from urds.cli.rds.demo_host import PAYLOAD_BYTES_MAX, PAYLOAD_BYTES_MIN, Plan
from urds.rds.runtime.process import plane_in_use

HOSTS_MAX: Final = 16
SECONDS_MAX: Final = 3600
_READY_S: Final = 20.0
_STOP_S: Final = 15.0  # beyond the time of the run, until every host has stopped sending
_DRAIN_S: Final = 8.0
_END_S: Final = 3.0
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """Options of `urds demo`."""

    hosts: int = option("--hosts", default=4, low=2, high=HOSTS_MAX, help="How many hosts.")
    seconds: float = option(
        "--seconds", metavar="S", default=8.0, low=0.1, high=SECONDS_MAX, help="How long they send."
    )
    payload_bytes: int = option(
        "--size", metavar="BYTES", default=1024, low=PAYLOAD_BYTES_MIN, high=PAYLOAD_BYTES_MAX,
        help="Bytes of each message.",
    )  # fmt: skip
    reset_every_s: float = option(
        "--reset-every", metavar="S", default=0.25, low=0, high=SECONDS_MAX,
        help="Seconds between the resets of one host, on average; 0 for none.",
    )  # fmt: skip
    seed: int | None = option("--seed", help="Repeat the content of an earlier run.")
    first_address: str = option(
        "--first", metavar="ADDRESS", default="127.0.0.2",
        help="Address of the first host; the others follow it.",
    )  # fmt: skip
    json_wanted: bool = json_option()


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """One host's losses of another's messages."""

    source: str
    target: str
    sent: int
    numbers: list[int]  # the first few


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a run."""

    hosts: int
    sent: int
    delivered: int
    lost: int
    duplicated: int
    reordered: int
    damaged: int
    resets_survived: int
    seconds: float
    messages_per_second: int
    payload_bytes: int
    seed: int
    missing: Sequence[Missing]

    @property
    def is_perfect(self) -> bool:
        """Tell whether each message arrived once, whole and in order."""
        return not (self.lost or self.duplicated or self.reordered or self.damaged)


def run(options: DemoOptions) -> Exit:
    """Print it; `Exit.FAILED` if a message was lost, doubled, reordered or damaged.

    Ctrl-C ends the sending sooner; what was sent until then is judged all the same.
    Raises UsageError, and as `plane_in_use` for a plane that cannot be.
    """
    output = Output(json_wanted=options.json_wanted)
    plans = make_plans(options)
    plane, _ = plane_in_use()  # a host that finds it wrong could only end with a traceback
    _introduce(output, options, plans, plane)
    try:
        with Hosts(plans) as hosts, Progress(quiet=options.json_wanted) as progress:
            verdicts, sent, is_interrupted = _exchange(hosts, options, plans, progress)
    except DemoError as failure:
        complain("urds demo", str(failure))
        return Exit.FAILED
    result = compare(verdicts, sent, options, seed=plans[0].seed)
    output.document(asdict(result))
    for line, good in summary(result):
        output.line(line, None if good is None else GOOD if good else BAD)
    if not result.is_perfect:
        return Exit.FAILED
    return Exit.INTERRUPTED if is_interrupted else Exit.OK


def make_plans(options: DemoOptions) -> list[Plan]:
    """Return the plan of each host. Raises UsageError for wrong options."""
    check_ranges(options)
    try:
        first = IPv4Address(options.first_address)
        addresses = [str(first + index) for index in range(options.hosts)]
    except ValueError as wrong:
        text = f"--first {options.first_address}: must be an IPv4 address of 127.0.0.0/8"
        raise UsageError(text) from wrong
    if not first.is_loopback or not IPv4Address(addresses[-1]).is_loopback:
        raise UsageError(f"--first {first}: all {options.hosts} hosts must be in 127.0.0.0/8")
    seed = SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    return [
        Plan(
            address=address,
            peers=[peer for peer in addresses if peer != address],
            seconds=options.seconds,
            payload_bytes=options.payload_bytes,
            reset_every_s=options.reset_every_s,
            drain_s=_DRAIN_S,
            seed=seed,
        )
        for address in addresses
    ]


def compare(
    verdicts: Mapping[str, Mapping[str, Any]],
    sent: Mapping[str, Mapping[str, int]],
    options: DemoOptions,
    *,
    seed: int,
) -> Result:
    """Compare the accepted messages of the senders with the counts of the receivers."""
    delivered = sum(sum(verdict["delivered"].values()) for verdict in verdicts.values())
    lost = sum(
        count - verdicts[target]["delivered"][source]
        for source, counts in sent.items()
        for target, count in counts.items()
    )
    seconds = max(verdict["seconds"] for verdict in verdicts.values())

    def total(name: str) -> int:
        return sum(verdict[name] for verdict in verdicts.values())

    return Result(
        hosts=len(verdicts),
        sent=sum(sum(counts.values()) for counts in sent.values()),
        delivered=delivered,
        lost=lost,
        duplicated=total("duplicated"),
        reordered=total("reordered"),
        damaged=total("damaged"),
        resets_survived=total("resets"),
        seconds=round(seconds, 3),
        messages_per_second=round(delivered / seconds) if seconds > 0 else 0,
        payload_bytes=options.payload_bytes,
        seed=seed,
        missing=[
            Missing(source=source, target=target, sent=sent[source][target], numbers=numbers)
            for target, verdict in verdicts.items()
            for source, numbers in verdict["missing"].items()
        ],
    )


def summary(result: Result) -> list[tuple[str, bool | None]]:
    """Return the lines of the summary, each with whether it is good news (None: neither)."""
    rate_mib = result.messages_per_second * result.payload_bytes / _MIB
    return [
        (f"sent {result.sent}, delivered {result.delivered}", None),
        (
            f"lost {result.lost}, duplicated {result.duplicated},"
            f" reordered {result.reordered}, damaged {result.damaged}",
            result.is_perfect,
        ),
        (f"resets survived {result.resets_survived}", None),
        (
            f"messages per second {result.messages_per_second}"
            f" of {result.payload_bytes} bytes, {rate_mib:.1f} MiB/s",
            None,
        ),
        *(
            (
                f"{one.source} to {one.target}: missing {', '.join(map(str, one.numbers))}"
                f" (the first few) of {one.sent}",
                False,
            )
            for one in result.missing
        ),
    ]


def _exchange(
    hosts: Hosts, options: DemoOptions, plans: Sequence[Plan], progress: Progress
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, int]], bool]:
    """Run the hosts; return their verdicts, the messages of each to every other, if Ctrl-C came."""
    for _ in hosts.collect("ready", _READY_S):
        pass
    for index in range(len(plans)):
        hosts.say(index, {"go": True})
    sent: dict[str, dict[str, int]] = {}
    is_interrupted = False
    try:
        _collect_sent(hosts, options, plans, progress, sent)
    except KeyboardInterrupt:
        is_interrupted = True
        for index in range(len(plans)):
            hosts.say(index, {"stop": True})
        _collect_sent(hosts, options, plans, progress, sent)
    for index, plan in enumerate(plans):
        hosts.say(index, {"expect": {peer: sent[peer][plan.address] for peer in plan.peers}})
    verdicts = {
        plans[index].address: words
        for index, words in hosts.collect("done", _DRAIN_S + _STOP_S)
        if words["event"] == "done"
    }
    return verdicts, sent, is_interrupted


def _collect_sent(
    hosts: Hosts,
    options: DemoOptions,
    plans: Sequence[Plan],
    progress: Progress,
    sent: dict[str, dict[str, int]],
) -> None:
    """Show the progress until each host has said what it sent to every other."""
    counts: dict[int, dict[str, int]] = {}
    start_s = time.monotonic()
    missing = {index for index, plan in enumerate(plans) if plan.address not in sent}
    for index, words in hosts.collect("sent", options.seconds + _STOP_S, missing):
        if words["event"] == "sent":
            sent[plans[index].address] = words["each"]
        counts[index] = words
        delivered = sum(one["delivered"] for one in counts.values())
        resets = sum(one["resets"] for one in counts.values())
        elapsed_s = min(time.monotonic() - start_s, options.seconds)
        progress.update(
            elapsed_s / options.seconds,
            f"{elapsed_s:5.1f} s  delivered {delivered}  resets {resets}",
        )


def _introduce(output: Output, options: DemoOptions, plans: Sequence[Plan], plane: str) -> None:
    output.line(
        f"{len(plans)} RDS hosts, {plans[0].address} to {plans[-1].address}, each a process;"
        " every one sends to every other.",
        TITLE,
    )
    if options.reset_every_s:
        output.line(
            f"Each resets all of its TCP connections about every {options.reset_every_s:g} s."
        )
    output.line(
        f"Every message is numbered and hashed; the {plane} plane carries it. Seed {plans[0].seed}."
    )


# -- the processes of the hosts


class DemoError(OSError):
    """A host ended early, or did not answer in time."""


class Hosts:
    """The processes and their output. Leaving it ends them all, whatever happens."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        self._said: queue.Queue[tuple[int, dict[str, Any]]] = queue.Queue()
        self._children: list[subprocess.Popen[str]] = []
        self._plans = plans

    def __enter__(self) -> Self:
        try:
            with ctrl_c_held():
                self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _start(self) -> None:
        """Start one process per plan, out of reach of the terminal's Ctrl-C."""
        for index, plan in enumerate(self._plans):
            child = start("urds.cli.rds.demo_host", own_session=True)
            self._children.append(child)
            assert child.stdout is not None
            threading.Thread(target=self._listen, args=(index, child.stdout), daemon=True).start()
            self.say(index, asdict(plan))

    def say(self, index: int, command: Mapping[str, object]) -> None:
        """Send one host a command."""
        pipe = self._children[index].stdin
        assert pipe is not None
        with suppress(BrokenPipeError):  # it ended; `collect` tells
            pipe.write(json.dumps(command) + "\n")
            pipe.flush()

    def collect(
        self, event: str, wait_s: float, missing: set[int] | None = None
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the hosts' lines until each, or each that is `missing`, has printed `event`.

        Raises DemoError when one fails, ends, or takes longer than `wait_s`.
        """
        missing = set(range(len(self._plans))) if missing is None else missing
        deadline_s = time.monotonic() + wait_s
        while missing:
            try:
                index, words = self._said.get(timeout=max(0.0, deadline_s - time.monotonic()))
            except queue.Empty:
                silent = ", ".join(self._plans[one].address for one in sorted(missing))
                raise DemoError(f"no `{event}` from {silent} within {wait_s:g} s") from None
            if words["event"] == "failed":
                raise DemoError(words["reason"])
            if words["event"] == "ended":
                raise DemoError(f"host {self._plans[index].address} ended early")
            if words["event"] == event:
                missing.discard(index)
            yield index, words

    def _end(self) -> None:
        """End the processes: by a request, then by force."""
        for child in self._children:
            assert child.stdin is not None
            with suppress(BrokenPipeError):
                child.stdin.close()
        deadline_s = time.monotonic() + _END_S
        for child in self._children:
            try:
                child.wait(max(0.1, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def _listen(self, index: int, pipe: IO[str]) -> None:
        for line in pipe:
            self._said.put((index, json.loads(line)))
        self._said.put((index, {"event": "ended"}))


COMMAND: Final = Command(
    about="""
    Each host is a process with an address of its own in 127/8. Each one sends numbered,
    hashed messages to every other, and resets all of its TCP connections on purpose, again
    and again. The summary counts what was lost (nothing); the exit code is 1 if anything was.
    Ctrl-C ends the sending; the summary follows.
    """,
    examples=(
        ("urds demo", "four hosts, about 8 seconds"),
        ("urds demo --hosts 8 --reset-every 0.05", "more of everything"),
        ("urds demo --seconds 3 --seed 1 --json", "for a script"),
    ),
    options=DemoOptions,
    run=run,
)
