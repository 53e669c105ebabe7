"""`urds dat test`: send, receive, RDMA write and read between two endpoints, with figures.

The server waits for one client, which begins each step. Without `-s` and `-h` both run here, the
server in a process of its own. Steps and figures: `test_peer`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Final

from urds import dat
from urds.cli.dat.test_peer import SERVER_WAIT_S, DatTestOptions, Figures, Peer, TestFailure
from urds.cli.output import BAD, GOOD, Exit, Output, columns, complain
from urds.cli.parser import Command, find_address
from urds.cli.processes import environment

_SERVER_END_S: Final = 10.0
_LAST_WORD_S: Final = 2.0


def run(options: DatTestOptions) -> Exit:
    """Run one side, or both; `Exit.FAILED` with a line that says what was wrong."""
    options.check()
    if options.host is not None:
        return _run_side(replace(options, host=str(find_address(options.host))))
    if options.is_server:
        return _run_side(options)
    return _run_both(options)


def _run_both(options: DatTestOptions) -> Exit:
    """Start the server as a child process, out of reach of Ctrl-C, and be its client."""
    server_options = asdict(replace(options, is_server=True, json_wanted=False))
    arguments = [sys.executable, "-m", "urds.cli.dat.test", json.dumps(server_options)]
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, text=True, env=environment(), start_new_session=True
    ) as server:
        try:
            assert server.stdout is not None, "it is piped"
            ready = server.stdout.readline()
            if not ready.startswith("server:"):
                complain("urds dat test", "the server did not start")
                return Exit.FAILED
            address = ready.split(" at ")[1].split(",")[0]
            code = _run_side(replace(options, host=address))
            # A server that has lost its client may still print why.
            with suppress(subprocess.TimeoutExpired):
                server.wait(_SERVER_END_S if code is Exit.OK else _LAST_WORD_S)
        finally:
            if server.poll() is None:
                server.kill()
    if code is Exit.OK and server.returncode:
        complain("urds dat test", f"the server ended with exit code {server.returncode}")
        return Exit.FAILED
    return code


def _run_side(options: DatTestOptions, *, is_child: bool = False) -> Exit:
    """Run the server or the client; a child server prints failures only."""
    figures, failure = Figures(), ""
    try:
        with Peer(options, figures) as peer:
            if peer.is_client:
                peer.connect()
            else:
                peer.serve(wait_s=SERVER_WAIT_S if is_child else None)
            peer.exchange()
            peer.disconnect()
    except (TestFailure, dat.DatError) as error:
        failure = str(error)
    if failure or not is_child:
        _print(options, figures, failure)
    return Exit.FAILED if failure else Exit.OK


def _print(options: DatTestOptions, figures: Figures, failure: str) -> None:
    output = Output(json_wanted=options.json_wanted)
    if options.json_wanted:
        output.document({"passed": not failure, "failure": failure, **asdict(figures)})
        return
    if options.verbose and figures.remote:
        output.line(f"local {figures.local}, remote {figures.remote}")
    if options.times or options.verbose:
        rows = [(name, f"{spent_us:.1f}") for name, spent_us in figures.calls_us.items()]
        rows.append(("TOTAL", f"{sum(figures.calls_us.values()):.1f}"))
        output.table("Calls", columns("call:<12|us:10"), rows)
    rows_of_transfers = [
        (
            *(one.transfer, one.count, one.size_bytes),
            *(f"{one.total_us:.1f}", f"{one.us_each:.1f}", f"{one.mb_per_s:.2f}"),
        )
        for one in figures.transfers
    ]
    if rows_of_transfers:
        titles = "transfer:<20|count|bytes:8|total us:10|us each:9|MB/s:9"
        output.table("Transfers", columns(titles), rows_of_transfers)
        if any("ping-pong" in one.transfer for one in figures.transfers):
            output.line("ping-pong: us each is a round trip; half of it is one way")
    if options.poll:
        output.line(f"polls: {figures.polls}")
    if failure:
        complain("urds dat test", failure)
    output.line()
    output.line("FAILED" if failure else "PASSED", BAD if failure else GOOD)


COMMAND: Final = Command(
    about="""
    Options and steps are dtest's. With -s this is the server, with -h HOST the client; with neither
    both run here, the server in a process of its own. Both sides need the same options. An adapter
    serves the address that dat.conf gives it, 127.0.0.1 without a file. The exit code is 0 if all
    was right, else 1.
    """,
    examples=(
        ("urds dat test", "both sides over shared memory"),
        ("urds dat test -P tcp0 -t -b 65536", "over TCP, with times"),
        ("urds dat test -P tcp0 -s", "a server, for one client"),
        ("urds dat test -P tcp0 -h 127.0.0.1 -p", "its client, polling"),
        ("urds dat test -W -a -b 65536", "answered writes of 1, 2, 4 ... 65536 bytes"),
    ),
    options=DatTestOptions,
    run=run,
    help_flags=("--help", "-U"),  # -h is the host
)

if __name__ == "__main__":
    sys.exit(_run_side(DatTestOptions(**json.loads(sys.argv[1])), is_child=True))
