"""Keys of the verbs engine: who gets which bytes, and who does not."""

import errno
from random import Random
from typing import Any

import pytest

from urds.verbs.engine.keys import (
    AccessError,
    KeyTable,
    MemoryWindow,
    Region,
    next_variant,
)
from urds.verbs.engine.numbers import AccessFlag, WCStatus
from urds.verbs.engine.packets import Syndrome

OURS, THEIRS = object(), object()
BASE = 0x1000
WRITE, READ = AccessFlag.REMOTE_WRITE, AccessFlag.REMOTE_READ
LOCAL = AccessFlag.LOCAL_WRITE
ALL = LOCAL | WRITE | READ | AccessFlag.REMOTE_ATOMIC | AccessFlag.MW_BIND
QPN = 17


def registered(
    access: AccessFlag = ALL, byte_count: int = 64, address: int = BASE
) -> tuple[KeyTable, Region, bytearray]:
    table, memory = KeyTable(), bytearray(byte_count)
    return table, table.register(OURS, memoryview(memory), address, access), memory


def bound(*, kind: int = 1, access: AccessFlag = WRITE) -> tuple[KeyTable, Region, MemoryWindow]:
    table, region, _ = registered()
    window = table.new_window(OURS, kind=kind)
    table.bind(window, region, BASE + 16, 8, access, qpn=QPN)
    return table, region, window


# -- regions


def test_a_slice_is_the_memory_itself() -> None:
    table, region, memory = registered()
    table.local(region.lkey, BASE + 4, 2, pd=OURS, write=True)[:] = b"hi"
    assert memory[4:6] == b"hi"
    view = table.remote(region.rkey, BASE + 62, 2, pd=OURS, access=WRITE, qpn=QPN)
    view[:] = b"yo"
    assert memory[62:] == b"yo"


@pytest.mark.parametrize(
    ("address", "length"),
    [
        (BASE - 1, 1),
        (BASE, 65),
        (BASE + 64, 1),
        (BASE + 63, 2),
        ((1 << 64) - 1, 2),
        (BASE - (1 << 64), 1),
        (BASE, 1 << 64),
        (BASE, -1),
    ],
)
def test_what_is_not_inside_is_refused(address: int, length: int) -> None:
    table, region, _ = registered()
    with pytest.raises(AccessError, match="outside 64 bytes at 0x1000") as local:
        table.local(region.lkey, address, length, pd=OURS, write=False)
    assert local.value.status is WCStatus.LOC_PROT_ERR
    with pytest.raises(AccessError, match="outside 64 bytes at 0x1000") as remote:
        table.remote(region.rkey, address, length, pd=OURS, access=READ, qpn=QPN)
    assert remote.value.syndrome is Syndrome.NAK_REMOTE_ACCESS


def test_the_last_byte_of_the_address_space_can_be_registered() -> None:
    top = (1 << 64) - 64
    table, region, _ = registered(address=top)
    assert table.local(region.lkey, top + 63, 1, pd=OURS, write=True).nbytes == 1
    with pytest.raises(OSError, match="64 bits") as refused:
        table.register(OURS, memoryview(bytearray(64)), top + 1, LOCAL)
    assert refused.value.errno == errno.EINVAL


@pytest.mark.parametrize(
    ("access", "wanted"),
    [(LOCAL, WRITE), (LOCAL | WRITE, READ), (LOCAL | READ, AccessFlag.REMOTE_ATOMIC)],
)
def test_a_right_that_was_not_given_is_refused(access: AccessFlag, wanted: AccessFlag) -> None:
    table, region, _ = registered(access)
    with pytest.raises(AccessError, match="without the right"):
        table.remote(region.rkey, BASE, 8, pd=OURS, access=wanted, qpn=QPN)


def test_local_reading_needs_no_right_and_local_writing_does() -> None:
    table, region, _ = registered(READ)
    assert table.local(region.lkey, BASE, 8, pd=OURS, write=False).nbytes == 8
    with pytest.raises(AccessError, match="LOCAL_WRITE"):
        table.local(region.lkey, BASE, 8, pd=OURS, write=True)


def test_another_domain_is_refused() -> None:
    table, region, _ = registered()
    with pytest.raises(AccessError, match="another protection domain"):
        table.local(region.lkey, BASE, 8, pd=THEIRS, write=False)
    with pytest.raises(AccessError, match="another protection domain"):
        table.remote(region.rkey, BASE, 8, pd=THEIRS, access=READ, qpn=QPN)


def test_no_bytes_need_no_key() -> None:
    """And nothing can be written there."""
    table = KeyTable()
    table.local(0, 0, 0, pd=OURS, write=True)[:] = b""
    table.remote(99, 5, 0, pd=OURS, access=WRITE, qpn=QPN)[:] = b""


def test_an_unknown_key_is_refused() -> None:
    table, region, _ = registered()
    for key in (0, region.lkey + 1, region.lkey + 256, 1 << 40, -1):
        with pytest.raises(AccessError, match="not valid"):
            table.local(key, BASE, 1, pd=OURS, write=False)


@pytest.mark.parametrize(
    ("access", "match"), [(WRITE, "need LOCAL_WRITE"), (AccessFlag(32), "known are 0x1f")]
)
def test_access_that_cannot_be_is_refused(access: AccessFlag, match: str) -> None:
    with pytest.raises(OSError, match=match) as refused:
        KeyTable().register(OURS, memoryview(bytearray(8)), BASE, access)
    assert refused.value.errno == errno.EINVAL


def test_hints_are_ignored() -> None:
    _, region, _ = registered(LOCAL | AccessFlag(1 << 20))
    assert region.access is LOCAL


def test_memory_that_cannot_be_written_gets_no_right_to_write() -> None:
    with pytest.raises(OSError, match="cannot be written"):
        KeyTable().register(OURS, memoryview(b"fixed"), BASE, LOCAL)


def test_a_stale_key_fails_and_its_index_gets_the_next_variant() -> None:
    table = KeyTable(regions_max=1)
    memory = memoryview(bytearray(8))
    first = table.register(OURS, memory, BASE, LOCAL)
    old_key = first.lkey
    table.deregister(first)
    second = table.register(OURS, memory, BASE, LOCAL)
    assert second.lkey == next_variant(old_key)
    with pytest.raises(AccessError):
        table.local(old_key, BASE, 8, pd=OURS, write=False)
    with pytest.raises(OSError, match="all 1 keys") as full:
        table.register(OURS, memory, BASE, LOCAL)
    assert full.value.errno == errno.ENOMEM


def test_fresh_indices_come_before_freed_ones() -> None:
    table, region, _ = registered()
    table.deregister(region)
    again = table.register(OURS, memoryview(bytearray(8)), BASE, LOCAL)
    assert again.lkey >> 8 != region.lkey >> 8


def test_keys_of_regions_and_windows_are_apart_and_never_zero() -> None:
    table, region, _ = registered()
    window = table.new_window(OURS)
    assert 0 < region.lkey < 1 << 31 <= window.rkey < 1 << 32


def test_variants_wrap_within_their_index() -> None:
    assert next_variant(0x12FF) == 0x1200
    assert next_variant(0x1200) == 0x1201


def test_deregistering_twice_is_refused() -> None:
    table, region, _ = registered()
    table.deregister(region)
    assert (region.view.nbytes, region.length, table.region_count) == (0, 0, 0)
    with pytest.raises(OSError, match="before") as refused:
        table.deregister(region)
    assert refused.value.errno == errno.EINVAL


def test_reregistering_changes_what_is_given_and_the_keys() -> None:
    table, region, _ = registered(LOCAL)
    old_key, other = region.lkey, bytearray(8)
    table.reregister(region, pd=THEIRS, view=memoryview(other), address=0, access=LOCAL | WRITE)
    table.remote(region.rkey, 0, 8, pd=THEIRS, access=WRITE, qpn=QPN)[:] = b"new data"
    assert other == b"new data"
    with pytest.raises(AccessError):
        table.local(old_key, BASE, 1, pd=OURS, write=False)


@pytest.mark.parametrize("change", ["access", "pd", "nothing"])
def test_the_keys_stay_with_the_memory(change: str) -> None:
    table, region, _ = registered(LOCAL | WRITE)
    keys = region.lkey, region.rkey
    given: dict[str, Any] = {"access": {"access": LOCAL | READ}, "pd": {"pd": THEIRS}}.get(
        change, {}
    )
    table.reregister(region, **given)
    assert (region.lkey, region.rkey) == keys
    pd, access = (THEIRS if change == "pd" else OURS), (READ if change == "access" else WRITE)
    assert table.remote(region.rkey, BASE, 8, pd=pd, access=access, qpn=QPN).nbytes == 8
    if change != "nothing":
        with pytest.raises(AccessError):
            table.remote(region.rkey, BASE, 8, pd=OURS, access=WRITE, qpn=QPN)


def test_another_address_changes_the_keys() -> None:
    table, region, _ = registered(LOCAL)
    old_key = region.lkey
    table.reregister(region, address=0)
    assert region.lkey != old_key
    with pytest.raises(AccessError):
        table.local(old_key, BASE, 1, pd=OURS, write=False)


def test_a_refused_reregistration_changes_nothing() -> None:
    table, region, _ = registered(LOCAL)
    with pytest.raises(OSError, match="need LOCAL_WRITE"):
        table.reregister(region, access=WRITE)
    assert table.local(region.lkey, BASE, 64, pd=OURS, write=True).nbytes == 64


# -- windows


def test_a_window_shows_its_part_with_its_rights() -> None:
    table, region, window = bound()
    view = table.remote(window.rkey, BASE + 16, 8, pd=OURS, access=WRITE, qpn=1)
    view[:] = b"windowed"
    assert region.view[16:24] == b"windowed"
    for address in (BASE + 15, BASE + 17):
        with pytest.raises(AccessError, match="outside 8 bytes at 0x1010"):
            table.remote(window.rkey, address, 8, pd=OURS, access=WRITE, qpn=1)
    with pytest.raises(AccessError, match="without the right"):
        table.remote(window.rkey, BASE + 16, 8, pd=OURS, access=READ, qpn=1)
    with pytest.raises(AccessError, match="another protection domain"):
        table.remote(window.rkey, BASE + 16, 8, pd=THEIRS, access=WRITE, qpn=1)


def test_the_key_of_a_window_is_no_local_key() -> None:
    table, _, window = bound()
    with pytest.raises(AccessError):
        table.local(window.rkey, BASE + 16, 8, pd=OURS, write=False)


def test_a_window_of_kind_2_serves_the_queue_pair_that_bound_it() -> None:
    table, _, window = bound(kind=2)
    table.remote(window.rkey, BASE + 16, 8, pd=OURS, access=WRITE, qpn=QPN)
    with pytest.raises(AccessError, match="another queue pair"):
        table.remote(window.rkey, BASE + 16, 8, pd=OURS, access=WRITE, qpn=QPN + 1)


def test_binding_again_makes_the_old_key_stale() -> None:
    table, region, window = bound()
    old_key = window.rkey
    assert table.bind(window, region, BASE, 4, WRITE, qpn=QPN) == next_variant(old_key)
    with pytest.raises(AccessError, match="not valid"):
        table.remote(old_key, BASE + 16, 8, pd=OURS, access=WRITE, qpn=QPN)


def test_length_0_unbinds_a_window_of_kind_1() -> None:
    table, region, window = bound()
    table.bind(window, region, BASE, 0, WRITE, qpn=QPN)
    assert (window.region, region.windows) == (None, 0)
    with pytest.raises(AccessError, match="not valid"):
        table.remote(window.rkey, BASE, 1, pd=OURS, access=WRITE, qpn=QPN)


def test_a_region_with_windows_stays() -> None:
    table, region, window = bound()
    for change in (table.deregister, table.reregister):
        with pytest.raises(OSError, match="1 memory windows are bound") as busy:
            change(region)
        assert busy.value.errno == errno.EBUSY
    table.free(window)
    table.deregister(region)


def test_all_windows_of_a_region_can_be_unbound() -> None:
    table, region, window = bound()
    table.unbind_all(region)
    table.deregister(region)
    with pytest.raises(AccessError, match="not valid"):
        table.remote(window.rkey, BASE + 16, 8, pd=OURS, access=WRITE, qpn=QPN)


def test_invalidation_takes_back_a_window_of_kind_2_once() -> None:
    table, region, window = bound(kind=2)
    with pytest.raises(AccessError):
        table.invalidate(window.rkey, pd=OURS, qpn=QPN + 1)
    table.invalidate(window.rkey, pd=OURS, qpn=QPN)
    assert region.windows == 0
    with pytest.raises(AccessError) as again:
        table.invalidate(window.rkey, pd=OURS, qpn=QPN)
    assert again.value.status is WCStatus.LOC_QP_OP_ERR
    assert again.value.syndrome is Syndrome.NAK_INVALID_REQUEST


def test_regions_and_windows_of_kind_1_are_not_invalidated_by_key() -> None:
    table, region, window = bound()
    for key in (region.rkey, window.rkey, 12345):
        with pytest.raises(AccessError):
            table.invalidate(key, pd=OURS, qpn=QPN)


def test_bindings_that_cannot_be_change_nothing() -> None:
    table, region, window = bound()
    plain = table.register(OURS, memoryview(bytearray(8)), BASE, READ | LOCAL)
    weak = table.register(OURS, memoryview(bytearray(8)), BASE, READ | AccessFlag.MW_BIND)
    foreign = table.register(THEIRS, memoryview(bytearray(8)), BASE, ALL)
    gone = table.register(OURS, memoryview(bytearray(8)), BASE, ALL)
    table.deregister(gone)
    cases = [
        (plain, BASE, 8, READ, "without MW_BIND"),
        (weak, BASE, 8, WRITE, "no LOCAL_WRITE"),
        (foreign, BASE, 8, READ, "protection domain"),
        (gone, BASE, 8, READ, "deregistered"),
        (region, BASE, 65, READ, "outside"),
        (region, BASE - 1, 8, READ, "outside"),
        (region, BASE, 8, AccessFlag(64), "unknown access"),
    ]
    key = window.rkey
    for target, address, length, access, match in cases:
        with pytest.raises(AccessError, match=match) as refused:
            table.bind(window, target, address, length, access, qpn=QPN)
        assert refused.value.status is WCStatus.MW_BIND_ERR
    assert (window.rkey, window.region) == (key, region)


def test_a_bound_window_of_kind_2_has_to_be_invalidated_first() -> None:
    table, region, window = bound(kind=2)
    with pytest.raises(AccessError, match="invalidate it first"):
        table.bind(window, region, BASE, 8, READ, qpn=QPN)
    table.invalidate(window.rkey, pd=OURS, qpn=QPN)
    with pytest.raises(AccessError, match="length 0"):
        table.bind(window, region, BASE, 0, READ, qpn=QPN)
    table.bind(window, region, BASE, 8, READ, qpn=QPN)


def test_a_freed_window_cannot_be_bound_and_its_limit_holds() -> None:
    table = KeyTable(windows_max=1)
    region = table.register(OURS, memoryview(bytearray(8)), BASE, ALL)
    window = table.new_window(OURS)
    with pytest.raises(OSError, match="all 1 keys"):
        table.new_window(OURS)
    table.free(window)
    with pytest.raises(AccessError, match="freed"):
        table.bind(window, region, BASE, 8, READ, qpn=QPN)
    assert table.new_window(OURS).rkey != window.rkey
    with pytest.raises(OSError, match="kind 3"):
        table.new_window(OURS, kind=3)


def test_drawn_keys_are_no_sequence_and_stale_ones_fail() -> None:
    keys = KeyTable(rng=Random(5), regions_max=64, windows_max=64)
    domain = object()
    data = memoryview(bytearray(8))
    regions = [keys.register(domain, data, 0, AccessFlag.LOCAL_WRITE) for _ in range(64)]
    windows = [keys.new_window(domain) for _ in range(64)]
    drawn = [each.lkey for each in regions] + [each.rkey for each in windows]
    assert len(set(drawn)) == 128 and 0 not in drawn
    assert len({drawn[i + 1] - drawn[i] for i in range(127)}) > 120
    assert all(each.lkey >> 31 == 0 for each in regions)
    assert all(each.rkey >> 31 == 1 for each in windows)
    with pytest.raises(OSError, match="all 64 keys are in use"):
        keys.register(domain, data, 0, AccessFlag.LOCAL_WRITE)
    for region in regions:
        stale = region.lkey
        keys.deregister(region)
        keys.register(domain, data, 0, AccessFlag.LOCAL_WRITE)
        with pytest.raises(AccessError):
            keys.local(stale, 0, 8, pd=domain, write=True)
