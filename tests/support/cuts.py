"""A signal handler that raises at a chosen step of this project's code, on purpose and not by luck.

CPython runs handlers of signals in the main thread where a function begins, behind a call, and
where a loop goes back to its start. `Cut` raises at the n-th of these places below `src/urds`; a
test that counts n up from 0 until nothing is raised has been through all of them.
"""

import dis
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import urds

_SOURCES = str(Path(urds.__file__).parent)
_CHECKING = {code for name, code in dis.opmap.items() if name.startswith(("CALL", "JUMP_BACKWARD"))}


def _handler(code: CodeType, at: int) -> int | None:
    """Return where an exception at an instruction is handled."""
    entries = dis._parse_exception_table(code)  # type: ignore[attr-defined]  # no public way
    return next((one.target for one in entries if one.start <= at < one.end), None)


class Raised(BaseException):
    """What the handler raises; like KeyboardInterrupt it is no Exception."""


class Cut:
    """The trace function of a thread that raises `Raised` once, at step number `at`."""

    def __init__(self, at: int, *, within: Sequence[str] = ("",)) -> None:
        """`within`: count only steps of files whose path below `src/urds` begins so."""
        self.at = at
        self.place = ""  # where it raised
        self._prefixes = tuple(f"{_SOURCES}/{name}" for name in within)
        self._count = 0
        self._last: dict[FrameType, int] = {}

    def __enter__(self) -> "Cut":
        self._before = sys.gettrace()
        sys.settrace(self._begin)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)
        self._last.clear()

    @property
    def has_raised(self) -> bool:
        return bool(self.place)

    def _begin(self, frame: FrameType, event: str, _argument: object) -> Callable[..., Any] | None:
        if self.place or not frame.f_code.co_filename.startswith(self._prefixes):
            return None
        self._step(frame)
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._go_on

    def _go_on(self, frame: FrameType, event: str, _argument: object) -> Callable[..., Any] | None:
        if event == "opcode" and not self.place:
            last = self._last.get(frame, -1)
            self._last[frame] = frame.f_lasti
            code = frame.f_code
            may_raise = last >= 0 and code.co_code[last] in _CHECKING
            # The exception comes out of the call, but is raised here at what follows it.
            if may_raise and _handler(code, last) == _handler(code, frame.f_lasti):
                self._step(frame)
        elif event == "return":
            self._last.pop(frame, None)
        return self._go_on

    def _step(self, frame: FrameType) -> None:
        count, self._count = self._count, self._count + 1
        if count == self.at:
            self.place = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
            sys.settrace(None)
            raise Raised(self.place)


def through_all_steps(
    act: Callable[[], object], check: Callable[[str], None], **chosen: Any
) -> int:
    """Cut `act` short at each of its steps in turn, and `check` afterwards; return how many."""
    for at in range(100_000):
        cut = Cut(at, **chosen)
        try:
            with cut:
                act()
        except Raised:
            pass
        if not cut.has_raised:
            return at
        check(cut.place)
    raise AssertionError("it never ends")
