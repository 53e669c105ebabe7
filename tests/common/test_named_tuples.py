"""A named tuple is what `typing.NamedTuple` makes of the same class, and compiles no annotation."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import typing
from typing import Any

import pytest

from urds.common.named_tuples import NamedTuple


class Ours(NamedTuple):
    """A place."""

    x: int
    y: int = 2
    name: str = ""

    def shout(self) -> str:
        return self.name.upper()

    @property
    def both(self) -> int:
        return self.x + self.y


class Standard(typing.NamedTuple):
    """A place."""

    x: int
    y: int = 2
    name: str = ""

    def shout(self) -> str:
        return self.name.upper()

    @property
    def both(self) -> int:
        return self.x + self.y


@pytest.fixture(params=[Ours, Standard])
def kind(request: pytest.FixtureRequest) -> Any:
    """Each of the tests holds for both."""
    return request.param


def test_fields_defaults_and_methods(kind: Any) -> None:
    one = kind(1, name="a")
    assert one == (1, 2, "a")
    assert (one.both, one.shout()) == (3, "A")
    assert one._replace(x=5)._asdict() == {"x": 5, "y": 2, "name": "a"}
    assert kind._fields == kind.__match_args__ == ("x", "y", "name")
    assert kind._field_defaults == {"y": 2, "name": ""}
    assert repr(one) == f"{kind.__name__}(x=1, y=2, name='a')"
    with pytest.raises(TypeError):
        kind()
    with pytest.raises(AttributeError):
        one.x = 3
    with pytest.raises(AttributeError):
        one.z = 3


def test_names_types_and_copies(kind: Any) -> None:
    assert (kind.__doc__, kind.__module__, kind.__bases__) == ("A place.", __name__, (tuple,))
    assert kind.__qualname__ == kind.__name__
    assert typing.get_type_hints(kind) == {"x": int, "y": int, "name": str}
    one = kind(1)
    assert pickle.loads(pickle.dumps(one)) == copy.copy(one) == one
    assert type(copy.deepcopy(one)) is kind


def test_a_field_without_default_after_one_with_is_refused() -> None:
    with pytest.raises(TypeError):

        class Wrong(NamedTuple):
            x: int = 1
            y: int  # type: ignore[misc]  # the wrong order


def test_no_annotation_is_compiled() -> None:
    program = """
import builtins
from urds.common.named_tuples import NamedTuple
builtins.compile = None
class Point(NamedTuple):
    x: "list[int] | None"
assert Point([1]).x == [1]
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
