"""Connections in the form of rdma_cm: identifiers, their events, and one call for each step.

An identifier made from an `AddrInfo` is synchronous: `connect`, `accept`, `get_request` and
`disconnect` wait and raise; each has an `_async` variant for asyncio. One made from a
`CMEventChannel` returns at once and reports everything by events.

    listener = CMID(AddrInfo("127.0.0.1", 7000, flags=RAI_PASSIVE), QPInitAttr())
    listener.listen()
    server = listener.get_request()
    server.accept()

The identifier takes the queue pair through its states; receives may be posted before `accept` and
`connect`. Private data have one limit in both directions, the device's `max_private_data`, where
InfiniBand's differ (56 bytes of a connect). There is no TIMEWAIT: numbers of queue pairs are
not used again soon. Source: docs/reference/verbs-and-roce.md 14.3 and 18.
"""

from contextlib import suppress
from typing import Final

from urds.verbs.ah import AH
from urds.verbs.cm_events import CMEvent, CMEventType
from urds.verbs.cm_identifier import Identifier, IdentifierState
from urds.verbs.cm_parameters import UD_QKEY, ConnParam
from urds.verbs.context import weak_call
from urds.verbs.engine.numbers import AccessFlag, SendFlag, WROpcode
from urds.verbs.engine.work import WC, AddressVector, RecvWR, SendWR
from urds.verbs.mr import MR

BACKLOG: Final = 128
LEAVE_S: Final = 10.0  # how long a synchronous disconnect waits for the peer


class CMID(Identifier):
    """One identifier: a listener, or one side of a connection.

    creator: an `AddrInfo` (synchronous), a `CMEventChannel` (by events), or the `CMEvent` of a
    CONNECT_REQUEST (the new side).  qp_init_attr: make a queue pair with it, and of a listener
    for each request that `get_request` returns; missing completion queues are made.  pd: domain of
    the queue pair and of `reg_*`.  context: the device; the default one is opened without it.

    `event` is the last event that a call waited for: after `connect` its `private_data` are those
    of the peer's accept, of an identifier from `get_request` those of the peer's request.
    """

    # -- the active side

    def connect(self, param: ConnParam | None = None, timeout_s: float | None = None) -> None:
        """Connect the queue pair, or look up the peer's datagram queue pair.

        Synchronous: wait for it. `timeout_s` bounds the tries beside their own limit. Raises
        VerbsArgumentError; CMError (its errno: ECONNREFUSED, ETIMEDOUT, ECONNABORTED).
        """
        self._connect(param, timeout_s)
        if self.is_synchronous:
            self._wait(CMEventType.ESTABLISHED)

    async def connect_async(
        self, param: ConnParam | None = None, timeout_s: float | None = None
    ) -> CMEvent:
        """Connect and wait in asyncio; return the event, with the peer's private data."""
        self._demand_own_events()
        self._connect(param, timeout_s)
        return await self._wait_async(CMEventType.ESTABLISHED)

    # -- the passive side

    def listen(self, backlog: int = BACKLOG) -> None:
        """Listen at the bound address, and at no other; `backlog` requests may wait.

        Raises VerbsArgumentError without an address; VerbsError: EADDRINUSE, EADDRNOTAVAIL, EACCES.
        """
        self._demand(IdentifierState.BOUND)
        assert self._local is not None, "a bound identifier has an address"
        with self._calling():
            self._listener = self.context.adapter.listen(
                self._local,
                self.port_space,
                backlog=backlog,
                on_event=weak_call(self, Identifier._take_request),
            )
            self._local, self.state = self._listener.local, IdentifierState.LISTENING

    def get_request(self, timeout_s: float | None = None) -> "CMID":
        """Wait for a request; return a new identifier, with a queue pair if it has an init.

        Raises VerbsTimeoutError.
        """
        self._demand(IdentifierState.LISTENING)
        self._demand_own_events()
        return self._requester(CMEvent.of(self.event_channel.wait(timeout_s)))

    async def get_request_async(self) -> "CMID":
        """Wait for a request in asyncio."""
        self._demand(IdentifierState.LISTENING)
        self._demand_own_events()
        return self._requester(await self.event_channel.event())

    def accept(self, param: ConnParam | None = None) -> None:
        """Accept a request. Synchronous: wait until the peer has confirmed. Raises CMError."""
        self._accept(param)
        if self.is_synchronous:
            self._wait(CMEventType.ESTABLISHED)

    async def accept_async(self, param: ConnParam | None = None) -> CMEvent:
        """Accept a request and wait in asyncio until the peer has confirmed."""
        self._demand_own_events()
        self._accept(param)
        return await self._wait_async(CMEventType.ESTABLISHED)

    def reject(self, private_data: bytes = b"") -> None:
        """Reject a request. The identifier cannot be used again."""
        self._demand(IdentifierState.REQUESTED)
        parameters = self._parameters(ConnParam(private_data=private_data))
        with self._calling():
            assert self._connection is not None
            self._connection.reject(parameters.private_data)
            self.state = IdentifierState.OVER

    # -- both sides

    def establish(self) -> None:
        """Do nothing: the connection takes the queue pair to its states."""

    def disconnect(self) -> None:
        """End the connection; what is posted is flushed. Synchronous: wait for the peer."""
        if self._leave() and self.is_synchronous:
            with suppress(TimeoutError):  # the peer is gone: the connection is over all the same
                self._wait(CMEventType.DISCONNECTED, LEAVE_S)

    async def disconnect_async(self) -> None:
        """End the connection and wait in asyncio for the peer."""
        self._demand_own_events()
        if self._leave():
            await self._wait_async(CMEventType.DISCONNECTED)

    # -- work

    def reg_msgs(self, length: int) -> MR:
        """Register memory for messages."""
        return MR(self.pd, length, AccessFlag.LOCAL_WRITE)

    def reg_read(self, length: int) -> MR:
        """Register memory that the peer may read."""
        return MR(self.pd, length, AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_READ)

    def reg_write(self, length: int) -> MR:
        """Register memory that the peer may write."""
        return MR(self.pd, length, AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_WRITE)

    def post_recv(self, mr: MR, length: int | None = None, offset: int = 0, wr_id: int = 0) -> None:
        """Post a receive into a piece of a region."""
        self._queue_pair().post_recv(RecvWR(wr_id, [mr.sge(offset, length)]))

    def post_send(
        self,
        mr: MR,
        flags: SendFlag = SendFlag.SIGNALED,
        length: int | None = None,
        offset: int = 0,
        wr_id: int = 0,
    ) -> None:
        """Send a piece of a region as one message."""
        piece = mr.sge(offset, length)
        self._queue_pair().post_send(SendWR(wr_id, WROpcode.SEND, [piece], flags))

    def post_ud_send(
        self,
        mr: MR,
        ah: AH | AddressVector,
        rqpn: int,
        flags: SendFlag = SendFlag.SIGNALED,
        length: int | None = None,
        *,
        qkey: int = UD_QKEY,
        wr_id: int = 0,
    ) -> None:
        """Send a piece of a region as a datagram."""
        request = SendWR(wr_id, WROpcode.SEND, [mr.sge(0, length)], flags)
        request.set_wr_ud(ah, rqpn, qkey)
        self._queue_pair().post_send(request)

    def post_read(
        self,
        mr: MR,
        length: int,
        remote_addr: int,
        rkey: int,
        flags: SendFlag = SendFlag.SIGNALED,
        offset: int = 0,
    ) -> None:
        """Read the peer's memory into a piece of a region."""
        self._post_remote(WROpcode.RDMA_READ, mr, (offset, length), (rkey, remote_addr), flags)

    def post_write(
        self,
        mr: MR,
        length: int,
        remote_addr: int,
        rkey: int,
        flags: SendFlag = SendFlag.SIGNALED,
        offset: int = 0,
    ) -> None:
        """Write a piece of a region into the peer's memory."""
        self._post_remote(WROpcode.RDMA_WRITE, mr, (offset, length), (rkey, remote_addr), flags)

    def get_send_comp(self, timeout_s: float | None = None) -> WC:
        """Wait for the next completion of a send. Raises VerbsTimeoutError."""
        queue = self._queue_pair().init_attr.scq
        assert queue is not None
        return queue.wait_for(1, timeout_s)[0]

    def get_recv_comp(self, timeout_s: float | None = None) -> WC:
        """Wait for the next completion of a receive. Raises VerbsTimeoutError."""
        queue = self._queue_pair().init_attr.rcq
        assert queue is not None
        return queue.wait_for(1, timeout_s)[0]

    # -- inside

    def _post_remote(
        self,
        opcode: WROpcode,
        mr: MR,
        piece: tuple[int, int],
        remote: tuple[int, int],
        flags: SendFlag,
    ) -> None:
        request = SendWR(0, opcode, [mr.sge(*piece)], flags)
        request.set_wr_rdma(*remote)
        self._queue_pair().post_send(request)

    def _requester(self, event: CMEvent) -> "CMID":
        self._expect(event, CMEventType.CONNECT_REQUEST)
        return CMID(event, self._init)

    def _as_cmid(self) -> "CMID":
        return self
