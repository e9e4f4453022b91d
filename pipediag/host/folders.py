"""Choose the folder of each pass over the script, and provide a scratch folder for the whole run."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_PREFIX = "pipediag-"
#: File in a scratch folder on which its run holds a lock: the system releases it however the run ends.
_LOCK, _NOT_YET = "lock", "lock-not-yet-held"
#: Maximum bytes of a file that is copied for each pass.
_MOST_COPIED = 256 << 20


@contextmanager
def scratch_folder() -> Iterator[str]:
    """Provide a temporary folder within the context; remove the folders of runs that were killed."""
    root = tempfile.gettempdir()
    _sweep(root)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=root) as folder:
        lock = os.open(os.path.join(folder, _NOT_YET), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        held = [lock]
        try:
            held.append(os.dup(lock))  # to remove the folder takes two descriptors, and there may be no others left
            if locked(lock):
                os.rename(os.path.join(folder, _NOT_YET), os.path.join(folder, _LOCK))
            yield folder
        finally:
            for descriptor in held:
                os.close(descriptor)


def _sweep(root: str) -> None:
    """Remove the scratch folders that this user's ended runs have left."""
    try:
        names = [name for name in os.listdir(root) if name.startswith(_PREFIX)]
    except OSError:
        return
    for name in names:
        path = os.path.join(root, name)
        try:
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:  # no folder, or another user's
            continue
        try:
            if _is_ours_and_abandoned(folder):
                for file in os.listdir(folder):
                    os.unlink(file, dir_fd=folder)
                os.rmdir(path)
        except OSError:  # it holds other things than ours, or another run removes it too
            pass
        finally:
            os.close(folder)


def _is_ours_and_abandoned(folder: int) -> bool:
    facts = os.fstat(folder)
    if facts.st_uid != os.geteuid() or stat.S_IMODE(facts.st_mode) & 0o077:
        return False
    lock = os.open(_LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    try:
        return locked(lock)
    finally:
        os.close(lock)


class Folders:
    """The folders in which the passes run: ``workdir`` for all, until a pass is refused there.

    From then on each pass has its own subfolder with what ``workdir`` held before the first pass: copies of small
    files, which the script may overwrite, and links to the rest. The first pass never has one: it may have downloaded
    its data.
    """

    def __init__(self, workdir: str | None) -> None:
        self.now = workdir
        self.apart = False
        self._workdir = workdir
        self._used = [workdir or ""]
        self._held = os.listdir(workdir) if workdir is not None else []

    def renew(self, attempt: int) -> bool:
        """Let the pass ``attempt`` run in its own folder; return False if none can be made."""
        if self._workdir is None:
            return False
        workdir = os.path.abspath(self._workdir)
        try:
            folder = tempfile.mkdtemp(prefix=f"pass-{attempt}-", dir=workdir)
            for name in self._held:
                _lay(os.path.join(workdir, name), os.path.join(folder, name))
        except OSError:
            return False
        self.now, self.apart = folder, True
        self._used.append(folder)
        return True

    def hold(self, path: str) -> bool:
        """Return whether a file that the script wrote still exists; an unnamed one has the path of its folder."""
        return any(os.path.isfile(os.path.join(folder, path)) for folder in self._used)


def _lay(source: str, target: str) -> None:
    """Copy a small file to ``target``, or link to it if it is anything else."""
    with suppress(OSError):  # it was removed, or cannot be read
        facts = os.lstat(source)
        if stat.S_ISREG(facts.st_mode) and facts.st_size <= _MOST_COPIED:
            shutil.copy2(source, target)
            return
    os.symlink(source, target)


def locked(fd: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Return whether this process has taken the lock; not so if another one holds it, or the file system has none."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
