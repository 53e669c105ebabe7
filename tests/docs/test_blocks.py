"""Every code block of README and docs runs, each in a fresh interpreter or shell.

`python` is a whole program. `console` is a session: lines after `$ ` are commands, the others
show what they print. `sh` is a script. `toml` must parse. `text` is not run, nor is any
other language: wire bytes, layouts and the make targets that would run these tests again.
"""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.docs.pages import Block, all_blocks, anchors, blocks, environment, links, pages

RUN_S_MAX = 60
LANGUAGES = {"python", "console", "sh", "toml", "text"}


def run(command: list[str], program: str) -> None:
    """Give `program` to an interpreter or shell; fail with what it printed."""
    done = subprocess.run(
        command,
        input=program,
        check=False,
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        env=environment(),
    )
    assert done.returncode == 0, done.stdout + done.stderr


def shell_program(block: Block) -> str:
    """Return the commands of a block; `urds` means this checkout, it need not be installed."""
    lines = block.text.splitlines()
    if block.language == "console":
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        assert lines, f"{block}: a session without a command"
    preface = ["set -e", f'urds() {{ "{sys.executable}" -m urds "$@"; }}']
    return "\n".join([*preface, *lines, ""])


@pytest.mark.parametrize("block", blocks("python", "console", "sh", "toml"), ids=str)
def test_a_block_runs(block: Block) -> None:
    match block.language:
        case "python":
            run([sys.executable, "-"], block.text)
        case "toml":
            assert tomllib.loads(block.text)
        case _:
            run(["bash", "-s"], shell_program(block))


@pytest.mark.parametrize("block", all_blocks(), ids=str)
def test_a_block_says_what_it_is(block: Block) -> None:
    """A block without a language would neither run nor say that it does not."""
    assert block.language in LANGUAGES, f"```{block.language}"


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Checks links inside the project, with their anchors; the others need a network."""
    inner = [link for link in links(page) if "://" not in link[0]]
    assert [target for target, _ in inner if not (page.parent / target).exists()] == []
    assert [
        f"{target}#{anchor}"
        for target, anchor in inner
        if anchor and anchor not in anchors(page.parent / target if target else page)
    ] == []
