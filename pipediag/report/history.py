"""Keep the last analyses of this user, to show and compare them later without measuring again.

They lie in the user's cache folder and not beside the script: nothing is added to a project, and nothing is read from
the folders of others. A file's name holds the time and a digest of the folder in which pipediag was started.
"""

from __future__ import annotations

import calendar
import errno
import hashlib
import os
import re
import secrets
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ..analysis import Diagnosis
from ..errors import SessionFileError
from ..session.codec import read_json
from . import render_json
from .files import write_whole

#: Number of analyses that are kept, of all folders together.
KEPT = 20
_NAME = re.compile(r"\d{8}-\d{6}-\d{6}-([0-9a-f]{12})-[0-9a-f]{8}\.json")


def keep(diagnosis: Diagnosis) -> None:
    """Keep an analysis, and remove the oldest beyond :data:`KEPT`.

    Raises:
        OSError: it cannot be kept, as in a home folder that is read-only or another user's.
    """
    folder, now = _own_folder(), time.time()
    moment = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now)) + f"-{int(now % 1 * 1e6):06d}"
    path = os.path.join(folder, f"{moment}-{_digest()}-{secrets.token_hex(4)}.json")
    write_whole(path, render_json(diagnosis).encode("utf-8", "backslashreplace"))
    for name in _names(folder)[KEPT:]:
        with suppress(FileNotFoundError):  # another analysis has just removed it
            os.unlink(os.path.join(folder, name))


def last() -> str | None:
    """Return the file of the last analysis in this folder; None if there is none."""
    return next(iter(_kept()), None)


def last_two() -> tuple[str, str] | None:
    """Return the files of the last analysis in this folder and of the one of the same script before it, that one first.

    Raises:
        SessionFileError: a kept file cannot be read.
    """
    newest, *older = _kept() or [""]
    script = _script(argv_of(newest)) if newest else []
    return next(((path, newest) for path in older if _script(argv_of(path)) == script), None)


def written_by(argv: Sequence[str]) -> list[str]:
    """Return the files that a script wrote in its last analysis in this folder; none if they are unknown."""
    try:
        scripts = map(_script_of, _kept())
        same = next((one for one in scripts if _script(_words(one)) == _script(argv)), None)
        return [str(path) for path in same["wrote"]] if same is not None else []
    except (SessionFileError, LookupError, TypeError):
        return []


def argv_of(path: str) -> list[str]:
    """Return the command line of the script that a kept file is about.

    Raises:
        SessionFileError: the file cannot be read.
    """
    return _words(_script_of(path))


def when(path: str) -> str:
    """Return the local time at which a file was kept; empty if it is none of these."""
    name = os.path.basename(path)
    if not _NAME.fullmatch(name):
        return ""
    return time.strftime("%d %b %H:%M", time.localtime(calendar.timegm(time.strptime(name[:15], "%Y%m%d-%H%M%S"))))


def _script_of(path: str) -> dict[str, Any]:
    """Return what a kept file says of its script."""
    data: Any = read_json(path)
    return data.get("script", {}) if isinstance(data, dict) else {}


def _words(script: dict[str, Any]) -> list[str]:
    return [str(word) for word in script.get("argv", [])]


def _script(argv: Sequence[str]) -> list[str]:
    """Return the part of a command line that names the script or module."""
    return [*argv[: 2 if "-m" in argv[:1] else 1]]


def _kept() -> list[str]:
    """Return the files of this folder's analyses, the last one first."""
    try:
        folder = _own_folder(make=False)
        names = _names(folder)
    except OSError:
        return []
    digest = _digest()
    return [os.path.join(folder, name) for name in names if digest in name]


def _names(folder: str) -> list[str]:
    return sorted(filter(_NAME.fullmatch, os.listdir(folder)), reverse=True)


def _digest() -> str:
    """Return what stands for the working folder in a file's name."""
    return hashlib.sha256(os.fsencode(os.path.realpath(os.curdir))).hexdigest()[:12]


def _own_folder(make: bool = True) -> str:
    """Return the folder of kept analyses; nobody else can look into it.

    Raises:
        OSError: it cannot be made, is a link, or belongs to another user, as does the home folder under ``sudo``.
    """
    cache = os.environ.get("XDG_CACHE_HOME", "")
    cache = cache if os.path.isabs(cache) else os.path.expanduser("~/.cache")
    if not os.path.isabs(cache):
        raise FileNotFoundError(errno.ENOENT, "there is no home folder", cache)
    folder = os.path.join(cache, "pipediag")
    if make:
        above = cache
        while not os.path.exists(above):
            above = os.path.dirname(above)
        if os.stat(above).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "it is another user's", above)
        os.makedirs(cache, 0o700, exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
    facts = os.lstat(folder)
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "it is another user's, or no folder", folder)
    if make and stat.S_IMODE(facts.st_mode) & 0o077:
        os.chmod(folder, 0o700)
    return folder
