"""Name files and places in few plain words."""

from __future__ import annotations

import os
import re
import shlex

from ...session import Session

#: Paths up to this length are named in full, and of longer ones no more than this.
_LONG, _LONGEST = 40, 60
#: Folders of installed packages.
_PACKAGES = tuple(f"{name}{os.sep}" for name in ("site-packages", "dist-packages"))
#: Places in a text. Both begin where a word begins only, which keeps the search linear in long texts.
_PLACE = re.compile(r"(?<![^\s(),'\"])[^\s(),'\"]+:\d+")
#: An absolute path of at least two parts, not in an address. Those of the machine itself stay.
_ABSOLUTE = re.compile(r"(?<![^\s(,'\"=`])/(?!dev/|proc/|sys/)[^\s/(),;'\"`]+(?:/[^\s/(),;'\"`]+)+")


def short(session: Session, where: str) -> str:
    """Return ``file:line`` relative to the script's folder or to the installed packages, else with its last folder."""
    inside = _in_the_scripts_folder(session, where) or _in_a_package(where)
    if inside or not os.path.isabs(where):
        return inside or where
    return os.sep.join(where.split(os.sep)[-2:])


def _in_a_package(where: str) -> str:
    """Return a place in an installed package relative to the folder of the packages; empty if it is in none."""
    return next((where.rpartition(folder)[2] for folder in _PACKAGES if folder in where), "")


def _in_the_scripts_folder(session: Session, where: str) -> str:
    """Return a place relative to the script's folder; empty if it lies elsewhere.

    It may be relative to the folder in which the analysis ran, which is not known.
    """
    folder = os.path.dirname(session.script.argv[0]) if session.script.argv else ""
    parts = where.split(os.sep)
    for count in range(len(parts) - 1, 0, -1):
        above = os.sep.join(parts[:count])
        if above and (folder == above or folder.endswith(os.sep + above)):
            return os.sep.join(parts[count:])
    return ""


def shorter_paths(session: Session, text: str) -> str:
    """Shorten the places and the absolute paths in a text."""
    text = _PLACE.sub(lambda found: short(session, found[0]), text)
    return _ABSOLUTE.sub(lambda found: short(session, found[0]), text)


def shortened(session: Session, command: str) -> str:
    """Return a command with the script's own arguments as an ellipsis."""
    argv = session.script.argv
    tail = shlex.join(argv)
    if not argv or not command.endswith(tail):
        return command
    rest = " ..." if len(argv) > 1 else ""
    return command[: -len(tail)] + shlex.quote(os.path.basename(argv[0])) + rest


def file(path: str) -> str:
    """Return the end of a long or absolute path: its last folder and its name, as far as they are short."""
    end = os.sep.join(path.split(os.sep)[-2:])
    if os.path.isabs(path) and len(end) <= _LONGEST:
        return end.lstrip(os.sep)
    return path if len(path) <= (_LONGEST if end == path else _LONG) else f"...{(os.sep + end)[-_LONGEST:]}"
