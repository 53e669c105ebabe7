"""Roles over RDS: who answers, who asks, who sends in bursts."""

from __future__ import annotations

import select
import time
from typing import Final

import urds
from tests.soak.messages import Head, Kind, MessageLog, Writer
from tests.soak.role import ANSWER_S, ASK_PORT, SINK_PORT, Stage
from urds.rds.constants import MAX_MESSAGE_BYTES, MSG_DONTWAIT

SOCKETS: Final = 3  # that one process asks from
_BURST_MAX: Final = 64
_TAKES_PER_TURN: Final = 64
_POLL_MS: Final = 500
_WAIT_S: Final = 0.5
_EMPTY_SHARE: Final = 0.15
_ANSWERED: Final = frozenset({Kind.ASK, Kind.END})


class Client:
    """A socket that sends checked messages to one target and knows which answer is due."""

    def __init__(self, stage: Stage, target: tuple[str, int], *, port: int = 0) -> None:
        self.target = target
        self.writer = Writer()
        self.end_s = stage.end_of_life_s()
        self.sock = urds.socket()
        self.sock.bind((stage.address(), port))
        self._stage = stage
        self._polls = stage.random.random() < 0.5  # half of them through a descriptor
        stage.counters.sockets += 1

    def send(self, kind: Kind, byte_count: int) -> None:
        """Send one message; wait while there is no room."""
        self.sock.settimeout(ANSWER_S)
        self.sock.sendto(self.writer.next(kind, byte_count), self.target)

    def send_empty(self) -> None:
        """Send a message without bytes."""
        self.sock.settimeout(ANSWER_S)
        self.sock.sendto(self.writer.next_empty(), self.target)

    def ask(self, kind: Kind = Kind.ASK) -> Head | None:
        """Ask, and wait for the answer; None if none came."""
        self.send(kind, self._stage.message_bytes())
        return self.wait()

    def wait(self) -> Head | None:
        """Wait for the answer to the last message; None if none came.

        What is under way is reset now and then.
        """
        self._stage.reset_now_and_then()
        end_s = time.monotonic() + ANSWER_S
        while time.monotonic() < end_s:
            payload = self._take()
            if payload is not None and (head := self.judge(payload)) is not None:
                return head
        self._stage.counters.unanswered += 1
        return None

    def judge(self, payload: bytes) -> Head | None:
        """Enter what came; return it if it is the answer that is due."""
        counters, head = self._stage.counters, Head.parse(payload)
        counters.byte_count += len(payload)
        if head is None:
            counters.damaged += 1
        elif self.writer.is_answer(head):
            counters.messages += 1
            return head
        elif head.life == self.writer.life:
            counters.repeated += 1
        else:
            counters.stale += 1
        return None

    def close(self) -> None:
        """Say that it was the last, and close."""
        self.ask(Kind.END)
        self.sock.close()

    def _take(self) -> bytes | None:
        if self._polls:
            poll = select.poll()
            poll.register(self.sock.fileno(), select.POLLIN)
            poll.poll(_POLL_MS)
        self.sock.settimeout(0.0 if self._polls else _WAIT_S)
        try:
            return self.sock.recv(MAX_MESSAGE_BYTES)
        except (BlockingIOError, TimeoutError):
            return None


def serve(stage: Stage) -> None:
    """Answer all peers from two sockets that are polled, checking what each source says."""
    poll, sockets = select.poll(), {}
    for port in (ASK_PORT, SINK_PORT):
        sock = urds.socket()
        sock.bind((stage.address(), port))
        sock.settimeout(ANSWER_S)  # for answers: a peer that was killed may leave no room
        poll.register(sock.fileno(), select.POLLIN)
        sockets[sock.fileno()] = (sock, MessageLog(stage.counters))
    while not stage.over.is_set():
        for descriptor, _ in poll.poll(_POLL_MS):
            sock, log = sockets[descriptor]
            answer_all(sock, log)
        stage.reset_now_and_then()
    for sock, _ in sockets.values():
        sock.close()


def answer_all(sock: urds.Socket, log: MessageLog) -> None:
    """Take what is there, a turn's worth at most, and answer who asks."""
    for _ in range(_TAKES_PER_TURN):
        try:
            payload, source = sock.recvfrom(MAX_MESSAGE_BYTES, MSG_DONTWAIT)
        except BlockingIOError:
            return
        head = log.check(payload, source)
        if head is not None and head.kind in _ANSWERED:
            sock.sendto(head.answer(), source)


def ask(stage: Stage) -> None:
    """Ask from a few sockets that are closed and opened again now and then."""
    clients: list[Client] = []
    while not stage.over.is_set():
        if len(clients) < SOCKETS:
            clients.append(Client(stage, (stage.address("server"), ASK_PORT)))
        client = stage.random.choice(clients)
        client.ask()
        if time.monotonic() > client.end_s:
            client.close()
            clients.remove(client)
        stage.rest()
    for client in clients:
        client.close()


def ask_from_one_port(stage: Stage) -> None:
    """Ask and send in turn from one port, until this process is killed or ended."""
    client = Client(stage, (stage.address("server"), ASK_PORT), port=ASK_PORT)
    while not stage.over.is_set():
        for _ in range(stage.random.randrange(8)):
            client.send(Kind.ONE_WAY, stage.message_bytes())
        client.ask()
        stage.rest()
    client.close()


def burst(stage: Stage) -> None:
    """Send bursts of which only the last message is answered; reset in between."""
    client = Client(stage, (stage.address("server"), SINK_PORT))
    client.ask()
    while not stage.over.is_set():
        for _ in range(stage.random.randint(1, _BURST_MAX)):
            if stage.random.random() < _EMPTY_SHARE:
                client.send_empty()
            else:
                client.send(Kind.ONE_WAY, stage.message_bytes())
            stage.reset_now_and_then()
        client.ask()
        if time.monotonic() > client.end_s:
            client.close()
            client = Client(stage, client.target)
            client.ask()
        stage.rest()
    client.close()
