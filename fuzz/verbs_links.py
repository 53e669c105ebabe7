"""The layers between bytes and queue pairs: streams of `tcp`, and the connection manager.

Each input is a script: choices of this side, then bytes or messages of the peer, and time.
"""

import random
from collections.abc import Callable
from contextlib import suppress

from fuzz.guarded import FIRST_PSN, QPN, READS, Guarded
from fuzz.script import Script, split, step
from fuzz.verbs_packets import AT, KEY, ONLY, requests
from urds.common.errors import RemoteProtocolError
from urds.common.types import BytesLike
from urds.verbs.cm.core import CmCore
from urds.verbs.cm.messages import CmMessage, CmMessageKind, Offer
from urds.verbs.cm.records import CmEventKind, CmSettings, CmState
from urds.verbs.engine.packets import ATOMICS, Packet, PacketKind
from urds.verbs.providers.tcp.codec import Decoder, Encoder, OutstandingReads, Taken
from urds.verbs.providers.tcp.fpdu import FPDU_BYTES_MAX

STEPS_MAX = 400
_OUT_BYTES_MAX = 1 << 20
_ROUTES = ("left", "right", "far")
_S = 1_000_000_000


def stream(data: bytes) -> None:
    """Read FPDUs in any portions, act on them, and answer; portions change nothing.

    The first byte decides whether both are urds nodes and check CRCs; then a piece with the places
    where the bytes are cut, then the bytes.
    """
    script = Script(data)
    choices, places = script.number(), script.piece()
    whole = script.rest()
    taken = [_Stream(choices).take_all(portions) for portions in ([whole], split(whole, places))]
    assert taken[0] == taken[1], "portions matter"
    end = _Stream(choices)
    end.take_all(split(whole, places), acting=True)
    end.side.check_end()


class _Stream:
    """One end: decoder, queue pair, encoder. It ends with the first broken rule."""

    def __init__(self, choices: int) -> None:
        self._reads = OutstandingReads(inbound_max=READS)
        self._decoder = Decoder(
            self._reads, target_qpn=QPN, urds_peer=bool(choices & 1), crc=bool(choices & 2),
            psn=FIRST_PSN,
        )  # fmt: skip
        self._encoder = Encoder(
            self._reads, urds_peer=bool(choices & 1), crc=bool(choices & 2), payload_bytes_max=64,
            psn=FIRST_PSN,
        )  # fmt: skip
        self.side = Guarded(lossless=True, shared=bool(choices & 8))
        for index in range(choices >> 4):
            self.side.post_receive()
            # Requests of this side go out first, so that answers have something to answer.
            self.side.post_request(index * 9)

    def take_all(self, portions: list[bytes], *, acting: bool = False) -> list[Taken]:
        """Take portions as they come; return what they were, up to the first broken rule."""
        kept, found = b"", list[Taken]()
        with suppress(RemoteProtocolError):
            self._answer()
            for portion in portions:
                kept += portion
                assert len(kept) < 2 * FPDU_BYTES_MAX + len(portion)
                while True:
                    item, taken_bytes = self._decoder.take(memoryview(kept))
                    if not taken_bytes:
                        break
                    kept = kept[taken_bytes:]
                    found.append(item)
                    if acting and isinstance(item, Packet):
                        self.side.receive(item)
                    self._check()
                if acting:
                    self._answer()
        return found

    def _answer(self) -> None:
        out: list[BytesLike] = []
        for packet in self.side.answers():
            reject_reason = self._encoder.emit(packet, out)
            if reject_reason is not None:
                self.side.receive(reject_reason)
            assert sum(map(len, out)) < _OUT_BYTES_MAX
        self.side.take_completions()

    def _check(self) -> None:
        reads = self._reads
        assert len(reads.inbound) + len(reads.inbound_atomics) <= READS
        assert len(reads.outbound) + len(reads.outbound_atomics) <= READS


def connections(data: bytes) -> None:
    """Give the connection manager messages of three routes; what it keeps stays bounded."""
    script = Script(data)
    settings = CmSettings(pending_max=8, connections_max=16, past_max=16)
    core = CmCore(random=random.Random(0), settings=settings)
    listener = core.listen(local=("10.0.0.1", 7), space=0x106, backlog=4)
    now_ns = 0
    for _ in range(STEPS_MAX):
        if not script:
            break
        bits, extra = script.number(), script.number()
        now_ns += extra * _S // 16
        if bits & 4 and len(core._connections) < settings.connections_max:
            _ask(core, now_ns)
        local = ("10.0.0.1", 7) if bits & 8 else None
        core.receive_data(
            _addressed(core, script.piece(), bits),
            source=_ROUTES[bits % len(_ROUTES)], local=local, now_ns=now_ns,
        )  # fmt: skip
        if bits & 32:
            core.handle_timeout(now_ns)
        _take_events(core, bits, now_ns)
        while core.poll_transmit() is not None:
            pass
        assert len(core._connections) <= settings.connections_max
        assert len(core._past) <= settings.past_max
        assert 0 <= listener.pending <= 4 and 0 <= core._pending <= settings.pending_max
        assert len(core._requests) + len(core._queue_pairs) <= 2 * len(core._connections)
        assert len(core._peers.deadlines) <= len(core._connections)
    core.close()
    assert not core._connections and not core._requests and not core._queue_pairs


def _ask(core: CmCore, now_ns: int) -> None:
    request = CmMessage(kind=CmMessageKind.REQ, context_guid=core.context_guid, offer=Offer(qpn=3))
    core.connect(
        route="left", space=0x106, local=("10.0.0.1", 9), peer=("10.0.0.2", 9), request=request,
        now_ns=now_ns,
    )  # fmt: skip


def _addressed(core: CmCore, data: bytes, bits: int) -> bytes:
    """Name a connection that there is in a message, if the step asks for it: ids are random."""
    known = tuple(core._connections)
    if not bits & 64 or not known or len(data) < 16:
        return data
    return data[:12] + known[data[15] % len(known)].to_bytes(4, "big") + data[16:]


def _take_events(core: CmCore, bits: int, now_ns: int) -> None:
    while (event := core.poll_event()) is not None:
        connection = event.connection
        if event.kind is CmEventKind.REQUEST and bits & 16:
            core.accept(connection, offer=Offer(qpn=5), private_data=b"", now_ns=now_ns)
        elif connection.state is CmState.REQUESTED and bits & 128:
            core.reject(connection)
        elif event.kind is CmEventKind.ESTABLISHED and bits & 128:
            core.disconnect(connection, now_ns=now_ns)


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (stream, connections)
}


def _said(urds_peer: bool) -> bytes:
    """Return the bytes of one end of a stream: the requests of `requests` as FPDUs."""
    encoder = Encoder(
        OutstandingReads(inbound_max=READS),
        urds_peer=urds_peer,
        crc=False,
        payload_bytes_max=64,
        psn=FIRST_PSN,
    )
    out: list[BytesLike] = []
    spoken = [each for each in requests() if urds_peer or each.kind not in ATOMICS]
    for index, packet in enumerate(spoken):
        packet.psn = FIRST_PSN + index
        encoder.emit(packet, out)
    return b"".join(out)


def _asked(count: int) -> bytes:
    """Return reads that one end of a stream asks for at once."""
    encoder = Encoder(
        OutstandingReads(inbound_max=READS),
        urds_peer=True,
        crc=False,
        payload_bytes_max=64,
        psn=FIRST_PSN,
    )
    out: list[BytesLike] = []
    for psn in range(FIRST_PSN, FIRST_PSN + count):
        encoder.emit(
            Packet(PacketKind.READ_REQUEST, QPN, psn, ONLY, address=AT, rkey=KEY, length=8), out
        )
    return b"".join(out)


def _flood(count: int) -> bytes:
    """Return requests of as many unknown peers, which are not answered."""
    return b"".join(step(8, 0, data=_greetings(local_id)[0]) for local_id in range(1, count + 1))


def _greetings(local_id: int = 5) -> tuple[bytes, ...]:
    offer = Offer(qpn=16 + local_id, mtu_bytes=1024, responder_resources=4)
    kinds = (CmMessageKind.REQ, CmMessageKind.RTU, CmMessageKind.DREQ, CmMessageKind.ALIVE)
    return tuple(
        CmMessage(
            kind=kind,
            context_guid=b"unknown!",
            local_id=local_id,
            space=0x106,
            target_port=7,
            offer=offer,
        ).emit()
        for kind in kinds
    )


SEEDS: dict[str, tuple[bytes, ...]] = {
    "stream": (
        step(0x41, data=b"\x20\x40\x90") + _said(urds_peer=True),
        step(0x80, data=b"") + _said(urds_peer=False)[:200],
        step(0x01, data=b"\x80") + _asked(READS + 4),
    ),
    "connections": (
        _flood(6),
        b"".join(step(16 | 8 | 64, 1, data=each) for each in _greetings()),
        b"".join(step(4 | 32 | 64, 40, data=each) for each in _greetings()[1:]),
    ),
}  # fmt: skip
