"""Records between programs and a node: the shared vectors, round trips, and arbitrary bytes."""

import errno
import json
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from struct import pack_into
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from urds.common.errors import WireError
from urds.rds.wire import node
from urds.rds.wire.node import NO_NAME, Answer, Name, Request, RequestError, RequestOp

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "node_requests.json").read_text())
U = {code: (1 << bits) - 1 for code, bits in {"B": 8, "I": 32, "Q": 64}.items()}


def _name(text: str) -> Name:
    host, _, port = text.rpartition(" ")
    return Name(ip_address(host), int(port))


def _values(fields: dict[str, Any]) -> dict[str, Any]:
    made = {"name": _name, "data": bytes.fromhex}
    return {key: made.get(key, lambda value: value)(value) for key, value in fields.items()}


def _record(vector: dict[str, Any]) -> Request | Answer:
    operation = RequestOp[vector["operation"]]
    if vector["kind"] == "request":
        return Request(operation=operation, **_values(vector["fields"]))
    return Answer(operation=operation, **_values(vector["fields"]))


def _bytes_of(vector: dict[str, Any]) -> bytes:
    return bytes.fromhex(vector["hex"]).ljust(node.RECORD_BYTES, b"\0")


@pytest.mark.parametrize("vector", VECTORS["records"], ids=lambda one: one["name"])
def test_a_vector_is_written_and_read(vector: dict[str, Any]) -> None:
    one, data = _record(vector), _bytes_of(vector)
    if isinstance(one, Request):
        assert node.emit_request(one) == data
        assert node.parse_request(data) == one
    else:
        assert node.emit_answer(one) == data
        assert node.parse_answer(data) == one


def test_each_operation_has_vectors_of_both_kinds() -> None:
    kinds = {(one["kind"], one["operation"]) for one in VECTORS["records"]}
    assert kinds == {(kind, op.name) for kind in ("request", "answer") for op in RequestOp}


@pytest.mark.parametrize("vector", VECTORS["refused"], ids=lambda one: one["name"])
def test_what_is_no_request_is_refused_with_its_errno(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    if vector.get("whole", True):
        data = data.ljust(node.RECORD_BYTES, b"\0")
    with pytest.raises(RequestError) as refused:
        node.parse_request(data)
    expected = getattr(errno, vector["errno"]) if vector["errno"] else 0
    assert refused.value.code == expected
    if expected:
        assert refused.value.operation == int.from_bytes(data[6:8], "little")
        assert refused.value.socket == int.from_bytes(data[16:24], "little")


addresses = st.one_of(
    st.integers(0, U["I"]).map(IPv4Address),
    st.integers(0, (1 << 128) - 1).map(IPv6Address).filter(lambda one: one.ipv4_mapped is None),
    st.integers(1, U["I"]).map(lambda scope: IPv6Address(f"fe80::1%{scope}")),
)
ports = st.integers(0, 0xFFFF)
numbers = {
    **dict.fromkeys(("flags", "transport", "route", "generation", "count"), st.integers(0, U["I"])),
    **dict.fromkeys(("memory_bytes", "congestion_bytes", "total_bytes"), st.integers(0, U["Q"])),
    **dict.fromkeys(
        ("level", "option", "info", "element_bytes"), st.integers(-(1 << 31), (1 << 31) - 1)
    ),
    "tos": st.integers(0, 255),
    "name": st.builds(Name, addresses, ports),
    "data": st.binary(max_size=node.OPTION_BYTES_MAX),
}


@st.composite
def requests(draw: st.DrawFn) -> Request:
    operation = draw(st.sampled_from(RequestOp))
    fields = {each: draw(numbers[each]) for each in node.REQUEST_FIELDS[operation]}
    return Request(operation=operation, socket=draw(st.integers(0, U["Q"])), **fields)


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    operation = draw(st.sampled_from(RequestOp))
    status = draw(st.sampled_from([0, 0, errno.EINVAL, 4095]))
    chosen = () if status else node.ANSWER_FIELDS[operation]
    fields = {each: draw(numbers[each]) for each in chosen}
    socket = draw(st.integers(0, U["Q"]))
    return Answer(operation=operation, status=status, socket=socket, **fields)


@given(requests())
def test_a_request_comes_back(request: Request) -> None:
    data = node.emit_request(request)
    assert len(data) == node.RECORD_BYTES
    assert node.parse_request(data) == request


@given(answers())
def test_an_answer_comes_back(answer: Answer) -> None:
    data = node.emit_answer(answer)
    assert len(data) == node.RECORD_BYTES
    assert node.parse_answer(data) == answer


@given(st.binary(max_size=2 * node.RECORD_BYTES))
@example(bytes(node.RECORD_BYTES))
def test_any_bytes_of_are_read_or_refused(data: bytes) -> None:
    for parse in (node.parse_request, node.parse_answer):
        try:
            parse(data)
        except RequestError:
            pass


@given(requests(), st.integers(4, 255), st.binary(min_size=1, max_size=16))
def test_a_request_with_other_bytes_of_is_read_or_refused(
    request: Request, at: int, data: bytes
) -> None:
    record = node.emit_request(request)
    record = (record[:at] + data + record[at + len(data) :])[: node.RECORD_BYTES]
    try:
        again = node.parse_request(record)
    except RequestError as refused:
        code = refused.code
    else:
        code = 0
        assert node.parse_request(node.emit_request(again)) == again
    assert code in (0, errno.EPROTO, errno.ENOSYS, errno.EINVAL)


def test_bytes_of_behind_the_length_are_not_read() -> None:
    data = bytearray(node.emit_request(Request(operation=RequestOp.STATUS)))
    data[node.HEAD_BYTES :] = b"\xff" * (node.RECORD_BYTES - node.HEAD_BYTES)
    assert node.parse_request(bytes(data)) == Request(operation=RequestOp.STATUS)


def test_a_scope_of_an_address_that_needs_none_is_not_read() -> None:
    data = bytearray(
        node.emit_request(Request(operation=RequestOp.CANCEL, name=Name(IPv6Address("fd00::1"), 7)))
    )
    pack_into("<I", data, node.HEAD_BYTES + 20, 3)
    assert node.parse_request(bytes(data)).name == Name(IPv6Address("fd00::1"), 7)


def test_no_name_is_all_zeros() -> None:
    data = node.emit_request(Request(operation=RequestOp.CANCEL, name=NO_NAME))
    assert data[node.HEAD_BYTES :] == bytes(node.RECORD_BYTES - node.HEAD_BYTES)


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (Request(operation=RequestOp.OPEN), "flags is missing"),
        (Request(operation=RequestOp.STOP, tos=1), "has no tos"),
        (
            Request(operation=RequestOp.SET_OPTION, level=1, option=2, data=bytes(129)),
            "value of 129 bytes, limit 128",
        ),
        (
            Request(operation=RequestOp.CANCEL, name=Name(IPv4Address("10.0.0.1"), 70_000)),
            "70000 is not in 0 to 65535",
        ),
        (
            Request(operation=RequestOp.CANCEL, name=Name(IPv6Address("fe80::1%eth0"), 7)),
            "scope 'eth0' is no number",
        ),
    ],
)
def test_what_fits_no_record_is_refused(request_: Request, text: str) -> None:
    with pytest.raises(WireError, match=text):
        node.emit_request(request_)


@pytest.mark.parametrize("status", [-1, 4096])
def test_a_status_is_an_errno(status: int) -> None:
    with pytest.raises(WireError, match="is not in 0 to 4095"):
        node.emit_answer(Answer(operation=RequestOp.STOP, status=status))


@pytest.mark.parametrize("status", [0, errno.EMFILE])
def test_a_field_that_a_later_release_appends_to_an_answer_is_not_read(status: int) -> None:
    values: dict[str, Any] = {} if status else {"name": Name(ip_address("10.0.0.1"), 4000)}
    answer = Answer(operation=RequestOp.BIND, status=status, socket=7, **values)
    data = bytearray(node.emit_answer(answer))
    length = int.from_bytes(data[8:12], "little")
    data[8:12] = (length + 8).to_bytes(4, "little")
    data[length : length + 8] = b"appended"
    assert node.parse_answer(bytes(data)) == answer
