"""Interrupts in the middle of system calls, descriptors of any number, memory of what is idle."""

import errno
import gc
import os
import resource
import tracemalloc
from contextlib import suppress
from functools import cache
from ipaddress import ip_address

import pytest

from tests.parity.planes import (
    EMPTY_MAP,
    PEER,
    PEER_PORT,
    PORT,
    PairStream,
    Remote,
    World,
    message,
    take,
)
from tests.parity.sides import Link
from urds.rds.constants import HeaderFlag
from urds.rds.plane.contract import (
    Down,
    DownReason,
    Hold,
)
from urds.rds.types import AckMode

ADDRESS = (str(PEER), PEER_PORT)
IDLE_PATH_BYTES_MAX = 16_384
SOURCES_BYTES_MAX = 1 << 20


class TestInterrupts:
    """A signal handler may raise at any call; nothing stays locked, and no byte goes twice."""

    def test_behind_a_write(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """How much was taken is not known: the stream ends, and the next one repeats."""
        mailbox = world.mailbox()
        remote = world.attach()
        write = PairStream.sendmsg

        def interrupted(stream: PairStream, *arguments: object) -> int:
            write(stream, *arguments)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(PairStream, "sendmsg", interrupted)
            with pytest.raises(KeyboardInterrupt):
                mailbox.sendto(b"1", ADDRESS)
        mailbox.sendto(b"2", ADDRESS)
        events = world.turn()  # of a helper, which no handler interrupts
        assert [frame.payload for frame in remote.messages()] == [b"1"]
        assert remote.ended()
        remote.close()
        events += world.turn()
        assert any(isinstance(event, Down) for event in events)
        sent = world.attach().messages()
        assert [frame.payload for frame in sent] == [b"1", b"2"]
        assert sent[0].header.flags == HeaderFlag.RETRANSMITTED

    def test_behind_a_read(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """Bytes are lost between the stream and us: it has no framing any more, and ends."""
        mailbox = world.mailbox()
        remote = world.attach(ack_mode=AckMode.PEER_ACKNOWLEDGED)
        read = PairStream.recv

        def interrupted(stream: PairStream, bytes_max: int) -> bytes:
            read(stream, bytes_max)
            raise KeyboardInterrupt

        remote.say(1, b"lost on the way")
        with monkeypatch.context() as patch:
            patch.setattr(PairStream, "recv", interrupted)
            with pytest.raises(KeyboardInterrupt):
                world.plane.progress()
        (down,) = [event for event in world.turn() if isinstance(event, Down)]
        assert (down.reason, down.errno) == (DownReason.ERROR, errno.EINTR)
        assert remote.ended()
        again = world.attach()
        again.say(1, b"repeated", flags=HeaderFlag.RETRANSMITTED)
        world.turn()
        assert take(mailbox) == [b"repeated"]


def test_descriptors_beyond_1023(world: World) -> None:
    """`select` ends there; a plane of a thousand peers does not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("this system gives a process fewer than 2,048 descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    try:
        mailbox = world.mailbox()
        remote = Remote()
        world.remotes.append(remote)
        high = PairStream(fileno=os.dup2(remote.stream.fileno(), 1500, inheritable=False))
        high.setblocking(False)
        remote.stream.close()
        path = world.path()
        path.attach(high, hold=Hold.NOTHING)
        remote.say(1, b"x")
        world.turn()
        assert take(mailbox) == [b"x"]
        assert path.detach() is high
        high.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_stream_given_when_no_descriptors_are_left(world: World) -> None:
    """It needs none but its own, which stays its owner's whatever comes of it."""
    mailbox, path = world.mailbox(), world.path()
    link = Link(by_descriptor=True)
    before = os.fstat(link.stream.fileno()).st_ino
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (link.socket.fileno() + 1, hard))
    taken = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(link.socket.fileno()))
        path.attach(link.stream, hold=Hold.NOTHING)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)
    link.write(message(1, b"x"))
    world.turn()
    assert take(mailbox) == [b"x"]
    assert path.detach() is link.stream
    assert os.fstat(link.stream.fileno()).st_ino == before
    link.stream.close()
    link.socket.close()


@cache
def sweep_from_all_ports(target_port: int) -> list[bytes]:
    """Return a message from each port, in pieces that a stream has room for."""
    ports = range(2, 65536)
    return [
        b"".join(
            message(port, b"x", source_port=port, target_port=target_port)
            for port in ports[first : first + 1024]
        )
        for first in range(0, len(ports), 1024)
    ]


def test_an_idle_path_takes_little_memory(world: World) -> None:
    """Attached, its map exchanged and one message carried; descriptors and kernel buffers aside."""
    mailbox = world.mailbox()
    count = 100
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(count):
            peer = ip_address("127.0.90.0") + number
            remote = world.attach(path=world.path(peer), ack_mode=AckMode.PEER_ACKNOWLEDGED)
            mailbox.sendto(bytes(1000), (str(peer), PEER_PORT))
            remote.say_map()
            remote.say(1, bytes(1000), ack=1)
            world.turn()
            world.turn(2)
            assert [frame.payload for frame in remote.frames()][:1] == [EMPTY_MAP]
            take(mailbox)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (used - before) / count < IDLE_PATH_BYTES_MAX


@pytest.mark.parametrize("target_port", [PORT, PORT + 1], ids=["bound", "unbound"])
def test_a_sweep_of_all_source_ports_takes_no_memory(world: World, target_port: int) -> None:
    """The addresses of 65,534 senders would be 15 MiB."""
    mailbox = world.mailbox()
    remote = world.attach()
    remote.say_map()
    world.turn()
    pieces = sweep_from_all_ports(target_port)  # what they take is not counted
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for piece in pieces:
            remote.write(piece)
            while remote.stream.waiting():
                world.plane.progress()
            take(mailbox)
        swept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    counter = "recv_queued" if target_port == PORT else "recv_drop_no_sock"
    assert world.counter(counter) == 65534
    assert swept - before < SOURCES_BYTES_MAX


def test_a_flood_for_an_unbound_port_leaves_others_their_turn(world: World) -> None:
    """What brings nothing for any socket is read in small portions, one for each pass."""
    mailbox = world.mailbox()
    remote = world.attach()
    remote.say_map()
    world.turn()
    flood = [message(n, source_port=PEER_PORT, target_port=PORT + 1) for n in range(1, 1501)]
    useful = message(1501, b"for us", source_port=PEER_PORT, target_port=PORT)
    remote.write(*flood, useful)
    waiting = remote.stream.waiting()
    passes = 0
    while waiting and passes < 100:
        world.plane.progress()
        before, waiting = waiting, remote.stream.waiting()
        assert before - waiting <= 16_384
        passes += 1
    assert passes >= 4
    assert take(mailbox) == [b"for us"]
