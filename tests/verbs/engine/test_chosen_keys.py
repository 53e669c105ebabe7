"""Chosen keys: a region that gets the very key its owner asks for, on any table."""

import errno
from random import Random

import pytest

from urds.verbs.engine.keys import REGION_KEYS, AccessError, KeyTable, Region, next_variant
from urds.verbs.engine.numbers import AccessFlag

DOMAIN = object()
KEY = 0x12345678
LOCAL, READ = AccessFlag.LOCAL_WRITE, AccessFlag.REMOTE_READ


def table_of(*, drawn: bool, regions_max: int = 8) -> KeyTable:
    return KeyTable(rng=Random(3) if drawn else None, regions_max=regions_max)


def register(table: KeyTable, key: int | None = None, data: bytes = b"12345678") -> Region:
    return table.register(DOMAIN, memoryview(bytearray(data)), 0, LOCAL | READ, key=key)


both = pytest.mark.parametrize("drawn", [False, True], ids=["counted", "drawn"])


@both
def test_both_keys_are_the_chosen_one(drawn: bool) -> None:
    table = table_of(drawn=drawn)
    region = register(table, KEY)
    assert region.lkey == region.rkey == KEY
    assert table.local(KEY, 0, 8, pd=DOMAIN, write=False) == b"12345678"
    assert table.remote(KEY, 0, 8, pd=DOMAIN, access=READ, qpn=1) == b"12345678"


@both
@pytest.mark.parametrize("key", [KEY, next_variant(KEY)])
def test_an_index_in_use_cannot_be_chosen(drawn: bool, key: int) -> None:
    """Not under another variant either: that is where re-registration goes."""
    table = table_of(drawn=drawn)
    region = register(table, KEY)
    with pytest.raises(OSError, match="its index is in use") as refused:
        register(table, key)
    assert refused.value.errno == errno.EEXIST
    assert (table.region_count, table.region(KEY)) == (1, region)


@both
def test_a_fresh_key_cannot_be_chosen_while_it_lives(drawn: bool) -> None:
    table = table_of(drawn=drawn)
    fresh = register(table)
    with pytest.raises(OSError, match="in use"):
        register(table, fresh.lkey)
    table.deregister(fresh)
    assert register(table, fresh.lkey).lkey == fresh.lkey


@both
def test_a_chosen_key_that_went_may_be_chosen_again(drawn: bool) -> None:
    table = table_of(drawn=drawn)
    table.deregister(register(table, KEY))
    with pytest.raises(AccessError, match="not valid"):
        table.remote(KEY, 0, 8, pd=DOMAIN, access=READ, qpn=1)
    assert register(table, KEY, b"the next").view == b"the next"


@pytest.mark.parametrize("key", [-1, 0, 0xFF, 1 << 31, 1 << 32])
def test_a_key_that_no_region_may_have_is_refused(key: int) -> None:
    """Below: index 0, hence key 0 among others. Above: those of memory windows."""
    table = table_of(drawn=False)
    with pytest.raises(OSError, match="not one that a region may have") as refused:
        register(table, key)
    assert refused.value.errno == errno.EINVAL
    assert table.region_count == 0


@pytest.mark.parametrize("key", [REGION_KEYS[0], REGION_KEYS[-1]])
def test_the_first_and_the_last_key_can_be_chosen(key: int) -> None:
    assert register(table_of(drawn=False), key).rkey == key


@both
def test_chosen_keys_count_towards_the_limit(drawn: bool) -> None:
    table = table_of(drawn=drawn, regions_max=2)
    chosen = [register(table, KEY), register(table, KEY + 256)]
    for key in (None, KEY + 512):
        with pytest.raises(OSError, match="all 2 keys are in use") as full:
            register(table, key)
        assert full.value.errno == errno.ENOMEM
    table.deregister(chosen[0])
    register(table)


def test_what_is_refused_takes_no_key() -> None:
    table = table_of(drawn=False)
    with pytest.raises(OSError, match="cannot be written"):
        table.register(DOMAIN, memoryview(b"fixed"), 0, LOCAL, key=KEY)
    register(table, KEY)


def test_counting_passes_over_chosen_keys_and_comes_back_to_them() -> None:
    table = table_of(drawn=False, regions_max=3)
    chosen = register(table, 2 << 8 | 7)
    assert [register(table).lkey >> 8 for _ in range(2)] == [1, 3]
    table.deregister(chosen)
    assert register(table).lkey == 2 << 8 | 8


def test_a_freed_index_that_was_chosen_is_not_handed_out_again() -> None:
    table = table_of(drawn=False, regions_max=2)
    first, second = register(table), register(table)
    table.deregister(first)
    table.deregister(second)
    chosen = register(table, 1 << 8 | 9)
    assert register(table).lkey >> 8 == 2
    table.deregister(chosen)
    assert register(table).lkey == 1 << 8 | 10


@both
def test_mixed_keys_never_meet(drawn: bool) -> None:
    """Registering and forgetting in any order: no key is that of two regions, the limit holds."""
    rng, table, living = Random(11), table_of(drawn=drawn, regions_max=12), list[Region]()
    for _ in range(400):
        if living and rng.random() < 0.45:
            table.deregister(living.pop(rng.randrange(len(living))))
            continue
        key = rng.choice([None, rng.randrange(1 << 8, 20 << 8)])
        try:
            living.append(register(table, key))
        except OSError as refused:
            is_taken = key is not None and key >> 8 in {region.lkey >> 8 for region in living}
            code = errno.EEXIST if is_taken else errno.ENOMEM
            reason = (refused.errno, is_taken or len(living) == 12)
            assert reason == (code, True)
        assert len({region.lkey >> 8 for region in living}) == len(living) == table.region_count


def test_what_was_chosen_ahead_of_the_count_leaves_nothing_behind() -> None:
    table = table_of(drawn=False)
    for key in range(1 << 16, 200 << 16, 1 << 16):
        table.deregister(register(table, key))
    assert not table._region_indices.freed  # the bound has no other witness
