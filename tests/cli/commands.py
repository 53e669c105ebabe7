"""Run the command `urds` as a user does: a process, its output, its exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support import planes
from tests.support.places import take_subnet
from urds.rds.plane.choose import PYTHON

ROOT = Path(__file__).resolve().parents[2]
RUN_S_MAX = 110

# With and without the extra `cli`: -S leaves site-packages out, so the standard library is alone.
EXTRAS = {"with": (), "without": ("-S",)}

HOST = """
import sys, urds
sock = urds.socket(urds.AF_RDS, urds.SOCK_SEQPACKET)
sock.bind((sys.argv[1], 4000))
print("ready", flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class Done:
    """What a finished command left."""

    code: int
    out: str
    err: str


_prefix, _lock = take_subnet(192, 32)
_lock.detach()  # held until the process ends


def address(last: int) -> str:
    """Return an address of 127/8 that belongs to this test process alone."""
    return f"{_prefix}.{last}"


def environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment with this checkout, without colours and settings of the caller."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("URDS_")}
    if planes.in_use() == PYTHON:  # the compiled one is the default where it is, and -S hides it
        kept |= planes.chosen()
    fixed = {"PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1", "COLUMNS": "100", "TERM": "dumb"}
    given = dict(changes or {})
    if "XDG_RUNTIME_DIR" in given:  # a test that asks processes means its own alone
        given.setdefault("URDS_INFO_DIRECTORY", f"{given['XDG_RUNTIME_DIR']}/urds")
    return {**kept, **fixed, **given}


def command(extra: str, *arguments: str, program: str = "urds") -> list[str]:
    """Return the command line that runs `urds`, or another module, with or without the extra."""
    return [sys.executable, *EXTRAS[extra], "-m", program, *arguments]


def urds(
    *arguments: str,
    extra: str = "without",
    changes: Mapping[str, str] | None = None,
    program: str = "urds",
) -> Done:
    """Run `urds`, or another module, to its end."""
    done = subprocess.run(
        command(extra, *arguments, program=program),
        check=False,
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        env=environment(changes),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def started(
    *arguments: str,
    extra: str = "without",
    program: str = "urds",
    changes: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:
    """Return `urds`, or another module, as it runs; as a context manager it waits for the end."""
    return subprocess.Popen(
        command(extra, *arguments, program=program),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(changes),
        cwd=ROOT,
    )


def interrupt(
    *arguments: str,
    after: str,
    extra: str = "without",
    program: str = "urds",
    changes: Mapping[str, str] | None = None,
) -> Done:
    """Run a module, press Ctrl-C once it has printed a line with `after`, wait for the end."""
    with started(*arguments, extra=extra, program=program, changes=changes) as child:
        assert child.stdout is not None
        seen = ""
        for line in child.stdout:
            seen += line
            if after in line:
                break
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=RUN_S_MAX)
    return Done(child.returncode, seen + out, err)


@contextmanager
def host(
    at: str, changes: Mapping[str, str] | None = None, *arguments: str, script: str = HOST
) -> Iterator[subprocess.Popen[str]]:
    """Run a process that hosts an address, with a socket on port 4000, and says `ready`."""
    child = subprocess.Popen(
        [sys.executable, "-c", script, at, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(changes),
    )
    assert child.stdout is not None
    with child:
        assert child.stdout.readline() == "ready\n"
        yield child
        assert child.stdin is not None
        child.stdin.close()
        child.wait(RUN_S_MAX)
