"""Bytes that Linux sent, one file per release and carrier, each with how it was caught.

A file holds comment lines (`# ...`) and vectors (`name = bytes`). Bytes are hexadecimal, in
groups of any length; the group `00*8192` repeats one byte.
"""

from pathlib import Path

_FOLDER = Path(__file__).parent


def load(file_name: str) -> dict[str, bytes]:
    """Return the vectors of `file_name` (without `.hex`) by name.

    Raises ValueError for a line that is neither comment nor vector, or a name given twice.
    """
    found: dict[str, bytes] = {}
    for line in (_FOLDER / f"{file_name}.hex").read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        name, equals, groups = (part.strip() for part in line.partition("="))
        if not equals or name in found:
            raise ValueError(f"{file_name}.hex: {line[:60]!r} is no new vector")
        found[name] = b"".join(_bytes(group) for group in groups.split())
    return found


def file_names() -> list[str]:
    """Return the names of all vector files, without `.hex`."""
    return sorted(path.stem for path in _FOLDER.glob("*.hex"))


def _bytes(group: str) -> bytes:
    data, _, count = group.partition("*")
    return bytes.fromhex(data) * int(count or 1)
