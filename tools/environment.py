"""Make the virtual environment that a make target needs: locked packages and the checkout.

    python tools/environment.py --at .venv build cli test

Each name is a file `requirements/NAME.txt`, installed with `--require-hashes`; the checkout
is installed beside it in editable form, without dependencies. A stamp per set remembers the
lock it was made from, so that a second run costs nothing.

Exit codes: 0 done, 3 no `venv` or `ensurepip` here, 4 the packages could not be fetched,
130 ended by Ctrl-C.
The printed lines address the person who typed `make`.
"""

import argparse
import hashlib
import importlib.util
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NO_VENV = 3
NO_PACKAGES = 4
INTERRUPTED = 130  # 128 and the number of SIGINT, as shells have it


def main() -> int:
    """Install the sets named on the command line; return the exit code."""
    parser = argparse.ArgumentParser(description="Make a virtual environment for a make target.")
    parser.add_argument("--at", type=Path, default=ROOT / ".venv", help="where it lies")
    parser.add_argument("--patience-s", type=int, default=600, help="time for all downloads")
    parser.add_argument("--timeout-s", type=int, default=30, help="time for one connection")
    parser.add_argument("--retries", type=int, default=3, help="how often a download is repeated")
    parser.add_argument("--brief", action="store_true", help="one line says what went wrong")
    parser.add_argument("sets", nargs="+", metavar="SET", help="requirements/SET.txt")
    options = parser.parse_args()
    missing = _missing_modules()
    if missing:
        print(
            f"{sys.executable} lacks {missing}: install the package python3-venv "
            "(Debian, Ubuntu: apt install python3-venv)."
        )
        return NO_VENV
    try:
        for name in options.sets:
            _install(name, options)
        _install_checkout(options)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        reason = "took too long" if isinstance(error, subprocess.TimeoutExpired) else "failed"
        print(f"Fetching packages {reason}: the package index may be out of reach.")
        return NO_PACKAGES
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _missing_modules() -> str:
    # Debian ships `venv` without `ensurepip` until python3-venv is installed.
    names = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    return " and ".join(names)


def _install(name: str, options: argparse.Namespace) -> None:
    lock = ROOT / "requirements" / f"{name}.txt"
    stamp = options.at / f".installed-{name}"
    if _is_fresh(stamp, lock):
        return
    _make_venv(options.at)
    _pip(options, "--require-hashes", "--requirement", str(lock))
    stamp.write_text(_digest(lock), encoding="ascii")


def _install_checkout(options: argparse.Namespace) -> None:
    stamp = options.at / ".installed-urds"
    project = ROOT / "pyproject.toml"
    if _is_fresh(stamp, project):
        return
    # The build backend comes from requirements/build.txt: isolation would fetch it unlocked.
    _pip(options, "--no-deps", "--no-build-isolation", "--no-index", "--editable", str(ROOT))
    stamp.write_text(_digest(project), encoding="ascii")


def _make_venv(at: Path) -> None:
    if not (at / "bin" / "pip").exists():
        subprocess.run([sys.executable, "-m", "venv", str(at)], check=True)


def _pip(options: argparse.Namespace, *arguments: str) -> None:
    """Run `pip install`. Raises CalledProcessError or TimeoutExpired."""
    command = [str(options.at / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    command += ["--disable-pip-version-check", "--no-input", "--retries", str(options.retries)]
    command += ["--timeout", str(options.timeout_s), *arguments]
    errors = subprocess.DEVNULL if options.brief else None
    subprocess.run(
        command, check=True, timeout=options.patience_s, stdin=subprocess.DEVNULL, stderr=errors
    )


def _is_fresh(stamp: Path, source: Path) -> bool:
    return stamp.exists() and stamp.read_text(encoding="ascii") == _digest(source)


def _digest(path: Path) -> str:
    # The interpreter belongs to it: another PYTHON needs its own wheels.
    version = f"{sys.version_info.major}.{sys.version_info.minor}".encode()
    return hashlib.sha256(path.read_bytes() + version).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
