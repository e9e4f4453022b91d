"""Let scripts of earlier years run here: give back names that libraries have dropped, and ``.cuda()`` without a GPU.

The benchmark puts this folder on the script's ``PYTHONPATH``, for the plain runs and under pipediag alike. A name comes
back only if it is absent. Without a GPU ``x.cuda()`` returns ``x``; ``torch.cuda.is_available()`` stays False.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_LOADER = {name: int(value) for name, value in json.loads(os.environ.get("PUBLIC_LOADER") or "{}").items()}
_DIST = os.environ.get("PUBLIC_ONE_PROCESS") == "1"


def _absent(module: ModuleType, **values: Any) -> None:
    for name, value in values.items():
        if name not in vars(module):
            setattr(module, name, value)


def _numpy(module: Any) -> None:
    _absent(module, int=int, float=float, bool=bool, object=object, Inf=math.inf)


def _pictures(module: Any) -> None:
    _absent(module, ANTIALIAS=module.Resampling.LANCZOS)


def _six(module: Any) -> None:
    """Make ``torch._six``, which torch 2 dropped."""
    six = ModuleType("torch._six")
    six.__dict__.update(inf=math.inf, nan=math.nan, string_classes=(str, bytes), int_classes=int)
    sys.modules.setdefault("torch._six", six)


def _torch(module: Any) -> None:
    _six(module)
    if module.cuda.is_available():
        return

    def same(value: Any, *args: Any, **kwargs: Any) -> Any:
        return value

    def same_module(value: Any, *args: Any, **kwargs: Any) -> Any:
        return value

    def nothing() -> Callable[..., None]:  # a function for each name: torch's compiler keeps rules by function
        return lambda *args, **kwargs: None

    module.Tensor.cuda, module.nn.Module.cuda = same, same_module
    for name in ("set_device", "synchronize", "empty_cache", "manual_seed_all", "reset_peak_memory_stats"):
        setattr(module.cuda, name, nothing())
    module.cuda.max_memory_allocated = lambda *args, **kwargs: 0
    module.cuda.device = lambda *args, **kwargs: contextlib.nullcontext()
    if _DIST:
        _one_process(module)


def _one_process(torch: Any) -> None:
    """Train in a group of one process over gloo, where the script asks for NCCL."""
    join = torch.distributed.init_process_group

    def joined(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        return join("gloo", *args, **kwargs)

    torch.distributed.init_process_group = joined
    parallel = torch.nn.parallel

    class OnCpu(parallel.DistributedDataParallel):  # type: ignore[misc]
        def __init__(self, model: Any, device_ids: Any = None, **kwargs: Any) -> None:
            super().__init__(model, **kwargs)

    parallel.DistributedDataParallel = torch.nn.parallel.DistributedDataParallel = OnCpu
    torch.nn.SyncBatchNorm.convert_sync_batchnorm = classmethod(lambda cls, model, *more: model)


def _loaders(module: Any) -> None:
    """Give the arguments of an edit to every loader; those without workers take only their number."""
    made = module.DataLoader.__init__

    def changed(loader: Any, *args: Any, **kwargs: Any) -> None:
        asked = {**kwargs, **{name: value for name, value in _LOADER.items() if name == "num_workers"}}
        if asked.get("num_workers", 0):
            asked.update(_LOADER)
        else:
            asked.pop("prefetch_factor", None)
            asked.pop("persistent_workers", None)
        made(loader, *args, **asked)

    module.DataLoader.__init__ = changed


_AFTER: dict[str, Callable[[Any], None]] = {"numpy": _numpy, "PIL.Image": _pictures, "torch": _torch}
if _LOADER:
    _AFTER["torch.utils.data.dataloader"] = _loaders


class _Followed(Loader):
    def __init__(self, loader: Loader, after: Callable[[Any], None]) -> None:
        self._loader, self._after = loader, after

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._after(module)

    def __getattr__(self, name: str) -> Any:  # sources for tracebacks and inspection
        return getattr(self._loader, name)


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in _AFTER:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Followed(spec.loader, _AFTER[name])
        return spec


sys.meta_path.insert(0, _Finder())
