"""Make faults on purpose, one after the other, and see the test that is there for it turn red.

`python -m tools.mutants [WORD ...]` takes those whose rule has all the words; exit code 1 if a test
stays green. The faults are data: `mutants.toml`. All happens in a copy of the sources below
`native/target/mutants`, which keeps what cargo has compiled: a minute for the first one.
"""

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
TABLE: Final = ROOT / "tools" / "mutants.toml"
TARGET: Final = ROOT / "native" / "target" / "mutants"
END_S: Final = 900.0  # of a test, its compilation included
KINDS: Final = ("package", "loom", "fuzz", "python", "module")


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault: a text to replace in a file, and the test that has to find it."""

    rule: str
    file: str
    find: str
    replace: str
    test: str
    package: str = ""  # a crate
    loom: str = ""  # a file of native/loom/tests
    fuzz: bool = False  # a target of native/fuzz, on made-up bytes
    python: bool = False
    module: bool = False  # as `python`, with the compiled module

    def apply(self, text: str) -> str:
        """Return the sources with the fault. Raises ValueError unless it has one place."""
        find, replace = self.find.removeprefix("\n"), self.replace.removeprefix("\n")
        if text.count(find) != 1:
            raise ValueError(f"{self.rule}: {text.count(find)} places in {self.file}")
        return text.replace(find, replace)


def mutants() -> list[Mutant]:
    """Return all faults. Raises TypeError for an unknown word."""
    found = tomllib.loads(TABLE.read_text("utf-8"))["mutant"]
    return [Mutant(**entry) for entry in found]


def copy_sources(tree: Path) -> None:
    """Bring the copy to the state of the working tree; what is equal keeps its time."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.splitlines()  # fmt: skip
    for name in listed:
        source, target = ROOT / name, tree / name
        if not source.is_file():
            target.unlink(missing_ok=True)
        elif not target.is_file() or source.read_bytes() != target.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


def command(mutant: Mutant, tree: Path) -> tuple[list[str], Path]:
    """Return what runs the test in the copy, and where."""
    cargo = shutil.which("cargo") or str(Path.home() / ".cargo" / "bin" / "cargo")
    if mutant.package:
        words = [cargo, "test", "--offline", "-q", "-p", mutant.package, "--", mutant.test]
        return words, tree / "native"
    if mutant.loom:
        words = [cargo, "test", "--offline", "-q", "--release", "--test", mutant.loom]
        return [*words, "--", "--exact", mutant.test], tree / "native" / "loom"
    if mutant.fuzz:
        words = [cargo, "test", "--offline", "-q", "--no-default-features", "--test", "made_up"]
        return [*words, "--", "--exact", mutant.test], tree / "native" / "fuzz"
    words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", mutant.test]
    return words, tree


def build_module(tree: Path) -> None:
    """Compile the module of the copy, and put it beside its sources. Raises CalledProcessError."""
    cargo = shutil.which("cargo") or str(Path.home() / ".cargo" / "bin" / "cargo")
    words = [cargo, "build", "--offline", "-q", "--profile", "quick", "-p", "urds-native"]
    subprocess.run(words, cwd=tree / "native", env=environment(tree), check=True)
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    built = TARGET / "quick" / "liburds_native.so"
    shutil.copyfile(built, tree / "src" / f"urds_native{suffix}")


def environment(tree: Path) -> dict[str, str]:
    """Return the environment of a test in the copy."""
    paths = f"{tree / 'src'}{os.pathsep}{tree}"
    own = {"CARGO_TARGET_DIR": str(TARGET), "PYTHONPATH": paths, "PROPTEST_RNG_SEED": "1"}
    return {**os.environ, **own, "PYO3_PYTHON": sys.executable}


def is_red(mutant: Mutant, tree: Path) -> bool:
    """Run the test; tell whether it failed, or did not end. Raises CalledProcessError."""
    if mutant.module:
        build_module(tree)
    words, folder = command(mutant, tree)
    with subprocess.Popen(
        words,
        cwd=folder,
        env=environment(tree),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return True
    if "error[E" in said or "could not compile" in said or " no tests ran" in said:
        raise ValueError(f"{mutant.rule}: {said[-2000:]}")
    ran = "passed" in said
    if not ran and process.returncode == 0:
        raise ValueError(f"{mutant.rule}: no test of this name: {mutant.test}")
    return process.returncode != 0


def main() -> int:
    """Make the faults that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="of the rule")
    words = parser.parse_args().words
    tree, green = TARGET / "tree", 0
    for mutant in mutants():
        if not all(word in mutant.rule for word in words):
            continue
        copy_sources(tree)
        target = tree / mutant.file
        target.write_text(mutant.apply(target.read_text("utf-8")), "utf-8")
        started_s = time.monotonic()
        try:
            found = is_red(mutant, tree)
        except (ValueError, subprocess.CalledProcessError) as error:
            print(error, file=sys.stderr)
            found = False
        green += not found
        took_s = time.monotonic() - started_s
        print(f"{'found' if found else 'NOT FOUND'} {took_s:4.0f} s  {mutant.rule}", flush=True)
    copy_sources(tree)
    return int(green > 0)


if __name__ == "__main__":
    sys.exit(main())
