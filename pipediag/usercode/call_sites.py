"""Pass the calls at a line of the user's code through a function of ours, wherever the called functions come from.

The line's file is compiled again with its calls and arithmetic rewritten: ``f(x)`` becomes ``through(f, x)``, and
``a * b`` becomes ``through(mul, a, b)``. All else stays as it is, lines included. A function is left alone unless its
running code is what its file gives without that change. Names need not be found: an alias, a method of a compiled
object and a function made on the spot are called by the same text.
"""

from __future__ import annotations

import ast
import functools
import gc
import itertools
import linecache
import operator
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ..patches import live
from .attributes import is_a
from .places import short

#: Stands in compiled code for the function that calls pass through, and with a name for a function of an operator.
_THROUGH = "<pipediag passes this call through>"
_OPERATORS: dict[str, Callable[..., Any]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mult": operator.mul,
    "Div": operator.truediv,
    "FloorDiv": operator.floordiv,
    "Mod": operator.mod,
    "Pow": operator.pow,
    "MatMult": operator.matmul,
}
#: Number of classes inside each other that are looked into.
_DEPTH = 3
#: Functions that look at the frame that calls them.
_OF_FRAMES = frozenset({"super", "locals", "globals", "vars", "dir", "eval", "exec", "breakpoint", "__import__"})


class NoCalls(Exception):
    """Error: the calls at a line cannot be passed through a function; the message says why."""


class CallSites:
    """The calls at the line ``where``, as ``file:line``.

    Raises:
        NoCalls: there are none, or the running code is not that of the file.
    """

    def __init__(self, where: str, through: Callable[..., Any]) -> None:
        file, _, line = where.rpartition(":")
        codes = dict[CodeType, CodeType]()
        self._where = where
        self._codes = list[tuple[FunctionType, CodeType, CodeType]]()
        for one in {id(one): one for one in _functions(file)}.values():
            code = one.__code__
            if code in codes or _holds(code, int(line)):
                codes[code] = codes.get(code) or _rewritten(code, int(line), through)
                self._codes.append((one, code, codes[code]))
        if not codes:
            raise NoCalls("its function is not found")

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Pass the calls through within the context."""
        with live(f"the calls at {self._where}"):
            try:
                for function, _, code in self._codes:
                    function.__code__ = code
                yield
            finally:
                for function, before, code in self._codes:
                    if function.__code__ is code:
                        function.__code__ = before


def _functions(file: str) -> Iterator[FunctionType]:
    """Yield the functions of a file; of those that ``gc.freeze()`` has hidden, the ones of its module and classes."""
    named = functools.cache(short)
    spaces = [vars(one) for one in [*sys.modules.values()] if is_a(one, ModuleType)] if gc.get_freeze_count() else []
    hidden = (_in_namespace(space, _DEPTH) for space in spaces if named(str(space.get("__file__"))) == file)
    for one in itertools.chain(gc.get_objects(), *hidden):
        if type(one) is FunctionType and named(one.__code__.co_filename) == file:
            yield one


def _in_namespace(names: Mapping[str, Any], depth: int) -> Iterator[Any]:
    for value in [*names.values()]:
        if is_a(value, type) and depth:
            yield from _in_namespace(vars(value), depth - 1)
        value = value.fget if is_a(value, property) else value
        value = value.__func__ if is_a(value, (staticmethod, classmethod)) else value
        while type(value) is FunctionType:
            yield value
            value = vars(value).get("__wrapped__")


def _holds(code: CodeType, line: int) -> bool:
    """Return whether a line belongs to code or to the code inside it."""
    if code.co_firstlineno > line:
        return False
    own = any(number == line for _, _, number in code.co_lines())
    return own or any(_holds(one, line) for one in _inside(code))


def _inside(code: CodeType) -> list[CodeType]:
    return [one for one in code.co_consts if isinstance(one, CodeType)]


def _rewritten(running: CodeType, line: int, through: Callable[..., Any]) -> CodeType:
    path = running.co_filename
    source = "".join(linecache.getlines(path))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a text is called
            tree = ast.parse(source, path)
            plain = compile(tree, path, "exec", dont_inherit=True)
            passing = _Passing(line)
            changed = compile(passing.visit(tree), path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise NoCalls(f"its file cannot be compiled: {error}") from None
    if not passing.count:
        raise NoCalls("it calls nothing")
    for before, after in _pairs(plain, changed):
        if _alike(before, running) and after.co_freevars == running.co_freevars:
            return _filled_in(after, through)
    raise NoCalls("its code is not that of its file")


class _Passing(ast.NodeTransformer):
    """Rewrites the calls and the arithmetic of a line."""

    def __init__(self, line: int) -> None:
        self._line = line
        self.count = 0

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if node.lineno != self._line or getattr(node.func, "id", "") in _OF_FRAMES:
            return node
        return self._passed(node, node.func, node.args, node.keywords)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        name, sides = type(node.op).__name__, [node.left, node.right]
        if node.lineno != self._line or name not in _OPERATORS or all(isinstance(one, ast.Constant) for one in sides):
            return node
        return self._passed(node, ast.Constant(_THROUGH + name), sides, [])

    def _passed(self, node: ast.expr, called: ast.expr, args: list[ast.expr], keywords: list[ast.keyword]) -> ast.AST:
        self.count += 1
        call = ast.Call(ast.Constant(_THROUGH), [called, *args], keywords)
        return ast.fix_missing_locations(ast.copy_location(call, node))


def _pairs(one: CodeType, other: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Yield the code of each function of a module, from two compilations of it."""
    yield one, other
    for inner, twin in zip(_inside(one), _inside(other), strict=True):
        yield from _pairs(inner, twin)


def _alike(one: CodeType, other: CodeType) -> bool:
    """Return whether two code objects do the same at the same lines."""
    facts = ("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_firstlineno", "co_name")
    if any(getattr(one, fact) != getattr(other, fact) for fact in facts) or len(one.co_consts) != len(other.co_consts):
        return False
    return all(
        _alike(a, b) if isinstance(a, CodeType) and isinstance(b, CodeType) else repr(a) == repr(b)
        for a, b in zip(one.co_consts, other.co_consts, strict=True)
    )


def _filled_in(code: CodeType, through: Callable[..., Any]) -> CodeType:
    """Return code with the functions themselves in place of what stands for them."""

    def filled(constant: Any) -> Any:
        if isinstance(constant, CodeType):
            return _filled_in(constant, through)
        if isinstance(constant, str) and constant.startswith(_THROUGH):
            return _OPERATORS[constant[len(_THROUGH) :]] if constant != _THROUGH else through
        return constant

    return code.replace(co_consts=tuple(map(filled, code.co_consts)))
