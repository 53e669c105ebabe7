"""Records: slotted dataclasses whose methods are made when first needed.

`dataclass(slots=True)` compiles six methods for each class at import, and imports `inspect`. That
was half of a process's way to its first bind: it defines a hundred records and makes twenty. Here
a class gets its slots at once and a compiled `__init__` after a hundred instances. The rest is as
with `dataclass`: comparison, hash, `__match_args__`, pickling, inheritance, `__post_init__`.
Functions of the module `dataclasses` (`asdict`, `fields`, `replace`) take a record too; `fields`
and `replace` of this module do not import it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, TypeVar, dataclass_transform, overload

_T = TypeVar("_T")
_NONE_GIVEN: Final[Any] = object()  # None may be a default
_FIELDS: Final = "__record_fields__"
_BEFORE_COMPILED: Final = 100  # instances


class Field:
    """One field of a record; attributes have the names of `dataclasses.Field`."""

    __slots__ = ("default", "default_factory", "init", "kw_only", "metadata", "name", "put", "type")

    def __init__(
        self, default: Any, default_factory: Any, init: bool, metadata: Mapping[str, Any]
    ) -> None:
        self.name = ""
        self.type: Any = None
        self.kw_only = False
        self.put: Any = None  # (record, value): sets it, of a frozen record too
        self.default, self.default_factory = default, default_factory
        self.init, self.metadata = init, metadata


def field(
    *,
    default: Any = _NONE_GIVEN,
    default_factory: Any = _NONE_GIVEN,
    init: bool = True,
    metadata: Mapping[str, Any] | None = None,
) -> Any:
    """Describe a field, as `dataclasses.field` does."""
    return Field(default, default_factory, init, metadata or {})


@overload
def record(kind: type[_T], /) -> type[_T]: ...
@overload
def record(
    *, frozen: bool = True, kw_only: bool = False, eq: bool = True
) -> Callable[[type[_T]], type[_T]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(
    kind: Any = None, /, *, frozen: bool = True, kw_only: bool = False, eq: bool = True
) -> Any:
    """Make a record of a class, as `dataclass(slots=True)`; frozen unless it says otherwise."""
    if kind is None:
        return lambda each: _made(each, frozen=frozen, kw_only=kw_only, eq=eq)
    return _made(kind, frozen=frozen, kw_only=kw_only, eq=eq)


def fields(kind: Any) -> tuple[Field, ...]:
    """Return the fields of a record class or of a record."""
    return tuple(getattr(kind, _FIELDS).values())


def names(kind: Any) -> tuple[str, ...]:
    """Return the names of the fields of a record class or of a record."""
    return tuple(getattr(kind, _FIELDS))


def replace(one: _T, **changes: Any) -> _T:
    """Return a copy of a record with other values; they are checked as those of a new one."""
    same = {each.name: getattr(one, each.name) for each in fields(one) if each.init}
    return type(one)(**same | changes)


def _made(kind: Any, *, frozen: bool, kw_only: bool, eq: bool) -> Any:
    """Return the class anew: slots cannot be added to one that exists."""
    inherited: dict[str, Field] = {}
    for base in reversed(kind.__mro__[1:]):
        inherited |= base.__dict__.get(_FIELDS, {})
    namespace = dict(kind.__dict__)
    own: dict[str, Field] = {}
    for name, annotation in kind.__annotations__.items():
        if "ClassVar" not in str(annotation):
            given = namespace.pop(name, _NONE_GIVEN)
            one = given if isinstance(given, Field) else field(default=given)
            own[name] = one
            one.name, one.type, one.kw_only = name, annotation, kw_only
    every = inherited | own
    namespace.pop("__dict__", None)
    namespace.pop("__weakref__", None)
    namespace["__slots__"] = tuple(name for name in own if name not in inherited)
    namespace[_FIELDS] = every
    namespace["__dataclass_fields__"] = _AsDataclass(frozen)
    namespace["__dataclass_params__"] = _AsDataclass(frozen)
    positional = tuple(one.name for one in every.values() if one.init and not one.kw_only)
    namespace.setdefault("__match_args__", positional)
    _add_methods(namespace, tuple(every), frozen=frozen, eq=eq)
    made: Any = type(kind)(kind.__name__, kind.__bases__, namespace)
    made.__qualname__ = kind.__qualname__
    for name, one in every.items():
        one.put = getattr(made, name).__set__
    if "__init__" not in namespace:
        made.__init__ = _first_init(made, every, positional, frozen=frozen)
    if frozen:
        _freeze(made, frozenset(every))
    return made


def _add_methods(
    namespace: dict[str, Any], names: tuple[str, ...], *, frozen: bool, eq: bool
) -> None:
    """Add what needs no compilation, unless the class defines it itself."""
    values: Callable[[Any], Any] = attrgetter(*names) if names else lambda _: ()

    def shown(self: Any) -> str:
        pairs = [f"{name}={getattr(self, name)!r}" for name in names]
        return f"{type(self).__qualname__}({', '.join(pairs)})"

    def equals(self: Any, other: object) -> bool:
        return values(self) == values(other) if type(other) is type(self) else NotImplemented

    def hashed(self: Any) -> int:
        return hash(values(self))

    def state(self: Any) -> list[Any]:
        return [getattr(self, name) for name in names]

    def restore(self: Any, state: list[Any]) -> None:
        for name, value in zip(names, state, strict=True):
            object.__setattr__(self, name, value)

    has_hash = namespace.get("__hash__") is not None  # a class with __eq__ alone has None
    namespace.setdefault("__repr__", shown)
    namespace.setdefault("__replace__", replace)  # for copy.replace, Python 3.13
    if eq:
        namespace.setdefault("__eq__", equals)
        if not has_hash:
            namespace["__hash__"] = hashed if frozen else None
    if frozen:
        namespace.setdefault("__getstate__", state)
        namespace.setdefault("__setstate__", restore)


def _freeze(made: Any, names: frozenset[str]) -> None:
    """Have attributes set once, by `__init__`; those of a subclass with a dict are its own."""

    def refuse_set(self: Any, name: str, value: Any) -> None:
        if type(self) is made or name in names:
            raise _frozen(f"cannot assign to field {name!r}")
        super(made, self).__setattr__(name, value)

    def refuse_delete(self: Any, name: str) -> None:
        if type(self) is made or name in names:
            raise _frozen(f"cannot delete field {name!r}")
        super(made, self).__delattr__(name)

    made.__setattr__ = refuse_set
    made.__delattr__ = refuse_delete


def _frozen(text: str) -> AttributeError:
    from dataclasses import FrozenInstanceError

    return FrozenInstanceError(text)


def _first_init(
    made: Any, every: Mapping[str, Field], positional: Sequence[str], *, frozen: bool
) -> Callable[..., None]:
    """Return an `__init__` that puts a compiled one in its own place after many instances.

    To compile it costs as much as more than a hundred; most records of a process have fewer.
    """
    left = _BEFORE_COMPILED
    in_order = [every[name] for name in positional]
    has_more = hasattr(made, "__post_init__")

    def first(self: Any, *values: Any, **named: Any) -> None:
        nonlocal left
        left -= 1
        # Or the compiled one raises the right TypeError.
        if left < 0 or not _filled(self, every, in_order, values, named):
            made.__init__ = compiled = _compiled_init(made, frozen=frozen)
            compiled(self, *values, **named)
        elif has_more:
            self.__post_init__()

    return first


def _filled(
    self: Any,
    every: Mapping[str, Field],
    in_order: Sequence[Field],
    values: Sequence[Any],
    named: Mapping[str, Any],
) -> bool:
    """Set the fields as a compiled `__init__` does; false, half done, for wrong arguments."""
    if len(values) > len(in_order):
        return False
    for one, value in zip(in_order, values, strict=False):
        one.put(self, value)
    if len(values) == len(every):
        return not named
    given = in_order[: len(values)]
    taken = 0
    for name, one in every.items():
        if one in given:
            continue
        if one.init and name in named:
            one.put(self, named[name])
            taken += 1
        elif one.default_factory is not _NONE_GIVEN:
            one.put(self, one.default_factory())
        elif one.default is not _NONE_GIVEN:
            one.put(self, one.default)
        elif one.init:
            return False
    return taken == len(named)


def _compiled_init(made: Any, *, frozen: bool) -> Callable[..., None]:
    scope: dict[str, Any] = {"_none_given": _NONE_GIVEN}
    positional = ["self"]
    named: list[str] = []
    body: list[str] = []
    for one in fields(made):
        name = one.name
        has_factory = one.default_factory is not _NONE_GIVEN
        value = name if one.init else f"_default_{name}"
        if has_factory:
            scope[f"_make_{name}"] = one.default_factory
            value = f"_make_{name}()"
            if one.init:
                value += f" if {name} is _none_given else {name}"
        default = _NONE_GIVEN if has_factory else one.default
        scope[f"_default_{name}"] = default
        if one.init:
            has_default = has_factory or default is not _NONE_GIVEN
            parameter = f"{name}=_default_{name}" if has_default else name
            (named if one.kw_only else positional).append(parameter)
        if one.init or has_factory or default is not _NONE_GIVEN:
            scope[f"_put_{name}"] = getattr(made, name).__set__
            body.append(f"_put_{name}(self, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(made, "__post_init__"):
        body.append("self.__post_init__()")
    parameters = ", ".join([*positional, *(["*", *named] if named else [])])
    text = f"def __init__({parameters}):\n " + "\n ".join(body or ["pass"])
    exec(text, scope)
    made_init: Callable[..., None] = scope["__init__"]
    made_init.__qualname__ = f"{made.__qualname__}.__init__"
    made_init.__module__ = made.__module__
    return made_init


class _AsDataclass:
    """What makes a record a dataclass for the module `dataclasses`, made when it is asked for."""

    __slots__ = ("_frozen", "_name")

    def __init__(self, frozen: bool) -> None:
        self._frozen = frozen

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type[Any]) -> Any:
        import dataclasses

        described = []
        for one in fields(owner):
            given: dict[str, Any] = {"init": one.init, "metadata": one.metadata}
            if one.default is not _NONE_GIVEN:
                given["default"] = one.default
            if one.default_factory is not _NONE_GIVEN:
                given["default_factory"] = one.default_factory
            each = dataclasses.field(kw_only=one.kw_only, **given)
            described.append((one.name, one.type, each))
        plain = dataclasses.make_dataclass(owner.__name__, described, frozen=self._frozen)
        holder = next(kind for kind in owner.__mro__ if _FIELDS in kind.__dict__)
        for name in ("__dataclass_fields__", "__dataclass_params__"):
            setattr(holder, name, getattr(plain, name))
        return getattr(holder, self._name)
