"""Build the iterators of DataLoader, which is how pipediag enters a loop, and look into them.

``_get_iterator`` is replaced on DataLoader and on the subclasses that make iterators without calling it, such as
torchdata's ``StatefulDataLoader``. This module does not import torch, which the script imports after the first hook.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from types import FunctionType
from typing import TYPE_CHECKING, Any, Generic

from ..frames import is_ours, is_torchs, is_users
from ..patches import beneath, replaced

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

#: ``_get_iterator`` of the class that makes the loader's iterators, or an earlier replacement of it.
NativeIterator = Callable[[Any], Any]


class IteratorHook:
    """A hook that lets ``build(loader, native)`` return the iterators of this process's DataLoaders.

    A forked process inherits the hook, which is without effect there.
    """

    def __init__(self, build: Callable[[DataLoader[Any], NativeIterator], Any]) -> None:
        self._build = build
        self._aside = False
        self._process = os.getpid()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Hook DataLoader and its subclasses within the context."""

        def hooked(maker: type[DataLoader[Any]]) -> NativeIterator:
            native: NativeIterator = maker._get_iterator
            return lambda loader: self.iterator(loader, native)

        with get_iterator_replaced(torchs_loader(), hooked):
            yield

    def iterator(self, loader: DataLoader[Any], native: NativeIterator) -> Any:
        """Return what ``iter(loader)`` is to return."""
        inactive = self._aside or os.getpid() != self._process
        return native(loader) if inactive else self._build(loader, native)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Exclude loaders iterated within the context: they are not the script's."""
        self._aside = True
        try:
            yield
        finally:
            self._aside = False


def queued(iterator: Any) -> int:
    """Return how many batches of a DataLoader's iterator are finished but not taken yet, as far as this is visible.

    They are in the result queue, or arrived out of order and are kept by torch with their tasks.
    """
    tasks = getattr(iterator, "_task_info", None) or {}
    early = sum(1 for task in list(tasks.values()) if len(task) == 2)
    try:
        return early + int(iterator._data_queue.qsize())
    except (AttributeError, NotImplementedError):  # no workers; or macOS, where a process queue cannot be counted
        return early


DATALOADER = "torch.utils.data.dataloader"


def torchs_loader() -> Any:
    """Return torch's class DataLoader: a script may have put a class or function of its own under that name."""
    named = sys.modules[DATALOADER].DataLoader
    known = [*getattr(named, "__mro__", ()), *Generic.__subclasses__()]
    return next(one for one in known if (one.__module__, one.__name__) == (DATALOADER, "DataLoader"))


@contextmanager
def torchs_loader_named() -> Iterator[None]:
    """Let modules that are imported within the context find torch's class under its name."""
    loader = torchs_loader()
    with ExitStack() as stack:
        for module in filter(None, map(sys.modules.get, (DATALOADER, "torch.utils.data"))):
            if getattr(module, "DataLoader", loader) is not loader:
                stack.enter_context(replaced(module, "DataLoader", loader))
        yield


_METHOD = "_get_iterator"
_ITERATOR = "_BaseDataLoaderIter"


@contextmanager
def get_iterator_replaced(loader_class: type, stand_in: Callable[[type], Callable[[Any], Any]]) -> Iterator[None]:
    """Replace the method by ``stand_in(maker)`` on every ``maker`` of iterators within the context.

    Makers are DataLoader, given as ``loader_class``, and its subclasses with a method that creates an iterator itself,
    including subclasses that are defined within the context.
    """
    with ExitStack() as patches:

        def patch(subclass: type) -> None:
            native = vars(subclass).get(_METHOD)
            if inspect.isfunction(native):
                stood_in = stand_in(subclass)

                @wraps(native)
                def get_iterator(loader: Any) -> Any:
                    return (stood_in if _creates_iterators(native) else native)(loader)

                patches.enter_context(replaced(subclass, _METHOD, get_iterator))

        patches.enter_context(replaced(loader_class, _METHOD, stand_in(loader_class)))
        for subclass in _subclasses(loader_class):
            patch(subclass)

        @classmethod  # type: ignore[misc]
        def defined(subclass: type, **options: Any) -> None:
            super(loader_class, subclass).__init_subclass__(**options)  # type: ignore[arg-type]
            patch(subclass)

        patches.enter_context(replaced(loader_class, "__init_subclass__", defined))
        yield


def maker_of(loader: Any) -> type:
    """Return the class, of the loader's classes, that makes its iterators."""
    return next(cls for cls in type(loader).__mro__ if _METHOD in vars(cls))


def foreign_method(loader: Any, around: bool = False) -> str:
    """Return which method of torch's, on a batch's way out of the loader, is not torch's own code; empty if none is.

    A subclass or a patch may change what the iterators give, or how they ask the workers for it. ``around`` includes a
    subclass's ``__iter__``, which gets the batches of torch's.
    """
    if _METHOD in vars(loader):
        return f"its own {_METHOD}"
    for owner, name, file in _methods(loader, around):
        if not (is_torchs(file) or is_ours(file)):
            return f"{owner.__name__.rpartition('.')[2]}.{name}"
    return ""


def is_iterated_by_script(loader: Any) -> bool:
    """Return whether code of the script's gets what the workers send: its own class of iterators, or its patch of
    torch's."""
    passed_on = not _creates_iterators(beneath(vars(maker_of(loader))[_METHOD]))
    return any(is_users(file) and not (passed_on and name == _METHOD) for _, name, file in _methods(loader))


def _methods(loader: Any, around: bool = False) -> Iterator[tuple[Any, str, str]]:
    """Yield the methods of torch's on a batch's way out of the loader: owner, name and the file of the present code."""
    from torch.utils.data import _utils, dataloader

    iterate = [cls for cls in type(loader).__mro__ if around and "__iter__" in vars(cls)]
    classes = (
        *(getattr(dataloader, f"_{kind}DataLoaderIter") for kind in ("Base", "SingleProcess", "MultiProcessing")),
        *(getattr(_utils.fetch, f"_{kind}DatasetFetcher") for kind in ("Map", "Iterable")),
    )
    parts = [(maker_of(loader), _METHOD), *((cls, "__iter__") for cls in (torchs_loader(), *iterate))]
    parts += [(cls, name) for cls in classes for name, value in vars(cls).items() if type(value) is FunctionType]
    for owner, name in (*parts, (_utils.worker, "_worker_loop"), (_utils.pin_memory, "pin_memory")):
        yield owner, name, getattr(getattr(beneath(vars(owner)[name]), "__code__", None), "co_filename", "")


def _creates_iterators(method: Callable[..., Any]) -> bool:
    """Return whether a method names a class of iterators, and not another class's ``_get_iterator``.

    Ask only when the method is called: the class may be defined after it.
    """
    function = inspect.unwrap(method)
    names = function.__code__.co_names
    named = [function.__globals__.get(name) for name in names]
    kinds = {base.__name__ for one in named if isinstance(one, type) for base in one.__mro__}
    return _ITERATOR in kinds and _METHOD not in names


def _subclasses(of: type) -> list[type]:
    """Return every class below, once."""
    direct: list[type] = type.__subclasses__(of)
    return list({id(one): one for above in direct for one in (above, *_subclasses(above))}.values())
