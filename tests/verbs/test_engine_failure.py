"""What a device does whose compiled engine has panicked: every call of the engine is EIO."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.verbs.shm_world import PATIENCE_NS, joined
from urds.verbs.engine.numbers import QPState, WCStatus

pytest.importorskip("urds_native")


class Failed:
    """An engine that refuses everything, as the compiled one after a panic."""

    def __getattr__(self, name: str) -> Any:
        if name in ("fed", "events", "progressed_ns"):  # words that no lock guards
            return 0
        return self._refuse

    def _refuse(self, *_: object, **__: object) -> None:
        raise OSError(errno.EIO, "a panic of the verbs engine, told on stderr")


def error_of(call: Callable[[], object]) -> int | None:
    try:
        call()
    except OSError as error:
        return error.errno
    return None


def test_peers_see_the_end_and_the_device_closes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from urds.verbs.providers.shm.native_adapter import NativeShmAdapter

    left, right = joined(tmp_path / "meet", opener=NativeShmAdapter)
    other, another = joined(tmp_path / "meet", opener=NativeShmAdapter)
    adapter: Any = left.adapter
    left_plane: list[object] = []
    monkeypatch.setattr(adapter.loop, "leave_plane", lambda: left_plane.append(adapter))
    right.receive(10)
    left.send(10)
    assert [wc.status for wc in (*right.poll(), *left.poll())] == [WCStatus.SUCCESS] * 2
    with adapter.lock:
        adapter.channel_engine = adapter.engine = adapter.outbox = adapter.peers._engine = Failed()
    assert right.adapter.wait(lambda: right.qp.state is QPState.ERR, PATIENCE_NS)
    assert len(right.adapter.peers) == 0
    assert left_plane, "a plane that serves the engine would ring for ever"
    assert error_of(lambda: adapter.completion_queue(4)) == errno.EIO
    assert error_of(lambda: adapter.wait(lambda: False, None)) == errno.EIO
    adapter.close()
    adapter.close()
    another.receive(10)
    other.send(10)
    assert [wc.status for wc in (*another.poll(), *other.poll())] == [WCStatus.SUCCESS] * 2
    for side in (right, other, another):
        side.close()
    assert "Traceback" not in capfd.readouterr().err
