"""RDMA and atomic operations over the transport itself, between two sockets of this process.

Each test runs on each device. The pattern of rds-rdma(7) is made with structures of C and without;
what a peer may not do ends with a status, and the memory is as it was.
"""

import errno
import os
import select
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

import pytest

import urds
from tests.rds.sockets.conftest import backend_with
from tests.rds.sockets.hosts import host
from tests.rds.sockets.raw_rdma import (
    Ancillary,
    Memory,
    atomic_args,
    free_mr,
    iovecs,
    rdma_args,
    rdma_map,
    region_option,
)
from tests.support.errnos import refused
from urds.rds.constants import (
    MSG_DONTWAIT,
    SOL_RDS,
    Cmsg,
    RdmaFlag,
    RdmaStatus,
    SockOpt,
    Transport,
)

MIB = 1 << 20
ARRIVAL_S = 10.0
SILENCE_S = 0.2
SUCCESS, REMOTE_ERROR = RdmaStatus.SUCCESS, RdmaStatus.REMOTE_ERROR


class Pair:
    """Two sockets over RDMA: one has memory, the other reaches into it."""

    def __init__(self) -> None:
        self.client, self.server = self.socket(1), self.socket(2)
        self.there = self.client.getsockname()  # the client, for the server
        self.here = self.server.getsockname()

    def socket(self, number: int) -> urds.Socket:
        """Return a socket over RDMA at a host of its own."""
        sock = urds.Socket()
        sock.setsockopt(SOL_RDS, SockOpt.TRANSPORT, int(Transport.IB))
        sock.bind((host(number), 0))
        sock.settimeout(ARRIVAL_S)
        return sock

    def give(self, memory: Any, **more: Any) -> tuple[urds.MemoryRegion, int]:
        """Make a region at the client and have the server told; return it and the cookie there."""
        region = self.client.get_mr(memory, **more)
        self.client.send_region(b"request", region, self.here)
        payload, source, cookie = self.server.recv_region(100)
        assert (payload, source) == (b"request", self.there)
        assert cookie == region.cookie
        return region, cookie

    def close(self) -> None:
        """Close both."""
        self.client.close()
        self.server.close()


@pytest.fixture(params=["shm0", "tcp0"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Give a pair on one device."""
    with backend_with(rdma_devices=[request.param], linger_s=0):
        made = Pair()
        yield made
        made.close()


def statuses(control: list[tuple[int, int, bytes]]) -> list[tuple[int, int]]:
    """Return token and status of each RDMA_STATUS."""
    assert all(one[:2] == (SOL_RDS, Cmsg.RDMA_STATUS) for one in control)
    return [struct.unpack("=Qi4x", data) for _, _, data in control]


def next_statuses(sock: urds.Socket) -> list[tuple[int, int]]:
    """Receive notices of operations, which come without data."""
    payload, control, flags, source = sock.recvmsg(100, 320)
    assert (payload, flags, source) == (b"", 0, None)
    return statuses(control)


# -- the pattern of rds-rdma(7)


def send_when_connected(sock: urds.Socket, ancillary: list[Ancillary], target: Any) -> None:
    """Send again while there is no connection, as a C program does."""
    deadline = time.monotonic() + ARRIVAL_S
    while time.monotonic() < deadline:
        with suppress(BlockingIOError):
            sock.sendmsg([b"fill it"], ancillary, 0, target)
            return
        time.sleep(0.005)
    pytest.fail("no connection")


@pytest.mark.rule(
    "rds7-control-rdma", "wire-rdma-message", "wire-rdma-dest-cookie", "wire-rdma-use-once"
)
def test_a_server_fills_the_buffer_of_its_client_with_structures_of_c(pair: Pair) -> None:
    client, server = pair.client, pair.server
    memory, place = Memory(100), Memory(8)
    flags = RdmaFlag.READWRITE | RdmaFlag.USE_ONCE
    asked = rdma_map(memory.address, 100, place.address, flags)
    send_when_connected(client, [asked], pair.here)
    payload, control, _, _ = server.recvmsg(100, 100)
    assert payload == b"fill it"
    assert control == [(SOL_RDS, Cmsg.RDMA_DEST, struct.pack("=Q", place.number()))]
    first, second = Memory(b"hello "), Memory(b"world")
    vector = iovecs([(first.address, 6), (second.address, 5)])
    reply = rdma_args(
        cookie=place.number(),
        remote=(20, 11),
        vector=(vector.address, 2),
        flags=RdmaFlag.READWRITE | RdmaFlag.NOTIFY_ME,
        token=1 << 63 | 5,
    )
    server.sendmsg([b"filled"], [reply], 0, pair.there)
    assert client.recv(100) == b"filled"
    assert memory.data == bytes(20) + b"hello world" + bytes(69)
    assert next_statuses(server) == [(1 << 63 | 5, SUCCESS)]
    # The region was for one use, and the reply said that it was used.
    used_up = refused(client.setsockopt, SOL_RDS, SockOpt.FREE_MR, free_mr(place.number()))
    assert used_up == errno.EINVAL


def test_a_server_fills_the_buffer_of_its_client(pair: Pair) -> None:
    memory = bytearray(100)
    region, cookie = pair.give(memory, use_once=True)
    pair.server.rdma_write([b"hello ", b"world"], cookie, pair.there, offset=20, payload=b"filled")
    assert pair.client.recv(100) == b"filled"
    assert memory == bytes(20) + b"hello world" + bytes(69)
    assert region.is_over


def test_a_region_made_by_setsockopt_is_read(pair: Pair) -> None:
    memory, place = Memory(b"octets of the client"), Memory(8)
    for option in (SockOpt.GET_MR, SockOpt.GET_MR_FOR_DEST):
        value = region_option(option, memory.address, memory.size, place.address, 0)
        pair.client.setsockopt(SOL_RDS, option, value)
        got = bytearray(6)
        pending = pair.server.rdma_read(got, place.number(), pair.there, offset=14)
        assert pending.wait(ARRIVAL_S) is SUCCESS
        assert got == b"client"


@pytest.mark.rule("wire-rdma-trailing", "wire-rdma-coherent")
def test_the_bytes_of_a_read_come_before_the_message_behind_it(pair: Pair) -> None:
    """The client may take its buffer back when it is told."""
    memory = bytearray(b"a" * MIB)
    _, cookie = pair.give(memory)
    got = bytearray(MIB)
    pair.server.rdma_read(got, cookie, pair.there, payload=b"take it back")
    assert pair.client.recv(100) == b"take it back"
    memory[:] = b"b" * MIB
    assert got == b"a" * MIB


@pytest.mark.parametrize("count", [1, 3, 1024])
def test_a_mebibyte_goes_in_so_many_pieces(pair: Pair, count: int) -> None:
    content = bytes(range(256)) * (MIB // 256)
    step = -(-MIB // count)
    pieces = [content[at : at + step] for at in range(0, MIB, step)]
    memory = bytearray(MIB)
    _, cookie = pair.give(memory)
    assert pair.server.rdma_write(pieces, cookie, pair.there).wait(ARRIVAL_S) is SUCCESS
    assert memory == content
    back = [bytearray(len(piece)) for piece in pieces]
    assert pair.server.rdma_read(back, cookie, pair.there).wait(ARRIVAL_S) is SUCCESS
    assert b"".join(back) == content


def test_messages_and_operations_keep_their_order(pair: Pair) -> None:
    memory = bytearray(8)
    _, cookie = pair.give(memory)
    for number in range(50):
        data = number.to_bytes(8, "little")
        pair.server.rdma_write(data, cookie, pair.there, payload=data)
        pair.server.sendto(data, pair.there)
    seen = [int.from_bytes(pair.client.recv(8), "little") for _ in range(100)]
    assert seen == [number // 2 for number in range(100)]
    assert memory == (49).to_bytes(8, "little")


# -- atomic operations


def test_atomic_operations_change_a_number_and_give_the_old_one(pair: Pair) -> None:
    memory = bytearray(struct.pack("=4Q", 0, 5, 0, 0))
    _, cookie = pair.give(memory)
    server, where = pair.server, {"address": pair.there, "offset": 8}

    def outcome(pending: urds.PendingAtomic) -> tuple[int, int]:
        assert pending.wait(ARRIVAL_S) is SUCCESS
        return pending.old_value, struct.unpack_from("=Q", memory, 8)[0]

    assert outcome(server.fetch_add(cookie, 7, **where)) == (5, 12)  # type: ignore[arg-type]  # one dict
    assert outcome(server.fetch_add(cookie, -13, **where)) == (12, (1 << 64) - 1)  # type: ignore[arg-type]  # as above
    low_half = {"no_carry_mask": 1 << 31 | 1 << 63}
    added = server.fetch_add(cookie, 1, **where, **low_half)  # type: ignore[arg-type]  # as above
    assert outcome(added) == ((1 << 64) - 1, 0xFFFFFFFF_00000000)
    swapped = server.compare_swap(cookie, 1, 2, **where)  # type: ignore[arg-type]  # as above
    assert outcome(swapped) == (0xFFFFFFFF_00000000, 0xFFFFFFFF_00000000)
    masks = {"compare_mask": 0xFFFF, "swap_mask": 0xF0}
    swapped = server.compare_swap(cookie, 0, 0xABCD, **where, **masks)  # type: ignore[arg-type]  # as above
    assert outcome(swapped) == (0xFFFFFFFF_00000000, 0xFFFFFFFF_000000C0)
    assert memory[:8] == bytes(8) and memory[16:] == bytes(16)


@pytest.mark.parametrize(
    ("kind", "operands", "after"),
    [
        (Cmsg.ATOMIC_FADD, (3,), 0x1_0000_0001),
        (Cmsg.ATOMIC_CSWP, (0xFFFF_FFFE, 9), 9),
        (Cmsg.MASKED_ATOMIC_FADD, (3, 1 << 31), 1),
        (Cmsg.MASKED_ATOMIC_CSWP, (0xFE, 0x1234, 0xFF, 0xFF00), 0xFFFF_12FE),
    ],
)
def test_atomic_control_messages_write_the_old_value(
    pair: Pair, kind: Cmsg, operands: tuple[int, ...], after: int
) -> None:
    memory = bytearray(struct.pack("=Q", 0xFFFF_FFFE))
    _, cookie = pair.give(memory)
    place = Memory(8)
    args = atomic_args(
        kind, place.address, operands, cookie=cookie, flags=RdmaFlag.NOTIFY_ME, token=3
    )
    pair.server.sendmsg([b"done"], [args], 0, pair.there)
    assert pair.client.recv(100) == b"done"
    assert next_statuses(pair.server) == [(3, SUCCESS)]
    assert place.number() == 0xFFFF_FFFE
    assert struct.unpack("=Q", memory)[0] == after


def test_many_adders_lose_nothing(pair: Pair) -> None:
    memory = bytearray(8)
    _, cookie = pair.give(memory)
    pending = [pair.server.fetch_add(cookie, 1, pair.there) for _ in range(200)]
    assert {one.wait(ARRIVAL_S) for one in pending} == {SUCCESS}
    assert [one.old_value for one in pending] == list(range(200))


# -- notices


@pytest.mark.rule("rds7-poll-in")
def test_notices_come_before_messages_and_make_the_socket_readable(pair: Pair) -> None:
    _, cookie = pair.give(bytearray(8))
    data = Memory(b"octets")
    vector = iovecs([(data.address, 6)])
    poll = select.poll()
    poll.register(pair.server, select.POLLIN)
    for token in (1, 2, 3):
        args = rdma_args(
            cookie=cookie,
            remote=(0, 6),
            vector=(vector.address, 1),
            flags=RdmaFlag.READWRITE | RdmaFlag.NOTIFY_ME,
            token=token,
        )
        pair.server.sendmsg([b"x"], [args], 0, pair.there)
        pair.client.recv(10)
    pair.client.sendto(b"a message", pair.here)
    assert poll.poll(ARRIVAL_S * 1000)
    got: list[tuple[int, int]] = []
    while len(got) < 3:
        payload, control, _, _ = pair.server.recvmsg(100, 64)
        assert payload == b"", "a message came before a notice"
        assert len(control) <= 2
        got += statuses(control)
    assert got == [(1, SUCCESS), (2, SUCCESS), (3, SUCCESS)]
    assert pair.server.recvmsg(100, 64)[:2] == (b"a message", [])


def test_recverr_tells_of_failures_only(pair: Pair) -> None:
    region, cookie = pair.give(bytearray(8))
    pair.server.setsockopt(SOL_RDS, SockOpt.RECVERR, 1)
    data = Memory(b"octets")
    vector = iovecs([(data.address, 6)])

    def write(token: int) -> None:
        args = rdma_args(
            cookie=cookie,
            remote=(0, 6),
            vector=(vector.address, 1),
            flags=RdmaFlag.READWRITE,
            token=token,
        )
        pair.server.sendmsg([b"x"], [args], 0, pair.there)

    write(1)
    pair.client.recv(10)
    region.free()
    write(2)
    assert next_statuses(pair.server) == [(2, REMOTE_ERROR)]


def test_who_asks_for_no_notice_gets_none(pair: Pair) -> None:
    region, cookie = pair.give(bytearray(8))
    assert pair.server.rdma_write(b"octets", cookie, pair.there).wait(ARRIVAL_S) is SUCCESS
    region.free()
    assert pair.server.rdma_write(b"octets", cookie, pair.there).wait(ARRIVAL_S) is REMOTE_ERROR
    pair.server.settimeout(SILENCE_S)
    assert refused(pair.server.recv, 10) == errno.ETIMEDOUT


# -- what a peer may not do


def test_memory_that_is_not_given_is_never_touched(pair: Pair) -> None:
    memory = bytearray(b"." * 64)
    view = memoryview(memory)
    _, cookie = pair.give(view[16:48])
    _, read_only = pair.give(view[0:16], writable=False)
    there = pair.there
    attempts = [
        lambda: pair.server.rdma_write(b"x", cookie, there, offset=32),
        lambda: pair.server.rdma_write(b"x" * 33, cookie, there),
        lambda: pair.server.rdma_write(b"xx", cookie, there, offset=31),
        lambda: pair.server.rdma_write(b"x", cookie, there, offset=(1 << 64) - 1),
        lambda: pair.server.rdma_write(b"x", cookie ^ 1, there),
        lambda: pair.server.rdma_write(b"x", read_only, there),
        lambda: pair.server.fetch_add(read_only, 1, there),
        lambda: pair.server.fetch_add(cookie, 1, there, offset=32),
    ]
    for attempt in attempts:
        assert attempt().wait(ARRIVAL_S) is REMOTE_ERROR
        assert memory == b"." * 64
    got = bytearray(33)
    assert pair.server.rdma_read(got, cookie, there).wait(ARRIVAL_S) is REMOTE_ERROR
    assert got == bytes(33)
    # Each refusal cost a connection, and what was asked for behind it waited for the next one.
    assert pair.server.rdma_write(b"x", cookie, there).wait(ARRIVAL_S) is SUCCESS
    assert memory == b"." * 16 + b"x" + b"." * 47


def test_a_region_is_out_of_reach_once_its_socket_is_closed(pair: Pair) -> None:
    memory = bytearray(8)
    _, cookie = pair.give(memory)
    third = pair.socket(1)  # keeps its host
    pair.client.close()
    pending = pair.server.rdma_write(b"x", cookie, third.getsockname())
    assert pending.wait(ARRIVAL_S) is REMOTE_ERROR
    assert memory == bytes(8)
    memory.append(0)
    third.close()


# -- nothing to say, and ends


def test_an_operation_without_payload_is_silent(pair: Pair) -> None:
    memory = bytearray(8)
    _, cookie = pair.give(memory)
    assert pair.server.rdma_write(b"octets", cookie, pair.there).wait(ARRIVAL_S) is SUCCESS
    assert memory == b"octets\0\0"
    pair.server.sendto(b"next", pair.there)
    assert pair.client.recv(100) == b"next"
    pair.client.settimeout(SILENCE_S)
    assert refused(pair.client.recv, 100) == errno.ETIMEDOUT


def test_an_operation_to_an_unreachable_peer_is_canceled(pair: Pair) -> None:
    unreachable = (host(77), 4000)
    pending = pair.server.rdma_write(b"octets", 5, unreachable)
    with pytest.raises(TimeoutError):
        pending.wait(SILENCE_S)
    assert pair.server.cancel() == 1
    assert pending.wait(ARRIVAL_S) is RdmaStatus.CANCELED


def test_closing_cancels_what_has_not_ended(pair: Pair) -> None:
    pending = pair.server.rdma_write(b"octets", 5, (host(77), 4000))
    ends: list[object] = []

    def wait() -> None:
        try:
            ends.append(pending.wait(ARRIVAL_S))
        except OSError as problem:
            ends.append(problem.errno)

    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(0.05)
    pair.server.close()
    waiter.join(ARRIVAL_S)
    assert ends in ([RdmaStatus.CANCELED], [errno.EBADF])
    deadline = time.monotonic() + ARRIVAL_S
    while pending.status is None and time.monotonic() < deadline:
        time.sleep(0.005)  # what lingers is canceled in the background
    assert pending.status is RdmaStatus.CANCELED


def test_a_region_of_a_message_waits_for_the_connection(pair: Pair) -> None:
    memory = Memory(8)
    asked = rdma_map(memory.address, 8)
    unreachable = (host(77), 4000)
    for _ in range(3):
        code = refused(pair.client.sendmsg, [b"x"], [asked], int(MSG_DONTWAIT), unreachable)
        assert code == errno.EAGAIN
    send_when_connected(pair.client, [asked], pair.here)
    assert pair.server.recv_region(100)[0] == b"fill it"


def test_a_host_reaches_its_own_memory(pair: Pair) -> None:
    neighbour = pair.socket(1)
    memory = bytearray(8)
    region = pair.client.get_mr(memory)
    pair.client.send_region(b"request", region, neighbour.getsockname())
    _, source, cookie = neighbour.recv_region(100)
    assert source == pair.there and cookie is not None
    neighbour.rdma_write(b"octets", cookie, source, payload=b"filled")
    assert pair.client.recv(100) == b"filled"
    assert memory == b"octets\0\0"
    neighbour.close()


def test_each_type_of_service_has_a_connection_of_its_own(pair: Pair) -> None:
    hasty = pair.socket(1)
    assert hasty.ioctl(urds.SIOCRDSSETTOS, 7) == 7
    for sock in (pair.client, hasty):
        sock.sendto(b"octets", pair.here)
        assert pair.server.recvfrom(100) == (b"octets", sock.getsockname())
    assert refused(pair.client.ioctl, urds.SIOCRDSSETTOS, 7) == errno.EINVAL
    rows = pair.client.getsockopt(SOL_RDS, urds.RDS_INFO_CONNECTIONS, 4096)
    row = struct.Struct("=QQ4s4s16sBB")
    found = {(one[3], one[6]) for one in row.iter_unpack(rows) if one[4].startswith(b"infiniband")}
    peer = ip_address(host(2)).packed
    assert {tos for address, tos in found if address == peer} == {0, 7}
    hasty.close()


def test_a_forked_child_leaves_regions_to_its_parent(pair: Pair) -> None:
    memory = bytearray(8)
    region, cookie = pair.give(memory)
    child = os.fork()
    if not child:
        codes = [
            refused(pair.client.get_mr, bytearray(8)),
            refused(pair.client.sendto, b"x", pair.here),
            refused(pair.server.rdma_write, b"x", cookie, pair.there),
        ]
        region.free()
        pair.client.close()
        os._exit(0 if set(codes) == {errno.EBADF} else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert pair.server.rdma_write(b"octets", cookie, pair.there).wait(ARRIVAL_S) is SUCCESS
    assert memory == b"octets\0\0"
