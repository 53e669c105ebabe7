"""Memory that peers may map, and loans of it: who gets it, and when a loan ends."""

import fcntl
import gc
import os
from dataclasses import dataclass, field

import pytest

from urds.common.errors import RemoteProtocolError
from urds.common.passed_files import sealed_file
from urds.verbs.engine.numbers import AccessFlag
from urds.verbs.providers.shm.mappings import (
    CONTROL_BYTES,
    MAPPABLE_BYTES_MIN,
    MAPPINGS_MAX,
    REVOKE_WAIT_NS,
    Allocations,
    MappableKeys,
    MappingPeer,
    PeerMappings,
    map_sealed,
)
from urds.verbs.providers.shm.messages import MapReject, MapReply, MapRequest
from urds.verbs.providers.shm.slots import (
    RING_BYTES,
    SLOTS_BYTES,
    WORDS_BYTES,
    Direction,
    SlotReader,
    SlotWriter,
    Word,
)

WRITE = AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_WRITE
BYTES = 8192
ADDRESS = 0x10_0000
QPN = 77


@dataclass
class Peer:
    """The owner's view of the peer."""

    reader: SlotReader
    is_gone: bool = False
    was_killed: bool = False

    def look_for_end(self) -> bool:
        return self.was_killed

    @property
    def is_placing(self) -> bool:
        return self.reader.is_placing


@dataclass
class World:
    """An owner with its keys, a peer, and the words between them."""

    pd: object = field(default_factory=object)
    now_ns: int = 0
    overdue: list[MappingPeer] = field(default_factory=list)

    def __post_init__(self) -> None:
        sizes = (WORDS_BYTES, SLOTS_BYTES, RING_BYTES)
        memory = Direction(*(memoryview(bytearray(size)) for size in sizes))
        self.words = memory.words
        self.peer = Peer(SlotReader(memory))
        self.peer_mappings = PeerMappings(SlotWriter(memory))
        self.allocations = Allocations()
        self.keys = MappableKeys(
            self.allocations,
            lambda: [self.peer],
            on_overdue=self.overdue.append,
            pause=self.pass_time,
            now_ns=lambda: self.now_ns,
        )

    def pass_time(self) -> None:
        self.now_ns += 100_000_000

    def map_remote(self, rkey: int, qpn: int = QPN) -> MapReply | MapReject:
        """Carry one question to the owner and its answer back."""
        question = self.peer_mappings.place(qpn, rkey, ADDRESS, b"x")
        assert question == MapRequest(qpn, rkey)
        answer = self.keys.map_remote(MapRequest(qpn, rkey), pd=self.pd)
        if isinstance(answer, MapReject):
            self.peer_mappings.reject(answer)
            return answer
        self.peer_mappings.take(*answer)
        return answer[0]


def test_allocated_memory_is_zeroed_and_writable() -> None:
    view = Allocations().allocate(BYTES)
    assert len(view) == BYTES and not any(view) and not view.readonly


def test_small_memory_is_plain() -> None:
    allocations = Allocations()
    assert len(allocations.allocate(MAPPABLE_BYTES_MIN - 1)) == MAPPABLE_BYTES_MIN - 1
    assert len(allocations.allocate(0)) == 0
    assert (len(allocations), allocations.plain) == (0, 2)


def test_beyond_the_limit_memory_is_plain() -> None:
    allocations = Allocations(allocations_max=2)
    views = [allocations.allocate(BYTES) for _ in range(4)]
    assert [allocations.find(view) is not None for view in views] == [True, True, False, False]


def test_without_descriptors_memory_is_plain() -> None:
    def no_file(name: str, file_bytes: int) -> int:
        raise OSError(24, "too many open files")

    allocations = Allocations(make_file=no_file)
    assert len(allocations.allocate(BYTES)) == BYTES
    assert allocations.plain == 1


def test_only_a_view_of_all_is_found() -> None:
    allocations = Allocations()
    view = allocations.allocate(BYTES)
    assert allocations.find(view) is not None
    assert allocations.find(view.cast("Q")) is not None
    assert allocations.find(view[:-1]) is None
    assert allocations.find(view[1:]) is None
    assert allocations.find(view.toreadonly()) is None
    assert allocations.find(memoryview(bytearray(BYTES))) is None


def test_memory_at_an_address_of_memory_that_goes_stays_known() -> None:
    """Another thread may get the address as soon as the memory is unmapped."""
    allocations = Allocations()
    first, second = allocations.allocate(BYTES), allocations.allocate(BYTES)
    kept = allocations.find(second)
    [address] = {address for address, one in allocations._by_address.items() if one is not kept}
    assert kept is not None
    allocations._by_address[address] = kept
    del first
    gc.collect()
    assert allocations._by_address[address] is kept


def test_memory_goes_with_its_last_view() -> None:
    allocations = Allocations()
    view = allocations.allocate(BYTES)
    part = view[10:20]
    found = allocations.find(view)
    assert found is not None
    descriptor = found.descriptor
    del view
    gc.collect()
    assert len(allocations) == 1
    del part
    gc.collect()
    assert len(allocations) == 0
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_file_of_ours_cannot_be_cut_short() -> None:
    descriptor = sealed_file("test", BYTES)
    try:
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, 0)
        with pytest.raises(PermissionError):
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("seals", "file_bytes"),
    [
        (0, BYTES),
        (fcntl.F_SEAL_GROW, BYTES),
        (fcntl.F_SEAL_SHRINK, BYTES),
        (fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE, BYTES),
        (fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW, BYTES - 1),
    ],
)
def test_memory_that_could_vanish_is_not_mapped(seals: int, file_bytes: int) -> None:
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, file_bytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        with pytest.raises(RemoteProtocolError):
            map_sealed(descriptor, BYTES)
    finally:
        os.close(descriptor)


def test_what_is_no_memory_file_is_not_mapped() -> None:
    reading, writing = os.pipe()
    try:
        with pytest.raises(RemoteProtocolError):
            map_sealed(reading, BYTES)
    finally:
        os.close(reading)
        os.close(writing)


def test_who_borrowed_writes_into_the_owners_memory() -> None:
    world = World()
    view = world.allocations.allocate(BYTES)
    region = world.keys.register(world.pd, view, ADDRESS, WRITE)
    assert isinstance(world.map_remote(region.rkey), MapReply)
    assert world.peer_mappings.place(QPN, region.rkey, ADDRESS + 5, b"hello") is True
    assert bytes(view[:12]) == b"\0\0\0\0\0hello\0\0"
    assert world.peer_mappings.place(QPN, region.rkey, ADDRESS + BYTES - 3, b"end") is True
    assert bytes(view[-3:]) == b"end"
    assert world.words[Word.PLACING] == 0
    assert (world.peer_mappings.placed, len(world.peer_mappings)) == (2, 1)


def test_a_mapping_ends_with_its_region_though_the_chosen_key_comes_back() -> None:
    world, key = World(), 0x1234_5678
    old, new = (world.allocations.allocate(BYTES) for _ in range(2))
    region = world.keys.register(world.pd, old, ADDRESS, WRITE, key=key)
    assert region.rkey == key and isinstance(world.map_remote(key), MapReply)
    world.keys.deregister(region)
    world.keys.register(world.pd, new, ADDRESS, WRITE, key=key)
    assert world.peer_mappings.place(QPN, key, ADDRESS, b"late") is False
    assert not any(old) and not any(new)
    world.map_remote(key)
    assert world.peer_mappings.place(QPN, key, ADDRESS, b"anew") is True
    assert bytes(new[:4]) == b"anew"


@pytest.mark.parametrize("offset", [-1, BYTES - 2, BYTES, 1 << 60, -ADDRESS])
def test_what_is_out_of_range_is_not_placed(offset: int) -> None:
    world = World()
    view = world.allocations.allocate(BYTES)
    region = world.keys.register(world.pd, view, ADDRESS, WRITE)
    world.map_remote(region.rkey)
    assert world.peer_mappings.place(QPN, region.rkey, ADDRESS + offset, b"abc") is False
    assert not any(view)


def test_the_question_is_asked_once() -> None:
    world = World()
    assert world.peer_mappings.place(QPN, 256, ADDRESS, b"x") == MapRequest(QPN, 256)
    assert world.peer_mappings.place(QPN, 256, ADDRESS, b"x") is False


def test_a_region_that_is_not_one_whole_allocation_is_not_mapped() -> None:
    """A part of an allocation, foreign memory, no right to write."""
    world = World()
    view = world.allocations.allocate(BYTES)
    for part, access in (
        (view[: BYTES // 2], WRITE),
        (memoryview(bytearray(BYTES)), WRITE),
        (view, AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_READ),
    ):
        region = world.keys.register(world.pd, part, ADDRESS, access)
        assert isinstance(world.map_remote(region.rkey), MapReject)
        assert world.peer_mappings.place(QPN, region.rkey, ADDRESS, b"x") is False


def test_an_unknown_key_or_one_of_another_domain_is_not_mapped() -> None:
    world = World()
    view = world.allocations.allocate(BYTES)
    region = world.keys.register(object(), view, ADDRESS, WRITE)
    assert isinstance(world.map_remote(region.rkey), MapReject)
    assert isinstance(world.map_remote(region.rkey + 1), MapReject)
    assert world.keys.mappings_rejected == 2


def test_the_mapping_ends_with_the_region() -> None:
    world = World()
    view = world.allocations.allocate(BYTES)
    region = world.keys.register(world.pd, view, ADDRESS, WRITE)
    rkey = region.rkey
    world.map_remote(rkey)
    world.keys.deregister(region)
    assert world.peer_mappings.place(QPN, rkey, ADDRESS, b"late") is False
    assert not any(view)
    assert isinstance(world.map_remote(rkey), MapReject)
    assert (world.keys.revocations, world.peer_mappings.ended) == (1, 1)


def test_the_mapping_ends_with_the_key() -> None:
    world = World()
    view = world.allocations.allocate(BYTES)
    region = world.keys.register(world.pd, view, ADDRESS, WRITE)
    old = region.rkey
    world.map_remote(old)
    world.keys.reregister(region, address=ADDRESS)
    assert world.peer_mappings.place(QPN, old, ADDRESS, b"late") is False
    assert isinstance(world.map_remote(old), MapReject)
    assert isinstance(world.map_remote(region.rkey), MapReply)
    assert world.peer_mappings.place(QPN, region.rkey, ADDRESS, b"new") is True


def test_the_mapping_ends_with_the_right_to_write_though_the_key_stays() -> None:
    world = World()
    view = world.allocations.allocate(BYTES)
    region = world.keys.register(world.pd, view, ADDRESS, WRITE)
    world.map_remote(region.rkey)
    world.keys.reregister(region, access=AccessFlag.LOCAL_WRITE)
    assert world.peer_mappings.place(QPN, region.rkey, ADDRESS, b"late") is False
    assert not any(view)
    assert isinstance(world.map_remote(region.rkey), MapReject)


def test_the_mapping_ends_with_the_queue_pair() -> None:
    world = World()
    view = world.allocations.allocate(BYTES)
    region = world.keys.register(world.pd, view, ADDRESS, WRITE)
    world.map_remote(region.rkey)
    world.keys.revoke_mappings(QPN + 1)
    assert world.peer_mappings.place(QPN, region.rkey, ADDRESS, b"fine") is True
    world.keys.revoke_mappings(QPN)
    assert world.peer_mappings.place(QPN, region.rkey, ADDRESS, b"late") is False
    assert bytes(view[:4]) == b"fine"


def test_the_end_of_a_mapping_waits_for_a_copy_that_runs() -> None:
    world = World()
    view = world.allocations.allocate(BYTES)
    region = world.keys.register(world.pd, view, ADDRESS, WRITE)
    world.map_remote(region.rkey)
    world.words[Word.PLACING] = 1
    steps: list[int] = []

    def pause() -> None:
        steps.append(1)
        if len(steps) == 3:
            world.words[Word.PLACING] = 0

    world.keys._pause = pause  # the test's own clock
    world.keys.deregister(region)
    assert len(steps) == 3 and not world.overdue


def test_a_peer_looks_at_the_generation_after_it_has_said_that_it_copies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or an owner that withdraws in between sees no copy, and the bytes land later."""
    world = World()
    view = world.allocations.allocate(BYTES)
    region = world.keys.register(world.pd, view, ADDRESS, WRITE)
    world.map_remote(region.rkey)
    writer = world.peer_mappings._writer
    begin = writer.begin_placing

    def begin_while_the_owner_withdraws() -> None:
        region.tag.revoke()  # it has seen that nothing is copied
        begin()

    monkeypatch.setattr(writer, "begin_placing", begin_while_the_owner_withdraws)
    assert world.peer_mappings.place(QPN, region.rkey, ADDRESS, b"late") is False
    assert not any(view)


def test_who_copies_for_ever_is_given_up() -> None:
    world = World()
    view = world.allocations.allocate(BYTES)
    region = world.keys.register(world.pd, view, ADDRESS, WRITE)
    world.map_remote(region.rkey)
    world.words[Word.PLACING] = 1
    world.keys.deregister(region)
    assert world.overdue == [world.peer]
    assert world.keys.revocations_overdue == 1


def test_the_end_of_a_peer_ends_the_wait_for_its_copy() -> None:
    world = World()
    view = world.allocations.allocate(BYTES)
    region = world.keys.register(world.pd, view, ADDRESS, WRITE)
    world.map_remote(region.rkey)
    world.words[Word.PLACING] = 1  # its last word
    world.peer.is_gone = True
    world.keys.deregister(region)
    assert (world.now_ns, world.overdue, world.keys.revocations_overdue) == (0, [], 0)


def test_the_kill_of_a_peer_ends_the_wait_though_its_process_takes_long_to_end() -> None:
    """It is asked after once the copy takes longer than most, so not before the first pause."""
    world = World()
    view = world.allocations.allocate(BYTES)
    region = world.keys.register(world.pd, view, ADDRESS, WRITE)
    world.map_remote(region.rkey)
    world.words[Word.PLACING] = 1
    world.peer.was_killed = True
    world.keys.deregister(region)
    assert 0 < world.now_ns < REVOKE_WAIT_NS
    assert (world.overdue, world.keys.revocations_overdue) == ([], 0)


def test_a_region_without_a_mapping_ends_without_a_wait() -> None:
    world = World()
    world.words[Word.PLACING] = 1
    view = world.allocations.allocate(BYTES)
    world.keys.deregister(world.keys.register(world.pd, view, ADDRESS, WRITE))
    assert world.now_ns == 0


def test_unrequested_answers_are_refused() -> None:
    world = World()
    world.peer_mappings.place(QPN, 256, ADDRESS, b"x")
    world.peer_mappings.reject(MapReject(QPN, 256))
    with pytest.raises(RemoteProtocolError):
        world.peer_mappings.reject(MapReject(QPN, 256))
    with pytest.raises(RemoteProtocolError):
        world.peer_mappings.take(MapReply(QPN, 256, ADDRESS, BYTES, 1), -1)


@pytest.mark.parametrize(
    ("address", "region_bytes"), [(ADDRESS, 0), ((1 << 64) - 1, 2), (ADDRESS, 1 << 40)]
)
def test_a_mapping_that_lies_about_its_memory_is_refused(address: int, region_bytes: int) -> None:
    world = World()
    world.peer_mappings.place(QPN, 256, ADDRESS, b"x")
    descriptor = sealed_file("test", CONTROL_BYTES + BYTES)
    try:
        with pytest.raises(RemoteProtocolError):
            world.peer_mappings.take(MapReply(QPN, 256, address, region_bytes, 1), descriptor)
    finally:
        os.close(descriptor)


def test_an_answer_for_a_queue_pair_that_went_is_dropped() -> None:
    world = World()
    world.peer_mappings.place(QPN, 256, ADDRESS, b"x")
    world.peer_mappings.forget(QPN)
    world.peer_mappings.take(MapReply(QPN, 256, ADDRESS, BYTES, 1), -1)
    world.peer_mappings.reject(MapReject(QPN, 256))
    assert len(world.peer_mappings) == 0


def test_declined_keys_make_room_for_new_questions() -> None:
    world = World()
    for rkey in range(MAPPINGS_MAX):
        assert world.peer_mappings.place(QPN, rkey, ADDRESS, b"x")
    assert world.peer_mappings.place(QPN, MAPPINGS_MAX, ADDRESS, b"x") is False
    world.peer_mappings.reject(MapReject(QPN, 0))
    assert world.peer_mappings.place(QPN, MAPPINGS_MAX, ADDRESS, b"x")
