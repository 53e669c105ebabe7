"""One queue pair as a value machine: work requests, packets and `now_ns` in; packets out."""

from typing import TYPE_CHECKING

from urds.verbs.engine.attributes import LinkTraits, QPAttr, QPCap
from urds.verbs.engine.completions import CompletionQueue
from urds.verbs.engine.keys import KeyTable
from urds.verbs.engine.numbers import Acceptance, QPAttrMask, QPState, QPType
from urds.verbs.engine.packets import Packet
from urds.verbs.engine.receives import ReceiveTracker, SharedReceiveQueue
from urds.verbs.engine.work import AddressVector, AsyncEvent, RecvWR, SendWR

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

__all__ = ["LinkTraits", "QPAttr", "QPCap", "QueuePair"]


class QueuePair:
    """A queue pair of kind RC or UD. Not safe for threads: its adapter's lock guards it."""

    def __init__(
        self,
        *,
        qpn: int,
        qp_type: QPType,
        pd: object,
        send_cq: CompletionQueue,
        recv_cq: CompletionQueue,
        srq: SharedReceiveQueue | None = None,
        cap: QPCap,
        sq_sig_all: bool = False,
        keys: KeyTable,
        link: LinkTraits,
        acceptance: Acceptance = Acceptance.IN_ORDER,
        random: "random.Random | None" = None,
    ) -> None:
        self.qpn = qpn
        self.qp_type = qp_type
        self.pd = pd
        self.send_cq = send_cq
        self.recv_cq = recv_cq
        self.srq = srq
        self.keys = keys
        self.link = link
        self.acceptance = acceptance
        self.sq_sig_all = sq_sig_all
        self.state = QPState.RESET
        self.attr = QPAttr(cap=cap)
        self.tracker = ReceiveTracker()
        self.peer: AddressVector | None = None
        self.hold_receives = False
        self.place_remote: Callable[[Packet, memoryview], bool] | None = None

    def modify(self, attr: QPAttr, mask: QPAttrMask, now_ns: int) -> None:
        """Change state and attributes. Raises OSError: EINVAL; then nothing changes."""
        raise NotImplementedError

    def post_send(self, wr: SendWR, now_ns: int) -> None:
        """Queue a request. Raises OSError: EINVAL, ENOMEM."""
        raise NotImplementedError

    def post_recv(self, wr: RecvWR, now_ns: int) -> None:
        """Queue a receive. Raises OSError: EINVAL, ENOMEM."""
        raise NotImplementedError

    def receive_packet(
        self, packet: Packet, now_ns: int, source: AddressVector | None = None
    ) -> None:
        """Take in a packet that arrived for this queue pair."""
        raise NotImplementedError

    def handle_timeout(self, now_ns: int) -> None:
        """Do what is due."""
        raise NotImplementedError

    def poll_timeout(self) -> int | None:
        """Return when `handle_timeout` is due, `None` if never."""
        raise NotImplementedError

    def poll_transmit(self, now_ns: int) -> Packet | None:
        """Return the next packet to send, `None` when there is none now."""
        raise NotImplementedError

    def poll_event(self) -> AsyncEvent | None:
        """Return the next asynchronous event."""
        raise NotImplementedError

    def set_recv_watermarks(self, soft: int | None, hard: int | None) -> None:
        """Set the marks of held receive buffers."""
        raise NotImplementedError

    def recv_query(self) -> tuple[int, int]:
        """Return how many receive buffers are held, and over how many messages they reach."""
        return self.tracker.snapshot()

    @property
    def outstanding_requests(self) -> int:
        """Return how many posted sends have not completed."""
        raise NotImplementedError
