"""Requests to a node and its answers: one record of 256 bytes each way, little-endian.

    0   magic u32 "URDN"     4  version u16    6  operation u16    8  length u32    12  status i32
    16  socket u64           24 the fields of the operation

`length` counts the bytes that mean something, the head among them; what lies behind is sent as
zeros and not read. `status` is 0 in a request; in an answer it is 0 or an errno, and an answer with
an errno has no fields. Fields that a later release appends to an answer are not read. `socket` is
the SO_COOKIE of the socket's descriptor, 0 where there is none. An address takes 24 bytes: 16 of
IPv6 (IPv4 is v4-mapped), port u16, zero u16, scope u32.
Descriptors travel beside a record, by SCM_RIGHTS. docs/protocol/node.md tells what each operation
does; tests/vectors/node_requests.json has one record of each.

A request may come from any program: whatever its bytes are, `parse_request`
returns a record or raises RequestError.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from enum import IntEnum
from ipaddress import IPv6Address
from struct import Struct
from typing import Any, Final

from urds.common.errors import WireError
from urds.common.records import names, record
from urds.common.struct_layout import Layout
from urds.common.types import IPAddress

RECORD_BYTES: Final = 256
HEAD_BYTES: Final = 24
MAGIC: Final = 0x4E445255  # "URDN" in the order of the bytes
VERSION: Final = 1
OPTION_BYTES_MAX: Final = 128
DESCRIPTORS_MAX: Final = 3  # beside one record
NONBLOCK: Final = 0o4000  # flag of OPEN: SOCK_NONBLOCK of Linux

_HEAD: Final = Layout("record's head", "<IHHIiQ", size_bytes=HEAD_BYTES)
_ADDRESS: Final = Layout("address", "<16sH2xI", size_bytes=24)
_STATUS_MAX: Final = 4095  # the largest errno. Source: linux v6.12 include/linux/err.h (MAX_ERRNO)


class RequestOp(IntEnum):
    """What is asked."""

    OPEN = 1
    FIND = 2
    BIND = 3
    ROUTE = 4
    SET_OPTION = 5
    CANCEL = 6
    INFO = 7
    STATUS = 8
    UPGRADE = 9
    STOP = 10
    OPEN_AND_BIND = 11  # its `data` are words of the socket's options


class RequestError(WireError):
    """Bytes that are no request.

    `code` is the errno to answer with, and 0 where nothing is answered: the bytes do not begin as
    a record of a node does. `operation` and `socket` are those of the head, for the answer.
    """

    def __init__(self, text: str, code: int = 0, operation: int = 0, socket: int = 0) -> None:
        super().__init__(text)
        self.code, self.operation, self.socket = code, operation, socket


@record
class Name:
    """An address and a port; `NO_NAME`, 24 zeros, is none."""

    address: IPAddress
    port: int


NO_NAME: Final = Name(IPv6Address(0), 0)


@record(kw_only=True)
class Request:
    """One request; fields that the operation has not are None.

    Which has which: `REQUEST_FIELDS`.
    """

    operation: RequestOp
    socket: int = 0
    flags: int | None = None
    name: Name | None = None
    transport: int | None = None  # of SO_RDS_TRANSPORT; Transport.NONE: not chosen
    tos: int | None = None
    level: int | None = None
    option: int | None = None
    data: bytes | None = None  # at most 128 bytes
    info: int | None = None  # RDS_INFO_*


@record(kw_only=True)
class Answer:
    """One answer; fields that the operation has not are None, all with a `status` of not 0."""

    operation: int
    status: int = 0  # an errno
    socket: int = 0
    memory_bytes: int | None = None
    congestion_bytes: int | None = None
    name: Name | None = None
    route: int | None = None
    generation: int | None = None  # of the socket's routes
    count: int | None = None  # messages that were taken back
    element_bytes: int | None = None
    total_bytes: int | None = None


# How the bytes of each kind of field are written; `name` takes two values, `data` its own length.
_CODES: Final[Mapping[str, str]] = {
    "flags": "I", "transport": "I", "tos": "B", "level": "i", "option": "i", "info": "i",
    "memory_bytes": "Q", "congestion_bytes": "Q", "route": "I", "generation": "I", "count": "I",
    "element_bytes": "i", "total_bytes": "Q",
}  # fmt: skip
REQUEST_FIELDS: Final[Mapping[int, tuple[str, ...]]] = {
    RequestOp.OPEN: ("flags",),
    RequestOp.FIND: (),
    RequestOp.BIND: ("name", "transport"),
    RequestOp.ROUTE: ("name", "tos"),
    RequestOp.SET_OPTION: ("level", "option", "data"),
    RequestOp.CANCEL: ("name",),
    RequestOp.INFO: ("info",),
    RequestOp.STATUS: (),
    RequestOp.UPGRADE: (),
    RequestOp.STOP: (),
    RequestOp.OPEN_AND_BIND: ("flags", "name", "transport", "data"),
}
ANSWER_FIELDS: Final[Mapping[int, tuple[str, ...]]] = {
    RequestOp.OPEN: ("memory_bytes", "congestion_bytes"),
    RequestOp.FIND: ("memory_bytes", "congestion_bytes"),
    RequestOp.BIND: ("name",),
    RequestOp.ROUTE: ("route", "generation"),
    RequestOp.SET_OPTION: (),
    RequestOp.CANCEL: ("count",),
    RequestOp.INFO: ("element_bytes", "total_bytes"),
    RequestOp.STATUS: ("total_bytes",),
    RequestOp.UPGRADE: (),
    RequestOp.STOP: (),
    RequestOp.OPEN_AND_BIND: ("memory_bytes", "congestion_bytes"),
}
_DATA_BYTES: Final = Layout("size of a value", "<I", size_bytes=4)


def emit_request(request: Request) -> bytes:
    """Write the 256 bytes. Raises WireError if a field is missing, not this one's, or too big."""
    fields = _emit_fields(request, REQUEST_FIELDS[request.operation])
    return _emit(request.operation, 0, request.socket, fields)


def emit_answer(answer: Answer) -> bytes:
    """Write the 256 bytes. Raises WireError as `emit_request`."""
    if not 0 <= answer.status <= _STATUS_MAX:
        raise WireError(f"status {answer.status} is not in 0 to {_STATUS_MAX}")
    chosen = () if answer.status else ANSWER_FIELDS[answer.operation]
    fields = _emit_fields(answer, chosen)
    return _emit(answer.operation, answer.status, answer.socket, fields)


def parse_request(data: bytes) -> Request:
    """Read a request. Raises RequestError, whatever the bytes are."""
    operation, status, socket, rest = _parse_head(data)
    try:
        chosen = RequestOp(operation)
    except ValueError:
        text = f"operation {operation} is not in 1 to {max(RequestOp)}"
        raise RequestError(text, errno.ENOSYS, operation, socket) from None
    try:
        if status:
            raise WireError(f"a request with status {status}")
        values, more_bytes = _parse_fields(rest, REQUEST_FIELDS[operation])
        if more_bytes:
            raise WireError(f"{more_bytes} bytes too many")
    except WireError as wrong:
        text = f"{chosen.name}: {wrong}"
        raise RequestError(text, errno.EINVAL, operation, socket) from None
    return Request(operation=chosen, socket=socket, **values)


def parse_answer(data: bytes) -> Answer:
    """Read an answer. Raises RequestError, whatever the bytes are."""
    operation, status, socket, rest = _parse_head(data)
    fields = () if status else ANSWER_FIELDS.get(operation)
    if fields is None or not 0 <= status <= _STATUS_MAX:
        raise RequestError(f"answer to operation {operation} with status {status}")
    try:
        values, _ = _parse_fields(rest, fields)
    except WireError as wrong:
        raise RequestError(f"answer to operation {operation}: {wrong}") from None
    return Answer(operation=operation, status=status, socket=socket, **values)


def _emit(operation: int, status: int, socket: int, fields: bytes) -> bytes:
    length = HEAD_BYTES + len(fields)
    head = _HEAD.pack(MAGIC, VERSION, operation, length, status, socket)
    return (head + fields).ljust(RECORD_BYTES, b"\0")


def _parse_head(data: bytes) -> tuple[int, int, int, bytes]:
    """Return operation, status, socket and the bytes of the fields."""
    if len(data) != RECORD_BYTES:
        raise RequestError(f"record of {len(data)} bytes, not {RECORD_BYTES}")
    magic, version, operation, length, status, socket = _HEAD.unpack(data[:HEAD_BYTES])
    if magic != MAGIC:
        raise RequestError(f"magic {magic:#010x}, not {MAGIC:#010x}")
    if version != VERSION:
        text = f"version {version}, not {VERSION}"
        raise RequestError(text, errno.EPROTO, operation, socket)
    if not HEAD_BYTES <= length <= RECORD_BYTES:
        text = f"length {length} is not in {HEAD_BYTES} to {RECORD_BYTES}"
        raise RequestError(text, errno.EINVAL, operation, socket)
    return operation, status, socket, data[HEAD_BYTES:length]


def _emit_fields(one: Request | Answer, chosen: tuple[str, ...]) -> bytes:
    strange = [
        each
        for each in names(type(one))
        if each not in (*chosen, "operation", "status", "socket") and getattr(one, each) is not None
    ]
    if strange:
        raise WireError(f"operation {one.operation} has no {strange[0]}")
    return b"".join(_emit_field(each, getattr(one, each)) for each in chosen)


def _emit_field(kind: str, value: Any) -> bytes:
    if value is None:
        raise WireError(f"{kind} is missing")
    if kind == "name":
        return _emit_name(value)
    if kind == "data":
        if len(value) > OPTION_BYTES_MAX:
            raise WireError(f"value of {len(value)} bytes, limit {OPTION_BYTES_MAX}")
        return _DATA_BYTES.pack(len(value)) + bytes(value)
    return _FIELDS[kind].pack(value)


def _parse_fields(data: bytes, chosen: tuple[str, ...]) -> tuple[dict[str, Any], int]:
    """Return the fields, and how many bytes are behind them. Raises WireError."""
    values: dict[str, Any] = {}
    offset = 0
    for kind in chosen:
        size = _SIZES[kind]
        if offset + size > len(data):
            raise WireError(f"{HEAD_BYTES + len(data)} bytes are too few for {kind}")
        part = data[offset : offset + size]
        offset += size
        if kind == "name":
            values[kind] = _parse_name(part)
        elif kind == "data":
            value_bytes = _DATA_BYTES.unpack(part)[0]
            if value_bytes > min(OPTION_BYTES_MAX, len(data) - offset):
                raise WireError(f"value of {value_bytes} bytes, limit {OPTION_BYTES_MAX}")
            values[kind] = data[offset : offset + value_bytes]
            offset += value_bytes
        else:
            values[kind] = _FIELDS[kind].unpack(part)[0]
    return values, len(data) - offset


def _emit_name(name: Name) -> bytes:
    address, scope = name.address, 0
    if address.version == 4:
        packed = bytes(10) + b"\xff\xff" + address.packed
    else:
        packed, scope_id = address.packed, address.scope_id or "0"
        if not scope_id.isdecimal():
            raise WireError(f"scope {scope_id!r} is no number")
        scope = int(scope_id)
    return _ADDRESS.pack(packed, name.port, scope)


def _parse_name(part: bytes) -> Name:
    """Return a name; a scope is one of a link-local address, elsewhere it is not read."""
    packed, port, scope = _ADDRESS.unpack(part)
    address = IPv6Address(packed)
    if address.ipv4_mapped is not None:
        return Name(address.ipv4_mapped, port)
    has_scope = scope and address.is_link_local
    return Name(IPv6Address(f"{address}%{scope}") if has_scope else address, port)


_FIELDS: Final = {
    kind: Layout(kind, f"<{code}", size_bytes=Struct(f"<{code}").size)
    for kind, code in _CODES.items()
}
_SIZES: Final = {
    **{kind: one.size_bytes for kind, one in _FIELDS.items()},
    "name": _ADDRESS.size_bytes,
    "data": _DATA_BYTES.size_bytes,
}
