"""Reports of processes: served to `urds info`, and asked for.

A process is the host of its addresses and no other process can look inside. So each opens a Unix
socket that only its own user can reach; a connection gets one report and ends. The report travels
as a sealed memory file: passing a descriptor never waits, however long the report and however slow
the reader, so the control thread can serve it between two events. A process that ended without
closing its socket leaves a file behind; the next process that finds it removes it.

Nothing here may keep a program from working: without a place for the socket there is none.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import socket
import stat
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from ipaddress import ip_address
from pathlib import Path
from struct import Struct
from typing import Any, Final

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
from urds.rds.settings import AUTO, Settings

Endpoint = tuple[IPAddress, int]

GREETING: Final = b"urds report 3\n"  # goes with the descriptor; the number is the format's
SUFFIX: Final = ".sock"
_CONNECTIONS_PER_PASS: Final = 8
_BACKLOG: Final = 16
_PEER_CREDENTIALS: Final = Struct("3i")  # pid, uid, gid
_SEALS: Final = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
ANSWER_S: Final = 2.0
_REPORT_BYTES_MAX: Final = 256 << 20
_PROGRAM_CHARACTERS_MAX: Final = 200
_ADDRESSES: Final = frozenset({"local", "peer", "local_gid", "peer_gid"})
_STREAMS: Final = frozenset({"local_stream", "peer_stream"})


_BOUND: Final = re.compile(r"(/\S.*/urds(?:-\d+)?)/(\d+)\.sock$", re.MULTILINE)
_KERNELS_TABLE: Final = Path("/proc/net/unix")


# -- serving


def named_directory() -> str:
    """Return the directory that file or environment name for the sockets, or `auto`."""
    return Settings.load().info_directory


def folder(named: str = AUTO) -> Path:
    """Return where the sockets of this user's processes are by default; it need not exist."""
    if named != AUTO:
        return Path(named)
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime) / "urds"
    return Path(os.environ.get("TMPDIR", "/tmp")) / f"urds-{os.getuid()}"


def is_ours(place: Path, *, all_users: bool = False) -> bool:
    """Tell whether a folder belongs to this user, or to any one, alone; a link to one does not."""
    try:
        found = place.lstat()
    except OSError:
        return False
    return (
        stat.S_ISDIR(found.st_mode)
        and (all_users or found.st_uid == os.getuid())
        and not stat.S_IMODE(found.st_mode) & 0o077
    )


class InformationSocket:
    """A listener for the control thread: `fileno` to watch, `handle_ready` when it is readable."""

    def __init__(self, place: Path, listener: socket.socket, report: Callable[[], bytes]) -> None:
        self._place = place
        self._listener = listener
        self._report = report

    @classmethod
    def open(cls, report: Callable[[], bytes], directory: str = AUTO) -> InformationSocket | None:
        """Listen at this process's place; None where that is impossible."""
        with suppress(OSError), ExitStack() as undo:
            # No descriptor, no folder, a read-only one, or a path too long for a socket.
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            undo.callback(listener.close)
            place = _place_for(os.getpid(), folder(directory))
            listener.bind(os.fspath(place))
            place.chmod(0o600)
            listener.listen(_BACKLOG)
            undo.pop_all()
            return cls(place, listener, report)
        return None

    def fileno(self) -> int:
        """Return the descriptor of the listener."""
        return self._listener.fileno()

    def handle_ready(self) -> None:
        """Answer waiting connections, at most eight; never blocks."""
        for _ in range(_CONNECTIONS_PER_PASS):
            try:
                connection, _ = self._listener.accept()
            except OSError:  # none left, or no descriptors: the rest is served next time
                return
            with connection, suppress(OSError):  # the reader may be gone already
                if _is_allowed(connection):
                    self._answer(connection)

    def close(self) -> None:
        """Stop listening and remove the socket's file."""
        if self._listener.fileno() >= 0:
            self._listener.close()
            self._place.unlink(missing_ok=True)

    def abandon_in_child(self) -> None:
        """After a fork, in the child: close the copy; the file stays the parent's."""
        self._listener.close()

    def _answer(self, connection: socket.socket) -> None:
        descriptor = os.memfd_create("urds-report", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(self._report())
            os.lseek(descriptor, 0, os.SEEK_SET)  # the reader gets this position with the file
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [descriptor]))
            connection.sendmsg([GREETING], [rights], socket.MSG_NOSIGNAL)
        finally:
            os.close(descriptor)


def _place_for(pid: int, at: Path) -> Path:
    """Return the path for a process, free to bind. Raises OSError."""
    with suppress(FileExistsError):
        at.mkdir(mode=0o700)
    if not is_ours(at):
        raise PermissionError(f"{at} is not a folder of this user alone")
    place = at / f"{pid}{SUFFIX}"
    # The earlier owner of this pid has ended, unless it is this process with a second backend.
    if place.exists() and not _is_served(place):
        place.unlink(missing_ok=True)
    return place


def _is_served(place: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        return probe.connect_ex(os.fspath(place)) != errno.ECONNREFUSED


def _is_allowed(connection: socket.socket) -> bool:
    """Tell whether the other end is this user or root; the folder's mode ensures the same."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    return _PEER_CREDENTIALS.unpack(data)[1] in {0, os.getuid()}


# -- asking


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
    at = folder(named)
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
    places = _places(all_users=all_users)
    for pid in pids:
        answer = ask(pid, places.get(pid))
        if answer is not None:
            yield answer


def ask(pid: int, place: Path | None = None) -> Report | Silent | None:
    """Ask one process for its report, for at most two seconds; None if it is gone."""
    at = folder(named_directory())
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


def _fetch(place: Path) -> bytes:
    """Return the bytes that a process serves. Raises OSError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ANSWER_S)
        connection.connect(os.fspath(place))
        greeting, descriptors, _, _ = socket.recv_fds(connection, len(GREETING), 1)
    if not descriptors:
        raise OSError(errno.EPROTO, "the connection ended without a report")
    with open(descriptors[0], "rb") as file:  # noqa: PTH123 - a descriptor
        if greeting != GREETING:
            raise OSError(errno.EPROTO, "it is of another release")
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
