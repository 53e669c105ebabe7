"""The thin calls: all of them are there, refuse what is no handle, and carry a whole program.

Source: docs/reference/dat.md 8, 20.1, 22.
"""

import builtins
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dat.fakes import open_fake
from urds import dat
from urds.dat import DtoStatus, EpParam, EpState, EventNumber, LmrTriplet, RmrTriplet
from urds.dat.returns import DatReturn, Subtype
from urds.verbs.providers.sim import SimNetwork

# The 72 calls of uDAPL 1.2; dat_ia_open is a macro over dat_ia_openv.
# Source: docs/reference/dat.md 8.
CALLS = [
    "ia_open", "ia_query", "ia_close", "set_consumer_context", "get_consumer_context",
    "get_handle_type", "cno_create", "cno_modify_agent", "cno_query", "cno_wait", "cno_free",
    "evd_create", "evd_query", "evd_modify_cno", "evd_enable", "evd_disable",
    "evd_set_unwaitable", "evd_clear_unwaitable", "evd_wait", "evd_dequeue", "evd_post_se",
    "evd_resize", "evd_free", "psp_create", "psp_create_any", "psp_query", "psp_free",
    "rsp_create", "rsp_query", "rsp_free", "cr_query", "cr_accept", "cr_reject", "cr_handoff",
    "ep_create", "ep_create_with_srq", "ep_query", "ep_modify", "ep_connect", "ep_dup_connect",
    "ep_disconnect", "ep_post_send", "ep_post_recv", "ep_post_rdma_write", "ep_post_rdma_read",
    "ep_get_status", "ep_reset", "ep_free", "ep_recv_query", "ep_set_watermark", "lmr_create",
    "lmr_query", "lmr_free", "lmr_sync_rdma_read", "lmr_sync_rdma_write", "rmr_create",
    "rmr_bind", "rmr_query", "rmr_free", "pz_create", "pz_query", "pz_free", "srq_create",
    "srq_post_recv", "srq_query", "srq_resize", "srq_set_lw", "srq_free",
    "registry_list_providers", "registry_add_provider", "registry_remove_provider", "strerror",
]  # fmt: skip
BEYOND = ["ia_openv", "provider_init", "provider_fini"]
WITHOUT_HANDLE = {"ia_open", "ia_openv", "strerror"} | {
    name for name in [*CALLS, *BEYOND] if name.startswith(("registry_", "provider_"))
}
DOCS = Path(__file__).parents[2] / "docs" / "dat.md"


def call_of(name: str) -> Any:
    return getattr(dat, f"dat_{name}")


def test_all_calls_are_there_and_no_others() -> None:
    exported = {name.removeprefix("dat_") for name in dat.__all__ if name.startswith("dat_")}
    assert len(CALLS) == 72
    assert exported == {*CALLS, *BEYOND}


def test_an_import_of_everything_hides_no_builtin() -> None:
    assert set(dat.__all__) & set(dir(builtins)) == set()
    assert len(dat.__all__) == len(set(dat.__all__))
    assert [name for name in dat.__all__ if not hasattr(dat, name)] == []


@pytest.mark.rule("dat-handle")
@pytest.mark.parametrize("name", sorted(set(CALLS) - WITHOUT_HANDLE))
@pytest.mark.parametrize("handle", [None, 4096, "handle"], ids=repr)
def test_a_call_refuses_what_is_no_handle(name: str, handle: object) -> None:
    """With INVALID_HANDLE, without an exception, and with every output undefined."""
    call = call_of(name)
    needed = [
        parameter
        for parameter in inspect.signature(call).parameters.values()
        if parameter.default is parameter.empty
    ]
    result = call(handle, *[1 for _ in needed[1:]])
    ret, *outputs = result if isinstance(result, tuple) else (result,)
    assert isinstance(ret, DatReturn)
    assert ret == dat.DAT_INVALID_HANDLE
    assert int(ret) & 0x80000000
    assert outputs == [None] * len(outputs)


def test_the_support_table_of_the_docs_lists_every_call() -> None:
    listed = re.findall(r"^\| `dat_(\w+)` \|", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(CALLS)


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (0, ("DAT_SUCCESS", "")),
        (0x8005000C, ("DAT_INVALID_HANDLE", "DAT_INVALID_HANDLE_EP")),
        (0x00090000, ("DAT_MODEL_NOT_SUPPORTED", "")),
    ],
)
def test_strerror(value: int, names: tuple[str, str]) -> None:
    assert dat.dat_strerror(value) == (dat.DAT_SUCCESS, *names)


@pytest.mark.parametrize("value", [0x00150000, 0x80050000 | 999, -1])
def test_strerror_of_an_undefined_value(value: int) -> None:
    assert dat.dat_strerror(value) == (dat.DAT_INVALID_PARAMETER, None, None)


@pytest.mark.parametrize("family", ["evd", "cno", "pz", "srq", "lmr", "rmr"])
def test_a_query_mask_with_an_unknown_bit_is_refused(family: str) -> None:
    with open_fake() as ia:
        pz, cno = ia.create_pz(), ia.create_cno()
        made: dict[str, Any] = {
            "evd": ia.async_evd,
            "cno": cno,
            "pz": pz,
            "lmr": pz.register(bytearray(8)),
            "rmr": pz.create_rmr(),
            "srq": pz.create_srq(4),
        }
        whole = getattr(dat, f"DAT_{family.upper()}_FIELD_ALL")
        query = call_of(f"{family}_query")
        assert query(made[family], whole)[0] == dat.DAT_SUCCESS
        ret, param = query(made[family], int(whole) + 1)
        assert (ret.type, ret.subtype) == (dat.DAT_INVALID_PARAMETER, Subtype.INVALID_ARG2)
        assert param is None


# -- one program in thin calls alone, over a simulated network

QUAL = 45248
WAIT_US = 5_000_000


class Program:
    """One side of a program in the style of C. Every call is checked; failures say which."""

    def __init__(self, name: str) -> None:
        self.async_evd, self.ia = self.ok(dat.dat_ia_open(name, 8, None))
        (self.pz,) = self.ok(dat.dat_pz_create(self.ia))
        flags = (dat.DAT_EVD_DTO_FLAG, dat.DAT_EVD_DTO_FLAG, dat.DAT_EVD_CONNECTION_FLAG)
        self.recv, self.request, self.connection = (
            self.ok(dat.dat_evd_create(self.ia, 16, None, flag))[0] for flag in flags
        )
        self.buffer = bytearray(1024)
        self.lmr, self.context, self.remote_context, _, self.address = self.ok(
            dat.dat_lmr_create(self.ia, dat.DAT_MEM_TYPE_VIRTUAL, self.buffer, 1024, self.pz, 0x33)
        )
        (self.ep,) = self.ok(
            dat.dat_ep_create(self.ia, self.pz, self.recv, self.request, self.connection, None)
        )

    @staticmethod
    def ok(result: Any) -> tuple[Any, ...]:
        """Return the outputs of a call that must succeed."""
        ret, *outputs = result if isinstance(result, tuple) else (result,)
        assert ret == dat.DAT_SUCCESS, ret.name
        return tuple(outputs)

    def piece(self, offset: int, length: int) -> LmrTriplet:
        return LmrTriplet(self.context, self.address + offset, length)

    def next_event(self, evd: Any) -> Any:
        event, _ = self.ok(dat.dat_evd_wait(evd, WAIT_US, 1))
        return event

    @property
    def state(self) -> EpState:
        state, _, _ = self.ok(dat.dat_ep_get_status(self.ep))
        return EpState(state)


@pytest.fixture
def programs() -> Iterator[tuple[Program, Program]]:
    network = SimNetwork(seed=2)
    infos = [
        dat.register("calls-client", lambda: network.adapter("client")),
        dat.register("calls-server", lambda: network.adapter("server")),
    ]
    client, server = Program("calls-client"), Program("calls-server")
    yield client, server
    for program in (client, server):
        program.ok(dat.dat_ia_close(program.ia, dat.DAT_CLOSE_ABRUPT_FLAG))
    for info in infos:
        dat.unregister(info)


def connect(client: Program, server: Program) -> None:
    """Connect the endpoints with private data both ways."""
    ok = client.ok
    (requests,) = ok(dat.dat_evd_create(server.ia, 4, None, dat.DAT_EVD_CR_FLAG))
    (psp,) = ok(dat.dat_psp_create(server.ia, QUAL, requests, dat.DAT_PSP_CONSUMER_FLAG))
    (param,) = ok(dat.dat_psp_query(psp, dat.DAT_PSP_FIELD_ALL))
    assert (param.conn_qual, param.evd_handle) == (QUAL, requests)
    assert dat.dat_psp_query(psp, 0x10)[0] == dat.DAT_INVALID_PARAMETER
    address = server.ia.attr.ia_address_ptr
    ok(dat.dat_ep_connect(client.ep, address, QUAL, WAIT_US, 4, b"ping", 0, 0))
    event = server.next_event(requests)
    assert (event.conn_qual, event.sp_handle) == (QUAL, psp)
    (cr_param,) = ok(dat.dat_cr_query(event.cr_handle, dat.DAT_CR_FIELD_ALL))
    assert cr_param.private_data == b"ping"
    ok(dat.dat_cr_accept(event.cr_handle, server.ep, 4, b"pong and more"))
    assert dat.dat_cr_reject(event.cr_handle) == dat.DAT_INVALID_HANDLE
    events = [program.next_event(program.connection) for program in (client, server)]
    assert [event.private_data for event in events] == [b"pong", b""]
    ok(dat.dat_psp_free(psp))
    ok(dat.dat_evd_free(requests))


def test_a_whole_program(programs: tuple[Program, Program]) -> None:
    """Preposts, connects, sends, writes, reads, disconnects, resets and frees in thin calls."""
    client, server = programs
    ok = client.ok
    for number in range(3):
        piece = [server.piece(100 * number, 100)]
        ok(dat.dat_ep_post_recv(server.ep, 1, piece, number, dat.DAT_COMPLETION_DEFAULT_FLAG))
    connect(client, server)
    assert (client.state, server.state) == (EpState.CONNECTED, EpState.CONNECTED)
    assert dat.dat_ep_recv_query(server.ep) == (dat.DAT_SUCCESS, 3, 3)

    client.buffer[:5] = b"hello"
    ok(dat.dat_ep_post_send(client.ep, 1, [client.piece(0, 5)], "sent", 0))
    event = server.next_event(server.recv)
    assert (event.user_cookie, event.transfered_length) == (0, 5)
    assert server.buffer[:5] == b"hello"
    assert client.next_event(client.request).user_cookie == "sent"
    assert dat.dat_ep_recv_query(server.ep, want_span=False) == (dat.DAT_SUCCESS, 2, None)

    target = RmrTriplet(server.remote_context, server.address + 500, 5)
    ok(dat.dat_ep_post_rdma_write(client.ep, 1, [client.piece(0, 5)], 1, target, 0))
    assert client.next_event(client.request).status is DtoStatus.SUCCESS
    assert server.buffer[500:505] == b"hello"
    ok(dat.dat_ep_post_rdma_read(client.ep, 1, [client.piece(900, 5)], 2, target, 0))
    assert client.next_event(client.request).user_cookie == 2
    assert client.buffer[900:905] == b"hello"
    assert dat.dat_ep_post_rdma_write(client.ep, 1, [client.piece(0, 6)], 1, target, 0) == (
        dat.DAT_LENGTH_ERROR
    )

    ok(dat.dat_ep_disconnect(client.ep, dat.DAT_CLOSE_DEFAULT))
    for program in programs:
        event = program.next_event(program.connection)
        assert event.event_number is EventNumber.CONNECTION_DISCONNECTED
        assert program.state is EpState.DISCONNECTED
    flushed = [ok(dat.dat_evd_dequeue(server.recv))[0] for _ in range(2)]
    assert [event.status for event in flushed] == [DtoStatus.ERR_FLUSHED] * 2
    assert dat.dat_evd_dequeue(server.recv)[0] == dat.DAT_QUEUE_EMPTY
    ok(dat.dat_ep_reset(server.ep))
    assert server.state is EpState.UNCONNECTED
    ok(dat.dat_ep_free(server.ep))
    assert dat.dat_ep_recv_query(server.ep) == (dat.DAT_INVALID_HANDLE, None, None)


def test_modify_takes_the_fields_of_the_mask(programs: tuple[Program, Program]) -> None:
    client, _ = programs
    ok = client.ok
    (before,) = ok(dat.dat_ep_query(client.ep, dat.DAT_EP_FIELD_ALL))
    (zone,) = ok(dat.dat_pz_create(client.ia))
    wanted = EpParam(pz_handle=zone, ep_attr=dat.EpAttr(max_request_iov=2, max_request_dtos=3))
    mask = dat.DAT_EP_FIELD_PZ_HANDLE | dat.DAT_EP_FIELD_EP_ATTR_MAX_REQUEST_IOV
    ok(dat.dat_ep_modify(client.ep, mask, wanted))
    (after,) = ok(dat.dat_ep_query(client.ep, dat.DAT_EP_FIELD_ALL))
    assert after.pz_handle is zone
    assert after.ep_attr.max_request_iov == 2
    assert after.ep_attr.max_request_dtos == before.ep_attr.max_request_dtos
    for bit in (dat.DAT_EP_FIELD_EP_STATE, dat.DAT_EP_FIELD_SRQ_HANDLE, 0x800):
        assert dat.dat_ep_modify(client.ep, bit, wanted) == dat.DAT_INVALID_PARAMETER
    assert call_of("ep_modify")(client.ep, mask, None) == dat.DAT_INVALID_PARAMETER


def test_lists_and_private_data_shorter_than_told_are_refused(
    programs: tuple[Program, Program],
) -> None:
    """In C the call would read beyond them."""
    client, server = programs
    pieces = [client.piece(0, 5)]
    for count in (2, -1):
        ret = dat.dat_ep_post_recv(client.ep, count, pieces, None, 0)
        assert (ret.type, ret.subtype) == (dat.DAT_INVALID_PARAMETER, Subtype.INVALID_ARG2)
    assert dat.dat_ep_post_recv(client.ep, 0, None, None, 0) == dat.DAT_SUCCESS
    address = server.ia.attr.ia_address_ptr
    ret = dat.dat_ep_connect(client.ep, address, QUAL, WAIT_US, 5, b"four", 0, 0)
    assert (ret.type, ret.subtype) == (dat.DAT_INVALID_PARAMETER, Subtype.INVALID_ARG5)
    assert dat.dat_ep_connect(client.ep, address, QUAL, WAIT_US, 1, None, 0, 0) == (
        dat.DAT_INVALID_PARAMETER
    )
    assert client.state is EpState.UNCONNECTED


@pytest.mark.parametrize(
    ("timeout_us", "subtype"), [(0, Subtype.INVALID_ARG4), (-1, Subtype.INVALID_ARG4)]
)
def test_a_connect_without_time_is_refused(
    programs: tuple[Program, Program], timeout_us: int, subtype: Subtype
) -> None:
    client, _ = programs
    ret = dat.dat_ep_connect(client.ep, "10.0.0.9", QUAL, timeout_us, 0, None, 0, 0)
    assert (ret.type, ret.subtype) == (dat.DAT_INVALID_PARAMETER, subtype)


def test_a_free_qualifier_and_a_used_one(programs: tuple[Program, Program]) -> None:
    _, server = programs
    ok = server.ok
    (requests,) = ok(dat.dat_evd_create(server.ia, 4, None, dat.DAT_EVD_CR_FLAG))
    qual, psp = ok(dat.dat_psp_create_any(server.ia, requests, dat.DAT_PSP_CONSUMER_FLAG))
    assert qual == psp.conn_qual >= 1024
    ret, other = dat.dat_psp_create(server.ia, qual, requests, dat.DAT_PSP_CONSUMER_FLAG)
    assert (ret, other) == (dat.DAT_CONN_QUAL_IN_USE, None)
    ret, other = dat.dat_psp_create(server.ia, QUAL, server.recv, dat.DAT_PSP_CONSUMER_FLAG)
    assert (ret.type, ret.subtype) == (dat.DAT_INVALID_HANDLE, Subtype.INVALID_HANDLE_EVD_CR)
    (rsp,) = ok(dat.dat_rsp_create(server.ia, QUAL, server.ep, requests))
    assert server.state.name == "RESERVED"
    (param,) = ok(dat.dat_rsp_query(rsp, dat.DAT_RSP_FIELD_ALL))
    assert (param.conn_qual, param.ep_handle) == (QUAL, server.ep)
    assert dat.dat_rsp_query(rsp, 0x10)[0] == dat.DAT_INVALID_PARAMETER
    ok(dat.dat_rsp_free(rsp))
    assert server.state is EpState.UNCONNECTED


def test_a_request_passed_to_another_service_point(programs: tuple[Program, Program]) -> None:
    client, server = programs
    ok = server.ok
    evds = [ok(dat.dat_evd_create(server.ia, 4, None, dat.DAT_EVD_CR_FLAG))[0] for _ in range(2)]
    for number, evd in enumerate(evds):
        ok(dat.dat_psp_create(server.ia, QUAL + number, evd, dat.DAT_PSP_CONSUMER_FLAG))
    address = server.ia.attr.ia_address_ptr
    ok(dat.dat_ep_connect(client.ep, address, QUAL, WAIT_US, 2, b"me", 0, 0))
    event = server.next_event(evds[0])
    assert dat.dat_cr_handoff(event.cr_handle, QUAL + 7) == dat.DAT_INVALID_PARAMETER
    ok(dat.dat_cr_handoff(event.cr_handle, QUAL + 1))
    handed = server.next_event(evds[1])
    (param,) = ok(dat.dat_cr_query(handed.cr_handle, dat.DAT_CR_FIELD_ALL))
    assert param.private_data == b"me"
    ok(dat.dat_cr_reject(handed.cr_handle))
    rejected = client.next_event(client.connection)
    assert rejected.event_number is EventNumber.CONNECTION_PEER_REJECTED


def test_shared_queues_in_thin_calls(programs: tuple[Program, Program]) -> None:
    client, server = programs
    ok = server.ok
    refused = call_of("srq_create")(server.ia, server.pz, None)
    assert refused == (dat.DAT_INVALID_PARAMETER, None)
    (srq,) = ok(dat.dat_srq_create(server.ia, server.pz, dat.SrqAttr(4)))
    ok(dat.dat_ep_free(server.ep))
    evds = (server.recv, server.request, server.connection)
    arguments = (server.ia, server.pz, *evds, srq)
    assert dat.dat_ep_create_with_srq(*arguments, None)[0] == dat.DAT_INVALID_PARAMETER
    attr = dat.EpAttr(max_recv_dtos=dat.DAT_HW_DEFAULT)
    (server.ep,) = ok(dat.dat_ep_create_with_srq(*arguments, attr))
    for number in range(3):
        ok(dat.dat_srq_post_recv(srq, 1, [server.piece(100 * number, 100)], number))
    connect(client, server)
    ok(dat.dat_ep_post_send(client.ep, 0, None, None, dat.DAT_COMPLETION_SUPPRESS_FLAG))
    assert server.next_event(server.recv).user_cookie == 0
    (param,) = ok(dat.dat_srq_query(srq, dat.DAT_SRQ_FIELD_ALL))
    assert (param.available_dto_count, param.outstanding_dto_count) == (2, 2)
    ok(dat.dat_srq_resize(srq, 2))
    assert dat.dat_srq_resize(srq, 1) == dat.DAT_INVALID_STATE
    assert dat.dat_srq_set_lw(srq, 3) == dat.DAT_INVALID_PARAMETER
    ok(dat.dat_srq_set_lw(srq, 1))
    ok(dat.dat_ep_set_watermark(server.ep, dat.DAT_WATERMARK_INFINITE, 5))
    assert dat.dat_ep_set_watermark(server.ep, -5, 5) == dat.DAT_INVALID_PARAMETER
    assert dat.dat_srq_free(srq).subtype == Subtype.INVALID_STATE_SRQ_IN_USE
    ok(dat.dat_ep_free(server.ep))
    ok(dat.dat_srq_free(srq))
