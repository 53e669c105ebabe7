"""How a loop hears of rsockets, and what a transport does with that, over sockets made by hand."""

import asyncio
import socket as system
import threading
from collections import deque

import pytest

from tests.rsocket.unit.rsocket_fakes import (
    BOTH,
    HUNG_UP,
    NOTHING,
    READABLE,
    WRITABLE,
    FakeContext,
    FakeSocket,
)
from urds.rsocket.aio import until
from urds.rsocket.aio.transport import READ_BYTES, WRITE_HIGH_BYTES, StreamTransport, loop_calls


class FakeStream(FakeSocket):
    """Takes `room` bytes; gives what is in `incoming`, b"" being the end."""

    def __init__(self) -> None:
        super().__init__(FakeContext())
        self.room = 1 << 30
        self.sent = bytearray()
        self.incoming: deque[bytes] = deque()
        self.calls: list[str] = []
        self.while_sending = lambda: None

    def setblocking(self, blocking: bool) -> None:
        assert not blocking

    def getpeername(self):
        return ("10.0.0.1", 1)

    def send(self, view: memoryview) -> int:
        self.calls.append("send")
        count = min(self.room, len(view))
        if not count:
            raise BlockingIOError
        self.room -= count
        self.sent += view[:count]
        self.while_sending()
        return count

    def recv(self, count: int) -> bytes:
        self.calls.append("recv")
        if not self.incoming:
            raise BlockingIOError
        data = self.incoming.popleft()
        if not self.incoming:
            self._state = self._state._replace(readable=False)
        return data

    def come(self, *pieces: bytes) -> None:
        self.incoming.extend(pieces)
        self.become(self._state._replace(readable=True))

    def shutdown(self, how: int) -> None:
        self.calls.append(f"shutdown {how}")

    def setsockopt(self, *option) -> None:
        self.calls.append("linger")


class Protocol(asyncio.Protocol):
    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.told: list[str] = []
        self.on_data = lambda: None

    def data_received(self, data: bytes) -> None:
        self.got.append(data)
        self.on_data()

    def eof_received(self) -> bool:
        self.told.append("end")
        return True

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append(f"lost {exc}")


async def turns(count: int = 6) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def begin() -> tuple[StreamTransport, FakeStream, Protocol]:
    stream, protocol = FakeStream(), Protocol()
    stream.become(WRITABLE)
    return StreamTransport(stream, protocol, loop_calls()), stream, protocol


def run(main) -> None:
    asyncio.run(asyncio.wait_for(main(), 20))


class TestUntil:
    def test_it_takes_no_turn_when_it_is_ready(self) -> None:
        async def main() -> None:
            socket = FakeSocket()
            await until(socket, lambda: True)
            assert not socket.watchers

        run(main)

    def test_a_change_between_question_and_watch_is_not_lost(self) -> None:
        async def main() -> None:
            socket, answers = FakeSocket(), iter([False, True])
            await until(socket, lambda: next(answers))

        run(main)

    def test_a_change_right_before_the_sleep_is_not_lost(self) -> None:
        async def main() -> None:
            socket = FakeSocket()

            def is_ready() -> bool:
                is_ready.count += 1
                if is_ready.count == 2:  # watched by now
                    socket.become(READABLE)
                    return False
                return is_ready.count > 2

            is_ready.count = 0
            await until(socket, is_ready)
            assert is_ready.count > 2

        run(main)

    def test_other_threads_wake_it_and_devices_are_attended(self) -> None:
        async def main() -> None:
            context = FakeContext()
            socket = FakeSocket(context)
            waiting = asyncio.create_task(until(socket, lambda: socket.readiness().readable))
            await turns()
            assert context.adapter.attending_count == 1
            thread = threading.Thread(target=lambda: socket.become(READABLE))
            thread.start()
            await waiting
            thread.join()
            assert context.adapter.attending_count == 0
            assert not socket.watchers

        asyncio.run(asyncio.wait_for(main(), 20), debug=True)  # finds calls from other threads

    def test_a_cancelled_wait_leaves_nothing_behind(self) -> None:
        async def main() -> None:
            context = FakeContext()
            socket = FakeSocket(context)
            waiting = asyncio.create_task(until(socket, lambda: False))
            await turns()
            waiting.cancel()
            await turns()
            assert waiting.cancelled()
            assert not socket.watchers
            assert context.adapter.attending_count == 0
            socket.become(READABLE)
            await turns()

        run(main)

    def test_what_it_does_not_wait_for_wakes_no_thread(self) -> None:
        async def main() -> None:
            socket, loop_queue = FakeSocket(), loop_calls()
            waiting = asyncio.create_task(until(socket, lambda: socket.readiness().readable))
            await turns()
            socket.become(WRITABLE)
            assert not loop_queue._due
            socket.become(READABLE)
            assert len(loop_queue._due) == 1
            await waiting

        run(main)

    def test_many_changes_are_one_call(self) -> None:
        async def main() -> None:
            loop_queue, called = loop_calls(), []
            for number in range(100):
                loop_queue.call_soon(lambda number=number: called.append(number))
            await turns(1)
            assert called == list(range(100))

        run(main)

    def test_a_closed_loop_is_told_nothing(self) -> None:
        async def main() -> None:
            made.append(loop_calls())

        made: list = []
        run(main)
        made[0].call_soon(lambda: None)


class TestTransport:
    def test_what_comes_is_given_on(self) -> None:
        async def main() -> None:
            _, stream, protocol = begin()
            stream.come(b"one", b"two")
            await turns()
            assert protocol.got == [b"one", b"two"]
            assert "recv" in stream.calls and len(stream.calls) == 2

        run(main)

    def test_what_comes_while_it_sends_is_read(self) -> None:
        """A send may drive the device: the note of that time is passed over, but not forgotten."""

        async def main() -> None:
            transport, stream, protocol = begin()
            await turns()
            stream.while_sending = lambda: stream.come(b"answer")
            transport.write(b"question")
            await turns()
            assert protocol.got == [b"answer"]

        run(main)

    def test_a_note_of_another_thread_while_it_calls_is_not_passed_over(self) -> None:
        async def main() -> None:
            transport, stream, protocol = begin()
            await turns()

            def from_elsewhere() -> None:
                thread = threading.Thread(target=lambda: stream.come(b"answer"))
                thread.start()
                thread.join()
                assert transport._is_scheduled  # now: the call may be over before it is seen

            stream.while_sending = from_elsewhere
            transport.write(b"question")
            await turns()
            assert protocol.got == [b"answer"]

        run(main)

    def test_what_it_does_not_wait_for_makes_no_turn(self) -> None:
        """Acknowledgements and credits are most of what a socket tells of."""

        async def main() -> None:
            transport, stream, protocol = begin()
            await turns()
            stream.become(WRITABLE)
            assert not transport._is_scheduled
            transport.pause_reading()
            stream.come(b"x")
            assert not transport._is_scheduled
            assert stream.calls == []
            transport.resume_reading()
            await turns()
            assert protocol.got == [b"x"]

        run(main)

    def test_without_room_bytes_wait_and_the_protocol_pauses(self) -> None:
        async def main() -> None:
            transport, stream, protocol = begin()
            stream.room = 10
            words = bytes(range(250)) * 400
            data = bytearray(words)
            transport.write(data)
            data[:] = bytes(len(data))  # the memory is the caller's again
            stream.become(NOTHING)
            assert transport.get_write_buffer_size() == len(words) - 10
            assert protocol.told == ["pause"]
            stream.room = len(words) - 20 - 1000
            stream.become(WRITABLE)
            await turns()
            assert protocol.told == ["pause", "resume"]
            assert transport.get_write_buffer_size() == 1010
            stream.room = 1 << 20
            transport.write(b"last")
            stream.become(WRITABLE)
            await turns()
            assert stream.sent == words + b"last"
            assert transport.get_write_buffer_size() == 0

        run(main)

    def test_limits(self) -> None:
        async def main() -> None:
            transport, _, _ = begin()
            assert transport.get_write_buffer_limits() == (WRITE_HIGH_BYTES // 4, WRITE_HIGH_BYTES)
            transport.set_write_buffer_limits(low=10)
            assert transport.get_write_buffer_limits() == (10, 40)
            transport.set_write_buffer_limits(high=100)
            assert transport.get_write_buffer_limits() == (25, 100)
            with pytest.raises(ValueError):
                transport.set_write_buffer_limits(high=1, low=2)

        run(main)

    def test_a_pause_leaves_bytes_where_they_are(self) -> None:
        async def main() -> None:
            transport, stream, protocol = begin()
            transport.pause_reading()
            assert not transport.is_reading()
            stream.come(b"x")
            await turns()
            assert protocol.got == []
            transport.resume_reading()
            await turns()
            assert protocol.got == [b"x"]

        run(main)

    def test_a_pause_by_the_protocol_is_obeyed_at_once(self) -> None:
        async def main() -> None:
            transport, stream, protocol = begin()
            protocol.on_data = transport.pause_reading
            stream.come(b"one", b"two")
            await turns()
            assert protocol.got == [b"one"]

        run(main)

    def test_the_end_of_each_direction(self) -> None:
        async def main() -> None:
            transport, stream, protocol = begin()
            stream.room = 1
            transport.write(b"ab")
            transport.write_eof()
            assert f"shutdown {system.SHUT_WR}" not in stream.calls
            with pytest.raises(RuntimeError):
                transport.write(b"c")
            stream.room = 1
            stream.become(BOTH)
            stream.come(b"")
            await turns()
            assert f"shutdown {system.SHUT_WR}" in stream.calls
            assert protocol.told == ["end"]
            assert not transport.is_closing()

        run(main)

    def test_a_close_lets_what_waits_leave(self) -> None:
        async def main() -> None:
            transport, stream, protocol = begin()
            stream.room = 0
            transport.write(b"words")
            transport.close()
            assert transport.is_closing()
            await turns()
            assert not stream.closed
            stream.room = 100
            stream.become(WRITABLE)
            await turns()
            assert stream.sent == b"words"
            assert stream.closed
            assert protocol.told == ["lost None"]
            assert not stream.watchers
            assert stream.contexts[0].adapter.attending_count == 0

        run(main)

    def test_an_abort_drops_what_waits(self) -> None:
        async def main() -> None:
            transport, stream, protocol = begin()
            stream.room = 0
            transport.write(b"words")
            transport.abort()
            await turns()
            assert stream.closed and "linger" in stream.calls
            assert protocol.told == ["lost None"]

        run(main)

    def test_an_error_is_told_once(self) -> None:
        async def main() -> None:
            transport, stream, protocol = begin()

            def broken(_: object) -> int:
                raise ConnectionResetError("reset")

            stream.send = broken
            transport.write(b"words")
            transport.write(b"more")
            stream.become(HUNG_UP)
            await turns()
            assert protocol.told == ["lost reset"]
            assert stream.closed

        run(main)

    def test_a_busy_socket_gives_others_their_turn(self) -> None:
        """One receive per turn of the loop, of READ_BYTES at most."""

        async def main() -> None:
            _, stream, protocol = begin()
            stream.come(*[b"x"] * 50)
            await turns(10)
            assert 0 < len(protocol.got) < 50
            await turns(200)
            assert len(protocol.got) == 50
            assert READ_BYTES == 1 << 18

        run(main)
