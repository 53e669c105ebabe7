"""rpoll, rselect and Repoll over sockets and devices that the test holds in its hand."""

import errno
import os
import select
import time

import pytest

from tests.rsocket.unit.rsocket_fakes import (
    BOTH,
    FAILED,
    NOTHING,
    READABLE,
    WRITABLE,
    FakeContext,
    FakeSocket,
)
from tests.support.clocks import give_time
from tests.support.waiting import BUSY_S, ENDLESS_S, wait_until
from urds.rsocket import poll as polling
from urds.rsocket.poll import rpoll, rselect
from urds.rsocket.repoll import (
    EPOLL_CTL_ADD,
    EPOLL_CTL_DEL,
    EPOLL_CTL_MOD,
    Repoll,
    close_instance,
    repoll_create,
    repoll_ctl,
    repoll_wait,
)

IN, OUT, HUP, ERR, NVAL = (
    *(select.POLLIN, select.POLLOUT, select.POLLHUP, select.POLLERR, select.POLLNVAL),
)


@pytest.fixture
def context() -> FakeContext:
    return FakeContext()


@pytest.fixture
def pipe():
    reader, writer = os.pipe()
    yield reader, writer
    for end in (reader, writer):
        os.close(end)


class TestRpoll:
    def test_the_ready_ones_come_in_their_order(self, context) -> None:
        sockets = [FakeSocket(context) for _ in range(4)]
        sockets[3].become(READABLE)
        sockets[1].become(WRITABLE)
        asked = [(socket, IN | OUT) for socket in sockets]
        assert rpoll(asked, 0) == [(sockets[1], OUT), (sockets[3], IN)]

    def test_one_socket_may_be_asked_for_twice(self, context) -> None:
        socket = FakeSocket(context)
        socket.become(BOTH)
        assert rpoll([(socket, IN), (socket, OUT)], 0) == [(socket, IN), (socket, OUT)]

    def test_without_time_the_device_is_looked_at_once(self, context) -> None:
        socket = FakeSocket(context)
        assert rpoll([(socket, IN)], 0) == []
        assert context.adapter.progress_count == 1
        assert not socket.watchers

    def test_what_the_device_brings_in_is_seen_at_once(self, context) -> None:
        socket = FakeSocket(context)
        context.adapter.progress = lambda: socket.become(READABLE)
        assert rpoll([(socket, IN)], 0) == [(socket, IN)]

    def test_a_wait_ends_with_the_change(self, context) -> None:
        socket = FakeSocket(context)
        context.adapter.happenings.append(lambda: socket.become(WRITABLE))  # not asked for
        context.adapter.happenings.append(lambda: socket.become(BOTH))
        assert rpoll([(socket, IN)]) == [(socket, IN)]
        assert not socket.watchers
        assert not context.adapter.happenings

    def test_unwanted_events_wake_no_thread(self, context) -> None:
        socket = FakeSocket(context)
        for state in (WRITABLE, NOTHING, WRITABLE):
            context.adapter.happenings.append(lambda state=state: socket.become(state))
        assert rpoll([(socket, IN)], 1000) == []
        assert context.adapter.notify_count == 0

    def test_a_change_between_look_and_sleep_is_not_lost(self, context) -> None:
        """The third look is the one after the watch: what comes during it must be noticed."""
        socket = FakeSocket(context)

        def third_look() -> None:
            if socket.asked_count == 3:
                socket.become(READABLE)

        socket.while_asked = third_look
        assert rpoll([(socket, IN)]) == [(socket, IN)]

    def test_a_wake_up_costs_what_has_changed(self, context) -> None:
        sockets = [FakeSocket(context) for _ in range(1000)]
        before = []

        def happen() -> None:
            before.append(sum(socket.asked_count for socket in sockets))
            sockets[700].become(READABLE)

        context.adapter.happenings.append(happen)
        assert rpoll([(socket, IN) for socket in sockets]) == [(sockets[700], IN)]
        assert sum(socket.asked_count for socket in sockets) == before[0] + 2

    @pytest.mark.rule("rsocket-problem-clock")
    def test_the_clock_is_read_by_who_waits(self, context, monkeypatch) -> None:
        """Neither by a look that finds something, nor once per wake-up that has no limit."""
        socket = FakeSocket(context)
        give_time(monkeypatch, polling, monotonic=lambda: 1 / 0)
        context.adapter.happenings.extend([socket.come_and_go] * 9)
        context.adapter.happenings.append(lambda: socket.become(READABLE))
        assert rpoll([(socket, IN)]) == [(socket, IN)]
        assert rpoll([(socket, IN)], 1000) == [(socket, IN)]
        with Repoll() as poll:
            poll.register(socket, IN, "socket")
            assert poll.poll(1) == [("socket", IN)]

    def test_time_runs_out(self, context) -> None:
        socket = FakeSocket(context)
        assert rpoll([(socket, IN)], 1) == []
        assert not socket.watchers

    def test_a_closed_socket_is_told_at_once(self, context) -> None:
        socket = FakeSocket(context)
        context.adapter.happenings.append(socket.close)
        assert rpoll([(socket, IN)]) == [(socket, NVAL)]
        assert rpoll([(socket, 0)], 0) == [(socket, NVAL)]

    def test_an_own_change_wakes_the_driver(self, context) -> None:
        socket = FakeSocket(context)
        context.adapter.happenings.append(lambda: socket.become(READABLE))
        rpoll([(socket, IN)])
        assert context.adapter.notify_count == 1

    def test_ordinary_descriptors_beside(self, context, pipe) -> None:
        reader, writer = pipe
        socket = FakeSocket(context)
        assert rpoll([(reader, IN), (socket, IN), (writer, OUT)], 0) == [(writer, OUT)]
        os.write(writer, b"x")
        socket.become(READABLE)
        asked = [(reader, IN), (socket, IN), (reader, OUT)]
        assert rpoll(asked) == [(reader, IN), (socket, IN)]

    def test_while_a_thread_sleeps_outside_the_devices_are_attended(
        self, context, pipe, monkeypatch
    ) -> None:
        socket, counts = FakeSocket(context), []
        ask = polling._Watch._ask_kernel

        def watched(self, timeout_ms):
            counts.append(context.adapter.attending_count)
            if len(counts) == 4:  # after three looks
                socket.become(READABLE)
            return ask(self, timeout_ms)

        monkeypatch.setattr(polling._Watch, "_ask_kernel", watched)
        assert rpoll([(pipe[0], IN), (socket, IN)], 1000) == [(socket, IN)]
        assert counts[-1] == 1
        assert context.adapter.attending_count == 0

    def test_a_change_right_after_a_look_ends_the_sleep(self, context, pipe, monkeypatch) -> None:
        """The doorbell is read before the look: after it, it would silence this change."""
        socket = FakeSocket(context)
        look = polling._Watch._look_at_changed

        def widened(self):
            found = look(self)
            monkeypatch.undo()
            socket.become(READABLE)
            return found

        ask = polling._Watch._ask_kernel

        def first_sleep(self, timeout_ms):
            monkeypatch.setattr(polling._Watch, "_ask_kernel", ask)
            socket.come_and_go()  # a wake-up without an event
            return ask(self, timeout_ms)

        asked = [(pipe[0], IN), (socket, IN)]
        monkeypatch.setattr(polling._Watch, "_look_at_changed", widened)
        watch = polling._Watch([(file, events) for file, events in asked])
        with watch:
            monkeypatch.setattr(polling._Watch, "_ask_kernel", first_sleep)
            begin_s = time.monotonic()
            assert watch.wait(ENDLESS_S) == {1: IN}
            assert time.monotonic() - begin_s < BUSY_S

    def test_a_change_before_there_is_a_doorbell_ends_the_sleep(
        self, context, pipe, monkeypatch
    ) -> None:
        socket = FakeSocket(context)
        make = polling.Doorbell

        def late():
            socket.become(READABLE)
            return make()

        monkeypatch.setattr(polling, "Doorbell", late)
        begin_s = time.monotonic()
        assert rpoll([(pipe[0], IN), (socket, IN)], 60_000) == [(socket, IN)]
        assert time.monotonic() - begin_s < BUSY_S

    def test_the_kernel_counts_whole_milliseconds_and_none_too_few(self, pipe, monkeypatch) -> None:
        asked, ask = [], polling._Watch._ask_kernel

        def noted(self, timeout_ms):
            asked.append(timeout_ms)
            return ask(self, timeout_ms)

        def is_asked_in_time() -> bool:
            """On a busy machine a part of the time is gone before the kernel is asked."""
            asked.clear()
            assert rpoll([(pipe[0], IN)], 1.9) == []
            assert max(asked) <= 2
            return max(asked) == 2

        monkeypatch.setattr(polling._Watch, "_ask_kernel", noted)
        wait_until(is_asked_in_time)

    def test_no_such_descriptor(self, context, pipe) -> None:
        number = os.dup(pipe[0])
        os.close(number)
        socket = FakeSocket(context)
        assert rpoll([(socket, IN), (number, IN)]) == [(number, NVAL)]

    def test_a_negative_number_is_passed_over(self, pipe) -> None:
        assert rpoll([(-1, IN), (pipe[1], OUT)]) == [(pipe[1], OUT)]

    def test_nothing_at_all(self) -> None:
        assert rpoll([], 0) == []

    def test_a_number_of_ours_is_its_socket(self, context, monkeypatch) -> None:
        socket = FakeSocket(context, 77)
        monkeypatch.setattr(polling, "socket_of", {77: socket}.get)
        socket.become(READABLE)
        assert rpoll([(77, IN)], 0) == [(77, IN)]


class TestRselect:
    def test_three_answers(self, context, pipe) -> None:
        reader, writer = pipe
        quiet, ready, broken = (FakeSocket(context) for _ in range(3))
        ready.become(BOTH)
        broken.become(FAILED)
        asked = [quiet, ready, broken, reader]
        answer = rselect(asked, [*asked, writer], asked, 0)
        assert answer == ([ready, broken], [ready, broken, writer], [broken])

    def test_a_hang_up_is_to_be_read(self, context) -> None:
        socket = FakeSocket(context)
        socket.become(NOTHING._replace(hung_up=True))
        assert rselect([socket], [socket], [socket], 0) == ([socket], [], [socket])

    def test_descriptor_zero(self, pipe) -> None:
        """The original can never select it."""
        os.write(pipe[1], b"x")
        saved = None
        try:
            saved = os.dup(0)
        except OSError:
            pass
        try:
            os.dup2(pipe[0], 0)
            assert rselect([0], [], [], 0) == ([0], [], [])
        finally:
            if saved is None:
                os.close(0)
            else:
                os.dup2(saved, 0)
                os.close(saved)

    @pytest.mark.parametrize("number", [-1, 999_999])
    def test_no_such_descriptor(self, number) -> None:
        with pytest.raises(OSError) as raised:
            rselect([number], [], [], 0)
        assert raised.value.errno == errno.EBADF

    def test_no_negative_time(self) -> None:
        with pytest.raises(ValueError):
            rselect([], [], [], -1)


class TestRepoll:
    def test_a_wait_ends_with_the_change(self, context) -> None:
        socket = FakeSocket(context)
        with Repoll() as poll:
            poll.register(socket, IN, "mine")
            assert poll.poll(0) == []
            context.adapter.happenings.append(lambda: socket.become(READABLE))
            assert poll.poll() == [("mine", IN)]
            assert poll.poll(0) == [("mine", IN)]

    def test_any_change_wakes_the_driver(self, context, pipe) -> None:
        """A change without a packet, and a member that can only be waited for otherwise."""
        socket, adapter = FakeSocket(context), context.adapter
        with Repoll() as poll:
            poll.register(socket, IN, "socket")
            adapter.happenings.append(lambda: poll.register(pipe[1], OUT, "pipe"))
            assert poll.poll(5) == [("pipe", OUT)]
            assert adapter.notify_count == 1
            poll.unregister(pipe[1])
            adapter.happenings.append(lambda: socket.become(READABLE))
            assert poll.poll(ENDLESS_S) == [("socket", IN)]
            assert adapter.notify_count == 2

    def test_its_own_descriptor_shows_what_is_ready(self, context, pipe) -> None:
        socket = FakeSocket(context)
        with Repoll() as poll:
            poll.register(socket, IN)
            poll.register(pipe[0], IN)
            number = poll.fileno()
            assert context.adapter.attending_count == 1
            for make, take in (
                (lambda: socket.become(READABLE), lambda: socket.become(NOTHING)),
                (lambda: os.write(pipe[1], b"x"), lambda: os.read(pipe[0], 1)),
            ):
                assert not select.select([number], [], [], 0)[0]
                make()
                assert select.select([number], [], [], 0)[0]
                assert len(poll.poll(0)) == 1
                assert select.select([number], [], [], 0)[0]
                take()
            assert not select.select([number], [], [], 0)[0]
        assert context.adapter.attending_count == 0
        assert not socket.watchers

    def test_ordinary_descriptors_beside(self, context, pipe) -> None:
        reader, writer = pipe
        socket = FakeSocket(context)
        with Repoll() as poll:
            poll.register(socket, OUT, "socket")
            poll.register(reader, IN, "pipe")
            poll.register(writer, OUT)
            assert poll.poll(0) == [(writer, OUT)]
            os.write(writer, b"x")
            socket.become(WRITABLE)
            assert sorted(poll.poll(), key=str) == sorted(
                [("socket", OUT), ("pipe", IN), (writer, OUT)], key=str
            )
            poll.unregister(reader)
            poll.modify(writer, 0)
            assert poll.poll() == [("socket", OUT)]

    def test_devices_are_attended_while_there_is_need(self, context, pipe) -> None:
        socket, adapter = FakeSocket(context), context.adapter
        with Repoll() as poll:
            poll.register(socket, IN)
            poll.poll(0.001)
            assert adapter.attending_count == 0
            poll.register(pipe[0], IN)
            poll.poll(0.001)
            assert adapter.attending_count == 1
            poll.unregister(pipe[0])
            poll.poll(0.001)
            assert adapter.attending_count == 0
            poll.fileno()
            poll.poll(0.001)
            assert adapter.attending_count == 1
        assert adapter.attending_count == 0

    def test_neither_kind_starves_the_other(self, context, pipe) -> None:
        socket = FakeSocket(context)
        socket.become(READABLE)
        with Repoll() as poll:
            poll.register(socket, IN, "socket")
            poll.register(pipe[1], OUT, "pipe")
            assert {poll.poll(maxevents=1)[0][0] for _ in range(4)} == {"socket", "pipe"}

    def test_an_idle_socket_that_connects(self, context) -> None:
        """No thread drives for it before it has a device: a sleeper waits for the doorbell."""
        socket = FakeSocket()
        with Repoll() as poll:
            poll.register(socket, OUT, "socket")
            assert poll.poll(0.001) == []
            socket.contexts = (context,)
            socket.become(WRITABLE)
            assert poll.poll() == [("socket", OUT)]

    def test_a_change_right_before_the_sleep_ends_it(self, context, pipe, monkeypatch) -> None:
        """No thread sleeps yet, so none is rung: one that is about to sleep must see the list."""
        socket = FakeSocket(context)
        with Repoll() as poll:
            poll.register(pipe[0], IN)
            poll.register(socket, IN, "socket")
            assert poll.poll(0) == []
            attend = poll._attend
            monkeypatch.setattr(poll, "_attend", lambda: (attend(), socket.become(READABLE)))
            begin_s = time.monotonic()
            assert poll.poll(ENDLESS_S) == [("socket", IN)]
            assert time.monotonic() - begin_s < BUSY_S

    def test_errors(self, context, pipe) -> None:
        socket = FakeSocket(context)
        poll = Repoll()
        for file in (socket, pipe[0]):
            for call in (
                lambda file=file: poll.modify(file, IN),
                lambda f=file: poll.unregister(f),
            ):
                with pytest.raises(FileNotFoundError):
                    call()
            poll.register(file, IN)
            with pytest.raises(FileExistsError):
                poll.register(file, IN)
        for count in (0, -2):
            with pytest.raises(ValueError, match="maxevents"):
                poll.poll(0, count)
        closed = FakeSocket(context)
        closed.close()
        with pytest.raises(OSError) as raised:
            poll.register(closed, IN)
        assert raised.value.errno == errno.EBADF
        with pytest.raises(OSError) as raised:
            poll.register(poll, IN)
        assert raised.value.errno == errno.EINVAL
        poll.close()
        poll.close()
        for call in (poll.poll, poll.fileno, lambda: poll.register(socket)):
            with pytest.raises(ValueError, match="closed"):
                call()

    def test_a_close_ends_the_wait(self, context) -> None:
        poll = Repoll()
        poll.register(FakeSocket(context), IN)
        context.adapter.happenings.append(poll.close)
        with pytest.raises(ValueError, match="closed"):
            poll.poll()


class TestNumbers:
    @pytest.fixture
    def instance(self):
        number = repoll_create()
        yield number
        close_instance(number)

    def test_the_calls(self, instance, context, pipe) -> None:
        socket = FakeSocket(context, 77)
        socket.become(BOTH)
        repoll_ctl(instance, EPOLL_CTL_ADD, socket, IN)
        repoll_ctl(instance, EPOLL_CTL_ADD, pipe[1], ("pipe", OUT))
        assert sorted(repoll_wait(instance, 8, 0), key=str) == sorted(
            [(77, IN), ("pipe", OUT)], key=str
        )
        repoll_ctl(instance, EPOLL_CTL_MOD, socket, OUT)
        repoll_ctl(instance, EPOLL_CTL_DEL, pipe[1])
        assert repoll_wait(instance, 1) == [(77, OUT)]
        assert select.select([instance], [], [], 0)[0]

    def test_errors(self, instance, context, pipe) -> None:
        def refused(call, *arguments) -> int:
            with pytest.raises(OSError) as raised:
                call(*arguments)
            return raised.value.errno

        socket = FakeSocket(context)
        repoll_ctl(instance, EPOLL_CTL_ADD, socket, IN)
        assert refused(repoll_ctl, instance, EPOLL_CTL_ADD, socket, IN) == errno.EEXIST
        assert refused(repoll_ctl, instance, EPOLL_CTL_MOD, pipe[0], IN) == errno.ENOENT
        assert refused(repoll_ctl, instance, EPOLL_CTL_DEL, FakeSocket(), IN) == errno.ENOENT
        assert refused(repoll_ctl, instance, EPOLL_CTL_ADD, -1, IN) == errno.EBADF
        assert refused(repoll_ctl, instance, EPOLL_CTL_ADD, 999_999, IN) == errno.EBADF
        assert refused(repoll_ctl, instance, EPOLL_CTL_ADD, instance, IN) == errno.EINVAL
        assert refused(repoll_ctl, instance, 4, pipe[0], IN) == errno.EINVAL
        assert refused(repoll_ctl, 999_999, EPOLL_CTL_ADD, socket, IN) == errno.EBADF
        assert refused(repoll_wait, instance, 0) == errno.EINVAL
        assert refused(repoll_create, 1) == errno.EINVAL
        assert close_instance(instance)
        assert not close_instance(instance)
        assert refused(repoll_wait, instance, 1) == errno.EBADF
