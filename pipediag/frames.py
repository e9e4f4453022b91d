"""Tell the user's source files from those of libraries and pipediag, and keep pipediag's out of tracebacks."""

from __future__ import annotations

import builtins
import functools
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import Any, TypeVar

_T = TypeVar("_T")
_ROOT = os.path.dirname(os.path.abspath(__file__)) + os.sep
_DEMO = _ROOT + "demo" + os.sep
_STANDARD = tuple({os.path.abspath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")})
#: Folders that hold installed commands: this environment's, the user's own, and the system's.
_COMMANDS = {
    *(os.path.abspath(path) for path in (sysconfig.get_path("scripts"), os.path.dirname(sys.executable))),
    os.path.abspath(sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user"))),
    *("/usr/bin", "/usr/local/bin"),
}
#: Folders that installed packages are in; what follows in a path is the package.
_INSTALLED = re.compile(r".*[/\\](?:site|dist)-packages[/\\]")
#: What torch says of an error in a worker.
_IN_WORKER = re.compile(r"Caught (\w+) in DataLoader worker process")
#: Where torch calls a dataset and its collate function.
_FETCHER = os.path.join("torch", "utils", "data", "_utils", "fetch.py")
#: One frame of a formatted traceback: its header line, and its source and marker lines.
_FRAME = re.compile(r'^  File "(?P<file>[^"]*)", line \d+, in .*\n(?:    .*\n)*', re.MULTILINE)


def is_ours(file: str) -> bool:
    """Return whether a source file belongs to pipediag; the demo script counts as user code."""
    return file.startswith(_ROOT) and not file.startswith(_DEMO)


def is_users(file: str) -> bool:
    """Return whether a source file belongs to the user rather than to Python, an installed package, or pipediag."""
    if file.startswith(_DEMO):  # wherever it is installed
        return True
    if file.startswith("<") or is_installed(file) or is_ours(file) or is_torchs(file) or is_command(file):
        return False
    return not file.startswith(_STANDARD)


def is_command(file: str) -> bool:
    """Return whether a source file is an installed command, such as ``torchrun``, which only calls its package."""
    folder, name = os.path.split(file)
    return folder in _COMMANDS and (not name.endswith((".py", ".pyw")) or name.endswith("-script.py"))


def in_package(file: str) -> str:
    """Return a library's source file relative to the folder of its package: ``torchvision/datasets/folder.py``.

    A file that belongs to no library gives "".
    """
    if file.startswith(_DEMO):
        return ""
    if begin := _package_begins(file):
        return file[begin:]
    if is_torchs(file):
        return os.path.relpath(file, os.path.dirname(os.path.dirname(sys.modules["torch"].__file__ or "")))
    return next((file[len(folder) :] for folder in _STANDARD if file.startswith(folder)), "")


def is_installed(file: str) -> bool:
    return _package_begins(file) > 0


@functools.lru_cache(8192)
def _package_begins(file: str) -> int:
    """Return where in the path of a source file its installed package begins; 0 if it belongs to none."""
    if found := _INSTALLED.match(file):
        return found.end()
    folders = (os.path.join(os.path.abspath(folder), "") for folder in sys.path)
    for folder in folders:
        if file.startswith(folder) and file[len(folder) :].partition(os.sep)[0] in _installed_in(folder):
            return len(folder)
    return 0


@functools.lru_cache(256)
def _installed_in(folder: str) -> frozenset[str]:
    """Return the packages and modules that ``pip install --target`` has put into a folder, which may hold others."""
    with suppress(OSError):
        if any(name.endswith(".dist-info") for name in os.listdir(folder)):
            from importlib import metadata

            files = [file for one in metadata.distributions(path=[folder]) for file in one.files or ()]
            return frozenset(file.parts[0] for file in files)
    return frozenset()


def is_torchs(file: str) -> bool:
    """Return whether a source file belongs to torch, which may have been built in one of the user's folders."""
    torch = sys.modules.get("torch")
    root = getattr(torch, "__file__", None)
    return root is not None and file.startswith(os.path.dirname(root) + os.sep)


#: What every exception has, whatever its class makes of these names: it may be a frozen dataclass.
_TRACEBACK, _CAUSE, _CONTEXT = (vars(BaseException)[name] for name in ("__traceback__", "__cause__", "__context__"))
_ARGS, _NAME = vars(BaseException)["args"], vars(type)["__name__"]
#: From Python 3.11 on.
_GROUP: Any = getattr(builtins, "BaseExceptionGroup", ())


def traceback_of(error: BaseException) -> TracebackType | None:
    """Return an exception's traceback, whatever its class makes of that name."""
    return _TRACEBACK.__get__(error)  # type: ignore[no-any-return]


def ended_in(context: AbstractContextManager[object], function: Callable[[], _T]) -> _T:
    """Call the function within the context. Its exception propagates from here, unseen by the context.

    contextlib's contexts assign to an exception that passes through them, which a frozen class does not allow.
    """
    error: BaseException | None = None
    with context:
        try:
            result = function()
        except BaseException as raised:
            error = raised
    if error is None:
        return result
    try:
        raise error
    finally:
        del error  # which holds this frame


def users_part(error: BaseException) -> BaseException:
    """Remove pipediag's frames from the tracebacks of the error, its causes and its parts, and return it."""
    chain, seen = [error], set[int]()
    while chain:
        one = chain.pop()
        if id(one) not in seen:
            seen.add(id(one))
            BaseException.with_traceback(one, _users_frames(traceback_of(one)))
            chain += (other for other in (_CAUSE.__get__(one), _CONTEXT.__get__(one)) if other is not None)
            chain += one.exceptions if isinstance(one, _GROUP) else ()
    return error


def _users_frames(tb: TracebackType | None) -> TracebackType | None:
    frames = []
    while tb is not None:
        frames.append(tb)
        tb = tb.tb_next
    shown = _shown([tb.tb_frame.f_code.co_filename for tb in frames])
    kept: TracebackType | None = None
    for tb in (tb for tb, show in zip(reversed(frames), reversed(shown), strict=True) if show):
        kept = TracebackType(kept, tb.tb_frame, tb.tb_lasti, tb.tb_lineno)
    return kept


def _shown(files: list[str]) -> list[bool]:
    """Return which frames, from the outermost on, a plain loop would have too.

    Torch's fetcher calls a wrapper of ours, which calls it again with the user's dataset: the inner one is shown.
    """
    shown, called, by_ours = [], "", ""  # the frame that this one calls, and the one that ours call
    for file in reversed(files):
        ours = is_ours(file)
        shown.append(not (ours or (file == by_ours and file.endswith(_FETCHER))))
        by_ours = (by_ours or called) if ours else ""
        called = file
    return shown[::-1]


def users_text(error: Exception) -> Exception:
    """Remove pipediag's frames from the message, where torch puts a worker's traceback, and return the error."""
    args = _ARGS.__get__(error)
    if args and isinstance(args[0], str) and _ROOT in args[0]:
        shown = iter(_shown([frame["file"] for frame in _FRAME.finditer(args[0])]))
        text = _FRAME.sub(lambda frame: frame[0] if next(shown) else "", args[0])
        # Keep the class: torch wraps a KeyError's message in a subclass of str, so that line breaks are printed.
        _ARGS.__set__(error, (type(args[0])(text), *args[1:]))
    return error


def in_one_line(error: BaseException) -> str:
    """Return the type and the first line of the message; for an error from a worker, those of the original error."""
    try:
        text = "".join(traceback.format_exception_only(error))
    except Exception:  # of its class, or of what it names as its cause
        text = _NAME.__get__(type(error))
    lines = [line for line in text.splitlines() if line.strip()]
    if caught := _IN_WORKER.search(lines[0]):  # what follows is its traceback, and all lines of its message
        begins = re.compile(rf"(\w+\.)*{caught[1]}(:|$)")
        return next(filter(begins.match, reversed(lines)), lines[-1]).strip()
    return next((line for line in lines if not line.startswith(" ")), lines[-1]).strip()


def raised_by_ours(error: BaseException) -> bool:
    """Return whether pipediag's code raised the error after the user's code had called it, directly or by torch."""
    tb, inside = traceback_of(error), False
    while tb is not None:
        file = tb.tb_frame.f_code.co_filename
        if inside and is_ours(file):
            return True
        inside = inside or is_users(file)
        tb = tb.tb_next
    return False
