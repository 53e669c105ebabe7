"""Reports of processes for `urds info`: written, asked for at an `information_socket`, and read."""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from urds.common.passed_files import receive_with_files
from urds.common.records import fields, record
from urds.common.types import IPAddress
from urds.rds.plane.contract import (
    Carrier,
    ConnectionFacts,
    MailboxRow,
    MessageRow,
    PathRow,
    RdmaRow,
    Snapshot,
)
from urds.rds.runtime import node_requests, places
from urds.rds.runtime.information_socket import GREETING, SUFFIX, folder, is_ours
from urds.rds.settings import AUTO, Settings
from urds.rds.wire.node import Request, RequestOp

Endpoint = tuple[IPAddress, int]

ANSWER_S: Final = 2.0
_REPORT_BYTES_MAX: Final = 256 << 20
_PROGRAM_CHARACTERS_MAX: Final = 200
_ADDRESSES: Final = frozenset({"local", "peer", "local_gid", "peer_gid"})
_STREAMS: Final = frozenset({"local_stream", "peer_stream"})


_BOUND: Final = re.compile(r"(/\S.*/urds(?:-\d+)?)/(\d+)\.sock$", re.MULTILINE)
_KERNELS_TABLE: Final = Path("/proc/net/unix")


def named_directory() -> str:
    """Return the directory that file or environment name for the sockets, or `auto`."""
    return Settings.load().info_directory


@record
class Report:
    """What one process has."""

    pid: int
    program: str
    plane: str  # "python" or "native"
    snapshot: Snapshot
    counters: Mapping[str, int]  # the control core's among them, in the order of rds-info
    connected: Mapping[Endpoint, Endpoint]


@record
class Silent:
    """A process that is there and gave no report."""

    pid: int
    reason: str


def report_of_this_process(
    plane: str,
    snapshot: Snapshot,
    counters: Mapping[str, int],
    connected: Mapping[Endpoint, Endpoint],
) -> bytes:
    """Return the report of the calling process as bytes."""
    program = " ".join(sys.orig_argv)[:_PROGRAM_CHARACTERS_MAX]
    return emit(Report(os.getpid(), program, plane, snapshot, counters, connected))


def emit(report: Report) -> bytes:
    """Write a report as JSON; addresses as texts."""
    import json
    from dataclasses import asdict

    snapshot = report.snapshot
    document = {
        "pid": report.pid,
        "program": report.program,
        "plane": report.plane,
        "counters": dict(report.counters),
        "mailboxes": [asdict(row) for row in snapshot.mailboxes],
        "paths": [asdict(row) for row in snapshot.paths],
        "send_queue": [row._asdict() for row in snapshot.send_queue],
        "retransmit_queue": [row._asdict() for row in snapshot.retransmit_queue],
        "receive_queue": [row._asdict() for row in snapshot.receive_queue],
        "rdma_in_use": snapshot.rdma_in_use,
        "connected": [[*local, *peer] for local, peer in report.connected.items()],
    }
    return json.dumps(document, default=str).encode()


def parse(data: bytes) -> Report:
    """Read a report. Raises ValueError if it is none, or of another release."""
    import json

    try:
        document = json.loads(data)
        return Report(
            pid=document["pid"],
            program=document["program"],
            plane=document["plane"],
            counters=document["counters"],
            snapshot=Snapshot(
                counters=document["counters"],
                mailboxes=[MailboxRow(**_row(MailboxRow, one)) for one in document["mailboxes"]],
                paths=[PathRow(**_row(PathRow, one)) for one in document["paths"]],
                send_queue=_messages(document["send_queue"]),
                retransmit_queue=_messages(document["retransmit_queue"]),
                receive_queue=_messages(document["receive_queue"]),
                rdma_in_use=document["rdma_in_use"],
            ),
            connected={
                (ip_address(local), port): (ip_address(peer), peer_port)
                for local, port, peer, peer_port in document["connected"]
            },
        )
    except (LookupError, TypeError, ValueError, RecursionError) as failure:
        raise ValueError(f"no report of this release: {failure!r}") from failure


def find(*, all_users: bool = False) -> list[int]:
    """Return the pids of this user's processes that serve a report, or did once.

    Those of any user with `all_users`, which is for root.
    """
    return sorted(_places(all_users=all_users))


def _places(*, all_users: bool = False) -> dict[int, Path]:
    """Return the sockets by their processes.

    A process has its socket where its own environment says, or in a file system of its own. So the
    kernel's list of bound sockets is looked through as well, unless a setting names the place.
    """
    named, places = named_directory(), dict[int, Path]()
    at = Path(folder(named))
    if named == AUTO:
        with suppress(OSError):  # no /proc
            for found in _BOUND.finditer(_KERNELS_TABLE.read_text(errors="surrogateescape")):
                pid, place = int(found[2]), Path(found[0])
                for seen in (place, Path(f"/proc/{pid}/root{place}")):
                    if is_ours(seen.parent, all_users=all_users) and seen.exists():
                        places.setdefault(pid, seen)
    if is_ours(at):
        names = (place.name.removesuffix(SUFFIX) for place in at.glob(f"*{SUFFIX}"))
        places |= {int(name): at / f"{name}{SUFFIX}" for name in names if name.isdigit()}
    return places


def ask_all(pids: Iterable[int], *, all_users: bool = False) -> Iterator[Report | Silent]:
    """Ask each for its report; a process that is gone is left out and its socket removed."""
    found = _places(all_users=all_users)
    for pid in pids:
        answer = ask(pid, found.get(pid))
        if answer is not None:
            yield answer


def ask(pid: int, place: Path | None = None) -> Report | Silent | None:
    """Ask one process for its report, for at most two seconds; None if it is gone."""
    at = Path(folder(named_directory()))
    place = place or at / f"{pid}{SUFFIX}"
    try:
        return parse(_fetch(place))
    except ConnectionRefusedError:
        if place.parent == at:
            place.unlink(missing_ok=True)
        return None
    except FileNotFoundError:
        return None
    except TimeoutError:
        return Silent(pid, f"no answer within {ANSWER_S:g} s")
    except OSError as failure:
        return Silent(pid, failure.strerror or str(failure))
    except ValueError as failure:
        return Silent(pid, str(failure))


def ask_nodes(asked: Collection[int]) -> Iterator[Report | Silent]:
    """Ask the nodes of the host and of this user, but those among the processes already asked.

    None where a setting names the directory: then that alone is looked at.
    """
    if named_directory() != AUTO:
        return
    for place in places.served():
        try:
            report = report_of_node(place)
        except OSError as failure:
            yield Silent(0, f"the node at {place}: {failure.strerror or failure}")
        else:
            if report.pid not in asked:
                yield report


def report_of_node(place: str) -> Report:
    """Return the report of a node's worker. Raises OSError."""
    import json

    _, data = node_requests.fetch(place, Request(operation=RequestOp.STATUS))
    try:
        return parse(json.dumps(json.loads(data)["report"]).encode())
    except (ValueError, LookupError, TypeError) as wrong:
        raise OSError(errno.EPROTO, f"{os.strerror(errno.EPROTO)}: {wrong}") from wrong


def _fetch(place: Path) -> bytes:
    """Return the bytes that a process serves. Raises OSError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ANSWER_S)
        connection.connect(os.fspath(place))
        greeting, descriptors, _ = receive_with_files(connection, len(GREETING), 1)
    if not descriptors:
        raise OSError(errno.EPROTO, "the connection ended without a report")
    with open(descriptors[0], "rb") as file:  # noqa: PTH123 - a descriptor
        if greeting != GREETING:
            raise OSError(errno.EPROTO, "it is of another release")
        # Root asks the processes of all users: a pipe or a device might never end.
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EPROTO, "its report is no memory file")
        return file.read(_REPORT_BYTES_MAX)


def _messages(rows: Iterable[dict[str, Any]]) -> list[MessageRow]:
    return [MessageRow(**{name: _value(name, row[name]) for name in row}) for row in rows]


def _row(
    kind: type[MailboxRow | PathRow | RdmaRow | ConnectionFacts], row: dict[str, Any]
) -> dict[str, Any]:
    return {one.name: _value(one.name, row[one.name]) for one in fields(kind)}


def _value(name: str, value: Any) -> Any:
    if name in _ADDRESSES:
        return ip_address(value)
    if name in _STREAMS and value is not None:
        return tuple(value)
    if name == "transport":
        return Carrier(value)
    if name == "rdma" and value is not None:
        return RdmaRow(**_row(RdmaRow, value))
    if name == "connection" and value is not None:
        return ConnectionFacts(**_row(ConnectionFacts, value))
    return value
