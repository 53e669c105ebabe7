"""A call that is given something else says what is wanted, and what came."""

from collections.abc import Iterator
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
    SRQ,
    AHAttr,
    CMEvent,
    CMEventChannel,
    CompChannel,
    Context,
    MWBind,
    MWBindInfo,
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
