"""A peer process that is killed: one event, all is flushed, and the endpoint is usable again."""

import pytest

from tests.dat.query_process import HOST, WAIT_S, Peer, peer_process, sending_endpoint
from urds import dat

ENDS = {dat.EventNumber.CONNECTION_BROKEN, dat.EventNumber.CONNECTION_DISCONNECTED}
FAILURES = {
    dat.DtoStatus.ERR_FLUSHED,
    dat.DtoStatus.ERR_TRANSPORT,
    dat.DtoStatus.ERR_RECEIVER_NOT_READY,
}


def connect(ep: dat.Endpoint, peer: Peer) -> None:
    ep.connect(HOST, peer.conn_qual, timeout_s=WAIT_S)
    event = ep.connect_evd.wait(WAIT_S)
    assert event.event_number is dat.EventNumber.CONNECTION_ESTABLISHED


@pytest.mark.parametrize("device", ["shm0", "udp0", "tcp0"])
@pytest.mark.parametrize("sent", [0, 6])
def test_a_killed_peer_breaks_the_connection_once(device: str, sent: int) -> None:
    """With nothing under way, and with messages for which the peer has no buffer."""
    with dat.open(device) as ia:
        ep, memory, _ = sending_endpoint(ia, 4096)
        with peer_process(device, "IN_ORDER", 2, 1024) as peer:
            connect(ep, peer)
            for number in range(4):
                ep.post_recv([memory.triplet(0, 64)], number)
            for number in range(sent):
                ep.post_send([memory.triplet(0, 64)], number)
            for _ in range(min(sent, 2)):
                assert ep.request_evd.wait(WAIT_S).status is dat.DtoStatus.SUCCESS
            peer.kill()
            assert ep.connect_evd.wait(WAIT_S).event_number in ENDS
        assert ep.state is dat.EpState.DISCONNECTED
        assert tuple(ep.recv_query()) == (0, 0)
        received = [ep.recv_evd.dequeue() for _ in range(4)]
        assert [event.status for event in received] == [dat.DtoStatus.ERR_FLUSHED] * 4
        assert {event.status for event in ep.request_evd} <= FAILURES
        assert ep.get_status().request_idle
        ep.reset()
        with peer_process(device, "IN_ORDER", 2, 1024) as peer:
            connect(ep, peer)
            ep.post_send([memory.triplet(0, 64)])
            assert ep.request_evd.wait(WAIT_S).status is dat.DtoStatus.SUCCESS
            assert peer.ask("query") == [0, 0, 0, 1]
        assert len(ep.connect_evd) <= 1
