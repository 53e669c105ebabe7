"""The configuration of a node: what is read, and one line for each mistake."""

import re
from ipaddress import ip_address
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from urds.common.errors import SettingError
from urds.common.records import fields
from urds.rds.node.settings import KEYS, NodeSettings

PAGE = (ROOT / "docs" / "node.md").read_text(encoding="utf-8")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "node.toml"


def test_without_a_file_there_are_the_defaults() -> None:
    settings = NodeSettings.load(None)
    assert (settings.sockets, settings.memory, settings.port_grace_s) == (4096, 1 << 30, 60.0)
    assert settings.may_bind(7, ip_address("fd00::1"))
    assert settings.settings().node == "inprocess"


def test_every_key_is_read(file: Path) -> None:
    file.write_text("""
        [node]
        idle_exit_s = 1.5
        port_grace_s = 2
        request_wait_s = 3
        socket_mode = "0660"
        [quota]
        sockets = 4
        memory = "2MiB"
        routes = 5
        peers = 6
        requests = 7
        requests_per_s = 8
        [addresses]
        "*" = ["10.0.0.0/8", "fd00::/8"]
        root = []
        9 = "any"
        [settings]
        npaths = 8
        allow = ["any"]
    """)
    settings = NodeSettings.load(str(file))
    assert (settings.idle_exit_s, settings.port_grace_s, settings.request_wait_s) == (1.5, 2, 3)
    assert (settings.socket_mode, settings.sockets, settings.memory) == (0o660, 4, 2 << 20)
    assert (settings.routes, settings.peers) == (5, 6)
    assert (settings.requests, settings.requests_per_s) == (7, 8)
    assert (settings.settings().npaths, settings.settings().allow) == (8, ("any",))
    allowed = [
        settings.may_bind(uid, ip_address(address))
        for uid, address in (
            (7, "10.1.2.3"), (7, "fd00::1"), (7, "11.0.0.1"), (9, "11.0.0.1"), (0, "11.0.0.1"),
        )
    ]  # fmt: skip
    assert allowed == [True, True, False, True, True]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[quota]\nsockets = 0", "quota.sockets = 0: must be a whole number from 1 to 1048576"),
        ("[quota]\nsockets = '9x'", "quota.sockets = '9x': must be a whole number from 1 to"),
        ("[quota]\nsockets = true", "quota.sockets = True: must be a whole number"),
        ("[quota]\nmemory = '1KiB'", "quota.memory = '1KiB': must be a size from 1048576 to"),
        ("[quota]\nroutes = 4097", "quota.routes = 4097: must be a whole number from 1 to 4096"),
        ("[quota]\nsocket = 1", "quota.socket: no such key; did you mean sockets?"),
        ("[quotas]\nsockets = 1", "quotas: no such section; did you mean quota?"),
        ("[x]", "x: no such section; there are node, quota, addresses, settings"),
        ("quota = 3", "quota = 3: must be a section, [quota]"),
        ("[node]\nport_grace_s = -1", "node.port_grace_s = -1: must be seconds from 0 to 86400"),
        ("[node]\nport_grace_s = nan", "node.port_grace_s = nan: must be seconds from 0"),
        ("[node]\nrequest_wait_s = [2]", "node.request_wait_s = [2]: must be seconds from 0 to 60"),
        (f"[quota]\nsockets = 0x{'f' * 4000}", "quota.sockets = a number of thousands of digits: "),
        ("[node]\nsocket_mode = 438", "node.socket_mode = 438: must be octal digits"),
        ("[node]\nsocket_mode = '0755'", "node.socket_mode = '0755': must be octal digits"),
        ("[node]\nsocket_mode = '0066'", "node.socket_mode = '0066': must be octal digits"),
        ("[addresses]\n'*' = ['nowhere']", "addresses.* = ['nowhere']: must be networks such as"),
        ("[addresses]\nno-such-user = []", "addresses.no-such-user: no such user; give a name"),
        ("[addresses]\n4294967295 = []", "addresses.4294967295: no such user"),
        ("[addresses]\n65534 = []", "addresses.65534: uid 65534 stands for every unmapped user"),
        ("[addresses]\n9 = []\n'09' = ['any']", "addresses.09: names the same user as addresses.9"),
        ("[node]\nsocket_mode = '0o660'", "node.socket_mode = '0o660': must be octal digits"),
        ("[node]\nsocket_mode = ' 660'", "node.socket_mode = ' 660': must be octal digits"),
        ("[settings]\nnpaths = 3", "settings.npaths = 3: must be one of 1, 2, 4, 8"),
        ("[settings]\nnpath = 4", "settings.npath: no such setting; did you mean npaths?"),
        ("[settings]\nnode = 'auto'", "settings.node: a node has its addresses in its own process"),
        ("[quota", "Expected"),
        ("a = " + "[" * 5000, ""),
        ("[quota]\nsockets = '" + "9" * 200 + "'", "...: must be a whole number"),
    ],
)
def test_a_mistake_is_one_line(file: Path, text: str, reason: str) -> None:
    file.write_text(text)
    with pytest.raises(SettingError) as wrong:
        NodeSettings.load(str(file)).settings()
    said = str(wrong.value)
    assert said.startswith(f"{file}: ")
    assert reason in said
    assert "\n" not in said
    assert len(said) < len(str(file)) + 250


def test_a_file_that_cannot_be_read_is_named(file: Path) -> None:
    with pytest.raises(SettingError, match=rf"^{re.escape(str(file))}: No such file"):
        NodeSettings.load(str(file))
    file.write_bytes(b"\xff")
    with pytest.raises(SettingError, match="utf-8"):
        NodeSettings.load(str(file))
    file.write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(SettingError, match="over 1048576 bytes"):
        NodeSettings.load(str(file))


def test_the_page_has_every_key_with_default_and_limits() -> None:
    rows = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| `")]
    found = {row[0].strip("`"): tuple(row[1:3]) for row in rows if "." in row[0]}
    known = {one.name: one for one in fields(NodeSettings)}
    assert found == {
        f"{section}.{key}": (str(known[key].default), known[key].metadata["rule"].allowed)
        for section, keys in KEYS.items()
        for key in keys
    }
