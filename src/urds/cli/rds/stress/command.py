"""`urds stress`: load between two hosts and a check of every message, after rds-stress.

Without `-s` this is the passive side, which waits for an active one and takes its options. Either
side may be rds-stress on a kernel's RDS: the control connection, the messages and the columns are
the same. Tasks are threads: they share an address, and an address belongs to one process.
Source: rds-tools 2.0.7 rds-stress.c; docs/reference/rds.md 5.6.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from dataclasses import dataclass, fields, replace
from ipaddress import IPv4Address
from typing import Any, Final

import urds
from urds.cli.output import Exit, Output, UsageError, complain
from urds.cli.parser import Command, check_ranges, find_address, json_option, option
from urds.cli.rds.stress.run import ANSWER_S, Control, Display, Run, parameter_lines
from urds.cli.rds.stress.wire import HEADER_BYTES, NOWHERE, Parameters
from urds.common.errors import WireError

_U32_MAX: Final = (1 << 32) - 1
_SUFFIXES: Final = {"k": 10, "m": 20, "g": 30}
_RETRY_S: Final = 1.0
_BACKLOG: Final = 16
_TRIED_AGAIN: Final = frozenset({errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH})
_BUFFER_BYTES_MAX: Final = (1 << 30) - 1  # what the settings of sockets take at most


def parse_number(text: str, highest: int = _U32_MAX) -> int:
    """Return a number as C writes it, with k, m or g for powers of 1024. Raises UsageError."""
    shift = _SUFFIXES.get(text[-1:].lower(), 0)
    try:
        number = int(text[:-1] if shift else text, 0) << shift
    except ValueError:
        number = -1
    if not 0 <= number <= highest:
        raise UsageError(f"{text!r}: must be a number from 0 to {highest}; k, m and g multiply")
    return number


def _number(*flags: str, help: str, default: int | None = None, metavar: str = "N") -> Any:
    return option(*flags, help=help, default=default, metavar=metavar, parse=parse_number)


def _switch(*flags: str, help: str, default: bool | None) -> Any:
    return option(
        *flags, help=help, default=default, metavar="0|1",
        parse=lambda text: bool(parse_number(text, 1)),
    )  # fmt: skip


def _flag(*flags: str, help: str) -> Any:
    return option(*flags, help=help, default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StressOptions:
    """Options of `urds stress`: those of rds-stress, `--start-up` and `--json`."""

    send: str | None = option(
        "-s", "--send-addr", metavar="ADDRESS", help="Be active: send to this peer."
    )
    receive: str | None = option(
        "-r", "--recv-addr", metavar="ADDRESS",
        help="Local address; without it that of the control connection.",
    )  # fmt: skip
    base_port: int = _number(
        "-p", "--port", metavar="PORT", default=4000,
        help="First port, also of the control connection.",
    )  # fmt: skip
    request_bytes: int = _number(
        "-q", "--req-bytes", metavar="BYTES", default=1024, help="Bytes of a request."
    )
    ack_bytes: int = _number(
        "-a", "--ack-bytes", metavar="BYTES", default=HEADER_BYTES, help="Bytes of an ack."
    )
    simplex: bool = _flag("-o", "--one-way", help="Only the active side sends requests.")
    depth: int = _number("-d", "--depth", default=1, help="Requests under way per pair of tasks.")
    tasks: int = _number(
        "-t", "--tasks", default=1, help="Tasks of each side; each talks to all of the peer."
    )
    run_s: int = _number(
        "-T", "--time", metavar="SECONDS", default=0, help="How long; 0: until Ctrl-C."
    )
    type_of_service: int = _number(
        "-Q", "--tos", metavar="TOS", default=0, help="Type of service, 0 to 255."
    )
    verify: bool = _flag("-v", "--verify", help="Fill messages with a pattern and check each byte.")
    connect_retries: int = _number(
        "--connect-retries", default=0, help="Retries to connect, one per second."
    )
    use_congestion_monitor: bool = _switch(
        "--use-cong-monitor", default=True, help="Ask to be told when a congested port is free."
    )
    rdma_bytes: int = _number(
        "-D", "--rdma-bytes", metavar="BYTES", default=0, help="RDMA: bytes of a piece; 0: no RDMA."
    )
    rdma_vector: int = _number(
        "-I", "--rdma-buffers", default=1, help="RDMA: pieces of an operation."
    )
    rdma_mode: int = option(
        "-M", "--rdma-mode", metavar="0|1|2", default=0, parse=parse_number,
        help="RDMA: 0 reads and writes, 1 reads only, 2 writes only.",
    )  # fmt: skip
    rdma_use_once: bool = _switch("--rdma-use-once", default=False, help="Regions for one use.")
    rdma_use_get_mr: bool | None = _switch(
        "--rdma-use-get-mr", default=None,
        help="Make regions by GET_MR, not with the message that brings the cookie; without it as"
        " --rdma-cache-mrs.",
    )  # fmt: skip
    rdma_use_fence: bool = _switch("--rdma-use-fence", default=True, help="Fence reads.")
    rdma_use_notify: bool | None = _switch(
        "--rdma-use-notify", default=None, help="Has no effect: notifications are always asked for."
    )
    rdma_cache_mrs: bool = _switch("--rdma-cache-mrs", default=False, help="Keep regions.")
    rdma_alignment: int = _number(
        "--rdma-alignment", metavar="BYTES", default=0,
        help="Begin buffers so far behind the begin of a page.",
    )  # fmt: skip
    rdma_key_o_meter: bool = _flag("--rdma-key-o-meter", help="Count keys that come again.")
    report_cpu: bool = _flag("-c", "--report-cpu", help="Show the use of this host's processors.")
    summary_only: bool = _flag("-z", "--report-summary", help="Show the average only.")
    realtime: bool = _flag("-R", "--rtprio", help="Print with real-time priority.")
    tracing: bool = _flag("-V", "--trace", help="Show each message on standard error.")
    show_params: bool = _flag("--show-params", help="Show the options first.")
    show_perfdata: bool = _flag("--show-perfdata", help="Print lines of CSV that begin with ::.")
    show_histogram: bool = _flag("--show-histogram", help="Show round trips by powers of two.")
    show_outliers: int | None = _number(
        "--show-outliers", metavar="USEC", help="Name round trips beyond this."
    )
    start_up_s: float = option(
        "--start-up", metavar="SECONDS", default=4.0, low=0, high=3600,
        help="Seconds before figures count.",
    )  # fmt: skip
    reset: bool = _flag("--reset", help="Rejected: needs the RDS of UEK.")
    is_async: bool = _flag("--async", help="Rejected, as --reset.")
    json_wanted: bool = json_option()

    def parameters(self) -> Parameters:
        """Return the active side's options for the passive one, without addresses.

        Raises UsageError for wrong options.
        """
        if self.reset or self.is_async:
            raise UsageError("--reset and --async need the RDS of UEK; `urds demo` shows resets")
        names = {each.name for each in fields(self)} & {each.name for each in fields(Parameters)}
        values = {name: getattr(self, name) for name in names}
        if self.rdma_use_get_mr is None:
            values["rdma_use_get_mr"] = self.rdma_cache_mrs
        parameters = Parameters(**values)
        try:
            parameters.check()
        except WireError as wrong:
            raise UsageError(str(wrong)) from wrong
        return parameters


def run(options: StressOptions) -> Exit:
    """Run one side until its end. Raises UsageError; OSError: it failed."""
    parameters = options.parameters()
    output = Output(json_wanted=options.json_wanted)
    check_ranges(options)
    display = Display(
        output=output,
        report_cpu=options.report_cpu,
        show_histogram=options.show_histogram,
        start_up_s=options.start_up_s,
        outlier_usec=options.show_outliers,
    )
    ours = _address(options.receive)
    if options.send is not None:
        parameters = replace(parameters, send_address=_address(options.send), receive_address=ours)
        return _run_active(parameters, display)
    return _run_passive(ours, parameters.base_port, display)


def _run_active(parameters: Parameters, display: Display) -> Exit:
    output = display.output
    if parameters.show_params:
        for line in parameter_lines(parameters):
            output.line(line)
    # The user named the peer, so this process may exchange messages with it, wherever it is.
    _configure(parameters, allow=[*urds.configure().allow, str(parameters.send_address)])
    output.line(f"connecting to {parameters.send_address}:{parameters.base_port}")
    control = connect(parameters, output)
    try:
        parameters = replace(parameters, receive_address=_own_address(control, parameters))
        control.send_options(parameters)
        with Run(parameters, display, is_active=True) as one:
            control.start_active()
            return _carry_out(one, control, display.output)
    finally:
        control.close()


def _run_passive(address: IPv4Address, port: int, display: Display) -> Exit:
    with listen(address, port) as listener:
        display.output.line(f"waiting for incoming connection on {address}:{port}")
        control, parameters = accept(listener, address, display.output)
    try:
        _configure(parameters)
        with Run(parameters, display, is_active=False) as one:
            control.start_passive()
            return _carry_out(one, control, display.output)
    finally:
        control.close()


def _carry_out(one: Run, control: Control, output: Output) -> Exit:
    if one.parameters.realtime:
        _become_realtime()
    output.line(f"negotiated options, tasks will start in {one.start_s:g} seconds")
    return one.carry_out(control)


def _own_address(control: Control, parameters: Parameters) -> IPv4Address:
    """Return the address of our tasks. Raises UsageError: it is the peer's."""
    ours = control.local_address()
    if ours == parameters.send_address:
        raise UsageError(f"{ours} is the peer's address: choose one for this side with -r")
    return ours


def _become_realtime() -> None:
    """Run the printing thread before others, where the user may. The run goes on without."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError as failure:
        complain("urds stress", f"-R: {failure.strerror}; it needs CAP_SYS_NICE, going on without")


def _configure(parameters: Parameters, **settings: Any) -> None:
    """Let the sockets of this process have the buffers that a run asks for.

    A limit that the user has set stays: so a run meets congestion.
    """
    current = urds.configure()
    defaults = type(current)()
    wanted_bytes = min(2 * parameters.buffer_bytes, _BUFFER_BYTES_MAX)
    for name in ("wmem_max", "rmem_max"):
        limit_bytes = getattr(current, name)
        if limit_bytes == getattr(defaults, name):
            settings[name] = max(limit_bytes, wanted_bytes)
    urds.configure(**settings)


def _address(text: str | None) -> IPv4Address:
    """Return the IPv4 address that a user named, 0.0.0.0 for none. Raises UsageError."""
    if text is None:
        return NOWHERE
    address = find_address(text)
    if not isinstance(address, IPv4Address):
        raise UsageError(f"{text}: rds-stress knows IPv4 only")
    return address


# -- connecting


def connect(parameters: Parameters, output: Output) -> Control:
    """Connect to the passive side, again after a second where it is not there yet.

    Raises OSError: it is not there after as many retries as the options allow.
    """
    target = (str(parameters.send_address), parameters.base_port)
    tries = 0
    while True:
        try:
            local = (str(parameters.receive_address), 0)
            connection = socket.create_connection(target, ANSWER_S, source_address=local)
        except OSError as failure:
            if failure.errno not in _TRIED_AGAIN or tries >= parameters.connect_retries:
                reason = failure.strerror or str(failure)
                if failure.errno in _TRIED_AGAIN:
                    start = f"start `urds stress -p {parameters.base_port}`"
                    reason += f"; there, {start}, or use --connect-retries"
                raise OSError(failure.errno, f"{target[0]}:{target[1]}: {reason}") from None
            tries += 1
            output.line(f"connecting to {target[0]}:{target[1]}: {failure.strerror} - retrying")
            time.sleep(_RETRY_S)
        else:
            return Control(connection)


def listen(address: IPv4Address, port: int) -> socket.socket:
    """Return the passive side's listener. Raises OSError: the address cannot be had."""
    try:
        return socket.create_server((str(address), port), backlog=_BACKLOG)
    except OSError as failure:
        other = "another port with -p" if failure.errno == errno.EADDRINUSE else "another -r"
        reason = f"{address}:{port}: {failure.strerror}; choose {other}"
        raise OSError(failure.errno, reason) from failure


def accept(
    listener: socket.socket, address: IPv4Address, output: Output
) -> tuple[Control, Parameters]:
    """Wait for an active side; return the connection and its options with addresses swapped.

    A client that sends nothing, or wrong options, is reported and closed.
    """
    while True:
        connection, (host, port) = listener.accept()
        control = Control(connection)
        source = f"{host}:{port}"
        output.line(f"accepted connection from {source}")
        try:
            told = control.receive_options()
            ours = control.local_address() if address == NOWHERE else address
            return control, _swapped(told, ours, IPv4Address(host))
        except (OSError, WireError) as wrong:
            complain(
                "urds stress", f"turned {source} away: {getattr(wrong, 'strerror', None) or wrong}"
            )
            control.close()


def _swapped(told: Parameters, ours: IPv4Address, source: IPv4Address) -> Parameters:
    """Return the options as ours. Raises WireError: they name an address that is not the sender's.

    Otherwise any client of the port could make this process send to any host.
    """
    if told.receive_address not in (source, NOWHERE):
        raise WireError(f"its options name {told.receive_address} as its address")
    return replace(told, send_address=source, receive_address=ours)


COMMAND: Final = Command(
    about="""
    Without -s this is the passive side; it waits for an active one, which says what both do.
    Either may be rds-stress on a kernel. Each task sends requests to all tasks of the peer
    and acks to theirs; a message that is lost, repeated, out of order or, with -v, damaged
    ends the run with exit code 1. Each side needs an address of its own. Numbers take k, m
    and g.
    """,
    examples=(
        ("urds stress -r 10.0.0.2", "the passive side"),
        ("urds stress -s 10.0.0.2 -T 10", "the active side, for ten seconds"),
        ("urds stress -s 10.0.0.2 -q 64k -t 4 -d 8 -v", "more at once, each byte checked"),
        ("urds stress -s 10.0.0.2 -D 1m -T 10", "with RDMA reads and writes"),
        ("urds stress -s 10.0.0.2 -o --show-histogram --json", "one way, for a script"),
    ),
    options=StressOptions,
    run=run,
)
