"""A call that is given something else says what is wanted, and what came."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from urds.verbs import (
    AH,
    CMID,
    CQ,
    MR,
    MW,
    PD,
    QP,
    SGE,
    SRQ,
    AHAttr,
    CMEvent,
    CMEventChannel,
    CompChannel,
    Context,
    MWBind,
    MWBindInfo,
    QPAttr,
    QPCap,
    QPInitAttr,
    RecvWR,
    SendWR,
    SrqAttr,
)
from urds.verbs.providers.sim import SimNetwork


class Things:
    """One object of each kind."""

    def __init__(self) -> None:
        self.context = Context(adapter=SimNetwork(1).adapter())
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 8)
        self.channel = CompChannel(self.context)
        self.mr = MR(self.pd, 16)
        self.mw = MW(self.pd)
        self.srq = SRQ(self.pd)
        self.qp = QP(self.pd, self.init())
        self.cmid = CMID(None, self.init(), self.pd)

    def init(self, **fields: Any) -> QPInitAttr:
        return QPInitAttr(**{"scq": self.cq, "rcq": self.cq, **fields})


@pytest.fixture
def things() -> Iterator[Any]:
    made = Things()
    yield made
    made.context.close()


CALLS: dict[str, Any] = {
    "PD(): context must be Context": lambda _, x: PD(x),
    "CompChannel(): context must be Context": lambda _, x: CompChannel(x),
    "CQ(): context must be Context": lambda _, x: CQ(x, 8),
    "CQ(): cqe must be an integer": lambda one, x: CQ(one.context, x),
    "CQ(): vector must be an integer": lambda one, x: CQ(one.context, 8, vector=x),
    "SRQ(): pd must be PD": lambda _, x: SRQ(x),
    "max_wr must be an integer": lambda one, x: SRQ(one.pd, SrqAttr(max_wr=x)),
    "QP(): pd must be PD": lambda one, x: QP(x, one.init()),
    "QP(): init_attr must be QPInitAttr": lambda one, x: QP(one.pd, x),
    "QPInitAttr(): cap must be QPCap": lambda one, x: QP(one.pd, one.init(cap=x)),
    "QPInitAttr(): receive_order must be": lambda one, x: QP(one.pd, one.init(receive_order=x)),
    "max_send_wr must be": lambda one, x: QP(one.pd, one.init(cap=QPCap(max_send_wr=x))),
    "modify(): qp_attr must be QPAttr": lambda one, x: one.qp.modify(x, 1),
    "qp_attr must be QPAttr": lambda one, x: one.qp.to_init(x),
    "modify(): attr must be SrqAttr": lambda one, x: one.srq.modify(x, 1),
    "MR(): pd must be PD": lambda _, x: MR(x, 16),
    "access must be an integer": lambda one, x: MR(one.pd, 16, x),
    "MW(): pd must be PD": lambda _, x: MW(x),
    "bind_mw(): mw must be MW": lambda one, x: one.qp.bind_mw(x, MWBind(MWBindInfo(one.mr, 0, 1))),
    "bind_mw(): mw_bind must be MWBind": lambda one, x: one.qp.bind_mw(one.mw, x),
    "MWBind(): info must be": lambda one, x: one.qp.bind_mw(one.mw, MWBind(x)),
    "MWBindInfo(): mr must be MR": lambda _, x: MWBindInfo(x, 0, 1).binding(),
    "AH(): pd must be PD": lambda _, x: AH(x, AHAttr()),
    "CMEvent(): channel must be": lambda _, x: CMEvent(x),
    "create_qp(): qp_init_attr must be": lambda one, x: one.cmid.create_qp(x),
    "mr must be MR": lambda one, x: one.cmid.post_recv(x),
    "address must be AddrInfo or a pair": lambda one, x: one.cmid.bind_addr(x),
    "what is posted must be SendWR": lambda one, x: one.qp.post_send(x),
    "what is posted must be RecvWR": lambda one, x: one.srq.post_recv(x),
    "a work request of the list must be SendWR": lambda one, x: one.qp.post_send([x]),
    "a work request of the list must be RecvWR": lambda one, x: one.qp.post_recv([x]),
}
# Where `None` stands for what is left out.
OPTIONAL: dict[str, Any] = {
    "Context(): name must be str or Device": lambda _, x: Context(x),
    "Context(): adapter must be Adapter": lambda _, x: Context(adapter=x),
    "CQ(): channel must be CompChannel": lambda one, x: setattr(one.cq, "channel", x),
    "get_cq_event(): cq must be CQ": lambda one, x: one.channel.get_cq_event(x, 0),
    "SRQ(): init_attr must be SrqAttr": lambda one, x: SRQ(one.pd, x),
    "QPInitAttr(): scq must be CQ": lambda one, x: QP(one.pd, one.init(scq=x)),
    "QPInitAttr(): srq must be SRQ": lambda one, x: QP(one.pd, one.init(srq=x)),
    "rereg(): pd must be PD": lambda one, x: one.mr.rereg(pd=x),
    "AH(): attr must be AHAttr": lambda one, x: AH(one.pd, x),
    "AH(): wc must be WC": lambda one, x: AH(one.pd, wc=x, grh=b""),
    "AHAttr(): gr must be GlobalRoute": lambda _, x: AHAttr(gr=x).vector(),
    "CMEventChannel(): context must be Context": lambda _, x: CMEventChannel(x),
    "CMID(): creator must be AddrInfo or CMEventChannel or CMEvent": lambda _, x: CMID(x),
    "CMID(): qp_init_attr must be QPInitAttr": lambda one, x: CMID(None, x, one.pd),
    "CMID(): pd must be PD": lambda _, x: CMID(pd=x),
    "CMID(): listen_id must be CMID": lambda _, x: CMID(listen_id=x),
    "CMID(): context must be Context": lambda _, x: CMID(context=x),
    "address must be AddrInfo or a pair": lambda one, x: one.cmid.resolve_addr(x),
}


@pytest.mark.parametrize("said", CALLS)
def test_none_is_no_object(things: Things, said: str) -> None:
    with pytest.raises(TypeError) as refused:
        CALLS[said](things, None)
    assert str(refused.value).startswith(said)
    assert str(refused.value).endswith(", not None")


@pytest.mark.parametrize("said", [*CALLS, *OPTIONAL])
def test_another_kind_is_named(things: Things, said: str) -> None:
    with pytest.raises(TypeError) as refused:
        {**CALLS, **OPTIONAL}[said](things, 1.5)
    assert str(refused.value).startswith(said)
    assert str(refused.value).endswith((", not float", ", not 1.5"))


def test_a_request_of_the_other_direction_is_refused(things: Things) -> None:
    """A chain as well, behind a request that is none of them."""
    with pytest.raises(TypeError, match="must be RecvWR, not SendWR"):
        things.srq.post_recv([SendWR(1)])  # type: ignore[list-item]  # on purpose
    with pytest.raises(TypeError, match="must be SendWR, not RecvWR"):
        things.qp.post_send([RecvWR(1)])  # type: ignore[list-item]  # on purpose
    with pytest.raises(TypeError, match="must be RecvWR, not int"):
        things.srq.post_recv(RecvWR(1, next_wr=5))  # type: ignore[arg-type]  # on purpose
    assert len(things.srq) == 1, "what is before it is posted"


A_PIECE: Any = SGE  # of whatever it is given
LISTS: dict[str, Any] = {
    "sg must be Sequence, not int": 5,
    "a piece of sg must be SGE, not int": [5],
    "a piece of sg must be SGE, not None": [None],
    "a piece of sg must be SGE, not str": "ab",
    "a piece of sg must be SGE, not tuple": [(1, 2, 3)],
    "SGE(): addr must be an integer, not str": [A_PIECE("a", 2, 3)],
    "SGE(): length must be an integer, not float": [A_PIECE(1, 2.5, 3)],
    "SGE(): lkey must be an integer, not None": [SGE(0, 0, 0), A_PIECE(1, 2, None)],
}


@pytest.fixture
def default() -> Iterator[Any]:
    """Make objects that belong to the engine of the plane under test."""
    with Context() as context:
        cq = CQ(context, 8)
        pd = PD(context)
        qp = QP(pd, QPInitAttr(scq=cq, rcq=cq, cap=QPCap(4, 4, 2, 2)))
        qp.to_init(QPAttr())
        yield SimpleNamespace(cq=cq, qp=qp, srq=SRQ(pd))


@pytest.mark.parametrize("said", LISTS)
@pytest.mark.parametrize("is_listed", [False, True], ids=["one", "a list"])
def test_what_is_no_piece_is_named(default: Any, said: str, is_listed: bool) -> None:
    for post, request in (
        (default.qp.post_recv, RecvWR(1, LISTS[said])),
        (default.srq.post_recv, RecvWR(1, LISTS[said])),
        (default.qp.post_send, SendWR(1, sg=LISTS[said])),
    ):
        with pytest.raises(TypeError) as refused:
            post([request] if is_listed else request)
        assert str(refused.value) == said


def test_one_request_of_the_other_direction_is_no_list(default: Any) -> None:
    with pytest.raises(TypeError, match="what is posted must be RecvWR, not SendWR"):
        default.qp.post_recv(SendWR())
    with pytest.raises(TypeError, match="what is posted must be SendWR, not RecvWR"):
        default.qp.post_send(RecvWR())


@pytest.mark.parametrize("value", [1.5, "5", None, float("nan")])
@pytest.mark.parametrize("call", ["wait_for", "poll", "ack_events"])
def test_a_count_is_an_integer(default: Any, call: str, value: Any) -> None:
    with pytest.raises(TypeError, match="integer"):
        getattr(default.cq, call)(value)
