"""Find the loop of a script that trains without a torch DataLoader, and give it its batches through a loader.

The script, and the modules beside it, are compiled so that the iterables of ``for`` statements and the iterators of
``next()`` are watched; lines stay where they are. The loop that trains is the one whose iterator lives on from one
optimizer step to the next and yields arrays in between, in the thread that steps; of several, the one that yields last
before the step. From its next batch on it draws from :func:`~pipediag.loop.iterables.loader_over`, which is measured
like any DataLoader. torch is not imported here, since the script imports it after this.
"""

from __future__ import annotations

import ast
import builtins
import importlib.machinery
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import get_ident
from types import CodeType
from typing import Any
from weakref import WeakKeyDictionary

from ..frames import is_users
from ..loop.iterators import DATALOADER, is_iterated_by_script, torchs_loader
from ..patches import replaced
from ..usercode.attributes import has_attribute

#: Number of optimizer steps that an iterator's items lead to before its loop is taken to be the one that trains.
_EVIDENCE = 3
#: Names by which watched code calls this module.
_EACH, _NEXT = "__pipediag_each__", "__pipediag_next__"
#: Functions that pass the items of their first argument on, or of all arguments, beside something of their own: a count
#: that a script stops at, or a bar.
_PASSING, _PASSING_ALL = ("enumerate", "tqdm", "track", "islice"), ("zip",)
#: Methods that a model's compiler may trace.
_TRACED = ("forward",)


class _Marked(ast.NodeTransformer):
    """Pass the iterables of ``for`` statements and the iterators of ``next()`` through the watching functions."""

    def __init__(self, tree: ast.AST, path: str) -> None:
        self._path = path
        nodes = [*ast.walk(tree)]
        named = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
        named |= {getattr(node, "name", getattr(node, "arg", "")) for node in nodes}
        self._owns_next = "next" in named  # a name of the script's

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node if node.name in _TRACED else self.generic_visit(node)

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        node.iter = self._watched(node.iter)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if getattr(node.func, "id", "") == "next" and not self._owns_next:
            node.func = ast.copy_location(ast.Name(_NEXT, ast.Load()), node.func)
            node.args.insert(0, ast.copy_location(self._place(node), node.func))
        return node

    def _watched(self, iterable: ast.expr) -> ast.expr:
        if isinstance(iterable, ast.Call) and iterable.args and not isinstance(iterable.args[0], ast.Starred):
            name = getattr(iterable.func, "id", getattr(iterable.func, "attr", ""))
            if name in _PASSING or name in _PASSING_ALL:
                number = 1 if name in _PASSING else len(iterable.args)
                iterable.args[:number] = [self._watched(one) for one in iterable.args[:number]]
                return iterable
        if isinstance(iterable, ast.Starred):
            return iterable
        call = ast.Call(ast.Name(_EACH, ast.Load()), [self._place(iterable), iterable], [])
        return ast.fix_missing_locations(ast.copy_location(call, iterable))

    def _place(self, node: ast.expr) -> ast.expr:
        return ast.Constant(f"{self._path}:{node.lineno}:{node.col_offset}")


def marked(source: str | bytes, path: str) -> CodeType:
    """Compile a module's source with its loops watched, unless it is nested deeper than a visitor of it can go.

    Raises:
        SyntaxError: as for the source itself.
    """
    tree = compile(source, path, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    try:
        return compile(_Marked(tree, path).visit(tree), path, "exec", dont_inherit=True)
    except RecursionError:
        return compile(source, path, "exec", dont_inherit=True)


class _Stream:
    """One iterator that a loop of the script draws from."""

    def __init__(self, loops: OwnLoops, place: str) -> None:
        self.place = place
        self.steps = 0  # optimizer steps that its items have led to
        self.item: Any = None  # the latest, until the next optimizer step
        self.begun = False  # as the loop that trains
        self._loops = loops
        self._measured: _Measured | None = None

    def leave(self) -> None:
        """Give up the measured loader; the rest of the iterator's items, if any are asked for, come as they are."""
        self._measured = None

    def after(self, iterator: Iterator[Any]) -> Any:
        """Return the next item of ``iterator``, from a measured loader if this is the loop that trains."""
        if self._loops.place is not None:
            if self._measured is None and self._loops.begins(self):
                self._measured = _Measured(iterator)
            return next(self._measured or iterator)
        self.item = next(iterator)
        self._loops.drew(self)
        return self.item


class _Measured:
    """An iterator's items as a measured loader gives them, and as many as without pipediag."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        from ..loop.iterables import loader_over

        self._loader = loader_over(iterator)
        self._batches = iter(self._loader)
        self._handed, self._latest = 0, None

    def __next__(self) -> Any:
        """Return the next batch.

        A measured epoch may end before this iterator does, with the batches that an earlier one had left: then another
        epoch begins. And between rungs some batches are dropped. A loop that asks for a certain number must not miss
        them at the end, so it gets its latest batch again.
        """
        try:
            self._latest = self._next()
        except StopIteration:
            if self._handed >= self._loader.dataset.drawn:
                raise
        self._handed += 1
        return self._latest

    def _next(self) -> Any:
        try:
            return next(self._batches)
        except StopIteration:
            if self._loader.dataset.over:
                raise
        self._batches = iter(self._loader)
        return next(self._batches)


class _Watched:
    """The iterator of a ``for`` statement."""

    def __init__(self, stream: _Stream, iterable: Iterable[Any]) -> None:
        self._stream, self._iterator = stream, iter(iterable)

    def __iter__(self) -> _Watched:
        return self

    def __next__(self) -> Any:
        return self._stream.after(self._iterator)


class _Sized(_Watched):
    """The same for an iterable with a length, which a progress bar asks for."""

    def __init__(self, stream: _Stream, iterable: Any) -> None:
        super().__init__(stream, iterable)
        self._length = len(iterable)

    def __len__(self) -> int:
        return self._length


class OwnLoops:
    """The loops of one script."""

    def __init__(self) -> None:
        #: File, line and column of the iterable or ``next()`` of the loop that trains, once it is known.
        self.place: str | None = None
        self._process = os.getpid()
        self._latest: _Stream | None = None  # that is measured
        self._drawn: dict[int, dict[_Stream, None]] = {}  # since the latest optimizer step, by thread, in order
        self._iterators: WeakKeyDictionary[Any, _Stream] = WeakKeyDictionary()  # of next()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Compile the user's modules with their loops watched, within the context."""
        loader = importlib.machinery.SourceFileLoader
        native = loader.get_code

        def get_code(self: importlib.machinery.SourceFileLoader, name: str) -> CodeType | None:
            path = self.get_filename(name)
            return marked(self.get_data(path), path) if is_users(os.path.abspath(path)) else native(self, name)

        vars(builtins).update({_EACH: self._each, _NEXT: self._next})
        try:
            with replaced(loader, "get_code", get_code):
                yield
        finally:
            # Watched code may still run; it then gets what it would without pipediag.
            vars(builtins).update({_EACH: lambda place, iterable: iterable, _NEXT: lambda place, *words: next(*words)})

    def begins(self, stream: _Stream) -> bool:
        """Return whether the loop that trains begins with this stream's items, now or in a new epoch."""
        if stream.place != self.place or stream.begun:
            return False
        if self._latest is not None:  # it has been left, perhaps before its end
            self._latest.leave()
        self._latest = stream
        stream.begun = True
        return True

    def drew(self, stream: _Stream) -> None:
        drawn = self._drawn.setdefault(get_ident(), {})
        drawn.pop(stream, None)
        drawn[stream] = None

    def stepped(self) -> None:
        """Note an optimizer step, and choose the loop that trains if it is known now."""
        if self.place is not None:
            return
        mine = self._drawn.pop(get_ident(), {})
        for stream in mine:
            stream.steps += 1
        known = [stream for stream in mine if stream.steps >= _EVIDENCE and _is_batch(stream.item)]
        for stream in mine:
            stream.item = None
        if known:
            self.place = known[-1].place
            self._drawn.clear()

    def _each(self, place: str, iterable: Any) -> Any:
        if self._is_unwatched(place) or _is_torchs(iterable):
            return iterable
        return (_Sized if has_attribute(type(iterable), "__len__") else _Watched)(_Stream(self, place), iterable)

    def _next(self, place: str, iterator: Any, *default: Any) -> Any:
        if self._is_unwatched(place) or isinstance(iterator, _Watched) or _is_torchs(iterator):
            return next(iterator, *default)
        try:
            stream = self._iterators.get(iterator)
            if stream is None:
                stream = self._iterators[iterator] = _Stream(self, place)
        except TypeError:  # no weak reference to it, or no hash
            return next(iterator, *default)
        try:
            return stream.after(iterator)
        except StopIteration:
            if default:
                return default[0]
            raise

    def _is_unwatched(self, place: str) -> bool:
        return (self.place is not None and place != self.place) or os.getpid() != self._process


def _is_torchs(obj: Any) -> bool:
    """Return whether an object is a DataLoader that is measured as such, or an iterator of torch's."""
    if (data := sys.modules.get(DATALOADER)) is None:
        return False
    if isinstance(obj, torchs_loader()):
        return not is_iterated_by_script(obj)
    return isinstance(obj, data._BaseDataLoaderIter) and not is_users(type(obj).__next__.__code__.co_filename)


def _is_batch(item: Any) -> bool:
    """Return whether an item holds arrays that are not parameters of a model."""
    import numpy as np
    import torch

    from ..usercode.tree import leaves, tensors

    arrays = any(isinstance(leaf, np.ndarray) for leaf in leaves(item))
    return arrays or any(not isinstance(one, torch.nn.Parameter) for one in tensors(item))
