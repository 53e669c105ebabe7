"""The connection of an endpoint: how it begins, what its events mean, how it ends.

One terminal event per attempt or connection, after the events of all transfers. So what a completed
transfer leads to waits for `adapter.call_soon`: others of the same pass may come behind it.
Source: docs/reference/dat.md 4.3, 9.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from urds.dat.constants import EpState, EventNumber
from urds.dat.ep_config import EpConfig, EpOwner
from urds.dat.ep_state import CONNECTING, Input
from urds.verbs.engine.numbers import PEER_ACCESS, QPAttrMask, QPState
from urds.verbs.engine.queue_pair import QPAttr
from urds.verbs.providers.base import ConnectionEventKind, ConnectParameters, PortSpace

if TYPE_CHECKING:
    from urds.common.types import HostPort
    from urds.verbs.providers.base import VerbsConnection, VerbsConnectionEvent

Kind = ConnectionEventKind

_TO_INIT: Final = (
    QPAttrMask.STATE | QPAttrMask.PKEY_INDEX | QPAttrMask.PORT | QPAttrMask.ACCESS_FLAGS
)

# How an attempt of ours ends, and how a connection does; an accepted one that is not established
# ends in ACCEPT_COMPLETION_ERROR whatever the reason.
_ATTEMPT_ENDS: Final = {
    Kind.REJECTED: EventNumber.CONNECTION_PEER_REJECTED,
    Kind.REFUSED: EventNumber.CONNECTION_NON_PEER_REJECTED,
    Kind.UNREACHABLE: EventNumber.CONNECTION_UNREACHABLE,
    Kind.ERROR: EventNumber.CONNECTION_NON_PEER_REJECTED,
    Kind.DISCONNECTED: EventNumber.CONNECTION_NON_PEER_REJECTED,
    Kind.BROKEN: EventNumber.CONNECTION_NON_PEER_REJECTED,
}
_BREAKS: Final = {
    EpState.ACTIVE_CONNECTION_PENDING: EventNumber.CONNECTION_NON_PEER_REJECTED,
    EpState.COMPLETION_PENDING: EventNumber.CONNECTION_ACCEPT_COMPLETION_ERROR,
    EpState.CONNECTED: EventNumber.CONNECTION_BROKEN,
    EpState.DISCONNECT_PENDING: EventNumber.CONNECTION_BROKEN,
}


class EpConnection:
    """What ties an endpoint to its peer, from connect or accept to the reset. Lock held."""

    def __init__(self, ep: EpOwner, config: EpConfig) -> None:
        self._ep = ep
        self._config = config
        self._adapter = ep.device.adapter
        self.connection: VerbsConnection | None = None
        self.local: HostPort | None = None
        self.remote: HostPort | None = None
        self._deadline_ns: int | None = None
        self._generation = 0  # counts resets: what was deferred before one means nothing after it

    # -- how it begins

    def prepare(self) -> None:
        """Lead the queue pair to INIT: from here on receives may be posted.

        What arrives before the event of the connection that it comes by is held until then.
        """
        self._ep.engine.hold_receives = True
        attr = QPAttr(qp_state=QPState.INIT, qp_access_flags=PEER_ACCESS)
        self._ep.engine.modify(attr, _TO_INIT, self._adapter.now_ns())

    def connect(self, peer: HostPort, private_data: bytes, timeout_ns: int | None) -> None:
        """Ask for a connection. Raises OSError for what can be told at once."""
        now_ns = self._adapter.now_ns()
        self._deadline_ns = None if timeout_ns is None else now_ns + timeout_ns
        self.connection = self._adapter.connect(
            self._ep.engine,
            peer,
            PortSpace.TCP,
            self._parameters(private_data),
            on_event=self._handle_event,
            timeout_ns=timeout_ns,
        )
        self.remote = peer

    def meet(self, event: Input, request: VerbsConnection) -> None:
        """Note a request that met the reserved service point, or is being accepted: `event`."""
        self._ep.move(event)
        self.remote, self.local = request.peer[:2], request.local[:2]

    def accept(self, connection: VerbsConnection, private_data: bytes) -> None:
        """Answer a request. Raises OSError; then nothing has changed."""
        before = connection.on_event
        connection.on_event = self._handle_event
        self.connection = connection
        try:
            connection.accept(self._ep.engine, self._parameters(private_data))
        except OSError:
            connection.on_event = before
            self.connection = None
            raise

    # -- how it ends

    def drain(self) -> None:
        """Go on with a graceful disconnect, if one is under way: no request is outstanding."""
        if self._ep.state is EpState.DISCONNECT_PENDING:
            self._adapter.call_soon(partial(self._finish_drain, self._generation))

    def end(self, number: EventNumber) -> None:
        """End the connection from this side, whatever its state: flush, tell the peer, tell us."""
        ep, connection = self._ep, self.connection
        self.connection = None
        ep.move(Input.ENDED)
        if connection is not None:
            connection.close()
        self._flush()
        ep.post_connection(number, b"")

    def break_soon(self) -> None:
        """Break the connection once what has completed in this pass has its events."""
        self._adapter.call_soon(partial(self._break, self._generation))

    def reset(self) -> None:
        """Make the queue pair new, for another connection."""
        now_ns = self._adapter.now_ns()
        self._generation += 1
        self._ep.engine.modify(QPAttr(qp_state=QPState.RESET), QPAttrMask.STATE, now_ns)
        self.prepare()
        self.forget_addresses()

    def forget_addresses(self) -> None:
        """Forget both addresses: there is no connection and no request any more."""
        self.local = self.remote = None

    def dispose(self) -> None:
        """Let go of everything: the endpoint is being freed."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()
        self._flush()

    # -- inside

    def _parameters(self, private_data: bytes) -> ConnectParameters:
        return ConnectParameters(
            private_data=private_data,
            responder_resources=self._config.attr.max_rdma_read_in,
            initiator_depth=self._config.attr.max_rdma_read_out,
        )

    def _handle_event(self, event: VerbsConnectionEvent) -> None:
        if event.connection is not self.connection:
            return  # of a connection that this endpoint has ended
        if event.kind is Kind.ESTABLISHED:
            self._establish(event)
        elif event.kind is not Kind.REQUEST:
            self._lose(event)

    def _establish(self, event: VerbsConnectionEvent) -> None:
        ep = self._ep
        is_active = ep.state is EpState.ACTIVE_CONNECTION_PENDING
        ep.move(Input.ESTABLISHED)
        self.local = event.connection.local[:2]  # the side that connects learns it only now
        # Only the side that asked learns what the other said; the accepting one gave it itself.
        private_data = event.parameters.private_data if is_active else b""
        ep.post_connection(EventNumber.CONNECTION_ESTABLISHED, private_data)
        ep.engine.hold_receives = False

    def _lose(self, event: VerbsConnectionEvent) -> None:
        ep = self._ep
        private_data = event.parameters.private_data if event.kind is Kind.REJECTED else b""
        number = self._number_of_end(event.kind)
        self.connection = None
        ep.move(Input.ENDED)
        self._flush()
        ep.post_connection(number, private_data)

    def _number_of_end(self, kind: Kind) -> EventNumber:
        state = self._ep.state
        if state is EpState.COMPLETION_PENDING:
            return EventNumber.CONNECTION_ACCEPT_COMPLETION_ERROR
        if state in CONNECTING:
            is_late = self._deadline_ns is not None and self._adapter.now_ns() >= self._deadline_ns
            if kind is Kind.UNREACHABLE and is_late:
                return EventNumber.CONNECTION_TIMED_OUT
            return _ATTEMPT_ENDS[kind]
        if kind is Kind.DISCONNECTED or state is EpState.DISCONNECT_PENDING:
            return EventNumber.CONNECTION_DISCONNECTED
        return EventNumber.CONNECTION_BROKEN

    def _finish_drain(self, generation: int) -> None:
        ep = self._ep
        if ep.live and generation == self._generation and ep.state is EpState.DISCONNECT_PENDING:
            self.end(EventNumber.CONNECTION_DISCONNECTED)

    def _break(self, generation: int) -> None:
        number = _BREAKS.get(self._ep.state)
        if self._ep.live and generation == self._generation and number is not None:
            self.end(number)

    def _flush(self) -> None:
        """Flush what is posted, and have the events of it before any other."""
        engine = self._ep.engine
        if engine.state is not QPState.ERR:
            engine.modify(QPAttr(qp_state=QPState.ERR), QPAttrMask.STATE, self._adapter.now_ns())
        self._adapter.progress_qp(engine)
        self._ep.device.completions.drain()
