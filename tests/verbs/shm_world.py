"""One side of a pair for the tests of the shm provider, and a peer in a process of its own.

Run as a program it is that peer: it listens, echoes what is sent to it, and obeys its first
received byte (see `Peer`).
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.children import Child
from urds.verbs.engine.numbers import (
    AccessFlag,
    QPAttrMask,
    QPState,
    QPType,
    SendFlag,
    WCOpcode,
    WROpcode,
)
from urds.verbs.engine.queue_pair import QPAttr, QPCap, QueuePair
from urds.verbs.engine.work import SGE, WC, AddressVector, RecvWR, SendWR
from urds.verbs.providers.base import (
    ConnectionEventKind,
    ConnectParameters,
    PortSpace,
    VerbsConnectionEvent,
)
from urds.verbs.providers.shm import ShmAdapter, open_adapter

ACCESS = (
    AccessFlag.LOCAL_WRITE
    | AccessFlag.REMOTE_WRITE
    | AccessFlag.REMOTE_READ
    | AccessFlag.REMOTE_ATOMIC
)
BASE = 0x10_0000
BUFFER_BYTES = 1 << 20
PATIENCE_NS = 20_000_000_000
SEQUENCE_START = 0xFF_FFF0  # the numbers wrap early
QKEY = 77
ROOT = Path(__file__).parents[2]


class Side:
    """An adapter with one queue pair, one queue and one registered buffer."""

    def __init__(
        self,
        directory: Path,
        *,
        opener: Callable[..., ShmAdapter] = open_adapter,
        kind: QPType = QPType.RC,
        buffer: memoryview | None = None,
        wr_max: int = 64,
    ) -> None:
        self.adapter = opener(directory=directory)
        self.pd = object()
        self.cq = self.adapter.completion_queue(4096)
        self.events: list[ConnectionEventKind] = []
        self.data = b""
        self.connection: Any = None
        self.view = self.adapter.allocate(BUFFER_BYTES) if buffer is None else buffer
        with self.adapter.lock:
            self.region = self.adapter.register(self.pd, self.view, BASE, ACCESS)
        self.qp = self.new_qp(kind, wr_max)

    def new_qp(self, kind: QPType = QPType.RC, wr_max: int = 64) -> QueuePair:
        """Return one more queue pair, in INIT."""
        adapter, mask = self.adapter, QPAttrMask
        with adapter.lock:
            qp = adapter.queue_pair(
                kind=kind,
                pd=self.pd,
                send_cq=self.cq,
                recv_cq=self.cq,
                cap=QPCap(max_send_wr=wr_max, max_recv_wr=wr_max),
            )
            last = mask.ACCESS_FLAGS if kind is QPType.RC else mask.QKEY
            qp.modify(
                QPAttr(qp_state=QPState.INIT, qp_access_flags=ACCESS, qkey=QKEY),
                mask.STATE | mask.PKEY_INDEX | mask.PORT | last,
                0,
            )
        return qp

    def lead(self, qp: QueuePair, gid: bytes, qpn: int, *, timeout: int = 14) -> None:
        """Lead a queue pair to RTS by hand."""
        mask, now_ns = QPAttrMask, self.adapter.now_ns()
        reliable = qp.qp_type is QPType.RC
        with self.adapter.lock:
            qp.modify(
                QPAttr(
                    qp_state=QPState.RTR,
                    ah_attr=AddressVector(gid),
                    path_mtu=None,
                    dest_qp_num=qpn,
                    rq_psn=SEQUENCE_START,
                    max_dest_rd_atomic=8,
                    min_rnr_timer=6,
                ),
                mask.STATE | mask.AV | mask.PATH_MTU | mask.DEST_QPN | mask.RQ_PSN
                | mask.MAX_DEST_RD_ATOMIC | mask.MIN_RNR_TIMER if reliable else mask.STATE,
                now_ns,
            )  # fmt: skip
            qp.modify(
                QPAttr(
                    qp_state=QPState.RTS,
                    sq_psn=SEQUENCE_START,
                    max_rd_atomic=8,
                    retry_cnt=7,
                    rnr_retry=7,
                    timeout=timeout,
                ),
                mask.STATE | mask.SQ_PSN | mask.MAX_QP_RD_ATOMIC | mask.RETRY_CNT
                | mask.RNR_RETRY | mask.TIMEOUT if reliable else mask.STATE | mask.SQ_PSN,
                now_ns,
            )  # fmt: skip

    # -- connections

    def listen(self, host: str = "127.0.0.1", port: int = 0) -> Any:
        """Listen, and accept with the queue pair; the private data tells key and process."""

        def on_request(event: VerbsConnectionEvent) -> None:
            self.connection = event.connection
            event.connection.on_event = self.note
            key = self.region.rkey.to_bytes(4, "big") + os.getpid().to_bytes(4, "big")
            event.connection.accept(self.qp, ConnectParameters(private_data=key))

        with self.adapter.lock:
            return self.adapter.listen((host, port), PortSpace.TCP, backlog=8, on_event=on_request)

    def connect(self, host: str, port: int) -> ConnectionEventKind:
        """Connect the queue pair; return how it went."""
        with self.adapter.lock:
            self.connection = self.adapter.connect(
                self.qp, (host, port), PortSpace.TCP, ConnectParameters(), on_event=self.note
            )
        assert self.adapter.wait(lambda: bool(self.events), PATIENCE_NS)
        return self.events[0]

    def note(self, event: VerbsConnectionEvent) -> None:
        """Keep what a connection says."""
        self.events.append(event.kind)
        self.data = event.parameters.private_data or self.data

    @property
    def peer_key(self) -> int:
        """Return the remote key that the peer gave."""
        return int.from_bytes(self.data[:4], "big")

    @property
    def is_over(self) -> bool:
        """Tell whether the connection came to an end."""
        return self.events[-1:] not in ([], [ConnectionEventKind.ESTABLISHED])

    def wait_over(self) -> ConnectionEventKind:
        """Wait for the end of the connection."""
        assert self.adapter.wait(lambda: self.is_over, PATIENCE_NS), self.events
        return self.events[-1]

    # -- work

    def post(self, wr: SendWR, qp: QueuePair | None = None) -> None:
        """Post one request and carry it away."""
        qp = qp or self.qp
        with self.adapter.lock:
            qp.post_send(wr, self.adapter.now_ns())
            self.adapter.progress_qp(qp)

    def send(self, byte_count: int, *, offset: int = 0, wr_id: int = 0) -> None:
        """Send bytes of the buffer."""
        self.post(SendWR(wr_id, WROpcode.SEND, self.piece(byte_count, offset)))

    def write(self, byte_count: int, *, key: int, at: int = 0, offset: int = 0) -> None:
        """Write bytes of the buffer to offset `at` of the peer's."""
        self.post(
            SendWR(
                0,
                WROpcode.RDMA_WRITE,
                self.piece(byte_count, offset),
                rkey=key,
                remote_addr=BASE + at,
            )
        )

    def receive(self, byte_count: int, *, offset: int = 0, wr_id: int = 0) -> None:
        """Post a receive into the buffer."""
        with self.adapter.lock:
            wr = RecvWR(wr_id, self.piece(byte_count, offset))
            self.qp.post_recv(wr, self.adapter.now_ns())
            self.adapter.progress_qp(self.qp)

    def wait_mapped(self) -> None:
        """Wait until memory of a peer is mapped here."""
        assert self.adapter.wait(lambda: self.adapter.regions_mapped > 0, PATIENCE_NS)

    def poll(self, count: int = 1) -> list[WC]:
        """Wait for completions and take them."""
        assert self.adapter.wait(lambda: len(self.cq) >= count, PATIENCE_NS), len(self.cq)
        with self.adapter.lock:
            return self.cq.poll(count)

    def piece(self, byte_count: int, offset: int = 0) -> list[SGE]:
        """Name bytes of the buffer."""
        return [SGE(BASE + offset, byte_count, self.region.lkey)] if byte_count else []

    @property
    def placed(self) -> int:
        """Count the writes that went straight into the peer's memory."""
        return self.adapter.writes_placed

    def close(self) -> None:
        """Close the adapter."""
        self.adapter.close()


def joined(directory: Path, *, liar: bool = False, **keywords: Any) -> tuple[Side, Side]:
    """Return two sides of this process whose queue pairs are connected by hand.

    `liar`: tests reach into the channel of the left one, which is the reference's then.
    """
    opener: dict[str, Any] = {"opener": ShmAdapter} if liar else {}
    left, right = Side(directory, **opener, **keywords), Side(directory, **keywords)
    left.lead(left.qp, right.adapter.gid, right.qp.qpn)
    right.lead(right.qp, left.adapter.gid, left.qp.qpn)
    return left, right


class Peer(Child):
    """A process that listens and echoes. It says its port when it is ready.

    role "echo": send back what comes.  "flood": send for ever, once connected.
    "silent": take nothing, only stay.  "copying": say for ever that it copies.
    "forked": say that it has a child, which outlives it.
    """

    def __init__(self, directory: Path, role: str = "echo") -> None:
        super().__init__("-m", "tests.verbs.shm_world", directory, role)
        self.port = int(self.hear())


def serve(directory: Path, role: str) -> None:
    """Be the peer until the connection is over."""
    side = Side(directory, opener=ShmAdapter if role == "copying" else open_adapter)
    for slot in range(32):
        side.receive(1 << 15, offset=slot << 15, wr_id=slot)
    listener = side.listen()
    print(listener.local[1], flush=True)
    assert side.adapter.wait(lambda: bool(side.events), PATIENCE_NS)
    if role == "forked":
        fork(side)
    if role == "copying":
        with side.adapter.lock:
            for channel in side.adapter.peers:
                channel.writer.begin_placing()
    if role == "flood":
        while not side.is_over:
            if side.qp.state is QPState.RTS and side.qp.outstanding_requests < 32:
                side.send(1000)
            side.adapter.wait(lambda: len(side.cq) > 0 or side.is_over, PATIENCE_NS)
            with side.adapter.lock:
                side.cq.poll(64)
    while not side.is_over:
        side.adapter.wait(lambda: len(side.cq) > 0 or side.is_over, PATIENCE_NS)
        with side.adapter.lock:
            completions = side.cq.poll(64)
        for wc in completions:
            if wc.opcode is WCOpcode.RECV and not wc.status and role == "echo":
                echo(side, wc)
    side.close()


def fork(side: Side) -> None:
    """Make a child that lives until the test is over, and tell the peer that it does."""
    reading, writing = os.pipe()
    if not os.fork():
        os.write(writing, b"!")
        sys.stdin.read()
        os._exit(0)
    os.read(reading, 1)
    assert side.adapter.wait(lambda: side.qp.state is QPState.RTS, PATIENCE_NS)
    side.send(1)


def echo(side: Side, wc: WC) -> None:
    """Send a message back from where it lies, and make the place free again."""
    sge = side.piece(wc.byte_len, wc.wr_id << 15)
    side.post(SendWR(0, WROpcode.SEND, sge, SendFlag.SOLICITED | SendFlag.INLINE)
              if wc.byte_len <= 200 else SendWR(0, WROpcode.SEND, sge))  # fmt: skip
    side.receive(1 << 15, offset=wc.wr_id << 15, wr_id=wc.wr_id)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2])
