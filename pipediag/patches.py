"""Replace attributes of other people's classes and modules, and hold hooks on them, within a context.

Others patch the same attributes, in any order. So a replacement is a layer: it takes back only itself, and never what
somebody else has put there since. A layer that cannot be taken out, because somebody has wrapped it, calls what it
replaced from then on.

Every global patch of pipediag is listed in :data:`LIVE`, so that one check sees them all: it is empty whenever no
analysis and no remedy is running.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from types import FunctionType, ModuleType
from typing import Any, Protocol

#: What is patched or hooked now, as text.
LIVE: list[str] = []
#: Held while attributes are swapped, in any thread. A fork leaves it free in the child.
SWAPPING = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=SWAPPING.acquire, after_in_parent=SWAPPING.release, after_in_child=SWAPPING.release)


class Handle(Protocol):
    """What torch returns for a registered hook."""

    def remove(self) -> None: ...


class _Layer:
    """State of one replacement: what it replaced, and whether it has ended."""

    def __init__(self, below: Any) -> None:
        self.below = below
        self.over = False
        self.call: Callable[[], Any] = lambda: None

    def function(self, stand_in: FunctionType) -> Callable[..., Any]:
        """Return a function that calls ``stand_in`` until the layer ends, and then what it replaced."""

        @wraps(stand_in)
        def call(*args: Any, **kwargs: Any) -> Any:
            return (self.below if self.over else stand_in)(*args, **kwargs)

        call._layer = self  # type: ignore[attr-defined]
        self.call = weakref.ref(call)  # no cycle: what the stand-in holds is freed once the layer is taken out
        return call


def alive(value: Any) -> Any:
    """Return an attribute's value without the layers on top of it that have ended."""
    return beneath(value, only_over=True)


def beneath(value: Any, only_over: bool = False) -> Any:
    """Return an attribute's value without the layers on top of it, or ``only_over``: without those that have ended."""
    while type(value) is FunctionType:
        layer = vars(value).get("_layer")
        if not isinstance(layer, _Layer) or layer.call() is not value:  # functools.wraps copies it
            break
        if only_over and not layer.over:
            break
        value = layer.below
    return value


def is_native(function: Any, owner: Any) -> bool:
    """Return whether the function's code is in the package of its owner, a class or module."""
    package = sys.modules[getattr(owner, "__module__", owner.__name__).partition(".")[0]]
    code = getattr(function, "__code__", None)
    return code is not None and code.co_filename.startswith(os.path.dirname(package.__file__ or "") + os.sep)


def preceded(function: Callable[..., Any], action: Callable[[Any], None]) -> Callable[..., Any]:
    """Return a method that calls ``action`` with its object first."""

    @wraps(function)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        action(self)
        return function(self, *args, **kwargs)

    return call


@contextmanager
def replaced(owner: Any, name: str, stand_in: Any) -> Iterator[None]:
    """Replace an attribute of a class or module within the context; an inherited one is shadowed.

    Whoever replaces it meanwhile keeps his replacement. If that calls ``stand_in``, a function, it reaches the original
    after the context.
    """
    with SWAPPING:
        own = name in vars(owner)
        native = alive(vars(owner).get(name))
        layer = _Layer(native if own else getattr(owner, name, None))
        inserted = layer.function(stand_in) if type(stand_in) is FunctionType and callable(layer.below) else stand_in
        setattr(owner, name, inserted)
    with live(f"{owner!r}.{name}"):
        try:
            yield
        finally:
            with SWAPPING:
                layer.over = True
                if vars(owner).get(name) is inserted:
                    if own:
                        setattr(owner, name, alive(native))
                    else:
                        delattr(owner, name)


@contextmanager
def hooked(handle: Handle) -> Iterator[None]:
    """Keep a hook of torch's registered within the context."""
    with live(repr(handle)):
        try:
            yield
        finally:
            handle.remove()


@contextmanager
def live(what: str) -> Iterator[None]:
    """List ``what`` as patched within the context, for a module that patches in its own way."""
    LIVE.append(what)
    try:
        yield
    finally:
        LIVE.remove(what)


@contextmanager
def when_imported(name: str, action: Callable[[ModuleType], None]) -> Iterator[None]:
    """Call ``action`` with the module right after its first import, or now if it is already imported."""
    if name in sys.modules:
        action(sys.modules[name])
        yield
        return
    finder = _Finder(name, action)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, action: Callable[[ModuleType], None]) -> None:
        self._name, self._action = name, action
        self._pid = os.getpid()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name or os.getpid() != self._pid:
            return None
        # Only those after this one: another of these finders may wait for the same module.
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self._action)
                return spec
        return None


class _Loader(importlib.abc.Loader):
    """A loader that runs the module through its own loader, restores that loader, and calls ``action``."""

    def __init__(self, own: Any, action: Callable[[ModuleType], None]) -> None:
        self._own, self._action = own, action

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._own.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._own
        if module.__spec__ is not None:
            module.__spec__.loader = self._own
        self._own.exec_module(module)
        self._action(module)
