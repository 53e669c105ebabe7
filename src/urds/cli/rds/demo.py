"""`urds demo`: hosts that exchange verified messages while their connections are reset on purpose.

Each host is a process with an address of its own in 127/8, so there is real TCP between any two of
them, and no root in sight. Every host sends numbered messages to every other, checks each one it
gets, and now and then resets all of its connections. At the end the coordinator, which has no
socket itself, compares what was accepted from the senders with what the receivers counted.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from ipaddress import IPv4Address
from random import SystemRandom
from typing import Any, Final

from urds.backend import plane_in_use
from urds.cli.demo_host import Plan
from urds.cli.demo_messages import PAYLOAD_BYTES_MAX, PAYLOAD_BYTES_MIN
from urds.cli.demo_processes import DemoError, Hosts, running
from urds.cli.exits import Exit, UsageError
from urds.cli.output import BAD, GOOD, TITLE, Output, Progress, complain

HOSTS_MAX: Final = 16
SECONDS_MAX: Final = 3600
_READY_S: Final = 20.0
_STOP_S: Final = 15.0  # beyond the time of the run, until every host has stopped sending
_DRAIN_S: Final = 8.0
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What to show."""

    hosts: int = 4
    seconds: float = 8.0
    payload_bytes: int = 1024
    reset_every_s: float = 0.25  # of each host; 0 never
    seed: int | None = None  # None: by chance
    first_address: str = "127.0.0.2"
    json_wanted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """What one host lost of another's messages."""

    source: str
    target: str
    sent: int
    numbers: list[int]  # the first few


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of it."""

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
    """Show it; `Exit.FAILED` if a message was lost, doubled, reordered or damaged.

    Raises UsageError, and as `plane_in_use` for a plane that cannot be.
    """
    output = Output(json_wanted=options.json_wanted)
    plans = make_plans(options)
    plane, _ = plane_in_use()  # a host that finds it wrong could only end with a traceback
    if not options.json_wanted:
        _introduce(output, options, plans, plane)
    try:
        with running(plans) as hosts, Progress(quiet=options.json_wanted) as progress:
            verdicts, sent = _exchange(hosts, options, plans, progress)
    except DemoError as failure:
        complain("demo", str(failure))
        return Exit.FAILED
    result = judge(verdicts, sent, options, seed=plans[0].seed)
    if options.json_wanted:
        output.document(asdict(result))
    else:
        for line, good in summary(result):
            output.line(line, None if good is None else GOOD if good else BAD)
    return Exit.OK if result.is_perfect else Exit.FAILED


def make_plans(options: DemoOptions) -> list[Plan]:
    """Return what each host does. Raises UsageError for options that cannot be."""
    _check("--hosts", options.hosts, 2, HOSTS_MAX)
    _check("--seconds", options.seconds, 0.1, SECONDS_MAX)
    _check("--size", options.payload_bytes, PAYLOAD_BYTES_MIN, PAYLOAD_BYTES_MAX)
    _check("--reset-every", options.reset_every_s, 0, SECONDS_MAX)
    try:
        first = IPv4Address(options.first_address)
        addresses = [str(first + index) for index in range(options.hosts)]
    except ValueError as wrong:
        raise UsageError(f"--first {options.first_address}: {wrong}") from wrong
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


def judge(
    verdicts: Mapping[str, Mapping[str, Any]],
    sent: Mapping[str, Mapping[str, int]],
    options: DemoOptions,
    *,
    seed: int,
) -> Result:
    """Compare what senders were told was accepted with what receivers counted."""
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
            f" of {result.payload_bytes} octets, {rate_mib:.1f} MiB/s",
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
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, int]]]:
    """Lead the hosts through the run; return their verdicts and what each sent to whom."""
    for _ in hosts.collect("ready", _READY_S):
        pass
    for index in range(len(plans)):
        hosts.say(index, {"go": True})
    start_s = time.monotonic()
    sent: dict[str, dict[str, int]] = {}
    counts: dict[int, dict[str, int]] = {}
    for index, words in hosts.collect("sent", options.seconds + _STOP_S):
        counts[index] = words
        if words["event"] == "sent":
            sent[plans[index].address] = words["each"]
        delivered = sum(one["delivered"] for one in counts.values())
        resets = sum(one["resets"] for one in counts.values())
        elapsed_s = min(time.monotonic() - start_s, options.seconds)
        progress.update(
            elapsed_s / options.seconds,
            f"{elapsed_s:5.1f} s  delivered {delivered}  resets {resets}",
        )
    for index, plan in enumerate(plans):
        hosts.say(index, {"expect": {peer: sent[peer][plan.address] for peer in plan.peers}})
    verdicts = {
        plans[index].address: words
        for index, words in hosts.collect("done", _DRAIN_S + _STOP_S)
        if words["event"] == "done"
    }
    return verdicts, sent


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


def _check(option: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise UsageError(f"{option} {value:g}: must be from {low:g} to {high:g}")
