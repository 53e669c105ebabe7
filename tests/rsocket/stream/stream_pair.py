"""Two stream cores and what lies between them: memory by address, posts in order, no rng.

`Host` is a source of memory that finds it again by address and key, as a device does. `Side` is a
core with its posts under way: `post` takes what the core has to say, `deliver` lets the oldest
land at the peer, `complete` tells the core so. `Pair.run` does all of it until both are silent.
"""

import errno
import itertools
from collections.abc import Callable

from urds.rsocket.core.stream.core import StreamCore
from urds.rsocket.core.stream.records import (
    Memory,
    MemorySource,
    Post,
    PostKind,
    StreamSettings,
)

STEPS_MAX = 100_000
make_core: Callable[[StreamSettings, MemorySource], StreamCore] = StreamCore  # see conftest


class Host:
    """Memory of one side; any access outside of what is registered fails the test."""

    def __init__(self, base: int, *, limit_bytes: int = 1 << 26) -> None:
        self.memories: dict[int, Memory] = {}
        self.limit_bytes = limit_bytes
        self.released: list[Memory] = []
        self._address = base
        self._keys = itertools.count(base >> 32 | 1)

    @property
    def held_bytes(self) -> int:
        return sum(memory.view.nbytes for memory in self.memories.values())

    def allocate(self, byte_count: int) -> Memory:
        if self.held_bytes + byte_count > self.limit_bytes:
            raise OSError(errno.ENOMEM, f"{byte_count} bytes")
        memory = Memory(memoryview(bytearray(byte_count)), self._address, next(self._keys))
        self._address += byte_count + 4096
        self.memories[memory.rkey] = memory
        return memory

    def release(self, memory: Memory) -> None:
        del self.memories[memory.rkey]
        self.released.append(memory)

    def write(self, post: Post) -> None:
        if not len(post.data):
            return
        memory = self.memories[post.rkey]
        start = post.address - memory.address
        assert 0 <= start <= start + len(post.data) <= memory.view.nbytes, post
        memory.view[start : start + len(post.data)] = post.data


class Side:
    """One core and its posts."""

    def __init__(self, settings: StreamSettings, base: int) -> None:
        self.host = Host(base)
        self.stream = make_core(settings, self.host)
        self.posted: list[Post] = []  # not landed
        self.landed: list[Post] = []  # not completed
        self.log: list[Post] = []  # all that was ever posted
        self.peer: Side

    def post(self) -> list[Post]:
        """Take all that the core has to say now."""
        posts = []
        while (post := self.stream.poll_transmit()) is not None:
            assert len(posts) < STEPS_MAX
            posts.append(post)
        self.posted += posts
        self.log += posts
        return posts

    def deliver(self, count: int | None = None) -> None:
        """Let the oldest posts land, all of them without a count."""
        for _ in range(len(self.posted) if count is None else count):
            post = self.posted.pop(0)
            self.peer.host.write(post)
            self.landed.append(post)
            if post.imm_data is not None:
                self.peer.stream.receive_data(post.imm_data)

    def complete(self, count: int | None = None) -> None:
        """Complete the oldest posts that landed, all of them without a count."""
        for _ in range(len(self.landed) if count is None else count):
            self.landed.pop(0)
            self.stream.handle_sent()

    def send(self, data: bytes, *, may_zero_copy: bool = False) -> int:
        return self.stream.send(memoryview(data), may_zero_copy=may_zero_copy)

    def read(self, byte_count: int = 1 << 24, *, peek: bool = False) -> bytes:
        wanted = min(byte_count, self.stream.receive_ring.readable_bytes)
        room = bytearray(wanted)
        done = self.stream.receive_ring.receive_into(memoryview(room), peek=peek)
        return bytes(room[:done])

    def posted_kinds(self) -> list[PostKind]:
        return [post.kind for post in self.posted]

    def data_posts(self) -> list[Post]:
        return [post for post in self.log if post.kind is PostKind.DATA]


class Pair:
    """Two sides, connected."""

    def __init__(
        self,
        left: StreamSettings | None = None,
        right: StreamSettings | None = None,
        *,
        is_settled: bool = False,
    ) -> None:
        self.left = Side(left or StreamSettings(), 0x10_0000_0000)
        self.right = Side(right or StreamSettings(), 0x7F00_0000_0000)
        self.left.peer, self.right.peer = self.right, self.left
        self.left.stream.adopt(self.right.stream.connect_data)
        self.right.stream.adopt(self.left.stream.connect_data)
        if is_settled:
            self.run()

    def run(self) -> None:
        """Post, deliver and complete until both sides are silent."""
        for _ in range(STEPS_MAX):
            self.left.post()
            self.right.post()
            if not any((self.left.posted, self.right.posted, self.left.landed, self.right.landed)):
                return
            self.left.deliver()
            self.right.deliver()
            self.left.complete()
            self.right.complete()
        raise AssertionError("the pair does not come to rest")
