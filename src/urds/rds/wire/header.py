"""The 48 bytes before each message.

`HEADER` serves two readers. The data plane unpacks integers with it and tests bits; control, tools
and tests use the frozen `Header`. tests/property/test_wire_header.py proves that both read alike.
Neither bounds the payload length: the caller that allocates for a payload checks it first.

The wire specification 3.1 says 40 bytes; its own fields sum to 48, and that is what Linux sends.
Source: linux v6.12 net/rds/rds.h (struct rds_header), net/rds/message.c (checksum).
"""

from operator import attrgetter
from struct import Struct
from typing import Final, Self

from urds.common.errors import WireError
from urds.common.records import names, record
from urds.common.struct_layout import Layout
from urds.rds.constants import HeaderFlag
from urds.rds.wire.checksum import header_checksum, header_intact

HEADER_BYTES: Final = 48
EXTENSION_BYTES: Final = 16

# sequence ack payload_bytes source_port target_port flags credit padding checksum, and the
# extension space as two words: most messages have none, that is two zeros.
HEADER: Final = Struct(">QQIHHBBIHQQ")
_NO_FLAGS: Final = HeaderFlag(0)
_LAYOUT: Final = Layout("header", HEADER.format, size_bytes=HEADER_BYTES)


@record(kw_only=True)
class Header:
    """One message header as a value."""

    sequence: int = 0  # number on its path; 0 in congestion maps and ack-only messages
    ack: int = 0  # highest sequence received; always 0 from Linux over TCP
    payload_bytes: int = 0  # of the whole message, also in each of its fragments over RDMA
    source_port: int = 0
    target_port: int = 0
    flags: HeaderFlag = _NO_FLAGS
    credit: int = 0  # receive buffers granted; RDMA with flow control only
    padding: int = 0  # zero
    checksum: int = 0  # as on the wire; 0 is "not checked"
    extension: bytes = bytes(EXTENSION_BYTES)

    @classmethod
    def parse(cls, data: bytes, *, verify: bool = True) -> Self:
        """Read one header.

        With `verify` false a wrong checksum passes, as Linux has it over TCP.
        Raises WireError for a bad size or checksum.
        """
        fields = _LAYOUT.unpack(data)
        if verify and not header_intact(fields):
            raise WireError(
                f"header checksum {fields[8]:#06x}, computed {_computed_checksum(fields):#06x}"
            )
        values = dict(zip(_NUMBERS, fields[:-2], strict=True))
        values["flags"] = HeaderFlag(values["flags"])
        return cls(**values, extension=bytes(data[-EXTENSION_BYTES:]))

    def emit(self, *, checksum: bool = False) -> bytes:
        """Write the 48 bytes.

        With `checksum` the field is computed, else `self.checksum` goes out as it is.
        Raises WireError if a field does not fit its width.
        """
        fields = self._fields()
        if checksum:
            fields = (*fields[:8], _computed_checksum(fields), *fields[9:])
        return _LAYOUT.pack(*fields)

    def _fields(self) -> tuple[int, ...]:
        if len(self.extension) != EXTENSION_BYTES:
            raise WireError(
                f"extension space of {len(self.extension)} bytes, not {EXTENSION_BYTES}"
            )
        words = (int.from_bytes(self.extension[at : at + 8], "big") for at in (0, 8))
        return (*map(int, _numbers_of(self)), *words)


_NUMBERS: Final = names(Header)[:-1]  # all but the extension space
_numbers_of: Final = attrgetter(*_NUMBERS)


def _computed_checksum(fields: tuple[int, ...]) -> int:
    return header_checksum(*fields[:8], *fields[9:])
