"""Memory that the peer writes, and stretches of it.

An area is a ring: octets are published, filled, read and free again in one order. What is
neither published nor holding unread octets is free; an area that is left for a larger one is given
back when all of it is free, for then nothing of it is published.
"""

from urds.rsocket.stream.records import Memory


class Area:
    """A part of a memory: `byte_count` octets from `start`."""

    __slots__ = ("byte_count", "free", "is_left", "memory", "published_to", "start", "step", "view")

    def __init__(self, memory: Memory, start: int, byte_count: int, step: int) -> None:
        self.memory = memory
        self.view = memory.view
        self.start = start
        self.byte_count = byte_count
        self.step = step  # less than that is not published
        self.free = byte_count
        self.published_to = start  # offset in the memory at which publishing goes on
        self.is_left = False

    def take_free(self, *, byte_count_max: int) -> "Stretch | None":
        """Publish what is free and in one piece, whole steps of it if there are any.

        None if less than a step is free. A rest before the end of the ring is published as well.
        """
        if self.free < self.step or not byte_count_max:
            return None
        end = self.start + self.byte_count
        byte_count = min(self.free, end - self.published_to)
        byte_count = min(byte_count // self.step * self.step or byte_count, byte_count_max)
        stretch = Stretch(self, self.published_to, byte_count)
        self.free -= byte_count
        self.published_to += byte_count
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
