"""Collect what the files of :mod:`.families` declare: operations, and the functions whose calls become ops."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

from . import families
from .op import OPERATIONS as OPERATIONS
from .op import Op
from .operation import Functional, Operation

#: By name, the functions of ``torchvision.transforms.v2.functional``.
FUNCTIONALS: dict[str, Functional] = {}
#: By their names in ``torchvision.transforms.functional`` (v1), the same.
OLDER: dict[str, Functional] = {}
#: Encoders of calls on Pillow images of mode L and RGB, by the name of the method of ``PIL.Image.Image``, of the
#: function of ``PIL.ImageOps`` that reads pixels itself, and of the function of torchvision that does, or is one op.
#: They repeat Pillow's pixels bit by bit.
METHODS: dict[str, Callable[..., list[Op]]] = {}
IMAGE_OPS: dict[str, Callable[..., list[Op]]] = {}
OF_PICTURES: dict[str, Callable[..., list[Op]]] = {}


def _add(operation: Operation | None) -> None:
    if operation is not None:
        OPERATIONS[operation.name] = operation
        _add(operation.in_memory)
        _add(operation.fused and operation.fused.operation)


def _collect(family: Any) -> None:
    for operation in getattr(family, "OPERATIONS", ()):
        _add(operation)
    for functional in getattr(family, "FUNCTIONALS", ()):
        FUNCTIONALS[functional.name] = functional
        if not functional.several:  # those of v1 call others
            OLDER.update(dict.fromkeys((functional.name, *functional.aliases), functional))
    for name, table in (("METHODS", METHODS), ("IMAGE_OPS", IMAGE_OPS), ("OF_PICTURES", OF_PICTURES)):
        table.update(getattr(family, name, {}))


for _module in pkgutil.iter_modules(families.__path__):
    _collect(importlib.import_module(f"{families.__name__}.{_module.name}"))
