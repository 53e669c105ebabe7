"""What dat_ep_recv_query returns and when; numbers as in docs/reference/dat.md 23.1."""

from collections.abc import Callable

import pytest

from tests.dat.scene import WAIT_S, Scene
from urds import dat

CONNECTION = dat.EvdFlag.CONNECTION


def degraded(info: int) -> Scene:
    """Return a scene whose receiver supports only some counts, with 3 receives posted."""
    made = Scene(connected=False, support=dat.Support(ep_recv_info=info))
    made.b.post(3)
    return made


@pytest.mark.rule("dat-handle", "dat-return-success")
def test_c1_a_live_endpoint_with_nothing_posted_has_nothing() -> None:
    with Scene(connected=False) as scene:
        ret, count, span = dat.dat_ep_recv_query(scene.b.ep)
        assert (int(ret), count, span) == (dat.DAT_SUCCESS, 0, 0)


@pytest.mark.rule("dat-return-handle", "dat-undefined-on-error")
def test_c2_a_freed_endpoint_is_an_invalid_handle() -> None:
    with Scene(connected=False) as scene:
        scene.b.post(3)
        assert dat.dat_ep_free(scene.b.ep) == dat.DAT_SUCCESS
        ret, count, span = dat.dat_ep_recv_query(scene.b.ep)
        assert (int(ret), ret.subtype) == (0x8005000C, dat.Subtype.INVALID_HANDLE_EP)
        assert (count, span) == (None, None)


@pytest.mark.rule("dat-handle", "dat-return-handle")
@pytest.mark.parametrize("what", ["srq", "evd", "pz", "ia", "null", "number", "text", "class"])
def test_c3_anything_but_an_endpoint_is_an_invalid_handle(what: str) -> None:
    with Scene(buffers=1, connected=False) as scene:
        end = scene.b
        wrong: dict[str, object] = {
            "srq": end.srq, "evd": end.recv, "pz": end.pz, "ia": end.ia, "null": None,
            "number": end.ep.handle, "text": "endpoint", "class": dat.Endpoint,
        }  # fmt: skip
        ret, count, span = dat.dat_ep_recv_query(wrong[what])
        assert (int(ret), count, span) == (0x8005000C, None, None)


@pytest.mark.rule("dat-span-null")
def test_c4_only_the_count_is_wanted() -> None:
    with Scene(connected=False) as scene:
        scene.b.post(3)
        ret, count, span = dat.dat_ep_recv_query(scene.b.ep, want_span=False)
        assert (int(ret), count, span) == (0, 3, None)


@pytest.mark.rule("dat-nbufs-null")
def test_c5_only_the_span_is_wanted() -> None:
    with Scene(connected=False) as scene:
        scene.b.post(3)
        ret, count, span = dat.dat_ep_recv_query(scene.b.ep, want_nbufs=False)
        assert (int(ret), count, span) == (0, None, 3)


@pytest.mark.rule("dat-nbufs-null", "dat-span-null")
def test_c6_neither_is_wanted() -> None:
    with Scene(connected=False) as scene:
        scene.b.post(3)
        outputs = dat.dat_ep_recv_query(scene.b.ep, want_nbufs=False, want_span=False)
        assert outputs == (dat.DAT_SUCCESS, None, None)


@pytest.mark.rule("dat-model-not-supported", "dat-return-model", "dat-support-optional")
def test_c7_neither_count_is_supported() -> None:
    with degraded(0x00) as scene:
        ret, count, span = dat.dat_ep_recv_query(scene.b.ep)
        assert (int(ret), count, span) == (0x80090000, None, None)
        assert scene.b.ia.provider_attr.ep_recv_info_supported == 0x00
        with pytest.raises(dat.DatModelNotSupported):
            scene.b.ep.recv_query()


@pytest.mark.rule("dat-unsupported-is-unknown", "dat-support-optional", "dat-unknown-value")
def test_c8_only_the_count_is_supported() -> None:
    with degraded(0x01) as scene:
        assert dat.dat_ep_recv_query(scene.b.ep) == (dat.DAT_SUCCESS, 3, dat.DAT_VALUE_UNKNOWN)
        assert dat.DAT_VALUE_UNKNOWN == -2
        info = scene.b.ep.recv_query()
        assert (info.nbufs_allocated, info.bufs_alloc_span, info.missing) == (3, None, None)


@pytest.mark.rule("dat-unsupported-is-unknown", "dat-support-optional", "dat-unknown-value")
def test_c9_only_the_span_is_supported() -> None:
    with degraded(0x10) as scene:
        assert dat.dat_ep_recv_query(scene.b.ep) == (dat.DAT_SUCCESS, dat.DAT_VALUE_UNKNOWN, 3)
        assert scene.b.info == (None, 3)


@pytest.mark.rule("dat-support-attribute", "dat-version")
def test_c10_a_fresh_adapter_supports_everything() -> None:
    with Scene(connected=False) as scene:
        ret, _, _, attr = dat.dat_ia_query(scene.b.ia, 0, dat.ProviderField.ALL)
        assert ret == dat.DAT_SUCCESS
        assert (attr.ep_recv_info_supported, attr.srq_supported) == (0x11, True)
        assert (attr.srq_watermarks_supported, attr.srq_info_supported) == (0x111, 0x11)
        assert attr.srq_ep_pz_difference_supported
        assert (attr.dapl_version_major, attr.dapl_version_minor) == (1, 2)


def _reserved(scene: Scene) -> dat.Endpoint:
    scene.b.ia.reserve(4000, scene.b.ep, scene.b.requests)
    return scene.b.ep


def _passive(scene: Scene) -> dat.Endpoint:
    _reserved(scene)
    scene.a.ep.connect(scene.b.ia.address, 4000, timeout_s=WAIT_S)
    scene.b.requests.wait(WAIT_S)
    return scene.b.ep


def _tentative(scene: Scene) -> dat.Endpoint:
    scene.b.ia.listen(4000, evd=scene.b.requests, provider_ep=True)
    scene.a.ep.connect(scene.b.ia.address, 4000, timeout_s=WAIT_S)
    return scene.b.requests.wait(WAIT_S).cr.query().local_ep_handle


def _active(scene: Scene) -> dat.Endpoint:
    scene.a.ep.connect(scene.b.ia.address, 4000, timeout_s=WAIT_S)
    return scene.a.ep


def _completion(scene: Scene) -> dat.Endpoint:
    scene.b.ia.listen(4000, evd=scene.b.requests)
    scene.a.ep.connect(scene.b.ia.address, 4000, timeout_s=WAIT_S)
    scene.b.requests.wait(WAIT_S).cr.accept(scene.b.ep)
    return scene.b.ep


def _connected(scene: Scene) -> dat.Endpoint:
    _completion(scene)
    scene.wait_for_state(dat.EpState.CONNECTED)
    return scene.b.ep


def _disconnect_pending(scene: Scene) -> dat.Endpoint:
    _connected(scene)
    scene.b.send()
    scene.b.ep.disconnect(graceful=True)
    return scene.b.ep


def _disconnected(scene: Scene) -> dat.Endpoint:
    _connected(scene).disconnect()
    return scene.b.ep


REACHABLE: dict[dat.EpState, Callable[[Scene], dat.Endpoint]] = {
    dat.EpState.UNCONNECTED: lambda scene: scene.b.ep,
    dat.EpState.RESERVED: _reserved,
    dat.EpState.PASSIVE_CONNECTION_PENDING: _passive,
    dat.EpState.TENTATIVE_CONNECTION_PENDING: _tentative,
    dat.EpState.ACTIVE_CONNECTION_PENDING: _active,
    dat.EpState.COMPLETION_PENDING: _completion,
    dat.EpState.CONNECTED: _connected,
    dat.EpState.DISCONNECT_PENDING: _disconnect_pending,
    dat.EpState.DISCONNECTED: _disconnected,
}


@pytest.mark.rule("dat-return-success", "dat-snapshot")
@pytest.mark.parametrize("state", REACHABLE)
def test_c11_the_query_is_allowed_in_every_state(state: dat.EpState) -> None:
    with Scene(connected=False) as scene:
        scene.a.post(2)
        scene.b.post(2)
        ep = REACHABLE[state](scene)
        assert ep.state is state
        held = (
            0 if ep.state in (dat.EpState.DISCONNECTED, state.TENTATIVE_CONNECTION_PENDING) else 2
        )
        assert dat.dat_ep_recv_query(ep) == (dat.DAT_SUCCESS, held, held)


@pytest.mark.rule("dat-return-handle")
def test_c12_the_adapter_was_closed_abruptly() -> None:
    with Scene() as scene:
        scene.b.post(3)
        assert dat.dat_ia_close(scene.b.ia, dat.DAT_CLOSE_ABRUPT_FLAG) == dat.DAT_SUCCESS
        ret, count, span = dat.dat_ep_recv_query(scene.b.ep)
        assert (int(ret), count, span) == (0x8005000C, None, None)


@pytest.mark.rule("dat-return-parameter")
def test_an_output_that_is_neither_wanted_nor_not_is_an_invalid_parameter() -> None:
    """What a pointer that cannot be used is to C: argument 2 or 3."""
    with Scene(connected=False) as scene:
        scene.b.post(3)
        ret, *outputs = dat.dat_ep_recv_query(scene.b.ep, want_nbufs=0x1003)
        assert (ret.type, ret.subtype) == (dat.DAT_INVALID_PARAMETER, dat.Subtype.INVALID_ARG2)
        assert outputs == [None, None]
        ret, *outputs = dat.dat_ep_recv_query(scene.b.ep, want_span=None)
        assert (ret.type, ret.subtype) == (dat.DAT_INVALID_PARAMETER, dat.Subtype.INVALID_ARG3)
        assert outputs == [None, None]
