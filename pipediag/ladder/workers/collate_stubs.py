"""Stand in for the transforms that a collate function runs, so that collating can be measured without them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property, partial
from typing import Any

from ...usercode import tree
from ...usercode.slots import Slot, function_slots
from ...usercode.spying import Recorder, Seen, spied
from .safe_copies import SafeCopies

#: Maximum number of results that are kept.
_MOST = 32


class CollateStubs:
    """Stubs for the transforms of a collate function, which return results from earlier samples.

    True if there are any.
    """

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate
        self._results: dict[str, list[Any]] = {}  # by the name of the transform's slot
        self._recorded = False

    def __bool__(self) -> bool:
        return bool(self._results)

    @cached_property
    def _slots(self) -> list[Slot]:
        return function_slots(self._collate)

    @property
    def missing(self) -> bool:
        """True if the function may run transforms of which no results were recorded yet."""
        return bool(self._slots) and not self._recorded

    def record(self, items: list[Any], count: int, room: float) -> None:
        """Collate these samples, and keep the results of the transforms that run.

        Transforms of whole batches run again on a batch of ``count`` samples, if their results fit into ``room`` bytes.
        """
        self._recorded = True
        seen, whole = self._calls(items), count / len(items)
        if 0 < len(seen) < len(items) and whole != 1:  # it transforms batches, not samples
            fits = whole * sum(tree.nbytes(one.looked) for one in seen) < room
            copies = (tree.copied(item) for item in itertools.cycle(items))
            seen = self._calls(list(itertools.islice(copies, count))) if fits else []
        for one in seen[:_MOST]:
            self._results.setdefault(one.call.name, []).append(one.looked)

    def _calls(self, items: list[Any]) -> list[Seen]:
        """Return the transforms that the collate function calls on these samples."""
        recorder = Recorder()
        with spied(self._slots, recorder):
            self._collate(items)
        return recorder.seen

    @contextmanager
    def installed(self, copies: SafeCopies) -> Iterator[None]:
        """Replace the transforms within the context; their results pass through ``copies``."""
        with ExitStack() as stack:
            for slot in self._slots:
                if slot.name in self._results:
                    safe = partial(copies.of, kind=slot.name)
                    stack.enter_context(slot.replaced(_Stub(self._results[slot.name], safe)))
            yield


class _Stub:
    """A stand-in for a transform that returns its earlier results, passed through ``safe``."""

    def __init__(self, results: Sequence[Any], safe: Callable[[Any], Any]) -> None:
        self._results = itertools.cycle(results)
        self._safe = safe

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._safe(next(self._results))
