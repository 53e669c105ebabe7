"""Whether another process still runs code of its own.

The descriptors of a killed process close last: before that it gives its memory back, and it does so
on a processor for which it may have to wait. From the moment of the kill on each of its threads has
the signal that kills, or is on its way out, which `stat` tells, and then has no memory, so that
`exe` leads nowhere. Such a thread executes nothing of the program any more but what its processor
does before it hears of the signal, some microseconds. Source: proc_pid_stat(5), proc_pid_exe(5);
Linux include/linux/sched.h, PF_EXITING.

A process that reads `stat` holds on to the memory of the other meanwhile: if that is where it would
go, the reader gives it back. So `exe` is looked at before, and nothing at all where an end is not
likely.
"""

import signal
import socket
import struct
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_PF_EXITING: Final = 4
_FLAGS, _PENDING = 6, 28  # fields of `stat`, from the one behind the name on
_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid
_KILL: Final = 1 << (signal.SIGKILL - 1)


def is_ending(pid: int) -> bool:
    """Tell whether all threads of a process are at their end; false if nothing is known of it.

    Look twice, with a pause between, before memory counts as left alone.
    """
    if not pid:
        return False
    try:
        threads = list((_PROC / str(pid) / "task").iterdir())
        return bool(threads) and all(_ends(thread) for thread in threads)
    except (OSError, ValueError, IndexError):
        return False


def peer_process(connection: socket.socket) -> int:
    """Return the number of the process that connected or listened; 0 if it has none for us."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(data)[0]
    return pid


def _ends(thread: Path) -> bool:
    try:
        (thread / "exe").readlink()
    except FileNotFoundError:
        return True
    except OSError:
        pass  # not for us to see
    fields = (
        (thread / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    )
    return bool(int(fields[_FLAGS]) & _PF_EXITING or int(fields[_PENDING]) & _KILL)
