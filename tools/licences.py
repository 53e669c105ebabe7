"""Gather the licences of what the compiled plane's module contains besides our own code.

    python -m tools.licences           write native/THIRD-PARTY-LICENSES
    python -m tools.licences --check   exit 1 if it is not that of native/Cargo.lock

The crates are those that cargo links for a target of a wheel: dependencies of builds, of tests and
of macros are left out. Each crate's own files are taken word for word, equal ones once, and those
of Rust's standard library from the toolchain. A crate without a file, or under a licence that is
not in the list below, is an error: nothing may be released with it before it has been looked at.
"""

import argparse
import html
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.cargo import ROOT, WORKSPACE, Cargo, Unavailable, fetch, find

PAGE = WORKSPACE / "THIRD-PARTY-LICENSES"
PACKAGE = "urds-native"
# Rust's names of what wheels are built for; a crate that any of them links is listed.
TARGETS = (
    "x86_64-unknown-linux-gnu",
    "x86_64-unknown-linux-musl",
    "aarch64-unknown-linux-gnu",
    "aarch64-unknown-linux-musl",
)
# Each permits what we do: distribution in binary form under our own licence, with its text.
PERMITTED = frozenset(
    {"Apache-2.0", "Apache-2.0 WITH LLVM-exception", "MIT", "Unicode-3.0", "Zlib"}
)
FILES = re.compile(r"(LICEN[CS]E|COPYING|COPYRIGHT|NOTICE|UNLICENSE)([-_.].*)?", re.IGNORECASE)
# Crates that the standard library has for other systems, for its tests and for its build.
ELSEWHERE = re.compile(
    "windows|wasi|wit-|r-efi|fortanix|hermit|moto-|vex-|unwinding|dlmalloc|cc$|shlex|getopts|rand"
)
CARGO_S_MAX = 60
HEAD = """\
urds-native is under the Apache License 2.0, see LICENSE. Its module contains code of the
packages below, under the licences that follow; (std) is Rust's standard library, with what is
in it. Made by `python -m tools.licences`.
"""


@dataclass(frozen=True, slots=True)
class Crate:
    """A package that is linked, and the texts that it asks to be kept."""

    name: str
    version: str
    licence: str  # as the package states it, an SPDX expression
    texts: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.version} ({self.licence})"


class Unclear(Exception):
    """A package states no licence, one that is not in the list, or comes without its text."""


def linked(metadata: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the packages of cargo's metadata that `urds-native` links, our own left out."""
    packages = {one["id"]: one for one in metadata["packages"]}
    nodes = {one["id"]: one for one in metadata["resolve"]["nodes"]}
    start = next(key for key, one in packages.items() if one["name"] == PACKAGE)
    found: set[str] = set()
    waiting = [start]
    while waiting:
        key = waiting.pop()
        if key in found or _is_macro(packages[key]):
            continue
        found.add(key)
        waiting += [
            one["pkg"]
            for one in nodes[key]["deps"]
            if any(kind["kind"] is None for kind in one["dep_kinds"])
        ]
    return [packages[key] for key in sorted(found) if packages[key]["source"] is not None]


def _is_macro(package: dict[str, Any]) -> bool:
    return any("proc-macro" in target["kind"] for target in package["targets"])


def permitted(expression: str) -> bool:
    """Tell whether one of the alternatives of an SPDX expression is in the list.

    `MIT/Apache-2.0` is an older way to write OR. An expression with AND needs all of its parts.
    """
    alternatives = re.split(r" OR |/", expression.replace("(", "").replace(")", ""))
    return any(
        all(part.strip() in PERMITTED for part in one.split(" AND ")) for one in alternatives
    )


def crate_of(package: dict[str, Any]) -> Crate:
    """Return a package with its texts. Raises Unclear."""
    name, version, licence = package["name"], package["version"], package["license"]
    if not licence or not permitted(licence):
        raise Unclear(f"{name} {version} is under {licence or 'no licence that it states'}")
    folder = Path(package["manifest_path"]).parent
    files = sorted(path for path in folder.iterdir() if FILES.fullmatch(path.name))
    if not files:
        raise Unclear(f"{name} {version} comes without the text of its licence")
    return Crate(name, version, licence, tuple(_text(path) for path in files if path.is_file()))


def _text(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(line.rstrip() for line in lines).strip("\n") + "\n"


def library(folder: Path, version: str) -> list[Crate]:
    """Return Rust's standard library, which every module contains, and the crates inside it.

    They come from the notices that the toolchain has in `folder`. Raises Unclear without them.
    """
    try:
        notices = (folder / "COPYRIGHT-library.html").read_text(encoding="utf-8")
        names = ("Apache-2.0.txt", "MIT.txt", "Unicode-3.0.txt")
        texts = [_text(folder / "licenses" / name) for name in names]
    except OSError as error:
        raise Unclear(f"the toolchain of Rust {version} has no notices: {error}") from None
    own, *others = re.split(r"<h3>\W*", notices)
    about = _plain(own.partition('<h2 id="longer-version">')[2].partition(">")[2])
    found = [Crate("(std)", version, "MIT OR Apache-2.0", (f"{about}\n", *texts))]
    for one in others:
        name, number = re.split(r"-(?=\d)", one.partition("</h3>")[0], maxsplit=1)
        if ELSEWHERE.match(name):
            continue
        licence = re.search(r"<b>License:</b> ([^<]+)", one)
        kept = tuple(
            f"{_plain(text)}\n" for text in re.findall(r"<pre>(.*?)</pre>", one, re.DOTALL)
        )
        found.append(Crate(f"(std) {name}", number, licence[1] if licence else "", kept))
    return found


def _plain(markup: str) -> str:
    lines = html.unescape(re.sub(r"<[^>]+>", "", markup)).splitlines()
    text = "\n".join(line.rstrip() for line in lines)
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n")


def page(crates: list[Crate]) -> str:
    """Return the file: a list of the packages, then each text with the names it belongs to."""
    parts = [HEAD, *(f"* {one}\n" for one in crates)]
    owners: dict[str, list[str]] = {}
    for one in crates:
        for text in dict.fromkeys(one.texts):
            owners.setdefault(text, []).append(one.name)
    for text, names in owners.items():
        parts += ["\n", "-" * 80, f"\n{', '.join(names)}\n", "-" * 80, f"\n\n{text}"]
    return HEAD + "\n" + "".join(parts[1:])


def listed(text: str) -> set[tuple[str, str]]:
    """Return name and version of the crates that a file lists, without the standard library."""
    found = re.findall(r"^\* ([\w-]+) (\S+) \(", text, re.MULTILINE)
    return {(name, version) for name, version in found}


def differences(found: list[dict[str, Any]]) -> list[str]:
    """Return a line for each crate that is linked or listed, but not both."""
    wanted = {(one["name"], one["version"]) for one in found}
    stated = listed(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else set()
    return [
        f"{name} {version}: {'not listed' if (name, version) in wanted else 'not linked'}"
        for name, version in sorted(wanted ^ stated)
    ]


def _metadata(cargo: Cargo) -> Iterator[dict[str, Any]]:
    for target in TARGETS:
        command = [str(cargo.path), "metadata", "--locked", "--offline", "--format-version", "1"]
        done = subprocess.run(
            [*command, "--filter-platform", target],
            cwd=WORKSPACE,
            check=False,
            timeout=CARGO_S_MAX,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise Unavailable(f"cargo metadata failed: {done.stderr.strip()[-300:]}")
        yield json.loads(done.stdout)


def packages(cargo: Cargo) -> list[dict[str, Any]]:
    """Return what is linked for any target, by name. Raises Unavailable."""
    found = {one["id"]: one for metadata in _metadata(cargo) for one in linked(metadata)}
    return sorted(found.values(), key=lambda one: (one["name"], one["version"]))


def _library(cargo: Cargo) -> list[Crate]:
    rustc = cargo.path.with_name("rustc")
    command = [str(rustc), "--print", "sysroot"]
    try:
        done = subprocess.run(
            command, cwd=WORKSPACE, check=True, timeout=CARGO_S_MAX, capture_output=True, text=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable(f"rustc does not tell where it lies: {error}") from None
    return library(Path(done.stdout.strip()) / "share" / "doc" / "rust", cargo.version)


def main() -> int:
    """Write the file, or compare it; return the exit code."""
    parser = argparse.ArgumentParser(description="Gather licences of linked crates.")
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    try:
        cargo = find()
        fetch(cargo, ROOT / ".venv")
        found = packages(cargo)
        if options.check:
            return _print(differences(found))
        crates = [*map(crate_of, found), *_library(cargo)]
    except (Unavailable, Unclear) as reason:
        print(f"No licences were gathered: {reason}.")
        return 1
    PAGE.write_text(page(crates), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)}: {len(crates)} packages")
    return 0


def _print(lines: list[str]) -> int:
    print("\n".join(lines), end="\n" if lines else "")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
