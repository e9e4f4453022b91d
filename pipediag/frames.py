"""Keeping pipediag's own frames out of the tracebacks of the user's code."""

from __future__ import annotations

import os
import re
from types import TracebackType

_ROOT = os.path.dirname(os.path.abspath(__file__)) + os.sep
_DEMO = _ROOT + "demo" + os.sep
#: A frame in a formatted traceback: its line, and the source and marker lines that belong to it.
_FRAME = re.compile(r'^  File "(?P<file>[^"]*)", line \d+, in .*\n(?:    .*\n)*', re.MULTILINE)


def is_ours(file: str) -> bool:
    """Whether a source file belongs to pipediag; the demo script counts as a user's."""
    return file.startswith(_ROOT) and not is_demo(file)


def is_demo(file: str) -> bool:
    """Whether a source file is the demo script, which plays the part of a user's wherever it is installed."""
    return file.startswith(_DEMO)


def users_part(error: BaseException) -> BaseException:
    """The error with our frames taken out of its traceback, as Python itself would have shown it."""
    frames = []
    tb = error.__traceback__
    while tb is not None:
        if not is_ours(tb.tb_frame.f_code.co_filename):
            frames.append(tb)
        tb = tb.tb_next
    kept: TracebackType | None = None
    for tb in reversed(frames):
        kept = TracebackType(kept, tb.tb_frame, tb.tb_lasti, tb.tb_lineno)
    return error.with_traceback(kept)


def users_text(error: Exception) -> Exception:
    """The error with our frames taken out of its message: torch puts a worker's whole traceback there."""
    if error.args and isinstance(error.args[0], str) and _ROOT in error.args[0]:
        text = _FRAME.sub(lambda frame: "" if is_ours(frame["file"]) else frame[0], error.args[0])
        # torch wraps a KeyError's message in a class of its own, which shows its line breaks as such.
        error.args = (type(error.args[0])(text), *error.args[1:])
    return error
