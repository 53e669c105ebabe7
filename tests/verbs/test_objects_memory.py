"""Memory regions over every kind of buffer, and memory windows."""

import array
import ctypes
import errno
import mmap
from collections.abc import Callable
from typing import Any

import pytest

import urds.verbs.enums as e
from tests.verbs.objects_world import EVERYTHING, Side, World
from urds.verbs import (
    MR,
    MW,
    PD,
    AccessFlag,
    Context,
    MWBind,
    MWBindInfo,
    SendWR,
    VerbsArgumentError,
    VerbsClosedError,
    VerbsError,
    VerbsNotSupportedError,
    WCStatus,
    WROpcode,
)
from urds.verbs.providers.sim import SimNetwork

WRITE = AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_WRITE


@pytest.fixture
def pd() -> PD:
    return PD(Context(adapter=SimNetwork().adapter("only")))


def numpy_array() -> Any:
    numpy = pytest.importorskip("numpy")
    return numpy.zeros((4, 8), dtype=numpy.float64)


def numpy_records() -> Any:
    numpy = pytest.importorskip("numpy")
    return numpy.zeros(16, dtype=[("number", ">i4"), ("value", "<c16")])


BUFFERS: list[Callable[[], Any]] = [
    lambda: bytearray(64),
    lambda: memoryview(bytearray(96))[16:80],
    lambda: mmap.mmap(-1, 4096),
    lambda: array.array("d", [0.0] * 8),
    ctypes.c_uint32 * 16,
    numpy_array,
    numpy_records,
]


@pytest.mark.parametrize("make", BUFFERS)
def test_any_writable_buffer_is_registered_in_place(pd: PD, make: Callable[[], Any]) -> None:
    buffer = make()
    size = memoryview(buffer).nbytes
    with MR(pd, buffer, WRITE) as mr:
        assert mr.length == size
        assert mr.view.format == "B"
        assert mr.write(b"in place", offset=size - 8) == 8
        assert memoryview(buffer).tobytes()[-8:] == b"in place"
        assert mr.read(8, size - 8) == b"in place"


def test_the_address_is_the_real_one(pd: PD) -> None:
    buffer = (ctypes.c_char * 32)()
    with MR(pd, buffer) as mr:
        assert mr.buf == ctypes.addressof(buffer)
    with MR(pd, buffer, address=0x5000) as named:
        assert (named.buf, named.sge(4).addr) == (0x5000, 0x5004)


@pytest.mark.parametrize(
    ("buffer", "match"),
    [
        (b"fixed", "bytes is read-only: register a writable buffer"),
        (memoryview(bytearray(64))[::2], "not C-contiguous"),
        (bytearray(), "of 0 bytes"),
        (0, "of 0 bytes"),
        (-1, "of -1 bytes"),
        (1 << 50, "bytes, from 1 to 140737488355328"),
    ],
)
def test_memory_that_cannot_be_registered_is_refused(pd: PD, buffer: Any, match: str) -> None:
    with pytest.raises(VerbsArgumentError, match=match) as refused:
        MR(pd, buffer)
    assert refused.value.errno == errno.EINVAL
    assert pd.context.adapter.region_count == 0


def test_what_is_no_buffer_is_a_type_error(pd: PD) -> None:
    with pytest.raises(TypeError):
        MR(pd, "text")  # type: ignore[arg-type]  # the point of the test


@pytest.mark.parametrize("name", ["ZERO_BASED", "ON_DEMAND", "HUGETLB"])
def test_access_that_no_device_has_is_not_supported(pd: PD, name: str) -> None:
    access = e.IBV_ACCESS_LOCAL_WRITE | getattr(e, f"IBV_ACCESS_{name}")
    with pytest.raises(VerbsNotSupportedError, match=f"`access {name}`") as refused:
        MR(pd, bytearray(8), access)
    assert refused.value.errno == errno.EOPNOTSUPP
    with MR(pd, bytearray(8)) as mr, pytest.raises(VerbsNotSupportedError):
        mr.rereg(access=access)


def test_a_registered_bytearray_cannot_be_resized_until_the_region_is_closed(pd: PD) -> None:
    buffer = bytearray(8)
    mr = MR(pd, buffer)
    with pytest.raises(BufferError):
        buffer.append(0)
    mr.close()
    buffer.append(0)


def test_a_view_ends_with_its_region(pd: PD) -> None:
    mr = MR(pd, 16)
    view = mr.view
    part = view[:4]  # keeps the buffer alive, and is its holder's business
    mr.close()
    part[:] = b"fine"
    for use in (lambda: mr.view, mr.sge, mr.read, lambda: mr.write(b"x")):
        with pytest.raises(VerbsClosedError, match="MR is closed"):
            use()


def test_pieces_and_copies_stay_inside(pd: PD) -> None:
    with MR(pd, 16) as mr:
        assert (mr.sge(4).length, mr.sge(16).length, mr.sge(0, 0).length) == (12, 0, 0)
        outside: list[Callable[[], object]] = [
            lambda: mr.sge(17),
            lambda: mr.sge(-1),
            lambda: mr.sge(8, 9),
            lambda: mr.read(17),
            lambda: mr.read(1, 16),
            lambda: mr.write(b"x" * 17),
            lambda: mr.write(b"xx", offset=15),
            lambda: mr.write(b"xx", 3),
        ]
        for use in outside:
            with pytest.raises(VerbsArgumentError, match="bytes"):
                use()
        assert mr.read() == bytes(16)
        assert mr.write(b"abcd", 2, 1) == 2
        assert mr.read(4) == b"\0ab\0"


def test_registering_again_changes_keys_buffer_and_domain(pd: PD) -> None:
    first, second = bytearray(8), bytearray(16)
    mr = MR(pd, first)
    old_key = mr.lkey
    mr.rereg(buffer=second, access=WRITE)
    first.append(0)  # free again
    assert (mr.length, mr.access) == (16, WRITE)
    assert mr.lkey != old_key
    mr.write(b"second")
    assert second[:6] == b"second"
    keys, other = (mr.lkey, mr.rkey), PD(pd.context)
    mr.rereg(pd=other, access=AccessFlag.LOCAL_WRITE)
    assert (mr.lkey, mr.rkey) == keys
    other.close()
    assert mr.closed
    with pytest.raises(VerbsClosedError):
        mr.rereg(access=WRITE)


# -- windows


def bound(side: Side, mw: MW, info: MWBindInfo) -> WCStatus:
    side.qp.bind_mw(mw, MWBind(info, wr_id=9))
    [wc] = side.cq.wait_for()
    assert wc.wr_id == 9
    return wc.status


def write(world: World, rkey: int, address: int, data: bytes) -> WCStatus:
    """Let left write into right's memory."""
    world.left.mr.write(data)
    wr = SendWR(1, WROpcode.RDMA_WRITE, [world.left.mr.sge(0, len(data))])
    wr.set_wr_rdma(rkey, address)
    world.left.qp.post_send(wr)
    [wc] = world.left.cq.wait_for()
    return wc.status


def test_a_region_with_a_bound_window_is_busy_and_its_domain_closes_all_the_same() -> None:
    world = World().connect()
    right = world.right
    mw = MW(right.pd)
    assert bound(right, mw, MWBindInfo(right.mr, right.mr.buf, 8)) is WCStatus.SUCCESS
    with pytest.raises(VerbsError, match="1 memory windows") as busy:
        right.mr.close()
    assert busy.value.errno == errno.EBUSY
    assert not right.mr.closed
    right.pd.close()
    assert mw.closed and right.mr.closed
    assert right.context.adapter.region_count == 0


def test_a_window_of_unknown_kind_is_refused(pd: PD) -> None:
    with pytest.raises(VerbsError, match="kind 3"):
        MW(pd, 3)


def test_everything_is_registered_where_it_is_allocated(pd: PD) -> None:
    mr = MR(pd, 8192, EVERYTHING)
    assert (mr.length, mr.read(8)) == (8192, bytes(8))
    assert mr.lkey == mr.engine.lkey
