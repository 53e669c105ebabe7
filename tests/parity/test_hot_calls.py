"""`sendto` and `recvfrom` at their edges: arguments, payloads of every kind, addresses, memory."""

import errno
import gc
import mmap
import sys
import weakref
from array import array
from ipaddress import ip_address

import pytest

from tests.parity.planes import LOCAL, PEER, PEER_PORT, PORT, World
from urds.rds.constants import (
    MSG_DONTWAIT,
    MSG_ERRQUEUE,
    MSG_NOSIGNAL,
    MSG_OOB,
    MSG_PEEK,
    MSG_TRUNC,
    MSG_ZEROCOPY,
)
from urds.rds.plane.contract import (
    MailboxSettings,
)
from urds.rds.types import AckMode

ADDRESS = (str(PEER), PEER_PORT)
LONG = 20_000
# How memory that can be written is given.
WRITABLE = {
    "bytearray": lambda memory: memory,
    "mmap": lambda memory: memory,
    "view": memoryview,
    "read-only view": lambda memory: memoryview(memory).toreadonly(),
    "cast": lambda memory: memoryview(memory).cast("b"),
}


class BytesLike(bytes):
    """Bytes of a class of its own."""


class Number(int):
    """An integer of a class of its own."""


class TestArguments:
    @pytest.mark.parametrize("flags", [0, None, "", MSG_NOSIGNAL, MSG_DONTWAIT, True & 0])
    def test_flags_that_change_nothing_here(self, world: World, flags: object) -> None:
        assert world.mailbox().sendto(b"octets", flags, ADDRESS) == 6

    def test_an_address_may_stand_where_flags_may(self, world: World) -> None:
        assert world.mailbox().sendto(b"octets", ADDRESS, None) == 6

    @pytest.mark.parametrize("flags", [MSG_OOB, MSG_PEEK, 1 << 40, -1, -(1 << 80)])
    def test_other_flags_are_refused(self, world: World, flags: int) -> None:
        with pytest.raises(OSError, match="flags ") as refused:
            world.mailbox().sendto(b"octets", flags, ADDRESS)
        assert refused.value.errno == errno.EOPNOTSUPP

    def test_zerocopy_needs_a_cookie(self, world: World) -> None:
        with pytest.raises(OSError, match="ZCOPY_COOKIE") as refused:
            world.mailbox().sendto(b"octets", MSG_ZEROCOPY, ADDRESS)
        assert refused.value.errno == errno.EINVAL

    @pytest.mark.parametrize("flags", ["x", 1.5, (1,)])
    def test_flags_must_be_an_integer(self, world: World, flags: object) -> None:
        with pytest.raises(TypeError, match="flags must be an integer"):
            world.mailbox().sendto(b"octets", flags, ADDRESS)

    @pytest.mark.parametrize("payload", ["text", 5, None, [1]])
    def test_a_payload_has_bytes(self, world: World, payload: object) -> None:
        with pytest.raises(TypeError, match="bytes-like object"):
            world.mailbox().sendto(payload, ADDRESS)

    @pytest.mark.parametrize("arguments", [(), (b"",), (b"", 0, ADDRESS, 0)])
    def test_too_few_and_too_many(self, world: World, arguments: tuple[object, ...]) -> None:
        with pytest.raises(TypeError):
            world.mailbox().sendto(*arguments)

    def test_no_destination(self, world: World) -> None:
        with pytest.raises(OSError, match="no destination") as refused:
            world.mailbox().sendto(b"", None)
        assert refused.value.errno == errno.ENOTCONN

    @pytest.mark.parametrize("bytes_max", [-1, -(1 << 70)])
    @pytest.mark.parametrize("flags", [0, MSG_DONTWAIT, MSG_OOB, MSG_ERRQUEUE])
    def test_a_negative_size_is_refused_at_once(
        self, world: World, bytes_max: int, flags: int
    ) -> None:
        """As `socket.recvfrom` does, whether anything is there or not."""
        mailbox, remote = world.mailbox(), world.attach()
        for shown in (False, True):
            if shown:
                mailbox.fileno()
            with pytest.raises(ValueError, match="negative buffersize in recvfrom"):
                mailbox.recvfrom(bytes_max, flags)
        remote.say(1, b"octets")
        world.turn()
        with pytest.raises(ValueError, match="negative buffersize in recvfrom"):
            mailbox.recvfrom(bytes_max, flags)
        assert mailbox.recvfrom(10) == (b"octets", ADDRESS)

    @pytest.mark.parametrize("bytes_max", ["10", 3.5, None, b"10"])
    def test_a_size_that_is_no_integer_costs_no_message(
        self, world: World, bytes_max: object
    ) -> None:
        mailbox, remote = world.mailbox(), world.attach()
        remote.say(1, b"octets")
        world.turn()
        with pytest.raises(TypeError):
            mailbox.recvfrom(bytes_max)
        assert mailbox.recvfrom(10) == (b"octets", ADDRESS)

    def test_flags_of_a_receiver(self, world: World) -> None:
        mailbox, remote = world.mailbox(), world.attach()
        remote.say(1, b"octets")
        world.turn()
        assert mailbox.recvfrom(10, MSG_OOB) == (b"", None)
        assert mailbox.recvfrom(10, MSG_OOB | MSG_ERRQUEUE) == (b"", None)
        with pytest.raises(BlockingIOError, match="MSG_ERRQUEUE"):
            mailbox.recvfrom(10, MSG_ERRQUEUE)
        assert mailbox.recvfrom(3, MSG_PEEK) == (b"oct", ADDRESS)
        assert mailbox.recvfrom(Number(4), MSG_TRUNC | MSG_DONTWAIT) == (b"octe", ADDRESS)
        with pytest.raises(BlockingIOError):
            mailbox.recvfrom(10, MSG_DONTWAIT)
        with pytest.raises(TimeoutError):
            mailbox.recvfrom(1 << 80)  # a clock of the caller's: nothing waits


class TestPayloads:
    @pytest.mark.parametrize("byte_count", [0, 1, 69, 70, 71, 255, 256, 8191, 8192, LONG])
    @pytest.mark.parametrize(
        "kind", [bytes, bytearray, memoryview, BytesLike, lambda data: array("B", data)]
    )
    def test_of_any_kind_and_length(self, world: World, byte_count: int, kind: object) -> None:
        payload = bytes(index % 251 for index in range(byte_count))
        mailbox, remote = world.mailbox(), world.attach()
        assert mailbox.sendto(kind(payload), ADDRESS) == byte_count
        world.turn(5)
        assert [frame.payload for frame in remote.messages()] == [payload]

    @pytest.mark.parametrize("byte_count", [100, LONG])
    def test_strewn_bytes_are_gathered(self, world: World, byte_count: int) -> None:
        payload = bytes(index % 251 for index in range(byte_count))
        mailbox, remote = world.mailbox(), world.attach()
        assert mailbox.sendto(memoryview(payload)[::2], ADDRESS) == byte_count // 2
        world.turn(5)
        assert [frame.payload for frame in remote.messages()] == [payload[::2]]

    def test_other_formats_count_in_bytes(self, world: World) -> None:
        mailbox, remote = world.mailbox(), world.attach()
        assert mailbox.sendto(array("I", [1, 2, 3]), ADDRESS) == 12
        assert mailbox.send([array("H", [4]), b"", b"end"], ADDRESS, wait_ns=0) == 5
        world.turn(5)
        texts = [array("I", [1, 2, 3]).tobytes(), array("H", [4]).tobytes() + b"end"]
        assert [frame.payload for frame in remote.messages()] == texts

    @pytest.mark.parametrize("byte_count", [10, 8191, 8192, LONG, 1_000_000])
    @pytest.mark.parametrize("way", ["sendto", "send", "gathered"])
    @pytest.mark.parametrize("kind", [*WRITABLE])
    def test_a_writable_one_is_the_callers_again_at_once(
        self, world: World, byte_count: int, way: str, kind: str
    ) -> None:
        mailbox, remote = world.mailbox(send_bytes_max=4 << 20), world.attach()
        memory = mmap.mmap(-1, byte_count) if kind == "mmap" else bytearray(byte_count)
        memory[:] = b"a" * byte_count
        payload = WRITABLE[kind](memory)
        mailbox.sendto(bytes(10), ADDRESS)
        if way == "sendto":
            mailbox.sendto(payload, ADDRESS)
        else:
            buffers = [payload] if way == "send" else [payload, b"end"]
            mailbox.send(buffers, ADDRESS, wait_ns=0)
        memory[:] = b"b" * byte_count
        got: list[bytes] = []
        for _ in range(100):
            world.turn(5)
            got += [frame.payload for frame in remote.messages()]
        assert got == [bytes(10), b"a" * byte_count + b"end" * (way == "gathered")]

    @pytest.mark.parametrize("kind", [bytes, memoryview, lambda data: memoryview(data)[1:]])
    def test_bytes_and_views_of_them_are_not_copied(self, world: World, kind: object) -> None:
        mailbox, remote = world.mailbox(), world.attach(ack_mode=AckMode.PEER_ACKNOWLEDGED)
        payload = bytes(LONG)
        before = sys.getrefcount(payload)
        mailbox.sendto(kind(payload), ADDRESS)
        world.turn(5)
        assert sys.getrefcount(payload) > before
        remote.say(0, ack=1, source_port=0, target_port=0)
        world.turn()
        assert sys.getrefcount(payload) == before

    def test_a_long_one_to_be_kept_is_exported_until_it_is_acknowledged(self, world: World) -> None:
        mailbox = world.mailbox()
        remote = world.attach(ack_mode=AckMode.PEER_ACKNOWLEDGED)
        payload = bytearray(LONG)
        mailbox.send([payload], ADDRESS, wait_ns=0, copy=False)
        world.turn(5)
        with pytest.raises(BufferError):
            payload.append(1)
        remote.say(0, ack=1, source_port=0, target_port=0)
        world.turn()
        payload.append(1)

    @pytest.mark.parametrize("byte_count", [10, 8191, LONG])
    def test_one_to_be_kept_may_be_of_any_kind(self, world: World, byte_count: int) -> None:
        """Short ones, several, and those in pieces are copied all the same."""
        mailbox, remote = world.mailbox(send_bytes_max=1 << 20), world.attach()
        payload = bytearray(index % 251 for index in range(byte_count))
        wide = array("H", bytes(2 * byte_count))
        gathered: list[list[object]] = [
            [payload], [bytes(payload)], [memoryview(payload)[::2]], [payload, payload], [wide], [],
        ]  # fmt: skip
        for buffers in gathered:
            mailbox.send(buffers, ADDRESS, wait_ns=0, copy=False)
        sent: list[bytes] = []
        for _ in range(20):
            world.turn(5)
            sent += [frame.payload for frame in remote.messages()]
        assert sent == [bytes(b"".join(map(bytes, buffers))) for buffers in gathered]

    def test_a_long_one_that_is_cancelled_is_given_back(self, world: World) -> None:
        mailbox = world.mailbox()
        payload = bytearray(LONG)
        mailbox.send([payload], ADDRESS, wait_ns=0, copy=False)
        assert mailbox.cancel(None, None) == 1
        payload.append(1)

    def test_a_refused_one_is_not_kept(self, world: World) -> None:
        mailbox = world.mailbox(send_bytes_max=LONG)
        mailbox.sendto(bytes(LONG), ADDRESS)
        payload = bytearray(LONG)
        with pytest.raises(BlockingIOError):
            mailbox.send([payload], ADDRESS, wait_ns=0, copy=False)
        payload.append(1)

    @pytest.mark.parametrize("byte_count", [10, LONG])
    def test_an_excess_is_discarded(self, world: World, byte_count: int) -> None:
        mailbox, remote = world.mailbox(receive_bytes_max=1 << 20), world.attach()
        payload = bytes(index % 251 for index in range(byte_count))
        for number, bytes_max in enumerate((0, 1, byte_count - 1, byte_count, byte_count + 1), 1):
            remote.say(number, payload)
            world.turn()
            assert mailbox.recvfrom(bytes_max) == (payload[:bytes_max], ADDRESS)
            assert mailbox.receive(wait_ns=0) is None


class TestAddresses:
    def test_equal_ones_need_not_be_the_same(self, world: World) -> None:
        mailbox, remote = world.mailbox(), world.attach()
        addresses: list[object] = [
            ADDRESS,
            (str(PEER), PEER_PORT),
            ("".join(list(str(PEER))), Number(PEER_PORT)),
            (str(PEER), PEER_PORT, 7, 0),
        ]
        for address in addresses * 2:
            mailbox.sendto(b"x", address)
        world.turn(5)
        assert len(remote.messages()) == 2 * len(addresses)

    def test_very_many_are_told_apart(self, world: World) -> None:
        mailbox, remote = world.mailbox(send_bytes_max=1 << 20), world.attach()
        ports = range(2000, 7500, 5)
        for _ in range(2):
            for port in ports:
                mailbox.sendto(port.to_bytes(2, "big"), (str(PEER), port))
            world.turn(5)
            frames = remote.messages()
            assert [frame.header.target_port for frame in frames] == list(ports)
            assert all(
                frame.header.target_port == int.from_bytes(frame.payload, "big") for frame in frames
            )

    def test_the_same_tuples_are_told_from_new_ones_in_the_place_of_old(self, world: World) -> None:
        """A tuple that is gone leaves its place in memory to the next one."""
        mailbox, remote = world.mailbox(send_bytes_max=1 << 20), world.attach()
        kept = [(str(PEER), port) for port in range(2000, 2040)]
        sent = []
        for number in range(200):
            for address in (kept[number % len(kept)], (str(PEER), 3000 + number % 7)):
                mailbox.sendto(address[1].to_bytes(2, "big"), address)
                sent.append(address[1])
        world.turn(5)
        frames = remote.messages()
        assert [frame.header.target_port for frame in frames] == sent

    @pytest.mark.parametrize(
        ("address", "failure"),
        [
            ("127.0.83.2", TypeError),
            ((str(PEER),), TypeError),
            ((str(PEER), "4000"), TypeError),
            ((str(PEER), 65536), OverflowError),
            ((str(PEER), -1), OverflowError),
            (("::1", PEER_PORT), OSError),
            (("255.255.255.255", PEER_PORT), OSError),
        ],
        ids=str,
    )
    def test_bad_ones_are_refused_each_time(
        self, world: World, address: object, failure: type[Exception]
    ) -> None:
        mailbox = world.mailbox()
        for _ in range(2):
            with pytest.raises(failure):
                mailbox.sendto(b"", address)

    def test_many_sources_are_told_apart(self, world: World) -> None:
        mailbox, remote = world.mailbox(receive_bytes_max=1 << 20), world.attach()
        ports = range(2000, 7500, 5)
        for number, port in enumerate(ports, 1):
            remote.say(number, b"", source_port=port)
            if not number % 100:
                world.turn()
        taken = [mailbox.recvfrom(10)[1] for _ in ports]
        assert taken == [(str(PEER), port) for port in ports]

    def test_a_source_of_ipv6_has_four_members(self, world: World) -> None:
        local, peer = ip_address("::1"), ip_address("fe80::2%3")
        mailbox = world.plane.mailbox(local=local, port=PORT, settings=MailboxSettings())
        loop = world.plane.loop(local=local, peer=local)
        mailbox.route(local, loop)
        mailbox.sendto(b"itself", ("::1", PORT, 0, 0))
        payload, source = mailbox.recvfrom(10)
        assert (payload, source) == (b"itself", ("::1", PORT, 0, 0))
        mailbox.sendto(b"back", source)
        assert mailbox.recvfrom(10) == (b"back", source)
        path = world.plane.path(local=local, peer=peer, index=0, sequence_first=1)
        mailbox.route(peer, path)
        remote = world.attach(path=path)
        remote.say(1, b"scoped")
        world.turn()
        payload, source = mailbox.recvfrom(10)
        assert (payload, source) == (b"scoped", ("fe80::2", PEER_PORT, 0, 3))
        mailbox.sendto(b"answer", source)
        world.turn(5)
        assert [frame.payload for frame in remote.messages()] == [b"answer"]


def test_what_resolving_raises_comes_through(world: World) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "not allowed")

    world.plane.resolve = refuse
    mailbox = world.mailbox()
    with pytest.raises(PermissionError, match="not allowed"):
        mailbox.sendto(b"", ADDRESS)


def test_without_a_route_the_peer_is_unreachable(world: World) -> None:
    asked: list[object] = []
    world.plane.resolve = lambda mailbox, peer: asked.append((mailbox, peer))
    mailbox = world.mailbox()
    with pytest.raises(OSError, match=f"no route to {PEER}") as refused:
        mailbox.sendto(b"", ADDRESS)
    assert refused.value.errno == errno.EHOSTUNREACH
    assert asked == [(mailbox, PEER)] * 3


def test_a_forgotten_plane_is_collected(world: World) -> None:
    plane = type(world)(type(world.plane)).plane
    mailbox = plane.mailbox(local=LOCAL, port=PORT, settings=MailboxSettings())
    mailbox.route(PEER, plane.path(local=LOCAL, peer=PEER, index=0, sequence_first=1))
    mailbox.sendto(b"never", ADDRESS)
    gone = weakref.ref(mailbox)
    plane.close(0)
    plane.release()
    del plane, mailbox
    gc.collect()
    assert gone() is None
