"""The numbers of uDAPL 1.2, against the tables of docs/reference/dat.md 1, 6."""

from enum import Enum

import pytest

from urds import dat
from urds.dat import constants

VALUES = {
    "DAT_TIMEOUT_INFINITE": 0xFFFFFFFF,
    "DAT_VALUE_UNKNOWN": -2,
    "DAT_WATERMARK_INFINITE": -1,
    "DAT_HW_DEFAULT": -1,
    "DAT_SRQ_LW_DEFAULT": 0,
    "DAT_OPTIMAL_ALIGNMENT": 256,
    "DAT_NAME_MAX_LENGTH": 256,
    "DAT_LMR_COOKIE_SIZE": 40,
    "DAT_EVD_ASYNC_EXISTS": 1,
    "DAT_EVD_OUT_OF_SCOPE": 2,
    "DAT_HANDLE_TYPE_CR": 0,
    "DAT_HANDLE_TYPE_EP": 1,
    "DAT_HANDLE_TYPE_CNO": 9,
    "DAT_HANDLE_TYPE_SRQ": 10,
    "DAT_COMPLETION_SUPPRESS_FLAG": 1,
    "DAT_COMPLETION_SOLICITED_WAIT_FLAG": 2,
    "DAT_COMPLETION_UNSIGNALLED_FLAG": 4,
    "DAT_COMPLETION_BARRIER_FENCE_FLAG": 8,
    "DAT_COMPLETION_EVD_THRESHOLD_FLAG": 0x10,
    "DAT_QOS_PREMIUM": 8,
    "DAT_CLOSE_DEFAULT": 0,
    "DAT_CLOSE_GRACEFUL_FLAG": 1,
    "DAT_PSP_PROVIDER_FLAG": 1,
    "DAT_EVD_SOFTWARE_FLAG": 0x001,
    "DAT_EVD_CR_FLAG": 0x010,
    "DAT_EVD_DTO_FLAG": 0x020,
    "DAT_EVD_CONNECTION_FLAG": 0x040,
    "DAT_EVD_RMR_BIND_FLAG": 0x080,
    "DAT_EVD_ASYNC_FLAG": 0x100,
    "DAT_EVD_DEFAULT_FLAG": 0x1F0,
    "DAT_EVD_STATE_CONFIG_THRESHOLD": 0x30,
    "DAT_MEM_TYPE_SHARED_VIRTUAL": 2,
    "DAT_MEM_PRIV_ALL_FLAG": 0x33,
    "DAT_MEM_PRIV_READ_FLAG": 0x03,
    "DAT_MEM_PRIV_WRITE_FLAG": 0x30,
    "DAT_SRQ_STATE_OPERATIONAL": 0,  # DAT 2.0 swaps the two
    "DAT_SRQ_STATE_ERROR": 1,
    "DAT_EP_STATE_CONNECTED": 9,
    "DAT_EP_STATE_DISCONNECTED": 11,
    "DAT_EP_STATE_ERROR": 11,
    "DAT_EP_STATE_COMPLETION_PENDING": 12,
    "DAT_DTO_COMPLETION_EVENT": 0x00001,
    "DAT_RMR_BIND_COMPLETION_EVENT": 0x01001,
    "DAT_CONNECTION_REQUEST_EVENT": 0x02001,
    "DAT_CONNECTION_EVENT_ESTABLISHED": 0x04001,
    "DAT_CONNECTION_EVENT_UNREACHABLE": 0x04008,
    "DAT_ASYNC_ERROR_EVD_OVERFLOW": 0x08001,
    "DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR": 0x08005,
    "DAT_ASYNC_EVENT_WATERMARK": 0x08006,
    "DAT_SOFTWARE_EVENT": 0x10001,
    "DAT_SRQ_LOW_WATERMARK_EVENT": 2,
    "DAT_EP_SRQ_SOFT_HIGH_WATERMARK_EVENT": 2,
    "DAT_DTO_ERR_FLUSHED": 1,
    "DAT_DTO_FAILURE": 1,
    "DAT_DTO_LENGTH_ERROR": 2,
    "DAT_RMR_OPERATION_FAILED": 11,
    "DAT_EP_FIELD_SRQ_HANDLE": 0x400,
    "DAT_EP_FIELD_EP_ATTR_ALL": 0x7FFFF000,
    "DAT_EP_FIELD_ALL": 0x7FFFF7FF,
    "DAT_IA_FIELD_ALL": 0x7FFFFFFFF,
    "DAT_PROVIDER_FIELD_ALL": 0x3FFFFFF,
    "DAT_PROVIDER_FIELD_EP_RECV_INFO_SUPPORTED": 1 << 20,
    "DAT_LMR_FIELD_ALL": 0x3FF,
    "DAT_SRQ_FIELD_OUTSTANDING_DTO_COUNT": 0x80,
}


@pytest.mark.parametrize(("name", "value"), VALUES.items())
def test_a_constant_has_the_number_of_the_specification(name: str, value: int) -> None:
    assert getattr(dat, name) == value
    assert name in dat.__all__


# Hexadecimal digits of provider attributes: the header gives them no names.
NAMELESS = {dat.SrqWatermarks, dat.SrqInfo, dat.EpRecvInfo}
ENUMS = [
    each
    for each in vars(constants).values()
    if isinstance(each, type) and each.__module__ == constants.__name__ and each not in NAMELESS
]


@pytest.mark.parametrize("enum", [*ENUMS, dat.Subtype], ids=lambda enum: enum.__name__)
def test_each_member_has_a_flat_name(enum: type[Enum]) -> None:
    flat = [getattr(dat, name) for name in dat.__all__ if name.startswith("DAT_")]
    named = {each.name for each in flat if type(each) is enum}
    assert named == {member.name for member in enum.__members__.values()}


@pytest.mark.parametrize(
    "family", ["IA", "PROVIDER", "EP", "LMR", "SRQ", "EVD", "CNO", "PSP", "RSP", "CR", "RMR", "PZ"]
)
def test_the_fields_of_a_mask_make_up_all(family: str) -> None:
    """Each bit has one name, and together they are ALL."""
    prefix = f"DAT_{family}_FIELD_"
    fields = {name: getattr(dat, name) for name in dat.__all__ if name.startswith(prefix)}
    whole = fields.pop(f"{prefix}ALL")
    single = [int(value) for name, value in fields.items() if not name.endswith(("_ALL", "_NONE"))]
    assert all(value.bit_count() == 1 for value in single)
    assert len(single) == len(set(single))
    assert sum(single) == whole
