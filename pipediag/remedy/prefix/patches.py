"""Standing in for modules' forwards, for the thread that asked for it and as long as it asks.

A forward is replaced in the module's own ``__dict__``, where torch's modules look first; the code of the model stays as
it is, and its hooks run. Other threads that call the module meanwhile get the forward itself.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from torch import nn


class Run(Protocol):
    """What decides about the calls in its thread."""

    def called(self, patch: Patch, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make the result of a call, by ``patch.original`` or otherwise."""


class _Active(threading.local):
    run: Run | None = None


_active = _Active()
_lock = threading.RLock()
_ABSENT = object()
_patches: weakref.WeakKeyDictionary[nn.Module, Patch] = weakref.WeakKeyDictionary()


class Patch:
    """Stands in for the forward of one module, while it is installed."""

    def __init__(self, module: nn.Module) -> None:
        self._module = weakref.ref(module)
        self._attributes = vars(module)
        self._users = 0
        self._slot = "forward"
        self._kept: Any = _ABSENT

    @property
    def module(self) -> nn.Module:
        module = self._module()
        assert module is not None, "a module is alive while it is called"
        return module

    @property
    def original(self) -> Callable[..., Any]:
        """What it stands in for."""
        # Another thread may have looked this up just before it was removed: then it is in its place again.
        for own in (self._kept, self._attributes.get(self._slot, _ABSENT)):
            if own is not _ABSENT and own is not self:
                return own  # type: ignore[no-any-return]
        module = self.module
        found = next(vars(cls)[self._slot] for cls in type(module).__mro__ if self._slot in vars(cls))
        try:
            return found.__get__(module, type(module))  # type: ignore[no-any-return]
        except AttributeError:  # scripted modules look it up in this way
            return module.__getattr__(self._slot)  # type: ignore[no-any-return]

    __wrapped__ = original  # for those who ask for its signature

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        run = _active.run
        return self.original(*args, **kwargs) if run is None else run.called(self, args, kwargs)

    def install(self) -> None:
        self._users += 1
        if self._users == 1:
            attributes = self._attributes
            # A module compiled in place is called by this in place of its forward.
            self._slot = "forward" if attributes.get("_compiled_call_impl") is None else "_compiled_call_impl"
            self._kept = attributes.get(self._slot, _ABSENT)
            attributes[self._slot] = self

    def remove(self) -> None:
        self._users -= 1
        if self._users == 0:
            if self._kept is _ABSENT:
                del self._attributes[self._slot]
            else:
                self._attributes[self._slot] = self._kept
                self._kept = _ABSENT


def patch_for(module: nn.Module) -> Patch:
    """The one patch that there is for a module."""
    with _lock:
        if module not in _patches:
            _patches[module] = Patch(module)
        return _patches[module]


@contextmanager
def running(run: Run, patches: Iterable[Patch]) -> Iterator[None]:
    """``run`` decides about the calls of these modules in this thread; also inside another run, until it ends."""
    installed: list[Patch] = []
    outer = _active.run
    try:
        with _lock:
            for patch in patches:
                patch.install()
                installed.append(patch)
        _active.run = run
        yield
    finally:
        _active.run = outer
        with _lock:
            for patch in reversed(installed):
                patch.remove()
