"""Copy a callable to a device with all tensors that it holds; the user's own object does not change."""

from __future__ import annotations

import copy
import functools
import inspect
import operator
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .inside import LEAVES, cells, class_values, closed_over, globals_of, is_library, is_record, slot_values
from .refusal import Refused, told


def carried(fn: Any, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Return ``fn`` with all tensors it holds on ``device``: a copy if it holds any, otherwise ``fn`` itself.

    Raises:
        Refused: an object that holds a tensor cannot be copied.
    """
    carrier = _Carrier(device, fn)
    try:
        moved: Callable[[Tensor], Tensor] = carrier.of(fn)
        # Calls look up __call__ on the class, which is not copied; so its function is carried and bound explicitly.
        call = inspect.getattr_static(type(fn), "__call__", None)
        if isinstance(call, types.FunctionType):
            own = carrier.of(call)
            moved = types.MethodType(own, moved) if own is not call else moved
    except Exception as error:
        raise Refused(f"what it holds cannot be copied to the device: {told(error)}") from error
    return moved


class _Carrier:
    """Copier of tensors and modules, and of objects that hold them; all other objects are shared with the user's."""

    def __init__(self, device: torch.device, root: Any) -> None:
        self._device = device
        self._root = root
        self._done: dict[int, tuple[Any, Any]] = {}  # with the original, so that its id stays in use

    def of(self, value: Any) -> Any:
        """Return ``value`` on the device; the same object if nothing in it moves."""
        if isinstance(value, LEAVES):
            return value
        if id(value) not in self._done:
            self._done[id(value)] = value, value  # for objects that refer back to it
            self._done[id(value)] = value, self._copy(value)
        return self._done[id(value)][1]

    def _copy(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, torch.nn.Module):
            return self._module(value)
        if isinstance(value, types.FunctionType):
            return value if is_library(value) and value is not self._root else self._function(value)
        if isinstance(value, types.MethodType):
            return self._made_of(value, lambda owner, fn: types.MethodType(fn, owner), value.__self__, value.__func__)
        if isinstance(value, staticmethod):
            return self._made_of(value, staticmethod, value.__func__)
        if isinstance(value, functools.partial):
            parts = value.func, value.args, value.keywords
            return self._made_of(value, lambda fn, args, kwargs: functools.partial(fn, *args, **kwargs), *parts)
        if isinstance(value, dict):
            return _with_items(value, self._changes(value))
        if isinstance(value, (list, tuple)):
            return _with_items(value, self._changes(dict(enumerate(value))))
        return self._record(value) if is_record(value) else value

    def _made_of(self, value: Any, make: Callable[..., Any], *parts: Any) -> Any:
        """Rebuild ``value`` from its parts if one of them changes on the device."""
        moved = [self.of(part) for part in parts]
        return value if all(map(operator.is_, parts, moved)) else make(*moved)

    def _changes(self, values: dict[Any, Any]) -> dict[Any, Any]:
        """Return the values that change on the device."""
        moved = {name: self.of(value) for name, value in values.items()}
        return {name: value for name, value in moved.items() if value is not values[name]}

    def _tensor(self, tensor: Tensor) -> Tensor:
        if tensor.device.type != "cpu":  # the user put it there
            return tensor
        return tensor.detach().to(self._device, copy=True).requires_grad_(tensor.requires_grad)

    def _module(self, module: torch.nn.Module) -> torch.nn.Module:
        fresh = copy.deepcopy(module).to(self._device)
        for part in fresh.modules():
            self._done[id(part)] = part, part
        for part in fresh.modules():
            plain = {n: v for n, v in vars(part).items() if n not in ("_parameters", "_buffers", "_modules")}
            _set_all(part, {**self._changes(plain), **_bound(self._class_changes(part), part)})
        return fresh

    def _record(self, obj: Any) -> Any:
        changes = self._changes({**slot_values(obj), **getattr(obj, "__dict__", {})})
        of_class = self._class_changes(obj)
        if not changes and not of_class:
            return obj
        fresh = copy.copy(obj)
        _set_all(fresh, {**changes, **_bound(of_class, fresh)})
        return fresh

    def _class_changes(self, obj: Any) -> dict[str, Any]:
        """Return the class attributes that change on the device: tensors, and methods that use them."""
        found: dict[str, Any] = {}
        for cls in reversed(type(obj).__mro__):
            found.update({} if is_library(cls) else class_values(cls))
        own = {"__call__", *getattr(obj, "__dict__", {})}
        return self._changes({name: value for name, value in found.items() if name not in own})

    def _function(self, fn: types.FunctionType) -> types.FunctionType:
        """Rebuild the function, with another closure and a copy of its globals if these hold tensors."""
        of_globals, of_cells = self._changes(globals_of(fn)), self._changes(closed_over(fn))
        attached = {"__defaults__": fn.__defaults__, "__kwdefaults__": fn.__kwdefaults__, **fn.__dict__}
        of_attached = self._changes(attached)
        if not (of_globals or of_cells or of_attached):
            return fn
        namespace = {**fn.__globals__, **of_globals} if of_globals else fn.__globals__
        closure = [types.CellType(of_cells[n]) if n in of_cells else cell for n, cell in cells(fn).items()]
        fresh = types.FunctionType(fn.__code__, namespace, fn.__name__, closure=tuple(closure))
        _set_all(fresh, {**attached, **of_attached})
        return fresh


def _bound(of_class: dict[str, Any], obj: Any) -> dict[str, Any]:
    """Bind a class's definitions to one object of it."""
    return {name: value.__get__(obj) if hasattr(type(value), "__get__") else value for name, value in of_class.items()}


def _set_all(obj: Any, values: dict[str, Any]) -> None:
    """Set attributes directly, bypassing the object's own ``__setattr__`` (a frozen dataclass, a module)."""
    for name, value in values.items():
        object.__setattr__(obj, name, value)


def _with_items(container: Any, changes: dict[Any, Any]) -> Any:
    """Return a copy of a dict, list or tuple with some items replaced; the container itself if there are no changes."""
    if not changes:
        return container
    if isinstance(container, tuple):
        items = [changes.get(i, item) for i, item in enumerate(container)]
        return type(container)(*items) if hasattr(container, "_fields") else type(container)(items)
    fresh = copy.copy(container)
    for key, value in changes.items():
        fresh[key] = value
    return fresh
