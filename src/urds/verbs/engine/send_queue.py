"""The send queue: requests from posting to completion, in posting order."""

from typing import TYPE_CHECKING

from urds.verbs.engine.numbers import AsyncEventType, QPState, WCStatus
from urds.verbs.engine.requests import WC_OPCODE, Request
from urds.verbs.engine.work import WC

if TYPE_CHECKING:
    from urds.verbs.engine.queue_pair import QueuePair


class SendQueue:
    """Requests that were posted and not started, and those that were started and not completed.

    A callback of the completion queue may call back into the queue pair: an entry leaves the
    queue before its completion is pushed. Lists: an empty deque takes 600 octets, times two for
    each of thousands of queue pairs, and to move what waits behind the first costs less than it.
    """

    __slots__ = ("_is_drained", "_qp", "posted", "started")

    def __init__(self, qp: "QueuePair") -> None:
        self._qp = qp
        self.posted: list[Request] = []
        self.started: list[Request] = []
        self._is_drained = False  # told since SQD began

    def __len__(self) -> int:
        return len(self.posted) + len(self.started)

    def start_next(self) -> None:
        """Count the oldest posted request as started."""
        self.started.append(self.posted.pop(0))

    def complete(self) -> None:
        """Complete requests from the oldest on, as far as they are done."""
        while self.started:
            request = self.started[0]
            if request.failed is not None:
                self.fail(request, request.failed)
                return
            if request.unanswered:
                return
            self.started.pop(0)
            self._push_success(request)
        self.note_draining()

    def fail(self, request: Request, status: WCStatus) -> None:
        """Complete a request with an error now, and end the queue pair.

        What is before it and not done, a read without its answer, is flushed like the rest.
        """
        while self.started:
            other = self.started.pop(0)
            if other is request:
                self._push_failure(request, status)
                break
            if other.unanswered:
                self._push_failure(other, WCStatus.WR_FLUSH_ERR)
            else:
                self._push_success(other)  # its callback may flush all that is left
        self._qp.enter_error()

    def flush(self) -> None:
        """Complete everything as flushed, in posting order."""
        for queue in (self.started, self.posted):
            while queue:
                self._push_failure(queue.pop(0), WCStatus.WR_FLUSH_ERR)

    def note_draining(self) -> None:
        """Tell once per SQD that everything that was started has completed."""
        if self._qp.state is not QPState.SQD:
            self._is_drained = False
        elif not self.started and not self._is_drained:
            self._is_drained = True
            self._qp.emit_event(AsyncEventType.SQ_DRAINED)

    def _push_success(self, request: Request) -> None:
        if not request.signalled:
            return
        self._qp.send_cq.push(
            WC(
                request.wr_id,
                WCStatus.SUCCESS,
                WC_OPCODE[request.opcode],
                byte_len=request.length if request.is_answered else 0,
                qp_num=self._qp.qpn,
            )
        )

    def _push_failure(self, request: Request, status: WCStatus) -> None:
        wc = WC(request.wr_id, status, WC_OPCODE[request.opcode], qp_num=self._qp.qpn)
        self._qp.send_cq.push(wc)
