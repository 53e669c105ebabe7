"""Breaking a rule on purpose, and the search for a seed whose world feels it."""

from collections.abc import Callable
from typing import Any

import pytest

Patch = Callable[[pytest.MonkeyPatch], None]


def instead(owner: Any, name: str, value: Any) -> Patch:
    """Put something wrong in place of a method, a property, a function or a constant."""
    return lambda patch: patch.setattr(owner, name, value)


def around(owner: Any, name: str, wrapper: Callable[..., Any]) -> Patch:
    """Call `wrapper` in place of a method, with the method before its arguments."""
    original = getattr(owner, name)

    def called(self: Any, *arguments: Any, **named: Any) -> Any:
        return wrapper(original, self, *arguments, **named)

    return lambda patch: patch.setattr(owner, name, called)


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def demand_felt(
    rule: str,
    broken: Patch,
    run: Callable[[int], None],
    seeds: range,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Demand that a world fails while the rule is broken, and is well with the rule whole.

    run: makes the world of a seed; it raises AssertionError with a text that begins with "seed".
    """
    with monkeypatch.context() as patch:
        broken(patch)
        seed, failure = _failing_seed(run, seeds)
    print(f"{rule}: seed {seed}: {failure}")
    assert seed is not None, f"none of {len(seeds)} seeds feels it"
    assert failure.startswith("seed"), f"an assertion inside fell, not the world's: {failure}"
    run(seed)


def _failing_seed(run: Callable[[int], None], seeds: range) -> tuple[int | None, str]:
    for seed in seeds:
        try:
            run(seed)
        except AssertionError as failure:
            return seed, str(failure)
    return None, ""
