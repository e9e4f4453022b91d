"""Give a forked process its own positions in the files it has open.

A fork shares the position in every open file with its parent: a read in one moves the other. Loader workers are forked
before anything is read, but a trial may be forked from a process that is already reading.
"""

from __future__ import annotations

import fcntl
import os
import stat

_TABLE = "/proc/self/fd"
#: The process's standard input and output stay shared.
_STANDARD = 2


def own_positions() -> None:
    """Reopen every regular file of this process at its current position. Call it right after a fork; it only acts on
    Linux."""
    if not os.path.isdir(_TABLE):
        return
    for name in os.listdir(_TABLE):
        descriptor = int(name)
        try:
            if descriptor <= _STANDARD or not stat.S_ISREG(os.fstat(descriptor).st_mode):
                continue
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~(os.O_CREAT | os.O_EXCL | os.O_TRUNC)
            fresh = os.open(f"{_TABLE}/{descriptor}", flags)
        except OSError:  # closed since the listing, or deleted
            continue
        os.lseek(fresh, os.lseek(descriptor, 0, os.SEEK_CUR), os.SEEK_SET)
        os.dup2(fresh, descriptor, inheritable=os.get_inheritable(descriptor))
        os.close(fresh)
