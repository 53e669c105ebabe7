"""What a DAT call returns: one 32-bit number of class, type and subtype.

Bits 31 and 30 are the class (error, warning, success), 29 to 16 the type, 15 to 0 the subtype.
Providers in the field set the class bits or do not, so programs compare types; `DatReturn` does it
for them. This provider always sets the error bit. Source: docs/reference/dat.md 2 (uDAPL 1.2
numbering).
"""

from enum import IntEnum
from typing import Final, Self

from urds.common.flat_names import FlatNames

FLAT: Final = FlatNames()

CLASS_ERROR: Final = 0x8000_0000
CLASS_WARNING: Final = 0x4000_0000
CLASS_MASK: Final = 0xC000_0000
TYPE_MASK: Final = 0x3FFF_0000
SUBTYPE_MASK: Final = 0x0000_FFFF


class ReturnType(IntEnum):
    """Why a call failed, or that it did not."""

    SUCCESS = 0
    ABORT = 0x0001_0000  # a wait was broken off
    CONN_QUAL_IN_USE = 0x0002_0000
    INSUFFICIENT_RESOURCES = 0x0003_0000
    INTERNAL_ERROR = 0x0004_0000
    INVALID_HANDLE = 0x0005_0000
    INVALID_PARAMETER = 0x0006_0000
    INVALID_STATE = 0x0007_0000
    LENGTH_ERROR = 0x0008_0000
    MODEL_NOT_SUPPORTED = 0x0009_0000
    PROVIDER_NOT_FOUND = 0x000A_0000
    # The comments of the public headers swap the next two; the manual pages have it so.
    PRIVILEGES_VIOLATION = 0x000B_0000  # memory lacks the right
    PROTECTION_VIOLATION = 0x000C_0000  # memory is of another protection zone
    QUEUE_EMPTY = 0x000D_0000
    QUEUE_FULL = 0x000E_0000
    TIMEOUT_EXPIRED = 0x000F_0000
    PROVIDER_ALREADY_REGISTERED = 0x0010_0000
    PROVIDER_IN_USE = 0x0011_0000
    INVALID_ADDRESS = 0x0012_0000
    INTERRUPTED_CALL = 0x0013_0000
    CONN_QUAL_UNAVAILABLE = 0x0014_0000
    NOT_IMPLEMENTED = 0x0FFF_0000


@FLAT.of("DAT_*")
class Subtype(IntEnum):
    """The closer reason. 102, an invalid cookie of relaxed ordering, is Solaris' own."""

    NO_SUBTYPE = 0
    SUB_INTERRUPTED = 1
    RESOURCE_MEMORY = 2
    RESOURCE_DEVICE = 3
    RESOURCE_TEP = 4
    RESOURCE_TEVD = 5
    RESOURCE_PROTECTION_DOMAIN = 6
    RESOURCE_MEMORY_REGION = 7
    RESOURCE_ERROR_HANDLER = 8
    RESOURCE_CREDITS = 9
    RESOURCE_SRQ = 10
    INVALID_HANDLE_IA = 11
    INVALID_HANDLE_EP = 12
    INVALID_HANDLE_LMR = 13
    INVALID_HANDLE_RMR = 14
    INVALID_HANDLE_PZ = 15
    INVALID_HANDLE_PSP = 16
    INVALID_HANDLE_RSP = 17
    INVALID_HANDLE_CR = 18
    INVALID_HANDLE_CNO = 19
    INVALID_HANDLE_EVD_CR = 20
    INVALID_HANDLE_EVD_REQUEST = 21
    INVALID_HANDLE_EVD_RECV = 22
    INVALID_HANDLE_EVD_CONN = 23
    INVALID_HANDLE_EVD_ASYNC = 24
    INVALID_HANDLE_SRQ = 25
    INVALID_HANDLE1 = 26
    INVALID_HANDLE2 = 27
    INVALID_HANDLE3 = 28
    INVALID_HANDLE4 = 29
    INVALID_HANDLE5 = 30
    INVALID_HANDLE6 = 31
    INVALID_HANDLE7 = 32
    INVALID_HANDLE8 = 33
    INVALID_HANDLE9 = 34
    INVALID_HANDLE10 = 35
    INVALID_ARG1 = 36
    INVALID_ARG2 = 37
    INVALID_ARG3 = 38
    INVALID_ARG4 = 39
    INVALID_ARG5 = 40
    INVALID_ARG6 = 41
    INVALID_ARG7 = 42
    INVALID_ARG8 = 43
    INVALID_ARG9 = 44
    INVALID_ARG10 = 45
    INVALID_STATE_EP_UNCONNECTED = 46
    INVALID_STATE_EP_ACTCONNPENDING = 47
    INVALID_STATE_EP_PASSCONNPENDING = 48
    INVALID_STATE_EP_TENTCONNPENDING = 49
    INVALID_STATE_EP_CONNECTED = 50
    INVALID_STATE_EP_DISCONNECTED = 51
    INVALID_STATE_EP_RESERVED = 52
    INVALID_STATE_EP_COMPLPENDING = 53
    INVALID_STATE_EP_DISCPENDING = 54
    INVALID_STATE_EP_PROVIDERCONTROL = 55
    INVALID_STATE_EP_NOTREADY = 56
    INVALID_STATE_EP_RECV_WATERMARK = 57
    INVALID_STATE_EP_PZ = 58
    INVALID_STATE_EP_EVD_REQUEST = 59
    INVALID_STATE_EP_EVD_RECV = 60
    INVALID_STATE_EP_EVD_CONNECT = 61
    INVALID_STATE_EP_UNCONFIGURED = 62
    INVALID_STATE_EP_UNCONFRESERVED = 63
    INVALID_STATE_EP_UNCONFPASSIVE = 64
    INVALID_STATE_EP_UNCONFTENTATIVE = 65
    INVALID_STATE_CNO_IN_USE = 66
    INVALID_STATE_CNO_DEAD = 67
    INVALID_STATE_EVD_OPEN = 68
    INVALID_STATE_EVD_ENABLED = 69
    INVALID_STATE_EVD_DISABLED = 70
    INVALID_STATE_EVD_WAITABLE = 71
    INVALID_STATE_EVD_UNWAITABLE = 72
    INVALID_STATE_EVD_IN_USE = 73
    INVALID_STATE_EVD_CONFIG_NOTIFY = 74
    INVALID_STATE_EVD_CONFIG_SOLICITED = 75
    INVALID_STATE_EVD_CONFIG_THRESHOLD = 76
    INVALID_STATE_EVD_WAITER = 77
    INVALID_STATE_EVD_ASYNC = 78
    INVALID_STATE_IA_IN_USE = 79
    INVALID_STATE_LMR_IN_USE = 80
    INVALID_STATE_LMR_FREE = 81
    INVALID_STATE_PZ_IN_USE = 82
    INVALID_STATE_PZ_FREE = 83
    INVALID_STATE_SRQ_OPERATIONAL = 84
    INVALID_STATE_SRQ_ERROR = 85
    INVALID_STATE_SRQ_IN_USE = 86
    PRIVILEGES_READ = 87
    PRIVILEGES_WRITE = 88
    PRIVILEGES_RDMA_READ = 89
    PRIVILEGES_RDMA_WRITE = 90
    PROTECTION_READ = 91
    PROTECTION_WRITE = 92
    PROTECTION_RDMA_READ = 93
    PROTECTION_RDMA_WRITE = 94
    INVALID_ADDRESS_UNSUPPORTED = 95
    INVALID_ADDRESS_UNREACHABLE = 96
    INVALID_ADDRESS_MALFORMED = 97
    NAME_NOT_REGISTERED = 98
    MAJOR_NOT_FOUND = 99
    MINOR_NOT_FOUND = 100
    THREAD_SAFETY_NOT_FOUND = 101
    INVALID_RO_COOKIE = 102


class DatReturn(int):
    """A return value. Equal to a bare type when the types are equal, whatever its class bits say.

    Two values with a subtype or class bits each are equal when all their bits are. Values of one
    type have one hash, so a set or dictionary of bare types may be asked for a full value.
    """

    @classmethod
    def error(cls, kind: ReturnType, subtype: Subtype = Subtype.NO_SUBTYPE) -> Self:
        """Return the error of this type and subtype, with the error bit set."""
        return cls(CLASS_ERROR | kind | subtype)

    @property
    def cls(self) -> int:
        """Return the class bits: `CLASS_ERROR`, `CLASS_WARNING` or 0."""
        return int(self) & CLASS_MASK

    @property
    def type(self) -> int:
        """Return the type bits; a `ReturnType` if it is a known one."""
        bits = int(self) & TYPE_MASK
        return ReturnType(bits) if bits in _KNOWN_TYPES else bits

    @property
    def subtype(self) -> int:
        """Return the subtype; a `Subtype` if it is a known one."""
        bits = int(self) & SUBTYPE_MASK
        return Subtype(bits) if bits in _KNOWN_SUBTYPES else bits

    @property
    def name(self) -> str:
        """Return the constant's name, with the subtype's after a bar; hexadecimal if unknown."""
        try:
            major, minor = names_of(self)
        except LookupError:
            return f"{int(self):#010x}"
        return f"{major}|{minor}" if minor else major

    @property
    def is_success(self) -> bool:
        """Return whether the type is SUCCESS."""
        return not int(self) & TYPE_MASK

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, int):
            return NotImplemented
        ours, theirs = int(self), int(other)
        if ours == theirs:
            return True
        bare = not ours & ~TYPE_MASK or not theirs & ~TYPE_MASK
        return bare and theirs <= 0xFFFF_FFFF and ours & TYPE_MASK == theirs & TYPE_MASK

    def __hash__(self) -> int:
        return hash(int(self) & TYPE_MASK)

    def __repr__(self) -> str:
        return f"<DatReturn {self.name} {int(self):#010x}>"


_KNOWN_TYPES: Final = frozenset(map(int, ReturnType))
_KNOWN_SUBTYPES: Final = frozenset(map(int, Subtype))


def names_of(ret: int) -> tuple[str, str]:
    """Return the names of type and subtype, the second empty without a subtype.

    Raises LookupError: one of them is not defined.
    """
    kind, subtype = ret & TYPE_MASK, ret & SUBTYPE_MASK
    if not 0 <= ret <= 0xFFFF_FFFF or kind not in _KNOWN_TYPES or subtype not in _KNOWN_SUBTYPES:
        raise LookupError(f"return value {ret:#x} is not defined")
    minor = f"DAT_{Subtype(subtype).name}" if subtype else ""
    return f"DAT_{ReturnType(kind).name}", minor


# Types compare equal with any value of the type.
FLAT.update((f"DAT_{kind.name}", DatReturn(kind)) for kind in ReturnType)
FLAT["DAT_NAME_NOT_FOUND"] = FLAT["DAT_PROVIDER_NOT_FOUND"]
FLAT["DAT_CLASS_ERROR"] = CLASS_ERROR
FLAT["DAT_CLASS_WARNING"] = CLASS_WARNING
FLAT["DAT_CLASS_SUCCESS"] = 0
FLAT["DAT_TYPE_MASK"] = TYPE_MASK
FLAT["DAT_SUBTYPE_MASK"] = SUBTYPE_MASK
