"""Memory that the peer writes, and stretches of it.

An area is a ring: octets are published, filled, read and free again in one order. What is
neither published nor holding unread octets is free; an area that is left for a larger one is given
back when all of it is free, for then nothing of it is published.
"""

from urds.rsocket.stream.records import Memory


class Area:
    """A part of a memory, `byte_count` octets from `start`, published in steps."""

    __slots__ = ("byte_count", "free", "is_left", "memory", "published_to", "start", "step", "view")

    def __init__(self, memory: Memory, start: int, byte_count: int, step: int) -> None:
        self.memory = memory
        self.view = memory.view
        self.start = start
        self.byte_count = byte_count
        self.step = step  # divides `byte_count`
        self.free = byte_count
        self.published_to = start  # offset in the memory at which publishing goes on
        self.is_left = False

    def take_free(self, *, is_one_step: bool) -> "Stretch | None":
        """Publish what is free and in one piece, whole steps of it; None if there is no step."""
        end = self.start + self.byte_count
        steps = min(self.free, end - self.published_to) // self.step
        if not steps:
            return None
        stretch = Stretch(self, self.published_to, self.step if is_one_step else steps * self.step)
        self.free -= stretch.byte_count
        self.published_to += stretch.byte_count
        if self.published_to == end:
            self.published_to = self.start
        return stretch


class Stretch:
    """Octets of an area in one piece: published and not filled yet, or filled and not read."""

    __slots__ = ("area", "byte_count", "offset")

    def __init__(self, area: Area, offset: int, byte_count: int) -> None:
        self.area = area
        self.offset = offset  # in the memory
        self.byte_count = byte_count

    @property
    def address(self) -> int:
        """Return where the stretch begins for the peer."""
        return self.area.memory.address + self.offset

    def is_continued_by(self, other: "Stretch") -> bool:
        """Return whether a peer sees both as one: `self` has none of its octets left."""
        return self.area.memory.rkey == other.area.memory.rkey and self.address == other.address
