"""What each new comm asks of the system: as little as it can."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from urds.dask import local
from urds.dask.alive import own_hello


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.8.7"])
def test_a_loopback_address_is_reached_from_itself(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The routes are not asked; another address of 127.0.0.0/8 reaches it as well."""
    monkeypatch.delattr(pytest.importorskip("distributed.utils"), "get_ip")
    assert local.source_towards(host) == host
    assert local.are_loopback(host, "127.0.0.1")
    assert not local.are_loopback(host, "192.0.2.1")
    assert not local.are_loopback("::1", host)


def test_a_hello_tells_when_the_process_started() -> None:
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    hello = own_hello(1 << 20)
    assert (hello.pid, hello.started) == (os.getpid(), int(fields[19]))
