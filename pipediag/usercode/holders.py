"""Find the names that hold an object in the user's running code, and the statement that makes it.

While the loop waits for a batch, or calls a module, the user's functions are on the stack. A statement is certain only
if no other assigns the name.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import nn

from ..frames import is_ours, is_torchs, is_users
from .attributes import attribute
from .places import short

_MODULE = "<module>"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_OWN_SCOPE = (*FUNCTIONS, ast.ClassDef, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class NotCertain(Exception):
    """Error: it is not certain which statement makes the object; the message is the reason."""


@dataclass(frozen=True)
class Holder:
    """Name that holds an object in the user's code."""

    file: str
    function: str  # the function whose variable it is, or ``<module>`` for a global variable
    line: int  # the function's first line
    name: str  # the variable, or the attribute of the function's first argument (``self.loader``)
    devices: tuple[str, ...] = ()  # variables of the function and of the module that hold the asked device


def holders(obj: Any, device: torch.device | None = None) -> Iterator[Holder]:
    """Yield every name in the user's code up the stack that holds the object now, innermost function first."""
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        code = frame.f_code
        if is_users(code.co_filename):
            of_module = _holding_device(frame.f_globals, device)
            devices = (*_holding_device(frame.f_locals, device), *of_module)
            for name in _holding(frame.f_locals, obj):
                yield Holder(code.co_filename, code.co_name, code.co_firstlineno, name, devices)
            first = next(iter(code.co_varnames[: code.co_argcount]), "")
            for name in _holding(attribute(frame.f_locals.get(first), "__dict__", {}), obj):
                yield Holder(code.co_filename, code.co_name, code.co_firstlineno, f"{first}.{name}")
            if code.co_name != _MODULE:
                for name in _holding(frame.f_globals, obj):
                    yield Holder(code.co_filename, _MODULE, 1, name, of_module)
        frame = frame.f_back


def _holding(names: Mapping[str, Any], obj: Any) -> list[str]:
    return [name for name, value in list(names.items()) if value is obj]


def _holding_device(names: Mapping[str, Any], device: torch.device | None) -> tuple[str, ...]:
    """Return the variables that hold the device, one called ``device`` first."""

    def holds(value: Any) -> bool:
        if device is None or not isinstance(value, torch.device) or value.type != device.type:
            return False
        return value.index is None or device.index is None or value.index == device.index

    found = [name for name, value in list(names.items()) if holds(value)]
    return tuple(sorted(found, key=lambda name: (name != "device", name)))


def scope_of(module: ast.Module, holder: Holder) -> ast.AST:
    """Return the module or function whose variable holds the object; for an attribute, the function's class.

    Raises:
        NotCertain: the source has no such function.
    """
    if holder.function == _MODULE:
        return module
    for node in ast.walk(module):
        for inner in ast.iter_child_nodes(node):
            if not isinstance(inner, FUNCTIONS) or inner.name != holder.function:
                continue
            # A code object begins at its first decorator, if it has any.
            if holder.line == min([inner.lineno, *(decorator.lineno for decorator in inner.decorator_list)]):
                return node if "." in holder.name and isinstance(node, ast.ClassDef) else inner
    raise NotCertain(f"{holder.function} is not where it was in {short(holder.file)}")


def only_assignment(scope: ast.AST, holder: Holder) -> ast.Assign | ast.AnnAssign:
    """Return the only statement of the scope that assigns the name.

    Raises:
        NotCertain: there is none, or more than one, or it is no plain assignment.
    """
    found = list(stores(scope, holder.name))
    where = "the module" if isinstance(scope, ast.Module) else attribute(scope, "name", "")
    if not found:
        raise NotCertain(f"no statement of {where} in {short(holder.file)} makes {holder.name}")
    if len(found) > 1:
        lines = ", ".join(str(node.lineno) for node in found)
        raise NotCertain(f"{holder.name} is given a value in several lines of {short(holder.file)}: {lines}")
    (statement,) = found
    if not isinstance(statement, (ast.Assign, ast.AnnAssign)):
        raise NotCertain(f"{holder.name} is made by no plain assignment (line {statement.lineno})")
    return statement


def stores(scope: ast.AST, name: str, statement: ast.stmt | None = None) -> Iterator[ast.stmt]:
    """Yield the statements in this scope that assign ``name``; for an attribute, also those in its methods."""
    is_attribute = "." in name
    for node in ast.iter_child_nodes(scope):
        inside = node if isinstance(node, ast.stmt) else statement
        if isinstance(node, (ast.Name, ast.Attribute)):
            if isinstance(node.ctx, ast.Store) and ast.unparse(node) == name:
                assert inside is not None, "names stand in statements"
                yield inside
        elif isinstance(node, (ast.Global, ast.Nonlocal)) and name in node.names:
            yield node
        if not isinstance(node, _OWN_SCOPE) or (is_attribute and isinstance(node, FUNCTIONS)):
            yield from stores(node, name, inside)
        elif isinstance(node, FUNCTIONS):
            # A nested function, or one inside it, may assign an outer variable.
            outer = (inner for inner in ast.walk(node) if isinstance(inner, (ast.Global, ast.Nonlocal)))
            if any(name in inner.names for inner in outer):
                yield node


#: Maximum number of the user's frames that are searched, from the call outwards.
_DEPTH = 6


def call_site(module: nn.Module) -> tuple[str, str]:
    """Return the name of ``module`` in the code that calls it, and ``file:line`` of the call.

    The name is that of its class if no variable or attribute holds it; the place is "" if no user code is on the stack.
    """
    frame: FrameType | None = sys._getframe(1)
    where, searched = "", 0
    try:
        while frame is not None and searched < _DEPTH:
            file = frame.f_code.co_filename
            if not is_ours(file) and not is_torchs(file):
                where = where or f"{short(file)}:{frame.f_lineno}"
                if name := _name_in(frame, module):
                    return name, where
                searched += 1
            frame = frame.f_back
        return type(module).__name__, where
    except Exception:  # the loop continues, whatever its frames hold
        return type(module).__name__, ""


def _name_in(frame: FrameType, module: nn.Module) -> str:
    for scope in (frame.f_locals, frame.f_globals):
        for name, value in scope.items():
            if value is module:
                return name
    for name, value in frame.f_locals.items():
        for attr, held in _attributes(value).items():
            if held is module:
                return f"{name}.{attr}"
    return ""


def _attributes(value: Any) -> dict[str, Any]:
    """Return an object's attributes without running code of its own."""
    try:
        attributes = dict(object.__getattribute__(value, "__dict__"))
    except (AttributeError, TypeError):
        return {}
    modules = attributes.get("_modules")
    return {**attributes, **modules} if isinstance(modules, dict) else attributes
