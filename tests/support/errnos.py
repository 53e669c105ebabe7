"""The errno of a call that has to be refused."""

from collections.abc import Callable

import pytest


def refused(call: Callable[..., object], *arguments: object) -> int | None:
    """Return the errno of the OSError that a call raises; fail if it raises none."""
    with pytest.raises(OSError) as failure:
        call(*arguments)
    return failure.value.errno
