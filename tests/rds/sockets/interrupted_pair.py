"""Two Python planes in one thread, the way between them, and what must hold after an interrupt."""

import socket
import time
from collections.abc import Callable
from ipaddress import ip_address

from tests.parity.planes import PairStream
from urds.common.types import IPAddress
from urds.rds.plane.contract import (
    Agreement,
    Hold,
    Limits,
    MailboxSettings,
)
from urds.rds.plane.python.mailbox import Mailbox
from urds.rds.plane.python.plane import Plane
from urds.rds.types import AckMode

ADDRESSES = (ip_address("127.0.84.1"), ip_address("127.0.84.2"))
PORT, OTHER_PORT = 5000, 5001
TURNS_MAX = 400
_S = 1_000_000_000


class Node:
    """A plane with two mailboxes and a path to its peer; `turn` is its progress thread."""

    def __init__(self, local: IPAddress, peer: IPAddress) -> None:
        self.plane = Plane(
            limits=Limits(acknowledge_delay_ns=1), resolve=lambda box, to: box.route(to, self.path)
        )
        self.path = self.plane.path(local=local, peer=peer, index=0, sequence_first=1)
        self.path.agree(Agreement(ack_mode=AckMode.PEER_ACKNOWLEDGED, checksum=True))
        settings = MailboxSettings(receive_wait_ns=_S, send_wait_ns=_S)
        self.mailbox, self.other = (
            self.plane.mailbox(local=local, port=port, settings=settings)
            for port in (PORT, OTHER_PORT)
        )
        self.target = (str(peer), PORT)
        self.other_target = (str(peer), OTHER_PORT)

    def turn(self) -> None:
        """Do what the helper and the control thread would."""
        self.plane.progress()
        self.plane.help(0)

    def close(self) -> None:
        stream = self.path.detach()
        if stream is not None:
            stream.close()
        for box in (self.mailbox, self.other):
            box.close(0)
        self.plane.release()


class Pair:
    """Two nodes; `settle` has all that is queued arrive, over as many streams as it takes."""

    def __init__(self) -> None:
        one, two = ADDRESSES
        self.nodes = (Node(one, two), Node(two, one))
        self.connects = 0
        self.connect()

    def connect(self) -> None:
        """Give both ends a new stream; one that they had ends."""
        for node, end in zip(self.nodes, socket.socketpair(), strict=True):
            stream = PairStream(fileno=end.detach())
            stream.setblocking(False)
            node.path.attach(stream, hold=Hold.NOTHING)
        self.connects += 1

    def settle(self) -> None:
        """Turn until nothing is queued or owed; connect anew what has lost its stream."""
        for _ in range(TURNS_MAX):
            for node in self.nodes:
                node.turn()
            if any(node.path.stream is None for node in self.nodes):
                self.connect()
            elif self._is_quiet():
                return
            time.sleep(0)
        raise AssertionError(f"not quiet after {TURNS_MAX} turns: {self.state()}")

    def _is_quiet(self) -> bool:
        return all(
            not node.path.holds_messages()
            and not node.path.core.wants_to_write()
            and not node.plane.state.ack_deadlines
            for node in self.nodes
        ) and not any(node.path.stream.waiting() for node in self.nodes)

    def state(self) -> list[dict[str, object]]:
        """Return what is of interest where something does not hold."""
        return [
            {
                "writing": path.writer.writing, "reading": path.reader.reading,
                "broken": path.writer.broken, "blocked": path.writer.blocked,
                "unsent": len(path.core.sender.unsent),
                "unacked": len(path.core.sender.unacked),
                "repeats": len(path.core.sender.retransmits),
                "expected": path.core.receiver.sequence_expected,
                "next": path.core.sender.sequence_next,
                "stream": path.stream is not None,
                "leader": node.plane.state.wait_queue.leader,
            }
            for node in self.nodes for path in [node.path]
        ]  # fmt: skip

    def check_at_rest(self) -> None:
        """Nothing is held, counted or waited for any more."""
        for node in self.nodes:
            plane, path = node.plane, node.path
            assert plane.state.lock.acquire(blocking=False), "the lock is held"
            plane.state.lock.release()
            assert plane.state.wait_queue.is_empty(), "a thread waits"
            assert not (path.writer.writing or path.reader.reading)
            assert not path.core.sender.pending_bytes
            for box in (node.mailbox, node.other):
                sends, receives = box.sends, box.receives
                assert not sends.send_queued_bytes, f"send account {sends.send_queued_bytes}"
                received_bytes = receives.receive_queued_bytes
                assert not received_bytes, f"receive account {received_bytes}"
                assert not (len(receives.waiters) or len(sends.room_waiters))

    def close(self) -> None:
        for node in self.nodes:
            node.close()


def take(mailbox: Mailbox) -> list[bytes]:
    """Take every message that is there."""
    taken = []
    while (message := mailbox.receive(wait_ns=0)) is not None:
        taken.append(message.payload)
    return taken


Act = Callable[[Pair, list[bytes]], None]
