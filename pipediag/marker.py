"""``pipediag.stage``: marking a call inside ``__getitem__`` that pipediag cannot find by itself.

Pure Python and next to free outside an analysis: one global look-up per call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")


class CallRecorder(Protocol):
    def call(self, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...


#: Set while a sample is being dissected, in the worker that does it.
recorder: CallRecorder | None = None


def stage(name: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Mark a function as one stage of making a sample.

    Use it where a report says that the transforms are "not separable": put the work between the raw data and the
    value that ``__getitem__`` returns into one function, and call it through the marker::

        def __getitem__(self, index):
            raw = read(self.paths[index])
            return pipediag.stage("augment")(self.prepare)(raw), self.labels[index]

    It also serves as a decorator. The marked function's result has to be part of the returned sample as it is;
    its arguments are what gets cached.
    """

    def mark(fn: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(fn)
        def marked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            if recorder is None:
                return fn(*args, **kwargs)
            return recorder.call(name, fn, args, kwargs)  # type: ignore[no-any-return]

        return marked

    return mark
