"""docs/errors.md lists every reason of an error with its errno, and nothing else."""

import errno

from tests.docs.pages import ROOT
from urds.common.errors import ErrorReason

PAGE = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")


def test_the_page_has_every_reason_with_its_errno() -> None:
    rows = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| E")]
    listed = [(reason, getattr(errno, name)) for name, reason, _ in rows]
    assert sorted(listed) == sorted((reason.name, reason.code) for reason in ErrorReason)
