"""The README as a package index shows it: links into the tree become names of files.

A part of the build (`[tool.hatch.metadata.hooks.custom]`). An index has the README alone, where a
link to `docs/cli.md` would lead nowhere; the file is in the source distribution under that name.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(?P<before>\(?)\[(?P<text>[^\]]+)\]\((?P<target>[^)\s]+)\)")


def for_index(text: str) -> str:
    """Return a page whose links lead to web pages alone."""
    return LINK.sub(_shown, text)


def _shown(link: re.Match[str]) -> str:
    before, text, target = link["before"], link["text"], link["target"]
    if "://" in target:
        return link[0]
    file = target.partition("#")[0]
    if not file or text == Path(file).name:
        return f"{before}`{file or text}`"
    return f"({text}: `{file}`" if before else f"{text} (`{file}`)"


class Readme(MetadataHookInterface):
    """The hook that hatchling calls."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the field `readme`."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": for_index(text)}
