"""Let no code of this process change a file: a trial's samples are not those that the training asks for.

What the code writes goes nowhere, as what it prints does. Its temporary files are its own. C libraries that open files
themselves, such as OpenCV and HDF5, are not covered.
"""

from __future__ import annotations

import builtins
import errno
import io
import mmap
import os
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

#: Audit events of what changes a file or a folder by its name: where their arguments hold it, and the open folder (or
#: -1) in which it lies.
_CHANGES: dict[str, tuple[tuple[int, int | None], ...]] = {
    "os.chmod": ((0, 2),),
    "os.chown": ((0, 3),),
    "os.link": ((1, 3),),
    "os.mkdir": ((0, 2),),
    "os.remove": ((0, 1),),
    "os.rename": ((0, 2), (1, 3)),
    "os.rmdir": ((0, 1),),
    "os.symlink": ((1, 2),),
    "os.truncate": ((0, None),),
    "os.utime": ((0, 3),),
}
_FOR_WRITING = os.O_WRONLY | os.O_RDWR
#: Folders whose entries are no files on a disk.
_OF_THE_SYSTEM = frozenset({Path("/dev"), Path("/proc/self/fd")})
#: Mode of a folder that ``tempfile`` makes.
_OF_ITS_OWNER = 0o700


def read_only() -> None:
    """Change no file in this process from now on."""
    files = _Files()
    builtins.open = io.open = files.open
    mmap.mmap = _PrivateMap  # type: ignore[misc]
    torch.save = files.save
    sys.dont_write_bytecode = True
    sys.addaudithook(files.audit)


class _PrivateMap(mmap.mmap):
    """A mapping whose changes stay in this process. Its file may be open for reading only."""

    def __new__(
        cls,
        fileno: int,
        length: int,
        flags: int = mmap.MAP_SHARED,
        prot: int = mmap.PROT_READ | mmap.PROT_WRITE,
        access: int = mmap.ACCESS_DEFAULT,
        offset: int = 0,
        **more: Any,
    ) -> _PrivateMap:
        if access == mmap.ACCESS_WRITE:
            access = mmap.ACCESS_COPY
        elif access == mmap.ACCESS_DEFAULT:
            flags = flags & ~mmap.MAP_SHARED | mmap.MAP_PRIVATE
        return super().__new__(cls, fileno, length, flags, prot, access, offset, **more)


class _Files:
    """What this process may write: temporary files and folders that it has made, and devices."""

    def __init__(self) -> None:
        self._native, self._native_save = io.open, torch.save
        self._temporary = Path(tempfile.gettempdir()).resolve()
        self._made: set[Path] = set()

    def open(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        """Open a file as Python does: for reading only instead of for changes, and nothing instead of for writing."""
        path = _path(file) if kwargs.get("opener") is None and len(args) < 6 else None
        if path is None or set(mode).isdisjoint("wax+") or self._may_write(path):
            return self._native(file, mode, *args, **kwargs)
        if "r" in mode:
            return self._native(file, mode.replace("+", ""), *args, **kwargs)
        return self._native(os.devnull, mode.replace("x", "w"), *args, **kwargs)

    def save(self, obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        """Do what ``torch.save`` does, which opens files itself."""
        with self.open(f, "wb") if _path(f) is not None else nullcontext(f) as file:
            self._native_save(obj, file, *args, **kwargs)

    def audit(self, event: str, args: tuple[Any, ...]) -> None:
        """Refuse what would change a file, as on a file system that is mounted for reading only."""
        if event == "open":
            file, _, flags = args
            # tempfile opens the folder in which it then makes a file.
            if flags & _FOR_WRITING and (path := _path(file)) is not None and not path.is_dir():
                self._require_own(path, new=bool(flags & os.O_CREAT and flags & os.O_EXCL))
        for name, folder in _CHANGES.get(event, ()):
            path = _path(args[name], -1 if folder is None else args[folder])
            if path is not None:
                self._require_own(path, new=event == "os.mkdir" and args[1] == _OF_ITS_OWNER)

    def _require_own(self, path: Path, new: bool) -> None:
        """Raise OSError if a file is not this process's own, as it becomes if it is temporary and ``new``."""
        if new and path.parent.resolve() == self._temporary and not path.exists():
            self._made.add(path)
        if not self._may_write(path):
            raise OSError(errno.EROFS, "a trial changes no file", str(path))

    def _may_write(self, path: Path) -> bool:
        return path.parent in _OF_THE_SYSTEM or not self._made.isdisjoint((path, *path.parents))


def _path(file: Any, folder: int = -1) -> Path | None:
    """Return the absolute path of a file by its name in an open folder; None if it is no name."""
    if not isinstance(file, (str, bytes, os.PathLike)):
        return None
    within = Path() if folder == -1 else Path(os.readlink(f"/proc/self/fd/{folder}"))
    return (within / os.fsdecode(file)).absolute()
