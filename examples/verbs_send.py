"""Send a message and write into a peer's memory with verbs, on two simulated devices.

The same program runs over `Context("udp0")` and its relatives: only the two contexts differ. It
moves each queue pair to RTS itself; between hosts the connection manager does that.
"""

from urds.verbs import (
    CQ,
    MR,
    PD,
    QP,
    AccessFlag,
    AHAttr,
    Context,
    GlobalRoute,
    QPAttr,
    QPInitAttr,
    RecvWR,
    SendWR,
    WCStatus,
    WROpcode,
)
from urds.verbs.providers.sim import SimNetwork


class Side:
    """One device with what a message needs: a queue pair, a completion queue, memory."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.cq = CQ(context, 16)
        self.pd = PD(context)
        self.buffer = bytearray(64)
        self.mr = MR(self.pd, self.buffer, AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_WRITE)
        self.qp = QP(self.pd, QPInitAttr(scq=self.cq, rcq=self.cq))

    def connect(self, peer: "Side") -> None:
        """Move the queue pair to RTS towards the peer's."""
        route = GlobalRoute(dgid=peer.context.query_gid())
        udp_port = peer.context.query_port().udp_port  # not 0 where openings share a GID
        attributes = QPAttr(
            qp_access_flags=AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_WRITE,
            ah_attr=AHAttr(gr=route, udp_port=udp_port),
            dest_qp_num=peer.qp.qp_num,
            retry_cnt=7,
            rnr_retry=7,
            timeout=14,
        )
        self.qp.to_rts(attributes)


def main() -> None:
    """Run both sides in this process; five packets of a hundred are lost on the way."""
    network = SimNetwork(seed=1, loss=0.05)
    with (
        Context(adapter=network.adapter("left")) as left_context,
        Context(adapter=network.adapter("right")) as right_context,
    ):
        left, right = Side(left_context), Side(right_context)
        left.connect(right)
        right.connect(left)

        right.qp.post_recv(RecvWR(wr_id=1, sg=[right.mr.sge()]))
        left.mr.write(b"hello, verbs")
        left.qp.post_send(SendWR(wr_id=2, sg=[left.mr.sge(0, 12)]))
        [received] = right.cq.wait_for()
        assert received.status is WCStatus.SUCCESS
        print(f"received {received.byte_len} bytes: {right.mr.read(received.byte_len).decode()}")

        write = SendWR(wr_id=3, opcode=WROpcode.RDMA_WRITE, sg=[left.mr.sge(0, 5)])
        write.set_wr_rdma(right.mr.rkey, right.mr.buf + 32)
        left.qp.post_send(write)
        for completion in left.cq.wait_for(2):
            print(
                f"completed {completion.wr_id}: {completion.opcode.name} {completion.status.name}"
            )
        print(f"written into the peer's bytearray: {bytes(right.buffer[32:37]).decode()}")


if __name__ == "__main__":
    main()
