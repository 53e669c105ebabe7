"""Who may import whom: the table of the house style, held by this file.

A new arrow is a reviewed change to `MAY_IMPORT`. A package that has no row fails, so that
nothing is added without a decision where it stands.
"""

import ast
import sys
from collections.abc import Iterable

import pytest

from tests.health.sources import PACKAGE, Import, Module, imports, modules

# Every row may import itself and these, which import nothing of ours.
LEAVES = {"constants", "errors", "forks", "reentry"}
# What a program may use: the public names, and the words they speak.
PUBLIC = {"sockets", "rdma", "installation", "aio", "addresses", "options", "cmsg", "settings"}

MAY_IMPORT: dict[str, set[str]] = {
    "constants": set(),
    "errors": set(),
    "forks": set(),
    "reentry": set(),
    "settings": set(),
    "logs": set(),
    "addresses": set(),
    "wire": set(),
    "placeholder": set(),
    "receive_buffers": set(),
    "options": {"addresses", "wire", "settings"},
    "cmsg": {"addresses", "wire"},
    "proto": {"wire"},
    "verbs.engine": {"wire"},
    "verbs.cm": {"wire"},
    "rsocket.wire": {"wire"},
    "rsocket.stream": {"rsocket.wire"},
    "rsocket.dgram": {"rsocket.wire"},
    "readiness": set(),
    "dataplane": {"addresses", "wire", "settings", "readiness"},
    "transport": {"proto", "dataplane", "wire", "settings", "logs"},
    "transport.rdma": {
        *("proto", "dataplane", "wire", "settings", "logs", "transport"),
        *("verbs", "verbs.engine", "verbs.providers"),
    },
    "verbs.providers": {"verbs.engine", "verbs.cm", "dataplane", "wire", "settings"},
    "verbs": {"verbs.engine", "verbs.cm", "verbs.providers", "wire", "settings"},
    "driver": {
        *("proto", "dataplane", "transport", "transport.rdma", "wire", "settings", "logs"),
    },
    "backend": {
        *("driver", "proto", "dataplane", "transport", "transport.rdma", "wire", "settings"),
    },
    "socket_base": {"backend", "addresses", "options", "placeholder", "settings"},
    "own_memory": set(),
    "rdma": {"backend"},
    "rdma_requests": {"own_memory", "rdma", "backend", "cmsg"},
    "socket_sending": {"socket_base", "rdma_requests", "backend", "addresses", "options", "cmsg"},
    "socket_rdma": {"socket_sending", "rdma", "backend", "cmsg"},
    "sockets": {
        *("socket_rdma", "backend", "addresses", "options", "cmsg", "settings"),
        "receive_buffers",
    },
    "installation": {"sockets"},
    "aio": {"backend", "sockets", "addresses", "options", "cmsg", "settings"},
    "rsocket": {
        *("rsocket.wire", "rsocket.stream", "rsocket.dgram", "readiness", "settings"),
        *("receive_buffers", "verbs", "verbs.engine", "verbs.providers"),
    },
    # Of the layers below the verbs objects it needs the records and the contract.
    "dat": {"verbs", "verbs.engine", "verbs.providers", "settings"},
    "urds": PUBLIC | {"backend"},  # `configure` is the backend's
    "cli": PUBLIC
    | {"urds", "backend", "verbs", "verbs.engine", "verbs.providers", "dat", "rsocket"},
    "node": PUBLIC | {"urds", "backend"},
    "preload": PUBLIC | {"urds", "backend"},
    "__main__": {"cli"},
}

# A core is a value machine: octets, calls and `now_ns` go in, octets and events come out.
# The reference plane has one inside; the rest of it is the shell with locks and sockets.
CORES = (
    *("wire", "proto", "verbs.engine", "verbs.cm"),
    *("rsocket.wire", "rsocket.stream", "rsocket.dgram"),
    *(f"dataplane.reference.{part}" for part in ("path", "incoming", "outgoing", "inbox")),
    *(f"transport.rdma.{part}" for part in ("core", "sending", "receiving", "messages")),
    *(f"transport.rdma.{part}" for part in ("credits", "frames", "seeking", "state")),
    *(
        f"transport.rdma.{part}"
        for part in ("endpoint", "peer", "events", "settings", "stats", "work")
    ),
)
NOT_IN_A_CORE = {
    "socket", "select", "selectors", "asyncio", "threading", "time", "random", "os", "logging",
}  # fmt: skip

# The type checker's own names for the standard library's protocols; no module at run time.
STUBS = "_typeshed"

# Extras, each behind the package that needs it; anything else third-party is a mistake.
EXTRAS: dict[str, set[str]] = {
    "typer": {"cli"},
    "click": {"cli"},
    "rich": {"cli"},
    "trio": {"aio"},
    "urds_native": {"dataplane.native", "dataplane.compiled"},
}


def row_of(name: str) -> str | None:
    """Return the longest row that holds a module, `None` if the table does not know it."""
    if name == "urds":
        return "urds"
    rows = [row for row in MAY_IMPORT if _is_in(name, (row,))]
    return max(rows, key=len, default=None)


def breaches(module: Module) -> list[str]:
    """Return the imports of a module that the table does not allow, as readable lines."""
    row = row_of(module.name)
    assert row is not None, f"{module.place}: no row in the import table"
    return [
        f"{module.place}:{item.line}: {row} may not import {item.target}"
        for item in imports(module)
        if not _allowed(module, row, item)
    ]


def _allowed(module: Module, row: str, item: Import) -> bool:
    top = item.target.split(".")[0]
    if top != "urds":
        if top in sys.stdlib_module_names:
            forbidden = top in NOT_IN_A_CORE and not item.for_types_only
            return not (forbidden and _is_in(module.name, CORES))
        if top == STUBS and item.for_types_only:
            return True
        return _is_in(module.name, EXTRAS.get(top, ()))
    target = row_of(item.target)
    if target == row:
        return True
    if target in LEAVES:
        return row not in LEAVES
    return target in MAY_IMPORT[row]


def _is_in(name: str, packages: Iterable[str]) -> bool:
    inner = name.removeprefix("urds.")
    return any(inner == package or inner.startswith(package + ".") for package in packages)


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_a_module_imports_only_what_its_row_allows(module: Module) -> None:
    assert breaches(module) == []


def test_only_the_queue_of_lines_calls_logging() -> None:
    """Elsewhere a lock may be held, and a handler is code of the program: see `urds.logs`."""
    callers = {
        module.name
        for module in modules()
        if any(item.target.split(".")[0] == "logging" for item in imports(module))
    }
    assert {name for name in callers if not name.startswith("urds.cli")} == {"urds.logs"}


def test_the_table_has_no_circle() -> None:
    """Follows the arrows from each row; meeting the row again would be a circle."""
    for start, arrows in MAY_IMPORT.items():
        seen: set[str] = set()
        todo = list(arrows)
        while todo:
            row = todo.pop()
            assert row != start, f"{start} imports itself by way of {sorted(seen)}"
            if row not in seen:
                seen.add(row)
                todo += MAY_IMPORT[row]


def test_a_breach_is_found() -> None:
    """Shows that the check can fail: a core that reads the clock and looks up."""
    text = "import time\nfrom urds.driver import loop\nfrom ..errors import WireError\n"
    module = Module("urds.proto.state", PACKAGE / "proto/state.py", text, ast.parse(text))
    assert [line.rsplit(" ", 1)[1] for line in breaches(module)] == ["time", "urds.driver"]
