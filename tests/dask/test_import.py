"""What imports the backend, and what it imports."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("line", ["import urds, urds.aio; urds.socket", "import urds.dask.hub"])
def test_dask_is_not_imported_by_others(line):
    """Neither by programs of `urds`, nor by the core of the backend itself."""
    names = "('dask', 'distributed', 'urds.dask.backend', 'urds.dask.comm')"
    code = f"{line}; import sys; sys.exit(any(one in sys.modules for one in {names}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
