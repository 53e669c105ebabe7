"""Protection domains: memory and queue pairs of one domain may use each other."""

from typing import ClassVar

from urds.verbs.context import Context
from urds.verbs.resource import Resource


class PD(Resource):
    """A protection domain of an opened device. Closing it closes all that was made in it."""

    close_rank: ClassVar[int] = 6

    def __init__(self, context: Context) -> None:
        """Make a domain. Raises VerbsClosedError."""
        self.context = context
        # The engine knows a domain by identity only; it must not keep this object alive.
        self.engine = object()
        super().__init__(context.adapter.lock, context)
