"""One device of a datagram socket: a queue pair of kind UD, its receives, look-ups of peers.

Each receive is a slot of 40 octets for the GRH and 2048 for the message. A slot is given back as
soon as its message was handed on, so the ring runs empty only while one turn of the device brings
more messages than it has slots; what waits for the application waits in the core, where it is
counted when it has to be dropped.

Everything here needs the adapter's lock, `send`, `look_up`, `give_up` and `close` take it.
"""

from collections.abc import Callable
from typing import Final, Protocol

from urds.rsocket.datagram_look_ups import look_ups_of
from urds.rsocket.dgram import (
    SLOT_BYTES,
    ByQueuePair,
    DatagramSettings,
    Device,
    LookUp,
    QueuePairWay,
)
from urds.rsocket.opening import Opening
from urds.verbs.cm_parameters import UD_QKEY
from urds.verbs.engine.completions import CompletionQueue
from urds.verbs.engine.numbers import (
    GRH_BYTES,
    AccessFlag,
    QPAttrMask,
    QPState,
    QPType,
    SendFlag,
    WCStatus,
    WROpcode,
)
from urds.verbs.engine.queue_pair import QPAttr, QPCap, QueuePair
from urds.verbs.engine.work import SGE, WC, RecvWR, SendWR
from urds.verbs.providers.base import (
    Connection,
    ConnectionEvent,
    ConnectionEventKind,
    ConnectParameters,
    PortSpace,
)

_STATE: Final = QPAttrMask.STATE
_INIT: Final = _STATE | QPAttrMask.PKEY_INDEX | QPAttrMask.PORT | QPAttrMask.QKEY
_STRIDE: Final = GRH_BYTES + SLOT_BYTES
_UNSIGNALLED: Final = SendFlag(0)


class Receiver(Protocol):
    """Who gets what a device brings. All calls with the adapter's lock held; none may wait."""

    def handle_datagram(self, octets: memoryview) -> None:
        """Take a datagram; the octets are overwritten afterwards."""

    def handle_failed_receive(self) -> None:
        """Count a datagram that did not fit."""

    def handle_found(self, token: int, way: QueuePairWay) -> None:
        """Take what a look-up found."""

    def handle_not_found(self, token: int) -> None:
        """Take that a look-up found nobody."""

    def settle(self) -> None:
        """Tell who waits, once the device's call is over."""


class DatagramDevice:
    """The queue pair of one socket on one opened device."""

    def __init__(
        self,
        opening: Opening,
        index: int,
        receiver: Receiver,
        *,
        host: str,
        name: bytes,
        settings: DatagramSettings,
    ) -> None:
        """Make the queue pair and answer look-ups for `name` at our address `host`.

        Raises OSError: the device has no datagrams, does not listen at that address, is closed.
        """
        self.opening = opening
        self.index = index
        self._receiver = receiver
        self._settings = settings
        self._name = name
        self._pd = object()
        self._has_failed = False
        self._asked: dict[int, Connection] = {}  # look-ups under way, by token
        adapter = opening.adapter
        with adapter.lock:
            self._view = memoryview(bytearray(settings.receive_slots * _STRIDE))
            self._region = adapter.keys.register(self._pd, self._view, 0, AccessFlag.LOCAL_WRITE)
            self._qp = self._queue_pair()
            try:
                port = look_ups_of(opening).serve(opening, host, name, self._qp)
            except OSError:
                self._drop()
                raise
            self.record = Device(
                adapter.attributes.provider, port, self._qp.qpn, self._qp.link.mtu_bytes
            )

    def send(self, what: ByQueuePair) -> bool:
        """Send a datagram; False if the queue pair can send no more."""
        request = SendWR(
            opcode=WROpcode.SEND,
            send_flags=_UNSIGNALLED,
            ah=what.way.vector,
            remote_qpn=what.way.qpn,
            remote_qkey=what.way.qkey,
            octets=what.octets,
        )
        with self.opening.adapter.lock:
            try:
                self._qp.post_send(request, 0)  # only timers look at the time
            except OSError:
                return False
            self.opening.adapter.kick(self._qp)
            return not self._has_failed

    def look_up(self, what: LookUp) -> None:
        """Ask for a peer's queue pair; the receiver hears of the answer, maybe at once."""
        adapter = self.opening.adapter

        def take(event: ConnectionEvent) -> None:
            self._take_answer(what.token, event)

        with adapter.lock:
            try:
                self._asked[what.token] = adapter.connect(
                    None,
                    what.peer,
                    PortSpace.UDP,
                    ConnectParameters(private_data=what.opening),
                    on_event=take,
                    timeout_ns=self._settings.look_up_ns,
                )
            except OSError:
                self._receiver.handle_not_found(what.token)

    def give_up(self, token: int) -> None:
        """Forget a look-up."""
        with self.opening.adapter.lock:
            connection = self._asked.pop(token, None)
            if connection is not None:
                connection.close()

    def close(self) -> None:
        """Drop the queue pair and what it has asked for."""
        with self.opening.adapter.lock:
            look_ups_of(self.opening).forget(self._name)
            for connection in self._asked.values():
                connection.close()
            self._asked.clear()
            self._drop()

    # -- inside

    def _queue_pair(self) -> QueuePair:
        """Make a queue pair that receives and sends."""
        adapter, slots = self.opening.adapter, self._settings.receive_slots
        qp = QueuePair(
            qpn=adapter.new_qpn(),
            qp_type=QPType.UD,
            pd=self._pd,
            send_cq=_queue_for(self._take_sent),
            recv_cq=_queue_for(self._take_received),
            cap=QPCap(max_send_wr=self._settings.send_slots, max_recv_wr=slots),
            keys=adapter.keys,
            link=adapter.attributes.link,
        )
        qp.gid = adapter.gid
        adapter.add(qp)
        now_ns = adapter.now_ns()
        qp.modify(QPAttr(qp_state=QPState.INIT, qkey=UD_QKEY), _INIT, now_ns)
        for slot in range(slots):
            qp.post_recv(self._receive(slot), now_ns)
        qp.modify(QPAttr(qp_state=QPState.RTR), _STATE, now_ns)
        qp.modify(QPAttr(qp_state=QPState.RTS), _STATE | QPAttrMask.SQ_PSN, now_ns)
        return qp

    def _receive(self, slot: int) -> RecvWR:
        return RecvWR(slot, [SGE(slot * _STRIDE, _STRIDE, self._region.lkey)])

    def _take_received(self, wc: WC, _solicited: bool) -> bool:
        if wc.status is WCStatus.WR_FLUSH_ERR:
            return True
        if wc.status is WCStatus.SUCCESS:
            begin = wc.wr_id * _STRIDE
            self._receiver.handle_datagram(self._view[begin + GRH_BYTES : begin + wc.byte_len])
            self.opening.mark(self._receiver)
        else:
            self._receiver.handle_failed_receive()
        self._qp.post_recv(self._receive(wc.wr_id), 0)
        return True

    def _take_sent(self, _wc: WC, _solicited: bool) -> bool:
        """Note that a send failed: good ones complete in silence."""
        self._has_failed = True
        return True

    def _take_answer(self, token: int, event: ConnectionEvent) -> None:
        self._asked.pop(token, None)
        if event.kind is ConnectionEventKind.ESTABLISHED and event.vector is not None:
            way = QueuePairWay(self.index, event.vector, event.qpn, event.parameters.qkey)
            self._receiver.handle_found(token, way)
        else:
            self._receiver.handle_not_found(token)

    def _drop(self) -> None:
        adapter = self.opening.adapter
        adapter.remove(self._qp)
        adapter.keys.deregister(self._region)


def _queue_for(take: Callable[[WC, bool], bool]) -> CompletionQueue:
    """Return a completion queue that keeps nothing: each completion is taken as it comes."""
    queue = CompletionQueue(1)
    queue.on_push = take
    return queue
