"""Find out where a script hangs: Python writes its stacks to a file when the parent ends it."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
from pathlib import Path

from ..frames import is_ours, is_users

#: A frame of a stack as :mod:`faulthandler` writes it, innermost first.
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$', re.MULTILINE)
_CURRENT = "Current thread "
#: Functions in which torch's loop waits for its workers.
_WAITING = ("_get_data", "_try_get_data", "_next_data")
_files: list[int] = []


def stacks_of(path: str, pid: int) -> str:
    """Return the file for the stacks of a process beside the child, whose own file is ``path``."""
    root, ending = os.path.splitext(path)
    return f"{root}-{pid}{ending}"


def write_stacks_on_end(path: str) -> None:
    """Let SIGTERM write this process's stacks to ``path`` before its usual effect."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    faulthandler.register(signal.SIGTERM, file=file, all_threads=True, chain=True)
    _files.append(file)
    # torch ends workers with SIGTERM too.
    os.register_at_fork(after_in_child=_leave_alone)


def write_no_stacks() -> None:
    """Undo :func:`write_stacks_on_end`; the file is closed."""
    faulthandler.unregister(signal.SIGTERM)
    while _files:
        os.close(_files.pop())


def _leave_alone() -> None:
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # otherwise the script has a handler of its own by now
        faulthandler.unregister(signal.SIGTERM)


def stuck_at(path: str) -> str:
    """Return what the main thread did or waited for when it was ended, and where in the user's code; "" if unknown."""
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    stack = list(_FRAME.finditer(text.partition(_CURRENT)[2].partition("\n\n")[0]))
    users = next((frame for frame in stack if is_users(frame["file"])), None)
    if users is None:
        return ""
    where = f"{users['file']}:{users['line']}"
    inner = stack[: stack.index(users)]
    if any(frame["function"] in _WAITING and not is_ours(frame["file"]) for frame in inner):
        return f"it waited at {where} for a batch: a DataLoader worker hangs"
    return f"it was at {where}, in {users['function']}"
