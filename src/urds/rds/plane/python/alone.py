"""Fast path for a lone message: a request or a reply with no other message on its path.

The normal path serves every pass alike: it queues, frames a batch, writes until nothing is left,
polls, reads each stream, finishes the pass. For one message of 64 bytes that is 66 calls on each
side; between two processes that alternate on one vCPU, with cold caches, they cost four times what
the kernel does (docs/benchmarks.md). The fast path does the same steps in a row for the plain case:

    send      a path with nothing queued and nothing unacknowledged sends at once: as with Nagle's
              rule there is nothing to wait for, so no clock is read and no credit spent
    receive   the only waiter of a plane polls, reads once, and takes the read if it is one plain
              message for its own mailbox

Every other case takes the normal path from the point where it is detected: `stream_reading` takes
the bytes read, `StreamPath` a stream that took less than was written. The rules of `waiting` hold
here too, each with its scenario in tests/rds/sockets/test_wakeups.py.
"""

from __future__ import annotations

import select
from os import eventfd_write
from typing import TYPE_CHECKING

from urds.rds.plane.contract import Buffer, SocketAddress, Stream
from urds.rds.plane.python import stream_reading
from urds.rds.plane.python.inbox import OVERHEAD_BYTES, Item
from urds.rds.plane.python.stream_writing import write, write_on
from urds.rds.plane.python.waiting import Doing, Waiter
from urds.rds.wire.header import HEADER, HEADER_BYTES, PLAIN_HEADER

if TYPE_CHECKING:
    from urds.rds.plane.python.mailbox import Flow, Mailbox
    from urds.rds.plane.python.plane import Plane
    from urds.rds.plane.python.stream_path import StreamPath

_READABLE = select.EPOLLIN
_READY_MAX = 64
_READ_BYTES = 65536
_FIRST_PORT = 2
_TARGET_PORT = slice(22, 24)  # of a header
# A global is one dictionary lookup, an enumeration member two and a descriptor call.
_IN_POLL, _RUNNING, _NOTIFIED = Doing.IN_POLL, Doing.RUNNING, Doing.NOTIFIED


# -- sending


def send(mailbox: Mailbox, flow: Flow, address: SocketAddress | None, payload: Buffer) -> bool:
    """Send a lone message at once; return false, with nothing changed, otherwise. No lock held.

    After an interrupt it is unknown what the stream took: the stream ends, and the peer gets the
    message on the next one.
    """
    path, outgoing, port, congested, destination = flow
    stream: Stream | None = None
    write_number = 0
    try:
        with path.plane.lock:
            if (
                not outgoing.plain
                or outgoing.unacked
                or outgoing.unsent
                or path.writing
                # From a quarter on: look for room, show that there is none.
                or destination.queued_bytes + len(payload) >= mailbox.quarter_bytes
                or mailbox.send_queued_bytes >= destination.open_bytes
                or mailbox._flows.get(address) is not flow  # type: ignore[arg-type]  # a flow has an address
                or (congested and congested[port >> 3] >> (port & 7) & 1)
            ):
                return False
            stream = path.stream
            assert stream is not None, "a plain path has a stream"
            path.writing = True
            write_number = path.writes = path.writes + 1
            data = _frame(path, mailbox, port, payload)
            destination.queued_bytes += len(payload)
        taken, failure = write(stream, (data,))
        with path.plane.lock:
            # Threads that found `writing` set have left: write what they queued.
            if (
                taken == len(data)
                and path.stream is stream
                and not outgoing.unsent
                and not path.left_to_writer
            ):
                path.core.bytes_written += taken
                path.writing = False
                return True
        write_on(path, stream, data, taken, failure)
    except BaseException:
        if stream is not None:
            path.plane.interrupts.writes[path] = write_number
            path.plane.interrupts.seen = True
            eventfd_write(path.plane.progress_thread.wake_descriptor, 1)
        raise
    return True


def _frame(path: StreamPath, mailbox: Mailbox, target_port: int, payload: Buffer) -> bytes:
    """Give a message its number, keep it, return its bytes. Lock held.

    Keeping is last: no interrupt comes between the numbers, which are no calls.
    """
    core = path.core
    outgoing, incoming, counters = core.outgoing, core.incoming, core.counters
    sequence, acknowledgement = outgoing.sequence_next, incoming.sequence_expected
    if acknowledgement:
        acknowledgement -= 1
    source_port, payload_bytes, sum_field = mailbox.port, len(payload), 0
    if outgoing.checksum:  # see `outgoing`
        sum_field = 65535 - (
            sequence + acknowledgement + payload_bytes + source_port + target_port
        ) % 65535  # fmt: skip
    data = PLAIN_HEADER.pack(
        sequence, acknowledgement, payload_bytes, source_port, target_port, sum_field
    ) + payload  # fmt: skip
    path.plane.ack_deadlines.pop(path, None)
    path.is_batching = False  # without a batch nothing is due, and the next message decides anew
    if path.plane._dirty:
        path.plane._dirty.pop(path, None)
    incoming.ack_pending_messages = incoming.ack_pending_bytes = 0  # the header carries it
    incoming.acknowledgement_due = False
    core._ack_pending_since_ns = None
    counters.send_queued += 1
    counters.copy_from_user += payload_bytes
    mailbox.send_queued_bytes += payload_bytes
    outgoing.unacked_packets_left -= 1
    outgoing.unacked_bytes_left -= payload_bytes
    outgoing.sequence_next = sequence + 1
    outgoing.position = position = outgoing.position + HEADER_BYTES + payload_bytes
    outgoing.unacked.append((sequence, position, mailbox, source_port, target_port, payload, b""))
    return data


# -- receiving


def receive(mailbox: Mailbox, timeout_s: float) -> Item | None:
    """Wait once and take a message for `mailbox`; None leaves the wait to the normal path.

    `timeout_s` -1 waits without limit. Only for a plane without waiters and with nothing due; later
    waiters become followers.
    """
    plane, waiters = mailbox._plane, mailbox.receive_waiters
    wait_queue, poll_set = plane.wait_queue, plane.poll_set
    waiter = wait_queue.waiter()
    item: Item | None = None
    seated = False
    if plane.ack_deadlines:
        timeout_s = _pay(plane, timeout_s)
    try:
        with plane.lock:
            if (
                wait_queue.leader is not None
                or wait_queue.followers
                or mailbox.queue
                or mailbox.special
                or plane.batches
                or plane.has_rare_dues()
            ):
                return None
            seated = True
            waiters.add(waiter)
            wait_queue.leader = waiter
            waiter.doing = _IN_POLL
        for descriptor, mask in poll_set.wait(timeout_s, _READY_MAX):
            if descriptor == wait_queue.kick:
                wait_queue.read_kick(leading=True)
                item = _take_told(mailbox, waiter)
                break
            path = poll_set.paths.get(descriptor) if mask == _READABLE else None
            item = None if path is None else _read(path, mailbox, waiter)
            if item is not None:  # other ready descriptors are so at the next poll
                break
        if item is None:
            plane._leave(waiter, waiters, used=False)
    except BaseException:
        if seated:
            wait_queue.own.waiter = None  # ended by the progress thread; the next wait has another
            plane.interrupts.waits[waiter] = waiters
            plane.interrupts.seen = True
            eventfd_write(plane.progress_thread.wake_descriptor, 1)
            plane._leave(waiter, waiters, used=False)  # the progress thread may be gone
        raise
    return item


def _take_told(mailbox: Mailbox, waiter: Waiter) -> Item | None:
    """Take the item another thread notified this one of; leave the wait with it."""
    plane, item = mailbox._plane, None
    with plane.lock:
        if mailbox.queue and not mailbox.special:
            item = mailbox._take_plain()
            plane.leave(waiter, mailbox.receive_waiters, used=True)
    plane.deliver()
    return item


def _pay(plane: Plane, timeout_s: float) -> float:
    """Send due acknowledgements; return the time to the next. No lock held."""
    now_ns = plane.clock_ns()
    with plane.lock:
        first_ns = next(iter(plane.ack_deadlines.values()), None)
    if first_ns is not None and first_ns <= now_ns:
        plane.serve_due()
        with plane.lock:
            first_ns = next(iter(plane.ack_deadlines.values()), None)
    if first_ns is None:
        return timeout_s
    left_s = max(0, first_ns - now_ns) / 1e9
    return left_s if timeout_s < 0 else min(timeout_s, left_s)


def _read(path: StreamPath, mailbox: Mailbox, waiter: Waiter) -> Item | None:
    """Read a path once, as the leader; return an item, with the wait ended, or None."""
    plane = path.plane
    stream: Stream | None = None  # until this thread is the reader
    item, plain = None, False
    try:
        with plane.lock:
            if (
                path.stream is None
                or path.reading
                or path.paused
                or path.last_read_was_empty
                or waiter.doing is _NOTIFIED  # notified of something else
                or not path.core.incoming.wants_plain_read()
            ):
                return None
            waiter.doing = _RUNNING
            stream, path.reading = path.stream, True
        read = _receive_bytes(stream)
        if read is None:
            path.reading = False
            return None
        data, error = read
        with plane.lock:
            plane.counters.tcp_data_ready_calls += 1
            if path.stream is stream:
                item = _take(path, mailbox, data, put=False)
                plain = item is not None
                if not plain:
                    stream_reading.digest(path, data, error)
                    if mailbox.queue and not mailbox.special:
                        item = mailbox._take_plain()
                if item is not None:
                    plane.leave(waiter, mailbox.receive_waiters, used=True)
        if not plain:
            stream_reading.expect(path, stream)
        path.reading = False
    except BaseException:
        if stream is not None:
            plane.interrupts.reads[path] = stream
            plane.interrupts.seen = True
            eventfd_write(plane.progress_thread.wake_descriptor, 1)
        raise
    _finish(path, plain=plain)
    return item


def _receive_bytes(stream: Stream) -> tuple[bytes, int] | None:
    """Read once; return bytes and no error, or none and an errno; None if nothing is there."""
    try:
        return stream.recv(_READ_BYTES), 0
    except BlockingIOError:
        return None
    except OSError as failure:
        return b"", failure.errno or 0


def _finish(path: StreamPath, *, plain: bool) -> None:
    """Do the work that follows a read; little after a plain message. No lock held."""
    plane = path.plane
    if not plain:
        stream_reading.finish(path)
    if plane.touched or plane.wait_queue.due or plane.progress_thread.wake_due:
        plane.finish_pass()


def _take(path: StreamPath, mailbox: Mailbox, data: bytes, *, put: bool) -> Item | None:
    """Take bytes that are one plain message for `mailbox`; None leaves them to `digest`.

    With `put` the message is put in the queue, else only the caller has it.

    The rules and the result are those of `Incoming`. Lock held.
    """
    core = path.core
    incoming, counters, byte_count = core.incoming, core.counters, len(data) - HEADER_BYTES
    if byte_count < 0 or mailbox.queue or mailbox.special or mailbox.detailed:
        return None
    (
        sequence, acknowledgement, payload_bytes, source_port, target_port,
        flags, credit, padding, checksum, high, low,
    ) = HEADER.unpack_from(data)  # fmt: skip
    if (
        byte_count != payload_bytes
        or byte_count > incoming.limits.frame_bytes_max
        or byte_count + OVERHEAD_BYTES > incoming.limits.receive_hard_bytes  # may pause the path
        or flags
        or high
        or low
        or source_port < _FIRST_PORT
        or incoming.inboxes.get(target_port) is not mailbox
        or sequence < incoming.sequence_expected
        or not incoming.is_counting
        or acknowledgement >= core.outgoing.sequence_next  # an error, or nothing sent so far
        or incoming.ack_pending_messages + 1 >= incoming.limits.acknowledge_messages
        or incoming.ack_pending_bytes + byte_count >= incoming.limits.acknowledge_bytes
        or (checksum and incoming.checksum and (
            sequence + acknowledgement + byte_count + source_port + target_port
            + credit + padding + checksum
        ) % 65535)
    ):  # fmt: skip
        return None
    unacked = core.outgoing.unacked
    # Any frame confirms what the peer had before a stream ended and has been retransmitted.
    if acknowledgement > incoming.acknowledged or (
        unacked and unacked[0][0] <= incoming.acknowledged
    ):
        incoming.acknowledged = max(incoming.acknowledged, acknowledgement)
        _free(path, incoming.acknowledged)
    item = (data[HEADER_BYTES:], incoming.sources[source_port])
    incoming.frames += 1
    incoming.ack_pending_messages += 1
    incoming.ack_pending_bytes += byte_count
    if core._ack_pending_since_ns is None:
        core._ack_pending_since_ns = path.plane.clock_ns()
        # The next thread that leaves wakes the progress thread, if that sleeps.
        path.plane.ack_deadlines[path] = (
            core._ack_pending_since_ns + core.limits.acknowledge_delay_ns
        )
    incoming.has_delivered = True
    counters.recv_queued += 1
    counters.recv_bytes_added_to_sock += byte_count
    # One step (`interrupts`): the message is with its socket, or it has not arrived.
    incoming.sequence_expected = sequence + 1
    if put:
        mailbox.receive_queued_bytes = byte_count
        mailbox.queue.append(item)
    return item


def serve(plane: Plane, descriptor: int, mask: int) -> bool:
    """Read the only ready stream for its waiter; false leaves it to the normal path.

    Called for an event loop, which polls itself and has the plane read for its tasks.
    """
    path = plane.poll_set.paths.get(descriptor)
    if path is None or mask != _READABLE:
        return False
    stream: Stream | None = None  # until this thread is the reader
    plain = False
    try:
        with plane.lock:
            held = path.reading or path.paused or path.last_read_was_empty
            if path.stream is None or held or not path.core.incoming.wants_plain_read():
                return False
            stream, path.reading = path.stream, True
        read = _receive_bytes(stream)
        if read is None:
            path.reading = False
            return True
        data, error = read
        with plane.lock:
            plane.counters.tcp_data_ready_calls += 1
            if path.stream is stream:
                plain = _put(path, data)
                if not plain:
                    stream_reading.digest(path, data, error)
        if not plain:
            stream_reading.expect(path, stream)
        path.reading = False
    except BaseException:
        if stream is not None:
            plane.interrupts.reads[path] = stream
            plane.interrupts.seen = True
            eventfd_write(plane.progress_thread.wake_descriptor, 1)
        raise
    _finish(path, plain=plain)
    return True


def _put(path: StreamPath, data: bytes) -> bool:
    """Put bytes that are one plain message into their mailbox; return whether they are.

    Lock held.
    """
    incoming, plane = path.core.incoming, path.plane
    mailbox = incoming.inboxes.get(int.from_bytes(data[_TARGET_PORT], "big"))
    if mailbox is None or mailbox.queue:
        return False
    try:
        if _take(path, mailbox, data, put=True) is None:  # type: ignore[arg-type]  # inboxes are mailboxes here
            return False
        if plane.progress_thread.asleep:
            plane.progress_thread.want()  # the acknowledgement is due later
        plane.note_arrival(mailbox, 1)
    except BaseException:
        incoming.touched.append((mailbox, 1))  # the end of the stream notifies it
        raise
    return True


def _free(path: StreamPath, acknowledgement: int) -> None:
    """Free what a reply acknowledges: normally the one message of the request. Lock held."""
    outgoing = path.core.outgoing
    unacked = outgoing.unacked
    if len(unacked) == 1 and outgoing.plain and not path.full and not path.dependents:
        sequence, _, owner, _, _, payload, _ = unacked[0]
        if sequence <= acknowledgement and owner is not None and not path.room_wanted:
            payload_bytes = len(payload)
            try:
                owner.send_queued_bytes -= payload_bytes
                unacked.popleft()
                outgoing.allow_unacked()
                path.plane.note_freed(path, owner, payload_bytes)  # type: ignore[arg-type]  # owners are mailboxes here
            except BaseException:  # an interrupt: `abort` notifies waiters for room
                outgoing.freed.setdefault(owner, 0)
                raise
            return
    outgoing.handle_peer_acknowledged(acknowledgement)
    path.finish_freed()
