"""Conformance: peers that lie, unknown peers that know half of the protocol, floods of them.

Complements test_tcp_hostile and test_shm_hostile, which break the rules of one provider's frames,
rings and greetings: here the rules of every provider's frames are kept and what they say is false,
or bytes of real conversations are changed, cut and repeated.
"""

import os
import socket
import time
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.verbs.conformance import EVERYTHING, REGION_BYTES, Memory, Pair, Side, World
from urds.verbs import QP, AccessFlag, QPState, RecvWR, WCStatus, WROpcode
from urds.verbs.engine.numbers import PSN_MASK
from urds.verbs.engine.packets import Packet, PacketFlag, PacketKind
from urds.verbs.providers.base import ConnectParameters, PortSpace
from urds.verbs.providers.shm.rendezvous import Rendezvous

STATED = pytest.mark.parametrize("world", ["sim", "shm", "udp", "tcp"], indirect=True)
REAL = pytest.mark.parametrize("world", ["shm", "udp", "tcp"], indirect=True)
PACKETS = pytest.mark.parametrize("world", ["sim", "shm", "udp"], indirect=True)
REQUESTS = [kind for kind in PacketKind if kind <= PacketKind.MASKED_ADD]
ANSWERS = [PacketKind.READ_RESPONSE, PacketKind.ATOMIC_RESPONSE, PacketKind.ACK]
BOTH = PacketFlag.IMMEDIATE | PacketFlag.INVALIDATE
RIGHTS = AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_WRITE


def send_message(side: Side, packet: Packet) -> None:
    """Let a side's provider carry a packet that its queue pair never made.

    Private names: an honest engine has no way to lie.
    """
    adapter: Any = side.context.adapter
    with adapter.lock:
        if side.world.provider == "tcp":
            connection: Any = side.connection
            stream = connection.stream
            if packet.flags & BOTH == BOTH:  # no opcode of iWARP says both
                packet.flags &= ~PacketFlag.INVALIDATE
            if stream.is_open and not stream._is_over:
                stream._encoder.emit(packet, stream._out.pieces)
                stream._out.send(stream._socket)
        else:
            adapter._transmit_packet(packet, side.qp.engine.peer)
            adapter.flush()


def renewed(pair: Pair) -> None:
    """Connect new queue pairs; the old ones go."""
    for side in (pair.left, pair.right):
        side.told.clear()
        side.qp.close()
        side.qp = QP(side.pd, side.init_attr, side.attr)
        side.rcq.poll(1024)
        side.scq.poll(1024)
    pair.connect()


def flush(pair: Pair) -> None:
    """Let both sides take in what was said."""
    for _ in range(2):
        for side in (pair.right, pair.left):
            side.context.adapter.wait(lambda: False, 1_500_000)


# -- the peer of a connection lies


offsets = st.one_of(st.integers(-70, 70), st.integers(REGION_BYTES - 300, REGION_BYTES + 70))
lies = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(REQUESTS),
        "psn": st.one_of(st.integers(0, 3), st.integers(-3, 3), st.integers(0, PSN_MASK)),
        "flags": st.integers(0, 63),
        "msn": st.one_of(st.integers(0, 4), st.integers(0, (1 << 32) - 1)),
        "offset": st.one_of(st.just(0), st.integers(0, 3000), st.integers(0, (1 << 32) - 1)),
        "length": st.one_of(st.integers(0, 400), st.integers(0, (1 << 32) - 1)),
        "at": offsets,
        "key": st.sampled_from(["open", "open", "private", "stale", "none"]),
        "size": st.integers(0, 300),
    }
)


@settings(max_examples=examples(25))
@given(said=st.lists(lies, min_size=1, max_size=12))
def check_requester_lies(pair: Pair, said: list[dict[str, Any]]) -> None:
    """Any requests, well formed: only what a key opens and what receives wait for may change."""
    left, right = pair.left, pair.right
    renewed(pair)
    private = Memory(right.pd, 4096, access=AccessFlag.LOCAL_WRITE)
    window = Memory(right.pd, REGION_BYTES, access=RIGHTS)
    room = Memory(right.pd, 1024, access=AccessFlag.LOCAL_WRITE)
    for index in range(4):
        right.qp.post_recv(RecvWR(index, [room.mr.sge(index * 256, 128)]))
    stale = Memory(right.pd, 64, access=RIGHTS)
    keys = {
        "open": window.mr.rkey, "private": private.mr.rkey, "stale": stale.mr.rkey, "none": 7,
    }  # fmt: skip
    base, secret = window.mr.buf, private.mr.buf
    stale.mr.close()
    first_psn = left.qp.engine.attr.sq_psn
    for number, lie in enumerate(said):
        start = secret if lie["key"] == "private" else base
        packet = Packet(
            lie["kind"],
            right.qp.qp_num,
            (first_psn + lie["psn"] + number) & PSN_MASK,
            PacketFlag(lie["flags"]),
            msn=lie["msn"],
            offset=lie["offset"],
            length=lie["length"],
            address=(start + lie["at"]) % (1 << 64),
            rkey=keys[lie["key"]],
            immediate=keys["private"],
        )
        if lie["kind"] in (PacketKind.SEND, PacketKind.WRITE):
            packet.payload, packet.length = b"\xee" * lie["size"], 0
        send_message(left, packet)
    flush(pair)
    assert private.mr.read() == bytes(4096)
    assert all(memory.is_guarded() for memory in (private, window, room, stale))
    gaps = b"".join(room.mr.read(128, index * 256 + 128) for index in range(4))
    assert gaps == bytes(512)
    assert right.mr.read() == bytes(REGION_BYTES)
    for memory in (private, window, room):
        memory.mr.close()


@STATED
def test_no_request_of_a_lying_peer_reaches_anything_outside(world: World) -> None:
    pair = world.pair()
    check_requester_lies(pair)
    renewed(pair)
    still_serves(pair)


answers = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(ANSWERS),
        "psn": st.one_of(st.integers(-2, 6), st.integers(0, PSN_MASK)),
        "flags": st.integers(0, 63),
        "offset": st.one_of(st.integers(0, 300), st.integers(0, (1 << 32) - 1)),
        "size": st.integers(0, 600),
        "syndrome": st.integers(0, 255),
        "selective": st.lists(
            st.tuples(st.integers(0, PSN_MASK), st.integers(0, PSN_MASK)), max_size=8
        ),
    }
)


@settings(max_examples=examples(25))
@given(said=st.lists(answers, min_size=1, max_size=12))
def check_responder_lies(pair: Pair, said: list[dict[str, Any]]) -> None:
    """Any answers to a read, an atomic operation and a send: only their results may change."""
    left, right = pair.left, pair.right
    left.mr.write(bytes(REGION_BYTES))
    renewed(pair)
    first_psn = left.qp.engine.attr.sq_psn
    with left.context.adapter.lock:  # before the true answers are taken
        left.post(WROpcode.RDMA_READ, 200, offset=1000, to=right.mr, wr_id=0)
        left.post(
            WROpcode.ATOMIC_FETCH_AND_ADD, 8, offset=2000, to=right.mr, at=aligned(right), wr_id=1
        )
        left.post(wr_id=2)
        for lie in said:
            packet = Packet(
                lie["kind"],
                left.qp.qp_num,
                (first_psn + lie["psn"]) & PSN_MASK,
                PacketFlag(lie["flags"] & ~int(PacketFlag.PLACED)),
                offset=lie["offset"],
                syndrome=lie["syndrome"],
                compare_add=(1 << 64) - 1,
            )
            if lie["kind"] is PacketKind.READ_RESPONSE:
                packet.payload = b"\xee" * lie["size"]
            elif lie["kind"] is PacketKind.ACK:
                packet.selective = tuple(lie["selective"])
            send_message(right, packet)
    flush(pair)
    data = left.mr.read()
    assert data[:1000] + data[1200:2000] + data[2008:] == bytes(REGION_BYTES - 208)
    completions = left.scq.poll(10)[1]
    assert [wc.wr_id for wc in completions] == list(range(len(completions)))


def aligned(side: Side) -> int:
    return -side.mr.buf % 8


@PACKETS
def test_no_answer_of_a_lying_peer_reaches_anything_outside(world: World) -> None:
    pair = world.pair()
    check_responder_lies(pair)
    renewed(pair)
    still_serves(pair)


def still_serves(pair: Pair) -> None:
    """Show that the pair works."""
    pair.right.receive(64)
    pair.left.post()
    assert pair.left.ended() == [WCStatus.SUCCESS]
    assert pair.right.received()[0].status is WCStatus.SUCCESS
    assert pair.left.qp.qp_state is QPState.RTS


@STATED
def test_all_keys_around_a_good_one_are_closed(world: World) -> None:
    """Each guess that names no region of the domain ends the queue pair."""
    pair = world.pair()
    right, left = pair.right, pair.left
    hidden = [world.memory(right.pd, 64) for _ in range(4)]
    other_domain = world.memory(type(right.pd)(right.context), 64)
    shown = right.mr.rkey
    own = {right.mr.rkey, *(memory.mr.rkey for memory in hidden)}
    guesses = {shown ^ 1 << bit for bit in range(0, 32, 3)} | {other_domain.mr.rkey, 0}
    left.mr.write(b"\xff" * 8)
    for rkey in sorted(guesses - own):
        left.post(WROpcode.RDMA_WRITE, 8, rkey=rkey, remote_addr=hidden[0].mr.buf)
        assert left.ended() == [WCStatus.REM_ACCESS_ERR], hex(rkey)
        renewed(pair)
    for memory in [*hidden, other_domain]:
        assert memory.mr.read() == bytes(64)


# -- unknown peers


def overheard(world: World, space: PortSpace) -> bytes:
    """Return the first bytes that a device of this provider says to a listener."""
    side = world.side()
    is_stream = world.provider == "tcp" and space is PortSpace.TCP
    kind = socket.SOCK_STREAM if is_stream else socket.SOCK_DGRAM
    with socket.socket(socket.AF_INET, kind) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.settimeout(5)
        if is_stream:
            listener.listen(1)
        adapter = side.context.adapter
        with adapter.lock:
            qp = side.qp.engine if space is PortSpace.TCP else None
            adapter.connect(
                qp, listener.getsockname(), space, ConnectParameters(b"x" * 20),
                on_event=side.take,
            )  # fmt: skip
        if not is_stream:
            return listener.recv(65_536)
        asked, _ = listener.accept()
        with asked:
            asked.settimeout(5)
            return asked.recv(65_536)


def changed(data: bytes, rng: Random) -> bytes:
    """Return bytes cut, with bits turned, with a piece repeated, or just noise."""
    what = rng.randrange(5)
    if what == 0:
        return data[: rng.randrange(len(data) + 1)]
    if what == 1:
        return rng.randbytes(rng.randrange(1, 200))
    broken = bytearray(data)
    for _ in range(rng.randrange(1, 6)):
        broken[rng.randrange(len(broken))] = rng.randrange(256)
    if what == 2:
        broken += data[rng.randrange(len(data)) :]
    return bytes(broken)


def speaker(world: World, right: Side, port: int, space: PortSpace) -> Callable[[bytes], None]:
    """Return a way for unknown peers to say bytes to a device."""
    if world.provider == "shm":
        adapter: Any = right.context.adapter
        place = Rendezvous(b"s" * 16, world.directory)

        def say_packet(data: bytes) -> None:
            with place.connect(adapter.gid) as pending:
                pending.send(data[:200] or b"\0")
            adapter.progress()

        return say_packet
    if world.provider == "tcp" and space is PortSpace.TCP:

        def say_stream(data: bytes) -> None:
            with socket.create_connection(("127.0.0.1", port)) as pending:
                pending.sendall(data)

        return say_stream

    def say_datagram(data: bytes) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as pending:
            pending.sendto(data, ("127.0.0.1", port))

    return say_datagram


@REAL
@pytest.mark.parametrize("space", list(PortSpace))
def test_peers_that_know_half_of_the_protocol_cost_nothing(world: World, space: PortSpace) -> None:
    """300 of them, bounded descriptors; a good peer's connection runs on and another is made."""
    rng = Random(5)
    pair = world.pair()
    right = pair.right
    requests: list[Any] = []
    adapter = right.context.adapter
    with adapter.lock:
        listener = adapter.listen(("127.0.0.1", 0), space, backlog=4, on_event=requests.append)
    sample = rng.randbytes(60) if world.provider == "shm" else overheard(world, space)
    tell = speaker(world, right, listener.local[1], space)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(300):
        try:
            tell(sample if number % 50 == 0 else changed(sample, rng))
        except OSError:
            pass  # refused or reset: that is an answer as well
        if number % 20 == 0:
            adapter.wait(lambda: False, 1_000_000)
            still_serves(pair)
    still_serves(pair)
    assert len(requests) <= 300
    with adapter.lock:
        listener.close()
        for event in requests:
            event.connection.close()
    deadline = time.monotonic() + 3
    while len(os.listdir("/proc/self/fd")) > before + 80 and time.monotonic() < deadline:
        adapter.wait(lambda: False, 10_000_000)
    assert len(os.listdir("/proc/self/fd")) <= before + 80  # pending_max is 64
    fresh = Pair(world.side(), Side(world, right.context)).connect()
    still_serves(fresh)
    assert pair.right.mr.access == EVERYTHING
