"""What pip calls to build `urds-native`: the libraries for programs in C first, then maturin.

maturin builds one crate, the module, and puts beside it what lies in `urds_native.data`. This has
cargo build the other two crates and puts `liburds_preload.so`, `liburds.so` and `urds.h` there,
so a wheel from a source distribution has them, and `urds run` works. Needs Rust, as maturin does.

    python native/backend/native_backend.py [OPTION...]    the libraries alone; options for cargo

ends with 0, or with 1 and a reason. `make native` and `make wheels` call that.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

WORKSPACE = Path(__file__).resolve().parents[1]
DATA = WORKSPACE / "urds_native.data"
PACKAGE = DATA / "platlib" / "urds_native"
HEADER = WORKSPACE / "crates" / "liburds" / "include" / "urds.h"
LIBRARIES = ("liburds_preload.so", "liburds.so")
CRATES = ("urds-preload", "urds-liburds")

Settings = Mapping[str, str | list[str]] | None


class NotBuilt(SystemExit):
    """The libraries could not be built; the text says why. As SystemExit it ends pip's build."""


def build_wheel(wheel_directory: str, config_settings: Settings = None,
                metadata_directory: str | None = None) -> str:  # fmt: skip
    """Build the libraries, then the wheel; return its name. Raises NotBuilt."""
    import maturin

    build_libraries(_target(maturin.get_maturin_pep517_args(config_settings)))
    return str(maturin.build_wheel(wheel_directory, config_settings, metadata_directory))


def build_editable(wheel_directory: str, config_settings: Settings = None,
                   metadata_directory: str | None = None) -> str:  # fmt: skip
    """Build the libraries, then the wheel of an editable installation. Raises NotBuilt."""
    import maturin

    build_libraries(_target(maturin.get_maturin_pep517_args(config_settings)))
    return str(maturin.build_editable(wheel_directory, config_settings, metadata_directory))


def __getattr__(name: str) -> object:
    """Return maturin's own for all other hooks."""
    if name.startswith("_"):
        raise AttributeError(name)
    import maturin

    return getattr(maturin, name)


def build_libraries(options: Sequence[str] = ()) -> None:
    """Have the libraries and their header where maturin takes them from. Raises NotBuilt."""
    cargo = os.environ.get("CARGO") or shutil.which("cargo") or _fetched_cargo()
    command = [cargo, "build", "--locked", "--profile", "shim", *options]
    command += [word for crate in CRATES for word in ("-p", crate)]
    command += ["--message-format", "json-render-diagnostics"]
    done = subprocess.run(
        command,
        cwd=WORKSPACE,
        env={**os.environ, **_variables()},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=False,
        text=True,
    )
    if done.returncode != 0:
        raise NotBuilt(f"{' '.join(LIBRARIES)}: {cargo} build: exit code {done.returncode}")
    built = {path.name: path for path in _artifacts(done.stdout)}
    if missing := [name for name in LIBRARIES if name not in built]:
        raise NotBuilt(f"{missing[0]}: this Rust makes no shared library for its target")
    shutil.rmtree(DATA, ignore_errors=True)
    PACKAGE.mkdir(parents=True)
    for name in LIBRARIES:
        shutil.copyfile(built[name], PACKAGE / name)
    shutil.copyfile(HEADER, PACKAGE / HEADER.name)


def _artifacts(said: str) -> Iterator[Path]:
    """Return the files that cargo's messages name, wherever its settings had it put them."""
    for line in said.splitlines():
        for name in json.loads(line).get("filenames", ()):
            yield Path(name)


def _target(options: Sequence[str]) -> list[str]:
    """Return what the options for maturin say of the target, for cargo."""
    words = iter(options)
    for word in words:
        if word == "--target":
            return [word, next(words, "")]
        if word.startswith("--target="):
            return [word]
    return []


def _variables() -> dict[str, str]:
    """Return the variables that cargo needs: on musl Rust links statically otherwise."""
    if "musl" not in (sysconfig.get_config_var("SOABI") or ""):
        return {}
    flags = f"{os.environ.get('RUSTFLAGS', '')} -C target-feature=-crt-static"
    return {"RUSTFLAGS": flags.strip()}


def _fetched_cargo() -> str:
    """Return the cargo that is fetched where there is none, as maturin does. Raises NotBuilt.

    The variables of this process have it too, so it is fetched once.
    """
    try:
        from puccinialin import setup_rust
    except ImportError:
        raise NotBuilt("no cargo here: urds-native needs Rust (https://rustup.rs)") from None
    os.environ.update(setup_rust())
    return shutil.which("cargo") or "cargo"


if __name__ == "__main__":
    build_libraries(sys.argv[1:])
