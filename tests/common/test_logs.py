"""What an unknown peer can make us log."""

from urds.common.logs import LogLimit

SECOND = 1_000_000_000


def test_ten_lines_in_five_seconds() -> None:
    limit = LogLimit()
    assert [limit.admits(0) for _ in range(12)] == [True] * 10 + [False] * 2
    assert limit.admits(5 * SECOND)
    assert limit.note() == " (2 more like this not shown)"
    assert limit.note() == ""
