"""A record is what `dataclass(slots=True)` makes of the same class, at another price."""

import copy
import dataclasses
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from tests.health.sources import ROOT
from urds.common.records import field, fields, names, record, replace

STANDARD: dict[str, Callable[..., Any]] = {
    "record": record,
    "dataclass": lambda **given: dataclasses.dataclass(slots=True, **{"frozen": True} | given),
}


@record
class Point:
    x: int
    y: int = 2


@record
class Named(Point):
    name: str = ""
    COUNT: ClassVar[int] = 3

    def shout(self) -> str:
        return self.name.upper()


@record(frozen=False)
class Bag:
    things: list[int] = field(default_factory=list)
    size: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.size = len(self.things)


@record(kw_only=True)
class Keyed:
    a: int
    b: int = field(default=5, metadata={"unit": "ms"})


@record(frozen=False, eq=False)
class Same:
    x: int = 1


@pytest.fixture(params=STANDARD)
def decorator(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Each of the tests holds for both."""
    return STANDARD[request.param]


def test_positional_and_named_arguments_and_defaults(decorator: Callable[..., Any]) -> None:
    @decorator(frozen=True)
    class Made:
        x: int
        y: int = 2

    assert [(one.x, one.y) for one in (Made(1), Made(1, 3), Made(y=4, x=1))] == [
        (1, 2), (1, 3), (1, 4),
    ]  # fmt: skip
    assert Made.__slots__ == ("x", "y")
    assert Made.__match_args__ == ("x", "y")
    assert not hasattr(Made(1), "__dict__")
    assert repr(Made(1)).endswith("Made(x=1, y=2)")
    with pytest.raises(TypeError, match=r"Made\.__init__\(\) "):
        Made(1, 3, y=4)
    for wrong in ((), (1, 2, 3)):
        with pytest.raises(TypeError, match=r"Made\.__init__\(\) "):
            Made(*wrong)


def test_equality_and_hash(decorator: Callable[..., Any]) -> None:
    @decorator(frozen=True)
    class One:
        x: int

    @decorator(frozen=True)
    class Other:
        x: int

    @decorator(frozen=False)
    class Changing:
        x: int

    @decorator(frozen=True)
    class Empty:
        pass

    assert One(1) == One(1) != One(2)
    assert One(1) != Other(1)
    assert hash(One(1)) == hash(One(1))
    assert len({One(1), One(1), One(2)}) == 2
    assert Empty() == Empty()
    assert hash(Empty()) == hash(Empty())
    assert Changing(1) == Changing(1)
    with pytest.raises(TypeError, match="unhashable"):
        hash(Changing(1))


def test_a_record_is_frozen_unless_it_says_otherwise() -> None:
    point = Point(1)
    for attribute in ("x", "z"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(point, attribute, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        del point.x  # type: ignore[misc]  # the point of the test
    assert point == Point(1)
    bag = Bag([1])
    bag.things = [3]
    assert bag.things == [3]


def test_own_methods_stay(decorator: Callable[..., Any]) -> None:
    @decorator(frozen=True)
    class Made:
        x: int

        def __repr__(self) -> str:
            return "mine"

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 7

    assert (repr(Made(1)), Made(1) == Made(2), hash(Made(1))) == ("mine", True, 7)


def test_a_subclass_has_the_fields_of_its_base_first() -> None:
    assert names(Named) == ("x", "y", "name")
    assert Named.__slots__ == ("name",)
    assert Named(1, 2, "a") == Named(1, name="a") != Point(1)
    assert isinstance(Named(1), Point)
    assert Named(1, name="a").shout() == "A"
    match Named(1, 5, "b"):
        case Point(x, y):
            assert (x, y) == (1, 5)


def test_factories_and_post_init() -> None:
    first, second = Bag(), Bag()
    first.things.append(1)
    assert second.things == []
    assert Bag([1, 2]).size == 2
    with pytest.raises(TypeError):
        Bag([1], 2)  # type: ignore[call-arg]  # size is no argument


def test_keywords_only() -> None:
    assert Keyed(a=1).b == 5
    with pytest.raises(TypeError):
        Keyed(1)  # type: ignore[misc]  # the point of the test
    assert Keyed.__match_args__ == ()


def _last(made_before: int) -> Any:
    """Return a record with every kind of field, of which so many instances were made."""

    @record
    class Every:
        a: int
        b: int = field(init=False, default=2)
        c: int = 3
        d: list[int] = field(default_factory=list)
        e: int = field(default=5)
        f: int = field(init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "f", self.a + self.e)

    @record(kw_only=True)
    class Last(Every):
        g: int

    for number in range(made_before):
        Last(number, g=number)
    return Last


@pytest.mark.parametrize("made_before", [0, 500])
def test_the_first_instances_are_made_as_the_others(made_before: int) -> None:
    """An interpreted `__init__` makes the first ones, a compiled one those of a class of many."""
    kind = _last(made_before)
    one = kind(1, 4, e=6, g=7)
    assert [getattr(one, name) for name in "abcdefg"] == [1, 2, 4, [], 6, 7, 7]
    assert one.d is not kind(1, g=2).d


@pytest.mark.parametrize("made_before", [0, 500])
@pytest.mark.parametrize(
    ("values", "named"),
    [
        ((1, 3, [], 5, 7), {"g": 7}),
        ((1,), {}),
        ((1,), {"a": 1, "g": 7}),
        ((1,), {"b": 1, "g": 7}),
        ((1,), {"z": 1, "g": 7}),
        ((), {"g": 7}),
    ],
)
def test_wrong_arguments_are_refused(
    values: tuple[Any, ...], named: dict[str, Any], made_before: int
) -> None:
    kind = _last(made_before)
    with pytest.raises(TypeError, match=r"Last\.__init__\(\) "):
        kind(*values, **named)


def test_identity_where_it_is_asked_for() -> None:
    assert Same() != Same()
    assert len({Same(), Same()}) == 2


def test_replace_and_fields() -> None:
    assert replace(Named(1, name="a"), y=7) == Named(1, 7, "a")
    assert replace(Bag([1, 2]), things=[3]).size == 1
    assert Point(1).__replace__(y=3) == Point(1, 3)  # type: ignore[attr-defined]  # copy.replace
    assert [(one.name, one.default) for one in fields(Keyed(a=1))][1] == ("b", 5)
    assert fields(Keyed)[1].metadata == {"unit": "ms"}
    with pytest.raises(TypeError):
        replace(Point(1), z=1)


@pytest.mark.parametrize("one", [Point(1), Named(1, name="a"), Bag([1, 2]), Keyed(a=3)])
def test_copies_and_pickles_are_equal(one: object) -> None:
    for copied in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert copied == one
        assert copied is not one


def test_the_module_dataclasses_takes_records() -> None:
    assert dataclasses.asdict(Named(1, name="a")) == {"x": 1, "y": 2, "name": "a"}
    assert dataclasses.replace(Point(1), y=5) == Point(1, 5)
    assert [one.name for one in dataclasses.fields(Bag)] == ["things", "size"]
    assert dataclasses.fields(Keyed)[1].metadata == {"unit": "ms"}
    assert dataclasses.is_dataclass(Point)
    assert dataclasses.is_dataclass(Named(1))


def test_a_dataclass_may_derive_from_a_record() -> None:
    @dataclasses.dataclass(frozen=True, slots=True)
    class Derived(Point):
        z: int = 3

    assert dataclasses.astuple(Derived(1)) == (1, 2, 3)


def test_a_plain_subclass_has_attributes_of_its_own() -> None:
    class Free(Point):
        pass

    free = Free(1)
    free.colour = "red"  # type: ignore[attr-defined]  # it has a dict
    assert vars(free) == {"colour": "red"}
    with pytest.raises(dataclasses.FrozenInstanceError):
        free.x = 2  # type: ignore[misc]  # the point of the test


def test_records_are_made_without_the_module_dataclasses() -> None:
    """That module imports `inspect`, which costs as much as the rest of an import of urds."""
    program = """
import sys
from urds.common.records import record, replace
@record
class Point:
    x: int
assert replace(Point(1), x=2) == Point(2) and "dataclasses" not in sys.modules
"""
    command = [sys.executable, "-S", "-c", program]
    env = {"PYTHONPATH": str(ROOT / "src")}
    subprocess.run(command, check=True, env=env, timeout=60)
