"""A stream core whose peer writes anything into its memory and sends any immediate data.

The application on top of it does what applications do. Whatever happens, the core ends with a
reason or goes on: it keeps no more than its settings allow, posts no more than the queue pair
takes, and gives all memory back.
"""

import errno
from collections.abc import Callable
from contextlib import suppress

from fuzz.script import Script, step
from urds.common.errors import RemoteProtocolError
from urds.rsocket.core.stream.core import StreamCore
from urds.rsocket.core.stream.records import (
    CONTROL_SLOTS,
    Memory,
    MemorySource,
    PostKind,
    Shut,
    StreamSettings,
    StreamState,
)
from urds.rsocket.wire.stream import (
    CREDIT_HAS_ENTRY,
    ConnectData,
    ConnectFlag,
    Control,
    IomapEntry,
    Op,
    Sge,
    emit_imm_data,
)

STEPS_MAX = 400
WINDOW_BYTES_MAX = 1 << 13
RECEIVE_QUEUE = 16
SEND_QUEUE = 16
SEND_BYTES = 4096
CHUNK_BYTES_MAX = 1000
IOMAP_SLOTS = 2
APPLICATION_BYTES = 20_000  # of a buffer that waits or is mapped
BUFFERS_MAX = 4
_POSTS_MAX = 1000  # that one step can cause
_CONTROL = (PostKind.CREDIT, PostKind.CONTROL, PostKind.KEEPALIVE)
_ADDRESS_END = 1 << 64


class Limited:
    """Memory of one stream, as much as it may ever hold."""

    def __init__(self) -> None:
        self.live: list[Memory] = []
        self._next_address = 0x10000

    @property
    def byte_count(self) -> int:
        """Return how much is held."""
        return sum(memory.view.nbytes for memory in self.live)

    def allocate(self, byte_count: int) -> Memory:
        """Return that many bytes; a core that asks for too many has no bound."""
        memory = Memory(memoryview(bytearray(byte_count)), self._next_address, len(self.live))
        self._next_address += byte_count
        self.live.append(memory)
        return memory

    def release(self, memory: Memory) -> None:
        """Take memory back."""
        self.live.remove(memory)


class Besieged:
    """One core, its application and its queue pair; the peer is the script's."""

    def __init__(
        self,
        choices: int,
        private_data: bytes,
        make: Callable[[StreamSettings, MemorySource], StreamCore] = StreamCore,
    ) -> None:
        """Connect, or raise RemoteProtocolError; then the core must still be as new."""
        self.source = Limited()
        self.stream = make(
            StreamSettings(
                send_queue=SEND_QUEUE,
                receive_queue=RECEIVE_QUEUE,
                receive_bytes=2048,
                is_receive_fixed=bool(choices & 1),
                ring_first_bytes=1024,
                ring_max_bytes=WINDOW_BYTES_MAX,
                send_bytes=SEND_BYTES,
                chunk_max_bytes=CHUNK_BYTES_MAX,
                iomap_slots=IOMAP_SLOTS,
                table_entries=4,
                byte_order="big" if choices & 2 else "little",
                is_urds=not choices & 4,
                no_delay=bool(choices & 8),
                keepalive_ns=100 if choices & 16 else None,
            ),
            self.source,
        )
        self.connect_data = ConnectData.parse(self.stream.connect_data)
        # librdmacm has a limit of its own, which is larger than all that may wait here.
        self._chunk_max = CHUNK_BYTES_MAX if self.stream.settings.is_urds else SEND_BYTES
        self._now_ns = 0
        self._kinds: list[PostKind] = []
        self._buffers: list[Memory] = []
        try:
            self.stream.adopt(private_data)
        except RemoteProtocolError:
            assert self.stream.lifecycle.state is StreamState.NEW
            self.close()
            raise
        self.post()

    # -- the peer

    def write(self, place: int, data: bytes) -> None:
        """Write where the peer may: into any memory that is registered."""
        views = [memory.view for memory in self.source.live]
        total = sum(view.nbytes for view in views)
        place %= max(total, 1)
        for view in views:
            if place < view.nbytes:
                part = data[: view.nbytes - place]
                view[place : place + len(part)] = part
                return
            place -= view.nbytes

    def say(self, imm_data: int) -> None:
        """Let immediate data arrive. An error ends the connection, as the shell does."""
        reason = None
        try:
            self.stream.receive_data(imm_data)
        except RemoteProtocolError as error:
            reason = str(error)
        if reason is not None:
            self.stream.handle_disconnected(reason, errno.ECONNRESET)
            self._kinds.clear()
            assert reason and self.stream.lifecycle.reason, "a refusal has a reason"
            assert self.stream.lifecycle.state in (StreamState.FAILED, StreamState.OVER)
        self.post()

    # -- this side

    def post(self) -> None:
        """Take all posts; check each."""
        for _ in range(_POSTS_MAX):
            post = self.stream.poll_transmit()
            if post is None:
                break
            self._kinds.append(post.kind)
            assert len(post.data) <= self._chunk_max, f"a chunk of {len(post.data)}"
            assert 0 <= post.address <= post.address + len(post.data) <= _ADDRESS_END
            assert post.imm_data is None or 0 <= post.imm_data < 1 << 32
        else:
            raise AssertionError("no end of posts")
        self.check()

    def complete(self) -> None:
        """Complete the oldest post."""
        if self._kinds:
            self._kinds.pop(0)
            self.stream.handle_sent()
            self.post()

    def act(self, choice: int, amount: int) -> None:
        """Do something that an application does."""
        actions = (
            self._send, self._send, self._receive, self._receive, self._peek, self._wait,
            self._end_wait, self._map, self._unmap, self._write_mapped, self._shut_down,
            self._pass_time,
        )  # fmt: skip
        actions[choice % len(actions)](amount)
        self.post()

    def _send(self, amount: int) -> None:
        if self.stream.lifecycle.can_write:
            data = memoryview(bytes(amount * 80))
            assert self.stream.send(data, may_zero_copy=bool(amount & 1)) <= len(data)

    def _receive(self, amount: int) -> None:
        view = memoryview(bytearray(amount * 20))
        readable = self.stream.receive_ring.readable_bytes
        assert self.stream.receive_ring.receive_into(view) <= min(len(view), readable)

    def _peek(self, amount: int) -> None:
        readable = self.stream.receive_ring.readable_bytes
        data = self.stream.receive_ring.receive(amount * 20, peek=True)
        assert len(data) <= readable == self.stream.receive_ring.readable_bytes

    def _buffer(self) -> Memory | None:
        if len(self._buffers) >= BUFFERS_MAX:
            return None
        memory = self.source.allocate(APPLICATION_BYTES)
        self._buffers.append(memory)
        return memory

    def _wait(self, amount: int) -> None:
        if not self.stream.receive_ring.expected_left and (memory := self._buffer()) is not None:
            self.stream.receive_ring.end_expect()
            self.stream.receive_ring.expect(memory, APPLICATION_BYTES - amount)

    def _end_wait(self, _: int) -> None:
        assert 0 <= self.stream.receive_ring.end_expect() <= APPLICATION_BYTES

    def _map(self, amount: int) -> None:
        if (memory := self._buffer()) is not None:
            with suppress(OSError):
                self.stream.map_buffer(memory, amount)

    def _unmap(self, amount: int) -> None:
        if self._buffers:
            with suppress(OSError):
                self.stream.unmap(self._buffers[amount % len(self._buffers)])

    def _write_mapped(self, amount: int) -> None:
        if self.stream.lifecycle.can_write:
            data = memoryview(bytes(amount * 80))
            taken = self.stream.write_mapped(data, amount, may_zero_copy=bool(amount & 1))
            assert taken <= len(data)

    def _shut_down(self, amount: int) -> None:
        self.stream.lifecycle.shut_down(Shut(amount % len(Shut)))

    def _pass_time(self, amount: int) -> None:
        self._now_ns += amount
        if self.stream.poll_timeout() is not None:
            self.stream.handle_timeout(self._now_ns)

    # -- invariants

    def check(self) -> None:
        """Check that nothing grows beyond what the settings allow."""
        control = sum(kind in _CONTROL for kind in self._kinds)
        assert control <= CONTROL_SLOTS, f"{control} control messages"
        assert len(self._kinds) - control <= SEND_QUEUE - CONTROL_SLOTS
        # The first region, a receive ring that is left and the one after it, the application's.
        limit = 3 * WINDOW_BYTES_MAX + len(self._buffers) * APPLICATION_BYTES
        assert self.source.byte_count <= limit, f"{self.source.byte_count} bytes"
        stream = self.stream
        assert 0 <= stream.receive_ring.readable_bytes <= self.source.byte_count
        assert stream.unsent_bytes - stream.sending.zero_copy_bytes <= SEND_BYTES
        # No public access to its state of the peer.
        assert len(stream._remote_sgl.spaces) <= self.connect_data.target_sgl.length
        assert len(stream.receive_ring._message_ends) <= RECEIVE_QUEUE
        assert len(stream.receive_ring._unread) <= RECEIVE_QUEUE
        assert len(stream.iomap._remote) <= IOMAP_SLOTS

    def close(self) -> None:
        """End; all memory comes back but the application's own."""
        self.stream.close()
        assert self.stream.poll_transmit() is None
        assert {id(each) for each in self.source.live} == {id(each) for each in self._buffers}


def rsocket_stream(data: bytes) -> None:
    """Let a script be the peer and the application of a stream; it begins with private data."""
    script = Script(data)
    choices, private_data = script.number(), script.piece()
    try:
        side = Besieged(choices, private_data)
    except RemoteProtocolError:
        return
    for _ in range(STEPS_MAX):
        if not script:
            break
        action, amount = script.number(), script.number()
        if action & 3 == 0:
            side.write(script.number(2) if action & 4 else amount, script.piece())
        elif action & 3 == 1:
            side.say(script.number(4))
        elif action & 3 == 2:
            side.act(action >> 2, amount)
        else:
            side.complete()
    side.close()


TARGETS: dict[str, Callable[[bytes], None]] = {"rsocket_stream": rsocket_stream}


def private_data(*, is_urds: bool = True, is_big: bool = False) -> bytes:
    """Return what an honest peer sends."""
    return ConnectData(
        flags=ConnectFlag.IOMAP
        | (ConnectFlag.URDS if is_urds else 0)
        | (ConnectFlag.BIG_ENDIAN if is_big else 0),
        credits=20,
        iomap_slots=1,
        target_sgl=Sge(1 << 40, 0x100, 8),
        data_buffer=Sge(1 << 41, 0x101, 4096),
    ).emit()


def _word(op: Op, argument: int) -> bytes:
    return bytes([1, 0]) + emit_imm_data(op, argument).to_bytes(4, "big")


def _entry(index: int, *, length: int = 700) -> bytes:
    return step(0, index * 16, data=Sge(1 << 42, 0x102, length).emit("little"))


_CALLS = b"".join(bytes([action << 2 | 2, 200]) for action in range(10))
_DONE = bytes([3, 0]) * 6
SEEDS: dict[str, tuple[bytes, ...]] = {
    "rsocket_stream": (
        step(0, data=private_data())
        + _CALLS
        + _word(Op.DATA, 512)
        + _entry(1)
        + _word(Op.CREDIT, CREDIT_HAS_ENTRY | 30)
        + _DONE
        + _CALLS
        + _word(Op.CONTROL, Control.SHUTDOWN)
        + _CALLS,
        step(0x18, data=private_data(is_urds=False))
        + _word(Op.DATA, 1000)
        + _CALLS
        + _entry(1, length=40)
        + _word(Op.CREDIT, 40)
        + _entry(2, length=40)
        + _word(Op.CREDIT, 40)
        + _DONE
        + step(0, 64, data=IomapEntry(100, 1 << 43, 0x103, 900).emit("little"))
        + _word(Op.IOMAP, 0)
        + _CALLS
        + _word(Op.CONTROL, Control.DISCONNECT),
        step(0x06, data=private_data(is_big=True)) + _CALLS + _word(Op.DATA, 1) * 17,
    ),
}
