"""Starting a node: here, in the foreground, or in the background for a program that needs one."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO, Final

from urds.common.errors import PlaneError, SettingError
from urds.common.event_log import EventLog, Level, under_journal
from urds.common.records import record, replace
from urds.rds.node import commands
from urds.rds.node.kept import STORE_PREFIX
from urds.rds.node.notify import Notifier, listen_descriptors
from urds.rds.node.plan import Plan, child_environment
from urds.rds.node.settings import NodeSettings
from urds.rds.node.supervisor import DEATHS_MAX, TAKEN, WORKER, Supervisor, inherited, listen, lock
from urds.rds.plane.choose import PYTHON, VARIABLE
from urds.rds.runtime import places

IDLE_EXIT_S: Final = 10.0  # of a node that a program started
_START_WAIT_S: Final = 20.0
_STEP_S: Final = 0.02
_SYSTEM_MODE: Final = 0o666
_USER_MODE: Final = 0o600
_LINE_BYTES_MAX: Final = 4096


@record(kw_only=True)
class StartOptions:
    """What `urds node` is started with."""

    system: bool = False
    place: str | None = None
    config: str | None = None
    log: str = "logfmt"
    verbose: bool = False
    idle_exit_s: float | None = None  # outranks the configuration


def check_plane() -> None:
    """Raise PlaneError where there can be no node: its plane is the compiled one, and needs /proc.

    By way of /proc it opens memory again that programs may only read.
    """
    if os.environ.get(VARIABLE) == PYTHON:
        raise PlaneError(f"a node needs the compiled data plane, and {VARIABLE}={PYTHON}")
    if find_spec("urds_native") is None:
        raise PlaneError(
            "a node needs the compiled data plane: urds_native is not installed"
            " (in a checkout, pip install ./native)"
        )
    if not Path("/proc/self/fd").exists():
        raise PlaneError("a node needs /proc, which is not mounted here")


def serve(
    options: StartOptions, *, worker: Sequence[str] = WORKER, deaths_max: int = DEATHS_MAX
) -> int:
    """Run a node until it is stopped; return its exit code.

    Raises SettingError, PlaneError, OSError: a node is there already, or the place cannot be had.
    """
    settings = NodeSettings.load(options.config)
    settings.settings()
    if worker is WORKER:
        check_plane()
    notifier = Notifier()
    passed = listen_descriptors()
    listeners = [one for one in passed if not one[0].startswith(STORE_PREFIX)]
    mode = settings.socket_mode or (_SYSTEM_MODE if options.system else _USER_MODE)
    if listeners:
        listener = inherited(listeners[0][1])
        place = str(listener.getsockname())
    else:
        place = options.place or (places.SYSTEM_PLACE if options.system else places.user_place())
        listener = _listen(place, mode, is_given=options.place is not None)
    idle_exit_s = settings.idle_exit_s if options.idle_exit_s is None else options.idle_exit_s
    is_journal = under_journal()
    plan = Plan(
        place=place,
        config=None if options.config is None else str(Path(options.config).absolute()),
        listener=-1,
        channel=-1,
        idle_exit_s=idle_exit_s,
        log=options.log,
        log_level=(Level.DEBUG if options.verbose else Level.INFO).name,
        journal=is_journal,
    )
    log = EventLog(options.log, level=Level[plan.log_level], deferred=False, journal=is_journal)
    supervisor = Supervisor(plan, listener, log, notifier, worker=worker, deaths_max=deaths_max)
    supervisor.take_stored([one for one in passed if one not in listeners])
    return supervisor.run()


def _listen(place: str, mode: int, *, is_given: bool) -> socket.socket:
    """Take the lock of a place and listen there; the lock is held until the process ends."""
    commands.check_place(place)
    if len(os.fsencode(place)) > 107:  # unix(7)
        raise SettingError(f"--socket {place}: longer than the 107 bytes of a socket's path")
    try:
        if place == places.SYSTEM_PLACE:
            Path(place).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        elif not is_given:
            places.make_folder(place)
        lock(place)
        return listen(place, mode)
    except OSError as failure:
        text = failure.strerror or str(failure)
        if failure.errno == errno.ENOENT:
            text = f"{place}: there is no such folder to put it in"
        text = text if place in text else f"{place}: {text}"
        raise OSError(failure.errno or errno.EADDRINUSE, text) from failure


def ensure(place: str | None = None) -> str:
    """Return where a node listens for this thread, started in the background if there is none.

    Without a place it is the host's node or else this user's. A node that is started here ends ten
    seconds after its last socket. Raises OSError with one line why there is none, PlaneError.
    """
    if place is None:
        found = places.find()
        if found is not None:
            return found
        place = places.user_place()
        places.make_folder(place)
    elif places.is_served(place):
        return place
    check_plane()
    options = replace(StartOptions(), place=place, idle_exit_s=IDLE_EXIT_S)
    with _log_beside(place) as output:
        output.truncate(0)
        child = subprocess.Popen(
            _command(options),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=output,
            start_new_session=True,
            env=child_environment(),
        )
        until_s = time.monotonic() + _START_WAIT_S
        while time.monotonic() < until_s:
            with suppress(OSError):
                commands.status(place)
                return place
            if child.poll() is not None:
                output.seek(0)
                reason = _last_line(output.read(_LINE_BYTES_MAX))
                if not reason.endswith(TAKEN):  # else that one will answer soon
                    raise OSError(errno.ECONNREFUSED, reason)
            time.sleep(_STEP_S)
    raise TimeoutError(errno.ETIMEDOUT, f"the node at {place} does not answer; see {place}.log")


def _log_beside(place: str) -> BinaryIO:
    """Open the file for the lines of a node that is started. Raises OSError with its name."""
    try:
        return Path(f"{place}.log").open("ab+")
    except FileNotFoundError as missing:
        raise OSError(missing.errno, f"{place}: there is no such folder to put it in") from missing
    except OSError as failure:
        raise OSError(failure.errno, f"{place}.log: {failure.strerror}") from failure


def _command(options: StartOptions) -> list[str]:
    words = ["node", "--socket", str(options.place), "--idle-exit-s", f"{options.idle_exit_s:g}"]
    return [sys.executable, "-P", "-m", "urds", *words]


def _last_line(data: bytes) -> str:
    lines = data.decode(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("urds node: ") if lines else "the node ended at once"
