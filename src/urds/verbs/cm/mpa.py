"""MPA connection set-up: the request and the reply that turn a TCP connection into an iWARP stream.

`MpaConnection` is the value machine of one side: bytes, calls and `now_ns` go in, bytes and
events come out. It knows no socket and no queue pair. After success the bytes of the stream are
FPDUs; those that came together with the last frame are in `remainder`.

A frame is a key of 16 bytes, 16 bits of flags and revision, the length of the private data and
the data itself, at most 512 bytes. In revision 2 the data start with four bytes: how many reads
the sender serves (IRD) and wants to make (ORD), and whether the side that accepts may be the first
to send. Source: RFC 5044 section 7.1 (frames), RFC 6581 section 9 (revision 2),
docs/reference/verbs-and-roce.md 16 (what linux siw sends).

Two `urds` peers recognise each other by two of the flag bits that RFC 5044 reserves: the request
carries URDS_REQUEST, the reply URDS_REPLY in its place. Two different bits, since linux v6.12 siw
answers with the request's own flag word: a peer that echoes is not a `urds` peer. ADR 7.
"""

from collections import deque
from dataclasses import dataclass, replace
from enum import IntEnum, IntFlag
from struct import Struct
from typing import Final

from urds.common.errors import LocalProtocolError, WireError

PRIVATE_BYTES_MAX: Final = 512  # of the frame; revision 2 spends four of them
ENHANCED_BYTES: Final = 4
READS_MAX: Final = 128  # served or made at once; a peer that asks for more gets this many
READS_UNSPECIFIED: Final = 0x3FFF  # "not negotiated here". Source: RFC 6581 section 9.1

_KEYS: Final = (b"MPA ID Req Frame", b"MPA ID Rep Frame")
_HEADER: Final = Struct(">16sHH")
_ENHANCED: Final = Struct(">HH")
_REVISION_MASK: Final = 0x00FF
_COUNT_MASK: Final = 0x3FFF


class MpaFlag(IntFlag):
    """Flags of a frame; the low byte of the same word is the revision."""

    NONE = 0
    MARKERS = 0x8000  # the sender wants markers in what it receives; not supported
    CRC = 0x4000  # either side's wish binds both
    REJECT = 0x2000
    ENHANCED = 0x1000  # the private data start with IRD and ORD
    URDS_REQUEST = 0x0400
    URDS_REPLY = 0x0200


class MpaFirstFrame(IntFlag):
    """First frames of the initiator after which the responder may send. Source: RFC 6581 9."""

    NONE = 0
    EMPTY_FPDU = 0x4000  # in the IRD word
    WRITE = 0x8000 << 16  # in the ORD word, here one word up
    READ = 0x4000 << 16


_PEER_TO_PEER: Final = 0x8000  # in the IRD word
_OURS: Final = (MpaFirstFrame.NONE, MpaFirstFrame.WRITE)  # what a reply to our request may choose


class MpaError(IntEnum):
    """Why a set-up failed, as the TERMINATE codes of layer 2. Source: RFC 6581 section 9.2."""

    LOCAL_CATASTROPHIC = 5
    INVALID_FRAME = 4
    INSUFFICIENT_IRD = 6
    NO_MATCHING_FIRST_FRAME = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class MpaFrame:
    """One request or reply. `ird` and `ord` count reads and are valid in revision 2 only."""

    is_reply: bool = False
    flags: MpaFlag = MpaFlag.NONE
    revision: int = 2
    ird: int = 0
    ord: int = 0
    peer_to_peer: bool = False
    first_frames: MpaFirstFrame = MpaFirstFrame.NONE
    private_data: bytes = b""  # without IRD and ORD

    def emit(self) -> bytes:
        """Write the frame. Raises WireError for private data beyond the limit."""
        data = self.private_data
        if MpaFlag.ENHANCED in self.flags:
            ird = self.ird | (self.first_frames & 0xFFFF) | _PEER_TO_PEER * self.peer_to_peer
            data = _ENHANCED.pack(ird, self.ord | self.first_frames >> 16) + data
        if len(data) > PRIVATE_BYTES_MAX:
            raise WireError(f"private data of {len(data)} bytes, limit {PRIVATE_BYTES_MAX}")
        return _HEADER.pack(_KEYS[self.is_reply], self.flags | self.revision, len(data)) + data

    @classmethod
    def parse(cls, data: bytes | bytearray | memoryview) -> "tuple[MpaFrame, int] | None":
        """Read one frame from the front; return it and its length, `None` while bytes are missing.

        Raises WireError as soon as the bytes cannot become a frame: a client of another protocol is
        recognised by its first byte.
        """
        front = bytes(data[:16])
        if not any(key.startswith(front) for key in _KEYS):
            raise WireError(f"the peer speaks no iWARP: {front[:16]!r} is no MPA key")
        if len(data) < _HEADER.size:
            return None
        key, word, data_bytes = _HEADER.unpack_from(data)
        if data_bytes > PRIVATE_BYTES_MAX:
            raise WireError(f"private data of {data_bytes} bytes, limit {PRIVATE_BYTES_MAX}")
        end = _HEADER.size + data_bytes
        if len(data) < end:
            return None
        # Undefined bits are ignored, as RFC 5044 asks.
        flags = MpaFlag(word & ~_REVISION_MASK & sum(MpaFlag))
        frame = cls(
            is_reply=key == _KEYS[True],
            flags=flags,
            revision=word & _REVISION_MASK,
            private_data=bytes(data[_HEADER.size : end]),
        )
        return frame._with_counts(), end

    def _with_counts(self) -> "MpaFrame":
        if MpaFlag.ENHANCED not in self.flags:
            return self
        if len(self.private_data) < ENHANCED_BYTES:
            raise WireError(f"{len(self.private_data)} bytes hold no IRD and ORD")
        ird, ord_ = _ENHANCED.unpack_from(self.private_data)
        return replace(
            self,
            ird=ird & _COUNT_MASK,
            ord=ord_ & _COUNT_MASK,
            peer_to_peer=bool(ird & _PEER_TO_PEER),
            first_frames=MpaFirstFrame(ird & 0x4000 | (ord_ & 0xC000) << 16),
            private_data=self.private_data[ENHANCED_BYTES:],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MpaTerms:
    """The parameters of this side: reads it serves and wants to make, whether it requires CRC."""

    ird: int = 16
    ord: int = 16
    crc: bool = False
    private_data: bytes = b""
    urds_peer: bool = True  # offer, or take, the manners of urds nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class MpaRequested:
    """A request came in: `accept` or `reject` it. Counts are from the initiator's view."""

    private_data: bytes
    ird: int
    ord: int
    urds_peer: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MpaEstablished:
    """Both sides agree. Counts are this side's: reads served, reads made."""

    private_data: bytes  # the peer's; empty on the side that accepted
    ird: int
    ord: int
    crc: bool
    urds_peer: bool
    revision: int
    first_frame: MpaFirstFrame  # what the initiator has to send before anything else


@dataclass(frozen=True, slots=True)
class MpaRejected:
    """The peer's application rejected the request."""

    private_data: bytes


@dataclass(frozen=True, slots=True)
class MpaFailed:
    """The set-up failed: drop the connection."""

    reason: str
    error: MpaError = MpaError.INVALID_FRAME


MpaEvent = MpaRequested | MpaEstablished | MpaRejected | MpaFailed


class MpaConnection:
    """One side of a set-up. The initiator starts with its `terms`, the responder without."""

    def __init__(self, terms: MpaTerms | None, *, deadline_ns: int) -> None:
        self._terms = terms
        self._is_initiator = terms is not None
        self._deadline_ns: int | None = deadline_ns
        self._received = bytearray()
        self._request: MpaFrame | None = None
        self._bytes: deque[bytes] = deque()
        self._events: deque[MpaEvent] = deque()
        self._ended = False
        self.remainder = b""
        if terms is not None:
            self._bytes.append(_request_of(terms).emit())

    # -- the five calls

    def receive_data(self, data: bytes | bytearray | memoryview) -> None:
        """Process bytes of the connection; at most one frame of 532 bytes is kept."""
        if self._ended or self._request is not None:
            # Nothing may follow a request before its reply, or the end.
            self._fail(f"{len(data)} bytes behind the request")
            return
        self._received += data
        try:
            found = MpaFrame.parse(self._received)
        except WireError as error:
            self._fail(str(error))
            return
        if found is None:
            return
        frame, end = found
        self.remainder = bytes(self._received[end:])
        self._received.clear()
        self._deadline_ns = None
        if frame.is_reply != self._is_initiator:
            self._fail("a request where a reply was due" if self._is_initiator else "a reply first")
        elif self._is_initiator:
            self._handle_reply(frame)
        else:
            self._handle_request(frame)

    def handle_timeout(self, now_ns: int) -> None:
        """Fail if the peer has not sent its frame by the deadline."""
        if self._deadline_ns is not None and now_ns >= self._deadline_ns:
            self._fail("no whole MPA frame in time")

    def poll_timeout(self) -> int | None:
        """Return the deadline; none runs while the local application has the request."""
        return self._deadline_ns

    def poll_transmit(self) -> bytes | None:
        """Return bytes to send."""
        return self._bytes.popleft() if self._bytes else None

    def poll_event(self) -> MpaEvent | None:
        """Return the next event; the last one is anything but `MpaRequested`."""
        return self._events.popleft() if self._events else None

    # -- answers of the responder

    def accept(self, terms: MpaTerms) -> None:
        """Accept the request. Raises WireError for private data beyond the limit."""
        request = self._answerable()
        reply = _reply_to(request, terms)
        data = reply.emit()
        self._ended = True
        self._bytes.append(data)
        enhanced = MpaFlag.ENHANCED in request.flags
        self._events.append(
            MpaEstablished(
                private_data=b"",
                ird=reply.ird if enhanced else terms.ird,
                ord=reply.ord if enhanced else terms.ord,
                crc=MpaFlag.CRC in reply.flags,
                urds_peer=MpaFlag.URDS_REPLY in reply.flags,
                revision=reply.revision,
                first_frame=reply.first_frames,
            )
        )

    def reject(self, private_data: bytes = b"") -> None:
        """Reject the request. Raises WireError for too much private data."""
        request = self._answerable()
        flags = MpaFlag.REJECT | request.flags & MpaFlag.ENHANCED
        reply = MpaFrame(
            is_reply=True, flags=flags, revision=request.revision, private_data=private_data
        )
        self._bytes.append(reply.emit())
        self._ended = True

    def _answerable(self) -> MpaFrame:
        if self._request is None or self._ended:
            raise LocalProtocolError("no request waits for an answer")
        return self._request

    # -- what came in

    def _handle_request(self, frame: MpaFrame) -> None:
        self._request = frame
        if MpaFlag.MARKERS in frame.flags:
            # Senders avoid markers; linux v6.12 siw rejects them as well.
            self.reject()
            self._events.append(MpaFailed("the peer wants markers"))
        elif frame.revision not in (1, 2):
            self._fail(f"revision {frame.revision}, not 1 or 2")
        elif MpaFlag.REJECT in frame.flags or self.remainder:
            self._fail("a request that rejects, or does not wait for its reply")
        else:
            self._events.append(
                MpaRequested(
                    private_data=frame.private_data,
                    ird=_bounded(frame, frame.ird),
                    ord=_bounded(frame, frame.ord),
                    urds_peer=MpaFlag.URDS_REQUEST in frame.flags,
                )
            )

    def _handle_reply(self, frame: MpaFrame) -> None:
        assert self._terms is not None
        terms = self._terms
        enhanced = MpaFlag.ENHANCED in frame.flags
        if MpaFlag.REJECT in frame.flags:
            self._ended = True
            self._events.append(MpaRejected(frame.private_data))
        elif MpaFlag.MARKERS in frame.flags:
            self._fail("the peer wants markers")
        elif frame.revision not in (1, 2):
            self._fail(f"revision {frame.revision}, not 1 or 2")
        elif enhanced and frame.ord > READS_MAX and frame.ord != READS_UNSPECIFIED:
            self._fail(f"{frame.ord} reads at once, limit {READS_MAX}", MpaError.INSUFFICIENT_IRD)
        elif frame.peer_to_peer and frame.first_frames not in _OURS:
            self._fail("another first frame than offered", MpaError.NO_MATCHING_FIRST_FRAME)
        else:
            self._ended = True
            # A peer that serves fewer reads than we wanted to make lowers our number; one that
            # means to make more than we offered gets them, for our limit is higher anyway.
            self._events.append(
                MpaEstablished(
                    private_data=frame.private_data,
                    ird=max(terms.ird, _bounded(frame, frame.ord)) if enhanced else terms.ird,
                    ord=min(terms.ord, _bounded(frame, frame.ird)) if enhanced else terms.ord,
                    crc=terms.crc or MpaFlag.CRC in frame.flags,
                    urds_peer=terms.urds_peer and MpaFlag.URDS_REPLY in frame.flags,
                    revision=frame.revision,
                    first_frame=frame.first_frames if frame.peer_to_peer else MpaFirstFrame.NONE,
                )
            )

    def _fail(self, reason: str, error: MpaError = MpaError.INVALID_FRAME) -> None:
        if not self._ended or not self._is_initiator:
            self._events.append(MpaFailed(reason, error))
        self._ended = True
        self._deadline_ns = None


def _request_of(terms: MpaTerms) -> MpaFrame:
    flags = MpaFlag.ENHANCED
    if terms.crc:
        flags |= MpaFlag.CRC
    if terms.urds_peer:
        flags |= MpaFlag.URDS_REQUEST
    # Peer to peer is always offered: it costs an empty write, and without it the side that
    # accepts must stay silent until we have sent something.
    return MpaFrame(
        flags=flags,
        ird=terms.ird,
        ord=terms.ord,
        peer_to_peer=True,
        first_frames=MpaFirstFrame.WRITE,
        private_data=terms.private_data,
    )


def _reply_to(request: MpaFrame, terms: MpaTerms) -> MpaFrame:
    flags = request.flags & MpaFlag.ENHANCED
    if terms.crc or MpaFlag.CRC in request.flags:
        flags |= MpaFlag.CRC
    urds_peer = terms.urds_peer and MpaFlag.URDS_REQUEST in request.flags
    if urds_peer:
        flags |= MpaFlag.URDS_REPLY
    first = (
        _chosen(request.first_frames)
        if request.peer_to_peer and not urds_peer
        else MpaFirstFrame.NONE
    )
    return MpaFrame(
        is_reply=True,
        flags=flags,
        revision=request.revision,
        ird=min(terms.ird, _bounded(request, request.ord)),
        ord=min(terms.ord, _bounded(request, request.ird)),
        peer_to_peer=bool(first),
        first_frames=first,
        private_data=terms.private_data,
    )


def _bounded(frame: MpaFrame, count: int) -> int:
    """Return how many reads a peer's count allows, within our limit."""
    if MpaFlag.ENHANCED not in frame.flags or count == READS_UNSPECIFIED:
        return READS_MAX
    return min(count, READS_MAX)


def _chosen(offered: MpaFirstFrame) -> MpaFirstFrame:
    """Return the cheapest of the first frames that a peer offers."""
    cheap = (MpaFirstFrame.WRITE, MpaFirstFrame.READ, MpaFirstFrame.EMPTY_FPDU)
    return next((choice for choice in cheap if choice in offered), MpaFirstFrame.NONE)
