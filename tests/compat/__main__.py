"""Run the last recorded release against the present sources: the code of `make compat`.

    python -m tests.compat                    every row
    python -m tests.compat --only shared --json
    python -m tests.compat --release 0.1.0

The release is built from its commit (changes/releases.toml) in a folder of its own, with its own
environment and its own tools; nothing of the checkout is in it. Its compiled plane and that of the
checkout take part where they are built. Each row exchanges messages over one carrier, with either
side connecting, and kills and restarts each side in turn. It has to work, to fall back to TCP where
shared memory is asked for, or to end with one clear error; silence, loss, a traceback and a row
that passes its limit are failures. Rows about nodes are told of in `nodes`.

Exit codes: 0 every row is well; 1 a row failed; 2 a wrong option, or the release does not build;
3 the commit is not in this clone; 130 after Ctrl-C.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from tests.compat.nodes import NodeRow, node_rows
from tests.compat.rows import NATIVE, PYTHON, Build, Result, Row, Verdict, rows, run, tree_of
from tools.release import Refused, Release, recorded

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / ".compat"
LIMIT_S = 60.0
BUILD_S_MAX = 1200
GIT_S_MAX = 120
FAILED, NOT_BUILT, NO_COMMIT, INTERRUPTED = 1, 2, 3, 130


class NoCommit(Exception):
    """The commit of the release is not here; the text says so in a line."""


class NotBuilt(Exception):
    """The release could not be built; the text has the reason."""


def unpack(release: Release, place: Path) -> Path:
    """Have the sources of a release in a folder of its own; return it.

    Raises NoCommit if this is no clone, or one that lacks the commit.
    """
    folder = place / release.commit
    if folder.exists():
        return folder
    git = ["git", "-C", str(ROOT)]
    there = _run([*git, "cat-file", "-e", f"{release.commit}^{{commit}}"], GIT_S_MAX)
    if there.returncode != 0:
        raise NoCommit(
            f"The commit of {release.version}, {release.commit[:12]}, is not in this clone: "
            "git fetch --unshallow brings it"
        )
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place) as name:
        packed, fresh = Path(name) / "sources.tar", Path(name) / "sources"
        done = _run([*git, "archive", "--output", str(packed), release.commit], GIT_S_MAX)
        if done.returncode != 0:
            raise NotBuilt(f"git archive failed: {done.stdout.strip()[-300:]}")
        with tarfile.open(packed) as archive:
            # The parameter `filter` is of CPython 3.11.4; before that this attribute means nothing.
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(fresh)
        fresh.rename(folder)  # whole or not at all
    return folder


def build(release: Release, folder: Path, *, native: bool) -> Build:
    """Have an environment of a release, made by its own tools. Raises NotBuilt."""
    venv = folder / ".venv"
    done = _run(
        [sys.executable, "tools/environment.py", "--at", str(venv), "build"], BUILD_S_MAX, folder
    )
    if done.returncode != 0:
        raise NotBuilt(f"environment: {done.stdout.strip()[-500:]}")
    if native:
        command = [sys.executable, "-m", "tools.native", "build", "--optional", "--at", str(venv)]
        done = _run(command, BUILD_S_MAX, folder)
        if done.returncode != 0:
            raise NotBuilt(f"compiled plane: {done.stdout.strip()[-500:]}")
    return Build(release.version, str(venv / "bin" / "python"), {}, folder)


def _run(
    command: list[str], limit_s: float, at: Path | None = None
) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            command, cwd=at, check=False, text=True, timeout=limit_s, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=Build("", "", {}, ROOT).environment(),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, f"took more than {limit_s:.0f} s")
    except OSError as error:
        return subprocess.CompletedProcess(command, 1, str(error))


def with_planes(one: Build) -> Build:
    """Return a build with the planes that its sockets bind on. Raises NotBuilt without any."""
    planes = tuple(plane for plane in (PYTHON, NATIVE) if one.has(plane))
    if not planes:
        raise NotBuilt(f"no socket of {one.label} binds on any plane")
    return replace(one, planes=planes)


def chosen(wanted: Sequence[Row | NodeRow], only: str | None) -> list[Row | NodeRow]:
    """Return the rows whose carrier's name holds a text."""
    return [row for row in wanted if only is None or only in row.carrier.name]


def table(release: Release, verdicts: Sequence[Verdict]) -> str:
    """Return the table of a run."""
    lines = [("carrier", release.version, "tree", "connects", "result", "s", "")]
    for one in verdicts:
        lines.append(
            (one.carrier, one.release_plane, one.tree_plane, one.connects, one.result,
             f"{one.seconds:.1f}", one.detail)
        )  # fmt: skip
    widths = [max(map(len, column)) for column in list(zip(*lines, strict=True))[:-1]]
    return "\n".join(
        "  ".join(
            [*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[-1]]
        )
        for line in lines
    )


def document(release: Release, builds: Sequence[Build], verdicts: Sequence[Verdict]) -> str:
    """Return the JSON document of a run."""
    return json.dumps(
        {
            "release": asdict(release),
            "planes": {one.label: list(one.planes) for one in builds},
            "rows": [one.as_json() for one in verdicts],
            "failed": sum(one.result is Result.FAILED for one in verdicts),
        },
        indent=2,
    )


def compare(release: Release, options: argparse.Namespace) -> int:
    """Build both sides, run the rows, print them; return the exit code. Raises as its parts."""
    say = print if not options.json else _keep_silent
    folder = unpack(release, options.at)
    say(
        f"Building {release.version}, {release.commit[:12]}: some minutes the first time.",
        flush=True,
    )
    old = with_planes(build(release, folder, native=not options.python_only))
    new = with_planes(tree_of(ROOT))
    for one in (old, new):
        say(f"{one.label}: {' and '.join(one.planes)} plane", flush=True)
    wanted = chosen([*rows(old, new), *node_rows(old, new)], options.only)
    if not wanted:
        raise NotBuilt(f"no row has {options.only!r} in the name of its carrier")
    verdicts = []
    for row in wanted:
        if isinstance(row, NodeRow):
            verdict = row.run(limit_s=options.limit_s)
        else:
            verdict = run(row, old, new, limit_s=options.limit_s)
        verdicts.append(verdict)
        name = f"{row.carrier.name}, {row.release_plane} and {row.tree_plane}"
        say(f"{name}, {row.connects} connects: {verdict.result} {verdict.seconds} s", flush=True)
    if options.json:
        print(document(release, (old, new), verdicts))
    else:
        counts = [f"{sum(one.result is kind for one in verdicts)} {kind}" for kind in Result]
        print(f"\n{table(release, verdicts)}\n\n{', '.join(counts)}")
    return FAILED if any(one.result is Result.FAILED for one in verdicts) else 0


def _keep_silent(*_: object, **__: object) -> None:
    """Print nothing: standard output is one document."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.compat", description="Old against new.")
    parser.add_argument("--release", metavar="VERSION", help="a recorded release; the last one")
    parser.add_argument("--only", metavar="TEXT", help="rows whose carrier has it in its name")
    parser.add_argument("--python-only", action="store_true", help="build no compiled plane")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="time of one row")
    parser.add_argument("--at", type=Path, default=PLACE, help="where releases are built")
    parser.add_argument("--fresh", action="store_true", help="build the release anew")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    options.at = options.at.absolute()
    try:
        known = {one.version: one for one in recorded()}
        release = known[options.release or list(known)[-1]]
        if options.fresh:
            shutil.rmtree(options.at / release.commit, ignore_errors=True)
        return compare(release, options)
    except KeyError:
        print(f"No release {options.release!r} is recorded: {', '.join(known)}.")
        return NOT_BUILT
    except NoCommit as reason:
        print(f"{reason}.")
        return NO_COMMIT
    except (NotBuilt, Refused) as reason:
        print(f"{release.version} cannot be compared: {reason}")
        return NOT_BUILT
    except KeyboardInterrupt:
        print("\nInterrupted: every process of the run is ended.")
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
