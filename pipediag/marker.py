"""Implement ``pipediag.stage``, which marks a call inside ``__getitem__`` that pipediag cannot find by itself.

Outside an analysis each call costs one global look-up.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")


class CallRecorder(Protocol):
    def call(self, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...


#: The active recorder in a worker that dissects a sample; otherwise None.
recorder: CallRecorder | None = None


def stage(name: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Mark a function as one stage of making a sample.

    Use it if a report says that the transforms are "not separable": put the work between the raw data and the value
    that ``__getitem__`` returns into one function, and call it through the marker::

        def __getitem__(self, index):
            raw = read(self.paths[index])
            return pipediag.stage("augment")(self.prepare)(raw), self.labels[index]

    It is also a decorator. The returned sample must contain the marked function's result unchanged; pipediag caches the
    function's arguments.
    """

    def mark(fn: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(fn)
        def marked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            if recorder is None:
                return fn(*args, **kwargs)
            return recorder.call(name, fn, args, kwargs)  # type: ignore[no-any-return]

        return marked

    return mark
