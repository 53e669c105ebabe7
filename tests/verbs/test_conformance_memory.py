"""Conformance: devices, domains, regions and windows, and who may use which memory."""

import errno
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.verbs.conformance import (
    EVERYTHING,
    REGION_BYTES,
    Memory,
    Pair,
    Side,
    World,
    broke_in_order,
    refuses,
    shows,
)
from urds.verbs import (
    CQ,
    MR,
    MW,
    PD,
    QP,
    SRQ,
    AccessFlag,
    AsyncEventType,
    CompChannel,
    Context,
    MWBind,
    MWBindInfo,
    MWType,
    ReceiveOrder,
    VerbsArgumentError,
    VerbsClosedError,
    VerbsError,
    WCFlag,
    WCOpcode,
    WCStatus,
    WROpcode,
)
from urds.verbs.providers.shm import adapter

REMOTE = AccessFlag.REMOTE_READ | AccessFlag.REMOTE_WRITE
_WRITTEN = AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_WRITE


# -- devices


def test_a_device_says_what_it_is_and_what_it_can_do(world: World) -> None:
    context = world.context()
    attributes = context.query_device()
    assert attributes.link.lossless is world.is_lossless
    assert attributes.link.mtu_bytes >= 256
    assert ReceiveOrder.IN_ORDER in attributes.receive_order
    assert attributes.max_msg_sz >= REGION_BYTES
    port = context.query_port()
    assert (port.state, port.gid_tbl_len, port.pkey_tbl_len) == (4, 1, 1)
    assert 1 << port.active_mtu + 7 <= port.mtu_bytes == attributes.link.mtu_bytes
    assert len(bytes(context.query_gid())) == 16
    assert context.query_pkey() == 0xFFFF


@pytest.mark.parametrize(
    "query",
    [
        lambda context: context.query_port(0),
        lambda context: context.query_port(2),
        lambda context: context.query_gid(1, 1),
        lambda context: context.query_gid(1, -1),
        lambda context: context.query_gid(2, 0),
        lambda context: context.query_pkey(1, 1),
    ],
)
def test_bad_indices_are_refused(world: World, query: Callable[[Context], object]) -> None:
    with pytest.raises(
        VerbsArgumentError, match=r"there is only (port 1|GID index 0|P_Key index 0)"
    ):
        query(world.context())


def test_openings_are_apart(world: World) -> None:
    """Keys of one opening mean nothing in another, and closing one leaves the other open."""
    left, right = world.side(), world.side()
    with pytest.raises(VerbsArgumentError, match="another device's"):
        QP(left.pd, right.init_attr)
    with pytest.raises(VerbsArgumentError, match="another device's"):
        left.mr.rereg(pd=right.pd)
    right.context.close()
    assert left.mr.read(1) == b"\0"
    with pytest.raises(VerbsClosedError):
        PD(right.context)


# -- domains


def test_a_domain_is_made_and_closed(world: World) -> None:
    context = world.context()
    domains = [PD(context) for _ in range(20)]
    for domain in domains:
        domain.close()
        domain.close()
    for make in (lambda pd: MR(pd, 64), SRQ, world.memory):
        with pytest.raises(VerbsClosedError):
            make(domains[0])
    assert MR(PD(context), 64).length == 64


# -- regions


@pytest.mark.parametrize(
    ("buffer", "access"),
    [
        (bytearray(8), 0x20_0000_0000),
        (bytearray(8), 0x400),
        (bytearray(8), AccessFlag.REMOTE_WRITE),
        (bytearray(8), AccessFlag.REMOTE_ATOMIC),
        (bytearray(0), AccessFlag.LOCAL_WRITE),
        (bytes(8), AccessFlag.LOCAL_WRITE),
        (memoryview(bytearray(8))[::2], AccessFlag.LOCAL_WRITE),
        (0, AccessFlag.LOCAL_WRITE),
        (-1, AccessFlag.LOCAL_WRITE),
        (1 << 60, AccessFlag.LOCAL_WRITE),
    ],
)
def test_regions_that_cannot_be_are_refused(
    world: World, buffer: bytearray | bytes | int, access: int
) -> None:
    pd = PD(world.context())
    with pytest.raises(VerbsArgumentError):
        MR(pd, buffer, access)
    assert pd.context.adapter.region_count == 0


@pytest.mark.parametrize("address", [0, 1, 1 << 40, (1 << 64) - REGION_BYTES])
def test_a_region_is_named_by_any_address(world: World, address: int) -> None:
    pair = world.pair()
    left, right = pair.left, pair.right
    named = world.memory(right.pd, address=address).mr
    left.mr.write(b"named")
    left.post(WROpcode.RDMA_WRITE, 5, to=named, at=REGION_BYTES - 5)
    left.post(WROpcode.RDMA_READ, 5, offset=100, to=named, at=REGION_BYTES - 5)
    assert left.ended(2) == [WCStatus.SUCCESS] * 2
    assert named.read(5, REGION_BYTES - 5) == left.mr.read(5, 100) == b"named"


def test_an_address_beyond_64_bits_is_refused(world: World) -> None:
    pd = PD(world.context())
    with pytest.raises(VerbsArgumentError, match="outside 64 bits"):
        MR(pd, 4096, address=(1 << 64) - 4095)


def test_each_registration_has_keys_of_its_own(world: World) -> None:
    pd = PD(world.context())
    buffer = bytearray(64)
    regions = [MR(pd, buffer) for _ in range(50)]
    keys = {region.rkey for region in regions} | {region.lkey for region in regions}
    assert len(keys) == 50 and 0 not in keys
    old = regions[0].rkey
    regions[0].close()
    assert MR(pd, buffer).rkey != old


def test_keys_are_drawn_and_no_key_tells_the_next(world: World) -> None:
    """Two devices that are opened and used alike have no key in common, nor one after the other."""
    if world.is_simulated:
        pytest.skip("a simulation is its seed's alone")
    pds, buffer = [PD(world.context()) for _ in range(2)], bytearray(64)
    keys = [[MR(pd, buffer).rkey for _ in range(8)] for pd in pds]
    assert not set(keys[0]) & set(keys[1])
    steps = {after - before for row in keys for before, after in pairwise(row)}
    assert len(steps) == 14


@shows(WCStatus.REM_ACCESS_ERR)
@pytest.mark.parametrize("change", ["access", "domain", "address", "closed"])
def test_a_region_that_has_changed_fails_its_old_keys_and_rights(world: World, change: str) -> None:
    pair = world.pair()
    left, right = pair.left, pair.right
    mr = world.memory(right.pd).mr
    rkey, address = mr.rkey, mr.buf
    left.post(WROpcode.RDMA_WRITE, 4, to=mr)
    assert left.ended() == [WCStatus.SUCCESS]
    if change == "access":
        mr.rereg(access=AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_READ)
    elif change == "domain":
        mr.rereg(pd=PD(right.context))
    elif change == "address":
        mr.rereg(address=address)
    else:
        mr.close()
    assert (mr.rkey == rkey) == (change != "address")
    left.post(WROpcode.RDMA_WRITE, 4, rkey=rkey, remote_addr=address)
    assert left.ended() == [WCStatus.REM_ACCESS_ERR]
    right.event(AsyncEventType.QP_ACCESS_ERR)


def test_a_peer_goes_on_with_its_key_after_a_change_of_rights(world: World) -> None:
    pair = world.pair()
    left, right = pair.left, pair.right
    mr = world.memory(right.pd).mr
    rkey, address = mr.rkey, mr.buf
    for data, access in ((b"one", EVERYTHING), (b"two", _WRITTEN), (b"six", EVERYTHING)):
        mr.rereg(access=access)
        left.mr.write(data)
        left.post(WROpcode.RDMA_WRITE, 3, rkey=rkey, remote_addr=address)
        assert left.ended() == [WCStatus.SUCCESS]
        assert mr.read(3) == data


def test_a_region_moves_to_other_memory(world: World) -> None:
    pair = world.pair()
    left, right = pair.left, pair.right
    mr, other = world.memory(right.pd).mr, bytearray(100)
    mr.rereg(buffer=other, address=1 << 30)
    left.mr.write(b"moved")
    left.post(WROpcode.RDMA_WRITE, 5, to=mr, at=95)
    assert left.ended() == [WCStatus.SUCCESS]
    assert other == bytes(95) + b"moved"
    left.post(WROpcode.RDMA_WRITE, 6, to=mr, at=95)
    assert left.ended() == [WCStatus.REM_ACCESS_ERR]
    assert other == bytes(95) + b"moved"


# -- windows


def bound(pair: Pair, mw_type: MWType, offset: int, length: int) -> MW:
    """Bind a window of the right side over a part of its memory."""
    right = pair.right
    window = MW(right.pd, mw_type)
    info = MWBindInfo(right.mr, right.mr.buf + offset, length, REMOTE)
    right._opcodes[0] = WROpcode.BIND_MW
    right.qp.bind_mw(window, MWBind(info))
    wc = right.sent()[0]
    assert (wc.status, wc.opcode) == (WCStatus.SUCCESS, WCOpcode.BIND_MW)
    return window


def lacks_windows(world: World, pair: Pair) -> bool:
    """Show the refusals of a device without windows."""
    if not world.lacks("memory_windows"):
        return False
    refuses(lambda: MW(pair.left.pd))
    for opcode in (WROpcode.BIND_MW, WROpcode.LOCAL_INV, WROpcode.SEND_WITH_INV):
        refuses(lambda opcode=opcode: pair.left.post(opcode))
    return True


@shows(WROpcode.BIND_MW, WCStatus.REM_ACCESS_ERR)
@pytest.mark.parametrize("mw_type", list(MWType))
def test_a_window_shows_its_part_and_no_more(world: World, mw_type: MWType) -> None:
    pair = world.pair()
    if lacks_windows(world, pair):
        return
    left, right = pair.left, pair.right
    window = bound(pair, mw_type, 100, 50)
    left.mr.write(b"x" * 51)
    address = right.mr.buf + 100
    for opcode in (WROpcode.RDMA_WRITE, WROpcode.RDMA_READ):
        left.post(opcode, 50, rkey=window.rkey, remote_addr=address)
        assert left.ended() == [WCStatus.SUCCESS]
    left.post(WROpcode.RDMA_WRITE, 51, rkey=window.rkey, remote_addr=address)
    assert left.ended() == [WCStatus.REM_ACCESS_ERR]
    assert right.mr.read(200) == bytes(100) + b"x" * 50 + bytes(50)


def test_a_region_stays_while_windows_are_bound(world: World) -> None:
    pair = world.pair()
    if lacks_windows(world, pair):
        return
    window = bound(pair, MWType.TYPE_1, 0, 10)
    for change in (pair.right.mr.close, lambda: pair.right.mr.rereg(access=EVERYTHING)):
        with pytest.raises(VerbsError) as caught:
            change()
        assert caught.value.errno == errno.EBUSY
    window.close()
    pair.right.mr.rereg(access=EVERYTHING)
    pair.right.mr.close()


@pytest.mark.parametrize("how", ["bound anew", "unbound", "closed"])
def test_a_window_of_type_1_is_taken_back(world: World, how: str) -> None:
    pair = world.pair()
    if lacks_windows(world, pair):
        return
    left, right = pair.left, pair.right
    window = bound(pair, MWType.TYPE_1, 0, 10)
    old = window.rkey
    if how == "closed":
        window.close()
    else:
        length = 10 if how == "bound anew" else 0
        right.qp.bind_mw(window, MWBind(MWBindInfo(right.mr, right.mr.buf, length, REMOTE)))
        assert right.ended() == [WCStatus.SUCCESS]
        assert window.is_bound is bool(length)
    left.post(WROpcode.RDMA_WRITE, 4, rkey=old, remote_addr=right.mr.buf)
    assert left.ended() == [WCStatus.REM_ACCESS_ERR]


@shows(WROpcode.LOCAL_INV, WCStatus.LOC_QP_OP_ERR)
def test_a_window_is_invalidated_here(world: World) -> None:
    pair = world.pair()
    if lacks_windows(world, pair):
        return
    right = pair.right
    window = bound(pair, MWType.TYPE_2, 0, 10)
    right.post(WROpcode.LOCAL_INV, 0, invalidate_rkey=window.rkey)
    assert right.sent()[0].opcode is WCOpcode.LOCAL_INV
    assert not window.is_bound
    # Its key is gone now: a second time is an error of this side.
    with right.context.adapter.lock:
        right.post(WROpcode.LOCAL_INV, 0, invalidate_rkey=window.rkey)
        right.post(wr_id=1)
    broke_in_order(right.ended(2), WCStatus.LOC_QP_OP_ERR)


@shows(WROpcode.SEND_WITH_INV, WCStatus.SUCCESS)
def test_a_window_is_invalidated_by_the_peer(world: World) -> None:
    pair = world.pair()
    if lacks_windows(world, pair):
        return
    left, right = pair.left, pair.right
    window = bound(pair, MWType.TYPE_2, 0, 10)
    right.receive(8, offset=100)
    left.post(WROpcode.SEND_WITH_INV, 8, invalidate_rkey=window.rkey)
    wc = right.received()[0]
    assert (wc.wc_flags, wc.imm_data) == (WCFlag.WITH_INV, window.rkey)
    assert left.sent()[0].opcode is WCOpcode.SEND
    assert not window.is_bound
    left.post(WROpcode.RDMA_READ, 4, rkey=window.rkey, remote_addr=right.mr.buf)
    assert left.ended() == [WCStatus.REM_ACCESS_ERR]


@shows(WCStatus.REM_INV_REQ_ERR, AsyncEventType.QP_REQ_ERR)
@pytest.mark.parametrize("what", ["region", "type 1", "nothing"])
def test_the_peer_invalidates_nothing_else(world: World, what: str) -> None:
    pair = world.pair()
    if lacks_windows(world, pair):
        return
    left, right = pair.left, pair.right
    rkey = 0x1234_5678
    if what != "nothing":
        rkey = bound(pair, MWType.TYPE_1, 0, 10).rkey if what == "type 1" else right.mr.rkey
    right.receive(8)
    left.post(WROpcode.SEND_WITH_INV, 8, invalidate_rkey=rkey)
    assert left.ended() == [WCStatus.REM_INV_REQ_ERR]
    assert right.received()[0].status is WCStatus.WR_FLUSH_ERR
    right.event(AsyncEventType.QP_REQ_ERR)


@shows(WCStatus.MW_BIND_ERR, WCStatus.WR_FLUSH_ERR)
@pytest.mark.parametrize("fault", ["range", "region", "domain", "twice", "length"])
def test_bindings_that_cannot_be(world: World, fault: str) -> None:
    pair = world.pair()
    if lacks_windows(world, pair):
        return
    right = pair.right
    mr, offset, length, kind = right.mr, 0, 10, MWType.TYPE_1
    window = None
    if fault == "range":
        offset = REGION_BYTES - 9
    elif fault == "region":
        mr = world.memory(right.pd, access=EVERYTHING & ~AccessFlag.MW_BIND).mr
    elif fault == "domain":
        mr = world.memory(PD(right.context)).mr
    elif fault == "twice":
        window = bound(pair, MWType.TYPE_2, 0, 10)
    else:
        length, kind = 0, MWType.TYPE_2
    window = window or MW(right.pd, kind)
    with right.context.adapter.lock:
        right.qp.bind_mw(window, MWBind(MWBindInfo(mr, mr.buf + offset, length, REMOTE)))
        right.post(wr_id=1)
    broke_in_order(right.ended(2), WCStatus.MW_BIND_ERR)
    assert window.is_bound is (fault == "twice")


# -- nothing outside


def reaches(mr: MR, address: int, length: int) -> bool:
    return length == 0 or (mr.buf <= address and address + length <= mr.buf + mr.length)


ADDRESSES = st.one_of(
    st.integers(-80, 80), st.integers(700, 860), st.integers(0, (1 << 64) - 1), st.just(-1 << 40)
)


def write_until_placed(left: Side, mr: MR) -> None:
    """Have left ask for the peer's memory and, over shm, have it, which takes the peer its time."""
    device = left.context.adapter
    for number in range(100):
        before = getattr(device, "writes_placed", 0)
        left.mr.write(bytes(8))
        left.post(WROpcode.RDMA_WRITE, 8, to=mr)
        assert left.ended() == [WCStatus.SUCCESS]
        if number >= 2 and getattr(device, "writes_placed", 1) > before:
            return
    pytest.fail("the peer lends no memory")


@settings(max_examples=examples(40))
@given(
    opcode=st.sampled_from([WROpcode.RDMA_WRITE, WROpcode.RDMA_READ]),
    at=ADDRESSES,
    length=st.integers(0, 900),
    key=st.sampled_from(["right", "other", "variant", "zero"]),
    is_mapped=st.booleans(),
)
def check_access(
    pair: Pair,
    opcode: WROpcode,
    at: int,
    length: int,
    key: str,
    is_mapped: bool,
) -> None:
    """One request with any address, length and key; `is_mapped`: memory that shm peers may map."""
    world, left, right = pair.left.world, pair.left, pair.right
    memory = Memory(right.pd, 800)
    mapped = MR(right.pd, 8192, EVERYTHING)
    mr = mapped if is_mapped else memory.mr
    other = right.mr
    rkey = {"right": mr.rkey, "other": other.rkey, "variant": mr.rkey ^ 1, "zero": 0}[key]
    address = (mr.buf + at) % (1 << 64)
    if left.qp.qp_state.name != "RTS":
        left.told.clear()
        right.told.clear()
        left.qp, right.qp = (QP(side.pd, side.init_attr, side.attr) for side in (left, right))
        pair.connect()
    if is_mapped:
        write_until_placed(left, mr)
    left.mr.write(b"\xff" * 900)
    left.post(opcode, length, rkey=rkey, remote_addr=address)
    status = left.ended()[0]
    good = length == 0 or (key == "right" and reaches(mr, address, length))
    if key == "other" and reaches(other, address, length):
        good = True
    assert status is (WCStatus.SUCCESS if good else WCStatus.REM_ACCESS_ERR)
    assert memory.is_guarded() and world.is_guarded()
    expected = bytearray(mr.length)
    if good and key == "right" and opcode is WROpcode.RDMA_WRITE and length:
        start = address - mr.buf
        expected[start : start + length] = b"\xff" * length
    assert mr.read() == expected
    memory.mr.close()
    mapped.close()


def test_no_address_length_or_key_reaches_anything_outside(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "PLACED_BYTES_MIN", 1)  # of shm
    pair = world.pair()
    check_access(pair)
    if world.provider == "shm":  # writes through a loan are among those that were checked
        assert pair.left.context.adapter.writes_placed > 10  # type: ignore[attr-defined]  # of shm alone


def test_objects_of_a_closed_device_say_so(world: World) -> None:
    side = world.side()
    side.context.close()
    for call in (
        lambda: PD(side.context),
        lambda: CQ(side.context, 4),
        lambda: CompChannel(side.context),
        side.mr.read,
        side.qp.query,
        side.post,
    ):
        with pytest.raises(VerbsClosedError):
            call()
