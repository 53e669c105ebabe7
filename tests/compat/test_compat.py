"""The runner of `make compat`: what it makes of hosts that work, err, hang, lose or crash.

Both builds are the sources under test here; a host that does wrong is a program of the test, put in
place of `role.py`.
"""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.compat import __main__ as compat
from tests.compat.rows import (
    CARRIERS,
    MESSAGES,
    NATIVE,
    PYTHON,
    ROLE,
    Build,
    Result,
    Row,
    Verdict,
    rows,
    run,
    tree_of,
)
from tools import release as releases
from tools.release import Refused, Release

ROOT = Path(__file__).resolve().parents[2]
TCP, SHARED_MEMORY = CARRIERS[:2]
LIMIT_S = 60.0
ON_TCP = Row(TCP, PYTHON, PYTHON, release_connects=True)
A_RELEASE = Release("0.0.1", "0123456789" * 4, "2026-01-01", {})
# Each is `role.py` with one thing done wrong.
WRONG = {
    "loses": ("        for number in range(single, messages):\n            self._send(",
              "        for number in range(single, messages - 1):\n            self._send("),
    "damages": (".digest(length)", ".digest(length)[::-1]"),
    "doubles": ("        self.socket.sendto(", "        if number == 40:\n"
                "            self.socket.sendto(content(self.local, exchange, 40, length),"
                " (self.peer, PORT))\n        self.socket.sendto("),
    "hangs": ("            host.socket.settimeout(", "            import time\n"
              "            time.sleep(600)\n            host.socket.settimeout("),
    "crashes": ("    def _send(", "    def _send(self, *_):\n        raise RuntimeError('bug')\n\n"
                "    def _send_unused("),
    "warns": ("    try:\n        host =", "    print('Traceback (most recent call last):',"
              " file=sys.stderr)\n    try:\n        host ="),
    "refuses": ("    def _send(", "    def _send(self, *_):\n"
                "        raise OSError(93, 'version 7 is not spoken here')\n\n"
                "    def _send_unused("),
}  # fmt: skip


@pytest.fixture(scope="module")
def tree() -> Build:
    return tree_of(ROOT)


def wrong_host(tree: Build, folder: Path, what: str) -> Build:
    """Return a build whose host does one thing wrong."""
    before, after = WRONG[what]
    text = ROLE.read_text()
    assert text.count(before) == 1, f"role.py has no longer what {what!r} replaces"
    role = folder / "role.py"
    role.write_text(text.replace(before, after))
    return replace(tree, label=what, role=role)


@pytest.mark.parametrize("release_connects", [True, False])
def test_hosts_of_the_same_sources_work(tree: Build, release_connects: bool) -> None:
    row = replace(ON_TCP, release_connects=release_connects)
    verdict = run(row, tree, tree, limit_s=LIMIT_S)
    assert verdict.result is Result.WORKS, verdict.detail
    assert verdict.transports == ["tcp", "tcp"]
    assert verdict.detail.startswith(f"{3 * MESSAGES} messages each way")


def test_a_carrier_that_a_plane_lacks_falls_back(tree: Build) -> None:
    row = Row(SHARED_MEMORY, PYTHON, PYTHON, release_connects=True)
    verdict = run(row, tree, tree, limit_s=LIMIT_S)
    assert verdict.result is Result.FALLS_BACK, verdict.detail
    assert verdict.transports == ["tcp", "tcp"]


@pytest.mark.parametrize(
    ("what", "result", "detail"),
    [
        ("loses", Result.FAILED, "silence instead of exchanged"),
        ("damages", Result.FAILED, "message 1 of exchange 0 is another one"),
        ("doubles", Result.FAILED, "a message came twice"),
        ("hangs", Result.FAILED, "hangs: no answer|silence instead of exchanged"),
        ("crashes", Result.FAILED, "RuntimeError: bug"),
        ("warns", Result.FAILED, "a traceback"),
        ("refuses", Result.ERROR, "version 7 is not spoken here"),
    ],
)
def test_what_goes_wrong_is_told(
    tree: Build, tmp_path: Path, what: str, result: Result, detail: str
) -> None:
    wrong = wrong_host(tree, tmp_path, what)
    limit_s = 12 if what in ("loses", "hangs") else LIMIT_S
    verdict = run(ON_TCP, wrong, tree, limit_s=limit_s)
    assert verdict.result is result, verdict.detail
    if detail.partition("|")[0] not in verdict.detail:
        assert detail.partition("|")[2] in verdict.detail


def test_a_host_with_the_sources_of_another_place_is_none(tree: Build, tmp_path: Path) -> None:
    stray = replace(tree, sources=tmp_path)
    verdict = run(ON_TCP, stray, tree, limit_s=LIMIT_S)
    assert verdict.result is Result.FAILED
    assert "runs the urds of another place" in verdict.detail


def test_rows_cover_each_carrier_plane_and_direction(tree: Build) -> None:
    both = replace(tree, planes=(PYTHON, NATIVE))
    found = {(one.carrier.name, one.release_plane, one.tree_plane) for one in rows(both, both)}
    assert len(rows(both, both)) == 2 * len(found) == 22
    assert ("shared memory", PYTHON, PYTHON) not in found
    assert {name for name, old, new in found if old == new == PYTHON} == {
        "tcp", "RDMA shm0", "RDMA tcp0"
    }  # fmt: skip
    assert {one.carrier.name for one in rows(tree, tree)} == {"tcp", "RDMA shm0", "RDMA tcp0"}


def test_a_build_without_a_plane_is_told(tree: Build) -> None:
    assert tree.has(PYTHON)
    assert not replace(tree, python="/nonexistent/python").has(PYTHON)
    with pytest.raises(compat.NotBuilt, match=r"no socket of tree binds"):
        compat.with_planes(replace(tree, python="/nonexistent/python"))


def test_a_commit_that_is_not_here_is_one_line_and_a_code_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compat, "recorded", lambda: [A_RELEASE])
    assert compat.main(["--at", str(tmp_path)]) == compat.NO_COMMIT == 3
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert "of 0.0.1, 012345678901, is not in this clone" in lines[0]


def test_a_release_that_does_not_build_is_another_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has no tools/environment.py, so nothing of the checkout stands in for it."""
    (tmp_path / A_RELEASE.commit).mkdir()
    monkeypatch.setattr(compat, "recorded", lambda: [A_RELEASE])
    assert compat.main(["--at", str(tmp_path)]) == compat.NOT_BUILT
    assert "0.0.1 cannot be compared: environment" in capsys.readouterr().out


def test_an_unknown_release_is_told_with_those_that_are() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.compat", "--release", "9.9.9"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (compat.NOT_BUILT, "")
    assert "'9.9.9'" in done.stdout
    assert "0.1.0" in done.stdout


def run_with(
    monkeypatch: pytest.MonkeyPatch, tree: Build, tmp_path: Path, result: Result, *options: str
) -> int:
    """Run the command with builds that are there and rows of one result."""
    monkeypatch.setattr(compat, "recorded", lambda: [A_RELEASE])
    monkeypatch.setattr(compat, "unpack", lambda *_: tmp_path)
    monkeypatch.setattr(compat, "build", lambda *_, **__: replace(tree, label="0.0.1"))
    monkeypatch.setattr(compat, "with_planes", lambda one: one)
    monkeypatch.setattr(
        compat,
        "run",
        lambda row, *_, **__: Verdict(row.carrier.name, PYTHON, PYTHON, "tree", result),
    )
    return compat.main(["--at", str(tmp_path), *options])


@pytest.mark.parametrize(
    ("result", "code"),
    [(Result.WORKS, 0), (Result.FALLS_BACK, 0), (Result.ERROR, 0), (Result.FAILED, 1)],
)
def test_only_a_failed_row_is_a_failure(
    tree: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], result: Result, code: int,
) -> None:  # fmt: skip
    assert run_with(monkeypatch, tree, tmp_path, result, "--only", "tcp") == code
    text = capsys.readouterr().out
    assert f"carrier    0.0.1   tree    connects  {'result'.ljust(len(result))}  s" in text
    assert f"4 {result}" in text


def test_json_is_one_document(
    tree: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_with(monkeypatch, tree, tmp_path, Result.FAILED, "--json") == 1
    document = json.loads(capsys.readouterr().out)
    assert document["release"]["version"] == "0.0.1"
    assert document["failed"] == len(document["rows"]) == 6
    assert document["rows"][0]["result"] == "FAILED"


def test_ctrl_c_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(compat, "unpack", interrupt)
    assert compat.main(["--at", str(tmp_path)]) == 130
    assert capsys.readouterr().out.startswith("\nInterrupted")


# -- records


def test_recorded_releases_are_of_this_history() -> None:
    """A clone that lacks the history (shallow, or an unpacked source) cannot tell."""
    for one in releases.recorded():
        command = ["git", "-C", str(ROOT), "merge-base", "--is-ancestor", one.commit, "HEAD"]
        code = subprocess.run(command, check=False, capture_output=True).returncode
        if code == 128:
            pytest.skip("no history here")
        assert code == 0, one.version


@pytest.mark.parametrize("commit", ["7e77693", "HEAD", "g" * 40])
def test_a_short_hash_is_refused(tmp_path: Path, commit: str) -> None:
    path = tmp_path / "releases.toml"
    path.write_text(f'[[release]]\nversion = "1"\ncommit = "{commit}"\ndate = 2026-01-01\n')
    with pytest.raises(Refused, match="no full hash"):
        releases.recorded(path)


@pytest.mark.parametrize(("version", "cargo"), [("1.2.3", "1.2.3"), ("1.2.3rc1", "1.2.3-rc1"),
                                                ("1.2.3.dev0", "1.2.3-dev0")])  # fmt: skip
def test_a_version_moves_in_every_file(tmp_path: Path, version: str, cargo: str) -> None:
    for name in ("pyproject.toml", "native/pyproject.toml", "native/Cargo.toml", *releases.LOCKS):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((ROOT / name).read_bytes())
    assert releases.move(version, tmp_path)
    text = (tmp_path / "pyproject.toml").read_text()
    assert releases.stated(text) == version
    assert f'"urds-native=={version}"' in text
    assert releases.stated((tmp_path / "native/pyproject.toml").read_text()) == version
    assert f'\nversion = "{cargo}"\n' in (tmp_path / "native/Cargo.toml").read_text()
    assert (tmp_path / "native/Cargo.lock").read_text().count(f'version = "{cargo}"') >= 3


def test_what_is_no_version_moves_nothing() -> None:
    with pytest.raises(Refused, match="no version"):
        releases.move("v1")


def test_a_record_tells_each_version_on_the_wire() -> None:
    assert releases.recorded()[-1].wire.keys() == releases.wire().keys()
