"""What supervisor and worker agree on: the plan, exit codes, the limit of descriptors."""

from __future__ import annotations

import json
import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import Final

from urds.common.records import names, record

# As those of commands, `cli.output.Exit`.
EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2  # the same at each start: a setting, or no compiled plane
EXIT_INTERRUPTED: Final = 130
NODE_VARIABLE: Final = "URDS_NODE"  # of programs; a node has its addresses itself


@record(kw_only=True)
class Plan:
    """What a supervisor tells its worker, as JSON in its argument."""

    place: str
    config: str | None
    listener: int
    channel: int
    idle_exit_s: float
    log: str
    log_level: str
    journal: bool

    @classmethod
    def of(cls, text: str) -> Plan:
        """Read the argument; a supervisor of another release may tell more."""
        known = names(Plan)
        return cls(**{name: one for name, one in json.loads(text).items() if name in known})

    def text(self) -> str:
        """Return it as the argument."""
        return json.dumps({name: getattr(self, name) for name in names(Plan)})


def raise_descriptor_limit() -> int:
    """Raise the soft limit of descriptors to the hard one; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


def child_environment() -> dict[str, str]:
    """Return an environment in which a child finds this very urds, or what replaced it there."""
    import urds

    root = str(Path(urds.__file__).resolve().parents[1])
    others = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one != root]
    kept = {key: one for key, one in os.environ.items() if key != NODE_VARIABLE}
    return {**kept, "PYTHONPATH": os.pathsep.join([root, *filter(None, others)])}
