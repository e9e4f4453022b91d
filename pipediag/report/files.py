"""Write a file completely or not at all."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from ..errors import UsageError

#: Errors of a folder that takes no new file, or whose file cannot be replaced.
_FIXED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY)


def check_writable(option: str, path: str) -> None:
    """Check, before measuring, that the file of ``option`` can be written.

    Raises:
        UsageError: the file cannot be written.
    """
    file = Path(path)
    try:
        existed = file.exists()
        with file.open("a", encoding="utf-8"):
            pass
        if not existed:
            file.unlink()
    except OSError as error:
        raise UsageError(f"{option} {path}: cannot be written ({error.strerror})") from None


def write_whole(path: str, data: bytes) -> None:
    """Write to a temporary file beside it, then replace it. An earlier file stays until then, and its mode remains.

    A special file, or one that cannot be replaced in its folder, is written in place.

    Raises:
        OSError: the file cannot be written. An earlier one is still there.
    """
    path = os.path.realpath(path)
    mode = os.stat(path).st_mode if os.path.exists(path) else None
    if mode is not None and not stat.S_ISREG(mode):
        _write(os.open(path, os.O_WRONLY), data)
        return
    beside = os.path.join(os.path.dirname(path), f".pipediag-{os.getpid()}")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            if mode is not None:
                os.fchmod(descriptor, stat.S_IMODE(mode))
            _write(descriptor, data)
            os.replace(beside, path)
        except BaseException:
            os.unlink(beside)
            raise
    except OSError as error:
        if error.errno not in _FIXED:
            raise
        _write(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666), data)


def _write(descriptor: int, data: bytes) -> None:
    with open(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.fsync(descriptor)
