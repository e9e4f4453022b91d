"""Files that a forked process has open: made its own.

A fork shares the position in every open file with the process it came from: reading in one moves the other. Workers
of a loader are forked before anything was read; a trial may be forked from a process that is reading already.
"""

from __future__ import annotations

import fcntl
import os
import stat

_TABLE = "/proc/self/fd"
#: Input and output of the process itself stay shared.
_STANDARD = 2


def own_positions() -> None:
    """Open every regular file of this process anew, at the place where it is; for a process just forked, on Linux."""
    if not os.path.isdir(_TABLE):
        return
    for name in os.listdir(_TABLE):
        descriptor = int(name)
        try:
            if descriptor <= _STANDARD or not stat.S_ISREG(os.fstat(descriptor).st_mode):
                continue
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~(os.O_CREAT | os.O_EXCL | os.O_TRUNC)
            fresh = os.open(f"{_TABLE}/{descriptor}", flags)
        except OSError:  # closed meanwhile, or deleted
            continue
        os.lseek(fresh, os.lseek(descriptor, 0, os.SEEK_CUR), os.SEEK_SET)
        os.dup2(fresh, descriptor, inheritable=os.get_inheritable(descriptor))
        os.close(fresh)
