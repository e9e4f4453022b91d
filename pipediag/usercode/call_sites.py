"""Pass calls in the user's code through a function of ours: those at a line, or those of the function around it.

The line's file is compiled again with its calls and operators rewritten: ``f(x)`` becomes ``through(f, x)``, ``a * b``
becomes ``through(mul, a, b)``, and ``a[i]`` becomes ``through(getitem, a, i)``. All else and the lines stay.
A function is left alone unless its running code is what its file gives without that change. Names need not be found: an
alias, a method of a compiled object and a function made on the spot are called by the same text.

The function around a line gets code that only calls ``through(f, ...)``, where ``f`` is what it was.
"""

from __future__ import annotations

import ast
import functools
import gc
import inspect
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
_IN_PLACE, _ITEM, _SLICE = _THROUGH + " in place ", _THROUGH + " item", _THROUGH + " slice"
_BINARY = {
    "Add": "add",
    "Sub": "sub",
    "Mult": "mul",
    "Div": "truediv",
    "FloorDiv": "floordiv",
    "Mod": "mod",
    "Pow": "pow",
    "MatMult": "matmul",
    "BitAnd": "and_",
    "BitOr": "or_",
    "BitXor": "xor",
}
_COMPARED = {"Lt": "lt", "LtE": "le", "Gt": "gt", "GtE": "ge", "Eq": "eq", "NotEq": "ne"}
_OPERATORS: dict[str, Any] = {
    **{_THROUGH + kind: getattr(operator, name) for kind, name in {**_BINARY, **_COMPARED}.items()},
    **{_IN_PLACE + kind: getattr(operator, f"i{name.rstrip('_')}") for kind, name in _BINARY.items()},
    _ITEM: operator.getitem,
    _SLICE: slice,
}
_FUNCTION = "<pipediag passes this function on>"
#: Number of classes inside each other that are looked into.
_DEPTH = 3
#: Functions that look at the frame that calls them.
_OF_FRAMES = frozenset({"super", "locals", "globals", "vars", "dir", "eval", "exec", "breakpoint", "__import__"})


class NoCalls(Exception):
    """Error: the calls at a line cannot be passed through a function; the message says why."""


class CallSites:
    """The calls at the line ``where``, as ``file:line``, or with ``file:line()`` those of the function around it.

    Raises:
        NoCalls: there are none, or the running code is not that of the file.
    """

    def __init__(self, where: str, through: Callable[..., Any]) -> None:
        file, _, number = where.removesuffix("()").rpartition(":")
        line, codes = int(number), dict[CodeType, CodeType]()
        self._where = where
        self._codes = list[tuple[FunctionType, CodeType, CodeType]]()
        for one in {id(one): one for one in _functions(file)}.values():
            code = one.__code__
            if where.endswith("()") and _is_around(code, line):
                self._codes.append((one, code, _passed_on(one, through)))
            elif not where.endswith("()") and (code in codes or _holds(code, line)):
                codes[code] = codes.get(code) or _rewritten(code, line, through)
                self._codes.append((one, code, codes[code]))
        if not self._codes:
            raise NoCalls("its function is not found")
        function = self._codes[0][0]
        text = "\n" * (line - 1) + "lambda fn, args, kwargs: fn(*args, **kwargs)"
        made = eval(compile(text, function.__code__.co_filename, "eval", dont_inherit=True))
        #: Calls ``fn(*args, **kwargs)`` as the line does: what it warns of, or raises, is there.
        self.call: Callable[..., Any] = FunctionType(made.__code__.replace(co_name=_THROUGH), function.__globals__)

    @contextmanager
    def installed(self) -> Iterator[None]:
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
        ours = type(one) is not FunctionType or one.__code__.co_name == _THROUGH
        if not ours and named(one.__code__.co_filename) == file:
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


def _is_around(code: CodeType, line: int) -> bool:
    """Return whether a line belongs to a function itself, or to its comprehensions and lambdas."""
    if code.co_firstlineno > line or code.co_name.startswith("<"):
        return False
    parts = [code, *(one for one in _inside(code) if one.co_name.startswith("<"))]
    return any(number == line for part in parts for _, _, number in part.co_lines())


def _passed_on(function: FunctionType, through: Callable[..., Any]) -> CodeType:
    """Return code for a function that passes its calls through, with what it was."""
    code = function.__code__
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        raise NoCalls("it is a generator")
    was = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    was.__kwdefaults__, was.__qualname__ = function.__kwdefaults__, function.__qualname__
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text = f"lambda *args, **kwargs: {_THROUGH!r}({_FUNCTION!r}, *args, **kwargs)"
        passing: CodeType = eval(text).__code__
    return _filled_in(passing, {_THROUGH: through, _FUNCTION: was}).replace(co_freevars=code.co_freevars)


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
    except (SyntaxError, ValueError, RecursionError) as error:
        raise NoCalls(f"its file cannot be compiled: {error}") from None
    if not passing.count:
        raise NoCalls("it calls nothing")
    for before, after in _pairs(plain, changed):
        if _alike(before, running) and after.co_freevars == running.co_freevars:
            return _filled_in(after, {_THROUGH: through, **_OPERATORS})
    raise NoCalls("its code is not that of its file")


class _Passing(ast.NodeTransformer):
    """Rewrites the calls and operators of a line."""

    def __init__(self, line: int) -> None:
        self._line = line
        self.count = 0

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if node.lineno != self._line or getattr(node.func, "id", "") in _OF_FRAMES:
            return node
        return self._passed(node, node.func, node.args, node.keywords)

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        self.generic_visit(node)
        sides = [node.left, node.right]
        if all(isinstance(one, ast.Constant) for one in sides):
            return node
        return self._computed(node, _THROUGH + type(node.op).__name__, sides)

    def visit_Compare(self, node: ast.Compare) -> Any:
        self.generic_visit(node)
        if len(node.ops) > 1:
            return node
        return self._computed(node, _THROUGH + type(node.ops[0]).__name__, [node.left, *node.comparators])

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        self.generic_visit(node)
        if not isinstance(node.target, ast.Name):
            return node
        sides = [ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target), node.value]
        value = self._computed(node, _IN_PLACE + type(node.op).__name__, sides)
        return value if value is node else ast.copy_location(ast.Assign([node.target], value), node)

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load):
            return node
        index = node.slice
        if isinstance(index, ast.Tuple):
            index = ast.copy_location(ast.Tuple([*map(_as_call, index.elts)], ast.Load()), index)
        return self._computed(node, _ITEM, [node.value, _as_call(index)])

    def _computed(self, node: Any, function: str, values: list[ast.expr]) -> Any:
        if node.lineno != self._line or function not in _OPERATORS:
            return node
        return self._passed(node, ast.Constant(function), values, [])

    def _passed(self, node: ast.expr, called: ast.expr, args: list[ast.expr], keywords: list[ast.keyword]) -> ast.AST:
        self.count += 1
        call = ast.Call(ast.Constant(_THROUGH), [called, *args], keywords)
        return ast.fix_missing_locations(ast.copy_location(call, node))


def _as_call(index: ast.expr) -> ast.expr:
    """Return an index without the form that stands in brackets only."""
    if not isinstance(index, ast.Slice):
        return index
    ends = [one or ast.Constant(None) for one in (index.lower, index.upper, index.step)]
    return ast.copy_location(ast.Call(ast.Constant(_SLICE), ends, []), index)


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


def _filled_in(code: CodeType, functions: Mapping[str, Any]) -> CodeType:
    """Return code with the functions themselves in place of what stands for them."""

    def filled(constant: Any) -> Any:
        if isinstance(constant, CodeType):
            return _filled_in(constant, functions)
        return functions.get(constant, constant) if isinstance(constant, str) else constant

    return code.replace(co_consts=tuple(map(filled, code.co_consts)))
