"""Make torchvision accept generated CIFAR files, whose checksums differ from the originals', and time the loop.

The benchmark puts this folder on the script's ``PYTHONPATH``. Nothing else changes, and neither torch nor torchvision
is imported before the script does.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_PACE = os.environ.get("RECIPES_PACE")


def _lenient(module: ModuleType) -> None:
    for dataset in (module.CIFAR10, module.CIFAR100):
        dataset.train_list = [[name, None] for name, _ in dataset.train_list]
        dataset.test_list = [[name, None] for name, _ in dataset.test_list]
        dataset.meta = {**dataset.meta, "md5": None}


def _paced(module: ModuleType) -> None:
    from benchmarks.recipes import pace

    assert _PACE is not None
    pace.count(**json.loads(_PACE))


_AFTER: dict[str, Callable[[ModuleType], None]] = {"torchvision.datasets.cifar": _lenient}
if _PACE:
    _AFTER["torch.optim.optimizer"] = _paced


class _Followed(Loader):
    def __init__(self, loader: Loader, after: Callable[[ModuleType], None]) -> None:
        self._loader, self._after = loader, after

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._after(module)


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in _AFTER:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Followed(spec.loader, _AFTER[name])
        return spec


sys.meta_path.insert(0, _Finder())
