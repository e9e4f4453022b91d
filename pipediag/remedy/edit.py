"""Write the two lines that keep a remedy in the user's script: an import, and a call that wraps the loader.

The loader's statement must be certain. While the loop waits for a batch, the user's functions are on the stack, and the
name that holds the loader there is found by identity. The edit is made only if exactly one statement assigns this name.
"""

from __future__ import annotations

import ast
import difflib
import tokenize
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from ..session import Edit
from ..usercode.holders import FUNCTIONS, Holder, NotCertain, holders, only_assignment, scope_of, stores
from ..usercode.places import short

_NOBODY = "no variable of the script holds the loader while it trains"


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
        except RecursionError:
            why = f"{short(holder.file)} is nested too deep"
        else:
            return Edit(diff=unified(before, after, short(holder.file)))
    return Edit(why_not=why)


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
    scope = scope_of(module, holder)
    statement = only_assignment(scope, holder)
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


def _is_set_before(name: str, module: ast.Module, scope: ast.AST, statement: ast.stmt) -> bool:
    """Return whether a variable has a value when the statement runs."""
    if isinstance(scope, FUNCTIONS):
        arguments = scope.args
        if name in (one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)):
            return True
        own = list(stores(scope, name))
        if own:
            return own[0].lineno < statement.lineno
        return any(True for _ in stores(module, name))
    return any(store.lineno < statement.lineno for store in stores(module, name))


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
