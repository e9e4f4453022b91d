"""Make torchvision accept generated CIFAR files, whose checksums differ from the originals'.

The benchmark puts this folder on the script's ``PYTHONPATH``. Nothing else changes, and torchvision is not imported
before the script does.
"""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_CIFAR = "torchvision.datasets.cifar"


class _Lenient(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        for dataset in (module.CIFAR10, module.CIFAR100):
            dataset.train_list = [[name, None] for name, _ in dataset.train_list]
            dataset.test_list = [[name, None] for name, _ in dataset.test_list]
            dataset.meta = {**dataset.meta, "md5": None}


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != _CIFAR:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Lenient(spec.loader)
        return spec


sys.meta_path.insert(0, _Finder())
