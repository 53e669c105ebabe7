"""`urds dat test`: send, receive, RDMA write and read between two endpoints, with figures.

The server waits for one client, which begins each step. Without `-s` and `-h` both run here, the
server in a process of its own. Steps and figures: `dat_test_peer`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Final

from urds import dat
from urds.cli.dat.test_peer import (
    READ_COOKIE,
    READS,
    SERVER_WAIT_S,
    WRITE_SEGMENTS,
    DatTestOptions,
    Figures,
    Peer,
    TestFailure,
)
from urds.cli.output import BAD, GOOD, Column, Exit, Output, complain
from urds.cli.parser import Command, find_address
from urds.cli.processes import environment

_SERVER_END_S: Final = 10.0
_LAST_WORD_S: Final = 2.0
_FIRST_BYTE: Final = {True: 0x55, False: 0xAA}  # of the client, of the server


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
        arguments,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
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
    figures = Figures()
    is_client = options.host is not None
    failure = ""
    try:
        with Peer(options, figures) as peer:
            if is_client:
                peer.connect()
            else:
                peer.serve(wait_s=SERVER_WAIT_S if is_child else None)
            _exchange(peer, is_client=is_client)
            _disconnect(peer, is_client=is_client)
    except (TestFailure, dat.DatError) as error:
        failure = str(error)
    if failure or not is_child:
        _print(options, figures, failure)
    return Exit.FAILED if failure else Exit.OK


def _exchange(peer: Peer, *, is_client: bool) -> None:
    """Do the steps of the options; each of the three message buffers is received into once."""
    options = peer.options
    peer.tell_memory(peer.got_lmr)
    remote = peer.learn_memory(0)
    if options.write_ping_pong:
        for size_bytes in options.sizes:
            _write_ping_pong(peer, remote, size_bytes, is_client=is_client)
    elif options.write_only:
        if is_client or not options.one_way:
            _stream_writes(peer, remote)
    else:
        _write(peer, remote)
    peer.notice(1)
    if options.write_ping_pong or options.write_only:
        return
    _read(peer, remote)
    peer.post_ping_pong_buffers()
    peer.notice(2)
    _ping_pong(peer, is_client=is_client)


def _write(peer: Peer, remote: dat.RmrTriplet) -> None:
    """Write `bursts` times two segments, without completions but the last's."""
    options, half = peer.options, max(1, peer.options.size_bytes // WRITE_SEGMENTS)
    peer.sent[: options.size_bytes] = _pattern(options.size_bytes)
    pieces = [peer.sent_lmr.triplet(0, half)]
    if options.size_bytes > half:
        pieces.append(peer.sent_lmr.triplet(half, options.size_bytes - half))
    start_s = time.perf_counter()
    for number in range(options.bursts):
        flags = _flags(is_signalled=number == options.bursts - 1)
        peer.ep.post_rdma_write(pieces, _part(remote, number, options.size_bytes), number, flags)
    peer.take(peer.request_evd, cookie=options.bursts - 1)
    total_s = time.perf_counter() - start_s
    peer.figures.transfer("RDMA write", options.bursts, options.size_bytes, total_s)


def _read(peer: Peer, remote: dat.RmrTriplet) -> None:
    """Check what the peer wrote here, then read the same back from there."""
    size_bytes, bursts = peer.options.size_bytes, peer.options.bursts
    if peer.got[: size_bytes * bursts] != _pattern(size_bytes) * bursts:
        raise TestFailure("the bytes that the peer wrote are not those that it had")
    start_s = time.perf_counter()
    for _ in range(READS):
        piece = peer.sent_lmr.triplet(0, size_bytes)
        peer.sent[:size_bytes] = bytes(size_bytes)
        peer.ep.post_rdma_read([piece], _part(remote, 0, size_bytes), READ_COOKIE)
        peer.take(peer.request_evd, cookie=READ_COOKIE, byte_count=size_bytes)
    peer.figures.transfer("RDMA read", READS, size_bytes, time.perf_counter() - start_s)
    if peer.sent[:size_bytes] != _pattern(size_bytes):
        raise TestFailure("the bytes read are not those that were written")


def _ping_pong(peer: Peer, *, is_client: bool) -> None:
    """Exchange `bursts` messages, one at a time."""
    options, size_bytes = peer.options, peer.options.size_bytes
    peer.sent[:size_bytes] = bytes([_FIRST_BYTE[is_client]]) * size_bytes
    start_s = time.perf_counter()
    for number in range(options.bursts):
        if is_client:
            _send(peer, number)
        peer.take(peer.recv_evd, cookie=number, byte_count=size_bytes)
        if not is_client:
            _send(peer, number)
        if options.validate:
            got = peer.got[number * size_bytes : (number + 1) * size_bytes]
            _demand_fill(got, f"message {number}", is_of_client=not is_client)
    total_s = time.perf_counter() - start_s
    peer.figures.transfer("ping-pong", options.bursts, size_bytes, total_s)


def _send(peer: Peer, number: int) -> None:
    is_signalled = number % peer.options.signal_rate == 0
    piece = peer.sent_lmr.triplet(0, peer.options.size_bytes)
    peer.ep.post_send([piece], number, _flags(is_signalled=is_signalled))
    if is_signalled:
        peer.take(peer.request_evd, cookie=number)


def _stream_writes(peer: Peer, remote: dat.RmrTriplet) -> None:
    """Write without pause, a completion every `signal_rate` writes."""
    options = peer.options
    start_s = time.perf_counter()
    for number in range(options.bursts):
        is_signalled = (number + 1) % options.signal_rate == 0 or number == options.bursts - 1
        piece, part = (
            peer.sent_lmr.triplet(0, options.size_bytes),
            _part(remote, 0, options.size_bytes),
        )
        peer.ep.post_rdma_write([piece], part, number, _flags(is_signalled=is_signalled))
        if is_signalled:
            peer.take(peer.request_evd, cookie=number)
    total_s = time.perf_counter() - start_s
    peer.figures.transfer("RDMA write stream", options.bursts, options.size_bytes, total_s)


def _write_ping_pong(
    peer: Peer, remote: dat.RmrTriplet, size_bytes: int, *, is_client: bool
) -> None:
    """Answer each write that is seen in memory with one; the last byte is the round's number.

    Sizes grow from one series to the next, so nothing has yet been written where it is awaited.
    """
    options, last = peer.options, size_bytes - 1
    peer.sent[:last] = bytes([_FIRST_BYTE[is_client]]) * last
    start_s = time.perf_counter()
    for number in range(options.bursts):
        mark = number % 255 + 1
        if not is_client:
            _await_byte(peer, last, mark)
        peer.sent[last] = mark
        is_signalled = number % options.signal_rate == 0
        piece = peer.sent_lmr.triplet(0, size_bytes)
        part = _part(remote, 0, size_bytes)
        peer.ep.post_rdma_write([piece], part, number, _flags(is_signalled=is_signalled))
        if is_signalled:
            peer.take(peer.request_evd, cookie=number)
        if is_client:
            _await_byte(peer, last, mark)
        if options.validate:
            _demand_fill(peer.got[:last], f"round {number}", is_of_client=not is_client)
    total_s = time.perf_counter() - start_s
    peer.figures.transfer("RDMA write ping-pong", options.bursts, size_bytes, total_s)


def _await_byte(peer: Peer, index: int, value: int) -> None:
    deadline_s = time.monotonic() + 5.0
    while peer.got[index] != value:
        peer.figures.polls += 1
        peer.recv_evd.ia.adapter.progress()
        if time.monotonic() > deadline_s:
            raise TestFailure(f"no write in 5 s: byte {index} is {peer.got[index]}, not {value}")


def _disconnect(peer: Peer, *, is_client: bool) -> None:
    if is_client:
        peer.ep.disconnect()
    peer.disconnected()


def _flags(*, is_signalled: bool) -> dat.CompletionFlag:
    return dat.CompletionFlag.DEFAULT if is_signalled else dat.CompletionFlag.SUPPRESS


def _demand_fill(got: bytearray, what: str, *, is_of_client: bool) -> None:
    """Raise TestFailure unless all bytes are those that the side fills its messages with."""
    byte = _FIRST_BYTE[is_of_client]
    if got.count(byte) != len(got):
        raise TestFailure(f"{what}: not all of its {len(got)} bytes are {byte:#x}")


def _part(remote: dat.RmrTriplet, number: int, size_bytes: int) -> dat.RmrTriplet:
    """Return the part of the peer's memory for one write."""
    return dat.RmrTriplet(
        remote.rmr_context, remote.target_address + number * size_bytes, size_bytes
    )


def _pattern(size_bytes: int) -> bytes:
    """Return bytes none of which is what the memory holds before."""
    return (bytes(range(1, 252)) * (size_bytes // 251 + 1))[:size_bytes]


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
        output.table("Calls", [Column("call", 12, left=True), Column("us", 10)], rows)
    columns = [
        Column("transfer", 20, left=True),
        Column("count"),
        Column("bytes", 8),
        Column("total us", 10),
        Column("us each", 9),
        Column("MB/s", 9),
    ]
    rows_of_transfers = [
        (
            *(one.transfer, one.count, one.size_bytes),
            *(f"{one.total_us:.1f}", f"{one.us_each:.1f}", f"{one.mb_per_s:.2f}"),
        )
        for one in figures.transfers
    ]
    if rows_of_transfers:
        output.table("Transfers", columns, rows_of_transfers)
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
