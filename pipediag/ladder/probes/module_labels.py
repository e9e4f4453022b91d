"""Label a profiler's recording with the module that calls each operator."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.autograd.profiler import record_function
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ...analysis.numbers.profile import Path
from ...patches import hooked
from ...usercode.holders import call_site

_PREFIX, _BETWEEN = "module: ", " > "


def path_in(label: str) -> Path:
    """Return the module path of a label, or () if the label is not ours."""
    return tuple(label[len(_PREFIX) :].split(_BETWEEN)) if label.startswith(_PREFIX) else ()


class Labels:
    """Labels around every call of a module.

    Attributes:
        calls: number of calls of each module while :attr:`counting`.
    """

    def __init__(self) -> None:
        self.calls: Counter[Path] = Counter()
        self.counting = False
        self._paths: dict[int, tuple[nn.Module, Path]] = {}
        self._open = _Open()

    @contextmanager
    def on(self) -> Iterator[None]:
        """Label every module of the process within the context."""
        with (
            hooked(register_module_forward_pre_hook(self._begin)),
            hooked(register_module_forward_hook(self._end, always_call=True)),
        ):
            yield

    def _begin(self, module: nn.Module, args: Any) -> None:
        stack = self._open.stack
        if id(module) not in self._paths:
            self._name(module, stack[-1][1] if stack else ())
        path = self._paths[id(module)][1]
        self.calls[path] += self.counting
        label = record_function(_PREFIX + _BETWEEN.join(path))
        label.__enter__()
        stack.append((module, path, label))

    def _end(self, module: nn.Module, args: Any, result: Any) -> None:
        stack = self._open.stack
        if stack and stack[-1][0] is module:
            stack.pop()[2].__exit__(None, None, None)

    def _name(self, root: nn.Module, around: Path) -> None:
        """Name a module that is called for the first time, and its submodules."""
        whole = (*around, call_site(root)[0])
        self._paths[id(root)] = root, whole
        try:
            for path, part in root.named_modules():
                self._paths.setdefault(id(part), (part, (*whole, *filter(None, path.split(".")))))
        except Exception:  # a module that raises here must not stop the loop
            return


class _Open(threading.local):
    """The open calls of a thread."""

    def __init__(self) -> None:
        self.stack: list[tuple[nn.Module, Path, record_function]] = []
