"""Each rule of the stream core, broken on purpose, turns its simulation red.

A rule is broken by a patch, then seeds are tried until one fails as the world of `rsocket_world`
judges it: in safety or liveness. With the rule whole the same seed is well.
"""

from dataclasses import dataclass
from typing import Any

import pytest

from tests.sim.broken import Patch, around, demand_felt, instead, nothing
from tests.sim.rsocket_world import World
from urds.rsocket.core.stream import core
from urds.rsocket.core.stream.core import StreamCore
from urds.rsocket.core.stream.receive_ring import ReceiveRing, RingBuffer
from urds.rsocket.core.stream.records import Memory, Post
from urds.rsocket.core.stream.sending import Sending
from urds.rsocket.core.stream.tables import Iomap, RemoteSgl, SglUpdates
from urds.rsocket.wire.stream import Sge

pytestmark = pytest.mark.sim

SEEDS_MAX = 150
URDS, TO_ORIGINAL = (True, True), (True, False)


@dataclass(frozen=True, slots=True)
class Broken:
    """A rule, the patch that breaks it, and the pair that feels it."""

    rule: str
    patch: Patch
    are_urds: tuple[bool, bool] = URDS

    def run(self, seed: int) -> None:
        World(seed, are_urds=self.are_urds).run()


def _publish_what_is_unread(original: Any, buffer: RingBuffer, **named: Any) -> Any:
    buffer.free = buffer.byte_count
    return original(buffer, **named)


def _grant_one_too_many(original: Any, receive_ring: ReceiveRing, byte_count: int) -> None:
    original(receive_ring, byte_count)
    receive_ring._updates.messages_read += 1


def _stay_at_one_slot(original: Any, updates: SglUpdates, space: Sge | None) -> Any:
    index = updates._index
    post = original(updates, space)
    updates._index = index
    return post


def _forget_the_table_size(original: Any, receive_ring: ReceiveRing) -> Any:
    updates = receive_ring._updates
    entries, updates.entries = updates.entries, 1 << 20
    found = original(receive_ring)
    updates.entries = entries
    return found


def _wait_for_ever_with_credits(original: Any, receive_ring: ReceiveRing) -> Any:
    receive_ring._updates.threshold = 1 << 60
    return original(receive_ring)


def _leave_the_entry(original: Any, target: RemoteSgl, **named: Any) -> Any:
    table = bytes(target._table)
    found = original(target, **named)
    target._table[:] = table
    return found


def _map_for_later(sending: Sending, data: memoryview) -> int:
    sending._seal()
    sending._pending.append(data)
    sending.pending_bytes += len(data)
    return len(data)


def _gather_without_a_copy(sending: Sending, data: memoryview, byte_count: int) -> None:
    sending._seal()
    sending._pending.append(data[:byte_count])
    sending.pending_bytes += byte_count


def _keep_the_control_slot(original: Any, sending: Sending) -> Post:
    slots = sending.control_slots
    post = original(sending)
    sending.control_slots = min(slots, sending.control_slots)
    return post  # type: ignore[no-any-return]  # it is what `original` returns


def _have_slots_for_all(original: Any, sending: Sending, *arguments: Any) -> None:
    original(sending, *arguments)
    sending.control_slots = 100


def _end_a_wait_out_of_turn(original: Any, receive_ring: ReceiveRing) -> int:
    receive_ring._ahead = 0
    return original(receive_ring)  # type: ignore[no-any-return]  # it is what `original` returns


def _place_beside(original: Any, iomap: Iomap, offset: int, byte_count: int) -> Any:
    for address, rkey, count in original(iomap, offset, byte_count):
        yield (address - 1 if address & 1 else address), rkey, count


def _release_at_once(receive_ring: ReceiveRing, buffer: RingBuffer) -> None:
    if not buffer.start:
        receive_ring._source.release(buffer.memory)


def _give_up_memory_early(_: ReceiveRing, __: Memory) -> bool:
    return False


def _peek_takes(original: Any, receive_ring: ReceiveRing, view: memoryview, **_: Any) -> Any:
    return original(receive_ring, view, peek=False)


BROKEN = [
    Broken(
        "data wait for a credit",
        instead(Sending, "can_post", property(lambda self: bool(self.data_slots and self._spaces))),
    ),
    Broken(
        "data wait for a slot",
        instead(Sending, "can_post", property(lambda self: bool(self.credits and self._spaces))),
    ),
    Broken(
        "only what is read is published again",
        around(RingBuffer, "take_free", _publish_what_is_unread),
    ),
    Broken(
        "only messages that are read give credits",
        around(ReceiveRing, "take_message", _grant_one_too_many),
    ),
    Broken(
        "half of the credits are given back at once",
        around(ReceiveRing, "next_update", _wait_for_ever_with_credits),
    ),
    Broken("entries go from slot to slot", around(SglUpdates, "update", _stay_at_one_slot)),
    Broken(
        "no more entries than the table holds",
        around(ReceiveRing, "_next_range", _forget_the_table_size),
    ),
    Broken(
        "an entry is taken once",
        around(RemoteSgl, "take_entry", _leave_the_entry),
        TO_ORIGINAL,
    ),
    Broken(
        "a write to an original ends with its entry",
        around(
            RemoteSgl,
            "adopt",
            lambda original, self, first, **_: original(self, first, is_merging=True),
        ),
        TO_ORIGINAL,
    ),
    Broken("a table is in its owner's order", instead(core, "_byte_order_of", lambda _: "little")),
    Broken("lent bytes are posted at once", instead(Sending, "_send_zero_copy", _map_for_later)),
    Broken("bytes that wait are copied", instead(Sending, "_gather", _gather_without_a_copy)),
    Broken("a control slot comes back", around(Sending, "handle_sent", _keep_the_control_slot)),
    Broken("a fifth control message waits", around(Sending, "__init__", _have_slots_for_all)),
    Broken(
        "DISCONNECT leaves behind all bytes",
        instead(Sending, "is_idle", property(lambda self: not self.ready)),
    ),
    Broken("nothing follows DISCONNECT", instead(ReceiveRing, "stop", nothing)),
    Broken("the peer's last word ends reading", instead(StreamCore, "_take_control", nothing)),
    Broken(
        "bytes ahead of a wait come first",
        around(ReceiveRing, "end_expect", _end_a_wait_out_of_turn),
    ),
    Broken("memory of a wait is held", instead(ReceiveRing, "holds", _give_up_memory_early)),
    Broken("a peek takes nothing", around(ReceiveRing, "receive_into", _peek_takes)),
    Broken(
        "a buffer that is left is emptied first", instead(ReceiveRing, "_leave", _release_at_once)
    ),
    Broken("memory is given back at the end", instead(ReceiveRing, "close", nothing)),
    Broken("updates of the iomap give credits back", instead(ReceiveRing, "count_update", nothing)),
    Broken("direct writes go where they are mapped", around(Iomap, "places", _place_beside)),
]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.rule)
def test_a_broken_rule_is_felt(broken: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    demand_felt(broken.rule, broken.patch, broken.run, range(SEEDS_MAX), monkeypatch)
