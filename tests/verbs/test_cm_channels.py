"""Events of connections: several waiters of a channel, and what a synchronous side keeps."""

import asyncio
import threading
import time

import pytest

from tests.support.waiting import BUSY_S
from urds.verbs import (
    CMID,
    RAI_PASSIVE,
    AddrInfo,
    CMEvent,
    CMEventChannel,
    ConnParam,
    Context,
    QPInitAttr,
    VerbsArgumentError,
    VerbsClosedError,
    VerbsTimeoutError,
)

ADDRESS = ("127.0.0.1", 1)
WAIT_S = 10.0


def test_each_event_goes_to_one_of_the_threads_that_wait() -> None:
    with Context("udp0") as context:
        channel = CMEventChannel(context)
        taken: list[CMEvent] = []

        def wait() -> None:
            taken.append(channel.get_event(WAIT_S))

        threads = [threading.Thread(target=wait) for _ in range(4)]
        for thread in threads:
            thread.start()
        cmids = [CMID(channel) for _ in threads]
        for cmid in cmids:
            cmid.resolve_addr(ADDRESS)
        for thread in threads:
            thread.join(WAIT_S)
        assert {id(event.id) for event in taken} == {id(cmid) for cmid in cmids}
        with pytest.raises(VerbsTimeoutError):
            channel.get_event(0)


def test_closing_a_channel_wakes_who_waits() -> None:
    with Context("udp0") as context:
        channel = CMEventChannel(context)
        raised: list[type[BaseException]] = []

        def wait() -> None:
            try:
                channel.get_event(WAIT_S)
            except VerbsClosedError as error:
                raised.append(type(error))

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.05)
        channel.close()
        thread.join(WAIT_S)
        assert raised == [VerbsClosedError]  # and no timeout


def test_a_wait_has_its_limit() -> None:
    with Context("udp0") as context:
        started = time.monotonic()
        with pytest.raises(VerbsTimeoutError, match=r"no connection event in 0\.05 s"):
            CMEventChannel(context).get_event(0.05)
        assert 0.05 <= time.monotonic() - started < BUSY_S


def test_synchronous_sides_read_what_the_other_said() -> None:
    """As `id->event` of rdma_cm: the request that was taken, and the answer to a connect."""
    with Context("tcp0") as right, Context("tcp0") as left:
        listener = CMID(AddrInfo("127.0.0.1", 0, flags=RAI_PASSIVE), QPInitAttr(), context=right)
        listener.listen()
        asked: list[bytes] = []

        def serve() -> None:
            server = listener.get_request(WAIT_S)
            assert server.event is not None
            asked.append(server.event.private_data)
            server.accept(ConnParam(private_data=b"welcome"))

        serving = threading.Thread(target=serve)
        serving.start()
        assert listener.local_addr is not None
        target = AddrInfo(dst="127.0.0.1", dst_service=listener.local_addr[1])
        client = CMID(target, QPInitAttr(), context=left)
        assert client.event is None
        client.connect(ConnParam(private_data=b"hello"))
        serving.join(WAIT_S)
        assert client.event is not None
        assert (asked, client.event.private_data) == ([b"hello"], b"welcome")


def test_an_identifier_of_a_shared_channel_does_not_wait_by_itself() -> None:
    """It would take the events of the channel's other identifiers for its own."""
    with Context("udp0") as context:
        cmid = CMID(CMEventChannel(context))
        cmid.bind_addr(("127.0.0.1", 0))
        cmid.listen()
        for wait in (cmid.connect_async, cmid.accept_async, cmid.disconnect_async):
            with pytest.raises(VerbsArgumentError, match="identifier of an event channel"):
                asyncio.run(wait())
        with pytest.raises(VerbsArgumentError, match="identifier of an event channel"):
            cmid.get_request(0)


def test_events_beyond_the_limit_are_lost_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("urds.verbs.cm_events.EVENTS_MAX", 2)
    with Context("udp0") as context:
        channel = CMEventChannel(context)
        for _ in range(5):
            CMID(channel).resolve_addr(ADDRESS)
        assert channel.events_lost == 3
        for _ in range(2):
            channel.get_event(WAIT_S)
        with pytest.raises(VerbsTimeoutError):
            channel.get_event(0)
