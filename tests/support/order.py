"""The order in which the workers of a run take its files."""

from collections import Counter

import pytest


def begin_with_long_files(items: list[pytest.Item]) -> None:
    """Put files with a `slow` test first, then those with many tests.

    A long one that comes last would run while the other workers have nothing to do.
    """
    counts = Counter(item.path for item in items)
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path not in slow, -counts[item.path]))
