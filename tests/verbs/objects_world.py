"""Two simulated devices with one of each object: what the tests of the verbs objects share."""

from typing import Any

from urds.verbs import (
    CQ,
    MR,
    PD,
    QP,
    SRQ,
    AccessFlag,
    AHAttr,
    CompChannel,
    Context,
    GlobalRoute,
    QPAttr,
    QPCap,
    QPInitAttr,
    QPType,
    ReceiveOrder,
    RecvWR,
    SendFlag,
    SendWR,
    SrqAttr,
)
from urds.verbs.providers.sim import SimNetwork

EVERYTHING = (
    AccessFlag.LOCAL_WRITE
    | AccessFlag.REMOTE_WRITE
    | AccessFlag.REMOTE_READ
    | AccessFlag.REMOTE_ATOMIC
    | AccessFlag.MW_BIND
)
QKEY = 0x1234
BUFFER_BYTES = 4096


class Side:
    """A device with a domain, a channel, a completion queue, a region and a queue pair."""

    def __init__(
        self,
        context: Context,
        *,
        qp_type: QPType = QPType.RC,
        cqe: int = 64,
        cap: QPCap | None = None,
        srq: int = 0,
        receive_order: ReceiveOrder = ReceiveOrder.IN_ORDER,
    ) -> None:
        self.context = context
        self.channel = CompChannel(context)
        self.cq = CQ(context, cqe, channel=self.channel)
        self.pd = PD(context)
        self.buffer = bytearray(BUFFER_BYTES)
        self.mr = MR(self.pd, self.buffer, EVERYTHING)
        self.srq = SRQ(self.pd, srq_attr(srq)) if srq else None
        self.init_attr = QPInitAttr(
            qp_type=qp_type,
            scq=self.cq,
            rcq=self.cq,
            srq=self.srq,
            cap=cap or QPCap(),
            receive_order=receive_order,
        )
        self.qp = QP(self.pd, self.init_attr)

    def route(self) -> AHAttr:
        """Return the way to this side."""
        port = self.context.query_port().udp_port
        return AHAttr(gr=GlobalRoute(dgid=self.context.query_gid()), udp_port=port)

    def lead_to(self, peer: "Side") -> None:
        """Lead the queue pair to RTS towards the peer's."""
        attributes = attributes_towards(peer)
        if self.qp.qp_type is QPType.UD:
            attributes.ah_attr = None
        self.qp.to_rts(attributes)

    def receive(self, wr_id: int = 0, offset: int = 0, byte_count: int = 64) -> None:
        """Post a receive."""
        self.qp.post_recv(RecvWR(wr_id, [self.mr.sge(offset, byte_count)]))

    def send(self, data: bytes, wr_id: int = 0, flags: SendFlag = SendFlag.SIGNALED) -> None:
        """Send from the end of the buffer."""
        offset = BUFFER_BYTES - len(data)
        self.mr.write(data, offset=offset)
        self.qp.post_send(SendWR(wr_id, sg=[self.mr.sge(offset)], send_flags=flags))


class World:
    """Two sides on one network; the keywords are those of `Side`, for both."""

    def __init__(self, *, seed: int = 1, loss: float = 0.0, **keywords: Any) -> None:
        self.network = SimNetwork(seed, loss=loss)
        self.left, self.right = (
            Side(Context(adapter=self.network.adapter(name)), **keywords)
            for name in ("left", "right")
        )

    def connect(self) -> "World":
        """Lead both queue pairs to RTS."""
        self.left.lead_to(self.right)
        self.right.lead_to(self.left)
        return self


def attributes_towards(peer: Side) -> QPAttr:
    """Return all attributes that a queue pair of either kind needs on its way to RTS."""
    return QPAttr(
        qp_access_flags=EVERYTHING,
        ah_attr=peer.route(),
        dest_qp_num=peer.qp.qp_num,
        max_rd_atomic=4,
        max_dest_rd_atomic=4,
        timeout=10,
        retry_cnt=7,
        rnr_retry=7,
        qkey=QKEY,
    )


def srq_attr(max_wr: int) -> SrqAttr:
    """Return the attributes of a shared receive queue."""
    return SrqAttr(max_wr=max_wr, max_sge=2)
