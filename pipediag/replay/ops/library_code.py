"""Tell the libraries' own functions from user code that was put in their place, also inside of the libraries.

A script may replace any function of torchvision's or Pillow's, at any time, and another function of theirs may call it:
``functional.resized_crop`` calls whatever ``functional.resize`` is by then. A call that would reach user code is not
recorded, since it must run as often as the script makes it, on real pixels.
"""

from __future__ import annotations

import dis
import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy
import PIL
import PIL.Image
import torch
import torchvision
from torchvision import tv_tensors
from torchvision.transforms.v2.functional import _utils as dispatch

from ...frames import is_ours
from ...patches import beneath, is_native

_PACKAGES = (torch, torchvision, PIL, numpy)
#: By id, the values that were found to be the libraries' own; they are kept, so that no other gets the id.
_OWN: dict[int, Any] = {}
#: The types of images whose kernels a function of torchvision's dispatcher calls.
_IMAGES = (torch.Tensor, tv_tensors.Image, tv_tensors.Mask, tv_tensors.Video, PIL.Image.Image)


def is_original(*values: Any) -> bool:
    """Return whether functions, methods and classes are the libraries' own or pipediag's, and not user code in their
    place."""
    return all(id(value) in _OWN or _is_original(value) for value in values)


def _is_original(value: Any) -> bool:
    function = beneath(getattr(value, "__func__", value))
    code = getattr(function, "__code__", None)
    if isinstance(code, types.CodeType):  # functools.wraps copies the name of the module, but not the code
        ours = is_ours(code.co_filename)
        librarys = not ours and any(is_native(function, package) for package in _PACKAGES)
    else:
        of = function if isinstance(function, (type, types.BuiltinFunctionType, types.ModuleType)) else type(function)
        module = str(getattr(of, "__module__", None) or getattr(of, "__name__", ""))
        ours, librarys = False, module.partition(".")[0] in ("builtins", *(package.__name__ for package in _PACKAGES))
    if librarys and function is value:  # what pipediag puts in a function's place may hold the user's objects
        _OWN[id(value)] = value
    return ours or librarys


def calls_own_only(*functions: Callable[..., Any]) -> bool:
    """Return whether what functions of a library's call is the libraries' own, and no other function in its place."""
    for table, name, native in _called(*filter(_is_torchvisions, functions)):
        value = table.get(name)
        if value is not native and not (_is_original(value) and inspect.unwrap(beneath(value)) is native):
            return False
    return True


@functools.cache
def _called(*functions: Callable[..., Any]) -> tuple[tuple[Mapping[str, Any], str, Any], ...]:
    """Return where the functions that these call, or that those call, are looked up, and what is there by nature: None
    if it is not known, because user code was in its place first."""
    found: dict[tuple[int, str], tuple[Mapping[str, Any], str, Any]] = {}
    registry = dispatch._KERNEL_REGISTRY
    kernels = (registry[fn][kind] for fn in functions if fn in registry for kind in _IMAGES if kind in registry[fn])
    waiting, seen = [*functions, *kernels], set()
    while waiting:
        function = inspect.unwrap(waiting.pop())
        if id(function) in seen or not (isinstance(function, types.FunctionType) and _is_torchvisions(function)):
            continue
        seen.add(id(function))
        for table, name in _names(function):
            native = inspect.unwrap(beneath(table[name])) if is_original(table[name]) else None
            native = native if getattr(native, "__name__", "?") in name else None  # imported as torch_pad, for example
            found[id(table), name] = table, name, native
            waiting.append(native)
    return tuple(found.values())


def _names(function: types.FunctionType) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield the functions that the code of a function names: table and name. A picture's methods are among them."""
    table = function.__globals__
    read: dict[bool, set[str]] = {True: set(), False: set()}  # globals, and attributes
    for step in _steps(function.__code__):
        if step.opname in ("LOAD_GLOBAL", "LOAD_ATTR", "LOAD_METHOD"):
            read[step.opname == "LOAD_GLOBAL"].add(step.argval)
    modules = [table.get(name) for name in read[True] if isinstance(table.get(name), types.ModuleType)]
    owners = [vars(module) for module in modules if _is_torchvisions(module)]
    for owner, names in ((table, read[True]), *((owner, read[False]) for owner in (*owners, vars(PIL.Image.Image)))):
        for name in names & owner.keys():
            itself = owner is table and name == function.__name__  # to log its use, or to find its kernel
            if callable(owner[name]) and not isinstance(owner[name], type) and not itself:
                yield owner, name


def _is_torchvisions(value: Any) -> bool:
    return str(getattr(value, "__module__", None) or value.__name__).startswith("torchvision.")


def _steps(code: types.CodeType) -> Iterator[dis.Instruction]:
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _steps(constant)
