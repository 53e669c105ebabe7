"""One fixed layout of octets: a Struct whose mistakes are WireErrors with values and limits."""

from struct import Struct
from struct import error as StructError  # noqa: N812 - it is a class
from typing import Any

from urds.errors import WireError


class Layout:
    """A named Struct of known size."""

    __slots__ = ("_name", "_struct", "octets")

    def __init__(self, name: str, format_string: str, *, octets: int) -> None:
        self._name = name
        self._struct = Struct(format_string)
        self.octets = octets
        assert self._struct.size == octets, f"{name}: {self._struct.size} octets, not {octets}"

    def unpack(self, octets: bytes) -> tuple[Any, ...]:
        """Return the fields. Raises WireError if `octets` has another size."""
        if len(octets) != self.octets:
            raise WireError(f"{self._name} of {len(octets)} octets, not {self.octets}")
        return self._struct.unpack(octets)

    def pack(self, *fields: object) -> bytes:
        """Return the octets. Raises WireError if a field does not fit its width."""
        try:
            return self._struct.pack(*fields)
        except StructError as problem:
            raise WireError(f"{self._name} of {fields}: {problem}") from None
