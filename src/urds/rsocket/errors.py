"""The errors that an application of rsockets meets: errno, its text, and the values in question."""

import errno
import os


def os_error(code: int, detail: str = "") -> OSError:
    """Return the OSError to raise, of the subclass that Python has for the errno."""
    text = os.strerror(code)
    return OSError(code, f"{text}: {detail}" if detail else text)


def closed() -> OSError:
    """Return what any call on a closed socket raises."""
    return os_error(errno.EBADF, "the socket is closed")
