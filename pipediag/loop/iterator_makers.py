"""Replace ``_get_iterator`` on DataLoader and on the subclasses that make iterators without calling it.

torchdata's ``StatefulDataLoader`` is such a subclass. This module does not import torch, as the first hook is installed
before the script imports it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

from ..patches import replaced

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


def _creates_iterators(method: Callable[..., Any]) -> bool:
    """Return whether a method names a class of iterators, and not another class's ``_get_iterator``.

    Ask only when the method is called: the class may be defined after it.
    """
    function = inspect.unwrap(method)
    names = function.__code__.co_names
    named = [function.__globals__.get(name) for name in names]
    kinds = {base.__name__ for one in named if isinstance(one, type) for base in one.__mro__}
    return _ITERATOR in kinds and _METHOD not in names


def _subclasses(of: type) -> set[type]:
    """Return the classes below ``of``."""
    direct: list[type] = type.__subclasses__(of)
    return {*direct, *(below for one in direct for below in _subclasses(one))}
