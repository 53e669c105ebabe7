"""The region table: one key everywhere, cookies, owners, use once, collisions, bounds, locks."""

import errno
import threading
from collections.abc import Callable
from dataclasses import asdict
from ipaddress import ip_address
from itertools import pairwise
from random import Random
from typing import Any, cast

import pytest

from urds.common.types import IPAddress
from urds.rds.numbers import RDMA_PAGE_BYTES
from urds.rds.transports.rdma import regions
from urds.rds.transports.rdma.counters import RdmaCounters
from urds.rds.transports.rdma.regions import RegionDevice, RegionTable
from urds.verbs.engine.keys import AccessError, KeyTable, NestedDomain, Region
from urds.verbs.engine.numbers import AccessFlag
from urds.verbs.providers.base import Adapter

READ, WRITE, ATOMIC = AccessFlag.REMOTE_READ, AccessFlag.REMOTE_WRITE, AccessFlag.REMOTE_ATOMIC
OWNER, OTHER = "owner", "other"
PEER, UNKNOWN_PEER = ip_address("10.0.0.2"), ip_address("10.0.0.3")


class FakeAdapter:
    """Real keys, and a lock that tells whether it is held by this thread."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.keys = KeyTable()
        self.register = self.keys.register
        self.deregister = self.keys.deregister


class FakeDevice:
    """A device whose adapter has keys only."""

    def __init__(self) -> None:
        self.fake = FakeAdapter()
        self.adapter = cast("Adapter", self.fake)
        self.domain = object()
        self.domains: dict[IPAddress, NestedDomain] = {}

    def domain_of(self, peer: IPAddress) -> NestedDomain:
        return self.domains.setdefault(peer, NestedDomain(self.domain))

    def memory(
        self, cookie: int, byte_count: int, access: AccessFlag = READ, peer: IPAddress = PEER
    ) -> memoryview:
        """Return what a peer that was given the cookie reaches at the region's beginning."""
        domain = self.domain_of(peer)
        return self.fake.keys.remote(
            cookie & 0xFFFFFFFF, cookie >> 32, byte_count, pd=domain, access=access, qpn=7
        )

    def refuses(self, cookie: int, access: AccessFlag = READ, peer: IPAddress = PEER) -> bool:
        """Tell whether a peer gets nothing by a cookie."""
        try:
            self.memory(cookie, 1, access, peer)
        except AccessError:
            return True
        return False


class World:
    """A table over two devices, whose later work waits in a list."""

    def __init__(self, seed: int = 1) -> None:
        self.devices = [FakeDevice(), FakeDevice()]
        self.later: list[Callable[[], None]] = []
        self.counters = RdmaCounters()
        self.table = RegionTable(
            lambda: cast("list[RegionDevice]", self.devices),
            self.later.append,
            rng=Random(seed),
            counters=self.counters,
        )

    def register(self, memory: Any = None, owner: str = OWNER, **more: Any) -> int:
        """Make a region, writable and for ever unless told."""
        given = {"address": 0, "writable": True, "use_once": False} | more
        view = memoryview(bytearray(64) if memory is None else memory)
        return self.table.register(owner, view, **given)

    def rejects(self, cookie: int, access: AccessFlag = READ) -> list[bool]:
        """Tell what each device says to a peer that asks for the first byte."""
        return [device.refuses(cookie, access) for device in self.devices]

    def counts(self) -> list[int]:
        """Return how many regions each device knows."""
        return [device.fake.keys.region_count for device in self.devices]


@pytest.fixture
def world() -> World:
    return World()


def errno_of(call: Callable[..., object], *arguments: object, **more: object) -> int | None:
    with pytest.raises(OSError) as refused:
        call(*arguments, **more)
    return refused.value.errno


def test_every_device_reaches_the_memory_under_one_key(world: World) -> None:
    memory = bytearray(b"hello world")
    cookie = world.register(memory)
    for device in world.devices:
        assert bytes(device.memory(cookie, 11)) == b"hello world"
    world.devices[1].memory(cookie, 5, WRITE)[:] = b"jello"
    assert memory == b"jello world"


@pytest.mark.parametrize("address", [0, 1, 4095, 4096, 0x7F00_0000_1234])
def test_a_cookie_has_the_place_in_the_page_above_the_key(world: World, address: int) -> None:
    cookie = world.register(b"abc", address=address, writable=False)
    assert (cookie >> 32) % RDMA_PAGE_BYTES == address % RDMA_PAGE_BYTES
    assert bytes(world.devices[0].memory(cookie, 3)) == b"abc"
    assert cookie & 0xFFFFFFFF != 0


def test_the_page_of_a_cookie_is_random(world: World) -> None:
    """20 bits beside the key's 31; peers add what is above the key, 32 bits, to an address."""
    memory = memoryview(bytearray(1 << 20))
    pages = [world.register(memory, address=7) >> 44 for _ in range(2000)]
    assert len(set(pages)) > 1990
    assert min(pages) < 1 << 14 and max(pages) > (1 << 20) - (1 << 14)


def test_a_region_at_the_last_page_is_reached_to_its_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on beyond 32 bits: addresses have 64."""
    rng = world.table._rng
    monkeypatch.setattr(rng, "randrange", lambda first, end=0: end - 1 if end else first - 1)
    cookie = world.register(memoryview(bytearray(1 << 20)), address=4095)
    assert cookie >> 32 == (1 << 32) - 1
    assert len(world.devices[0].memory(cookie, 1 << 20)) == 1 << 20


def test_a_region_for_one_destination_is_refused_to_all_others(world: World) -> None:
    cookie, for_all = world.register(b"12345678", writable=False, peer=PEER), world.register()
    for device in world.devices:
        assert bytes(device.memory(cookie, 8, peer=PEER)) == b"12345678"
        assert device.refuses(cookie, peer=UNKNOWN_PEER)
        assert not device.refuses(for_all, peer=PEER)
        assert not device.refuses(for_all, peer=UNKNOWN_PEER)


def test_memory_beyond_a_region_is_out_of_reach(world: World) -> None:
    cookie = world.register(bytearray(64), address=100)
    key, offset = cookie & 0xFFFFFFFF, cookie >> 32
    keys, domain = world.devices[0].fake.keys, world.devices[0].domain
    for at, data in ((offset - 1, 1), (offset, 65), (offset + 64, 1), (0, 1)):
        with pytest.raises(AccessError):
            keys.remote(key, at, data, pd=domain, access=READ, qpn=7)


def test_a_region_for_reading_refuses_the_rest(world: World) -> None:
    read_only = world.register(b"octets", writable=False)
    assert world.rejects(read_only, READ) == [False, False]
    assert world.rejects(read_only, WRITE) == [True, True]
    assert world.rejects(read_only, ATOMIC) == [True, True]
    writable = world.register(writable=True)
    for access in (READ, WRITE, ATOMIC):
        assert world.rejects(writable, access) == [False, False]


def test_a_freed_region_is_refused_everywhere_and_its_buffer_is_free(world: World) -> None:
    memory = bytearray(8)
    cookie = world.register(memory)
    with pytest.raises(BufferError):
        memory.append(0)
    world.table.free(OWNER, cookie)
    assert world.rejects(cookie) == [True, True]
    assert world.counts() == [0, 0] and len(world.table) == 0
    memory.append(0)


def test_only_its_owner_frees_a_region_and_only_once(world: World) -> None:
    cookie = world.register()
    assert errno_of(world.table.free, OTHER, cookie) == errno.EINVAL
    assert errno_of(world.table.free, OWNER, cookie ^ 1) == errno.EINVAL
    assert world.rejects(cookie) == [False, False]
    world.table.free(OWNER, cookie | 5 << 32)  # the key alone counts: kernel parity
    assert errno_of(world.table.free, OWNER, cookie) == errno.EINVAL


def test_who_owns_a_key(world: World) -> None:
    cookie = world.register()
    assert world.table.owns(OWNER, cookie)
    assert world.table.owns(OWNER, cookie & 0xFFFFFFFF)
    assert not world.table.owns(OTHER, cookie)
    assert not world.table.owns(OWNER, 0)
    world.table.free(OWNER, cookie)
    assert not world.table.owns(OWNER, cookie)


def test_a_closing_owner_takes_its_own_regions_along(world: World) -> None:
    own = [world.register(), world.register()]
    kept = world.register(owner=OTHER)
    assert world.table.free_all(OWNER) == 2
    assert [world.rejects(cookie) for cookie in own] == [[True, True]] * 2
    assert world.rejects(kept) == [False, False]
    assert world.table.free_all(OWNER) == 0


def test_a_used_region_for_one_use_is_over_at_once_and_forgotten_later(world: World) -> None:
    once, always = world.register(use_once=True), world.register()
    for key in (once & 0xFFFFFFFF, always & 0xFFFFFFFF, 12345):
        world.table.handle_key_used(OWNER, key)
    assert not world.table.owns(OWNER, once)
    assert world.table.owns(OWNER, always)
    assert len(world.later) == 1, "devices are told by a thread that holds no lock"
    world.later.pop()()
    assert world.rejects(once) == [True, True]
    assert world.rejects(always) == [False, False]
    assert errno_of(world.table.free, OWNER, once) == errno.EINVAL


def test_a_message_for_another_socket_uses_nothing_up(world: World) -> None:
    once = world.register(use_once=True)
    world.table.handle_key_used(OTHER, once & 0xFFFFFFFF)
    assert world.table.owns(OWNER, once) and not world.later


def test_a_region_is_used_up_once(world: World) -> None:
    cookie = world.register(use_once=True)
    world.table.handle_key_used(OWNER, cookie & 0xFFFFFFFF)
    world.table.handle_key_used(OWNER, cookie & 0xFFFFFFFF)
    assert len(world.later) == 1


def test_a_key_that_one_device_has_in_use_is_drawn_anew() -> None:
    foreseen = World(seed=5).register()  # the first key of this seed
    world = World(seed=5)
    second = world.devices[1]
    taken = second.fake.keys.register(
        second.domain, memoryview(b"theirs"), 0, READ, key=foreseen & 0xFFFFFFFF
    )
    cookie = world.register()
    assert cookie != foreseen
    assert world.counts() == [1, 2]
    assert bytes(second.memory(foreseen & 0xFFFFFFFF, 6)) == b"theirs"
    world.table.free(OWNER, cookie)
    second.fake.keys.deregister(taken)
    assert world.counts() == [0, 0]


def test_drawing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    monkeypatch.setattr(regions, "_KEY_END", regions._KEY_FIRST + 1)  # there is one key
    blocked = world.devices[1]
    blocked.fake.keys.register(blocked.domain, memoryview(b"x"), 0, READ, key=regions._KEY_FIRST)
    assert errno_of(world.register) == errno.ENOMEM
    assert world.counts() == [0, 1]


def test_a_refusing_device_leaves_nothing_behind(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> Region:
        raise OSError(errno.ENOMEM, "full")

    monkeypatch.setattr(world.devices[1].fake, "register", full)
    assert errno_of(world.register) == errno.ENOMEM
    assert world.counts() == [0, 0] and len(world.table) == 0


def test_the_regions_of_a_process_are_bounded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regions, "REGIONS_MAX", 3)
    cookies = [world.register() for _ in range(3)]
    assert len(set(cookies)) == 3
    assert errno_of(world.register) == errno.ENOMEM
    world.table.free(OWNER, cookies[0])
    world.register()


def test_keys_are_random() -> None:
    """Two tables give different keys, and keys do not follow each other."""

    def new_keys() -> list[int]:
        table = RegionTable(lambda: (), lambda action: action())
        view = memoryview(bytearray(8))
        return [
            table.register(OWNER, view, address=0, writable=True, use_once=False) for _ in range(16)
        ]

    keys = new_keys()
    assert set(keys).isdisjoint(new_keys())
    steps = {after - before for before, after in pairwise(keys)}
    assert len(steps) == 15
    assert max(keys) - min(keys) > 1 << 20


def test_no_lock_of_the_table_is_held_where_a_device_is_asked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device's thread may be inside `handle_key_used` with that device's lock."""
    adapter = world.devices[0].fake
    held: list[bool] = []
    for name in ("register", "deregister"):
        real = getattr(adapter, name)

        def watched(*arguments: Any, real: Any = real, **more: Any) -> Any:
            held.append(world.table.is_inside())
            return real(*arguments, **more)

        monkeypatch.setattr(adapter, name, watched)
    world.table.free(OWNER, world.register())
    world.register()
    world.table.free_all(OWNER)
    world.table.handle_key_used(OWNER, world.register(use_once=True) & 0xFFFFFFFF)
    world.later.pop()()
    assert held == [False] * 6


def test_regions_are_counted_as_small_ones_or_large_ones(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a region begins in its first page decides too: the pages count, not the bytes."""
    page = RDMA_PAGE_BYTES
    world.register(bytes(2 * page), writable=False)
    large = world.register(bytes(2 * page), writable=False, address=1)
    once = world.register(bytes(3 * page), writable=False, use_once=True)
    monkeypatch.setattr(regions, "REGIONS_MAX", 3)
    for size in (1, 3 * page, 3 * page):
        assert errno_of(world.register, bytes(size), writable=False) == errno.ENOMEM
    world.table.free(OWNER, large)
    world.table.handle_key_used(OWNER, once & 0xFFFFFFFF)
    world.table.free_all(OWNER)
    counted = {name: value for name, value in asdict(world.counters).items() if value}
    assert counted == {
        "ib_rdma_mr_8k_alloc": 1,
        "ib_rdma_mr_8k_free": 1,
        "ib_rdma_mr_8k_used": 1,
        "ib_rdma_mr_8k_pool_depleted": 1,
        "ib_rdma_mr_1m_alloc": 2,
        "ib_rdma_mr_1m_free": 2,
        "ib_rdma_mr_1m_used": 2,
        "ib_rdma_mr_1m_pool_depleted": 2,
    }


def test_a_forked_child_has_no_regions_and_waits_for_no_lock(world: World) -> None:
    """A thread that held the table's or a device's lock at the fork is not in the child."""
    cookie = world.register(use_once=True)
    world.table._lock.acquire()
    world.devices[0].fake.lock = cast("threading.RLock", None)  # type: ignore[valid-type]  # not to be taken
    world.table.abandon_in_child()
    assert errno_of(world.register) == errno.EBADF
    assert errno_of(world.table.free, OWNER, cookie) == errno.EINVAL
    world.table.handle_key_used(OWNER, cookie & 0xFFFFFFFF)
    assert world.table.free_all(OWNER) == 0
    assert not world.table.owns(OWNER, cookie) and not world.later
