"""`urds run`: start an unmodified program whose RDS sockets are those of a node."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Final, NoReturn

from urds.cli import programs
from urds.cli.output import Exit, Output, UsageError, complain
from urds.cli.parser import Command, json_option, option
from urds.common.errors import PlaneError

NAME: Final = "urds run"
NOT_RUN: Final = 126  # as of shells and env(1): found, and cannot be executed
NOT_FOUND: Final = 127
_NODE: Final = "URDS_NODE"
_PRELOAD: Final = "LD_PRELOAD"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of `urds run`."""

    program: str = option(
        metavar="PROGRAM", default=MISSING, help="Program to run; a name is looked up in PATH."
    )
    arguments: Sequence[str] = option(
        metavar="ARGUMENT", default=(), has_rest=True, help="Its arguments, options too."
    )
    node: str | None = option(
        "--node", metavar="PATH", help="Socket of the node, instead of the host's or your own."
    )
    library: str | None = option(
        "--library", metavar="FILE", help="Another liburds_preload.so than that of urds-native."
    )
    check_only: bool = option(
        "--check", default=False, help="Print what would be set, and run nothing."
    )
    json_wanted: bool = json_option()


def run(options: RunOptions) -> Exit:
    """Run the program in the place of this process; return only if that is impossible.

    Raises SystemExit with 126 or 127; UsageError for a node's path that is not absolute, and for a
    library's that the loader cannot take.
    """
    try:
        program = programs.find(options.program)
        library = programs.library() if options.library is None else Path(options.library)
    except programs.CannotRun as reason:
        complain(NAME, str(reason))
        raise SystemExit(NOT_RUN) from None
    except FileNotFoundError as missing:
        complain(NAME, str(missing))
        raise SystemExit(NOT_FOUND) from None
    if options.node is not None and not options.node.startswith("/"):
        raise UsageError(f"--node {options.node}: must be an absolute path")
    library = library.absolute()
    if any(one in str(library) for one in ": \t\n"):
        raise UsageError(f"{library}: the loader takes no path with a space or a colon")
    if not library.exists():
        complain(NAME, f"no library at {library}")
        raise SystemExit(NOT_RUN)
    if options.check_only:
        return _show(options, program, library)
    variables = environment(os.environ, library=library, node=_node(options.node))
    return _execute(program.path, [options.program, *options.arguments], variables)


def environment(given: Mapping[str, str], *, library: Path, node: str) -> dict[str, str]:
    """Return the variables of the program: what is given, the library first, and the node."""
    return {**given, _PRELOAD: ":".join([*_others(given), str(library)]), _NODE: node}


def _others(given: Mapping[str, str]) -> list[str]:
    """Return the preloaded libraries without ours."""
    named = given.get(_PRELOAD, "").replace(":", " ").split()
    return [one for one in named if Path(one).name != programs.LIBRARY]


def _node(place: str | None) -> str:
    """Return where the node listens, started if it is nowhere. Raises SystemExit."""
    from urds.rds.node.start import ensure

    # Within a program that is run so, a node that is started here would ask itself whose its
    # descriptors are.
    os.environ[_PRELOAD] = ":".join(_others(os.environ))
    try:
        return ensure(_named(place))
    except (OSError, PlaneError) as failure:
        text = getattr(failure, "strerror", None) or str(failure)
        complain(NAME, f"no node: {text}")
        raise SystemExit(NOT_RUN) from None


def _named(place: str | None) -> str | None:
    """Return the place of `--node`, else that in URDS_NODE; None if neither names one."""
    named = place or os.environ.get(_NODE, "")
    return named if named.startswith("/") else None


def _show(options: RunOptions, program: programs.Program, library: Path) -> Exit:
    from urds.rds.runtime import places

    output = Output(json_wanted=options.json_wanted)
    rows = {
        "program": str(program.path.absolute()),
        "interpreter": str(program.interpreter.absolute()),
        "library": str(library),
        "node": _named(options.node) or places.find() or places.user_place(),
    }
    output.document(rows)
    for name, value in rows.items():
        output.line(f"{name:<12} {value}")
    return Exit.OK


def _execute(path: Path, arguments: Sequence[str], variables: Mapping[str, str]) -> NoReturn:
    """Become the program, with the signals as a shell leaves them. Raises SystemExit."""
    sys.stdout.flush()
    for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores them, and exec would keep that
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execve(path, list(arguments), dict(variables))
    except OSError as failure:
        complain(NAME, f"{path}: {failure.strerror}")
        raise SystemExit(NOT_RUN) from None


COMMAND: Final = Command(
    about="""
    Runs a program that calls socket(AF_RDS, SOCK_SEQPACKET, 0), without a change to it and without
    the kernel's module: liburds_preload.so is put before its libc, and its sockets are those of
    the node of this host or user, which is started if there is none. Children of the program have
    them too. The program takes the place of this process, with its own signals and exit code.

    A program that is static, setuid, setgid, has file capabilities, or is of another machine cannot
    be reached so: one line says why, and the exit code is 126; it is 127 if there is no such
    program.
    """,
    examples=(
        ("urds run -- rds-ping -c 3 10.0.0.2", "a tool of rds-tools, on urds"),
        ("urds run -- python3 server.py", "a program in Python that uses socket.AF_RDS"),
        ("urds run --check -- ./server", "can it be reached, and at which node?"),
        ("urds run --node /run/urds/node.sock -- ./server", "with the sockets of that node"),
    ),
    options=RunOptions,
    run=run,
)
