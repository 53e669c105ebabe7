"""Compiled records posted to the Python engine, as over `tcp0` and `udp0`: as the dataclasses do.

Whatever a field holds, right or not, both end alike: what may not be posted raises the same, and
what is posted leaves the same packets and completions. Of the compiled ones `None` is the default
of a field; what is no sequence of pieces raises the same type with other words.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

import pytest

from tests.parity.verbs_nodes import ALL_ACCESS, BASE, CAP, LINK, STEPS
from urds.verbs.engine import work
from urds.verbs.engine.attributes import QPAttr, QPCap
from urds.verbs.engine.engine import Engine
from urds.verbs.engine.numbers import QPAttrMask, QPState, QPType, SendFlag, WROpcode

native: Any = pytest.importorskip("urds_native", reason="the compiled records are not built")


class Three:
    """A number by `__index__` alone."""

    def __index__(self) -> int:
        return 3


NUMBERS: Final = (
    -(1 << 64), -(1 << 63), -1, 0, 1, 7, (1 << 31) - 1, 1 << 31, (1 << 31) + 1, (1 << 32) - 1,
    1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, 1 << 70,
)  # fmt: skip
OTHERS: Final[tuple[Any, ...]] = (
    True, 0.0, 3.0, 2.5, "", "1", "SEND", b"", b"1", bytearray(b"x"), memoryview(b"abc"), [], (),
    {}, [1], (1, 2), [None], object, Three(), SendFlag.SIGNALED, SendFlag(0), WROpcode.SEND,
    WROpcode.RDMA_READ,
)  # fmt: skip
VALUES: Final = (*NUMBERS, *OTHERS)
FIELDS: Final = tuple(field.name for field in fields(work.SendWR))
OPCODES: Final = (
    *((QPType.RC, opcode) for opcode in WROpcode),
    (QPType.UD, WROpcode.SEND),
    (QPType.UD, WROpcode.SEND_WITH_IMM),
)
PEER: Final = work.AddressVector(bytes([2] * 16))


class Device:
    """The Python engine, with a queue pair in RTS and memory."""

    def __init__(self, kind: QPType) -> None:
        self.engine = Engine(LINK, gid=bytes([1] * 16))
        pd = object()
        self.cq = self.engine.completion_queue(64)
        view = memoryview(bytearray(256))
        self.region = self.engine.register(pd, view, BASE, ALL_ACCESS)
        self.qp: Any = self.engine.queue_pair(
            qpn=16, kind=kind, pd=pd, send_cq=self.cq, recv_cq=self.cq,
            cap=QPCap(CAP.max_send_wr, CAP.max_recv_wr, 3, 2, 128),
        )  # fmt: skip
        for state, mask in STEPS[kind]:
            attr = QPAttr(
                qp_state=state, qp_access_flags=ALL_ACCESS, ah_attr=PEER, dest_qp_num=17,
                max_rd_atomic=4, max_dest_rd_atomic=4, qkey=7,
            )  # fmt: skip
            self.qp.modify(attr, mask | QPAttrMask.STATE, 0)
        self.seen: list[Any] = []

    def attempt(self, what: str, call: Any) -> Any:
        """Note what a call gave or raised; return it, `None` for an error."""
        try:
            found = call()
        except Exception as error:
            told = (type(error), getattr(error, "errno", None), str(error))
            self.seen.append((what, told))
            return None
        return found

    def carry(self) -> None:
        """Note the packets that leave, and what completes."""
        while (packet := self.engine.poll_transmit(0)) is not None:
            self.seen.append(bytes(packet[1]))
        self.seen.append([tuple(wc) for wc in self.cq.poll(8)])


def outcome(records: Any, kind: QPType, changed: dict[str, Any], piece: dict[str, Any]) -> Any:
    """Post a request whose fields were changed; return all that was seen."""
    device = Device(kind)
    key = device.region.lkey
    given = {
        "wr_id": 5, "remote_addr": BASE, "rkey": key, "ah": PEER, "remote_qpn": 17,
        "remote_qkey": 7, "invalidate_rkey": key,
    } | changed  # fmt: skip

    def make() -> Any:
        made = records.SGE(**({"addr": BASE, "length": 8, "lkey": key} | piece))
        return records.SendWR(**({"sg": [made]} | given))

    wr = device.attempt("make", make)
    if wr is not None:
        device.seen.append({name: repr(getattr(wr, name)) for name in FIELDS})
        device.attempt("post", lambda: device.qp.post_send(wr, 0) and None)
        device.attempt("carry", device.carry)
    return device.seen


def reduced(seen: list[Any]) -> list[Any]:
    """Return what was seen without the words of errors."""
    is_error = [isinstance(one, tuple) and isinstance(one[1], tuple) for one in seen]
    return [one[0] if bad else one for one, bad in zip(seen, is_error, strict=True)]


@pytest.mark.parametrize(
    ("kind", "opcode"), OPCODES, ids=lambda one: one.name if hasattr(one, "name") else one
)
def test_values_of_a_request_end_alike(kind: QPType, opcode: WROpcode) -> None:
    for name in FIELDS:
        for value in VALUES:
            changed = {"opcode": opcode, name: value}
            plain, compiled = (outcome(one, kind, changed, {}) for one in (work, native))
            if name == "sg":  # neither pieces nor the words about what is none
                plain, compiled = reduced(plain), reduced(compiled)
            assert compiled == plain, (name, value)


@pytest.mark.parametrize("name", ["addr", "length", "lkey"])
def test_values_of_a_piece_end_alike(name: str) -> None:
    for value in VALUES:
        for opcode in (WROpcode.SEND, WROpcode.RDMA_READ, WROpcode.ATOMIC_FETCH_AND_ADD):
            changed, piece = {"opcode": opcode}, {name: value}
            plain, compiled = (outcome(one, QPType.RC, changed, piece) for one in (work, native))
            assert compiled == plain, (opcode.name, value)


@pytest.mark.parametrize("name", ["wr_id", "sg", "num_sge"])
def test_values_of_a_receive_end_alike(name: str) -> None:
    for value in VALUES:
        found = []
        for records in (work, native):
            device = Device(QPType.RC)
            piece = records.SGE(BASE, 8, device.region.lkey)
            given: dict[str, Any] = {"wr_id": 5, "sg": [piece]} | {name: value}
            wr = device.attempt("make", lambda: records.RecvWR(**given))  # noqa: B023 - called at once
            if wr is not None:
                device.attempt("post", lambda: device.qp.post_recv(wr, 0))  # noqa: B023 - called at once
                device.qp.modify(QPAttr(qp_state=QPState.ERR), QPAttrMask.STATE, 0)
                device.attempt("carry", device.carry)
            found.append(reduced(device.seen) if name == "sg" else device.seen)
        assert found[0] == found[1], (name, value)


def test_none_is_the_default_of_a_compiled_field() -> None:
    default, given = native.SendWR(), native.SendWR(**dict.fromkeys(FIELDS))
    assert given == default == native.SendWR()
    assert [repr(getattr(given, name)) for name in FIELDS] == [
        repr(getattr(work.SendWR(), name)) for name in FIELDS
    ]
