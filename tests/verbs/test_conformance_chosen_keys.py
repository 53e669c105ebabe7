"""Conformance: memory under a key that its owner chose, the same one on several devices."""

import pytest

from tests.verbs.conformance import EVERYTHING, Side, World, shows
from urds.verbs import SGE, AsyncEventType, WCStatus, WROpcode
from urds.verbs.engine.keys import Region

KEY = 0x1234_5678
ADDRESS = 0x2A8  # an offset in a page, as RDS names its regions
BYTES = 1 << 16

OF_DEVICE = pytest.mark.parametrize("of_device", [False, True], ids=["any memory", "the device's"])


def lay_open(side: Side, *, of_device: bool) -> Region:
    """Register memory of this process, or what peers of `shm` can map, under the key."""
    adapter = side.context.adapter
    view = adapter.allocate(BYTES) if of_device else memoryview(bytearray(BYTES))
    with adapter.lock:
        return adapter.register(side.pd.engine, view, ADDRESS, EVERYTHING, key=KEY)


@OF_DEVICE
@shows(WROpcode.RDMA_WRITE, WROpcode.RDMA_READ)
def test_the_chosen_key_names_memory_on_both_sides(world: World, of_device: bool) -> None:
    """Each side has a region of that key: what is local and what remote stays apart."""
    pair = world.pair()
    here, there = (lay_open(side, of_device=of_device) for side in (pair.left, pair.right))
    assert here.lkey == there.rkey == KEY
    here.view[:], there.view[-8:] = b"h" * BYTES, b"the last"
    half = BYTES // 2
    remote = {"rkey": KEY, "remote_addr": ADDRESS}
    for wr_id in range(3):  # a peer of `shm` asks for the memory at first, then writes itself
        sg = [SGE(ADDRESS, half, KEY)]
        pair.left.post(WROpcode.RDMA_WRITE, sg=sg, wr_id=wr_id, **remote)
        assert pair.left.ended() == [WCStatus.SUCCESS]
    remote["remote_addr"] += BYTES - 8
    sg = [SGE(ADDRESS + BYTES - 8, 8, KEY)]
    pair.left.post(WROpcode.RDMA_READ, sg=sg, wr_id=3, **remote)
    assert pair.left.ended() == [WCStatus.SUCCESS]
    assert there.view[: half + 1] == b"h" * half + b"\0"
    assert here.view[-9:] == b"hthe last"


@OF_DEVICE
@shows(WCStatus.REM_ACCESS_ERR, AsyncEventType.QP_ACCESS_ERR)
def test_a_chosen_key_ends_with_its_region(world: World, of_device: bool) -> None:
    pair = world.pair()
    left, right = pair.left, pair.right
    region = lay_open(right, of_device=of_device)
    view = region.view
    for wr_id in range(2):
        left.post(WROpcode.RDMA_WRITE, 5000, rkey=KEY, remote_addr=ADDRESS, wr_id=wr_id)
        assert left.ended() == [WCStatus.SUCCESS]
    with right.context.adapter.lock:
        right.context.adapter.deregister(region)
    left.mr.write(b"late")
    left.post(WROpcode.RDMA_WRITE, 5000, rkey=KEY, remote_addr=ADDRESS, wr_id=2)
    assert left.ended() == [WCStatus.REM_ACCESS_ERR]
    right.event(AsyncEventType.QP_ACCESS_ERR)
    assert view[:5000] == bytes(5000)
