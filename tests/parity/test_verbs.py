"""Both verbs engines under the same random calls and bytes; more cases: `verbs_cases`.

The second half breaks a rule of the reference: some case has to show it, or the cases are blind.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import FrozenInstanceError
from functools import partial
from typing import Any, Final

import pytest

from tests.parity.verbs_cases import Run
from tests.parity.verbs_nodes import ALL_ACCESS, BASE, STEPS, Node
from urds.verbs.engine import requester, requests, work
from urds.verbs.engine.attributes import LinkTraits, QPAttr, QPCap
from urds.verbs.engine.completions import CompletionQueue
from urds.verbs.engine.contract import Engine, EngineFactory
from urds.verbs.engine.engine import Engine as Reference
from urds.verbs.engine.keys import WindowBinding
from urds.verbs.engine.numbers import (
    AccessFlag,
    QPAttrMask,
    QPState,
    QPType,
    SendFlag,
    WCStatus,
    WROpcode,
)
from urds.verbs.engine.receives import ReceiveTracker, SharedReceiveQueue
from urds.verbs.engine.responder import Responder
from urds.verbs.engine.work import AddressVector, SendWR

native: Any = pytest.importorskip("urds_native", reason="the compiled engine is not built")

CASES, SHARES = 12_500, 4
CASES_OF_ALL: Final = 50_000  # in which everything has to happen that is listed below
CASES_MAX: Final = 200_000  # until a broken rule has to be seen
SEEDS_PER_SHARE: Final = 1000  # more than a share makes worlds
MUST_HAPPEN: Final = {
    *(opcode.name for opcode in WROpcode),
    *("SUCCESS", "WR_FLUSH_ERR", "LOC_LEN_ERR", "LOC_PROT_ERR", "LOC_QP_OP_ERR", "MW_BIND_ERR"),
    *("REM_ACCESS_ERR", "REM_INV_REQ_ERR", "REM_OP_ERR", "RETRY_EXC_ERR", "RNR_RETRY_EXC_ERR"),
    *("CQ_ERR", "QP_REQ_ERR", "QP_ACCESS_ERR", "COMM_EST", "SQ_DRAINED", "COMPLETED"),
    *("SRQ_LIMIT_REACHED", "QP_LAST_WQE_REACHED", "no opcode", "refused", "packet"),
}


def test_both_are_what_the_contract_says() -> None:
    makers: list[EngineFactory] = [Reference, native.Engine]
    link = LinkTraits(64, lossless=True)
    engines: list[Engine] = [make(link, gid=bytes(16)) for make in makers]
    assert [tuple(one.snapshot()) for one in engines] == [(0,) * 7] * 2


def test_the_compiled_engine_refuses_a_link_with_loss() -> None:
    with pytest.raises(OSError, match="without loss") as caught:
        native.Engine(LinkTraits(64, lossless=False), gid=bytes(16))
    assert caught.value.errno == 95


def test_all_kinds_of_random_calls_and_packets_come_out_alike() -> None:
    run = Run(native)
    run.until(CASES_OF_ALL, 0)
    assert MUST_HAPPEN - run.seen.keys() == set()


@pytest.mark.parametrize("share", range(1, SHARES + 1))
def test_random_calls_and_packets_come_out_alike(share: int) -> None:
    Run(native).until(CASES, share * SEEDS_PER_SHARE)


def test_a_binding_follows_its_region_to_new_keys() -> None:
    node = Node(native.Engine, bytes([1]) * 16)
    cq, region = node.completion_queue(8), node.register(64, int(ALL_ACCESS))
    window = node.make("window", lambda side: node.engines[side].window(node.pd, 1))
    assert cq is not None
    assert region is not None
    assert window is not None
    pair = node.queue_pair(QPType.RC, cq, cq, None, pd=node.pd)
    for state, mask in STEPS[QPType.RC]:
        attr = QPAttr(qp_state=state, ah_attr=AddressVector(bytes([2]) * 16))
        node.both("modify", lambda side: pair.pair[side].modify(attr, mask | 1, 0))  # noqa: B023 - called at once

    def post(side: int) -> None:
        binding = WindowBinding(region.pair[side], BASE + 64, 8, AccessFlag.REMOTE_READ)
        wr = SendWR(1, WROpcode.BIND_MW, window=window[side], bind=binding)
        pair.pair[side].post_send(wr, 0)

    node.both("post_send", post)
    node.both(
        "reregister",
        lambda side: node.engines[side].reregister(region.pair[side], address=BASE + 64),
    )
    assert node.transmit(0) is None
    assert [wc.status for wc in node.poll(cq, 8)] == [WCStatus.SUCCESS]
    assert window[1].region is region.pair[1]


# -- broken rules

BROKEN: Final[dict[str, Callable[[pytest.MonkeyPatch], None]]] = {
    "acknowledgements of long messages": lambda patch: patch.setattr(
        requests, "ACK_EVERY_PACKETS", 4
    ),
    "pauses double": lambda patch: patch.setattr(requester, "_RNR_DOUBLINGS_MAX", 0),
    "a full queue loses": lambda patch: patch.setattr(
        CompletionQueue, "_lose", lambda self: None
    ),
    "a limit is told once": lambda patch: patch.setattr(
        SharedReceiveQueue, "_check_limit", lambda self: None
    ),
    "held buffers are counted": lambda patch: patch.setattr(
        ReceiveTracker, "flush", lambda self: None
    ),
    "a duplicate is acknowledged": lambda patch: patch.setattr(
        Responder, "_handle_duplicate", lambda self, packet, psn: None
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_is_seen(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BROKEN[rule](monkeypatch)
    with pytest.raises(AssertionError, match="seed"):
        Run(native).until(CASES_MAX, 0)


# -- records

PIECES: Final = [(0x1000, 8, 256), (0x2000, 16, 512)]
FIELDS: Final[list[dict[str, Any]]] = [
    {},
    {"wr_id": 7, "opcode": WROpcode.RDMA_READ, "send_flags": SendFlag.FENCE, "rkey": 5},
    {"data": b"bytes", "num_sge": 0, "compare_mask": 3},
]


def of(module: Any, fields: dict[str, Any]) -> Any:
    """Return a request with two pieces, of the dataclasses or of the compiled classes."""
    return module.SendWR(sg=[module.SGE(*piece) for piece in PIECES], **fields)


@pytest.mark.parametrize("fields", FIELDS)
def test_records_are_alike(fields: dict[str, Any]) -> None:
    plain, compiled = of(work, fields), of(native, fields)
    assert repr(compiled) == repr(plain)
    assert compiled.message_bytes == plain.message_bytes
    names = plain.__dataclass_fields__
    assert [repr(getattr(compiled, name)) for name in names] == [
        repr(getattr(plain, name)) for name in names
    ]
    for record in (plain, compiled):
        assert pickle.loads(pickle.dumps(record)) == record == copy.copy(record)
        assert record != of(native if record is plain else work, fields)
        changed = copy.copy(record)
        changed.wr_id += 1
        assert changed != record
        with pytest.raises(TypeError):
            hash(record)


def test_pieces_are_values() -> None:
    for module in (work, native):
        one = module.SGE(1, 2, 3)
        assert {one: 1}[module.SGE(addr=1, length=2, lkey=3)] == 1
        assert repr(one) == "SGE(addr=1, length=2, lkey=3)"
        assert pickle.loads(pickle.dumps(one)) == one
        with pytest.raises((AttributeError, FrozenInstanceError)):
            one.addr = 5


def test_receives_are_alike() -> None:
    for fields in ({}, {"wr_id": 3, "num_sge": 1}):
        plain, compiled = work.RecvWR(**fields), native.RecvWR(**fields)
        assert repr(compiled) == repr(plain)
        assert pickle.loads(pickle.dumps(compiled)) == compiled


def test_what_sets_fields_sets_the_same() -> None:
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("set_wr_rdma", (5, 0x1000), {}),
        ("set_wr_ud", (work.AddressVector(bytes(16)), 4, 9), {}),
        ("set_wr_atomic", (5, 0x1000, 3), {}),
        ("set_wr_masked_atomic", (5, 0x1000, 3, 4), {"swap_mask": 1, "boundary": 8}),
    ]
    for name, values, named in calls:
        plain, compiled = work.SendWR(), native.SendWR()
        for record in (plain, compiled):
            getattr(record, name)(*values, **named)
        assert repr(compiled) == repr(plain)


def _refused(number: Any, said: str) -> AbstractContextManager[object]:
    """Expect the refusal of a field: an integer beyond its bits, or what is no integer."""
    if isinstance(number, int):
        return pytest.raises(OverflowError, match=said)
    return pytest.raises(TypeError)


@pytest.mark.parametrize("wr_id", [-1, -(1 << 63), 1 << 64, 1 << 70, None, 3.0, "1"])
def test_a_number_that_is_not_of_64_bits_is_refused_alike(wr_id: Any) -> None:
    """By every post, whatever the state is; a greatest one comes back as it was."""
    for make in (Reference, native.Engine):
        engine = make(LinkTraits(64, lossless=True), gid=bytes(16))
        pd, cq = object(), engine.completion_queue(8)
        srq = engine.shared_receive_queue(8, 1, pd=pd)
        qp = engine.queue_pair(
            qpn=16, kind=QPType.RC, pd=pd, send_cq=cq, recv_cq=cq, cap=QPCap(8, 8, 1, 1, 0)
        )
        for state, mask in ((QPState.INIT, STEPS[QPType.RC][0][1]), (QPState.ERR, QPAttrMask(0))):
            qp.modify(QPAttr(qp_state=state), mask | QPAttrMask.STATE, 0)
            for post in (
                partial(qp.post_send, SendWR(wr_id), 0),
                partial(qp.post_recv, work.RecvWR(wr_id), 0),
                partial(srq.post, work.RecvWR(wr_id)),
            ):
                with _refused(wr_id, f"wr_id {wr_id}, from 0 to {(1 << 64) - 1}"):
                    post()
        qp.post_recv(work.RecvWR((1 << 64) - 1), 0)
        assert [wc.wr_id for wc in cq.poll(8)] == [(1 << 64) - 1]


@pytest.mark.parametrize("number", [-1, 1 << 32, 1 << 70, 3.0, "1"])
@pytest.mark.parametrize(
    ("opcode", "name"),
    [
        (WROpcode.SEND_WITH_IMM, "imm_data"),
        (WROpcode.SEND_WITH_INV, "invalidate_rkey"),
        (WROpcode.RDMA_WRITE, "rkey"),
        (WROpcode.SEND, "remote_qpn"),
        (WROpcode.SEND, "remote_qkey"),
    ],
)
def test_a_number_that_is_not_of_32_bits_is_refused_alike(
    opcode: WROpcode, name: str, number: Any
) -> None:
    """By the post, before a packet is made; a greatest one is none, nor is one without effect."""
    for make in (Reference, native.Engine):
        engine = make(LinkTraits(64, lossless=True), gid=bytes(16))
        pd, cq = object(), engine.completion_queue(8)
        qp = engine.queue_pair(
            qpn=16, kind=QPType.RC, pd=pd, send_cq=cq, recv_cq=cq, cap=QPCap(8, 8, 1, 1, 0)
        )
        qp.modify(QPAttr(qp_state=QPState.ERR), QPAttrMask.STATE, 0)
        to = work.AddressVector(bytes(16)) if name.startswith("remote") else None
        wrong: dict[str, Any] = {name: number}
        greatest: dict[str, Any] = {name: (1 << 32) - 1}
        with _refused(number, f"{name} {number}, from 0 to {(1 << 32) - 1}"):
            qp.post_send(SendWR(1, opcode, ah=to, **wrong), 0)
        qp.post_send(SendWR(2, opcode, ah=to, **greatest), 0)
        if name != "rkey":
            qp.post_send(SendWR(3, WROpcode.RDMA_READ, invalidate_rkey=-1, remote_qpn=-1), 0)
        assert [wc.wr_id for wc in cq.poll(8)] == [2, 3][: 1 + (name != "rkey")]
