"""Launch kernels with little work on the host.

Triton's own launch looks at each argument again and builds a key as text: about 40 microseconds on slow cores, under
the interpreter's lock. Here a launch like an earlier one runs the kernel that was compiled for it.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

#: Compiler options of every kernel: product and sum are rounded separately, unless the source fuses them.
OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}

#: Most kernels that are remembered for one function: strides are part of the key, and may differ with every batch.
_MOST = 256
_ALIGNMENT = 16  # bytes; triton loads wide words from tensors that are aligned to it
#: From this version on, a compiled kernel takes constants like other arguments.
_DIRECT = (3, 3)


def launch(kernel: Any, grid: tuple[int, int], *args: Any, **constants: Any) -> None:
    """Launch on the current stream of the device of the first argument, a tensor.

    Args:
        kernel: a function of :func:`triton.jit`, whose constants come last.
        grid: numbers of programs.
        args: tensors and numbers, in the order of the kernel's parameters.
        constants: each constant by name.
    """
    index = args[0].get_device()
    if index < 0 or index == torch.cuda.current_device():  # the interpreter takes tensors of the CPU
        _launcher(kernel)(index, grid, args, constants)
        return
    with torch.cuda.device(index):
        _launcher(kernel)(index, grid, args, constants)


@functools.cache
def _launcher(kernel: Any) -> Callable[[int, tuple[int, int], tuple[Any, ...], dict[str, Any]], None]:
    import triton  # not above: workers import the modules of the codes that they write

    version = tuple(map(int, triton.__version__.split(".")[:2]))
    if isinstance(kernel, triton.runtime.JITFunction) and version >= _DIRECT:
        return _Launcher(kernel)

    def plainly(index: int, grid: tuple[int, int], args: tuple[Any, ...], constants: dict[str, Any]) -> None:
        kernel[grid](*args, **constants, **OPTIONS)

    return plainly


class _Launcher:
    """Remembers what triton compiled for arguments of the same kinds: all that it distinguishes, and more."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._constants = [param.name for param in kernel.params if param.is_constexpr]
        self._kinds = [_of_any if param.do_not_specialize else _exactly for param in kernel.params]
        self._compiled: dict[Any, Any] = {}

    def __call__(self, index: int, grid: tuple[int, int], args: tuple[Any, ...], constants: dict[str, Any]) -> None:
        values = [constants[name] for name in self._constants]
        key = (index, *values, *[kind(arg) for kind, arg in zip(self._kinds, args, strict=False)])
        compiled = self._compiled.get(key)
        if compiled is None:
            if len(self._compiled) >= _MOST:
                self._compiled.clear()
            self._compiled[key] = self._kernel[grid](*args, **constants, **OPTIONS)
        else:
            compiled[(*grid, 1)](*args, *values)


def _exactly(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % _ALIGNMENT
    return value if isinstance(value, int) else float


def _of_any(value: Any) -> Any:
    """Return the kind of a number that is not compiled in: only its type counts, of 32 or 64 bits."""
    return value.bit_length() > 31 if isinstance(value, int) else _exactly(value)
