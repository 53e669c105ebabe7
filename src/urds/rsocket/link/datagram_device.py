"""One device of a datagram socket: a queue pair of kind UD, its receives, look-ups of peers.

Each receive is a slot of 40 bytes for the GRH and 2048 for the message. Slots go back at the end of
a pass, which ends when all are taken; what waits for the application waits in the core, where it is
counted when it has to be dropped.

**Look-ups.** The port of a datagram socket belongs to the kernel's UDP socket, and a device that
listens in UDP too cannot have the same. So the sockets of a process share one listener per device
and address, at a port of its own, say that port to their peers, and are told apart by their bind
ids, which a look-up carries as private data. A listener stays with its device: the next socket at
the address needs it again.

Everything here needs the adapter's lock; `send`, `look_up`, `give_up` and `close` take it.
"""

from contextlib import suppress
from typing import Final, Protocol
from weakref import WeakKeyDictionary

from urds.rsocket.core.datagram import (
    SLOT_BYTES,
    ByQueuePair,
    DatagramSettings,
    LocalDevice,
    LookUp,
    QueuePairAddress,
)
from urds.rsocket.link.devices import DeviceContext
from urds.rsocket.wire.datagram import BIND_ID_BYTES
from urds.verbs.cm_parameters import UD_QKEY
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
    ConnectionEventKind,
    ConnectParameters,
    Listener,
    PortSpace,
    VerbsConnection,
    VerbsConnectionEvent,
)


class LookUps:
    """The listeners of one device, and which queue pair each bind id of a socket has there."""

    def __init__(self) -> None:
        self.refused = 0  # look-ups for a bind id that is not here, or no more
        self._listeners: dict[str, Listener] = {}  # by address of ours
        self._queue_pairs: dict[bytes, QueuePair] = {}

    def serve(self, context: DeviceContext, host: str, name: bytes, qp: QueuePair) -> int:
        """Answer look-ups for `name` with this queue pair; return the port where they go.

        Raises OSError: the device does not listen at this address.
        """
        listener = self._listeners.get(host)
        if listener is None:
            listener = context.adapter.listen(
                (host, 0), PortSpace.UDP, backlog=0, on_event=self._handle_event
            )
            self._listeners[host] = listener
        self._queue_pairs[name] = qp
        return listener.local[1]

    def forget(self, name: bytes) -> None:
        """Answer no more for `name`."""
        self._queue_pairs.pop(name, None)

    def _handle_event(self, event: VerbsConnectionEvent) -> None:
        if event.kind is not ConnectionEventKind.REQUEST:
            return  # the answer is on its way: nothing follows from a look-up
        connection = event.connection
        qp = self._queue_pairs.get(event.parameters.private_data[:BIND_ID_BYTES])
        with suppress(OSError):  # the asking peer has given up meanwhile
            if qp is None:
                self.refused += 1
                connection.reject()
            else:
                connection.accept(qp, ConnectParameters(qkey=UD_QKEY))


_by_context: WeakKeyDictionary[DeviceContext, LookUps] = WeakKeyDictionary()


def look_ups_of(context: DeviceContext) -> LookUps:
    """Return the look-ups of a device."""
    found = _by_context.get(context)
    if found is None:
        found = _by_context.setdefault(context, LookUps())
    return found


_STATE: Final = QPAttrMask.STATE
_INIT: Final = _STATE | QPAttrMask.PKEY_INDEX | QPAttrMask.PORT | QPAttrMask.QKEY
_STRIDE: Final = GRH_BYTES + SLOT_BYTES
_UNSIGNALLED: Final = SendFlag(0)


class DatagramSink(Protocol):
    """What takes the datagrams of a device; the adapter's lock is held, no call may wait."""

    def handle_datagram(self, data: memoryview) -> None:
        """Take a datagram; the bytes are overwritten afterwards."""

    def handle_failed_receive(self) -> None:
        """Count a datagram that did not fit."""

    def handle_found(self, token: int, qp_address: QueuePairAddress) -> None:
        """Take what a look-up found."""

    def handle_not_found(self, token: int) -> None:
        """Take that a look-up found no peer."""

    def finish_pass(self) -> None:
        """Notify waiting calls, once the device's call is over."""


class DatagramDevice:
    """The queue pair of one socket on one opened device."""

    def __init__(
        self,
        context: DeviceContext,
        index: int,
        receiver: DatagramSink,
        *,
        host: str,
        name: bytes,
        settings: DatagramSettings,
    ) -> None:
        """Make the queue pair and answer look-ups for `name` at our address `host`.

        Raises OSError: the device has no datagrams, does not listen at that address, is closed.
        """
        self.context = context
        self.index = index
        self._receiver = receiver
        self._settings = settings
        self._name = name
        self._pd = object()
        self._has_failed = False
        self._asked: dict[int, VerbsConnection] = {}  # look-ups under way, by token
        adapter = context.adapter
        with adapter.lock:
            self._view = memoryview(bytearray(settings.receive_slots * _STRIDE))
            self._region = adapter.register(self._pd, self._view, 0, AccessFlag.LOCAL_WRITE)
            self._qp = self._queue_pair()
            try:
                port = look_ups_of(context).serve(context, host, name, self._qp)
            except OSError:
                self._drop()
                raise
            self.record = LocalDevice(
                adapter.attributes.provider, port, self._qp.qpn, self._qp.link.mtu_bytes
            )

    def send(self, what: ByQueuePair) -> bool:
        """Send a datagram; False if the queue pair can send no more."""
        request = SendWR(
            opcode=WROpcode.SEND,
            send_flags=_UNSIGNALLED,
            ah=what.qp_address.vector,
            remote_qpn=what.qp_address.qpn,
            remote_qkey=what.qp_address.qkey,
            data=what.data,
        )
        with self.context.adapter.lock:
            try:
                self._qp.post_send(request, 0)  # only timers look at the time
            except OSError:
                return False
            self.context.adapter.progress_qp(self._qp)
            return not self._has_failed

    def look_up(self, what: LookUp) -> None:
        """Ask for a peer's queue pair; the receiver hears of the answer, maybe at once."""
        adapter = self.context.adapter

        def take(event: VerbsConnectionEvent) -> None:
            self._take_answer(what.token, event)

        with adapter.lock:
            try:
                self._asked[what.token] = adapter.connect(
                    None,
                    what.peer,
                    PortSpace.UDP,
                    ConnectParameters(private_data=what.bind_id),
                    on_event=take,
                    timeout_ns=self._settings.look_up_ns,
                )
            except OSError:
                self._receiver.handle_not_found(what.token)

    def give_up(self, token: int) -> None:
        """Forget a look-up."""
        with self.context.adapter.lock:
            connection = self._asked.pop(token, None)
            if connection is not None:
                connection.close()

    def close(self) -> None:
        """Drop the queue pair and what it has asked for."""
        with self.context.adapter.lock:
            look_ups_of(self.context).forget(self._name)
            for connection in self._asked.values():
                connection.close()
            self._asked.clear()
            self._drop()

    # -- inside

    def _queue_pair(self) -> QueuePair:
        """Make a queue pair that receives and sends."""
        adapter, slots = self.context.adapter, self._settings.receive_slots
        qp = adapter.queue_pair(
            kind=QPType.UD,
            pd=self._pd,
            send_cq=adapter.completion_queue(1, sink=self._take_sent),
            recv_cq=adapter.completion_queue(1, sink=self._take_received),
            cap=QPCap(max_send_wr=self._settings.send_slots, max_recv_wr=slots),
        )
        now_ns = adapter.now_ns()
        qp.modify(QPAttr(qp_state=QPState.INIT, qkey=UD_QKEY), _INIT, now_ns)
        for slot in range(slots):
            qp.post_recv(self._receive(slot), now_ns)
        qp.modify(QPAttr(qp_state=QPState.RTR), _STATE, now_ns)
        qp.modify(QPAttr(qp_state=QPState.RTS), _STATE | QPAttrMask.SQ_PSN, now_ns)
        return qp

    def _receive(self, slot: int) -> RecvWR:
        return RecvWR(slot, [SGE(slot * _STRIDE, _STRIDE, self._region.lkey)])

    def _take_received(self, completions: list[WC]) -> None:
        for wc in completions:
            if wc.status is WCStatus.WR_FLUSH_ERR:
                continue
            if wc.status is WCStatus.SUCCESS:
                begin = wc.wr_id * _STRIDE
                self._receiver.handle_datagram(self._view[begin + GRH_BYTES : begin + wc.byte_len])
                self.context.mark(self._receiver)
            else:
                self._receiver.handle_failed_receive()
            self._qp.post_recv(self._receive(wc.wr_id), 0)

    def _take_sent(self, _completions: list[WC]) -> None:
        """Note that a send failed: good ones complete in silence."""
        self._has_failed = True

    def _take_answer(self, token: int, event: VerbsConnectionEvent) -> None:
        self._asked.pop(token, None)
        if event.kind is ConnectionEventKind.ESTABLISHED and event.vector is not None:
            qp_address = QueuePairAddress(
                self.index, event.vector, event.qpn, event.parameters.qkey
            )
            self._receiver.handle_found(token, qp_address)
        else:
            self._receiver.handle_not_found(token)

    def _drop(self) -> None:
        adapter = self.context.adapter
        adapter.remove(self._qp)
        adapter.deregister(self._region)
