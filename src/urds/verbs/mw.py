"""Memory windows: a part of a region under a remote key that can be given and taken back.

A window of type 1 serves every queue pair of its domain and may be bound again at any time. One
of type 2 serves the queue pair that bound it, until a LOCAL_INV there or a SEND_WITH_INV of the
peer takes it back. Binding is a work request: it happens in the order of the send queue, and
`MW.rkey` is the new key once its completion is there. Source: verbs-and-roce.md section 11.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

from urds.verbs.engine.keys import WindowBinding
from urds.verbs.engine.numbers import AccessFlag, SendFlag
from urds.verbs.errors import VerbsNotSupportedError
from urds.verbs.mr import MR
from urds.verbs.pd import PD
from urds.verbs.resource import Resource


class MWType(IntEnum):
    """Kinds of memory window."""

    TYPE_1 = 1
    TYPE_2 = 2


@dataclass(frozen=True, slots=True)
class MWBindInfo:
    """Which part of a region a window shows: `length` octets at address `addr`; 0 shows none."""

    mr: MR
    addr: int
    length: int
    mw_access_flags: int = AccessFlag.REMOTE_READ

    def binding(self) -> WindowBinding:
        """Return this as the engine wants it."""
        return WindowBinding(
            self.mr.engine, self.addr, self.length, AccessFlag(self.mw_access_flags)
        )


@dataclass(frozen=True, slots=True)
class MWBind:
    """A bind request for `QP.bind_mw`."""

    info: MWBindInfo
    wr_id: int = 0
    send_flags: SendFlag = SendFlag.SIGNALED


class MW(Resource):
    """A memory window. Closing it takes its key back, bound or not."""

    close_rank: ClassVar[int] = 3

    def __init__(self, pd: PD, mw_type: int = MWType.TYPE_1) -> None:
        """Make an unbound window.

        Raises VerbsNotSupportedError: the device has no windows; VerbsError: EINVAL, ENOMEM.
        """
        attributes = pd.context.attributes
        if not attributes.memory_windows:
            raise VerbsNotSupportedError(attributes.name, "memory_windows")
        self.pd = pd
        with pd._calling():
            self.engine = pd.context.adapter.keys.new_window(pd.engine, kind=mw_type)
        self.mw_type = MWType(mw_type)
        # A bound region must not go out of sight before its window.
        self.bound_mr: MR | None = None
        super().__init__(pd.context.adapter.lock, pd)

    @property
    def rkey(self) -> int:
        """Return the key to give to a peer; a new one after each bind."""
        return self.engine.rkey

    @property
    def is_bound(self) -> bool:
        """Return whether the window shows any memory."""
        return self.engine.region is not None

    def _release(self, *, forced: bool) -> None:
        self.pd.context.adapter.keys.free(self.engine)
        self.bound_mr = None
