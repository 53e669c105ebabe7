"""`urds rsocket bench connections N`: the cost of many connections, and whether all of it ends.

One process holds all clients, one all servers. Memory is the growth of the resident set, shared
memory included; an echo is 64 bytes there and back. The cost of one active connection is the median
of its echoes while the others are idle, beside the same with that connection alone.
"""

from __future__ import annotations

import resource
import time
from typing import Any, Final

from urds.cli.output import BAD, GOOD, Column, Output, Progress, UsageError
from urds.cli.rsocket.bench_works.pair import Child, child

_MODULE: Final = "urds.cli.rsocket.bench_works.holders"
_ECHOES: Final = 300
_SPARE_DESCRIPTORS: Final = 100
_STEP: Final = 256  # connections between two lines of progress
_END_S: Final = 40.0
_LOOK_S: Final = 0.05
_LEFT_DESCRIPTORS_MAX: Final = 0


def measure(options: Any, count: int) -> list[dict[str, Any]]:
    """Measure every transport; return a row of each. Raises UsageError, OSError."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if count + _SPARE_DESCRIPTORS > limit != resource.RLIM_INFINITY:
        raise UsageError(
            f"{count} connections: the kernel's need a descriptor each, the limit is {limit}"
        )
    rows = []
    with Progress(quiet=options.json_wanted) as progress:
        for number, way in enumerate(options.ways):

            def show(done: float, text: str, number: int = number, way: str = way) -> None:
                progress.update((number + done) / len(options.ways), f"{way}, {text}")

            with child(_MODULE, way=way, port=None) as server:
                port = server.hear()["port"]
                with child(_MODULE, way=way, port=port) as client:
                    client.hear()
                    rows.append(
                        {"way": way, "connections": count, **_row(client, server, count, show)}
                    )
    return rows


class _Both:
    """The two processes."""

    def __init__(self, client: Child, server: Child) -> None:
        self._client, self._server = client, server

    def do(self, work: str, **details: Any) -> dict[str, Any]:
        """Have the client do a work."""
        self._client.tell({"work": work, "details": details})
        answer: dict[str, Any] = self._client.hear()["answer"]
        return answer

    def held(self) -> dict[str, dict[str, int]]:
        """Return what both hold now."""
        self._server.tell({})
        return {"client": self.do("held"), "server": self._server.hear()}

    def held_at_the_end(self, before: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
        """Wait until both have released everything, for a while; return what they hold then.

        A close returns at once, and the connection ends in the background.
        """
        end_s = time.monotonic() + _END_S
        while True:
            held = self.held()
            is_over = not held["server"]["connections"] and all(
                one["descriptors"] <= before[side]["descriptors"] for side, one in held.items()
            )
            if is_over or time.monotonic() >= end_s:
                return held
            time.sleep(_LOOK_S)


def _row(client: Child, server: Child, count: int, show: Any) -> dict[str, Any]:
    both, more = _Both(client, server), max(1, count - 1)
    both.do("connect", count=1)  # the cost of the first one: devices, channels
    both.do("echo_one", count=20)
    alone_s = both.do("echo_one", count=_ECHOES)["median"]
    before = both.held()
    phases_s = {"create": 0.0, "ask": 0.0, "wait": 0.0}
    for made in range(0, count - 1, _STEP):
        show(0.6 * made / count, f"{made} connections")
        for phase, spent_s in both.do("connect", count=min(_STEP, count - 1 - made)).items():
            phases_s[phase] += spent_s
    opened = both.held()
    show(0.6, "echoes")
    echo_s = both.do("echo_each")["echo"]
    used = both.held()
    idle_s = both.do("echo_one", count=_ECHOES)["median"]
    show(0.9, "close")
    close_s = both.do("close")["close"]
    closed_s = time.monotonic()
    after = both.held_at_the_end(before)
    gone_s = time.monotonic() - closed_s
    show(0.95, "once more")
    both.do("connect", count=more)
    both.do("close")
    again = both.held_at_the_end(before)
    total_s = sum(phases_s.values())
    return {
        "per_s": more / total_s if total_s else 0.0,
        "phases_us": {phase: spent_s * 1e6 / more for phase, spent_s in phases_s.items()},
        "bytes_each": {side: _each(before, opened, side, "resident_bytes", more) for side in after},
        "bytes_each_used": {
            side: _each(before, used, side, "resident_bytes", more) for side in after
        },
        "blocks_each": {side: _each(before, opened, side, "blocks", more) for side in after},
        "descriptors_each": {
            side: _each(before, opened, side, "descriptors", more) for side in after
        },
        "echoes_per_s": count / echo_s,
        "alone_us": alone_s * 1e6,
        "among_idle_us": idle_s * 1e6,
        "close_us": close_s * 1e6 / count,
        "gone_s": gone_s,
        "left": {
            side: {
                "connections": after[side]["connections"],
                "descriptors": after[side]["descriptors"] - before[side]["descriptors"],
                "threads": after[side]["threads"] - before[side]["threads"],
                "blocks_each": _each(before, after, side, "blocks", more),
                "resident_bytes": after[side]["resident_bytes"] - before[side]["resident_bytes"],
                # Python keeps freed memory for later use: a leak would add to that.
                "resident_bytes_again": again[side]["resident_bytes"]
                - after[side]["resident_bytes"],
            }
            for side in after
        },
    }


def _each(before: Any, after: Any, side: str, name: str, count: int) -> float:
    return float(after[side][name] - before[side][name]) / count


def show(output: Output, rows: list[dict[str, Any]]) -> None:
    """Print the table of `measure`."""
    names = [Column("", 38, left=True), *(Column(row["way"], 9) for row in rows)]
    lines = [
        ("connects per second", "{per_s:.0f}"),
        ("  create, us each", "{phases_us[create]:.1f}"),
        ("  ask, us each", "{phases_us[ask]:.1f}"),
        ("  wait until connected, us each", "{phases_us[wait]:.1f}"),
        ("  close, us each", "{close_us:.1f}"),
        ("  all gone after, s", "{gone_s:.2f}"),
        ("bytes each, client", "{bytes_each[client]:.0f}"),
        ("bytes each, server", "{bytes_each[server]:.0f}"),
        ("  after an echo, client", "{bytes_each_used[client]:.0f}"),
        ("  after an echo, server", "{bytes_each_used[server]:.0f}"),
        ("descriptors each, client", "{descriptors_each[client]:.2f}"),
        ("descriptors each, server", "{descriptors_each[server]:.2f}"),
        ("blocks of Python each, client", "{blocks_each[client]:.0f}"),
        ("blocks of Python each, server", "{blocks_each[server]:.0f}"),
        ("echoes per second, one on each", "{echoes_per_s:.0f}"),
        ("echo of the one there is, us", "{alone_us:.1f}"),
        ("echo of one among all, us", "{among_idle_us:.1f}"),
        ("left: connections at the server", "{left[server][connections]}"),
        ("left: descriptors, client", "{left[client][descriptors]}"),
        ("left: descriptors, server", "{left[server][descriptors]}"),
        ("left: blocks of Python each, client", "{left[client][blocks_each]:.1f}"),
        ("left: blocks of Python each, server", "{left[server][blocks_each]:.1f}"),
        ("left: MB resident, client", "{megabytes[client]:.1f}"),
        ("left: MB resident, server", "{megabytes[server]:.1f}"),
        ("  and after as many again, client", "{megabytes_again[client]:+.1f}"),
        ("  and after as many again, server", "{megabytes_again[server]:+.1f}"),
    ]
    shown = [
        {
            **row,
            "megabytes": {side: one["resident_bytes"] / 1e6 for side, one in row["left"].items()},
            "megabytes_again": {
                side: one["resident_bytes_again"] / 1e6 for side, one in row["left"].items()
            },
        }
        for row in rows
    ]
    output.table(
        f"{rows[0]['connections']} connections of one process to another",
        names,
        ((title, *(form.format(**row) for row in shown)) for title, form in lines),
    )
    for row in rows:
        # The one connection that `before` counts has ended, too: fewer descriptors are no leak.
        is_clean = not row["left"]["server"]["connections"] and all(
            side["descriptors"] <= _LEFT_DESCRIPTORS_MAX for side in row["left"].values()
        )
        words = "no connection and no descriptor is left" if is_clean else "something is left"
        output.line(f"{row['way']}: {words}", GOOD if is_clean else BAD)
