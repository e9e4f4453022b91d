"""Tell the user's source files from those of libraries and pipediag, and keep pipediag's out of tracebacks."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import traceback
from types import TracebackType

_ROOT = os.path.dirname(os.path.abspath(__file__)) + os.sep
_DEMO = _ROOT + "demo" + os.sep
_STANDARD = tuple({os.path.abspath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")})
#: One frame of a formatted traceback: its header line, and its source and marker lines.
_FRAME = re.compile(r'^  File "(?P<file>[^"]*)", line \d+, in .*\n(?:    .*\n)*', re.MULTILINE)


def is_ours(file: str) -> bool:
    """Return whether a source file belongs to pipediag; the demo script counts as user code."""
    return file.startswith(_ROOT) and not is_demo(file)


def is_demo(file: str) -> bool:
    """Return whether a source file is the demo script, which counts as user code wherever it is installed."""
    return file.startswith(_DEMO)


def is_users(file: str) -> bool:
    """Return whether a source file belongs to the user rather than to Python, an installed package, or pipediag."""
    if is_demo(file):
        return True
    if file.startswith("<") or is_installed(file) or is_ours(file) or is_torchs(file):
        return False
    return not file.startswith(_STANDARD)


def is_installed(file: str) -> bool:
    """Return whether a source file is in a folder of installed packages."""
    return "site-packages" in file or "dist-packages" in file


def is_torchs(file: str) -> bool:
    """Return whether a source file belongs to torch, which may be built in a folder of the user's."""
    torch = sys.modules.get("torch")
    root = getattr(torch, "__file__", None)
    return root is not None and file.startswith(os.path.dirname(root) + os.sep)


def users_part(error: BaseException) -> BaseException:
    """Return the error without pipediag's frames in its traceback, and in those of the errors that led to it."""
    chain, seen = [error], set[int]()
    while chain:
        one = chain.pop()
        if id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = _users_frames(one.__traceback__)
            chain += [led for led in (one.__cause__, one.__context__) if led is not None]
    return error


def _users_frames(tb: TracebackType | None) -> TracebackType | None:
    frames = []
    while tb is not None:
        if not is_ours(tb.tb_frame.f_code.co_filename):
            frames.append(tb)
        tb = tb.tb_next
    kept: TracebackType | None = None
    for tb in reversed(frames):
        kept = TracebackType(kept, tb.tb_frame, tb.tb_lasti, tb.tb_lineno)
    return kept


def users_text(error: Exception) -> Exception:
    """Return the error without pipediag's frames in its message, where torch puts a worker's whole traceback."""
    if error.args and isinstance(error.args[0], str) and _ROOT in error.args[0]:
        text = _FRAME.sub(lambda frame: "" if is_ours(frame["file"]) else frame[0], error.args[0])
        # torch wraps a KeyError's message in a str subclass of its own, so that its line breaks are printed; keep
        # that class.
        error.args = (type(error.args[0])(text), *error.args[1:])
    return error


def in_one_line(error: BaseException) -> str:
    """Return the error's type and the first line of its message; of a worker's error, those of the original."""
    lines = [line for line in "".join(traceback.format_exception_only(error)).splitlines() if line.strip()]
    if any("in DataLoader worker process" in line for line in lines[:1]):
        return lines[-1].strip()
    return next((line for line in lines if not line.startswith(" ")), lines[-1]).strip()


def raised_by_ours(error: BaseException) -> bool:
    """Return whether the user's code called pipediag's, or torch's that calls ours, and that raised the error."""
    tb, inside = error.__traceback__, False
    while tb is not None:
        file = tb.tb_frame.f_code.co_filename
        if inside and is_ours(file):
            return True
        inside = inside or is_users(file)
        tb = tb.tb_next
    return False
