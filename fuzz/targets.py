"""The targets of fuzzing: every parser of bytes from peers, with its invariants for any bytes.

A target takes bytes and returns, or raises `WireError`. Anything else it raises is a finding.
It runs without atheris too: `tests/health/test_fuzz.py` gives each target some hundred inputs.
The parsers of RDS are here, those of the verbs and of uDAPL in `verbs_parsers`, those of rsockets
in `rsocket_parsers`, those of programs, files and tools in `program_parsers` and `tool_parsers`.

The machines behind them take bytes step by step: a path of RDS over TCP in `path_machines`, two
that talk in `path_pair`, connecting in `endpoint_machines`; queue pairs in `verbs_machines`, what
leads to them in `verbs_links`; streams of rsockets in `rsocket_machines`, datagram sockets in
`rsocket_datagrams`; connections of RDS over RDMA in `rdma_machines`, what leads to those in
`rdma_connects`.
"""

from collections.abc import Callable
from ipaddress import IPv6Address

from fuzz import (
    endpoint_machines,
    path_machines,
    path_pair,
    program_parsers,
    rdma_connects,
    rdma_machines,
    rsocket_datagrams,
    rsocket_machines,
    rsocket_parsers,
    tool_parsers,
    verbs_links,
    verbs_machines,
    verbs_parsers,
)
from urds.rds.wire import extensions as exthdr
from urds.rds.wire import node
from urds.rds.wire.congestion_map import CongestionMap
from urds.rds.wire.header import Header
from urds.rds.wire.node import Answer, Name, Request, RequestOp
from urds.rds.wire.private_data import ConnectData, accepted_version


def header(data: bytes) -> None:
    """Read a header; what was read must come out as the same record again."""
    record = Header.parse(data, verify=False)
    assert Header.parse(record.emit(), verify=False) == record


def header_checked(data: bytes) -> None:
    """Read a header as between urds nodes, checksum included."""
    Header.parse(data)


def extensions(data: bytes) -> None:
    """Read extension headers and the handshake in them; neither refuses what Linux takes."""
    exthdr.parse(data[:16].ljust(16, b"\0"))
    exthdr.parse_handshake(data[:16].ljust(16, b"\0"))


def congestion_map(data: bytes) -> None:
    """Read a map; it must come out as the same bytes again."""
    assert CongestionMap.parse(data).emit() == data


def connect_data(data: bytes) -> None:
    """Read the private data of an RDMA connect in both forms and check its version."""
    accepted_version(ConnectData.parse(data[1:], ipv6=bool(data[:1] > b"\x7f")))


def node_requests(data: bytes) -> None:
    """Read a request to a node; what was read must come out as the same record again."""
    request = node.parse_request(_record(data))
    assert node.parse_request(node.emit_request(request)) == request


def node_answers(data: bytes) -> None:
    """Read an answer of a node, as `node_requests`."""
    answer = node.parse_answer(_record(data))
    assert node.parse_answer(node.emit_answer(answer)) == answer


def _record(data: bytes) -> bytes:
    """Return a record of the one length there is, without which nothing is read."""
    return data[: node.RECORD_BYTES].ljust(node.RECORD_BYTES, b"\0")


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (
        header, header_checked, extensions, congestion_map, connect_data, node_requests,
        node_answers,
    )
}  # fmt: skip
TARGETS |= verbs_parsers.TARGETS | verbs_machines.TARGETS | verbs_links.TARGETS
TARGETS |= rsocket_parsers.TARGETS | rsocket_machines.TARGETS | rsocket_datagrams.TARGETS
TARGETS |= rdma_machines.TARGETS | rdma_connects.TARGETS
TARGETS |= path_machines.TARGETS | path_pair.TARGETS | endpoint_machines.TARGETS
TARGETS |= program_parsers.TARGETS | tool_parsers.TARGETS
_NAME = Name(IPv6Address("fe80::1%3"), 4000)
# Where the search starts: bytes of the right length are a long way from none at all.
SEEDS: dict[str, tuple[bytes, ...]] = {
    "header": (Header(sequence=1, payload_bytes=5, source_port=4001, target_port=4002).emit(),),
    "header_checked": (Header(sequence=1, payload_bytes=5).emit(checksum=True),),
    "extensions": (bytes.fromhex("050008 0611223344 0800 00 5552 01 0000"),),
    "congestion_map": (CongestionMap([4000]).emit(),),
    "connect_data": (bytes(33),),
    "node_requests": tuple(
        node.emit_request(one)
        for one in (
            Request(operation=RequestOp.BIND, name=_NAME, transport=2),
            Request(operation=RequestOp.ROUTE, name=_NAME, tos=7),
            Request(operation=RequestOp.SET_OPTION, level=1, option=7, data=bytes(4)),
            Request(operation=RequestOp.INFO, info=10_000),
        )
    ),
    "node_answers": (
        node.emit_answer(Answer(operation=RequestOp.BIND, name=_NAME)),
        node.emit_answer(Answer(operation=RequestOp.ROUTE, status=13)),
    ),
}
SEEDS |= verbs_parsers.SEEDS | verbs_machines.SEEDS | verbs_links.SEEDS
SEEDS |= rsocket_parsers.SEEDS | rsocket_machines.SEEDS | rsocket_datagrams.SEEDS
SEEDS |= rdma_machines.SEEDS | rdma_connects.SEEDS
SEEDS |= path_machines.SEEDS | path_pair.SEEDS | endpoint_machines.SEEDS
SEEDS |= program_parsers.SEEDS | tool_parsers.SEEDS
assert SEEDS.keys() == TARGETS.keys(), "each target has a seed"
