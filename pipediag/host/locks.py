"""Lock a file without waiting. The system releases the lock, however the process that holds it ends."""

from __future__ import annotations

import fcntl


def locked(fd: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Return whether this process has taken the lock; not so if another one holds it, or the file system has none."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
