"""`urds info`: counters and tables as rds-info prints them, of every urds process of this user.

A kernel has one RDS; here each process has its own. So the tables name the process in a last
column, and the counters are sums unless one process is chosen. Columns and titles are those of
rds-info, in its order; `-v` adds ours. Without a letter there is a summary, which rds-info has not.
Source: rds-tools rds-info(1); linux v6.12 net/rds/info.c.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from ipaddress import IPv6Address
from typing import Any, Final

from urds.cli.output import Cell, Exit, Output, UsageError, columns, complain
from urds.cli.parser import Command, check_ranges, find_address, json_option, option
from urds.cli.rds.totals import headlines, largest, of_peer, sum_counters, totals, watch
from urds.rds.runtime import processes
from urds.rds.runtime.processes import Report, Silent
from urds.rds.settings import AUTO

_TCP_SEQUENCES: Final = 1 << 32
_PROGRAM_CHARACTERS: Final = 60  # JSON has it longer
_ADDRESSES_SHOWN: Final = 3  # of a process; JSON has all
_SUMMARY: Final = "cpn"  # what is shown without a letter, beside the totals
_SIZES: Final = (  # of a row, for `--top`: what waits
    *("payload_bytes", "send_queued_bytes", "receive_queued_bytes"),
    *("unsent_messages", "unacknowledged_messages"),
)


@dataclass(frozen=True, slots=True)
class Table:
    """One table: its letter, its names, and how the rows of one process are found.

    Its columns are those of `output.columns`.
    """

    letter: str
    key: str  # in JSON
    title: str
    help: str
    plain: str  # columns
    verbose: str  # columns that `-v` adds
    records: Callable[[Report, bool], Iterable[Any]]
    cells: Callable[[Report, Any], tuple[Cell, ...]]  # of all columns


def _process(report: Report, _: bool) -> list[dict[str, Any]]:
    bound = {row.local for row in report.snapshot.mailboxes}
    addresses = [str(one) for one in sorted(bound, key=lambda one: (one.version, int(one)))]
    return [{"program": report.program, "addresses": addresses, "plane": report.plane}]


def _process_cells(report: Report, record: dict[str, Any]) -> tuple[Cell, ...]:
    sockets, paths = len(report.snapshot.mailboxes), len(report.snapshot.paths)
    program = record["program"]
    if len(program) > _PROGRAM_CHARACTERS:
        program = program[: _PROGRAM_CHARACTERS - 3] + "..."
    addresses = record["addresses"]
    shown = addresses[:_ADDRESSES_SHOWN]
    if left_out := len(addresses) - len(shown):
        shown.append(f"+{left_out}")
    return program or "-", ",".join(shown) or "-", record["plane"], sockets, paths


def _socket_cells(report: Report, row: Any) -> tuple[Cell, ...]:
    unconnected = "0.0.0.0" if row.local.version == 4 else "::"
    peer = report.connected.get((row.local, row.port))
    address, port = (str(peer[0]), peer[1]) if peer else (unconnected, 0)
    return (
        *(str(row.local), row.port, address, port),
        *(row.send_bytes_max, row.receive_bytes_max, row.inode),
        *(row.send_queued_bytes, row.receive_queued_bytes, row.receive_queued_messages),
        "yes" if row.congested else "no",
    )


def _paths(report: Report, verbose: bool) -> Iterable[Any]:
    """Return path 0 of each connection, as the kernel lists them; with `-v` all paths."""
    return [row for row in report.snapshot.paths if verbose or row.is_listed]


def _path_cells(_: Report, row: Any) -> tuple[Cell, ...]:
    flags = "".join(
        letter if is_set else "-"
        for letter, is_set in (("s", row.sending), ("c", not row.up), ("C", row.up))
    )
    return (
        *(str(row.local), str(row.peer), row.tos),
        *(row.sequence_next, row.sequence_expected, flags + "-", row.index, str(row.transport)),
        *(row.unsent_messages, row.unacknowledged_messages, "yes" if row.held else "no"),
        *_fact_cells(row.connection),
    )


def _fact_cells(facts: Any) -> tuple[Cell, ...]:
    """Return what the control plane knows of a connection; times in seconds."""
    if facts is None:
        return ("-",) * 7
    times = facts.state_s, facts.next_attempt_s, facts.last_received_s
    state_s, next_s, received_s, oldest_s = (
        "-" if one is None else f"{one:.1f}" for one in (*times, facts.oldest_unacknowledged_s)
    )
    error = facts.last_error
    if error and facts.last_error_s is not None:
        error = f"{facts.last_error_s:.1f} s ago: {error}"
    return (
        *(facts.state, state_s, facts.attempts, next_s),
        *(received_s, oldest_s, error or "-"),
    )


def _message_cells(_: Report, row: Any) -> tuple[Cell, ...]:
    here, there = (str(row.local), row.local_port), (str(row.peer), row.peer_port)
    return (*here, *there, row.tos, row.sequence, row.payload_bytes)


def _streams(report: Report, _: bool) -> Iterable[Any]:
    return [row for row in report.snapshot.paths if row.local_stream and row.peer_stream]


def _stream_cells(_: Report, row: Any) -> tuple[Cell, ...]:
    data = row.stream_sent_bytes, row.stream_expected_bytes, row.stream_acknowledged_bytes
    return (
        *(*row.local_stream, *row.peer_stream),
        *(row.header_remaining_bytes, row.data_remaining_bytes),
        *(count % _TCP_SEQUENCES for count in data),
        row.index,
    )


def _rdma(report: Report, verbose: bool) -> Iterable[Any]:
    return [
        {"local": row.local, "peer": row.peer, "tos": row.tos, **asdict(row.rdma)}
        for row in _paths(report, verbose)
        if row.rdma is not None
    ]


def _rdma_cells(_: Report, record: dict[str, Any]) -> tuple[Cell, ...]:
    return (
        *(str(record["local"]), str(record["peer"]), record["tos"], record["service_level"]),
        *(_gid_text(record["local_gid"]), _gid_text(record["peer_gid"])),
        *(record["send_requests_max"], record["receive_requests_max"]),
        *(record["send_segments_max"], record["regions_max"], record["region_pages_max"]),
        *(0, record["device"] or "-"),  # received frames are in no cache here
    )


def _gid_text(gid: IPv6Address) -> str:
    """Return a GID as every release of Python and rds-info write it."""
    return f"::ffff:{gid.ipv4_mapped}" if gid.ipv4_mapped else str(gid)


def _queue(letter: str, key: str, which: str, about: str) -> Table:
    """Return the table of a queue of messages; `key` is also its name in a snapshot."""
    titles = "LocalAddr:15|LPort:5|RemoteAddr:15|RPort:5|Tos:3|Seq:20|Bytes:10"
    return Table(
        letter, key, f"{which} Message Queue", about, titles, "",
        lambda report, _: getattr(report.snapshot, key), _message_cells,
    )  # fmt: skip


TABLES: Final = (
    Table(
        "p", "processes", "Processes", "the processes that were asked",
        "Program:<15|Addresses:<15|Plane:<6|Sockets:7|Paths:5", "", _process, _process_cells,
    ),
    Table(
        "k", "sockets", "RDS Sockets", "bound sockets",
        "BoundAddr:15|BPort:5|ConnAddr:15|CPort:5|SndBuf:10|RcvBuf:10|Inode:8",
        "|SndQueue:8|RcvQueue:8|RcvMsgs:7|Congested:9",
        lambda report, _: report.snapshot.mailboxes, _socket_cells,
    ),
    Table(
        "n", "connections", "RDS Connections", "connections to peers",
        "LocalAddr:15|RemoteAddr:15|Tos:4|NextTX:20|NextRX:20|Flgs:4",
        "|Path:4|Trans:10|Unsent:6|Unacked:7|Held:4"
        "|State:10|Since:7|Tries:5|Next:5|LastRecv:8|Oldest:7|LastError:<9", _paths, _path_cells,
    ),
    _queue("r", "receive_queue", "Receive", "messages that wait for a receive"),
    _queue("s", "send_queue", "Send", "messages not sent yet"),
    _queue("t", "retransmit_queue", "Retransmit", "messages sent and not acknowledged"),
    Table(
        "T", "tcp_sockets", "TCP Connections", "TCP connections and how far they are",
        "LocalAddr:15|LPort:5|RemoteAddr:15|RPort:5"
        "|HdrRemain:10|DataRemain:10|SentNxt:10|ExpectUna:10|SeenUna:10",
        "|Path:4", _streams, _stream_cells,
    ),
    Table(
        "I", "ib_connections", "RDS IB Connections",
        "connections over RDMA, and what their queue pairs take",
        "LocalAddr:15|RemoteAddr:15|Tos:4|SL:3|LocalDev:32|RemoteDev:32",
        "|send_wr:7|recv_wr:7|send_sge:8|rdma_mr_max:11|rdma_mr_size:12|cache_allocs:12|Device:6",
        _rdma, _rdma_cells,
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class InfoOptions:
    """Options of `urds info`; no table named means a summary."""

    tables: Collection[str] = option(
        default=(),
        letters={"c": "Show counters.", **{one.letter: f"Show {one.help}." for one in TABLES}},
        help="",
    )
    all: bool = option("-a", "--all", default=False, help="Show counters and all tables.")
    pid: int | None = option("--pid", low=1, help="Ask this process only.")
    peer: str | None = option(
        "--peer", metavar="ADDRESS", help="Show connections and messages of this peer only."
    )
    nonzero: bool = option(
        "-z", "--nonzero", default=False, help="Leave out counters at zero and empty tables."
    )
    top: int | None = option(
        "--top", low=1, help="Show the N largest counters, and rows of which most waits."
    )
    watch_s: float | None = option(
        "--watch", metavar="SECONDS", low=0.1, high=3600, bare=1.0,
        help="Show totals and rates after each interval, until Ctrl-C; 1 s without a number.",
    )  # fmt: skip
    all_users: bool = option(
        "--all-users", default=False, help="Ask the processes of all users; for root."
    )
    verbose: bool = option(
        "-v", "--verbose", default=False, help="More columns, and all paths of each connection."
    )
    json_wanted: bool = json_option()


def run(options: InfoOptions) -> Exit:
    """Ask the processes and print; `Exit.FAILED` if none of them answered.

    Raises UsageError for an impossible process number, and a peer without an address.
    """
    check_ranges(options)
    if options.all_users and os.getuid():
        raise UsageError("--all-users: only root may ask the processes of other users")
    output = Output(json_wanted=options.json_wanted)
    if options.watch_s is not None:
        if options.tables or options.all:
            raise UsageError("--watch shows totals and rates, no tables")
        return watch(lambda: _ask(options)[0], output, options.watch_s, options.top)
    reports, silent = _ask(options)
    is_summary = not options.tables and not options.all
    if is_summary:
        options = replace(options, tables=_SUMMARY, nonzero=True)
    found = document(reports, options)
    output.document({"totals": totals(reports), **found} if is_summary else found)
    if not reports and not silent:
        where = "any process" if options.all_users else "any process of this user"
        where = f"process {options.pid}" if options.pid else where
        if (directory := processes.named_directory()) != AUTO:
            where += f", by what is in {directory} (info_directory)"
        complain("urds info", f"no urds socket is bound in {where}")
    if not reports:
        return Exit.FAILED
    if is_summary:
        for line in headlines(totals(reports)):
            output.line(line)
    if "counters" in found:
        output.table("", columns("CounterName:34|Value:16"), found["counters"].items())
    for table in _chosen(options):
        print_table(output, table, reports, options)
    return Exit.OK


def _chosen(options: InfoOptions) -> list[Table]:
    return [one for one in TABLES if options.all or one.letter in options.tables]


def print_table(
    output: Output, table: Table, reports: Sequence[Report], options: InfoOptions
) -> None:
    """Print one table with the rows of all processes."""
    titles = columns(table.plain + (table.verbose if options.verbose else ""))
    rows = [
        (*table.cells(report, record)[: len(titles)], report.pid)
        for report, record in _rows(table, reports, options)
    ]
    if rows or not options.nonzero:
        output.table(table.title, [*titles, *columns("Pid:7")], rows)


def document(reports: Sequence[Report], options: InfoOptions) -> dict[str, Any]:
    """Return everything chosen, for JSON: rows as records under our names for the fields."""
    found: dict[str, Any] = {}
    if options.all or "c" in options.tables:
        counters = sum_counters(reports).items()
        found["counters"] = {key: value for key, value in counters if value or not options.nonzero}
        if options.top is not None:
            found["counters"] = largest(found["counters"], options.top)
    for table in _chosen(options):
        rows = _rows(table, reports, replace(options, verbose=True))
        found[table.key] = [{**_fields(record), "pid": report.pid} for report, record in rows]
    return found


def _rows(
    table: Table, reports: Sequence[Report], options: InfoOptions
) -> list[tuple[Report, Any]]:
    """Return the rows of all processes; with `--top` those of which most waits, the most first."""
    found = [(report, row) for report in reports for row in table.records(report, options.verbose)]
    if options.top is None:
        return found
    found.sort(key=lambda one: -sum(getattr(one[1], name, 0) for name in _SIZES))
    return found[: options.top]


def _ask(options: InfoOptions) -> tuple[list[Report], list[Silent]]:
    """Ask the processes; return the reports and the silent ones, which are logged at once."""
    peer = None if options.peer is None else find_address(options.peer)  # refused before all else
    pids = [options.pid] if options.pid else processes.find(all_users=options.all_users)
    answers = list(processes.ask_all(pids, all_users=options.all_users))
    asked = {answer.pid for answer in answers}
    answers += [one for one in processes.ask_nodes(asked) if options.pid in (None, one.pid)]
    silent = [answer for answer in answers if isinstance(answer, Silent)]
    for answer in silent:
        who = f"process {answer.pid}: " if answer.pid else ""
        complain("urds info", f"{who}{answer.reason}")
    reports = [answer for answer in answers if not isinstance(answer, Silent)]
    if peer is not None:
        reports = [of_peer(report, peer) for report in reports]
    return reports, silent


def _fields(record: Any) -> dict[str, Any]:
    if is_dataclass(record) and not isinstance(record, type):
        return asdict(record)
    return record._asdict() if hasattr(record, "_asdict") else dict(record)


COMMAND: Final = Command(
    about="""
    Without a letter a summary: processes, connections, counters that are not zero, totals. Tables,
    columns and letters are those of rds-info; -a shows all. Each process of this user that has
    bound a socket answers for itself, and a node for the programs that attach to it. Counters are
    sums over the processes; --pid chooses one.
    """,
    examples=(
        ("urds info", "a summary"),
        ("urds info -a", "everything"),
        ("urds info --watch 2 --top 5", "the five fastest counters, every two seconds"),
        ("urds info -n -v", "all paths, and what waits on each"),
        ("urds info -c --pid 4711 --json", "for a script"),
    ),
    options=InfoOptions,
    run=run,
    has_version=True,
)
