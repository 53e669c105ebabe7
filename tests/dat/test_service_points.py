"""Service points, requests that name an endpoint. Source: docs/reference/dat.md 4.3, 8, 9."""

import errno

import pytest

from tests.dat.scene import MESSAGE_BYTES, SECOND_NS, WAIT_S, End, Scene
from urds import dat

State = dat.EpState
Number = dat.EventNumber
QUAL = 4000


def ask(scene: Scene, end: End | None = None) -> None:
    """Let A, or another, ask B for a connection."""
    (end or scene.a).ep.connect(scene.b.ia.address, QUAL, timeout_s=WAIT_S)


def reserved(scene: Scene) -> dat.ReservedServicePoint:
    """Let B listen once, for its endpoint."""
    ret, rsp = dat.dat_rsp_create(scene.b.ia, QUAL, scene.b.ep, scene.b.requests)
    assert ret == dat.DAT_SUCCESS
    assert rsp is not None and scene.b.ep.state is State.RESERVED
    return rsp


def test_a_reserved_service_point_ends_with_its_first_request() -> None:
    with Scene(connected=False) as scene:
        rsp = reserved(scene)
        ask(scene)
        event = scene.b.requests.wait(WAIT_S)
        assert (event.sp_handle, event.conn_qual) == (None, QUAL)
        assert event.cr.query().local_ep_handle is scene.b.ep
        assert scene.b.ep.state is State.PASSIVE_CONNECTION_PENDING
        assert dat.dat_rsp_free(rsp).type == dat.DAT_INVALID_HANDLE
        ret = dat.dat_cr_accept(event.cr, scene.b.ep, 0, None)
        assert (ret.type, ret.subtype) == (dat.DAT_INVALID_HANDLE, dat.Subtype.INVALID_HANDLE_EP)
        assert scene.b.ep.state is State.PASSIVE_CONNECTION_PENDING
        assert dat.dat_cr_accept(event.cr, None, 3, b"yes") == dat.DAT_SUCCESS
        assert scene.a.connection.wait(WAIT_S).private_data == b"yes"
        scene.wait_for_state(State.CONNECTED)
        late = End(scene.network, name="late")
        ask(scene, late)
        assert late.connection.wait(WAIT_S).event_number is Number.CONNECTION_NON_PEER_REJECTED


@pytest.mark.parametrize("how", ["rejected", "freed", "no room"])
def test_without_a_connection_the_endpoint_is_free_again(how: str) -> None:
    with Scene(connected=False) as scene:
        if how == "no room":
            flags = dat.EvdFlag.CR | dat.EvdFlag.SOFTWARE
            scene.b.requests = scene.b.ia.create_evd(1, flags)
            scene.b.requests.post("in the way")
        rsp = reserved(scene)
        if how == "freed":
            assert dat.dat_rsp_free(rsp) == dat.DAT_SUCCESS
        ask(scene)
        if how == "rejected":
            scene.b.requests.wait(WAIT_S).cr.reject()
        scene.wait_for_state(State.DISCONNECTED, scene.a)
        (number,) = scene.a.connection_events()
        rejected = Number.CONNECTION_PEER_REJECTED
        refused = Number.CONNECTION_NON_PEER_REJECTED
        assert number is (rejected if how == "rejected" else refused)
        assert scene.b.ep.state is State.UNCONNECTED
        assert not rsp.live
        reserved(scene).free()
        scene.b.ep.free()


def test_a_request_that_finds_no_room_is_refused() -> None:
    with Scene(connected=False) as scene:
        full = scene.b.ia.create_evd(1, dat.EvdFlag.CR | dat.EvdFlag.SOFTWARE)
        full.post("in the way")
        scene.b.ia.listen(QUAL, evd=full)
        ask(scene)
        assert scene.a.connection.wait(WAIT_S).event_number is Number.CONNECTION_NON_PEER_REJECTED


def test_a_used_qualifier_leaves_endpoint_and_dispatcher_alone() -> None:
    with Scene(connected=False) as scene, scene.b.ia.listen(QUAL, evd=scene.b.requests):
        evd = scene.b.ia.create_evd(4, dat.EvdFlag.CR)
        ret, rsp = dat.dat_rsp_create(scene.b.ia, QUAL, scene.b.ep, evd)
        assert (ret.type, rsp) == (dat.DAT_CONN_QUAL_IN_USE, None)
        ret, psp = dat.dat_psp_create(scene.b.ia, QUAL, evd, dat.DAT_PSP_CONSUMER_FLAG)
        assert (ret.type, psp) == (dat.DAT_CONN_QUAL_IN_USE, None)
        evd.free()
        ret, rsp = dat.dat_rsp_create(scene.b.ia, QUAL, scene.b.ep, scene.b.requests)
        assert (ret.type, rsp) == (dat.DAT_CONN_QUAL_IN_USE, None)
        assert scene.b.ep.state is State.UNCONNECTED
        ret, rsp = dat.dat_rsp_create(scene.b.ia, QUAL + 1, scene.b.ep, scene.b.recv)
        assert (ret.type, ret.subtype) == (
            dat.DAT_INVALID_HANDLE,
            dat.Subtype.INVALID_HANDLE_EVD_CR,
        )
        assert scene.b.ep.state is State.UNCONNECTED
        scene.b.ep.free()


def test_an_endpoint_that_the_provider_made() -> None:
    """It has no zone and no dispatchers until the consumer gives it some."""
    with Scene(connected=False) as scene:
        end = scene.b
        ret, psp = dat.dat_psp_create(end.ia, QUAL, end.requests, dat.PspFlag.PROVIDER)
        assert ret == dat.DAT_SUCCESS
        ask(scene)
        event = end.requests.wait(WAIT_S)
        assert event.sp_handle is psp
        ep = event.cr.query().local_ep_handle
        assert ep.query().pz_handle is ep.query().recv_evd_handle is None
        assert dat.dat_cr_accept(event.cr, None, 0, None).type == dat.DAT_INVALID_HANDLE
        assert ep.state is State.TENTATIVE_CONNECTION_PENDING
        ep.modify(
            pz_handle=end.pz,
            recv_evd_handle=end.recv,
            connect_evd_handle=end.connection,
            max_recv_dtos=4,
        )
        ep.post_recv(end.piece(), "first")
        assert dat.dat_cr_accept(event.cr, None, 0, None) == dat.DAT_SUCCESS
        scene.wait_for_state(State.CONNECTED, scene.a)
        scene.a.send(MESSAGE_BYTES)
        received = end.recv.wait(WAIT_S)
        assert (received.ep, received.user_cookie) == (ep, "first")


def test_rejected_it_goes_back_to_the_provider() -> None:
    with Scene(connected=False) as scene:
        scene.b.ia.listen(QUAL, evd=scene.b.requests, provider_ep=True)
        ask(scene)
        cr = scene.b.requests.wait(WAIT_S).cr
        ep = cr.query().local_ep_handle
        cr.reject()
        assert dat.dat_ep_query(ep, 0)[0].type == dat.DAT_INVALID_HANDLE


def test_requests_that_are_queued_outlive_their_service_point() -> None:
    with Scene(connected=False) as scene:
        psp = scene.b.ia.listen(QUAL, evd=scene.b.requests)
        ask(scene)
        scene.settle(lambda: len(scene.b.requests) == 1)
        psp.free()
        with scene.b.ia.listen(QUAL, evd=scene.b.requests):  # the qualifier is free at once
            scene.b.requests.dequeue().cr.accept(scene.b.ep)
            scene.wait_for_state(State.CONNECTED)


def test_a_request_needs_an_unconnected_endpoint_with_all_it_takes() -> None:
    with Scene() as scene:
        other, end = End(scene.network, name="a2"), scene.b
        foreign = End(scene.network, name="a3").ep
        attr = dat.EpAttr(max_recv_dtos=0, max_request_dtos=0)
        bare = end.pz.create_ep(None, None, None, attr)
        with end.ia.listen(QUAL, evd=end.requests):
            ask(scene, other)
            cr = end.requests.wait(WAIT_S).cr
        limit = end.ia.provider_attr.max_private_data_size
        for wrong in (None, end.ep, bare, other.ep, foreign, end.recv):
            ret = dat.dat_cr_accept(cr, wrong, 0, None)
            assert (ret.type, ret.subtype) == (
                dat.DAT_INVALID_HANDLE,
                dat.Subtype.INVALID_HANDLE_EP,
            ), wrong
        good = end.pz.create_ep(None, None, end.connection, attr)
        ret = dat.dat_cr_accept(cr, good, limit + 1, bytes(limit + 1))
        assert ret.type == dat.DAT_INVALID_PARAMETER
        assert (bare.state, good.state, end.ep.state) == (
            State.UNCONNECTED,
            State.UNCONNECTED,
            State.CONNECTED,
        )
        assert dat.dat_cr_accept(cr, good, 0, None) == dat.DAT_SUCCESS
        scene.settle(lambda: good.state is State.CONNECTED)
        assert dat.dat_cr_query(cr, 0)[0].type == dat.DAT_INVALID_HANDLE


def test_an_accept_that_fails_below_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same request is accepted when the device can again."""
    with Scene(connected=False) as scene:
        scene.b.ia.listen(QUAL, evd=scene.b.requests)
        ask(scene)
        cr, before = scene.b.requests.wait(WAIT_S).cr, scene.b.ep.query()

        def refuse(*_: object) -> None:
            raise OSError(errno.ENOMEM, "no room")

        with monkeypatch.context() as context:
            context.setattr(scene.b.ep.connection, "accept", refuse)
            ret = dat.dat_cr_accept(cr, scene.b.ep, 0, None)
        assert ret.type == dat.DAT_INSUFFICIENT_RESOURCES
        assert scene.b.ep.query() == before
        assert dat.dat_cr_accept(cr, scene.b.ep, 0, None) == dat.DAT_SUCCESS
        scene.wait_for_state(State.CONNECTED)


def test_a_request_that_cannot_be_passed_on_still_learns_that_its_peer_is_gone() -> None:
    with Scene(connected=False) as scene:
        full = scene.b.ia.create_evd(1, dat.EvdFlag.CR | dat.EvdFlag.SOFTWARE)
        full.post("in the way")
        scene.b.ia.listen(QUAL, evd=scene.b.requests)
        scene.b.ia.listen(QUAL + 1, evd=full)
        ask(scene)
        cr = scene.b.requests.wait(WAIT_S).cr
        assert dat.dat_cr_handoff(cr, QUAL + 1).type == dat.DAT_INVALID_PARAMETER
        scene.a.ep.disconnect()
        scene.run(SECOND_NS)
        cr.accept(scene.b.ep)
        scene.run()
        assert scene.b.connection_events() == [Number.CONNECTION_ACCEPT_COMPLETION_ERROR]


def test_requests_without_an_answer_end_with_the_adapter() -> None:
    with Scene(connected=False) as scene:
        scene.b.ia.listen(QUAL, evd=scene.b.requests)
        ask(scene)
        scene.settle(lambda: len(scene.b.requests) == 1)
        scene.b.ia.close()
        scene.network.run(60 * SECOND_NS)
        assert scene.a.connection_events() == [Number.CONNECTION_NON_PEER_REJECTED]
