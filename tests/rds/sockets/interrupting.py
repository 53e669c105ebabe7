"""Signals at each point of a call: the handler runs wherever the interpreter looks for signals.

CPython looks after a call has returned, where a function begins, and where a loop turns back, but
not between a store and the call that follows it. Source: CPython 3.11 to 3.13, Python/ceval.c
(CHECK_EVAL_BREAKER). `sys.settrace` shows every instruction of the code under test. At the chosen
one of those that look, the signal is marked as come, by an attribute access, after which the
interpreter does not look. So it is the interpreter that runs the handler, where it always does.

    for at in count(1):
        with Interruption(at, raising) as injection:
            ...                       # the call; `Interrupted` ends the block, others go through
        ...                           # what must be true now
        if not injection.fired:       # the call has fewer of them
            break

A handler may do anything: `raising` raises, another may close a socket or send. With `then` the
handler runs a second time, so many looks after the first: in what cleans up.

The main thread only. Nothing wakes a sleep: the block must find what it waits for.
"""

from __future__ import annotations

import _thread
import dis
import signal
import sys
from collections.abc import Callable
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, Self

SIGNAL = signal.SIGUSR1
OURS = "/src/urds/"


class Interrupted(BaseException):
    """What `raising` raises; nothing in the code under test catches it by mistake."""


def raising(frame: FrameType | None) -> None:
    """Raise `Interrupted`."""
    raise Interrupted(position(frame))


def position(frame: FrameType | None) -> str:
    """Return the file, line and function that a handler interrupts."""
    if frame is None:
        return "nowhere"
    code = frame.f_code
    return f"{code.co_filename.rpartition('/')[2]}:{frame.f_lineno} in {code.co_qualname}"


@lru_cache(None)
def _looks_of(code: CodeType) -> frozenset[int]:
    """Return the offsets of the instructions that look for signals."""
    return frozenset(
        one.offset
        for one in dis.get_instructions(code)
        if one.opname.startswith(("CALL", "RESUME")) or "JUMP_BACKWARD" in one.opname
    )


class _Signal(int):
    """A signal whose attribute `comes` marks it as come."""

    comes = property(_thread.interrupt_main)


class Interruption:
    """Run `handler` at the `at`-th look for signals of code in files whose name contains `where`.

    `skip` leaves out files whose name contains it. `then` runs the handler once more. The block
    ends where the handler raises `Interrupted`. `positions` tells where the handler ran.
    """

    def __init__(
        self,
        at: int,
        handler: Callable[[FrameType | None], object] = raising,
        *,
        then: int = 0,
        where: str = OURS,
        skip: str = "",
    ) -> None:
        self.left, self._then = at, then
        self._handler = handler
        self._where, self._skip = where, skip
        self._signal = _Signal(SIGNAL)
        self._before: Any = None
        self._outer: Any = None
        self.looks = 0
        self.positions: list[str] = []

    @property
    def fired(self) -> bool:
        """Whether the handler ran."""
        return bool(self.positions)

    def __enter__(self) -> Self:
        self._before = signal.signal(SIGNAL, self._handle)
        self._outer = sys.gettrace()
        # CPython 3.12 tells of instructions only if some frame asked before the tracing began.
        sys._getframe().f_trace_opcodes = True
        sys.settrace(self._call)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        sys.settrace(self._outer)
        signal.signal(SIGNAL, self._before)
        return kind is Interrupted

    def _handle(self, _: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code is Interruption.__exit__.__code__:
            return  # the signal came behind the last look in the block
        self.positions.append(position(frame))
        self.left, self._then = self._then, 0
        try:
            self._handler(frame)
        finally:
            if self.left:
                sys.settrace(self._call)

    def _call(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        """Trace a frame of the code under test; see `sys.settrace`."""
        name = frame.f_code.co_filename
        if self._where not in name or (self._skip and self._skip in name):
            return None
        frame.f_trace = self._instruction  # CPython 3.13 wants it before the next line
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._instruction

    def _instruction(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
        """Count the instructions that look for signals; at the chosen one the signal comes."""
        if event == "opcode" and frame.f_lasti in _looks_of(frame.f_code):
            self.looks += 1
            self.left -= 1
            if not self.left:
                sys.settrace(None)  # else the next look for signals would be in here
                self._signal.comes  # noqa: B018 - no call, so nothing looks for signals after it
        return self._instruction
