"""A thief connects from the address of a peer that lives: its messages stay the peer's.

Any local user of the peer's host can bind its address. The thief says to be a urds node in a new
life; were it believed, the sender would give up what the peer was handed, and hand it the rest.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from contextlib import suppress

import pytest

from tests.rds.transports.tcp.conftest import Lab
from tests.rds.transports.tcp.faults import reset
from tests.rds.transports.tcp.frames import emit_frame, emit_map
from tests.support.waiting import BUSY_S, wait_until
from urds.rds.constants import Capability
from urds.rds.control.paths import SourcePortRule
from urds.rds.wire.extensions import Handshake, Mark, emit_handshake

VICTIM, PEER = 250, 7  # the higher one accepts
COUNT = 200


def steal(lab: Lab, victim: str, generation: int) -> bytes:
    """Connect as the peer, claim another generation; return the answer, b"" if it hangs up."""
    mark = Mark(Capability.ACKNOWLEDGEMENTS | Capability.CHECKSUM | Capability.GENERATION_HELLO)
    extension = emit_handshake(Handshake(npaths=1, generation=generation, mark=mark))
    got = b""
    connection: socket.socket | None = None
    with suppress(ConnectionError):
        connection = lab.connect(PEER, victim, SourcePortRule(0, generation))
        connection.sendall(emit_map() + emit_frame(source_port=1, extension=extension))
        if select.select([connection], [], [], BUSY_S)[0]:
            got = connection.recv(1 << 16)
    if connection is not None:
        reset(connection)
    return got


@pytest.fixture
def shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all go over TCP, where the thief is."""
    monkeypatch.setenv("URDS_SHARED_MEMORY", "0")


@pytest.mark.usefixtures("shared_memory")
def test_a_peer_that_lives_keeps_its_messages(lab: Lab) -> None:
    victim, peer = lab.process(VICTIM, liveness_wait_s=BUSY_S), lab.process(PEER)
    peer.ask("serve_echo")
    assert len(victim.ask("talk", target=peer.address, count=20, payload_bytes=100)) == 20
    victim.begin("talk", target=peer.address, count=COUNT, payload_bytes=8000)
    stolen = [steal(lab, victim.address, 1000 + turn) for turn in range(5)]
    assert len(victim.finish()) == COUNT
    assert stolen == [b""] * 5
    counters = victim.ask("counters")
    assert counters["takeovers_refused"] == 5
    assert counters["superseded"] == counters["send_given_up"] == counters["peer_restarts"] == 0
    lines = [line for line in victim.ask("logged") if "another process connects" in line]
    assert 0 < len(lines) <= 10
    assert lines[0] == f"another process connects as {peer.address}, which still answers: refused"


@pytest.mark.usefixtures("shared_memory")
def test_a_restart_is_believed_at_once(lab: Lab) -> None:
    victim, peer = lab.process(VICTIM), lab.process(PEER)
    peer.ask("serve_echo")
    victim.ask("talk", target=peer.address, count=5, payload_bytes=10)
    time.sleep(0.2)  # the handshake is over, so that a life is known of which there can be another
    peer.kill()
    peer = lab.process(PEER)
    peer.ask("serve_echo")
    victim.ask("talk", target=peer.address, count=5, payload_bytes=10)
    wait_until(lambda: victim.ask("counters")["peer_restarts"] == 1)
    assert victim.ask("counters")["takeovers_refused"] == 0


@pytest.mark.usefixtures("shared_memory")
def test_a_peer_that_is_stopped_cannot_answer(lab: Lab) -> None:
    """The limit of it, as SECURITY.md says: after 200 ms the second stream is believed."""
    victim, peer = lab.process(VICTIM), lab.process(PEER)
    peer.ask("serve_echo")
    victim.ask("talk", target=peer.address, count=5, payload_bytes=10)
    os.kill(peer.pid, signal.SIGSTOP)
    try:
        assert steal(lab, victim.address, 1000)
        wait_until(lambda: victim.ask("counters")["superseded"] == 1)
    finally:
        os.kill(peer.pid, signal.SIGCONT)
