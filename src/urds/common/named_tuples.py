"""`NamedTuple`, which makes of a class body what `typing.NamedTuple` makes, at another price.

Where annotations are texts, as in every module with `from __future__ import annotations`, that of
`typing` compiles each of them, and has the interpreter make its 120 types of syntax trees for it:
a twentieth of what a process spends until its first bind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["NamedTuple"]

if TYPE_CHECKING:
    from typing import NamedTuple
else:
    from collections import namedtuple

    class _Maker(type):
        """Turns a class body into a named tuple; there are no instances of it."""

        def __new__(kind, name: str, _bases: object, body: dict[str, Any]) -> type:
            types = body.get("__annotations__", {})
            optional = [field for field in types if field in body]
            if optional != list(types)[len(types) - len(optional) :]:
                raise TypeError(f"{name}: a field without a default follows one with a default")
            defaults = [body.pop(field) for field in optional]
            made = namedtuple(name, types, defaults=defaults, module=body["__module__"])
            for key, value in body.items():
                if key != "__module__":
                    setattr(made, key, value)
            return made

    class _NamedTuple:
        def __mro_entries__(self, _bases: tuple[object, ...]) -> tuple[type]:
            return (_BASE,)

    _BASE = type.__new__(_Maker, "NamedTuple", (), {})
    NamedTuple = _NamedTuple()
