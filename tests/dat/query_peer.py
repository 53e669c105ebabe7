"""The receiving process of a test: an endpoint on a shared receive queue that is asked by line.

Run as `python -m tests.dat.query_peer DEVICE STRATEGY BUFFERS BYTES`; prints its connection
qualifier. To each line on standard input it answers with one of JSON: `query` gives both counts and
those of the shared queue, `taken` the first bytes of the messages since the last time.
"""

import json
import sys

from urds import dat
from urds.verbs.device import find_device
from urds.verbs.engine.numbers import ReceiveOrder

WAIT_S = 30.0


def main(device: str, strategy: str, buffers: int, message_bytes: int) -> None:
    """Serve one connection until the input ends."""
    support = dat.Support(receive_order=ReceiveOrder[strategy])
    dat.register("peer", find_device(device).open_adapter, support=support)
    with dat.open("peer") as ia:
        pz = ia.create_pz()
        data = bytearray(buffers * message_bytes)
        memory = pz.register(data)
        srq = pz.create_srq(buffers)
        for number in range(buffers):
            srq.post_recv([memory.triplet(number * message_bytes, message_bytes)], number)
        ep = pz.create_ep(
            ia.create_evd(buffers, dat.EvdFlag.DTO),
            ia.create_evd(8, dat.EvdFlag.DTO),
            ia.create_evd(8, dat.EvdFlag.CONNECTION),
            dat.EpAttr(max_recv_dtos=dat.DAT_HW_DEFAULT),
            srq,
        )
        requests = ia.create_evd(1, dat.EvdFlag.CR)
        with ia.listen(evd=requests) as psp:
            print(psp.conn_qual, flush=True)
            requests.wait(WAIT_S).cr.accept(ep)
            established = ep.connect_evd.wait(WAIT_S)
        assert established.event_number is dat.EventNumber.CONNECTION_ESTABLISHED
        for line in sys.stdin:
            if line == "query\n":
                ret, count, span = dat.dat_ep_recv_query(ep)
                _, param = dat.dat_srq_query(srq, dat.SrqField.ALL)
                answer = [int(ret), count, span, param.available_dto_count]
            else:
                events = [ep.recv_evd.dequeue() for _ in range(len(ep.recv_evd))]
                assert all(event.status is dat.DtoStatus.SUCCESS for event in events), events
                answer = [data[event.user_cookie * message_bytes] for event in events]
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
