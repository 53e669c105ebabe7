"""Interface adapters and their attributes. Source: docs/reference/dat.md 3, 7, 13.4."""

from dataclasses import fields, replace

import pytest

from tests.dat.fakes import FakeFeeder, fake_of, open_fake
from urds import dat
from urds.dat import AsyncEvdHandle, EvdFlag, HandleType
from urds.dat.arguments import numeric_address, port_of
from urds.dat.constants import IaField, ProviderField
from urds.dat.evd import EventDispatcher
from urds.dat.ia import InterfaceAdapter
from urds.dat.records import IaAttr, NamedAttr, ProviderAttr
from urds.dat.registry import Support
from urds.dat.returns import Subtype
from urds.verbs.engine.numbers import AsyncEventType
from urds.verbs.engine.work import EngineEvent


def test_every_attribute_is_filled() -> None:
    """From the device below; nothing is left as it was, which other providers do."""
    with open_fake(max_qp=7, max_srq_wr=9, max_sge=3, max_qp_rd_atom=5) as ia:
        attr, provider = ia.query()
        assert (attr.max_eps, attr.max_ep_per_srq, attr.max_recv_per_srq) == (7, 7, 9)
        assert attr.max_iov_segments_per_dto == attr.max_iov_segments_per_rdma_read == 3
        assert (attr.max_rdma_read_per_ep_in, attr.max_rdma_read_in) == (5, 35)
        assert (attr.adapter_name, attr.ia_address_ptr) == ("fake", "127.0.0.1")
        assert NamedAttr("provider", "fake") in attr.transport_attr
        assert attr.num_transport_attr == len(attr.transport_attr)
        for record in (attr, provider):
            values = {field.name: getattr(record, field.name) for field in fields(record)}
            assert None not in values.values()
        assert provider.max_private_data_size >= 64
        assert dat.DAT_OPTIMAL_ALIGNMENT % provider.optimal_buffer_alignment == 0


def test_masks_have_a_bit_for_each_field_in_order() -> None:
    assert len(fields(IaAttr)) == int(IaField.ALL).bit_length() == 35
    assert len(fields(ProviderAttr)) == int(ProviderField.ALL).bit_length() == 26


@pytest.mark.rule("dat-support-attribute", "dat-support-optional")
@pytest.mark.parametrize("info", [0x00, 0x01, 0x10])
def test_support_can_be_taken_back(info: int) -> None:
    with open_fake(Support(ep_recv_info=info, srq_watermarks=0)) as ia:
        assert ia.provider_attr.ep_recv_info_supported == info
        assert ia.provider_attr.srq_watermarks_supported == 0


def test_a_mask_with_an_unknown_bit_is_refused() -> None:
    with open_fake() as ia:
        for ia_mask, provider_mask, subtype in (
            (1 << 35, 0, Subtype.INVALID_ARG3),
            (0, 1 << 26, Subtype.INVALID_ARG5),
        ):
            ret = dat.dat_ia_query(ia, ia_mask, provider_mask)[0]
            assert (ret.type, ret.subtype) == (dat.DAT_INVALID_PARAMETER, subtype)


# -- closing


def test_a_graceful_close_needs_all_objects_gone() -> None:
    ia = open_fake()
    pz = ia.create_pz()
    assert dat.dat_ia_close(ia, dat.DAT_CLOSE_GRACEFUL_FLAG) == dat.DAT_INVALID_STATE
    assert not fake_of(ia).is_closed
    pz.free()
    assert dat.dat_ia_close(ia, dat.DAT_CLOSE_GRACEFUL_FLAG) == dat.DAT_SUCCESS
    assert fake_of(ia).is_closed
    assert dat.dat_ia_close(ia, dat.DAT_CLOSE_ABRUPT_FLAG) == dat.DAT_INVALID_HANDLE


def test_an_abrupt_close_frees_everything_whatever_uses_it() -> None:
    ia = open_fake()
    cno, pz = ia.create_cno(), ia.create_pz()
    objects = [cno, pz, pz.register(bytearray(8)), pz.create_rmr(), FakeFeeder(ia)]
    objects += [ia.create_evd(1, EvdFlag.DTO, cno), ia]
    assert isinstance(ia.async_evd, EventDispatcher)
    objects.append(ia.async_evd)
    ia.close()
    assert [item.live for item in objects] == [False] * len(objects)
    assert not ia.children
    assert ia.adapter.region_count == 0
    for item in objects:
        assert dat.dat_get_handle_type(item)[0] == dat.DAT_INVALID_HANDLE


def test_leaving_a_block_by_an_exception_closes_all_the_same() -> None:
    ia = open_fake()
    pz = ia.create_pz()
    with pytest.raises(dat.DatQueueEmpty), ia:
        ia.create_cno().wait(0)
    assert not pz.live
    assert fake_of(ia).is_closed


def test_a_flag_of_close_that_is_none_is_refused() -> None:
    with open_fake() as ia:
        assert dat.dat_ia_close(ia, 2).subtype == Subtype.INVALID_ARG2
        assert ia.live


# -- asynchronous events


def take_async(evd: object) -> list[tuple[int, object, int]]:
    """Take number, handle and reason of what waits."""
    assert isinstance(evd, EventDispatcher)
    events = [event for event in evd if isinstance(event, dat.AsyncErrorEvent)]
    return [(event.event_number, event.dat_handle, event.reason) for event in events]


def test_the_asynchronous_dispatcher_cannot_be_freed_before_the_adapter() -> None:
    with open_fake() as ia:
        assert dat.dat_evd_free(ia.async_evd) == dat.DAT_INVALID_STATE


@pytest.mark.parametrize(
    ("kind", "number", "reason"),
    [
        (AsyncEventType.QP_FATAL, 0x08003, 0),
        (AsyncEventType.QP_ACCESS_ERR, 0x08003, 0),
        (AsyncEventType.QP_RECV_SOFT_WATERMARK, 0x08006, 2),
    ],
)
def test_a_verbs_event_of_an_endpoint_names_the_endpoint(
    kind: AsyncEventType, number: int, reason: int
) -> None:
    with open_fake() as ia:
        engine, feeder = object(), FakeFeeder(ia)
        ia.device.adopt(engine, feeder)
        fake_of(ia).tell(EngineEvent(kind, engine))
        assert take_async(ia.async_evd) == [(number, feeder, reason)]
        ia.device.disown(engine)
        fake_of(ia).tell(EngineEvent(kind, engine))
        assert take_async(ia.async_evd) == []


def test_a_verbs_event_of_the_device_names_the_adapter() -> None:
    with open_fake() as ia:
        fake_of(ia).tell(EngineEvent(AsyncEventType.PORT_ERR, None))
        fake_of(ia).tell(EngineEvent(AsyncEventType.PORT_ACTIVE, None))
        assert take_async(ia.async_evd) == [(0x08002, ia, 0)]


def test_events_go_to_the_dispatcher_that_was_handed_in() -> None:
    """It outlives the adapter, which uses it as long as it is open."""
    with open_fake() as first:
        evd = first.create_evd(4, EvdFlag.ASYNC)
        second = InterfaceAdapter(
            "two", fake_of(open_fake()), address="::1", support=Support(), async_evd=evd
        )
        assert second.async_evd is evd
        with pytest.raises(dat.DatInvalidState):
            evd.free()
        fake_of(second).tell(EngineEvent(AsyncEventType.DEVICE_FATAL, None))
        second.close()
        assert take_async(evd) == [(0x08005, second, 0)]
        evd.free()


def test_without_a_dispatcher_here_events_go_nowhere() -> None:
    ia = InterfaceAdapter(
        "x",
        fake_of(open_fake()),
        address="::1",
        support=Support(),
        async_evd=AsyncEvdHandle.EXISTS,
    )
    assert ia.async_evd is AsyncEvdHandle.OUT_OF_SCOPE
    fake_of(ia).tell(EngineEvent(AsyncEventType.DEVICE_FATAL, None))
    ia.close(graceful=True)


# -- handles


def test_a_context_is_kept_beside_a_handle() -> None:
    with open_fake() as ia:
        pz = ia.create_pz()
        assert dat.dat_get_consumer_context(pz) == (dat.DAT_SUCCESS, None)
        assert dat.dat_set_consumer_context(pz, 1 << 63) == dat.DAT_SUCCESS
        assert dat.dat_get_consumer_context(pz) == (dat.DAT_SUCCESS, 1 << 63)
        assert pz.context == 1 << 63
        assert dat.dat_get_handle_type(pz) == (dat.DAT_SUCCESS, HandleType.PZ)
        pz.free()
        assert dat.dat_get_consumer_context(pz)[0] == dat.DAT_INVALID_HANDLE


# -- addresses and qualifiers


@pytest.mark.parametrize(
    ("given", "text"),
    [("127.0.0.1", "127.0.0.1"), (("10.0.0.1", 5), "10.0.0.1"), ("::0001", "::1")],
)
def test_an_address_in_any_form(given: str | tuple[str, int], text: str) -> None:
    assert numeric_address(given) == text


@pytest.mark.parametrize(
    ("given", "subtype"),
    [
        ("host", Subtype.INVALID_ADDRESS_MALFORMED),
        ("", Subtype.INVALID_ADDRESS_MALFORMED),
        (None, Subtype.INVALID_ADDRESS_MALFORMED),
        ((), Subtype.INVALID_ADDRESS_MALFORMED),
        ("224.0.0.1", Subtype.INVALID_ADDRESS_UNSUPPORTED),
        ("255.255.255.255", Subtype.INVALID_ADDRESS_UNSUPPORTED),
        ("0.0.0.0", Subtype.INVALID_ADDRESS_UNSUPPORTED),
        ("ff02::1", Subtype.INVALID_ADDRESS_UNSUPPORTED),
    ],
)
def test_an_address_that_no_connection_can_go_to(given: object, subtype: Subtype) -> None:
    with pytest.raises(dat.DatInvalidAddress) as caught:
        numeric_address(given)
    assert caught.value.subtype == subtype


@pytest.mark.parametrize(
    ("qual", "port"),
    [
        (1, 1),
        (45248, 45248),
        (65535, 65535),
        (65536, 33534 + 65536 % 32001),
        (2**64 - 1, 33534 + 11769),
    ],
)
def test_a_qualifier_becomes_a_port(qual: int, port: int) -> None:
    assert port_of(qual, argument=2) == port
    assert 1 <= port <= 65535


@pytest.mark.parametrize("qual", [0, -1, 2**64, "80", None])
def test_a_qualifier_that_cannot_be(qual: object) -> None:
    with pytest.raises(dat.DatInvalidParameter):
        port_of(qual, argument=2)


def test_records_are_values() -> None:
    """Equal by their fields, never changed in place."""
    attr = dat.EpAttr()
    assert replace(attr, max_recv_dtos=4) != attr
    assert dat.EpAttr() == attr
    assert (attr.max_recv_dtos, attr.max_recv_iov, attr.max_rdma_read_in) == (16, 4, 4)
    assert attr.recv_completion_flags is dat.CompletionFlag.EVD_THRESHOLD
    with pytest.raises(AttributeError):
        attr.max_recv_dtos = 5  # type: ignore[misc]  # that it cannot is what is shown
