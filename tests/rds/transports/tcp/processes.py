"""Nodes in processes of their own, as the test that drives them sees them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from tests.support import carriers, planes
from tests.support.children import Servant


class NodeProcess(Servant):
    """A process that runs `tests.rds.transports.tcp.agent`, with `prefix` before its command."""

    def __init__(
        self,
        address: str,
        *,
        prefix: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        self.address = address
        super().__init__(
            *("-m", "tests.rds.transports.tcp.agent", address, json.dumps(settings)),
            prefix=prefix,
            base={"PATH": os.environ["PATH"], **planes.chosen(), **carriers.chosen()},
            environ=environ,
            errors=subprocess.DEVNULL,
        )
        self.ask("counters")  # it listens now
