"""Return values, names, exceptions. Source: docs/reference/dat.md 2, 6, 20.3."""

import errno
import pickle

import pytest

from urds import dat
from urds.dat.constants import DtoStatus
from urds.dat.ep_transfers import DTO_STATUS_OF
from urds.dat.errors import (
    EXCEPTION_OF,
    RETURN_OF_ERRNO,
    dat_error,
    from_os_error,
    no_output,
    one_output,
)
from urds.dat.returns import DatReturn, ReturnType, Subtype, names_of
from urds.verbs.engine.numbers import WCStatus

BAD_EP = DatReturn(0x8005000C)


def test_a_bad_endpoint_has_the_number_of_the_source_page() -> None:
    ret = DatReturn.error(ReturnType.INVALID_HANDLE, Subtype.INVALID_HANDLE_EP)
    assert int(ret) == 0x8005000C
    assert (ret.cls, ret.type, ret.subtype) == (0x80000000, 0x00050000, 12)
    assert ret.name == "DAT_INVALID_HANDLE|DAT_INVALID_HANDLE_EP"


def test_a_bare_type_is_equal_whatever_the_class_bits_are() -> None:
    assert BAD_EP == dat.DAT_INVALID_HANDLE
    assert BAD_EP == 0x00050000
    assert DatReturn(0x0005000C) == dat.DAT_INVALID_HANDLE
    assert DatReturn(0x80090000) == dat.DAT_MODEL_NOT_SUPPORTED == DatReturn(0x00090000)
    assert BAD_EP in {dat.DAT_INVALID_HANDLE}


def test_values_with_subtypes_are_compared_whole() -> None:
    assert DatReturn(0x8005000D) != BAD_EP
    assert BAD_EP == 0x8005000C
    assert BAD_EP != dat.DAT_SUCCESS
    assert dat.DAT_INVALID_HANDLE != 0x1_0005_0000, "no return value: 33 bits"
    assert dat.DAT_SUCCESS == 0
    assert dat.DAT_SUCCESS.is_success
    assert not BAD_EP.is_success
    assert BAD_EP != "DAT_INVALID_HANDLE"


def test_numbers_of_1_2_and_not_of_2_0() -> None:
    """DAT 2.0 shifts the subtypes from 26 on and moves NOT_IMPLEMENTED."""
    assert int(dat.DAT_NOT_IMPLEMENTED) == 0x0FFF0000
    assert int(dat.DAT_INVALID_ARG1) == 36
    assert int(dat.DAT_INVALID_STATE_SRQ_IN_USE) == 86
    assert int(dat.DAT_THREAD_SAFETY_NOT_FOUND) == 101
    assert [member.value for member in Subtype] == list(range(103))


def test_names_of_values() -> None:
    assert names_of(0) == ("DAT_SUCCESS", "")
    assert names_of(0x80060024) == ("DAT_INVALID_PARAMETER", "DAT_INVALID_ARG1")
    for undefined in (0x00150000, 103, -1, 1 << 32):
        with pytest.raises(LookupError):
            names_of(undefined)
    assert DatReturn(0x80150000).name == "0x80150000"


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (ReturnType.CONN_QUAL_IN_USE, OSError),
        (ReturnType.INVALID_PARAMETER, ValueError),
        (ReturnType.LENGTH_ERROR, ValueError),
        (ReturnType.MODEL_NOT_SUPPORTED, NotImplementedError),
        (ReturnType.PROVIDER_NOT_FOUND, LookupError),
        (ReturnType.PRIVILEGES_VIOLATION, PermissionError),
        (ReturnType.PROTECTION_VIOLATION, PermissionError),
        (ReturnType.TIMEOUT_EXPIRED, TimeoutError),
        (ReturnType.INVALID_ADDRESS, OSError),
        (ReturnType.INTERRUPTED_CALL, InterruptedError),
        (ReturnType.CONN_QUAL_UNAVAILABLE, OSError),
        (ReturnType.NOT_IMPLEMENTED, NotImplementedError),
    ],
)
def test_an_exception_is_of_the_builtin_that_a_program_would_catch(
    kind: ReturnType, builtin: type[Exception]
) -> None:
    error = dat_error(kind, Subtype.NO_SUBTYPE, "why")
    assert isinstance(error, builtin)
    assert isinstance(error, dat.DatError)
    assert str(error) == f"DAT_{kind.name}: why"


@pytest.mark.parametrize("kind", EXCEPTION_OF)
def test_an_exception_survives_pickling(kind: ReturnType) -> None:
    error = dat_error(kind, Subtype.INVALID_ARG1, "why")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), int(copy.ret), str(copy)) == (type(error), int(error.ret), str(error))


def test_an_os_error_has_an_errno_and_not_the_return_value() -> None:
    error = dat_error(ReturnType.CONN_QUAL_IN_USE, detail="port 1")
    assert isinstance(error, OSError)
    assert error.errno == errno.EADDRINUSE
    assert error.strerror == "port 1"


@pytest.mark.parametrize(
    ("error", "value"),
    [
        (dat_error(ReturnType.QUEUE_FULL), 0x800E0000),
        (MemoryError(), 0x80030002),
        (OSError(errno.EADDRINUSE, "there"), 0x80020000),
    ],
)
def test_what_a_call_raises_becomes_what_it_returns(error: Exception, value: int) -> None:
    def call() -> None:
        raise error

    assert int(no_output(call)()) == value
    assert one_output(call)() == (DatReturn(value), None)


def test_errno_becomes_a_return_value() -> None:
    for code, (kind, subtype) in RETURN_OF_ERRNO.items():
        error = from_os_error(OSError(code, "text"))
        assert (error.type, error.subtype) == (kind, subtype)
    assert from_os_error(OSError(errno.ENODEV, "gone")).type == ReturnType.INTERNAL_ERROR


@pytest.mark.parametrize(
    ("verbs", "status"),
    [
        (WCStatus.SUCCESS, 0),
        (WCStatus.WR_FLUSH_ERR, 1),
        (WCStatus.LOC_LEN_ERR, 2),
        (WCStatus.LOC_QP_OP_ERR, 3),
        (WCStatus.LOC_PROT_ERR, 4),
        (WCStatus.BAD_RESP_ERR, 5),
        (WCStatus.REM_ACCESS_ERR, 6),
        (WCStatus.REM_OP_ERR, 7),
        (WCStatus.RETRY_EXC_ERR, 8),
        (WCStatus.RNR_RETRY_EXC_ERR, 9),
        (WCStatus.MW_BIND_ERR, 11),
    ],
)
def test_a_verbs_status_becomes_a_dat_status(verbs: WCStatus, status: int) -> None:
    assert DTO_STATUS_OF[verbs] is DtoStatus(status)
