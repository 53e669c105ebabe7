"""What a node asks of the compiled plane: sizes that fit, errors with their numbers."""

import errno
import os

import pytest

from tests.support import planes
from urds.rds.node import native_calls
from urds.rds.plane.choose import NATIVE, native_module
from urds.rds.settings import Settings

pytestmark = pytest.mark.skipif(planes.in_use() != NATIVE, reason="of the compiled plane")


@pytest.mark.parametrize("greatest", [4608, 100_000, 212_992, 1_073_741_823])
def test_a_socket_memory_fits_whatever_buffers_are_allowed(greatest: int) -> None:
    settings = Settings.load({"wmem_max": greatest, "rmem_max": greatest})
    sizes = native_calls.memory_sizes(settings)
    made = native_module().open_socket(sizes, b"/nowhere/node.sock", False)
    memory_bytes = os.fstat(made[2]).st_size
    for descriptor in made:
        os.close(descriptor)
    assert memory_bytes > 8 * greatest


def test_what_is_rejected_has_its_error_number() -> None:
    """It is the answer to a program; without a number that would be EIO."""
    sizes = native_calls.memory_sizes(Settings())
    with pytest.raises(OSError, match="Invalid argument") as refused:
        native_module().open_socket((3, *sizes[1:]), b"", False)
    assert refused.value.errno == errno.EINVAL
