"""`make native` on machines that lack something: one line says what, and Python carries all."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE

import pytest

from tools import cargo, native, summary
from tools.summary import Counts

REPORT = """<testsuites><testsuite name="urds-path">
<testcase classname="urds-path" name="a"/>
<testcase classname="urds-path" name="b"><failure/></testcase>
</testsuite></testsuites>"""


def put_cargo(folder: Path, script: str) -> Path:
    """Write a cargo that is a shell script."""
    folder.mkdir(exist_ok=True, parents=True)
    path = folder / "cargo"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have a machine without cargo, and return the folder where one may be put."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("CARGO", "CARGO_HOME", "TEST_NATIVE_REQUIRED"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "bin"


@pytest.mark.parametrize(
    ("arguments", "required", "wanted"),
    [((), False, 1), (("--optional",), False, 0), (("--optional",), True, 1)],
)
def test_without_cargo_one_line_says_so(
    arguments: tuple[str, ...],
    required: bool,
    wanted: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if required:
        monkeypatch.setenv("TEST_NATIVE_REQUIRED", "1")
    monkeypatch.setattr("sys.argv", ["native", "build", "--at", str(tmp_path / "venv"), *arguments])
    assert native.main() == wanted
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert "no cargo here" in lines[0]
    assert "1.88" in lines[0]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'cargo 1.87.2 (abc 2025-05-01)'", "cargo 1.87.2 is too old"),
        ("echo 'no toolchain is installed' >&2; exit 1", "does not tell its version"),
    ],
)
def test_a_cargo_that_cannot_build_it_is_none(script: str, reason: str, bare: Path) -> None:
    put_cargo(bare, script)
    with pytest.raises(cargo.Unavailable, match=reason):
        cargo.find()


@pytest.mark.parametrize("version", ["1.88.0", "1.95.0-nightly", "2.0.0"])
def test_a_cargo_outside_the_path_is_found(version: str, tmp_path: Path) -> None:
    """It is put into ~/.cargo/bin, which a service's PATH often lacks."""
    (tmp_path / ".cargo").mkdir()
    path = put_cargo(tmp_path / ".cargo" / "bin", f"echo 'cargo {version} (abc)'")
    assert cargo.find() == cargo.Cargo(path, version)


def test_crates_that_are_here_need_no_registry(bare: Path, tmp_path: Path) -> None:
    script = f'echo "$@" >> {tmp_path}/calls'
    cargo.fetch(cargo.Cargo(put_cargo(bare, script), "1.95.0"), tmp_path)
    assert (tmp_path / "calls").read_text() == "fetch --locked --offline\n"


def test_a_registry_that_refuses_is_named_with_its_reason(bare: Path, tmp_path: Path) -> None:
    script = 'echo "error: no" >&2; echo "  [7] Could not connect" >&2; exit 101'
    with pytest.raises(cargo.Unavailable, match=r"fetched: \[7\] Could not connect$"):
        cargo.fetch(cargo.Cargo(put_cargo(bare, script), "1.95.0"), tmp_path)


def test_a_silent_registry_is_given_up(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow one that says what it brings is waited for."""
    monkeypatch.setattr(cargo, "SILENCE_S_MAX", 1)
    script = """case "$*" in *--offline*) exit 101;; esac
for crate in a b c d; do echo "  Downloaded $crate" >&2; /bin/sleep 0.5; done
exec /bin/sleep 60"""
    started_s = time.monotonic()
    with pytest.raises(cargo.Unavailable, match="does not answer"):
        cargo.fetch(cargo.Cargo(put_cargo(bare, script), "1.95.0"), tmp_path)
    assert 2 <= time.monotonic() - started_s < 20


def test_a_cargo_that_is_set_offline_is_told_so(bare: Path, tmp_path: Path) -> None:
    """Its own last line advises an option that was not given."""
    script = """echo "error: no matching package named libc found" >&2
echo "As a reminder, you're using offline mode (--offline), retry without" >&2; exit 101"""
    with pytest.raises(cargo.Unavailable, match=r"cargo is set offline, and its cache lacks some$"):
        cargo.fetch(cargo.Cargo(put_cargo(bare, script), "1.95.0"), tmp_path)


def test_patience_with_a_registry_is_below_15_seconds() -> None:
    assert cargo.SILENCE_S_MAX < 15


def test_an_environment_named_from_here_is_found_by_tools_that_run_elsewhere(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`make bench` names `.venv-bench`, and maturin runs in `native/`."""
    put_cargo(bare, "echo cargo 1.95.0")
    venv = tmp_path / "named"
    for name in ("maturin", "python"):
        put_cargo(venv / "bin", "").rename(venv / "bin" / name)
    (tmp_path / "backend.py").touch()
    monkeypatch.setattr(native, "BACKEND", tmp_path / "backend.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(native, "_install_maturin", lambda _: None)
    monkeypatch.setattr("sys.argv", ["native", "build", "--at", "named"])
    assert native.main() == 0, capsys.readouterr().out
    assert (venv / native.STAMP).exists()
    assert native.main() == 0
    assert capsys.readouterr().out.endswith("urds_native of these sources is in named.\n")


def test_a_module_of_other_sources_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources, venv = tmp_path / "native", tmp_path / "venv"
    for folder in (sources / "src", sources / "target", venv):
        folder.mkdir(parents=True)
    (sources / "src" / "lib.rs").write_text("one")
    monkeypatch.setattr(native, "WORKSPACE", sources)
    first = native.digest(venv)
    (sources / "target" / "made.rs").write_text("by the build")
    assert native.digest(venv) == first
    (sources / "src" / "lib.rs").write_text("two")
    second = native.digest(venv)
    (venv / "pyvenv.cfg").write_text("version = 3.14.0")
    assert len({first, second, native.digest(venv)}) == 3


def test_nextest_writes_the_report(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A report of an earlier run is no report of this one."""
    report = tmp_path / "native" / "target" / "nextest" / "default" / "rust.xml"
    report.parent.mkdir(parents=True)
    report.write_text("of an earlier run")
    script = f"""case "$*" in --version) echo cargo 1.95.0;; "nextest run "*)
[ -e {report} ] || echo '{REPORT}' > {report}; echo "FAIL urds-path b: $*"; exit 100;; esac"""
    put_cargo(bare, script)
    monkeypatch.setattr(native, "WORKSPACE", tmp_path / "native")
    monkeypatch.setattr(cargo, "WORKSPACE", tmp_path / "native")
    junit = tmp_path / "rust.xml"
    monkeypatch.setattr("sys.argv", ["native", "test", "--junit", str(junit)])
    assert native.main() == 1
    assert summary.read(junit) == Counts(passed=1, failed=1)
    said = capsys.readouterr().out
    assert f"FAIL urds-path b: nextest run --config-file {native.NEXTEST} --locked" in said


def test_without_nextest_cargo_test_is_one_case(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put_cargo(
        bare,
        "case $1 in --version) echo cargo 1.95.0;; nextest) exit 101;; "
        "test) echo 'test result: ok. 3 passed';; esac",
    )
    junit = tmp_path / "rust.xml"
    monkeypatch.setattr("sys.argv", ["native", "test", "--junit", str(junit)])
    assert native.main() == 0
    assert summary.read(junit) == Counts(passed=1)
    assert "3 passed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("models", "code", "wanted"),
    [
        ("echo 'test result: ok. 7 passed'", 0, "Testing every order of two threads"),
        ("echo 'a waiter sleeps for ever'; exit 101", 1, "a waiter sleeps for ever"),
    ],
)
def test_models_of_two_threads_run_with_the_crates(
    models: str,
    code: int,
    wanted: str,
    bare: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    put_cargo(
        bare,
        "case $* in --version) echo cargo 1.95.0;; nextest*) exit 101;; "
        f"*--manifest-path*loom/Cargo.toml) {models};; test*) echo 'test result: ok.';; esac",
    )
    monkeypatch.setattr(native, "REPORTS", tmp_path)
    monkeypatch.setattr(native, "ROOT", tmp_path)
    monkeypatch.setattr("sys.argv", ["native", "test", "--junit", str(tmp_path / "rust.xml")])
    assert native.main() == code
    assert wanted in capsys.readouterr().out


def test_without_the_crates_of_the_models_one_line_says_so(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put_cargo(
        bare,
        "case $* in --version) echo cargo 1.95.0;; nextest*) exit 101;; "
        "fetch*) case $PWD in */loom) echo 'no network' >&2; exit 101;; esac;; esac",
    )
    monkeypatch.setattr("sys.argv", ["native", "test", "--junit", str(tmp_path / "rust.xml")])
    assert native.main() == 0
    assert "Not run, every order of two threads" in capsys.readouterr().out


@pytest.mark.parametrize(("ends", "code"), [("true", 0), ("exit 101", 1)])
def test_targets_of_fuzzing_run_on_made_up_bytes(
    ends: str,
    code: int,
    bare: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    put_cargo(
        bare,
        "case $* in --version) echo cargo 1.95.0;; nextest*) exit 101;; "
        f"*--no-default-features*--manifest-path*fuzz/Cargo.toml) echo 'a finding'; {ends};; esac",
    )
    monkeypatch.setattr(native, "REPORTS", tmp_path)
    monkeypatch.setattr(native, "ROOT", tmp_path)
    monkeypatch.setattr("sys.argv", ["native", "test", "--junit", str(tmp_path / "rust.xml")])
    assert native.main() == code
    said = capsys.readouterr().out
    assert "Testing what peers say at random" in said
    assert ("a finding" in said) == bool(code)


def test_without_the_crates_of_the_targets_one_line_says_so(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put_cargo(
        bare,
        "case $* in --version) echo cargo 1.95.0;; nextest*) exit 101;; "
        "fetch*) case $PWD in */fuzz) echo 'no network' >&2; exit 101;; esac;; esac",
    )
    monkeypatch.setattr("sys.argv", ["native", "test", "--junit", str(tmp_path / "rust.xml")])
    assert native.main() == 0
    assert "Not run, what peers say at random" in capsys.readouterr().out


def test_a_program_that_dies_is_a_failure(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No test of it has a result then; what it said last stands in the file."""
    put_cargo(
        bare,
        "case $1 in --version) echo cargo 1.95.0;; nextest) exit 101;; "
        "test) echo killed by 11; exit 101;; esac",
    )
    junit = tmp_path / "rust.xml"
    monkeypatch.setattr("sys.argv", ["native", "test", "--junit", str(junit)])
    assert native.main() == 1
    assert summary.read(junit) == Counts(failed=1)
    assert "killed by 11" in junit.read_text()
    assert "killed by 11" in capsys.readouterr().out


def test_what_hangs_is_ended_with_all_it_started(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "TEST_S_MAX", 1)
    started = tmp_path / "started"
    put_cargo(
        bare,
        "case $1 in --version) echo cargo 1.95.0;; nextest) exit 101;; "
        f"test) /bin/sleep 60 & echo $! > {started}; wait;; esac",
    )
    junit = tmp_path / "rust.xml"
    monkeypatch.setattr("sys.argv", ["native", "test", "--junit", str(junit)])
    assert native.main() == 1
    assert "ended after 1 s" in junit.read_text()
    _wait_until(lambda: not _runs(started.read_text().strip()))


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_who_ends_a_build_ends_all_of_it(
    number: int, code: int, bare: Path, tmp_path: Path
) -> None:
    """As make does when a terminal is closed or Ctrl-C pressed; cargo has a session of its own."""
    started = tmp_path / "started"
    put_cargo(
        bare,
        "case $1 in --version) echo cargo 1.95.0;; nextest) exit 101;; "
        f"test) /bin/sleep 60 & echo $! > {tmp_path}/new; /bin/mv {tmp_path}/new {started}; wait;; "
        "esac",
    )
    command = [sys.executable, "-m", "tools.native", "test", "--junit", str(tmp_path / "rust.xml")]
    with subprocess.Popen(command, cwd=cargo.ROOT, stdout=PIPE, stderr=PIPE, text=True) as tool:
        _wait_until(started.exists)
        time.sleep(0.3)  # on a busy machine what was started runs before its starter does again
        tool.send_signal(number)
        out, err = tool.communicate(timeout=20)
    assert (tool.returncode, err) == (code, "")
    assert ("Interrupted: test of the compiled plane" in out) == (number == signal.SIGINT)
    _wait_until(lambda: not _runs(started.read_text().strip()))


def _wait_until(is_so: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < until_s
        time.sleep(0.05)


def _runs(process: str) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
