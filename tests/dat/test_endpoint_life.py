"""Life of endpoints: which call is allowed in which state, how connections begin and end.

Source: docs/reference/dat.md 4.2-4.4, 9, 10.
"""

from collections.abc import Callable

import pytest

from tests.dat.scene import (
    SECOND_NS,
    THRESHOLD,
    WAIT_S,
    End,
    Scene,
    connect,
    connect_endpoints,
    drain,
)
from tests.dat.test_cases_calls import REACHABLE
from urds import dat
from urds.dat.ep_state import TRANSITIONS, Input, next_state

State = dat.EpState
Number = dat.EventNumber
QUAL = 4000

SUBTYPE_OF = {
    State.UNCONNECTED: dat.Subtype.INVALID_STATE_EP_UNCONNECTED,
    State.RESERVED: dat.Subtype.INVALID_STATE_EP_RESERVED,
    State.PASSIVE_CONNECTION_PENDING: dat.Subtype.INVALID_STATE_EP_PASSCONNPENDING,
    State.TENTATIVE_CONNECTION_PENDING: dat.Subtype.INVALID_STATE_EP_TENTCONNPENDING,
    State.ACTIVE_CONNECTION_PENDING: dat.Subtype.INVALID_STATE_EP_ACTCONNPENDING,
    State.COMPLETION_PENDING: dat.Subtype.INVALID_STATE_EP_COMPLPENDING,
    State.CONNECTED: dat.Subtype.INVALID_STATE_EP_CONNECTED,
    State.DISCONNECT_PENDING: dat.Subtype.INVALID_STATE_EP_DISCPENDING,
    State.DISCONNECTED: dat.Subtype.INVALID_STATE_EP_DISCONNECTED,
}
assert SUBTYPE_OF.keys() == REACHABLE.keys()
UNDECIDED = {
    State.RESERVED,
    State.PASSIVE_CONNECTION_PENDING,
    State.TENTATIVE_CONNECTION_PENDING,
}


def refused(ret: dat.DatReturn, state: State) -> bool:
    """Tell whether a call was refused with the name of the state; fail if for another reason."""
    if ret == dat.DAT_SUCCESS:
        return False
    assert (ret.type, ret.subtype) == (dat.DAT_INVALID_STATE, SUBTYPE_OF[state]), ret
    return True


Call = Callable[[Scene, dat.Endpoint], dat.DatReturn]


def piece_of(scene: Scene, ep: dat.Endpoint) -> list[dat.LmrTriplet]:
    """Return memory in the zone of an endpoint."""
    return (scene.a if ep.ia is scene.a.ia else scene.b).piece()


def remote_of(scene: Scene, ep: dat.Endpoint) -> dat.RmrTriplet:
    return (scene.b if ep.ia is scene.a.ia else scene.a).remote()


CALLS: dict[str, tuple[Call, set[State]]] = {
    "connect": (
        lambda scene, ep: dat.dat_ep_connect(
            ep, scene.a.ia.address, 1, 1_000_000, 0, None, dat.Qos.BEST_EFFORT, 0
        ),
        {State.UNCONNECTED},
    ),
    "disconnect": (
        lambda _scene, ep: dat.dat_ep_disconnect(ep, dat.CloseFlag.ABRUPT),
        REACHABLE.keys() - UNDECIDED - {State.UNCONNECTED},
    ),
    "disconnect gracefully": (
        lambda _scene, ep: dat.dat_ep_disconnect(ep, dat.CloseFlag.GRACEFUL),
        REACHABLE.keys() - UNDECIDED - {State.UNCONNECTED},
    ),
    "reset": (lambda _scene, ep: dat.dat_ep_reset(ep), {State.UNCONNECTED, State.DISCONNECTED}),
    "free": (lambda _scene, ep: dat.dat_ep_free(ep), REACHABLE.keys() - UNDECIDED),
    "post_recv": (
        lambda scene, ep: dat.dat_ep_post_recv(ep, 1, piece_of(scene, ep), 0, 0),
        REACHABLE.keys() - {State.TENTATIVE_CONNECTION_PENDING},
    ),
    "post_send": (
        lambda scene, ep: dat.dat_ep_post_send(ep, 1, piece_of(scene, ep), 0, 0),
        {State.CONNECTED, State.DISCONNECTED},
    ),
    "post_rdma_write": (
        lambda scene, ep: dat.dat_ep_post_rdma_write(
            ep, 1, piece_of(scene, ep), 0, remote_of(scene, ep), 0
        ),
        {State.CONNECTED, State.DISCONNECTED},
    ),
    "post_rdma_read": (
        lambda scene, ep: dat.dat_ep_post_rdma_read(
            ep, 1, piece_of(scene, ep), 0, remote_of(scene, ep), 0
        ),
        {State.CONNECTED, State.DISCONNECTED},
    ),
    "modify": (
        lambda _scene, ep: dat.dat_ep_modify(
            ep, dat.EpField.EP_ATTR_MAX_RDMA_READ_IN, dat.EpParam(ep_attr=dat.EpAttr())
        ),
        UNDECIDED | {State.UNCONNECTED},
    ),
    "reserve": (
        lambda _scene, ep: dat.dat_rsp_create(ep.ia, 77, ep, ep.ia.create_evd(1, 0x10))[0],
        {State.UNCONNECTED},
    ),
    "set_watermark": (lambda _scene, ep: dat.dat_ep_set_watermark(ep, 9, 9), set(REACHABLE)),
    "query": (lambda _scene, ep: dat.dat_ep_query(ep, dat.EpField.ALL)[0], set(REACHABLE)),
    "get_status": (lambda _scene, ep: dat.dat_ep_get_status(ep)[0], set(REACHABLE)),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("state", REACHABLE)
def test_each_call_in_each_state(state: State, call: str) -> None:
    function, allowed = CALLS[call]
    with Scene(connected=False) as scene:
        ep = REACHABLE[state](scene)
        assert ep.state is state
        if call == "post_recv" and state is State.TENTATIVE_CONNECTION_PENDING:
            ret = function(scene, ep)  # it has no zone yet
            assert ret.subtype == dat.Subtype.INVALID_STATE_EP_NOTREADY
        elif call == "modify" and state is State.TENTATIVE_CONNECTION_PENDING:
            assert ep.query().ep_attr.max_recv_dtos == 0
        else:
            assert refused(function(scene, ep), state) == (state not in allowed)
        if state not in allowed and state is not State.ACTIVE_CONNECTION_PENDING:
            assert ep.live and ep.state is state
        scene.network.run(SECOND_NS)  # and whatever follows raises nothing


def test_the_table_has_no_state_without_a_way_out() -> None:
    ways = {state for state, _ in TRANSITIONS}
    assert ways == set(REACHABLE)
    with pytest.raises(dat.DatInvalidState):
        next_state(State.CONNECTED, Input.CONNECT)


# -- how an attempt ends


def ask(scene: Scene, qual: int = QUAL, timeout_s: float | None = 60.0) -> None:
    """Let A ask B for a connection."""
    scene.a.ep.connect(scene.b.ia.address, qual, timeout_s=timeout_s, private_data=b"hello")


def outcome(end: End, wait_s: float = 100.0) -> Number:
    """Return the one event that tells how it went, and fail if there is another."""
    event = end.connection.wait(wait_s)
    end.ia.adapter.wait(lambda: False, 20 * SECOND_NS)
    assert end.connection_events() == []
    return event.event_number


def test_no_listener() -> None:
    with Scene(connected=False) as scene:
        scene.a.post(2)
        ask(scene)
        assert outcome(scene.a) is Number.CONNECTION_NON_PEER_REJECTED
        assert scene.a.ep.state is State.DISCONNECTED
        assert [event.status for event in scene.a.taken()] == [dat.DtoStatus.ERR_FLUSHED] * 2


def test_the_consumer_rejects() -> None:
    with Scene(connected=False) as scene:
        scene.b.ia.listen(QUAL, evd=scene.b.requests)
        ask(scene)
        cr = scene.b.requests.wait(WAIT_S).cr
        assert cr.query().private_data == b"hello"
        assert dat.dat_cr_reject(cr) == dat.DAT_SUCCESS
        assert dat.dat_cr_reject(cr).type == dat.DAT_INVALID_HANDLE
        assert outcome(scene.a) is Number.CONNECTION_PEER_REJECTED
        assert scene.b.connection_events() == []


def test_a_full_backlog_rejects() -> None:
    with Scene(connected=False) as scene:
        scene.b.ia.listen(QUAL, evd=scene.b.ia.create_evd(1, dat.EvdFlag.CR))
        other = End(scene.network, name="a2")
        other.ep.connect(scene.b.ia.address, QUAL, timeout_s=60)
        scene.run(200_000)
        ask(scene)
        assert outcome(scene.a) is Number.CONNECTION_NON_PEER_REJECTED
        assert other.ep.state is State.ACTIVE_CONNECTION_PENDING


@pytest.mark.parametrize(
    ("timeout_s", "number"),
    [(0.5, Number.CONNECTION_TIMED_OUT), (None, Number.CONNECTION_UNREACHABLE)],
)
def test_no_answer(timeout_s: float | None, number: Number) -> None:
    with Scene(connected=False) as scene:
        scene.network.cut(scene.a.adapter, scene.b.adapter)
        ask(scene, timeout_s=timeout_s)
        assert outcome(scene.a) is number
        assert scene.a.ep.state is State.DISCONNECTED


def test_a_request_that_is_never_answered_times_out_and_the_late_accept_fails() -> None:
    with Scene(connected=False) as scene:
        scene.b.ia.listen(QUAL, evd=scene.b.requests)
        ask(scene, timeout_s=0.5)
        assert outcome(scene.a) is Number.CONNECTION_TIMED_OUT
        cr = scene.b.requests.wait(WAIT_S).cr
        scene.b.post(2)
        assert dat.dat_cr_accept(cr, scene.b.ep, 0, None) == dat.DAT_SUCCESS
        assert outcome(scene.b) is Number.CONNECTION_ACCEPT_COMPLETION_ERROR
        assert scene.b.ep.state is State.DISCONNECTED
        assert [event.status for event in scene.b.taken()] == [dat.DtoStatus.ERR_FLUSHED] * 2


@pytest.mark.parametrize("graceful", [False, True])
def test_an_attempt_is_given_up(graceful: bool) -> None:
    with Scene(connected=False) as scene:
        scene.b.ia.listen(QUAL, evd=scene.b.requests)
        scene.a.post(1)
        ask(scene)
        scene.run(200_000)
        scene.a.ep.disconnect(graceful=graceful)
        assert outcome(scene.a) is Number.CONNECTION_DISCONNECTED
        assert len(scene.a.taken()) == 1


@pytest.mark.parametrize("killer", ["asker", "asked"])
def test_a_peer_killed_between_accept_and_establishment(killer: str) -> None:
    with Scene(connected=False) as scene:
        scene.b.ia.listen(QUAL, evd=scene.b.requests)
        ask(scene)
        cr = scene.b.requests.wait(WAIT_S).cr
        scene.network.kill((scene.a if killer == "asker" else scene.b).adapter)
        if killer == "asker":
            cr.accept(scene.b.ep)
            assert outcome(scene.b) is Number.CONNECTION_ACCEPT_COMPLETION_ERROR
        else:
            assert outcome(scene.a) in (
                Number.CONNECTION_TIMED_OUT,
                Number.CONNECTION_UNREACHABLE,
            )


def test_what_can_be_told_at_once() -> None:
    with Scene(connected=False) as scene:
        ep, address = scene.a.ep, scene.b.ia.address
        limit = scene.a.ia.provider_attr.max_private_data_size

        def ret(*arguments: object) -> tuple[int, int]:
            found = dat.dat_ep_connect(ep, *arguments)
            return found.type, found.subtype

        wrong, arg = dat.DAT_INVALID_PARAMETER, dat.Subtype
        assert ret(address, 1, 0, 0, None, 0, 0) == (wrong, arg.INVALID_ARG4)
        assert ret(address, 1, 9, limit + 1, bytes(limit + 1), 0, 0) == (wrong, arg.INVALID_ARG5)
        assert ret(address, 1, 9, 5, None, 0, 0) == (wrong, arg.INVALID_ARG5)
        assert ret(address, 1, 9, 0, None, dat.Qos.PREMIUM, 0)[0] == dat.DAT_MODEL_NOT_SUPPORTED
        assert ret(address, 1, 9, 0, None, 0, 1)[0] == dat.DAT_MODEL_NOT_SUPPORTED
        assert ret("no address", 1, 9, 0, None, 0, 0)[0] == dat.DAT_INVALID_ADDRESS
        assert ret("224.0.0.1", 1, 9, 0, None, 0, 0)[0] == dat.DAT_INVALID_ADDRESS
        bare = scene.a.pz.create_ep(
            None, None, None, dat.EpAttr(max_recv_dtos=0, max_request_dtos=0)
        )
        found = dat.dat_ep_connect(bare, address, 1, 9, 0, None, 0, 0)
        assert (found.type, found.subtype) == (
            dat.DAT_INVALID_HANDLE,
            arg.INVALID_HANDLE_EVD_CONN,
        )
        assert ep.state is State.UNCONNECTED


# -- how a connection ends


@pytest.mark.rows("sim")
@pytest.mark.parametrize("lossy", [False, True])
def test_connect_disconnect_and_again_at_once(lossy: bool) -> None:
    """Without a pause: what is left of the old connection does not touch the new one."""
    with Scene(connected=False) as scene:
        if lossy:
            scene.network.profile = type(scene.network.profile)(loss=0.2, reorder=0.2)
        for round_number in range(5):
            connect(scene.network, scene.a, scene.b)
            scene.b.post(1)
            scene.a.send(8, round_number)
            assert scene.b.recv.wait(WAIT_S).status is dat.DtoStatus.SUCCESS
            assert scene.a.request.wait(WAIT_S).status is dat.DtoStatus.SUCCESS
            ending, other = (scene.a, scene.b) if round_number % 2 else (scene.b, scene.a)
            ending.ep.disconnect()
            assert ending.connection_events() == [Number.CONNECTION_DISCONNECTED]
            ending.ep.reset()
            scene.wait_for_state(State.DISCONNECTED, other)
            assert other.connection_events() == [Number.CONNECTION_DISCONNECTED]
            other.ep.reset()


def test_a_reset_endpoint_asks_again_before_the_peer_knows_of_the_end() -> None:
    with Scene() as scene:
        third = End(scene.network, name="c")
        scene.a.ep.disconnect()
        drain(scene.a.connection)
        scene.a.ep.reset()
        connect(scene.network, scene.a, third)
        scene.wait_for_state(State.DISCONNECTED, scene.b)
        scene.network.run(30 * SECOND_NS)
        assert (scene.a.ep.state, third.ep.state) == (State.CONNECTED, State.CONNECTED)
        assert scene.b.connection_events() == [Number.CONNECTION_DISCONNECTED]
        assert scene.a.connection_events() == []


def test_gracefully_the_requests_end_first() -> None:
    with Scene() as scene:
        scene.b.post(8)
        for number in range(8):
            scene.a.send(cookie=number)
        scene.a.ep.disconnect(graceful=True)
        assert scene.a.ep.state is State.DISCONNECT_PENDING
        scene.a.ep.disconnect(graceful=True)
        scene.wait_for_state(State.DISCONNECTED)
        assert [event.status for event in drain(scene.a.request)] == [dat.DtoStatus.SUCCESS] * 8
        assert [event.status for event in scene.b.taken()] == [dat.DtoStatus.SUCCESS] * 8
        assert scene.a.connection_events() == [Number.CONNECTION_DISCONNECTED]


def test_one_dispatcher_has_the_end_after_all_transfers() -> None:
    """Sends end, the posted receives are flushed, then comes the event of the connection."""
    with Scene(connected=False) as scene:
        end = scene.a
        flags = dat.EvdFlag.DTO | dat.EvdFlag.CONNECTION | dat.EvdFlag.RMR_BIND
        evd = end.ia.create_evd(16, flags)
        attr = dat.EpAttr(recv_completion_flags=THRESHOLD, request_completion_flags=THRESHOLD)
        ep = end.pz.create_ep(evd, evd, evd, attr)
        scene.b.post(4)
        connect_endpoints(ep, scene.b.ep, scene.b.requests)
        for number in range(2):
            ep.post_recv(end.piece(number), f"receive {number}")
        for number in range(2):
            ep.post_send(end.piece(number), f"send {number}")
        ep.disconnect(graceful=True)
        scene.network.run_until(lambda: ep.state is State.DISCONNECTED, SECOND_NS)
        *transfers, last = drain(evd)
        assert [event.user_cookie for event in transfers] == [
            "send 0", "send 1", "receive 0", "receive 1",
        ]  # fmt: skip
        assert last.event_number is Number.CONNECTION_DISCONNECTED


def test_abruptly_they_are_flushed() -> None:
    with Scene() as scene:
        scene.b.post(8)
        scene.gate(8)
        scene.a.ep.disconnect(graceful=True)
        scene.a.ep.disconnect()
        assert scene.a.ep.state is State.DISCONNECTED
        assert [event.status for event in drain(scene.a.request)] == [dat.DtoStatus.ERR_FLUSHED] * 8
        assert scene.a.connection_events() == [Number.CONNECTION_DISCONNECTED]


def test_a_peer_killed_while_it_drains_breaks_the_connection() -> None:
    with Scene() as scene:
        scene.a.send()  # to an endpoint without a receive
        scene.network.kill(scene.b.adapter)
        scene.a.ep.disconnect(graceful=True)
        assert scene.a.ep.state is State.DISCONNECT_PENDING
        scene.wait_for_state(State.DISCONNECTED, scene.a)
        (event,) = drain(scene.a.request)
        assert event.status is not dat.DtoStatus.SUCCESS
        assert len(scene.a.connection_events()) == 1


def test_events_of_transfers_come_before_the_end() -> None:
    """With one dispatcher for both, on either side, whichever side ends it."""
    for ending in (0, 1):
        with Scene(connected=False) as scene:
            evds = []
            for end in (scene.a, scene.b):
                both = end.ia.create_evd(64, dat.EvdFlag.DTO | dat.EvdFlag.CONNECTION)
                end.ep.modify(recv_evd_handle=both, connect_evd_handle=both)
                end.connection = both
                end.post(3)
                evds.append(both)
            connect(scene.network, scene.a, scene.b)
            (scene.a, scene.b)[ending].ep.disconnect()
            scene.wait_for_state(State.DISCONNECTED)
            for evd in evds:
                numbers = [event.event_number for event in drain(evd)]
                assert numbers == [Number.DTO_COMPLETION] * 3 + [Number.CONNECTION_DISCONNECTED]


def test_a_lost_event_of_establishment_breaks_the_connection() -> None:
    with Scene(connected=False) as scene:
        small = scene.a.ia.create_evd(1, dat.EvdFlag.CONNECTION | dat.EvdFlag.SOFTWARE)
        scene.a.ep.modify(connect_evd_handle=small)
        small.post("in the way")
        scene.b.ia.listen(QUAL, evd=scene.b.requests)
        ask(scene)
        scene.b.requests.wait(WAIT_S).cr.accept(scene.b.ep)
        scene.wait_for_state(State.DISCONNECTED)
        assert scene.a.async_events() == [(Number.ASYNC_EVD_OVERFLOW, small, 0)]
        assert scene.b.connection_events()[0] is Number.CONNECTION_ESTABLISHED


@pytest.mark.parametrize("state", REACHABLE.keys() - UNDECIDED)
def test_freed_in_any_state_it_leaves_nothing_behind(state: State) -> None:
    with Scene(connected=False) as scene:
        ep = REACHABLE[state](scene)
        end = scene.a if ep is scene.a.ep else scene.b
        ep.free()
        scene.network.run(30 * SECOND_NS)
        for evd in (end.recv, end.request, end.connection):
            evd.free()
        end.memory.free()
        end.pz.free()
        other = scene.b if end is scene.a else scene.a
        assert other.ep.state in (State.DISCONNECTED, State.UNCONNECTED)


@pytest.mark.parametrize("state", REACHABLE)
def test_closed_in_any_state_the_peer_learns_of_it(state: State) -> None:
    with Scene(connected=False) as scene:
        ep = REACHABLE[state](scene)
        end = scene.a if ep.ia is scene.a.ia else scene.b
        other = scene.b if end is scene.a else scene.a
        end.ia.close()
        scene.network.run(60 * SECOND_NS)
        assert len(other.connection_events()) <= 2
        assert other.ep.state in (State.DISCONNECTED, State.UNCONNECTED)


def test_a_marker_tells_when_all_is_dequeued() -> None:
    """What the specification advises before a reset. Source: docs/reference/dat.md 4.4."""
    with Scene() as scene:
        scene.b.post(3)
        scene.b.ep.disconnect()
        scene.b.ep.post_recv(scene.b.piece(), "marker")
        cookies = [event.user_cookie for event in scene.b.taken()]
        assert cookies == [0, 1, 2, "marker"]


def test_idle_is_true_when_nothing_is_outstanding() -> None:
    with Scene(buffers=4) as scene:
        scene.gate(1)
        assert dat.dat_ep_get_status(scene.a.ep) == (0, State.CONNECTED, True, False)
        scene.part(1, 0)
        assert dat.dat_ep_get_status(scene.b.ep) == (0, State.CONNECTED, False, True)
        scene.open_gate()
        scene.a.request.wait(WAIT_S)
        assert dat.dat_ep_get_status(scene.a.ep) == (0, State.CONNECTED, True, True)
        assert dat.dat_ep_get_status(scene.b.ep) == (0, State.CONNECTED, True, True)


def test_transport_attributes_may_change_only_before_anything_has_begun() -> None:
    with Scene(connected=False) as scene:
        scene.b.ep.modify(ep_transport_specific_count=0)
        scene.b.ia.reserve(QUAL, scene.b.ep, scene.b.requests)
        with pytest.raises(dat.DatInvalidState):
            scene.b.ep.modify(ep_transport_specific_count=0)
        scene.b.ep.modify(max_rdma_read_in=2)
        with pytest.raises(dat.DatInvalidState):
            scene.b.ep.modify(pz_handle=scene.b.ia.create_pz())
        for never in ("ia_handle", "ep_state", "remote_port_qual", "srq_handle"):
            with pytest.raises(dat.DatInvalidParameter):
                scene.b.ep.modify(**{never: None})


def test_all_streams_of_a_dispatcher_change_their_flags_together() -> None:
    flag = dat.CompletionFlag
    with Scene(connected=False) as scene:
        end = scene.b
        both = end.ia.create_evd(9, dat.EvdFlag.DTO)
        end.ep.modify(recv_evd_handle=both, request_evd_handle=both)
        assert both.state & dat.EvdState.CONFIG_THRESHOLD == dat.EvdState.CONFIG_THRESHOLD
        with pytest.raises(dat.DatInvalidParameter):
            end.ep.modify(recv_completion_flags=flag.UNSIGNALLED)
        assert end.ep.query().ep_attr.recv_completion_flags is flag.EVD_THRESHOLD
        assert end.ep.query().recv_evd_handle is both
        end.ep.modify(
            recv_completion_flags=flag.UNSIGNALLED, request_completion_flags=flag.UNSIGNALLED
        )
        assert both.query().evd_state & dat.EvdState.CONFIG_THRESHOLD == dat.EvdState.CONFIG_NOTIFY
        with pytest.raises(dat.DatInvalidHandle):
            end.ep.modify(recv_evd_handle=None, request_evd_handle=end.connection, max_recv_dtos=0)
        assert end.ep.query().recv_evd_handle is end.ep.query().request_evd_handle is both
        assert not end.recv.in_use and both.in_use


def test_following_another_endpoint() -> None:
    with Scene() as scene:
        other = End(scene.network, name="a2")

        def ret(*arguments: object) -> tuple[int, int]:
            found = dat.dat_ep_dup_connect(other.ep, *arguments)
            return found.type, found.subtype

        wrong, arg = dat.DAT_INVALID_PARAMETER, dat.Subtype
        assert ret(scene.a.ep, 0, 0, None, 0) == (wrong, arg.INVALID_ARG3)
        assert ret(scene.a.ep, 9, 5, None, 0) == (wrong, arg.INVALID_ARG4)
        long = scene.a.ia.provider_attr.max_private_data_size + 1
        assert ret(scene.a.ep, 9, long, bytes(long), 0) == (wrong, arg.INVALID_ARG4)
        assert ret(other.ep, 9, 0, None, 0)[0] == dat.DAT_INVALID_STATE
        scene.b.ia.listen(QUAL, evd=scene.b.requests)
        assert ret(scene.a.ep, 9_000_000, 0, None, 0) == (dat.DAT_SUCCESS, 0)
        attr = dat.EpAttr(max_recv_dtos=0, max_request_dtos=0)
        accepting = scene.b.pz.create_ep(None, None, scene.b.connection, attr)
        scene.b.requests.wait(WAIT_S).cr.accept(accepting)
        scene.settle(lambda: accepting.state is State.CONNECTED)
