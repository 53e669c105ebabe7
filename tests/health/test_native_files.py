"""What may be Rust, file by file, and which file of the Python plane has the same name.

`native_files.toml` lists both, each with its reason.
"""

import tomllib
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import pytest

from tests.health.sources import PACKAGE
from tools import rust_sources
from tools.rust_sources import Source

LIST = Path(__file__).with_name("native_files.toml")
PYTHON = PACKAGE / "rds" / "plane" / "python"
CRATES = (
    "channel",
    "client",
    "path",
    "dataplane",
    "pymodule",
    "shim",
    "preload",
    "liburds",
    "verbs",
    "verbs_shm",
    "stream",
    "stream_link",
    "rdma_courier",
)
# Where the work of a listed file begins: `message: numbered, kept, retransmitted`.
WORK = ("message", "read", "write", "read and write", "byte", "wait")


def listed() -> dict[str, Any]:
    """Return the list as TOML has it."""
    return tomllib.loads(LIST.read_text("utf-8"))


def product(sources: Sequence[Source]) -> set[str]:
    """Return the product's files as `crate/stem`; a folder of a module counts with its file."""
    tests = rust_sources.test_modules(sources)
    return {
        f"{parts[0]}/{Path(parts[2]).stem}"
        for one in sources
        if one.path.stem not in tests and "tests" not in one.path.parts
        for parts in [one.path.relative_to(rust_sources.CRATES).parts]
        if len(parts) > 2 and parts[1] == "src"
    }


def python_names() -> set[str]:
    """Return the names of the files of the Python plane."""
    return {path.stem for path in PYTHON.glob("*.py")} - {"__init__"}


def unlisted(files: Set[str], table: Mapping[str, Any]) -> list[str]:
    """Return what is wrong between the Rust files and their list."""
    names = {f"{crate}/{name}" for crate in CRATES for name in table.get(crate, ())}
    return sorted(
        [f"{one}: not listed, may it be Rust?" for one in files - names]
        + [f"{one}: listed and not there" for one in names - files]
    )


def unpaired(names: Set[str], table: Mapping[str, Any]) -> list[str]:
    """Return what is wrong between the names of both planes."""
    rust = {name: row for crate in CRATES for name, row in table.get(crate, {}).items()}
    twins = {name for name, row in rust.items() if "no_twin" not in row}
    alone = set(table["python"])
    return sorted(
        [f"{name}: Rust alone has it, without a reason" for name in twins - names]
        + [f"{name}: Python alone has it, without a reason" for name in names - twins - alone]
        + [f"{name}: a reason for what both planes have" for name in names & (set(rust) - twins)]
        + [f"{name}: a reason for a file that is not there" for name in alone - names]
    )


def test_rust_is_what_runs_for_each_message_packet_or_byte() -> None:
    assert unlisted(product(rust_sources.sources()), listed()) == []


def test_each_listed_file_says_why_it_is_rust() -> None:
    wrong = [
        f"{crate}/{name}: {row['runs']}"
        for crate in CRATES
        for name, row in listed()[crate].items()
        if not row["runs"].startswith(("for ", *WORK))
    ]
    assert wrong == []


def test_both_planes_name_their_files_alike() -> None:
    assert unpaired(python_names(), listed()) == []


TABLE = {
    "channel": {},
    "client": {},
    "path": {"sender": {"runs": "message"}, "chunks": {"runs": "byte", "no_twin": "bytes"}},
    "dataplane": {"state": {"runs": "message"}},
    "pymodule": {},
    "python": {"interrupts": "signals"},
}


@pytest.mark.parametrize(
    ("names", "wrong"),
    [
        ({"sender", "state", "interrupts"}, []),
        ({"state", "interrupts"}, ["sender: Rust alone has it, without a reason"]),
        (
            {"sender", "state", "interrupts", "runs"},
            ["runs: Python alone has it, without a reason"],
        ),
        (
            {"sender", "state", "interrupts", "chunks"},
            [
                "chunks: Python alone has it, without a reason",
                "chunks: a reason for what both planes have",
            ],
        ),
        ({"sender", "state"}, ["interrupts: a reason for a file that is not there"]),
    ],
)
def test_a_name_of_one_plane_is_found(names: set[str], wrong: list[str]) -> None:
    assert unpaired(names, TABLE) == wrong


@pytest.mark.parametrize(
    ("files", "wrong"),
    [
        ({"path/sender", "path/chunks", "dataplane/state"}, []),
        (
            {"path/sender", "path/chunks", "dataplane/state", "dataplane/control"},
            ["dataplane/control: not listed, may it be Rust?"],
        ),
        ({"path/sender", "path/chunks"}, ["dataplane/state: listed and not there"]),
    ],
)
def test_a_new_file_of_rust_is_found(files: set[str], wrong: list[str]) -> None:
    assert unlisted(files, TABLE) == wrong


def test_tests_and_folders_of_a_module_are_told_apart() -> None:
    crates = rust_sources.CRATES
    texts = {
        "path/src/lib.rs": "mod it;\n#[cfg(test)]\nmod world;\n",
        "path/src/it.rs": "",
        "path/src/it/deep.rs": "",
        "path/src/world.rs": "",
        "path/tests/whole.rs": "",
        "path/examples/rate.rs": "",
    }
    sources = tuple(
        Source(crates / place, text, rust_sources.blanked(text)) for place, text in texts.items()
    )
    assert product(sources) == {"path/lib", "path/it"}
