"""Each rule of the verbs engine, broken on purpose, turns its simulation red.

A rule is broken by a patch, then seeds are tried until one fails: in safety or liveness, as the
world of `verbs_world` judges them. With the rule whole the same seed is well.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.sim.broken import Patch, around, demand_felt, instead, nothing
from tests.sim.verbs_reads import World as Reads
from tests.sim.verbs_world import World
from urds.verbs.engine import flight, requester, responder
from urds.verbs.engine.flight import Flight
from urds.verbs.engine.numbers import ReceiveOrder, WCStatus
from urds.verbs.engine.packets import Packet, PacketFlag, PacketKind, Syndrome
from urds.verbs.engine.requester import Requester, SendQueue
from urds.verbs.engine.requests import SendRequest
from urds.verbs.engine.responder import Responder

pytestmark = pytest.mark.sim

SEEDS_MAX = 40
STEPS_MAX = 6000


@dataclass(frozen=True, slots=True)
class Broken:
    """A rule, the patch that breaks it, and the world that feels it."""

    rule: str
    patch: Patch
    receive_order: ReceiveOrder = ReceiveOrder.IN_ORDER
    lossless: bool = False
    names_places: bool = True

    def run(self, seed: int) -> None:
        World(
            seed,
            self.receive_order,
            shared=True,
            lossless=self.lossless,
            names_places=self.names_places,
        ).run(steps_max=STEPS_MAX)


@dataclass(frozen=True, slots=True)
class BrokenRead:
    """A rule of reads, for the world with a peer that remembers requests."""

    rule: str
    patch: Patch

    def run(self, seed: int) -> None:
        Reads(seed).run()


def _add_again(patch: pytest.MonkeyPatch) -> None:
    original = Responder._handle_duplicate

    def repeat(self: Responder, packet: Packet, psn: int) -> None:
        if packet.kind is PacketKind.ATOMIC_ADD:
            self._answers.append(self._atomic_answer(psn, self._change_cell(packet, psn)))
        else:
            original(self, packet, psn)

    patch.setattr(Responder, "_handle_duplicate", repeat)


def _write_again(patch: pytest.MonkeyPatch) -> None:
    original = Responder._handle_duplicate

    def repeat(self: Responder, packet: Packet, psn: int) -> None:
        if packet.kind is PacketKind.WRITE:
            self._place(packet)
        original(self, packet, psn)

    patch.setattr(Responder, "_handle_duplicate", repeat)


def _read_early(patch: pytest.MonkeyPatch) -> None:
    original = Responder._accept_ahead

    def accept(self: Responder, packet: Packet, psn: int) -> None:
        if packet.kind is PacketKind.READ_REQUEST:
            self._answers.append(responder._Reading(packet, psn, is_duplicate=True))
            self._reads_open += 1
        original(self, packet, psn)

    patch.setattr(Responder, "_accept_ahead", accept)


def _write_early(patch: pytest.MonkeyPatch) -> None:
    original = Responder._accept_ahead

    def accept(self: Responder, packet: Packet, psn: int) -> None:
        is_plain = packet.kind is PacketKind.WRITE and not packet.flags & PacketFlag.IMMEDIATE
        if is_plain and psn not in self._ahead:
            length = len(packet.payload)
            self._place(packet)
            packet.flags |= PacketFlag.PLACED
            packet.payload, packet.length = b"", length
        original(self, packet, psn)

    patch.setattr(Responder, "_accept_ahead", accept)


def _acknowledge_one_too_many(patch: pytest.MonkeyPatch) -> None:
    original = Responder._answer

    def answer(self: Responder, psn: int, syndrome: int = 0) -> Packet:
        return original(self, psn + (syndrome == Syndrome.ACK), syndrome)

    patch.setattr(Responder, "_answer", answer)


def _tell_one_too_many(patch: pytest.MonkeyPatch) -> None:
    original = responder._ranges
    patch.setattr(
        responder,
        "_ranges",
        lambda psns: tuple((first, last + 1 & 0xFFFFFF) for first, last in original(psns)),
    )


def _complete_in_any_order(self: SendQueue) -> None:
    for request in [request for request in self.started if not request.unanswered]:
        self.started.remove(request)
        if request.signalled:
            self._qp.complete_send(request, WCStatus.SUCCESS)


def _take_as_next(self: Responder, packet: Packet, psn: int = 0) -> None:
    self._accept_in_order(packet)


def _of_plain_writes(packet: Packet) -> bool:
    return packet.kind is PacketKind.WRITE and not packet.flags & PacketFlag.FIRST


def _place_at_start(original: Callable[..., None], self: Responder, packet: Packet) -> None:
    original(self, packet)
    if _of_plain_writes(packet):
        packet.address = self._target[0]


def _first_message(original: Callable[..., None], self: Responder, packet: Packet) -> None:
    original(self, packet)
    packet.msn = 1


def _forget_open_message(original: Callable[..., None], self: Responder, psn: int) -> None:
    original(self, psn)
    self._open, self._open_bytes = None, 0


def _restart_open_message(
    original: Callable[..., None], self: Responder, packet: Packet, psn: int
) -> None:
    original(self, packet, psn)
    if packet.flags & PacketFlag.FIRST:
        self._open_bytes = 0


def _length_of_packet(
    original: Callable[..., Packet], self: SendRequest, *arguments: object
) -> Packet:
    packet = original(self, *arguments)
    packet.length = len(packet.payload)
    return packet


BROKEN: list[Broken | BrokenRead] = [
    Broken("a repeated atomic is answered from memory", _add_again),
    Broken("a repeated write does not land again", _write_again),
    Broken(
        "a repeat is not taken for something new",
        instead(Responder, "_handle_duplicate", _take_as_next),
    ),
    Broken(
        "a packet ahead is not taken as the next one",
        instead(Responder, "_accept_ahead", _take_as_next),
        ReceiveOrder.ARRIVAL_ORDER,
    ),
    Broken("a read waits for what is before it", _read_early, ReceiveOrder.ARRIVAL_ORDER),
    Broken("a write waits for what is before it", _write_early, ReceiveOrder.ARRIVAL_ORDER),
    Broken("only what arrived is acknowledged", _acknowledge_one_too_many),
    Broken("only what is kept is told", _tell_one_too_many, ReceiveOrder.FILL_GAPS),
    Broken(
        "an acknowledgement stands in for no data",
        instead(Flight, "acknowledged", lambda self, up_to: [psn for psn in self if psn <= up_to]),
    ),
    Broken(
        "requests complete in posting order", instead(SendQueue, "complete", _complete_in_any_order)
    ),
    Broken("a fence waits for reads", instead(requester, "_FENCE", 0)),
    Broken("silence repeats what waits", instead(Flight, "retry_from", nothing)),
    Broken(
        "a refused packet is repeated", instead(Requester, "_pause", nothing), lossless=True
    ),
    Broken("PSNs wrap", instead(requester, "PSN_MASK", (1 << 25) - 1)),
    Broken(
        "the first packet of a write names the length of all",
        around(SendRequest, "build_data", _length_of_packet), names_places=False,
    ),
    Broken(
        "a packet without a place goes behind the one before it",
        around(Responder, "_set_place", _place_at_start), names_places=False,
    ),
    Broken(
        "a message without a number is the next one",
        around(Responder, "_set_place", _first_message), names_places=False,
    ),
    Broken(
        "an open message outlives a refusal",
        around(Responder, "_plan_rnr_nak", _forget_open_message), names_places=False,
    ),
    Broken(
        "an open message outlives duplicates",
        around(Responder, "_handle_duplicate", _restart_open_message), names_places=False,
    ),
    BrokenRead(
        "a read is repeated within a portion", instead(flight, "READ_PORTION_PACKETS", 1 << 20)
    ),
]  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.rule)
def test_a_broken_rule_is_felt(
    broken: Broken | BrokenRead, monkeypatch: pytest.MonkeyPatch
) -> None:
    demand_felt(broken.rule, broken.patch, broken.run, range(SEEDS_MAX), monkeypatch)
