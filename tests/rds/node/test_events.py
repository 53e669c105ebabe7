"""The log of a node: the table of events, lines as logfmt and JSON, their limits."""

import json
import logging

from tests.docs.pages import ROOT
from urds.common.event_log import EventLog, Level
from urds.rds.node.events import NodeEvent, tell

PAGE = (ROOT / "docs" / "events.md").read_text(encoding="utf-8")


def log(form: str = "logfmt", **settings: object) -> tuple[EventLog, list[str]]:
    """Return a log that writes at once, and its lines."""
    lines: list[str] = []
    return EventLog(form, write=lines.append, deferred=False, **settings), lines  # type: ignore[arg-type]  # of the test


def test_the_page_lists_every_event() -> None:
    rows = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| `")]
    listed = [(name.strip("`"), level, fields) for name, level, fields, _ in rows]
    known = [(one.value, one.level.word, ", ".join(one.fields)) for one in NodeEvent]
    assert listed == known


def test_a_line_as_logfmt() -> None:
    made, lines = log()
    tell(made, NodeEvent.SOCKET_BROKEN, "1f", 1000, 'it wrote "!"\n')
    stamp, rest = lines[0].split(" ", 1)
    assert stamp.startswith("time=20") and stamp.endswith("Z")
    assert rest == 'level=warning event=socket-broken socket=1f uid=1000 what="it wrote \\"!\\"\\n"'


def test_a_line_as_json() -> None:
    made, lines = log("json")
    tell(made, NodeEvent.SOCKET_BROKEN, "1f", 1000, "x")
    found = json.loads(lines[0])
    del found["time"]
    assert found == {
        "level": "warning", "event": "socket-broken", "socket": "1f", "uid": 1000, "what": "x",
    }  # fmt: skip


def test_a_line_for_journald_begins_with_its_level() -> None:
    made, lines = log(journal=True)
    tell(made, NodeEvent.WORKER_DIED, 7, "SIGKILL", 0.1)
    assert lines[0].startswith("<3>time=")


def test_of_one_event_about_one_thing_ten_lines_come() -> None:
    made, lines = log("json")
    for number in range(30):
        tell(made, NodeEvent.QUOTA_REACHED, 1, "sockets", about=number % 2)
        tell(made, NodeEvent.SOCKET_LEFT, "1", 1)  # of level debug
    assert len(lines) == 20


def test_lines_below_the_level_are_left_out() -> None:
    made, lines = log(level=Level.DEBUG)
    tell(made, NodeEvent.SOCKET_LEFT, "1", 1)
    assert len(lines) == 1


def test_lines_of_loggers_are_events() -> None:
    made, lines = log("json")
    root, quiet = logging.getLogger("urds"), logging.getLogger("urds.quiet")
    before = root.handlers, root.level, root.propagate
    try:
        made.take_logging(quiet="urds.quiet")
        logging.getLogger("urds.rdma").warning("%s is gone", "it")
        quiet.warning("not shown")
        try:
            raise ValueError("on purpose")
        except ValueError:
            quiet.exception("a fault")
        logging.getLogger("urds.rdma").warning("%d", "no number")  # told by logging itself
    finally:
        root.handlers, root.level, root.propagate = before
        quiet.setLevel(logging.NOTSET)
        logging.getLogger("urds").setLevel(before[1])
    found = [json.loads(line) for line in lines]
    assert [(one["logger"], one["text"], one["level"]) for one in found] == [
        ("urds.rdma", "it is gone", "warning"), ("urds.quiet", "a fault", "error"),
    ]  # fmt: skip
    assert "ValueError: on purpose" in found[1]["traceback"]


def test_deferred_lines_come_in_order() -> None:
    lines: list[str] = []
    made = EventLog("json", write=lines.append)
    for number in range(10):
        tell(made, NodeEvent.WORKER_STARTED, number)
    made.flush()
    assert [json.loads(line)["worker"] for line in lines] == list(range(10))
