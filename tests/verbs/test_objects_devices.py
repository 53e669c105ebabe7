"""The same objects over every device that can be opened by name, with real threads and clocks."""

import asyncio
import threading

import pytest

from tests.verbs.objects_world import Side
from urds.verbs import MR, Context, RecvWR, WCStatus, get_device_list

BY_HAND = [one.name for one in get_device_list() if one.name != "tcp0"]


def pair(name: str) -> tuple[Side, Side]:
    left, right = Side(Context(name)), Side(Context(name))
    left.lead_to(right)
    right.lead_to(left)
    return left, right


@pytest.mark.parametrize("name", BY_HAND)
def test_messages_are_awaited(name: str) -> None:
    left, right = pair(name)

    async def run() -> list[int]:
        found: list[int] = []
        for number in range(20):
            right.receive(number)
            left.send(b"ping", number)
            found += [wc.wr_id for wc in await right.cq.wait(1)]
            await left.cq.wait(1)
        return found

    assert asyncio.run(asyncio.wait_for(run(), 20)) == list(range(20))
    left.context.close()
    right.context.close()


@pytest.mark.parametrize("name", BY_HAND)
def test_a_region_that_is_closed_under_traffic_is_not_touched(name: str) -> None:
    """Once `close` returns its buffer is not written: it can be resized, or given to others."""
    left, right = pair(name)
    buffer = bytearray(256)
    mr = MR(right.pd, buffer)
    right.qp.post_recv([RecvWR(number, [mr.sge()]) for number in range(16)])

    def send() -> None:
        for number in range(16):
            left.send(bytes([number + 1]) * 64, number)

    thread = threading.Thread(target=send)
    thread.start()
    mr.close()
    kept = bytes(buffer)
    thread.join(10)
    statuses = [wc.status for wc in right.cq.wait_for(16, 20)]
    assert bytes(buffer) == kept
    buffer.clear()
    count = statuses.count(WCStatus.SUCCESS)
    assert kept[:64] == bytes([count]) * 64
    broken = [WCStatus.LOC_PROT_ERR] + [WCStatus.WR_FLUSH_ERR] * (15 - count)
    assert statuses == ([WCStatus.SUCCESS] * count + broken)[:16]
    left.context.close()
    right.context.close()
