"""Edit a script's text mechanically: the edits common to all tools, and those that their documentation asks for."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

#: The import for the end of a run; the tools see no other sign of its length.
CLOCK = "from time import monotonic"


@dataclass(frozen=True)
class Edited:
    """An edited script, and the size of the edit: new lines, and lines that are only indented."""

    source: str
    added: int = 0
    indented: int = 0


@dataclass(frozen=True)
class _Loop:
    """The loop that trains, the loops around it in the same function (outermost first), and the model's name."""

    inner: ast.For
    around: tuple[ast.For | ast.While, ...]
    step: ast.stmt
    model: str

    @property
    def outermost(self) -> ast.For | ast.While:
        return (*self.around, self.inner)[0]


def bring_compute_into_model(source: str) -> str:
    """Return the script with the stand-in for the model's work moved into the model's forward pass.

    The cases' scripts sleep, burn or multiply matrices next to a tiny model, to take as long as a device would. In a
    real script that time passes in forward and backward. Tools that bracket these calls would misattribute work outside
    them: gpuprof, for example, counts everything between ``optimizer.step()`` and the next forward pass as waiting for
    the loader. So all tools get this form.
    """
    loop = _training_loop(source)
    block = _stand_in(loop)
    if not block:
        return source
    lines = source.splitlines()
    first, last = block[0].lineno - 1, (block[-1].end_lineno or block[-1].lineno)
    moved = [line[block[0].col_offset :] for line in lines[first:last]]
    del lines[first:last]
    margin = " " * loop.outermost.col_offset
    hook = ["", "", "def work_on_device(module, inputs, output):", *(f"    {line}" for line in moved), "", ""]
    hook.append(f"{loop.model}.register_forward_hook(work_on_device)")
    at = loop.outermost.lineno - 1
    lines[at:at] = [f"{margin}{line}".rstrip() for line in hook]
    return "\n".join(lines) + "\n"


def end_after(source: str, seconds: float) -> str:
    """Return the script with an end to its loops after ``seconds`` of training."""
    loop = _training_loop(source)
    lines = source.splitlines()
    for statement in (*loop.around, loop.inner):  # from the last line up, so that line numbers stay valid
        margin = " " * statement.body[0].col_offset
        end = statement.end_lineno or statement.lineno
        lines[end:end] = [f"{margin}if monotonic() > until:", f"{margin}    break"]
    at = loop.outermost.lineno - 1
    lines.insert(at, " " * loop.outermost.col_offset + f"until = monotonic() + {seconds:g}")
    return _with_import(lines, CLOCK)


def for_traceml(source: str) -> Edited:
    """Return the script edited as in traceml-ai's quickstart: import, ``init``, and the step under ``trace_step``."""
    loop = _training_loop(source)
    lines = source.splitlines()
    first, last = loop.inner.body[0].lineno - 1, loop.inner.end_lineno or loop.inner.lineno
    margin = " " * loop.inner.body[0].col_offset
    body = _indent(lines[first:last])
    lines[first:last] = [f"{margin}with traceml.trace_step({loop.model}):", *body]
    # At the loop, not at the top: spawned workers import the script.
    lines.insert(loop.outermost.lineno - 1, " " * loop.outermost.col_offset + 'traceml.init(mode="auto")')
    return Edited(_with_import(lines, "import traceml_ai as traceml"), 3, len(body))


def for_gpuprof(source: str, cuda: bool) -> Edited:
    """Return the script edited as in gpuprof's quickstart: import, and the loop under ``profile``.

    ``cuda`` adds the option that its GPU example has.
    """
    loop = _training_loop(source)
    lines = source.splitlines()
    first, last = loop.outermost.lineno - 1, loop.outermost.end_lineno or loop.outermost.lineno
    body = _indent(lines[first:last])
    call = 'gpuprof.profile("train", cuda=True)' if cuda else 'gpuprof.profile("train")'
    lines[first:last] = [" " * loop.outermost.col_offset + f"with {call}:", *body]
    return Edited(_with_import(lines, "import gpuprof"), 2, len(body))


def _training_loop(source: str) -> _Loop:
    tree = ast.parse(source)
    for loops in _loops(tree, ()):
        inner = loops[-1]
        step = next((s for s in inner.body if _calls_method(s, "step")), None)
        if isinstance(inner, ast.For) and step is not None:
            return _Loop(inner, loops[:-1], step, _model(tree))
    raise ValueError("the script has no loop with optimizer.step() in it")


def _loops(node: ast.AST, around: tuple[ast.For | ast.While, ...]) -> Iterator[tuple[ast.For | ast.While, ...]]:
    """Yield every loop with the loops around it in the same function."""
    for child in ast.iter_child_nodes(node):
        inside = around
        if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
            inside = ()
        elif isinstance(child, (ast.For, ast.While)):
            inside = (*around, child)
            yield inside
        yield from _loops(child, inside)


def _calls_method(statement: ast.stmt, name: str) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and isinstance(statement.value.func, ast.Attribute)
        and statement.value.func.attr == name
    )


def _model(tree: ast.AST) -> str:
    """Return the variable whose parameters the optimizer gets."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "parameters" and isinstance(node.value, ast.Name):
            return node.value.id
    raise ValueError("the script gives no model's parameters to an optimizer")


def _stand_in(loop: _Loop) -> list[ast.stmt]:
    """Return the statements of the loop's body that only pass a device's time: they use nothing that the loop makes."""
    body = loop.inner.body
    at = body.index(loop.step) + 1
    made = _names([loop.inner.target, *body[:at]], ast.Store)
    if body[at:] and not made & _names(body[at:], ast.Load):
        return body[at:]
    for number in range(at):  # on a GPU: products of ``hidden``, before the model's own work
        block = body[number : number + 2]
        if ast.unparse(block[0]) == "hidden = weights" and "hidden @ weights" in ast.unparse(block[-1]):
            return block
    return []


def _names(nodes: Sequence[ast.AST], context: type[ast.expr_context]) -> set[str]:
    """Return the variables that are set, or read, in the nodes."""
    found = (node for outer in nodes for node in ast.walk(outer))
    return {node.id for node in found if isinstance(node, ast.Name) and isinstance(node.ctx, context)}


def _with_import(lines: list[str], line: str) -> str:
    """Return the text with an import after the imports at the top."""
    tree = ast.parse("\n".join(lines))
    last = max(s.end_lineno or s.lineno for s in tree.body if isinstance(s, (ast.Import, ast.ImportFrom)))
    return "\n".join([*lines[:last], line, *lines[last:]]) + "\n"


def _indent(lines: list[str]) -> list[str]:
    return [f"    {line}" if line else line for line in lines]
