"""The soak finds each error that its message logs and trends are there to find."""

import pytest

from tests.soak.measures import MIB, Sample, trend
from tests.soak.messages import HEAD_BYTES, Counters, Head, Kind, MessageLog, Writer

SOURCE = ("127.0.0.2", 4000)


def written(count: int) -> list[bytes]:
    writer = Writer()
    return [writer.next(Kind.ONE_WAY, HEAD_BYTES + 10 * number) for number in range(count)]


def counted(payloads: list[bytes]) -> dict[str, int]:
    """Return what a message log counts, zeros and bytes left out."""
    counters = Counters()
    log = MessageLog(counters)
    for payload in payloads:
        log.check(payload, SOURCE)
    return {
        name: count for name, count in counters.as_dict().items() if count and name != "byte_count"
    }


def test_messages_in_order_are_no_error() -> None:
    assert counted(written(5)) == {"messages": 5}


def test_a_missing_message_is_lost() -> None:
    first, _, *others = written(5)
    assert counted([first, *others]) == {"messages": 4, "lost": 1}


def test_a_message_that_comes_too_late_is_reordered() -> None:
    first, second, *others = written(5)
    assert counted([first, others[0], second, *others[1:]]) == {"messages": 4, "reordered": 1}


def test_a_message_that_comes_twice_is_repeated() -> None:
    first, *others = written(5)
    assert counted([first, first, *others]) == {"messages": 5, "repeated": 1}


@pytest.mark.parametrize("place", [0, HEAD_BYTES, -1])
def test_a_changed_byte_is_damage_or_a_gap(place: int) -> None:
    *others, last = written(3)
    changed = bytearray(last)
    changed[place] ^= 0x80
    found = counted([*others, bytes(changed)])
    assert found["messages"] < 3 or "lost" in found


def test_a_message_cut_short_is_damaged() -> None:
    *others, last = written(3)
    assert counted([*others, last[:-1]]) == {"messages": 2, "damaged": 1}


def test_empty_messages_are_counted_by_the_next_one() -> None:
    writer = Writer()
    first = writer.next(Kind.ONE_WAY, 0)
    empties = [writer.next_empty(), writer.next_empty()]
    last = writer.next(Kind.ONE_WAY, 0)
    assert counted([first, *empties, last]) == {"messages": 4}
    assert counted([first, *empties[1:], last])["lost"] == 1
    assert counted([first, *empties, b"", last])["repeated"] == 1


def test_a_later_life_begins_anew_and_an_earlier_one_is_stale() -> None:
    before, after = written(2), written(2)
    assert counted([*before, *after]) == {"messages": 4}
    assert counted([after[0], before[1], after[1]]) == {"messages": 2, "stale": 1}


def test_a_source_that_ended_is_forgotten() -> None:
    writer, log = Writer(), MessageLog(Counters())
    log.check(writer.next(Kind.ONE_WAY, 0), SOURCE)
    assert log.source_count == 1
    log.check(writer.next(Kind.END, 0), SOURCE)
    assert log.source_count == 0


def test_an_answer_is_told_from_other_answers() -> None:
    writer = Writer()
    first = Head.parse(writer.next(Kind.ASK, 100))
    second = Head.parse(writer.next(Kind.ASK, 100))
    assert first is not None and second is not None
    answers = [Head.parse(one.answer()) for one in (first, second)]
    assert [writer.is_answer(one) for one in answers if one] == [False, True]


def samples(growth_mib_per_hour: float, descriptors_more: int = 0) -> list[Sample]:
    """Return an hour of samples, each third with a message of 1 MiB under way."""
    return [
        Sample(
            at_s=at_s,
            rss_bytes=round((40 + growth_mib_per_hour * at_s / 3600 + (at_s % 15 == 0)) * MIB),
            descriptors=12 + (descriptors_more if at_s > 2650 else 0),
            threads=4,
            cpu_s=0.0,
        )
        for at_s in range(0, 3600, 5)
    ]


@pytest.mark.parametrize(
    ("growth_mib_per_hour", "descriptors_more", "is_flat"),
    [(0.0, 0, True), (0.5, 2, True), (1.5, 0, False), (0.0, 3, False)],
)
def test_growth_is_seen(growth_mib_per_hour: float, descriptors_more: int, is_flat: bool) -> None:
    found = trend(samples(growth_mib_per_hour, descriptors_more), window_s=60)
    assert found is not None and found.is_judged
    assert found.is_flat is is_flat
    assert abs(found.slope_mib_per_hour - growth_mib_per_hour) < 0.1


def test_a_short_run_is_not_judged() -> None:
    found = trend(samples(100.0)[:100], window_s=5)
    assert found is not None and not found.is_judged and found.is_flat
