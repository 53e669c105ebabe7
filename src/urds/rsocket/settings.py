"""The configuration files: what each is called, what it may hold, and where they lie.

A directory holds files of one whole number each; what is absent has its default. The place is
/etc/rdma/rsocket, or what URDS_RSOCKET_CONFIG names, or what `configure` was given. They are read
once, at the first rsocket of the process, all or none: a `SettingError` names file, value and
range. Other files there belong to others. Source: docs/reference/rsocket.md 1 (rdma-core 691953d8).
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, Self

from urds.common.errors import SettingError
from urds.common.forks import renewed
from urds.rsocket.constants import INLINE_BYTES_MAX, IOMAP_SLOTS_MAX, QUEUE_MAX, QUEUE_MIN

DIRECTORY_VARIABLE: Final = "URDS_RSOCKET_CONFIG"
DIRECTORY_DEFAULT: Final = Path("/etc/rdma/rsocket")
BUFFER_BYTES_MAX: Final = 1 << 28
SEND_BYTES_MIN: Final = 4096  # of a send buffer, whatever was asked for
FILE_BYTES_MAX: Final = 64

_SEND_BYTES_LOW: Final = 2048  # a smaller `wmem_default` becomes SEND_BYTES_MIN
_KEEPALIVE_FILE: Final = Path("/proc/sys/net/ipv4/tcp_keepalive_time")
_KEEPALIVE_S: Final = 7200


@dataclass(frozen=True, slots=True, kw_only=True)
class RsocketSettings:
    """What the files say. The fields have the files' names."""

    sqsize_default: int = 384  # entries
    rqsize_default: int = 384  # entries
    inline_default: int = 64  # bytes
    mem_default: int | None = None  # bytes of the receive buffer; None tunes itself
    wmem_default: int = 1 << 17  # bytes of the send buffer
    iomap_size: int = 0  # slots that a peer may map into
    polling_time: int = 10  # microseconds of asking again before a wait sleeps
    wake_up_interval: int = 500  # milliseconds that a poll sleeps at most

    def __post_init__(self) -> None:
        """Check every value against its range. Raises SettingError."""
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise SettingError(f"{name} = {value!r} is not {_allowed(name)}")
        if self.wmem_default < _SEND_BYTES_LOW:
            object.__setattr__(self, "wmem_default", SEND_BYTES_MIN)

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read the files of a directory, which need not exist.

        Raises SettingError for a bad value, and for a file that is there and cannot be read.
        """
        chosen: dict[str, int] = {}
        for one in fields(cls):
            value = _read(directory / one.name)
            if value is not None:
                chosen[one.name] = value
        return cls(**chosen)


# File, and the least and the greatest value that it may hold.
RANGES: Final[dict[str, tuple[int, int]]] = {
    "sqsize_default": (QUEUE_MIN, QUEUE_MAX),
    "rqsize_default": (QUEUE_MIN, QUEUE_MAX),
    "inline_default": (0, INLINE_BYTES_MAX),
    "mem_default": (1, BUFFER_BYTES_MAX),
    "wmem_default": (1, BUFFER_BYTES_MAX),
    "iomap_size": (0, IOMAP_SLOTS_MAX),
    "polling_time": (0, 1_000_000),
    "wake_up_interval": (1, 3_600_000),
}


@dataclass(slots=True)
class _ProcessSettings:
    """The settings of this process and where they come from."""

    directory: Path | None = None
    settings: RsocketSettings | None = None


_lock: Final = renewed(threading.Lock())


_process: Final = _ProcessSettings()


def configure(*, directory: str | os.PathLike[str] | None) -> RsocketSettings:
    """Take the files of `directory` for the sockets made from now on; None is the usual place.

    Raises SettingError, and then nothing has changed.
    """
    place = None if directory is None else Path(directory)
    settings = RsocketSettings.load(_usual_directory() if place is None else place)
    with _lock:
        _process.directory, _process.settings = place, settings
    return settings


def current() -> RsocketSettings:
    """Return the settings of this process; the first call reads the files.

    Raises SettingError.
    """
    if _process.settings is None:
        with _lock:
            if _process.settings is None:
                _process.settings = RsocketSettings.load(_process.directory or _usual_directory())
    return _process.settings


def keepalive_default_s() -> int:
    """Return how long a connection may be silent before a sign of life: the system's, or 2 h."""
    try:
        return int(_KEEPALIVE_FILE.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return _KEEPALIVE_S


def _usual_directory() -> Path:
    return Path(os.environ.get(DIRECTORY_VARIABLE) or DIRECTORY_DEFAULT)


def _read(file: Path) -> int | None:
    """Return the number in a file, None if there is no file."""
    try:
        with file.open("rb") as opened:
            data = opened.read(FILE_BYTES_MAX + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise SettingError(f"file {file}: {error.strerror}") from error
    low, high = RANGES[file.name]
    text = data.decode("ascii", "backslashreplace").strip()
    try:
        value = int(text, 10) if len(data) <= FILE_BYTES_MAX else None
    except ValueError:
        value = None
    if value is None or not low <= value <= high:
        raise SettingError(f"file {file}: {text[:32]!r} is not {_allowed(file.name)}")
    return value


def _allowed(name: str) -> str:
    low, high = RANGES[name]
    return f"a whole number from {low} to {high}"
