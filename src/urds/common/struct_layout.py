"""One fixed layout of bytes: a Struct whose errors are WireErrors with values and limits."""

import re
import struct
from typing import Any, Final

from urds.common.errors import WireError

_BITS: Final = {"B": 8, "H": 16, "I": 32, "Q": 64, "?": 1}


class Layout:
    """A named Struct of unsigned integers and bytes, of known size."""

    __slots__ = ("_name", "_struct", "size_bytes")

    def __init__(self, name: str, format_string: str, *, size_bytes: int) -> None:
        self._name = name
        self._struct = struct.Struct(format_string)
        self.size_bytes = size_bytes
        assert self._struct.size == size_bytes, (
            f"{name}: {self._struct.size} bytes, not {size_bytes}"
        )

    def unpack(self, data: bytes) -> tuple[Any, ...]:
        """Return the fields. Raises WireError if `data` has another size."""
        if len(data) != self.size_bytes:
            raise WireError(f"{self._name} of {len(data)} bytes, not {self.size_bytes}")
        return self._struct.unpack(data)

    def pack(self, *fields: object) -> bytes:
        """Return the bytes. Raises WireError if an integer does not fit its width."""
        try:
            return self._struct.pack(*fields)
        except struct.error:
            raise WireError(f"{self._name}: {self._problem(fields)}") from None

    def _problem(self, fields: tuple[object, ...]) -> str:
        # Only here: every process would compile the expression, and few need it.
        found = re.findall(r"(\d*)([a-zA-Z?])", self._struct.format)
        # A count repeats an integer; bytes ("16s") are one field and padding ("3x") is none.
        codes = "".join(
            code if code == "s" else code * int(count or 1) for count, code in found if code != "x"
        )
        for code, value in zip(codes, fields, strict=False):
            limit = (1 << _BITS[code]) - 1 if code in _BITS else 0
            if limit and not (isinstance(value, int) and 0 <= value <= limit):
                return f"{value!r} is not in 0 to {limit}"
        return f"{len(fields)} fields {fields!r}, not {len(codes)}"
