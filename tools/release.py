"""Move the version, and record releases in changes/releases.toml.

    python -m tools.release --move 0.3.0    state it in every file that has to
    python -m tools.release 0.3.0           record HEAD as that release; --commit for another one

A release is a commit whose pyproject.toml states its version. It is recorded in a later commit, by
its full hash, for `make compat`.
"""

import argparse
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RELEASES = ROOT / "changes" / "releases.toml"
VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?(\.dev\d+)?")
GIT_S_MAX = 60
OWN_CRATES = ("urds-channel", "urds-dataplane", "urds-native", "urds-path")
LOCKS = ("native/Cargo.lock", "native/fuzz/Cargo.lock")


@dataclass(frozen=True, slots=True)
class Release:
    """One recorded release."""

    version: str
    commit: str  # 40 hexadecimal digits
    date: str  # of the commit
    wire: dict[str, int]  # versions that nodes of it put on the wire


class Refused(Exception):
    """Something does not fit; the text says what."""


def recorded(path: Path = RELEASES) -> list[Release]:
    """Return the recorded releases, the oldest first. Raises Refused for a bad entry."""
    entries: list[dict[str, Any]] = tomllib.loads(path.read_text(encoding="utf-8"))["release"]
    found = []
    for one in entries:
        if not re.fullmatch(r"[0-9a-f]{40}", one["commit"]):
            raise Refused(f"{path.name}: {one['commit']!r} is no full hash of a commit")
        found.append(
            Release(one["version"], one["commit"], str(one["date"]), dict(one.get("wire", {})))
        )
    return found


def stated(text: str) -> str:
    """Return the version that the text of a pyproject.toml states."""
    return str(tomllib.loads(text)["project"]["version"])


def move(version: str, root: Path = ROOT) -> list[str]:
    """State a version in every file; return their names. Raises Refused."""
    if not VERSION.fullmatch(version):
        raise Refused(f"{version!r} is no version such as 0.3.0, 0.3.0rc1 or 0.3.0.dev0")
    # What Python writes 0.3.0rc1 and 0.3.0.dev0, Cargo writes 0.3.0-rc1 and 0.3.0-dev0.
    cargo = re.sub(r"(?<=\d)(a|b|rc)(?=\d)", r"-\1", version.replace(".dev", "-dev"))
    edits: list[tuple[str, str, str]] = [
        ("pyproject.toml", r'^version = "[^"]+"', f'version = "{version}"'),
        ("pyproject.toml", r'"urds-native==[^"]+"', f'"urds-native=={version}"'),
        ("native/pyproject.toml", r'^version = "[^"]+"', f'version = "{version}"'),
        ("native/Cargo.toml", r'^version = "[^"]+"', f'version = "{cargo}"'),
    ]
    for lock in LOCKS:
        text = (root / lock).read_text(encoding="utf-8")
        edits += [
            (lock, rf'^name = "{name}"\nversion = "[^"]+"', f'name = "{name}"\nversion = "{cargo}"')
            for name in OWN_CRATES
            if f'name = "{name}"' in text
        ]
    for name, pattern, new in edits:
        path = root / name
        text, count = re.subn(
            pattern, new, path.read_text(encoding="utf-8"), count=1, flags=re.MULTILINE
        )
        if count != 1:
            raise Refused(f"{name} has no line like {pattern}")
        path.write_text(text, encoding="utf-8")
    return sorted({name for name, _, _ in edits})


def record(version: str, commit: str) -> Release:
    """Add a commit as a release to changes/releases.toml. Raises Refused."""
    found = _git("rev-parse", "--verify", f"{commit}^{{commit}}")
    there = stated(_git("show", f"{found}:pyproject.toml"))
    if there != version:
        raise Refused(f"{found[:12]} is of version {there}, not {version}")
    if any(version == one.version for one in recorded()):
        raise Refused(f"{version} is recorded already")
    release = Release(version, found, _git("show", "-s", "--format=%cs", found), wire())
    table = ", ".join(f"{name} = {number}" for name, number in release.wire.items())
    with RELEASES.open("a", encoding="utf-8") as file:
        file.write(
            f'\n[[release]]\nversion = "{version}"\ncommit = "{found}"\n'
            f"date = {release.date}\nwire = {{ {table} }}\n"
        )
    return release


def wire() -> dict[str, int]:
    """Return the versions that nodes of these sources put on the wire."""
    from urds.rds.transports import shm
    from urds.rds.wire import extensions, frame_format

    return {
        "tcp_mark": extensions.MARK_VERSION,
        "rdma_mark": int(frame_format.FRAME_FORMAT_NEWEST),
        "shm_greeting": shm.VERSION,
    }


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=GIT_S_MAX,
    )
    if done.returncode != 0:
        raise Refused(f"git {arguments[0]}: {done.stderr.strip() or 'failed'}")
    return done.stdout.strip()


def main() -> int:
    """Carry out the command line; return the exit code."""
    parser = argparse.ArgumentParser(description="Move the version, or record a release.")
    parser.add_argument("version")
    parser.add_argument("--move", action="store_true", help="state the version in every file")
    parser.add_argument("--commit", default="HEAD", help="the commit to record")
    options = parser.parse_args()
    try:
        if options.move:
            print(f"{options.version} is in {', '.join(move(options.version))}")
        else:
            release = record(options.version, options.commit)
            print(f"{RELEASES.relative_to(ROOT)}: {release.version} is {release.commit}")
    except Refused as reason:
        print(f"Not done: {reason}.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
