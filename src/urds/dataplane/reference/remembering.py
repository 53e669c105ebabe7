"""What outlives a path: the numbers by which a repeat is told from a new message.

A peer repeats what was not acknowledged to it, however long ago that was and whatever we forgot in
between. So the numbers that `Incoming` goes by can be taken out of a path that is closed, and put
into the next one to the same peer, which then judges as if it had been there all the time.
"""

from urds.dataplane.base import Received
from urds.dataplane.reference.incoming import Incoming


def received_by(incoming: Incoming) -> Received:
    """Return the numbers. Plane's lock held."""
    lowest = incoming._lowest
    return Received(
        sequence_expected=incoming.sequence_expected,
        floor=incoming._floor if lowest is None else lowest,
        probe_sequence=incoming.lives.probe_sequence,
        generation=incoming.lives.generation,
        life=incoming.lives.life,
        watch_restarts=incoming.watch_restarts,
    )


def expect(incoming: Incoming, received: Received) -> None:
    """Go on with these numbers; before the first stream. Plane's lock held."""
    incoming.sequence_expected = received.sequence_expected
    incoming._floor = received.floor
    incoming.lives.probe_sequence = received.probe_sequence
    incoming.lives.generation = received.generation
    incoming.lives.life = received.life
    incoming.watch_restarts = received.watch_restarts
