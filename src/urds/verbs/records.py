"""Records that a program makes per message: those of Python, or classes of the compiled module.

The compiled ones have the fields, defaults, equality, text and pickled form of the dataclasses in
`engine.work`, which are the reference; `dataclasses.replace`, `fields` and `asdict` take them too.
A post reads them without an attribute look-up, and to make one costs a quarter. Either engine takes
either kind. `WC` is one tuple for both.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast

from urds.common.errors import PlaneError, SettingError
from urds.common.implementation import NATIVE, choose
from urds.verbs.engine import work
from urds.verbs.engine.work import SGE, WC, RecvWR, SendWR
from urds.verbs.errors import demand_integer, demand_kind

__all__ = ["PIECES", "RECEIVES", "SENDS", "SGE", "WC", "RecvWR", "SendWR"]

_OF_DATACLASSES: Final = (
    "__dataclass_fields__", "__dataclass_params__", "__match_args__", "__replace__",
)  # fmt: skip


def _is_compiled() -> bool:
    try:
        return choose().plane == NATIVE
    except (PlaneError, SettingError):
        return False  # the open of a device raises it


if not TYPE_CHECKING and _is_compiled():
    import urds_native

    for _reference in (work.SGE, work.RecvWR, work.SendWR):
        _compiled = getattr(urds_native, _reference.__name__)
        for _name in _OF_DATACLASSES:
            if hasattr(_reference, _name):
                setattr(_compiled, _name, getattr(_reference, _name))
    SGE, RecvWR, SendWR = urds_native.SGE, urds_native.RecvWR, urds_native.SendWR

# What a post takes, of either kind.
PIECES: Final = (SGE, work.SGE)
SENDS: Final = (SendWR, work.SendWR)
RECEIVES: Final = (RecvWR, work.RecvWR)


def demand_pieces(sg: object) -> None:
    """Raise TypeError for what is no list of SGE, or one with something else than integers."""
    demand_kind(sg, Sequence, "sg")
    for piece in cast("Sequence[object]", sg):
        demand_kind(piece, PIECES, "a piece of sg")
        for name in ("addr", "length", "lkey"):
            demand_integer(getattr(piece, name), f"SGE(): {name}")
