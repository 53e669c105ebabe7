"""Memory and windows: registration, rights, bounds. Source: docs/reference/dat.md 11."""

import array
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pytest

from tests.dat.fakes import open_fake
from urds import dat
from urds.dat import (
    DtoStatus,
    Endpoint,
    EvdFlag,
    EventDispatcher,
    EventNumber,
    LmrTriplet,
    MemPriv,
    MemType,
    RmrTriplet,
)
from urds.dat.ia import InterfaceAdapter
from urds.dat.memory import LocalMemory, ProtectionZone
from urds.dat.returns import Subtype
from urds.verbs.providers.sim import SimNetwork

WAIT_S = 5.0  # of virtual time
REMOTE = MemPriv.REMOTE_READ | MemPriv.REMOTE_WRITE


@pytest.fixture
def ia() -> Iterator[InterfaceAdapter]:
    with open_fake() as opened:
        yield opened


# -- registering


@pytest.mark.parametrize(
    "buffer",
    [
        bytearray(16),
        memoryview(bytearray(16)),
        array.array("Q", [0, 0]),
        mmap.mmap(-1, 16),
        memoryview(array.array("Q", [0, 0])).cast("B").cast("I", (2, 2)),
    ],
    ids=["bytearray", "memoryview", "array", "mmap", "two dimensions"],
)
def test_any_writable_buffer_can_be_registered(ia: InterfaceAdapter, buffer: bytearray) -> None:
    lmr = ia.create_pz().register(buffer)
    assert lmr.size == 16
    lmr.view[0] = 7
    assert memoryview(buffer).cast("B")[0] == 7, "the memory itself, no copy"
    lmr.free()
    with pytest.raises(dat.DatInvalidHandle):
        assert lmr.view


@pytest.mark.parametrize(
    "buffer", [b"read only", bytearray(), None, 16, memoryview(bytearray(8))[::2]]
)
def test_what_cannot_be_registered(ia: InterfaceAdapter, buffer: bytearray) -> None:
    with pytest.raises(dat.DatInvalidParameter):
        ia.create_pz().register(buffer)
    assert ia.adapter.region_count == 0


def test_the_thin_call_gives_everything_that_a_program_needs(ia: InterfaceAdapter) -> None:
    pz, buffer = ia.create_pz(), bytearray(100)
    ret, lmr, lmr_context, rmr_context, size, address = dat.dat_lmr_create(
        ia, dat.DAT_MEM_TYPE_VIRTUAL, buffer, 40, pz, dat.DAT_MEM_PRIV_ALL_FLAG
    )
    assert ret == dat.DAT_SUCCESS
    assert size == 40
    assert lmr is not None
    ret, param = dat.dat_lmr_query(lmr, dat.DAT_LMR_FIELD_ALL)
    assert param is not None
    assert (param.lmr_context, param.rmr_context) == (lmr_context, rmr_context)
    assert (param.registered_size, param.registered_address) == (size, address)
    assert (param.mem_type, param.pz_handle, param.mem_priv) == (MemType.VIRTUAL, pz, MemPriv.ALL)
    assert dat.dat_lmr_query(lmr, 0x400)[0] == dat.DAT_INVALID_PARAMETER


@pytest.mark.parametrize(
    ("mem_type", "length_bytes", "privileges", "expected"),
    [
        (0, 101, MemPriv.ALL, dat.DatInvalidParameter),
        (0, 0, MemPriv.ALL, dat.DatInvalidParameter),
        (0, -1, MemPriv.ALL, dat.DatInvalidParameter),
        (0, 100, 0x100, dat.DatInvalidParameter),
        (2, 100, MemPriv.ALL, dat.DatModelNotSupported),
        (9, 100, MemPriv.ALL, dat.DatInvalidParameter),
        (1, 100, MemPriv.ALL, dat.DatInvalidHandle),
    ],
)
def test_a_registration_that_is_refused_leaves_nothing(
    ia: InterfaceAdapter,
    mem_type: int,
    length_bytes: int,
    privileges: int,
    expected: type[dat.DatError],
) -> None:
    pz = ia.create_pz()
    with pytest.raises(expected):
        LocalMemory(pz, bytearray(100), privileges, mem_type, length_bytes)
    pz.free()


def test_a_buffer_is_exported_until_its_region_is_freed(ia: InterfaceAdapter) -> None:
    """Then it may be resized, unless the program itself holds a slice of the view."""
    data, sliced = bytearray(8), bytearray(8)
    pz = ia.create_pz()
    regions = [pz.register(data), pz.register(sliced)]
    part = regions[1].view[2:]
    with pytest.raises(BufferError):
        data.extend(b"x")
    for region in regions:
        region.free()
    data.extend(b"x")
    part[0] = 7
    assert (len(data), sliced[2]) == (9, 7)


def test_without_remote_rights_there_is_no_context_for_peers(ia: InterfaceAdapter) -> None:
    lmr = ia.create_pz().register(bytearray(8), MemPriv.LOCAL_WRITE)
    assert lmr.rmr_context == 0
    assert lmr.lmr_context != 0
    with pytest.raises(dat.DatPrivilegesViolation):
        lmr.remote_triplet()


def test_a_region_of_a_region_is_the_same_memory_with_other_rights(ia: InterfaceAdapter) -> None:
    """In another zone even; it outlives the first."""
    first = ia.create_pz().register(bytearray(8), MemPriv.LOCAL_WRITE)
    second = ia.create_pz().register(first, REMOTE, MemType.LMR)
    assert (second.address, second.size) == (first.address, first.size)
    assert second.lmr_context != first.lmr_context
    assert second.rmr_context != 0
    assert second.query().region_desc is first
    first.free()
    second.view[0] = 9
    assert second.view[0] == 9


def test_pieces_are_inside(ia: InterfaceAdapter) -> None:
    lmr = ia.create_pz().register(bytearray(100))
    assert lmr.triplet(10, 20) == LmrTriplet(lmr.lmr_context, lmr.address + 10, 20)
    assert lmr.remote_triplet(90) == RmrTriplet(lmr.rmr_context, lmr.address + 90, 10)
    for offset, count in ((0, 101), (101, 0), (-1, 1), (50, -1), (60, 41)):
        with pytest.raises(dat.DatInvalidParameter):
            lmr.triplet(offset, count)


def test_pieces_are_checked_when_memory_is_synchronised(ia: InterfaceAdapter) -> None:
    lmr = ia.create_pz().register(bytearray(100))
    good, empty = lmr.triplet(), LmrTriplet(77, 77, 0)
    assert dat.dat_lmr_sync_rdma_read(ia, [good, empty], 2) == dat.DAT_SUCCESS
    assert dat.dat_lmr_sync_rdma_write(ia, None, 0) == dat.DAT_SUCCESS
    outside = LmrTriplet(lmr.lmr_context, lmr.address + 1, 100)
    assert dat.dat_lmr_sync_rdma_write(ia, [good, outside], 2) == dat.DAT_INVALID_PARAMETER
    assert dat.dat_lmr_sync_rdma_read(ia, [good], 2) == dat.DAT_INVALID_PARAMETER
    lmr.free()
    assert dat.dat_lmr_sync_rdma_read(ia, [good], 1) == dat.DAT_PRIVILEGES_VIOLATION


def test_a_zone_is_in_use_while_memory_is(ia: InterfaceAdapter) -> None:
    pz = ia.create_pz()
    for item in (pz.register(bytearray(8)), pz.create_rmr()):
        with pytest.raises(dat.DatInvalidState) as caught:
            pz.free()
        assert caught.value.subtype == Subtype.INVALID_STATE_PZ_IN_USE
        item.free()
    pz.free()


def test_limits_of_memory_are_the_adapters() -> None:
    with open_fake(max_mr=1, max_mw=1, max_pd=1, max_mr_size=64) as ia:
        pz = ia.create_pz()
        with pytest.raises(dat.DatInvalidParameter):
            pz.register(bytearray(65))
        pz.register(bytearray(64))
        pz.create_rmr()
        for call, subtype in (
            (lambda: pz.register(bytearray(8)), Subtype.RESOURCE_MEMORY_REGION),
            (pz.create_rmr, Subtype.RESOURCE_MEMORY_REGION),
            (ia.create_pz, Subtype.RESOURCE_PROTECTION_DOMAIN),
        ):
            with pytest.raises(dat.DatInsufficientResources) as caught:
                call()
            assert caught.value.subtype == subtype


def test_a_device_without_windows_has_no_remote_memory() -> None:
    with open_fake(memory_windows=False) as ia:
        pz = ia.create_pz()
        assert dat.dat_rmr_create(pz) == (dat.DAT_MODEL_NOT_SUPPORTED, None)
        pz.free()


# -- windows, over a simulated network


@dataclass
class Side:
    """One end of a connection."""

    ia: InterfaceAdapter
    pz: ProtectionZone
    requests: EventDispatcher
    connection: EventDispatcher
    ep: Endpoint
    memory: LocalMemory


@pytest.fixture
def sides() -> Iterator[tuple[Side, Side]]:
    """Connect two endpoints; nothing is remotely accessible in their memory."""
    network = SimNetwork(seed=1)
    infos = [dat.register(f"memory-{name}", partial(network.adapter, name)) for name in "ab"]
    with dat.open("memory-a") as first, dat.open("memory-b") as second:
        ends = [make_side(first), make_side(second)]
        requests = second.create_evd(4, EvdFlag.CR)
        second.listen(45248, evd=requests)
        ends[0].ep.connect(second.attr.ia_address_ptr, 45248)
        event = requests.wait(WAIT_S)
        assert isinstance(event, dat.ConnectionRequestEvent)
        event.cr.accept(ends[1].ep)
        for end in ends:
            assert end.connection.wait(WAIT_S).event_number is EventNumber.CONNECTION_ESTABLISHED
        yield ends[0], ends[1]
    for info in infos:
        dat.unregister(info)


def make_side(ia: InterfaceAdapter) -> Side:
    pz = ia.create_pz()
    requests = ia.create_evd(16, EvdFlag.DTO | EvdFlag.RMR_BIND)
    connection = ia.create_evd(4, EvdFlag.CONNECTION)
    ep = pz.create_ep(ia.create_evd(16, EvdFlag.DTO), requests, connection)
    memory = pz.register(bytearray(256), MemPriv.LOCAL_READ | MemPriv.LOCAL_WRITE)
    return Side(ia, pz, requests, connection, ep, memory)


def status_of(event: object) -> DtoStatus:
    assert isinstance(event, dat.DtoCompletionEvent | dat.RmrBindCompletionEvent)
    return event.status


def write(source: Side, context: int, address: int, data: bytes) -> DtoStatus:
    """Write to a peer's memory and return how it ended."""
    source.memory.view[: len(data)] = data
    piece = source.memory.triplet(0, len(data))
    source.ep.post_rdma_write([piece], RmrTriplet(context, address, len(data)))
    return status_of(source.requests.wait(WAIT_S))


def test_a_bound_window_lets_a_peer_in_where_it_points(sides: tuple[Side, Side]) -> None:
    near, far = sides
    rmr = far.pz.create_rmr()
    context = rmr.bind(far.ep, far.memory.triplet(100, 50), MemPriv.REMOTE_WRITE, "mine")
    event = far.requests.wait(WAIT_S)
    assert isinstance(event, dat.RmrBindCompletionEvent)
    assert event.event_number is EventNumber.RMR_BIND_COMPLETION
    assert (event.rmr_handle, event.user_cookie, event.status) == (rmr, "mine", DtoStatus.SUCCESS)
    assert write(near, context, far.memory.address + 100, b"inside") is DtoStatus.SUCCESS
    assert bytes(far.memory.view[100:106]) == b"inside"
    param = rmr.query()
    assert (param.rmr_context, param.mem_priv) == (context, MemPriv.REMOTE_WRITE)
    assert param.lmr_triplet == far.memory.triplet(100, 50)


@pytest.mark.parametrize(("offset", "length_bytes"), [(98, 4), (148, 4), (0, 1), (2**40, 1)])
def test_outside_its_window_a_peer_breaks_the_connection(
    sides: tuple[Side, Side], offset: int, length_bytes: int
) -> None:
    near, far = sides
    rmr = far.pz.create_rmr()
    context = rmr.bind(far.ep, far.memory.triplet(100, 50), MemPriv.REMOTE_WRITE)
    before = bytes(far.memory.view)
    status = write(near, context, far.memory.address + offset, b"x" * length_bytes)
    assert status is DtoStatus.ERR_REMOTE_ACCESS
    assert bytes(far.memory.view) == before
    for side in sides:
        assert side.connection.wait(WAIT_S).event_number is EventNumber.CONNECTION_BROKEN


def test_an_old_context_is_refused_after_the_window_was_bound_again(
    sides: tuple[Side, Side],
) -> None:
    near, far = sides
    rmr = far.pz.create_rmr()
    contexts = [rmr.bind(far.ep, far.memory.triplet(0, 50), MemPriv.REMOTE_WRITE) for _ in range(3)]
    assert len(set(contexts)) == 3
    assert write(near, contexts[2], far.memory.address, b"new") is DtoStatus.SUCCESS
    assert write(near, contexts[1], far.memory.address, b"old") is DtoStatus.ERR_REMOTE_ACCESS


def test_a_piece_of_no_bytes_unbinds(sides: tuple[Side, Side]) -> None:
    """The region may go then; a window that was never bound takes it too."""
    near, far = sides
    rmr = far.pz.create_rmr()
    rmr.bind(far.ep, LmrTriplet(0, 0, 0), 0)
    context = rmr.bind(far.ep, far.memory.triplet(), MemPriv.REMOTE_WRITE)
    assert dat.dat_lmr_free(far.memory).subtype == Subtype.INVALID_STATE_LMR_IN_USE
    rmr.bind(far.ep, LmrTriplet(0, 0, 0), 0)
    assert [status_of(far.requests.wait(WAIT_S)) for _ in range(3)] == [DtoStatus.SUCCESS] * 3
    assert rmr.query().lmr_triplet is None
    address = far.memory.address
    far.memory.free()
    assert write(near, context, address, b"gone") is DtoStatus.ERR_REMOTE_ACCESS
    adapter = far.ia.adapter
    far.ia.close()
    assert adapter.region_count == 0


def test_a_freed_window_is_unbound(sides: tuple[Side, Side]) -> None:
    near, far = sides
    rmr = far.pz.create_rmr()
    context = rmr.bind(far.ep, far.memory.triplet(), MemPriv.REMOTE_WRITE)
    rmr.free()
    address = far.memory.address
    far.memory.free()
    assert write(near, context, address, b"x") is DtoStatus.ERR_REMOTE_ACCESS


def test_a_bind_that_was_done_holds_though_it_was_flushed(sides: tuple[Side, Side]) -> None:
    """It waited for a send before it, which the disconnect flushed: the window is bound."""
    _, far = sides
    rmr = far.pz.create_rmr()
    far.ep.post_send([far.memory.triplet(0, 1)])  # for which there is no receive
    rmr.bind(far.ep, far.memory.triplet(), MemPriv.REMOTE_WRITE)
    far.ep.disconnect()
    assert [status_of(far.requests.wait(WAIT_S)) for _ in range(2)] == [DtoStatus.ERR_FLUSHED] * 2
    assert rmr.query().lmr_triplet == far.memory.triplet()
    with pytest.raises(dat.DatInvalidState):
        far.memory.free()
    rmr.free()
    far.memory.free()


def test_a_bind_that_was_flushed_leaves_the_window_as_it_was(sides: tuple[Side, Side]) -> None:
    _, far = sides
    rmr = far.pz.create_rmr()
    before = rmr.query()
    far.ep.disconnect()
    rmr.bind(far.ep, far.memory.triplet(), MemPriv.REMOTE_WRITE)
    assert status_of(far.requests.wait(WAIT_S)) is DtoStatus.ERR_FLUSHED
    assert rmr.query() == before
    assert not far.memory.in_use


@pytest.mark.parametrize(
    ("given", "expected", "subtype"),
    [
        ("outside", dat.DatInvalidParameter, Subtype.INVALID_ARG2),
        ("stale", dat.DatPrivilegesViolation, Subtype.NO_SUBTYPE),
        ("zone", dat.DatProtectionViolation, Subtype.NO_SUBTYPE),
        ("right", dat.DatPrivilegesViolation, Subtype.PRIVILEGES_RDMA_WRITE),
        ("flags", dat.DatInvalidParameter, Subtype.INVALID_ARG3),
        ("nothing", dat.DatInvalidParameter, Subtype.INVALID_ARG2),
    ],
)
def test_a_bind_that_is_refused_changes_nothing(
    sides: tuple[Side, Side], given: str, expected: type[dat.DatError], subtype: Subtype
) -> None:
    _, far = sides
    memory, rmr = far.memory, far.pz.create_rmr()
    foreign = far.ia.create_pz().register(bytearray(8))
    read_only = far.pz.register(bytearray(8), MemPriv.LOCAL_READ)
    pieces: dict[str, object] = {
        "outside": LmrTriplet(memory.lmr_context, memory.address + 1, memory.size),
        "stale": LmrTriplet(memory.lmr_context + 1, memory.address, 1),
        "zone": foreign.triplet(),
        "right": read_only.triplet(),
        "flags": memory.triplet(),
        "nothing": None,
    }
    privileges = 0x44 if given == "flags" else MemPriv.REMOTE_WRITE
    before = rmr.query()
    with pytest.raises(expected) as caught:
        rmr.bind(far.ep, pieces[given], privileges)  # type: ignore[arg-type]  # one is wrong
    assert caught.value.subtype == subtype
    assert rmr.query() == before
    assert not memory.in_use


def test_a_bind_needs_a_connection(sides: tuple[Side, Side]) -> None:
    _, far = sides
    idle = far.pz.create_ep(None, far.requests, None, dat.EpAttr(max_recv_dtos=0))
    rmr = far.pz.create_rmr()
    context = rmr.rmr_context
    with pytest.raises(dat.DatInvalidState):
        rmr.bind(idle, far.memory.triplet(), REMOTE)
    assert rmr.rmr_context == context
    assert not far.memory.in_use


def test_freed_memory_fails_where_it_is_used(sides: tuple[Side, Side]) -> None:
    """Here: refused at the post. There: a remote access error, and the connection breaks."""
    near, far = sides
    shared = far.pz.register(bytearray(16))
    target, own = shared.remote_triplet(), near.pz.register(bytearray(16))
    piece = own.triplet()
    own.free()
    with pytest.raises(dat.DatPrivilegesViolation):
        near.ep.post_send([piece])
    shared.free()
    status = write(near, target.rmr_context, target.target_address, b"x")
    assert status is DtoStatus.ERR_REMOTE_ACCESS
