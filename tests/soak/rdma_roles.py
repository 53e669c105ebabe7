"""Roles of a pair over RDMA on `shm0`: messages, writes into a peer's memory, reads, additions."""

from __future__ import annotations

import time
from typing import Final

import urds
from tests.soak.messages import HEAD_BYTES, Kind, MessageLog, body
from tests.soak.rds_roles import Client
from tests.soak.role import ANSWER_S, ASK_PORT, Stage
from urds.rds.constants import MAX_MESSAGE_BYTES, RdmaStatus

REGION_BYTES: Final = 1 << 16
_WAIT_S: Final = 0.5
_COUNTER_BYTES: Final = 8
_NUMBER: Final = 1  # of the filling that the server's memory holds behind the counter


def serve(stage: Stage) -> None:
    """Answer over RDMA; write into memory that a peer gave; show memory of ours."""
    with _socket(stage, ASK_PORT) as sock:
        memory = bytearray(_COUNTER_BYTES) + body(_NUMBER, REGION_BYTES - _COUNTER_BYTES)
        region, log = sock.get_mr(memory), MessageLog(stage.counters)
        while not stage.over.is_set():
            sock.settimeout(_WAIT_S)
            try:
                payload, source, cookie = sock.recv_region(MAX_MESSAGE_BYTES)
            except TimeoutError:
                continue
            if source is None:
                continue
            head = log.check(payload, source)
            if head is None or head.kind is Kind.ONE_WAY:
                continue
            sock.settimeout(ANSWER_S)
            if head.kind is Kind.SHOW:
                sock.send_region(head.answer(), region, source)
            elif head.kind is Kind.FILL and cookie is not None:
                filling = body(head.number, head.byte_count)
                written = sock.rdma_write(filling, cookie, source, payload=head.answer())
                # The answer comes after what was written, or not at all.
                if written.wait(ANSWER_S) is not RdmaStatus.SUCCESS:
                    sock.sendto(head.answer(Kind.EXCUSE), source)
            else:
                sock.sendto(head.answer(), source)


def ask(stage: Stage) -> None:
    """Do each of it in turn, from a socket that is closed and opened again now and then."""
    while not stage.over.is_set():
        client = RegionClient(stage)
        client.look()
        while time.monotonic() < client.end_s and not stage.over.is_set():
            stage.random.choice((client.ask, client.fill, client.read, client.add))()
            stage.rest()
        client.close()


class RegionClient(Client):
    """A client that gives memory away and reaches into the server's."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage, (stage.address("rdma-server"), ASK_PORT))
        assert self.sock.getsockopt(urds.SOL_RDS, urds.SO_RDS_TRANSPORT) == urds.RDS_TRANS_IB
        self._polls = False  # operations are waited for in calls as well
        self._cookie = 0

    def look(self) -> None:
        """Ask for memory of the server's."""
        self.send(Kind.SHOW, HEAD_BYTES)
        self.sock.settimeout(ANSWER_S)
        payload, _, cookie = self.sock.recv_region(MAX_MESSAGE_BYTES)
        if self.judge(payload) is None or cookie is None:
            self._stage.counters.unanswered += 1
        self._cookie = cookie or 0

    def fill(self) -> None:
        """Have the server fill memory of ours."""
        byte_count = self._stage.message_bytes()
        memory = bytearray(byte_count)
        with self.sock.get_mr(memory, use_once=True) as region:
            self.sock.settimeout(ANSWER_S)
            message = self.writer.next(Kind.FILL, byte_count)
            self.sock.send_region(message, region, self.target)
            head = self.wait()
        if head is None:
            return
        if head.kind is Kind.EXCUSE:
            self._stage.counters.excused += 1
        elif memory != body(head.number, head.byte_count):
            self._stage.counters.damaged += 1

    def read(self) -> None:
        """Read from the server's memory."""
        counters, random = self._stage.counters, self._stage.random
        byte_count = random.randint(1, REGION_BYTES - _COUNTER_BYTES)
        memory = bytearray(byte_count)
        self.sock.settimeout(ANSWER_S)
        read = self.sock.rdma_read(memory, self._cookie, self.target, offset=_COUNTER_BYTES)
        self._stage.reset_now_and_then()
        if read.wait(ANSWER_S) is not RdmaStatus.SUCCESS:
            counters.excused += 1
        elif memory != body(_NUMBER, byte_count):
            counters.damaged += 1
        else:
            counters.messages += 1

    def add(self) -> None:
        """Add to the number in the server's memory; it only grows."""
        counters = self._stage.counters
        self.sock.settimeout(ANSWER_S)
        added = self.sock.fetch_add(self._cookie, 1, self.target)
        self._stage.reset_now_and_then()
        if added.wait(ANSWER_S) is not RdmaStatus.SUCCESS:
            counters.excused += 1
        else:
            counters.messages += 1


def _socket(stage: Stage, port: int) -> urds.Socket:
    sock = urds.socket()
    sock.bind((stage.address(), port))
    return sock
