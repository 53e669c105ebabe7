"""How much a stranger can make us log."""

from __future__ import annotations

_LINES_MAX = 10
_WINDOW_NS = 5_000_000_000  # ten lines in five seconds. Source: linux v6.12 net/core/utils.c


class LogLimit:
    """Admit a few lines per window; counters go on counting what is not logged."""

    def __init__(self) -> None:
        self._began_ns = -_WINDOW_NS
        self._lines = 0
        self.left_out = 0  # since the last line that was admitted

    def admits(self, now_ns: int) -> bool:
        """Tell whether a line may be logged now."""
        if now_ns - self._began_ns >= _WINDOW_NS:
            self._began_ns, self._lines = now_ns, 0
        self._lines += 1
        if self._lines > _LINES_MAX:
            self.left_out += 1
            return False
        return True

    def note(self) -> str:
        """Return what to add to an admitted line: how many were left out before it."""
        left_out, self.left_out = self.left_out, 0
        return f" ({left_out} more like this not shown)" if left_out else ""
