"""Write the two lines that keep a remedy in the user's script: an import, and a call that wraps the loader.

The loader's statement must be certain. While the loop waits for a batch, the user's functions are on the stack, and the
name that holds the loader there is found by identity. The edit is made only if exactly one statement assigns this name.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FrameType, MappingProxyType
from typing import Any

import torch

from ..frames import is_users
from ..session import Edit
from ..usercode.places import short

_MODULE = "<module>"
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_OWN_SCOPE = (*_FUNCTIONS, ast.ClassDef, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_NOBODY = "no variable of the script holds the loader while it trains"


class NotCertain(Exception):
    """Error: the script cannot be edited with certainty; the message is the reason."""


@dataclass(frozen=True)
class Holder:
    """Name that holds the loader in the user's code.

    Attributes:
        file: the source file.
        function: the function whose variable it is, or ``<module>`` for a global variable.
        line: the function's first line.
        name: the variable, or the attribute of the function's first argument (``self.loader``).
        devices: variables of the function and of the module that hold the device.
    """

    file: str
    function: str
    line: int
    name: str
    devices: tuple[str, ...] = ()


def edit_for(loader: Any, device: torch.device, cached: bool = False, **options: bool) -> Edit:
    """Return the change as a unified diff, for a loader that the user's code further up the stack is iterating.

    With ``cached``, the loader goes through :func:`pipediag.cache` first. ``options`` are those of
    :func:`pipediag.offload` that are not the default.
    """
    why = _NOBODY
    for holder in holders(loader, device):
        try:
            with tokenize.open(holder.file) as file:
                before = file.read()
            after = wrapped(before, holder, device.type, options, cached)
        except NotCertain as reason:
            why = str(reason)
        except (OSError, SyntaxError, UnicodeDecodeError):
            why = f"{short(holder.file)} cannot be read as Python"
        else:
            return Edit(diff=unified(before, after, short(holder.file)))
    return Edit(why_not=why)


def holders(loader: Any, device: torch.device) -> Iterator[Holder]:
    """Yield every name that holds the loader now, innermost function first."""
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        code = frame.f_code
        if is_users(code.co_filename):
            of_module = _holding_device(frame.f_globals, device)
            devices = (*_holding_device(frame.f_locals, device), *of_module)
            for name in _holding(frame.f_locals, loader):
                yield Holder(code.co_filename, code.co_name, code.co_firstlineno, name, devices)
            first = next(iter(code.co_varnames[: code.co_argcount]), "")
            for name in _holding(getattr(frame.f_locals.get(first), "__dict__", {}), loader):
                yield Holder(code.co_filename, code.co_name, code.co_firstlineno, f"{first}.{name}")
            if code.co_name != _MODULE:
                for name in _holding(frame.f_globals, loader):
                    yield Holder(code.co_filename, _MODULE, 1, name, of_module)
        frame = frame.f_back


def _holding(names: Mapping[str, Any], loader: Any) -> list[str]:
    return [name for name, value in list(names.items()) if value is loader]


def _holding_device(names: Mapping[str, Any], device: torch.device) -> tuple[str, ...]:
    """Return the variables that hold the device, one called ``device`` first."""
    found = [name for name, value in list(names.items()) if isinstance(value, torch.device) and _same(value, device)]
    return tuple(sorted(found, key=lambda name: (name != "device", name)))


def _same(one: torch.device, other: torch.device) -> bool:
    return one.type == other.type and (one.index is None or other.index is None or one.index == other.index)


def wrapped(
    source: str,
    holder: Holder,
    device_type: str,
    options: Mapping[str, bool] = MappingProxyType({}),
    cached: bool = False,
) -> str:
    """Return the source with the import and the wrapping line added.

    Raises:
        NotCertain: not exactly one statement makes the loader, or no line can be added after it.
        SyntaxError: the source is not valid Python.
    """
    module = ast.parse(source)
    scope = _scope(module, holder)
    statement = _only_assignment(scope, holder)
    lines = source.splitlines(keepends=True)
    after = statement.end_lineno or statement.lineno
    first, last = lines[statement.lineno - 1], lines[after - 1]
    indent = first.encode()[: statement.col_offset].decode()  # offsets are in bytes
    rest = last.encode()[statement.end_col_offset :].decode().strip()
    if indent.strip() or (rest and not rest.startswith("#")):
        raise NotCertain(f"line {statement.lineno} of {short(holder.file)} holds more than the loader's assignment")
    device = next((name for name in holder.devices if _is_set_before(name, module, scope, statement)), None)
    literal = f'"{device_type}"'
    more = "".join(f", {name}={value}" for name, value in options.items())
    loader = f"pipediag.cache({holder.name})" if cached else holder.name
    on_device = device_type != "cpu" or options.get("transforms", True)
    call = f"pipediag.offload({loader}, {device or literal}{more})" if on_device or not cached else loader
    end = "\r\n" if last.endswith("\r\n") else "\n"
    if not last.endswith("\n"):
        lines[after - 1] += end
    lines.insert(after, f"{indent}{holder.name} = {call}{end}")
    place = _import_place(module)
    if place is not None:
        lines.insert(place, "import pipediag" + end)
    return "".join(lines)


def _scope(module: ast.Module, holder: Holder) -> ast.AST:
    """Return the module or function whose variable holds the loader; for an attribute, the function's class."""
    if holder.function == _MODULE:
        return module
    for node in ast.walk(module):
        for inner in ast.iter_child_nodes(node):
            if isinstance(inner, _FUNCTIONS) and inner.name == holder.function and _begin(inner) == holder.line:
                return node if "." in holder.name and isinstance(node, ast.ClassDef) else inner
    raise NotCertain(f"{holder.function} is not where it was in {short(holder.file)}")


def _begin(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the first line of a function's code object: that of its first decorator, if it has any."""
    return min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])


def _only_assignment(scope: ast.AST, holder: Holder) -> ast.Assign | ast.AnnAssign:
    found = list(_stores(scope, holder.name))
    where = "the module" if isinstance(scope, ast.Module) else getattr(scope, "name", "")
    if not found:
        raise NotCertain(f"no statement of {where} in {short(holder.file)} makes {holder.name}")
    if len(found) > 1:
        lines = ", ".join(str(node.lineno) for node in found)
        raise NotCertain(f"{holder.name} is given a value in several lines of {short(holder.file)}: {lines}")
    (statement,) = found
    if not isinstance(statement, (ast.Assign, ast.AnnAssign)):
        raise NotCertain(f"{holder.name} is made by no plain assignment (line {statement.lineno})")
    return statement


def _stores(scope: ast.AST, name: str, statement: ast.stmt | None = None) -> Iterator[ast.stmt]:
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
        if not isinstance(node, _OWN_SCOPE) or (is_attribute and isinstance(node, _FUNCTIONS)):
            yield from _stores(node, name, inside)
        elif isinstance(node, _FUNCTIONS) and _declares_global(node, name):
            yield node


def _declares_global(function: ast.AST, name: str) -> bool:
    """Return whether a nested function, or one inside it, may assign an outer variable of this name."""
    return any(isinstance(node, (ast.Global, ast.Nonlocal)) and name in node.names for node in ast.walk(function))


def _is_set_before(name: str, module: ast.Module, scope: ast.AST, statement: ast.stmt) -> bool:
    """Return whether a variable has a value when the statement runs."""
    if isinstance(scope, _FUNCTIONS):
        arguments = scope.args
        if name in (one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)):
            return True
        own = list(_stores(scope, name))
        if own:
            return own[0].lineno < statement.lineno
        return any(True for _ in _stores(module, name))
    return any(store.lineno < statement.lineno for store in _stores(module, name))


def _import_place(module: ast.Module) -> int | None:
    """Return the line after which ``import pipediag`` goes, the last of the leading imports; None if it is there."""
    place = 0
    for number, node in enumerate(module.body):
        is_import = isinstance(node, (ast.Import, ast.ImportFrom))
        if isinstance(node, ast.Import) and any(name.name == "pipediag" and not name.asname for name in node.names):
            return None
        docstring = number == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not is_import and not docstring:
            break
        place = node.end_lineno or node.lineno
    return place


def unified(before: str, after: str, name: str) -> str:
    """Return a diff for ``patch -p0``, also of files whose last line has no newline."""
    lines = difflib.unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), name, name, n=3)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
