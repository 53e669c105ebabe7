"""The words and options of `urds stress`, as both fronts show them: rds-stress's, and ours."""

from __future__ import annotations

from typing import Final

from urds.cli.rsocket_texts import Option, Tool

_NUMBER: Final = "N"
_BYTES: Final = "OCTETS"


def _flag(name: str, *flags: str, text: str) -> Option:
    return Option(name, flags, "", text, bool)


def _value(name: str, *flags: str, metavar: str = _NUMBER, text: str) -> Option:
    return Option(name, flags, metavar, text)


_BOTH_SIDES: Final = (
    _value("send", "-s", "--send-addr", metavar="ADDRESS", text="Be active: send to this peer."),
    _value(
        "receive", "-r", "--recv-addr", metavar="ADDRESS",
        text="Local address; else the one that the control connection has.",
    ),
    _value("base_port", "-p", "--port", metavar="PORT", text="First port, 4000 without it."),
)  # fmt: skip
_LOAD: Final = (
    _value("request_bytes", "-q", "--req-bytes", metavar=_BYTES, text="Of a request; 1024."),
    _value("ack_bytes", "-a", "--ack-bytes", metavar=_BYTES, text="Of an ack; 63, the least."),
    _flag("simplex", "-o", "--one-way", text="Only the active side sends requests."),
    _value("depth", "-d", "--depth", text="Requests under way per pair of tasks; 1."),
    _value("tasks", "-t", "--tasks", text="Tasks of each side; each talks to all others; 1."),
    _value("run_s", "-T", "--time", metavar="SECONDS", text="How long; without it until Ctrl-C."),
    _value("type_of_service", "-Q", "--tos", metavar="TOS", text="Type of service, 0 to 255."),
    _flag("verify", "-v", "--verify", text="Fill messages with a pattern and check each octet."),
    _value("connect_retries", "--connect-retries", text="Try so often again to connect; 0."),
    _value(
        "use_congestion_monitor", "--use-cong-monitor", metavar="0|1",
        text="Ask to be told when a congested port is free; 1.",
    ),
)  # fmt: skip
_RDMA: Final = (
    _value("rdma_bytes", "-D", "--rdma-bytes", metavar=_BYTES, text="RDMA: octets of a piece."),
    _value("rdma_vector", "-I", "--rdma-buffers", text="RDMA: pieces of an operation; 1."),
    _value(
        "rdma_mode", "-M", "--rdma-mode", metavar="0|1|2",
        text="RDMA: 0 reads and writes, 1 reads only, 2 writes only.",
    ),
    _value("rdma_use_once", "--rdma-use-once", metavar="0|1", text="Regions for one use; 0."),
    _value(
        "rdma_use_get_mr", "--rdma-use-get-mr", metavar="0|1",
        text="Make regions by GET_MR, not with the message that brings the cookie; 0.",
    ),
    _value("rdma_use_fence", "--rdma-use-fence", metavar="0|1", text="Fence reads; 1."),
    _value("rdma_use_notify", "--rdma-use-notify", metavar="0|1", text="Of no effect."),
    _value("rdma_cache_mrs", "--rdma-cache-mrs", metavar="0|1", text="Keep regions; 0."),
    _value(
        "rdma_alignment", "--rdma-alignment", metavar=_BYTES,
        text="Begin buffers so far behind a page's begin; 0.",
    ),
    _flag("rdma_key_o_meter", "--rdma-key-o-meter", text="Count keys that come again."),
)  # fmt: skip
_SHOWN: Final = (
    _flag("report_cpu", "-c", "--report-cpu", text="Show the use of this host's processors."),
    _flag("summary_only", "-z", "--report-summary", text="Show the average only."),
    _flag("realtime", "-R", "--rtprio", text="Print with real-time priority."),
    _flag("tracing", "-V", "--trace", text="Show each message on standard error."),
    _flag("show_params", "--show-params", text="Show the options first."),
    _flag("show_perfdata", "--show-perfdata", text="Lines of CSV, beginning with ::."),
    _flag("show_histogram", "--show-histogram", text="Show round trips by powers of two."),
    _value(
        "show_outliers", "--show-outliers", metavar="USEC", text="Name round trips beyond this."
    ),
    Option(
        "start_up_s", ("--start-up",), "SECONDS", "Before figures count; ours.", float, 4.0
    ),
    _flag("reset", "--reset", text="Refused: needs the RDS of UEK."),
    _flag("is_async", "--async", text="Refused, as --reset."),
)  # fmt: skip

STRESS: Final = Tool(
    "stress",
    "Load two hosts and check every message, as rds-stress.\n\n"
    "Without -s this is the passive side; it waits for an active one, which says what both do."
    " Either may be rds-stress on a kernel. Each task sends requests to all tasks of the peer and"
    " acks to theirs; a message that is lost, repeated, out of order or, with -v, damaged ends the"
    " run with exit code 1. Each side needs an address of its own. Numbers take k, m and g.",
    (
        ("urds stress -r 10.0.0.2", "the passive side"),
        ("urds stress -s 10.0.0.2 -T 10", "the active side, for ten seconds"),
        ("urds stress -s 10.0.0.2 -q 64k -t 4 -d 8 -v", "more at once, each octet checked"),
        ("urds stress -s 10.0.0.2 -D 1m -T 10", "with RDMA reads and writes"),
        ("urds stress -s 10.0.0.2 -o --show-histogram --json", "one way, for a script"),
    ),
    "stress",
    "StressOptions",
    (*_BOTH_SIDES, *_LOAD, *_RDMA, *_SHOWN),
)
