"""Queue pairs that wait for room, and in which order they are served once there is some."""

from urds.verbs.engine.work import AddressVector
from urds.verbs.providers.packet_connection import QueuePairEntry


class Blocked:
    """The queue pairs of an adapter whose paths have no room. Lock: the adapter's.

    One that has used the room of its path goes behind those that wait for it.
    """

    def __init__(self) -> None:
        self._by_path: dict[AddressVector, dict[int, QueuePairEntry]] = {}
        self._ranks = 0

    def paths(self) -> list[AddressVector]:
        """Return the paths without room."""
        return list(self._by_path)

    def add(self, path: AddressVector, entry: QueuePairEntry) -> None:
        """Have a queue pair wait for room."""
        if entry.has_sent:
            self._ranks += 1
            entry.has_sent, entry.rank = False, self._ranks
        self._by_path.setdefault(path, {})[entry.qp.qpn] = entry

    def forget(self, qpn: int) -> None:
        """Drop a queue pair."""
        for blocked in self._by_path.values():
            blocked.pop(qpn, None)

    def take(self, path: AddressVector) -> dict[int, QueuePairEntry]:
        """Remove and return what waited for a path, by number; the last one is served first."""
        blocked = self._by_path.pop(path, {})
        return dict(sorted(blocked.items(), key=_rank_of, reverse=True))


def _rank_of(blocked: tuple[int, QueuePairEntry]) -> int:
    return blocked[1].rank
