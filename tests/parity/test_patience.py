"""How long a request waits for its answer, and how often for a receive: by both engines' time."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.parity.verbs_nodes import ALL_ACCESS, BASE, STEPS, Node, Pair, Registered
from urds.verbs.engine.attributes import QPAttr
from urds.verbs.engine.numbers import (
    RNR_TIMER_NS,
    QPAttrMask,
    QPState,
    QPType,
    WCStatus,
    WROpcode,
)
from urds.verbs.engine.work import SGE, RecvWR, SendWR

native = pytest.importorskip("urds_native", reason="the compiled engine is not built")

LEAST_NS: Final = 20_000_000  # that a peer gets, however short `timeout` is
TIMEOUTS: Final = (1, 11, 12, 13, 14, 18, 22, 31)
RETRIES: Final = range(8)
OPCODES: Final = (
    WROpcode.SEND,
    WROpcode.RDMA_WRITE,
    WROpcode.RDMA_READ,
    WROpcode.ATOMIC_FETCH_AND_ADD,
)
ASKED_MAX: Final = 100  # for what goes on for ever
PAUSE_MAX_NS: Final = 100_000_000  # of a requester that asks for ever


class Scene:
    """Two devices; the left one's queue pair leads to the right one's."""

    def __init__(self, **attributes: Any) -> None:
        self.attributes = attributes
        self.left, self.right = (Node(native.Engine, bytes([index] * 16)) for index in (1, 2))
        self.source, self.target = (self._queue_pair(node) for node in (self.left, self.right))
        self.memory = self._register(self.left)
        self.lead(self.left, self.source, self.right, self.target.qpn)

    @staticmethod
    def _queue_pair(node: Node) -> Pair:
        cq = node.completion_queue(16)
        assert cq is not None
        return node.queue_pair(QPType.RC, cq, cq, None, pd=node.pd)

    @staticmethod
    def _register(node: Node) -> Registered:
        made = node.register(256, int(ALL_ACCESS))
        assert made is not None
        return made

    def lead(self, node: Node, pair: Pair, peer: Node, qpn: int, steps: int = 3) -> None:
        """Lead a queue pair so many steps from RESET to RTS."""
        for state, mask in STEPS[QPType.RC][:steps]:
            attr = QPAttr(
                qp_state=state, qp_access_flags=ALL_ACCESS, ah_attr=peer.vector, dest_qp_num=qpn,
                max_rd_atomic=4, max_dest_rd_atomic=4, **self.attributes,
            )  # fmt: skip
            given = mask | QPAttrMask.STATE
            node.both("modify", lambda side: pair.pair[side].modify(attr, given, 0))  # noqa: B023 - called at once

    def absent(self, absence: str) -> None:
        """Have the right queue pair not there."""
        if absence == "unknown":
            self.lead_anew(self.target.qpn ^ 0x80_0000)
        elif absence != "reset":
            steps = 1 if absence == "init" else 3
            self.lead(self.right, self.target, self.left, self.source.qpn, steps)
        if absence == "closed":
            self.right.close(self.target)
        elif absence == "error":
            attr = QPAttr(qp_state=QPState.ERR)
            qp = self.target.pair
            self.right.both("fail", lambda side: qp[side].modify(attr, QPAttrMask.STATE, 0))

    def lead_anew(self, qpn: int) -> None:
        """Lead the left queue pair to another one."""
        attr, qp = QPAttr(qp_state=QPState.RESET), self.source.pair
        self.left.both("reset", lambda side: qp[side].modify(attr, QPAttrMask.STATE, 0))
        self.lead(self.left, self.source, self.right, qpn)

    def post(self, opcode: WROpcode, wr_id: int) -> None:
        """Post a request of 8 bytes."""
        wr = SendWR(wr_id, opcode, [SGE(BASE, 8, self.memory.pair[0].lkey)])
        wr.remote_addr, wr.rkey = BASE, 0x100

        def call(side: int) -> None:
            self.source.pair[side].post_send(wr, 0)

        self.left.both("post_send", call)

    def carry(self, now_ns: int) -> int:
        """Carry packets until there are no more; return how many the left device sent."""
        sent = moved = 0
        while True:
            before = sent + moved
            for node, other in ((self.left, self.right), (self.right, self.left)):
                while (found := node.transmit(now_ns)) is not None:
                    data = found[1]
                    sent, moved = sent + (node is self.left), moved + 1
                    other.both(
                        "receive",
                        lambda side: other.engines[side].receive(data, node.vector, now_ns),  # noqa: B023 - called at once
                    )
            if sent + moved == before:
                return sent

    def due_ns(self) -> int | None:
        """Return when the left device wants to be asked again."""
        due_ns: int | None = self.left.both(
            "poll_timeout", lambda side: self.left.engines[side].poll_timeout()
        )
        return due_ns

    def pass_to(self, now_ns: int) -> int:
        """Let time pass; return how many packets that caused."""
        self.left.both("time", lambda side: self.left.engines[side].handle_timeout(now_ns))
        return self.carry(now_ns)

    def ended(self) -> list[tuple[int, WCStatus]]:
        """Take the completions of the left queue pair."""
        return [(wc.wr_id, wc.status) for wc in self.left.poll(self.source.send_cq, 16)]


def period_ns(timeout: int) -> int:
    """Return how long one wait for an answer is."""
    return max(LEAST_NS, 4096 << timeout)


@pytest.mark.parametrize("opcode", OPCODES, ids=lambda one: one.name)
@pytest.mark.parametrize("timeout", TIMEOUTS)
def test_silence_ends_a_request_after_all_retries(timeout: int, opcode: WROpcode) -> None:
    for retries in RETRIES:
        scene = Scene(timeout=timeout, retry_cnt=retries, rnr_retry=7)
        scene.absent("unknown")
        scene.post(opcode, 1)
        scene.post(WROpcode.SEND, 2)
        assert scene.carry(0) == 2
        for number in range(1, retries + 2):
            assert scene.due_ns() == number * period_ns(timeout)
            assert scene.pass_to(number * period_ns(timeout) - 1) == 0
            assert scene.ended() == []
            sent = scene.pass_to(number * period_ns(timeout))
            assert sent == (2 if number <= retries else 0)
        assert scene.ended() == [(1, WCStatus.RETRY_EXC_ERR), (2, WCStatus.WR_FLUSH_ERR)]
        assert scene.source.state is QPState.ERR
        assert scene.due_ns() is None


@pytest.mark.parametrize("absence", ["unknown", "reset", "init", "closed", "error"])
def test_it_is_all_the_same_why_no_answer_comes(absence: str) -> None:
    scene = Scene(timeout=14, retry_cnt=1, rnr_retry=0)
    scene.absent(absence)
    scene.post(WROpcode.SEND, 1)
    for number, sent in enumerate((1, 1, 0)):
        assert scene.pass_to(number * period_ns(14)) == sent
    assert scene.ended() == [(1, WCStatus.RETRY_EXC_ERR)]


def test_timeout_0_waits_for_ever() -> None:
    for retries in RETRIES:
        scene = Scene(timeout=0, retry_cnt=retries, rnr_retry=0)
        scene.absent("unknown")
        scene.post(WROpcode.SEND, 1)
        assert scene.carry(0) == 1
        assert scene.due_ns() is None
        assert scene.pass_to(1 << 60) == 0
        assert scene.ended() == []
        assert scene.source.state is QPState.RTS


@pytest.mark.parametrize("timer", [0, 1, 6, 12, 31])
@pytest.mark.parametrize("retries", range(7))
def test_a_receiver_that_is_never_ready_is_asked_so_often(retries: int, timer: int) -> None:
    """Whatever `retry_cnt` and `timeout` say: it answers."""
    scene = Scene(timeout=13, retry_cnt=0, rnr_retry=retries, min_rnr_timer=timer)
    scene.lead(scene.right, scene.target, scene.left, scene.source.qpn)
    scene.post(WROpcode.SEND, 1)
    assert scene.carry(0) == 1
    now_ns = 0
    for _ in range(retries):
        due_ns = scene.due_ns()
        assert due_ns is not None
        assert due_ns - now_ns == RNR_TIMER_NS[timer]
        now_ns = due_ns
        assert scene.ended() == []
        assert scene.pass_to(now_ns) == 1
    assert scene.ended() == [(1, WCStatus.RNR_RETRY_EXC_ERR)]


def test_rnr_retry_7_asks_for_ever_and_less_and_less_often() -> None:
    scene = Scene(timeout=13, retry_cnt=0, rnr_retry=7, min_rnr_timer=1)
    scene.lead(scene.right, scene.target, scene.left, scene.source.qpn)
    scene.post(WROpcode.SEND, 1)
    assert scene.carry(0) == 1
    now_ns, pauses_ns = 0, []
    for _ in range(ASKED_MAX):
        due_ns = scene.due_ns()
        assert due_ns is not None
        pauses_ns.append(due_ns - now_ns)
        now_ns = due_ns
        assert scene.pass_to(now_ns) == 1
        assert scene.ended() == []
    assert pauses_ns == sorted(pauses_ns)
    assert pauses_ns[-1] == PAUSE_MAX_NS
    wr = RecvWR(9, [SGE(BASE, 8, scene._register(scene.right).pair[0].lkey)])
    scene.right.both("post_recv", lambda side: scene.target.pair[side].post_recv(wr, now_ns))
    scene.pass_to(scene.due_ns() or 0)
    assert scene.ended() == [(1, WCStatus.SUCCESS)]
