"""Rules 3, 4, 7 and 12 of docs/protocol/rds-tcp.md: what is read, and what is sent again.

Each rule is shown twice: as built nothing is lost or doubled; with the rule switched off the same
scenario does harm, or it would prove nothing.
"""

import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tests.rds.transports.tcp.conftest import Lab
from tests.rds.transports.tcp.faults import make_deaf, make_hearing, reset, unacknowledged
from tests.rds.transports.tcp.frames import Frame, emit_frame, emit_map
from tests.rds.transports.tcp.kernel_peer import REPEATED, KernelPeer
from tests.rds.transports.tcp.meetings import (
    KERNEL_PORT,
    arrived,
    meet,
    numbered,
    probes_written,
    reconnect_deaf,
    send_to_kernel,
    send_to_node,
    settle,
    taken,
)
from tests.rds.transports.tcp.nodes import PORT, Node
from tests.support.waiting import wait_until
from urds.rds.plane.contract import Buffer, DownReason
from urds.rds.plane.python import sender as sender_module
from urds.rds.plane.python.partial_message import PartialMessage
from urds.rds.plane.python.path import PathCore
from urds.rds.plane.python.receiver import Receiver
from urds.rds.plane.python.sender import Sender
from urds.rds.plane.python.stream_path import StreamPath
from urds.rds.plane.python.stream_reader import StreamReader
from urds.rds.plane.python.stream_writer import StreamWriter
from urds.rds.runtime import connect as streams
from urds.rds.transports import tcp

ORDERS = ["lower", "higher"]
SENT = numbered("sent", 10)


# -- rule 3: read before giving up


def reset_behind_unread_messages(node: Node, peer: KernelPeer, *, write: bool) -> list[bytes]:
    """Have ten messages in the node's TCP when the reset comes; perhaps the node writes then."""
    meet(node, peer)
    with node.blind(peer.address):
        send_to_node(peer, SENT)
        peer.run_until(lambda: not peer.undelivered)
        peer.break_connection()
        if write:
            node.send(b"meets EPIPE", peer.address, KERNEL_PORT)
            node.wait_for_break(peer.address)
    return taken(node, peer, len(SENT), wait_s=1.0)


@pytest.mark.parametrize("write", [False, True], ids=["hangup", "send-error"])
@pytest.mark.parametrize("order", ORDERS)
def test_what_came_before_a_reset_is_read(lab: Lab, order: str, write: bool) -> None:
    node, peer = lab.pair(order)
    assert reset_behind_unread_messages(node, peer, write=write) == SENT
    settle(node, peer)
    assert peer.payloads == [b"meets EPIPE"] * write


@pytest.mark.reference
@pytest.mark.parametrize("order", ORDERS)
def test_looking_at_the_hangup_first_loses_messages(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    read = StreamReader.read

    def look_first(self: StreamReader, *, others: bool = False) -> bool:
        stream = self._path.stream
        if stream is not None and not self.paused:
            poll = select.poll()
            poll.register(stream, select.POLLIN)
            if any(mask & (select.POLLERR | select.POLLHUP) for _, mask in poll.poll(0)):
                end_unread(self._path)
        return read(self, others=others)

    monkeypatch.setattr(StreamReader, "read", look_first)
    node, peer = lab.pair(order)
    assert reset_behind_unread_messages(node, peer, write=False) == []


@pytest.mark.reference
@pytest.mark.parametrize("order", ORDERS)
def test_giving_up_at_a_send_error_loses_messages(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    flush = StreamWriter.flush

    def flush_and_give_up(self: StreamWriter, burst_bytes: int | None = None) -> None:
        flush(self, burst_bytes)
        if self.broken:
            end_unread(self._path)

    monkeypatch.setattr(StreamWriter, "flush", flush_and_give_up)
    node, peer = lab.pair(order)
    meet(node, peer)
    with node.blind(peer.address):
        send_to_node(peer, SENT)
        peer.run_until(lambda: not peer.undelivered)
        peer.break_connection()
        node.send(b"meets EPIPE", peer.address, KERNEL_PORT)
    assert taken(node, peer, len(SENT), wait_s=1.0) == []


def end_unread(path: StreamPath) -> None:
    """Do what is wrong: give the connection up with bytes in it."""
    with path._state.lock:
        if path.stream is not None:
            path.end(DownReason.ERROR, 0)


def connect_into_a_reset(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> tuple[Node, KernelPeer, list[bytes]]:
    """Have a connect() fail that stood for a moment, in which the kernel sent ten messages."""
    node, peer = lab.pair("lower")
    meet(node, peer)
    connect, done = tcp.connect, threading.Event()

    def connect_and_meet(*arguments: Any) -> tcp.TcpStream:
        stream = connect(*arguments)
        if not done.is_set():
            serve_and_reset(peer)
            done.set()
        return stream

    monkeypatch.setattr(tcp, "connect", connect_and_meet)
    peer.break_connection()
    assert done.wait(5.0), "the node did not reconnect"
    return node, peer, taken(node, peer, len(SENT), wait_s=1.0)


def serve_and_reset(peer: KernelPeer) -> None:
    """Take the node's connection, send ten messages, reset it once TCP has them."""
    select.select([peer.listener], [], [], 2.0)
    connection = peer.listener.accept()[0]
    path = peer.paths[0]
    connection.sendall(emit_map())
    for payload in SENT:
        connection.sendall(
            emit_frame(payload, sequence=path.next_tx, source_port=KERNEL_PORT, target_port=PORT)
        )
        path.next_tx += 1
    while unacknowledged(connection):
        pass
    reset(connection)


def test_a_failed_connect_that_stood_is_read(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    node, peer, got = connect_into_a_reset(lab, monkeypatch)
    assert got == SENT
    settle(node, peer)


def test_closing_a_failed_connect_loses_messages(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_STOOD", (0,))
    _, _, got = connect_into_a_reset(lab, monkeypatch)
    assert got == []


# -- rule 4: what TCP did not acknowledge goes again


def break_with_acknowledgements_missing(node: Node, peer: KernelPeer) -> list[bytes]:
    """Let the kernel deliver ten messages whose acknowledgements the node never sees."""
    meet(node, peer)
    stream = node.stream(peer.address)
    make_deaf(stream)
    send_to_kernel(node, peer, SENT)
    peer.run_until(lambda: len(peer.received) == len(SENT))
    make_hearing(stream)
    peer.break_connection()
    peer.run_until(lambda: peer.up)
    send_to_kernel(node, peer, [b"new"])
    return arrived(peer, len(SENT) + 1, wait_s=2.0)


@pytest.mark.rule("wire-generation-transport")
@pytest.mark.parametrize("order", ORDERS)
def test_repeats_carry_flag_and_number_and_are_dropped_as_old(lab: Lab, order: str) -> None:
    node, peer = lab.pair(order)
    assert break_with_acknowledgements_missing(node, peer) == [*SENT, b"new"]
    first = peer.received[0].sequence
    assert peer.dropped_as_old == list(range(first, first + len(SENT)))


@pytest.mark.reference
@pytest.mark.parametrize("order", ORDERS)
def test_repeats_without_the_flag_are_doubled(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    monkeypatch.setattr(sender_module, "_RETRANSMITTED", 0)
    node, peer = lab.pair(order)
    assert break_with_acknowledgements_missing(node, peer) == [*SENT, *SENT, b"new"]


@pytest.mark.reference
@pytest.mark.parametrize("order", ORDERS)
def test_repeats_with_new_numbers_are_doubled(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    def queue_anew(self: Sender) -> None:
        for _, _, owner, source_port, target_port, payload, extension in reversed(self.unacked):
            self.unsent.appendleft((owner, source_port, target_port, payload, extension))
            self.pending_bytes += 48 + len(payload)
        self.unacked.clear()
        self.position = 0

    monkeypatch.setattr(Sender, "end_stream", queue_anew)
    node, peer = lab.pair(order)
    assert break_with_acknowledgements_missing(node, peer) == [*SENT, *SENT, b"new"]


def break_with_nothing_arrived(node: Node, peer: KernelPeer) -> list[bytes]:
    """Have ten messages written that never reach the kernel, then one new; break; deliver."""
    meet(node, peer)
    make_deaf(peer.connection)
    send_to_kernel(node, peer, SENT)
    wait_until(lambda: node.row(peer.address).unacknowledged_messages in (0, len(SENT)))
    peer.run_for(0.05)  # a node that frees too early has done so by now
    with node.frozen():
        peer.break_connection()
        wait_until(lambda: not node.is_connected(peer.address))
        send_to_kernel(node, peer, [b"new"])
    return arrived(peer, len(SENT) + 1, wait_s=2.0)


@pytest.mark.parametrize("order", ORDERS)
def test_repeats_come_first_and_in_their_old_order(lab: Lab, order: str) -> None:
    node, peer = lab.pair(order)
    assert break_with_nothing_arrived(node, peer) == [*SENT, b"new"]
    assert [message.flags for message in peer.received] == [REPEATED] * len(SENT) + [0]
    numbers = [message.sequence for message in peer.received]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


@pytest.mark.reference
@pytest.mark.parametrize("order", ORDERS)
def test_what_is_freed_when_it_is_written_is_lost(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    monkeypatch.setattr(tcp.TcpStream, "unacknowledged", lambda self: 0)
    node, peer = lab.pair(order)
    assert break_with_nothing_arrived(node, peer) == [b"new"]


@pytest.mark.reference
@pytest.mark.parametrize("order", ORDERS)
def test_new_messages_in_front_make_a_kernel_drop_the_repeats(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    monkeypatch.setattr(Sender, "frame", frame_new_first)
    node, peer = lab.pair(order)
    assert break_with_nothing_arrived(node, peer) == [b"new"]
    assert len(peer.dropped_as_old) == len(SENT)


_frame = Sender.frame


def frame_new_first(self: Sender, out: list[Buffer], bytes_max: int, acknowledgement: int) -> int:
    """Do what is wrong: repeats wait until something new has left before them."""
    if not self.retransmits:
        return _frame(self, out, bytes_max, acknowledgement)
    repeats, self.retransmits = self.retransmits, deque()
    made = _frame(self, out, bytes_max, acknowledgement)
    self.retransmits = repeats
    if made:
        made += _frame(self, out, bytes_max, acknowledgement)
    return made


# -- rule 7: a probe goes behind the repeats


def probe_on_a_reconnect(node: Node, peer: KernelPeer) -> list[bytes]:
    """Break the first connection before the kernel has read a word: the node asks again."""
    send_to_kernel(node, peer, SENT)
    if peer.lower:
        peer.seek()
    reconnect_deaf(node, peer)
    wait_until(lambda: node.is_connected(peer.address))
    peer.run_until(lambda: probes_written(node, peer) == 1)
    peer.break_connection()
    peer.run_until(lambda: peer.up)
    return arrived(peer, len(SENT), wait_s=2.0)


def is_probe(frame: Frame) -> bool:
    """Tell whether this is a probe ping."""
    return frame.ports == (1, 0)


@pytest.mark.parametrize("order", ORDERS)
def test_the_first_connection_begins_with_the_probe_whatever_waits(lab: Lab, order: str) -> None:
    """Behind 64 KiB of messages it would be lost with an early cut, and then wait for repeats."""
    node, peer = lab.pair(order, kernel={"probes": False})
    waiting = [bytes(1000)] * 150
    send_to_kernel(node, peer, waiting)
    if peer.lower:
        peer.seek()
    assert arrived(peer, len(waiting)) == waiting
    assert is_probe(next(frame for frame in peer.frames if not frame.is_map))
    assert sum(map(is_probe, peer.frames)) == 1


@pytest.mark.parametrize("order", ORDERS)
def test_a_probe_stands_behind_the_repeats(lab: Lab, order: str) -> None:
    node, peer = lab.pair(order, kernel={"probes": False})
    assert probe_on_a_reconnect(node, peer) == SENT
    flags = [int(frame.header.flags) for frame in peer.frames if not frame.is_map]
    assert flags == sorted(flags, reverse=True), "repeats, then what is new"
    assert is_probe(peer.frames[-1])
    assert not peer.frames[-1].header.flags


@pytest.mark.reference
@pytest.mark.parametrize("order", ORDERS)
def test_a_probe_in_front_makes_a_kernel_drop_the_repeats(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    monkeypatch.setattr(Sender, "frame", frame_new_first)
    node, peer = lab.pair(order, kernel={"probes": False})
    assert probe_on_a_reconnect(node, peer) == []


# -- rule 12: a partial message dies with its connection

LENGTHS = [3000, 100_000]  # carried to the next read with its header; collected apart


def cut_a_message_to_us(node: Node, peer: KernelPeer, payload_bytes: int) -> list[bytes]:
    """Cut the kernel's message in its middle; the kernel repeats it whole."""
    meet(node, peer)
    payload = bytes(range(250)) * (payload_bytes // 250)
    send_to_node(peer, [payload])
    peer.cut(payload_bytes // 2)
    peer.run_until(lambda: peer.up)
    send_to_node(peer, [b"after it"])
    got = taken(node, peer, 2, wait_s=1.0)
    return [b"whole" if one == payload else one for one in got]


@pytest.mark.parametrize("payload_bytes", LENGTHS)
@pytest.mark.parametrize("order", ORDERS)
def test_half_a_message_is_forgotten(lab: Lab, order: str, payload_bytes: int) -> None:
    node, peer = lab.pair(order)
    assert cut_a_message_to_us(node, peer, payload_bytes) == [b"whole", b"after it"]
    settle(node, peer)


@pytest.mark.reference
@pytest.mark.parametrize("payload_bytes", LENGTHS)
def test_half_a_message_that_is_kept_spoils_the_next(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, payload_bytes: int
) -> None:
    end_stream = Receiver.end_stream

    def end_and_keep(self: Receiver) -> None:
        kept, self.partial = self.partial, PartialMessage()
        end_stream(self)
        self.partial = kept

    monkeypatch.setattr(Receiver, "end_stream", end_and_keep)
    node, peer = lab.pair("lower")
    assert cut_a_message_to_us(node, peer, payload_bytes) != [b"whole", b"after it"]


def keeping(end: Callable[..., None], names: Iterable[str]) -> Callable[..., None]:
    """Return `end` with the fields of these names surviving it."""

    def end_and_keep(self: object) -> None:
        kept = {name: getattr(self, name) for name in names}
        end(self)
        for name, value in kept.items():
            setattr(self, name, value)

    return end_and_keep


def cut_a_message_of_ours(node: Node, peer: KernelPeer) -> list[int]:
    """Break the connection while the kernel has half of a long message; return what arrived."""
    meet(node, peer)
    peer.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.reading = False
    node.send(bytes(1 << 20), peer.address, KERNEL_PORT)
    wait_until(lambda: node.counters["tcp_sndbuf_full"] > 0)
    peer.break_connection()
    peer.reading = True
    peer.run_until(lambda: peer.up)
    return [len(payload) for payload in arrived(peer, 1, wait_s=1.0)]


@pytest.mark.parametrize("order", ORDERS)
def test_a_cut_message_begins_again_with_its_header(lab: Lab, order: str) -> None:
    node, peer = lab.pair(order, tcp_sndbuf=8192)
    assert cut_a_message_of_ours(node, peer) == [1 << 20]
    assert peer.received[0].flags == REPEATED


@pytest.mark.reference
@pytest.mark.parametrize("order", ORDERS)
def test_the_rest_of_a_cut_message_spoils_the_next_connection(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    monkeypatch.setattr(PathCore, "detach", keeping(PathCore.detach, ("_out", "_out_bytes")))
    node, peer = lab.pair(order, tcp_sndbuf=8192)
    assert cut_a_message_of_ours(node, peer) != [1 << 20]
