"""The life of a stream: which directions are open, what control message is due, how it ended.

    call or message              then
    shut_down(WR)                SHUTDOWN while we read, else DISCONNECT; both behind all bytes
    shut_down(RD)                nothing while we write, else DISCONNECT
    shut_down(RDWR)              DISCONNECT
    SHUTDOWN comes               reading ends; over, if our own last data are out already
    DISCONNECT comes             over
    DISCONNECT of ours completes over

What arrived stays readable in every state but CLOSED. Source: docs/reference/rsocket.md 8.
"""

import errno

from urds.common.errors import RemoteProtocolError
from urds.rsocket.core.stream.records import Shut, StreamState
from urds.rsocket.wire.stream import Control


class StreamLifecycle:
    """State, directions and error of one stream."""

    __slots__ = (
        "_is_own_end", "_is_peer_shut", "_is_shutdown_out", "can_read", "can_write", "due", "error",
        "is_connected", "is_sending", "reason", "state",
    )  # fmt: skip

    def __init__(self) -> None:
        self.state = StreamState.NEW
        self.is_connected = False  # both sides' private data are known; stays so at the end
        self.is_sending = False  # messages may go to the peer
        self.can_read = False  # more may come
        self.can_write = False
        self.error = 0  # errno of what broke the stream, until it is taken
        self.reason = ""  # of the end, for people
        self.due: Control | None = None  # leaves behind all bytes
        self._is_shutdown_out = False
        self._is_peer_shut = False
        self._is_own_end = False  # the application itself ended writing

    def open(self) -> None:
        """Be connected."""
        self.state = StreamState.OPEN
        self.is_connected = self.is_sending = True
        self.can_read = self.can_write = True

    def take_error(self) -> int:
        """Return `error` and forget it."""
        error, self.error = self.error, 0
        return error

    def check_writable(self) -> None:
        """Raise OSError if bytes cannot be sent.

        ENOTCONN before the connection; EPIPE after an own shutdown, as sockets of the kernel say
        (librdmacm says ECONNRESET for both); ECONNRESET when the peer ended it.
        """
        if self.can_write:
            return
        if self.state is StreamState.NEW:
            raise OSError(errno.ENOTCONN, "the stream is not connected")
        if self._is_own_end:
            raise OSError(errno.EPIPE, "writing was shut down")
        raise OSError(errno.ECONNRESET, self.reason or "the connection is over")

    # -- what we end

    def shut_down(self, how: Shut) -> None:
        """End one direction or both; what was accepted leaves first. Poll afterwards.

        Ending what has ended changes nothing.
        """
        if self.state is not StreamState.OPEN:
            return
        if how != Shut.WR:
            self.can_read = False
        if how != Shut.RD:
            self.can_write, self._is_own_end = False, True
        if not self.can_write:
            is_half = self.can_read and not self._is_shutdown_out
            if is_half:
                self.due = Control.SHUTDOWN
            elif not self.can_read:
                self.due = Control.DISCONNECT

    def next_control(self) -> Control | None:
        """Return the control message that is due; the caller has sent all bytes before it."""
        due, self.due = self.due, None
        if due is Control.SHUTDOWN:
            self._is_shutdown_out = True
        elif due is Control.DISCONNECT:
            self.state = StreamState.CLOSING
        return due

    # -- what ends us

    def take_shutdown(self) -> bool:
        """End reading; return whether nothing is left of the stream, as we have written all."""
        self._is_peer_shut = True
        self.can_read = False
        if not self.can_write and not self._is_shutdown_out and self.state is StreamState.OPEN:
            self.due = Control.DISCONNECT  # instead of the SHUTDOWN that has not left yet
        return self._is_shutdown_out

    def check_data(self) -> None:
        """Check a data message. Raises RemoteProtocolError behind a SHUTDOWN."""
        if self._is_peer_shut:
            raise RemoteProtocolError("data after SHUTDOWN")

    def end(self, reason: str, error: int = 0) -> None:
        """Be over, in order if there is no error. What is over already stays as it is."""
        if self.state in (StreamState.OVER, StreamState.FAILED, StreamState.CLOSED):
            return
        # A side that disconnects does not care how that is confirmed.
        is_failure = bool(error) and self.state is not StreamState.CLOSING
        self.state = StreamState.FAILED if is_failure else StreamState.OVER
        if is_failure:
            self.error = error
        self.reason = reason
        self.can_read = self.can_write = self.is_sending = False
        self.due = None

    def close(self) -> None:
        """Be gone."""
        self.end("closed")
        self.state = StreamState.CLOSED


class Keepalive:
    """When a keepalive is sent: at most one is under way."""

    __slots__ = ("_deadline_ns", "_interval_ns", "is_due", "is_out")

    def __init__(self, interval_ns: int | None) -> None:
        self._interval_ns = interval_ns
        self._deadline_ns: int | None = None
        self.is_due = False
        self.is_out = False

    def set_interval(self, interval_ns: int | None) -> None:
        """Ask every `interval_ns`, or not at all; counted from the next `handle_timeout`."""
        self._interval_ns, self._deadline_ns, self.is_due = interval_ns, None, False

    def poll_timeout(self) -> int | None:
        """Return the next deadline; 0 if there is none yet, None if none is wanted."""
        if self._interval_ns is None:
            return None
        return self._deadline_ns or 0

    def handle_timeout(self, now_ns: int) -> None:
        """Make a keepalive due if it is time, and begin to count."""
        if self._interval_ns is None:
            return
        if self._deadline_ns is None:
            self._deadline_ns = now_ns + self._interval_ns
        elif now_ns >= self._deadline_ns:
            self._deadline_ns = now_ns + self._interval_ns
            self.is_due = not self.is_out
