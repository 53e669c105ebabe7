"""State that outlives a path: the numbers by which a duplicate is detected.

A peer retransmits every unacknowledged message, however long ago it was sent and whatever was
forgotten in between. So the numbers of `Incoming` can be taken out of a closed path and put into
the next one to the same peer, which then decides as if it had existed all the time.
"""

from urds.rds.plane.contract import Received
from urds.rds.plane.python.incoming import Incoming


def received_by(incoming: Incoming) -> Received:
    """Return the numbers. Plane's lock held."""
    lowest = incoming._lowest
    return Received(
        sequence_expected=incoming.sequence_expected,
        floor=incoming._floor if lowest is None else lowest,
        probe_sequence=incoming.generations.probe_sequence,
        generation=incoming.generations.generation,
        map_generation=incoming.generations.map_generation,
        watch_restarts=incoming.watch_restarts,
    )


def expect(incoming: Incoming, received: Received) -> None:
    """Continue with these numbers; before the first stream. Plane's lock held."""
    incoming.sequence_expected = received.sequence_expected
    incoming._floor = received.floor
    incoming.generations.probe_sequence = received.probe_sequence
    incoming.generations.generation = received.generation
    incoming.generations.map_generation = received.map_generation
    incoming.watch_restarts = received.watch_restarts
