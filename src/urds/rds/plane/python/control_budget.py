"""How many control messages of a peer become events: a value machine."""

_HANDSHAKES_OF_STREAM = 4  # the peer's own and its answer to the local one, each once more


class ControlBudget:
    """Limit on a path's control messages that become events: a burst, then a rate.

    Each ping, pong or handshake costs the control thread a wake-up, a pass under the control lock
    and an answer. A peer's messages beyond its budget are dropped and counted before any of that,
    so that a flood costs its neighbours no more than the same bytes in messages to unbound ports.

    Two kinds are never dropped. The first handshake messages of a stream: without them a urds node
    is taken for a kernel, and what a reset then interrupts is lost; a new stream costs far more
    than they do, and streams have limits of their own. Congestion maps: the plane itself puts the
    newest one of a read into force, and without it a sender could wait for good.

    A leaky bucket. It outlives streams, so that a reconnect gains no pings.

    Source: the generic cell rate algorithm, ITU-T I.371 annex A.
    """

    def __init__(self, *, burst_max: int, interval_ns: int) -> None:
        self._interval_ns = interval_ns
        self._ahead_max_ns = (burst_max - 1) * interval_ns
        self._due_ns = 0  # when the next one is due at the steady rate
        self._handshakes_left = _HANDSHAKES_OF_STREAM

    def begin_stream(self) -> None:
        """Admit the handshake of a new stream."""
        self._handshakes_left = _HANDSHAKES_OF_STREAM

    def admits(self, now_ns: int, *, handshake: bool) -> bool:
        """Return whether one more control message is within the budget; charge it if so."""
        if handshake and self._handshakes_left:
            self._handshakes_left -= 1
            return True
        if self._due_ns - now_ns > self._ahead_max_ns:
            return False
        self._due_ns = max(self._due_ns, now_ns) + self._interval_ns
        return True
