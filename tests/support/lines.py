"""A log that only keeps its lines: warnings and worse, however many."""

from __future__ import annotations

import logging

from urds.common.logs import LogQueue


class Lines(LogQueue):
    """Give a node this in place of its log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def put(
        self,
        level: int,
        text: str,
        *arguments: object,
        problem: BaseException | None = None,
        equal_once: bool = False,
    ) -> bool:
        """Keep a line of level WARNING or above; equal ones too."""
        if level >= logging.WARNING:
            self.lines.append(text % arguments)
        return True
