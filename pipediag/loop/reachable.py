"""List the objects that a function can reach: closure, globals that it names, bound object, arguments of partials."""

from __future__ import annotations

import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

from ..usercode.attributes import is_a
from ..usercode.contents import NAMESPACES, closed_over, is_library, is_library_module, names_in, package, slot_values

#: Maximum number of objects in all, and of items of one container.
_MOST, _MOST_ITEMS = 50_000, 1000
#: Packages whose objects hold nothing of the user's, except the kinds below.
_OPAQUE = sys.stdlib_module_names | {"numpy", "PIL", "pandas", "torch", "torchvision"}
#: Kinds of objects of opaque packages that are entered nevertheless.
_ENTERED = (nn.Module, torch.optim.Optimizer, Sampler, *NAMESPACES)
#: Values that hold no other objects, or only data.
_ATOMS = (str, bytes, int, float, complex, type(None), torch.Tensor, numpy.ndarray, Dataset, DataLoader)


def reachable(*roots: Any) -> Iterator[Any]:
    """Yield every object that the roots can reach, the nearest first, each once.

    Only stored attributes are read: no property and no method of the user's runs. Datasets are not entered.
    """
    seen: dict[int, Any] = {}  # holds the objects, so that no id is used twice
    waiting = deque([*roots])
    while waiting and len(seen) < _MOST:
        one = waiting.popleft()
        if id(one) in seen:
            continue
        seen[id(one)] = one
        yield one
        if not is_a(one, _ATOMS):
            waiting.extend(_inside(one))


def _inside(one: Any) -> Iterable[Any]:
    if is_a(one, dict):
        return list(islice(one.values(), _MOST_ITEMS))
    if is_a(one, (list, tuple, set, frozenset, deque)):
        return list(islice(one, _MOST_ITEMS))
    if is_a(one, types.FunctionType):
        return list(_of_function(one))
    if is_a(one, types.MethodType):
        return one.__self__, one.__func__
    if is_a(one, partial):
        return one.func, *one.args, *one.keywords.values()
    if is_a(one, (staticmethod, classmethod)):
        return (one.__func__,)
    if is_a(one, property):
        return one.fget, one.fset
    if is_a(one, type):
        return () if is_library(one) else list(vars(one).values())
    if is_a(one, types.ModuleType):
        return ()  # what a function uses of a module is found with the function
    return list(_attributes(one))


def _of_function(fn: types.FunctionType) -> Iterator[Any]:
    yield from closed_over(fn).values()
    yield from fn.__defaults__ or ()
    yield from (fn.__kwdefaults__ or {}).values()
    yield from [*vars(fn).values()]
    if is_library(fn):
        return
    names = set(names_in(fn.__code__))
    for name in names:
        value = fn.__globals__.get(name)
        if value is None or not is_a(value, types.ModuleType):
            yield value
        elif not is_library_module(value):
            yield from (vars(value)[attribute] for attribute in names if attribute in vars(value))


def _attributes(one: Any) -> Iterator[Any]:
    cls = type(one)
    if package(cls) in _OPAQUE and not is_a(one, _ENTERED):
        return
    try:
        yield from object.__getattribute__(one, "__dict__").values()
    except AttributeError:
        pass
    yield from slot_values(one).values()
    yield cls  # for its methods
