"""Both stream cores of rsockets under the same random calls, words and writes.

More cases: `stream_cases`. The second half breaks a rule of Python's core: some case has to show
it, or the cases are blind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from tests.parity.stream_cases import Run
from tests.rsocket.stream.stream_pair import Host
from tests.support.native_stream import NativeCore
from urds.rsocket.core.stream import receive_ring, sending
from urds.rsocket.core.stream.core import StreamCore, StreamLifecycle
from urds.rsocket.core.stream.receive_ring import ReceiveRing
from urds.rsocket.core.stream.records import PostKind, StreamSettings
from urds.rsocket.core.stream.tables import Iomap, RemoteSgl

native: Any = pytest.importorskip("urds_native", reason="the compiled core is not built")

CASES, SHARES = 8_000, 4
CASES_OF_ALL: Final = 20_000  # in which everything has to happen that is listed below
CASES_MAX: Final = 100_000  # until a broken rule has to be seen
SEEDS_PER_SHARE: Final = 1000  # more than a share makes worlds
MUST_HAPPEN: Final = {
    *(kind.name for kind in PostKind),
    *("OSError", "RemoteProtocolError"),
    *("receive_ring.expect", "receive_ring.end_expect", "handle_disconnected", "write_mapped"),
}


def test_all_kinds_of_random_calls_and_words_come_out_alike() -> None:
    run = Run()
    run.until(CASES_OF_ALL, 0)
    assert MUST_HAPPEN - run.seen.keys() == set()


@pytest.mark.parametrize("share", range(1, SHARES + 1))
def test_random_calls_and_words_come_out_alike(share: int) -> None:
    Run().until(CASES, share * SEEDS_PER_SHARE)


def test_the_emulation_of_librdmacm_is_python_alone() -> None:
    with pytest.raises(ValueError, match="emulated in Python"):
        NativeCore(StreamSettings(is_urds=False), Host(1 << 36))


def test_memory_that_is_too_small_is_refused() -> None:
    settings = StreamSettings()
    byte_count = native.StreamCore.region_bytes(settings) - 1
    with pytest.raises(ValueError, match="less memory"):
        native.StreamCore(settings, bytearray(byte_count), 1 << 36, 1)


# -- broken rules

BROKEN: Final[dict[str, Callable[[pytest.MonkeyPatch], None]]] = {
    "chunks are equal": lambda patch: patch.setattr(sending, "chunk_of", min),
    "small bytes gather": lambda patch: patch.setattr(sending, "UNFINISHED_MAX", 2),
    "blocks double": lambda patch: patch.setattr(sending, "BLOCK_BYTES_MAX", 1 << 13),
    "edges grow the ring": lambda patch: patch.setattr(receive_ring, "EDGES_MIN", 5),
    "space is told in eighths": lambda patch: patch.setattr(receive_ring, "_PARTS_FINE", 4),
    "a short rest is copied": lambda patch: patch.setattr(
        receive_ring, "DIRECT_BYTES_MIN", 1 << 13
    ),
    "updates give credits back": lambda patch: patch.setattr(
        ReceiveRing, "count_update", lambda self: None
    ),
    "a mapping is checked": lambda patch: patch.setattr(
        Iomap, "take_update", lambda self, slot: None
    ),
    "neighbours are one space": lambda patch: patch.setattr(
        RemoteSgl,
        "_append",
        lambda self, entry: self.spaces.append(
            sending.RemoteRange(entry.address, entry.key, entry.length)
        ),
    ),
    "nothing follows SHUTDOWN": lambda patch: patch.setattr(
        StreamLifecycle, "check_data", lambda self: None
    ),
    "the last word ends reading": lambda patch: patch.setattr(
        StreamCore, "_take_control", lambda self, control: None
    ),
}  # fmt: skip


# Worlds that see a rule's absence, where the first ones do not.
SEES: Final = {"blocks double": 228, "edges grow the ring": 66, "nothing follows SHUTDOWN": 46}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_is_seen(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BROKEN[rule](monkeypatch)
    with pytest.raises(AssertionError, match="seed"):
        Run().until(CASES_MAX, SEES.get(rule, 0))
