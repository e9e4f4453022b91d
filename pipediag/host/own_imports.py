"""Import pipediag's modules while the script runs, without the script's own ``html.py`` or ``resource.py``.

Modules beside the script hide those of the standard library, as Python wants it for the script, and not for others.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

#: Modules that Python itself has imported before any script begins.
_NATIVE = {"os", "io", "abc", "codecs", "encodings", "stat", "site", "posixpath", "genericpath", "zipimport"}


@contextmanager
def script_aside() -> Iterator[None]:
    """Let imports within the context find the standard library, and give the script its own modules back."""
    script = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    folders = {os.path.dirname(os.path.realpath(script)), os.path.realpath(os.curdir)}
    hiding = {name: module for name, module in sys.modules.items() if _hides(name, folders)}
    if not hiding and not any(_would_hide(folder) for folder in folders):
        yield
        return
    path = list(sys.path)
    sys.path[:] = [one for one in path if os.path.realpath(one or os.curdir) not in folders]
    before = {*sys.modules}
    for name in hiding:
        del sys.modules[name]
    try:
        yield
    finally:
        sys.path[:] = path + [one for one in sys.path if one not in path]
        names = {_top(name) for name in hiding} | {name for folder in folders for name in _would_hide(folder)}
        for name in [one for one in sys.modules if one not in before or one in hiding]:
            if _top(name) in names:
                del sys.modules[name]
        sys.modules.update(hiding)


def forget_hidden(folder: str) -> None:
    """Forget modules of the standard library that pipediag has imported and that the script's folder hides."""
    hidden = _would_hide(folder) - _NATIVE - {*sys.builtin_module_names}
    for name in [one for one in sys.modules if _top(one) in hidden]:
        del sys.modules[name]


def _hides(name: str, folders: set[str]) -> bool:
    """Return whether a module, or the package that it is in, stands in place of one of the standard library."""
    file = getattr(sys.modules.get(_top(name)), "__file__", None) or ""
    folder = os.path.dirname(os.path.realpath(file))
    return _top(name) in sys.stdlib_module_names and file != "" and bool({folder, os.path.dirname(folder)} & folders)


def _would_hide(folder: str) -> set[str]:
    """Return the names of the standard library's modules that a folder has files or packages for."""
    try:
        names = {name.removesuffix(".py") for name in os.listdir(folder or os.curdir)}
    except OSError:
        return set()
    return names & sys.stdlib_module_names if not os.path.exists(os.path.join(folder, "os.py")) else set()


def _top(name: str) -> str:
    return name.partition(".")[0]
