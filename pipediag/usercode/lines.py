"""Name what runs: a line's place, its text, what it calls at that moment, and the functions of libraries below it."""

from __future__ import annotations

import dis
import functools
import itertools
import linecache
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any

from ..frames import in_package
from .attributes import attribute, is_a
from .places import short

_IN_BRACKETS = re.compile(r"\([^()]*\)|\[[^\[\]]*\]")
_CALLED = re.compile(r"[A-Za-z_][\w.\0\1]*(?=\0)")
#: The end of the name of a comprehension or a lambda inside a function, and the beginning of that of a local function.
_IN_FUNCTION = re.compile(r"((\.<locals>)?\.?<(?!locals)\w+>)+$|^.*<locals>\.(?!<)")
#: Functions that take no time, or say little about a line: it is not named by them.
_TRIFLES = ("len", "isinstance", "range", "int", "float", "bool", "ord", "chr", "abs", "max", "min", "round")
#: Maximum number of characters of a name.
_LONG = 40


@dataclass(frozen=True)
class Line:
    """A line of code; ``calls`` names what it calls or which item it takes, or is its text if it does neither."""

    where: str
    text: str
    calls: str
    function: str


def line_at(code: CodeType, instruction: int) -> Line:
    """Return the line of an instruction, as ``frame.f_lasti`` gives it."""
    first, last, begin, end = _position(code, instruction)
    lines = [linecache.getline(code.co_filename, number) for number in range(first, last + 1)]
    text = expression = lines[0].strip()
    if end is not None:  # in bytes of UTF-8
        lines[-1] = lines[-1].encode()[:end].decode(errors="ignore")
        lines[0] = lines[0].encode()[begin:].decode(errors="ignore")
        expression = "".join(map(str.strip, lines))
        if last > first and expression.startswith(("for ", "while ", "if ", "with ")):
            expression = text  # a whole statement: what stands in it has lines of its own
    name = _called_first(expression) if end is None or expression.endswith(")") else ""
    if name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
        name = ""  # a variable, such as that of a loop over functions
    if end is not None and (expression.endswith("]") or _is_operation(code, instruction)):
        name = expression
    function = function_around(getattr(code, "co_qualname", code.co_name))
    name = _cut(name, in_brackets=True) or (function if text.startswith("def ") else "")
    return Line(f"{short(code.co_filename)}:{first}", text, name or _cut(text.removesuffix(":")), function)


def begins(code: CodeType, instruction: int) -> bool:
    """Return whether a function has only begun, or a generator gone on: the time before was its caller's."""
    return instruction >= 0 and dis.opname[code.co_code[instruction]] == "RESUME"


def begin_of_line(code: CodeType, instruction: int) -> int:
    """Return the first instruction of the line that an instruction belongs to: it says nothing about what is called."""
    starts = {line: begin for begin, _, line in reversed([*code.co_lines()]) if line and begin <= instruction}
    return starts.get(_position(code, instruction)[0], instruction)


def function_around(name: str) -> str:
    """Return the function that code of this full name belongs to: a lambda or comprehension has no name of its own."""
    return _IN_FUNCTION.sub("", name) or ("a lambda" if name.endswith("<lambda>") else name)


def described_line(text: str, function: str, where: str) -> Line:
    """Return a line of which only the text is known, and the function that it belongs to."""
    return Line(where, text, _cut(_called_first(text), in_brackets=True) or _cut(text.removesuffix(":")), function)


def _called_first(expression: str) -> str:
    """Return what an expression calls first; "" if the line itself takes the time, not what it calls to begin with."""
    name = called(expression)
    return "" if expression.startswith(("for ", "while ")) or name in _TRIFLES else name


def function_of(code: CodeType) -> str:
    """Return the full name of a library's function: ``soundfile.SoundFile.read``; no class before Python 3.11.

    Empty for what Python itself runs, such as the import system: it has no file.
    """
    if code.co_filename.startswith("<frozen "):
        return ""
    module = os.path.splitext(in_package(code.co_filename))[0].replace("\\", "/").removesuffix("/__init__")
    function = getattr(code, "co_qualname", code.co_name).rpartition("<locals>.")[2]
    return ".".join(filter(None, (*module.split("/"), function)))


def compiled_function(name: str, scope: Mapping[str, Any]) -> str:
    """Return the full name of a library's compiled function that code calls by ``name``: ``cv2.imread``.

    It has no frame of its own. ``scope`` are the code's globals; a module that they lack may be imported in a function.
    Empty for functions of Python's own, for functions with a frame, and for what only the running code knows.
    """
    first, *rest = name.split(".")
    found, module = scope.get(first, sys.modules.get(first)), ""
    for part in rest:
        if not isinstance(found, ModuleType):
            return ""
        module, found = found.__name__, vars(found).get(part)
    if is_a(found, functools.partial):
        found, module = found.func, ""
    if not callable(found) or isinstance(found, type):
        return ""
    if any(attribute(one, "__code__") is not None for one in (found, type(found).__call__)):
        return ""
    module = module or attribute(found, "__module__") or ""
    named = attribute(found, "__name__", name.rpartition(".")[2])
    return f"{module}.{named}" if module and module != "builtins" else ""


def called(expression: str) -> str:
    """Return what an expression calls first: ``Image.open(...).convert``; empty if it calls nothing."""
    text, before = expression, ""
    while text != before:
        before, text = text, _IN_BRACKETS.sub(lambda found: "\0" if found[0][0] == "(" else "\1", text)
    found = _CALLED.search(text)
    return found[0].replace("\0", "(...)").replace("\1", "[...]") if found else ""


def _is_operation(code: CodeType, instruction: int) -> bool:
    """Return whether an instruction computes with an operator, such as a product of matrices.

    Not if it only decides on a loop's jump back: there the interpreter lets others run, after all that the loop does.
    """
    this, *then = (dis.opname[one] for one in code.co_code[instruction::2])
    jumps_back = "BACKWARD" in next((name for name in then if name != "CACHE"), "")
    return this.startswith(("BINARY_", "INPLACE_", "COMPARE_", "UNARY_")) and not jumps_back


def _cut(name: str, in_brackets: bool = False) -> str:
    """Leave out the end of what is too long, but what is ``in_brackets`` first."""
    before = ""
    while in_brackets and len(name) > _LONG and name != before:
        before = name
        name = _IN_BRACKETS.sub(lambda found: "\2" if found[0][0] == "(" else "\3", name)
    name = name.replace("\2", "(...)").replace("\3", "[...]")
    return name if len(name) <= _LONG else f"{name[: _LONG - 3].rstrip()}..."


def _position(code: CodeType, instruction: int) -> tuple[int, int, int | None, int | None]:
    """Return first and last line of the expression that an instruction belongs to, and its columns if known.

    A jump back to the beginning of a loop may have no line: it counts for the line that it jumps to.
    """
    first = next((line for begin, end, line in code.co_lines() if line and begin <= instruction < end), None)
    if hasattr(code, "co_positions"):  # from Python 3.11 on
        found = next(itertools.islice(code.co_positions(), max(0, instruction) // 2, None), (None,) * 4)
        line, last, begin, end = found
        if line is not None and last is not None:
            return line, last, begin, end
    if not first:
        jumps = (one for one in dis.get_instructions(code) if one.offset == instruction and one.opcode in dis.hasjrel)
        target = next((one.argval for one in jumps), None)
        if target is not None and target != instruction:
            return _position(code, target)
    first = first or code.co_firstlineno
    return first, first, None, None
