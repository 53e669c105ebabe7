"""The record that the compiled path is compared with is what the Python path does."""

import pytest

from tests.rds.plane.path_record import RECORD, lines


@pytest.mark.skipif(not RECORD.exists(), reason="the compiled plane's sources are not here")
def test_the_record_is_what_the_python_path_does() -> None:
    """If the change is meant: `python -m tests.rds.plane.path_record`, and read the diff."""
    assert RECORD.read_text().splitlines() == list(lines())
