"""Write a file completely or not at all, for its owner alone.

The folder may be shared with others: nothing that they have put into it is followed, waited for or overwritten.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile

from ..errors import UsageError

#: Errors of a folder that takes no new file, or whose file cannot be replaced.
_FIXED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY)


def check_writable(option: str, path: str) -> None:
    """Check, before measuring, that the file of ``option`` can be written.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        existed = os.path.lexists(path)
        os.close(_opened(_target(path)))
        if not existed:
            os.unlink(path)
    except OSError as error:
        raise UsageError(f"{option} {path}: cannot be written ({error.strerror})") from None


def write_whole(path: str, data: bytes) -> None:
    """Write to a temporary file beside it, then replace it. An earlier file stays until then, and its mode remains.

    A new file has the mode 0600. A special file, or one that cannot be replaced in its folder, is written in place.

    Raises:
        OSError: the file cannot be written. An earlier one is still there.
    """
    path = _target(path)
    mode = os.lstat(path).st_mode if os.path.lexists(path) else None
    if mode is not None and not stat.S_ISREG(mode):
        _write(_opened(path), data)
        return
    try:
        descriptor, beside = tempfile.mkstemp(prefix=".pipediag-", dir=os.path.dirname(path))
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
        descriptor = _opened(path)
        if mode is not None:
            os.ftruncate(descriptor, 0)
        _write(descriptor, data)


def _target(path: str) -> str:
    """Return the file that a path stands for.

    Raises:
        OSError: it is another user's link, which may lead to a file of this user's.
    """
    if os.path.islink(path) and os.lstat(path).st_uid not in (0, os.geteuid()):
        raise PermissionError(errno.EPERM, "it is a link of another user")
    return os.path.realpath(path)


def _opened(path: str) -> int:
    """Open the file for writing.

    Raises:
        OSError: it cannot be opened, has become a link, or is a pipe that nobody reads.
    """
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, "it is a pipe or socket that nobody reads") from None
        raise
    os.set_blocking(descriptor, True)
    return descriptor


def _write(descriptor: int, data: bytes) -> None:
    with open(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.fsync(descriptor)
