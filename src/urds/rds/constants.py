"""What `urds` exports of `numbers`: its enums and constants, and the flat Linux names of members.

Type checkers read `constants.pyi`, which `tools.stubs` writes.
"""

from urds.rds import numbers as _numbers
from urds.rds.numbers import *  # noqa: F403 - each number is defined once, there

globals().update(_numbers.FLAT)

__all__ = [*_numbers.__all__, *_numbers.FLAT]  # noqa: PLE0604 - all text
