"""`urds stress`: load between two hosts and a check of every message, after rds-stress.

Without `-s` this is the passive side, which waits for an active one and does what it says. Either
side may be rds-stress on a kernel's RDS: the control connection, the messages and the columns are
the same. Tasks are threads: they share an address, and an address belongs to one process.
Source: rds-tools 2.0.7 rds-stress.c; rds.md 5.6.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from ipaddress import IPv4Address
from typing import Any, ClassVar, Final

import urds
from urds.cli.addresses import find_address
from urds.cli.exits import Exit, UsageError
from urds.cli.output import Output, complain
from urds.cli.stress_control import Control, accept, connect, listen
from urds.cli.stress_counters import parameter_lines
from urds.cli.stress_run import Display, Run
from urds.cli.stress_wire import NOWHERE, Parameters
from urds.errors import WireError

_U32_MAX: Final = (1 << 32) - 1
_SUFFIXES: Final = {"k": 10, "m": 20, "g": 30}
_BUFFER_BYTES_MAX: Final = (1 << 30) - 1  # what the settings of sockets take at most


@dataclass(frozen=True, slots=True, kw_only=True)
class StressOptions:
    """Options of `urds stress` as they were given; numbers may end in k, m or g."""

    # Fields whose numbers become those of the options record, with the flag that names each.
    NUMBERS: ClassVar[dict[str, str]] = {
        "request_bytes": "-q", "ack_bytes": "-a", "tasks": "-t", "depth": "-d", "run_s": "-T",
        "base_port": "-p", "rdma_bytes": "-D", "rdma_vector": "-I", "rdma_mode": "-M",
        "type_of_service": "-Q", "connect_retries": "--connect-retries",
        "rdma_alignment": "--rdma-alignment",
    }  # fmt: skip
    ZERO_OR_ONE: ClassVar[dict[str, str]] = {
        "use_congestion_monitor": "--use-cong-monitor", "rdma_use_once": "--rdma-use-once",
        "rdma_use_get_mr": "--rdma-use-get-mr", "rdma_use_fence": "--rdma-use-fence",
        "rdma_cache_mrs": "--rdma-cache-mrs",
    }  # fmt: skip
    FLAGS: ClassVar[tuple[str, ...]] = (
        *("simplex", "verify", "summary_only", "realtime", "tracing", "show_params"),
        *("show_perfdata", "rdma_key_o_meter"),
    )

    send: str | None = None
    receive: str | None = None
    base_port: str | None = None
    request_bytes: str | None = None
    ack_bytes: str | None = None
    tasks: str | None = None
    depth: str | None = None
    run_s: str | None = None
    type_of_service: str | None = None
    rdma_bytes: str | None = None
    rdma_vector: str | None = None
    rdma_mode: str | None = None
    use_congestion_monitor: str | None = None
    rdma_use_once: str | None = None
    rdma_use_get_mr: str | None = None
    rdma_use_fence: str | None = None
    rdma_use_notify: str | None = None  # obsolete: notifications are always asked for
    rdma_cache_mrs: str | None = None
    rdma_alignment: str | None = None
    connect_retries: str | None = None
    show_outliers: str | None = None
    simplex: bool = False
    verify: bool = False
    summary_only: bool = False
    realtime: bool = False
    tracing: bool = False
    report_cpu: bool = False
    show_params: bool = False
    show_perfdata: bool = False
    show_histogram: bool = False
    rdma_key_o_meter: bool = False
    reset: bool = False
    is_async: bool = False
    start_up_s: float = 4.0
    json_wanted: bool = False

    def parameters(self) -> Parameters:
        """Return what the active side tells the passive one, but for addresses.

        Raises UsageError for what cannot be.
        """
        if self.reset or self.is_async:
            raise UsageError("--reset and --async need the RDS of UEK; `urds demo` shows resets")
        values: dict[str, Any] = {name: getattr(self, name) for name in self.FLAGS}
        for name, flag in self.NUMBERS.items():
            if (text := getattr(self, name)) is not None:
                values[name] = parse_number(text, flag, _U32_MAX)
        for name, flag in self.ZERO_OR_ONE.items():
            if (text := getattr(self, name)) is not None:
                values[name] = bool(parse_number(text, flag, 1))
        values.setdefault("rdma_use_get_mr", values.get("rdma_cache_mrs", False))
        parameters = Parameters(**values)
        try:
            parameters.check()
        except WireError as wrong:
            raise UsageError(str(wrong)) from wrong
        return parameters

    def display(self, output: Output) -> Display:
        """Return what this side shows. Raises UsageError."""
        outlier = self.show_outliers
        if not 0 <= self.start_up_s <= 3600:
            raise UsageError(f"--start-up {self.start_up_s:g}, from 0 to 3600 s")
        return Display(
            output=output,
            report_cpu=self.report_cpu,
            show_histogram=self.show_histogram,
            start_up_s=self.start_up_s,
            outlier_usec=None
            if outlier is None
            else parse_number(outlier, "--show-outliers", _U32_MAX),
        )


def parse_number(text: str, flag: str, highest: int) -> int:
    """Return a number as C writes it, with k, m or g for powers of 1024. Raises UsageError."""
    shift = _SUFFIXES.get(text[-1:].lower(), 0)
    try:
        number = int(text[:-1] if shift else text, 0) << shift
    except ValueError:
        number = -1
    if not 0 <= number <= highest:
        raise UsageError(f"{flag} {text}, a number from 0 to {highest}; k, m and g multiply")
    return number


def run(options: StressOptions) -> Exit:
    """Be one side of a run until it is over. Raises UsageError; OSError: it failed."""
    parameters = options.parameters()
    output = Output(json_wanted=options.json_wanted)
    display = options.display(output)
    say: Callable[[str], None] = (lambda _: None) if options.json_wanted else output.line
    ours = _address(options.receive)
    if options.send is not None:
        parameters = replace(parameters, send_address=_address(options.send), receive_address=ours)
        return _run_active(parameters, display, say)
    return _run_passive(ours, parameters.base_port, display, say)


def _run_active(parameters: Parameters, display: Display, say: Callable[[str], None]) -> Exit:
    if parameters.show_params:
        for line in parameter_lines(parameters):
            say(line)
    # The user named the peer, so this process may talk to it, wherever it is.
    _configure(parameters, allow=[*urds.configure().allow, str(parameters.send_address)])
    say(f"connecting to {parameters.send_address}:{parameters.base_port}")
    control = connect(parameters, say)
    try:
        parameters = replace(parameters, receive_address=_own_address(control, parameters))
        control.send_options(parameters)
        with Run(parameters, display, is_active=True) as one:
            control.start_active()
            return _carry_out(one, control, say)
    finally:
        control.close()


def _run_passive(
    address: IPv4Address, port: int, display: Display, say: Callable[[str], None]
) -> Exit:
    with listen(address, port) as listener:
        say(f"waiting for incoming connection on {address}:{port}")
        control, parameters = accept(listener, address, say, lambda text: complain("stress", text))
    try:
        _configure(parameters)
        with Run(parameters, display, is_active=False) as one:
            control.start_passive()
            return _carry_out(one, control, say)
    finally:
        control.close()


def _carry_out(one: Run, control: Control, say: Callable[[str], None]) -> Exit:
    if one.parameters.realtime:
        _become_realtime()
    say(f"negotiated options, tasks will start in {one.start_s:g} seconds")
    return one.carry_out(control)


def _own_address(control: Control, parameters: Parameters) -> IPv4Address:
    """Return the address of our tasks. Raises UsageError: it is the peer's."""
    ours = control.local_address()
    if ours == parameters.send_address:
        raise UsageError(f"{ours} is the peer's address: choose one for this side with -r")
    return ours


def _become_realtime() -> None:
    """Run the thread that prints before others, where the user may. The run goes on without."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError as failure:
        complain("stress", f"-R: {failure.strerror}; it needs CAP_SYS_NICE, going on without")


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
