"""A socket as the machines of its paths know it: what it has queued, and nothing to notify."""

from typing import Any

from urds.common.types import IPAddress
from urds.rds.plane.contract import Operation


class Account:
    """An owner of messages; see `Owner` in `urds.rds.plane.python.queued_messages`."""

    def __init__(self) -> None:
        self.send_queued_bytes = 0
        self.given_up = 0

    def note_freed(self, path: Any, freed_bytes: int) -> None:
        """Do nothing: no sender waits."""

    def note_path_room(self, path: Any) -> None:
        """Do nothing: no sender waits."""

    def note_operation(self, operation: Operation) -> None:
        """Do nothing: the machines have no operations."""

    def fail(self, peer: IPAddress) -> None:
        """Do nothing: no later send raises."""
