"""Roles of a pair of rsockets on `shm0`: records of many sizes, echoed byte by byte."""

from __future__ import annotations

import time
from socket import MSG_WAITALL, SHUT_WR, SO_LINGER, SOL_SOCKET
from struct import Struct
from typing import Final

from tests.soak.messages import Head, Kind, Writer
from tests.soak.role import ANSWER_S, STREAM_PORT, Stage
from urds import rsocket

_LENGTH: Final = Struct("!I")  # of the record that follows
_WAIT_S: Final = 0.5
_LINGER_NONE: Final = Struct("ii").pack(1, 0)  # break off instead of ending


def serve(stage: Stage) -> None:
    """Accept one connection after the other; send every record back."""
    with rsocket.create_server((stage.address(), STREAM_PORT)) as listener:
        listener.settimeout(_WAIT_S)
        while not stage.over.is_set():
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            with connection:
                connection.settimeout(ANSWER_S)
                _echo(connection)


def _echo(connection: rsocket.Socket) -> None:
    try:
        while (record := _receive(connection)) is not None:
            connection.sendall(_LENGTH.pack(len(record)) + record)
    except (ConnectionError, TimeoutError):
        pass  # the client broke off, or was ended; it counts what it misses


def _receive(connection: rsocket.Socket) -> bytes | None:
    """Return the next record; None at the end of the stream."""
    length = connection.recv(_LENGTH.size, MSG_WAITALL)
    if len(length) < _LENGTH.size:
        return None
    (byte_count,) = _LENGTH.unpack(length)
    record: bytes = connection.recv(byte_count, MSG_WAITALL)
    return record if len(record) == byte_count else None


def ask(stage: Stage) -> None:
    """Connect, have records echoed, end or break off, again and again."""
    while not stage.over.is_set():
        connection = _connect(stage)
        if connection is None:
            stage.counters.refused += not stage.over.is_set()
            continue
        with connection:
            _converse(connection, stage)
            if stage.is_reset_due():
                connection.setsockopt(SOL_SOCKET, SO_LINGER, _LINGER_NONE)
                stage.counters.resets += 1
            else:
                connection.shutdown(SHUT_WR)
                if connection.recv(1):
                    stage.counters.repeated += 1  # nothing was due but the end


def _connect(stage: Stage) -> rsocket.Socket | None:
    """Connect; None without a listener for a while."""
    end_s = time.monotonic() + ANSWER_S
    while time.monotonic() < end_s and not stage.over.is_set():
        try:
            connection = rsocket.create_connection(
                (stage.address("stream-server"), STREAM_PORT), timeout=ANSWER_S
            )
        except ConnectionRefusedError:  # at the start the server may be slower than we
            stage.over.wait(_WAIT_S)
            continue
        stage.counters.sockets += 1
        return connection
    return None


def _converse(connection: rsocket.Socket, stage: Stage) -> None:
    writer, counters, end_s = Writer(), stage.counters, stage.end_of_life_s()
    while time.monotonic() < end_s and not stage.over.is_set():
        record = writer.next(Kind.ASK, stage.message_bytes())
        connection.sendall(_LENGTH.pack(len(record)) + record)
        answer = _receive(connection)
        if answer is None:
            counters.unanswered += 1
            return
        counters.byte_count += len(answer)
        head = Head.parse(answer)
        if head is None or not writer.is_answer(head):
            counters.damaged += 1
        else:
            counters.messages += 1
        stage.rest()
