"""Find the links of a transform chain by watching which transforms call which; prove them by replay.

A transform that holds others (a ``Compose``, an ``nn.Sequential``, any object or function with a list of callables) is
opened if its result consists of what its parts returned, passed from one to the next unchanged. Otherwise it stays one
link, with the reason.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..clock import time
from ..session import Link
from . import randomness, tree
from .attributes import attribute, is_a
from .contents import names_in
from .dissect import NotSeparable, RawSample, filled, link_unchanged, link_what_counts
from .paths import private, same
from .places import label, link_of
from .spying import Recorder, Seen, spied
from .transform_slots import Slot

#: A function that uses one of these names draws at random; if it also calls transforms, it may select among them.
_RANDOM = {
    *("random", "rand", "randint", "randrange", "randn", "randperm", "uniform", "bernoulli", "choice", "choices"),
    *("shuffle", "multinomial", "binomial", "permutation", "default_rng", "integers"),
}
#: Attempts to take a sample apart before it counts as not separable.
_TRIES = 3
_VARIES = "samples pass through different transforms"


@dataclass
class Apart:
    """A sample taken apart twice: by the dataset's own calls, and by the links inside them."""

    outer: RawSample
    linked: RawSample
    wholes: list[str]  # for each call of ``linked``, why it was not opened
    positions: list[int]  # for each call of ``linked``, the number of its link

    @property
    def signature(self) -> tuple[Any, ...]:
        return tuple(label(call.fn) for call in self.linked.calls), tuple(self.positions)

    def nbytes(self) -> int:
        shared = {id(call.args) for call in self.outer.calls}
        own = [call.arguments for call in self.linked.calls if id(call.args) not in shared]
        return self.outer.nbytes() + tree.nbytes(own)


def take_apart(make: Callable[[], Any], slots: list[Slot]) -> Apart:
    """Run ``make`` (one ``__getitem__``) with all transforms recorded, including nested ones.

    Raises:
        NotSeparable: no transform was called, or a result is not part of the sample as it is.
    """
    for _ in range(_TRIES - 1):
        try:
            return _apart(make, slots)
        except NotSeparable:  # an interruption can make a negligible call look long
            continue
    return _apart(make, slots)


def _apart(make: Callable[[], Any], slots: list[Slot]) -> Apart:
    seen, sample = _watched(make, slots)
    seen, outer = link_what_counts(seen, sample)
    leaves = [leaf for one in seen for leaf in _leaves(one)]
    try:
        linked = link_unchanged([one for one, _ in leaves], sample, any(call.mutates for call in outer.calls))
    except NotSeparable:
        leaves, linked = [(one, _untraced(one)) for one in seen], outer
    for call in linked.calls:  # equal inputs are kept once: a chain's input is also its first link's
        for other in outer.calls:
            if call is not other and same(call.arguments, other.arguments) is True:
                call.args, call.kwargs = other.args, other.kwargs
    return Apart(outer, linked, [whole for _, whole in leaves], _positions(linked))


def _watched(make: Callable[[], Any], slots: list[Slot]) -> tuple[list[Seen], Any]:
    recorder = Recorder()
    try:
        with spied(slots, recorder, deep=True):
            return recorder.seen, make()
    except Exception:
        # Some code fails if its parts are replaced. If the dataset itself fails, it fails again here.
        recorder = Recorder()
        with spied(slots, recorder):
            return recorder.seen, make()


def _leaves(one: Seen) -> Iterator[tuple[Seen, str]]:
    """Yield the calls that are links of the chain: this call, with the reason why it stays whole, or its inner ones."""
    whole = _why_whole(one)
    if whole or not one.inner:
        yield one, whole
        return
    for inner in one.inner:
        yield from _leaves(inner)


def _why_whole(one: Seen) -> str:
    """Return why a call with inner calls cannot be replaced by them, or ""."""
    if not one.inner:
        return ""
    if decides_at_random(one.call.fn):
        return "it decides at random which of its parts run"
    try:
        link_unchanged(one.inner, one.result, looked=one.looked)
    except NotSeparable:
        return _untraced(one)
    return ""


def _untraced(one: Seen) -> str:
    return "its own code changes what its parts return" if one.inner else ""


def decides_at_random(fn: Any) -> bool:
    """Return whether a transform's own code uses a name that draws from a random generator.

    A user-defined one with ``p = 1`` decides nothing.
    """
    chance = attribute(fn, "p", None)
    if is_a(chance, (int, float)) and chance == 1 and not type(fn).__module__.startswith("torchvision."):
        return False
    if is_a(fn, types.MethodType):
        fn = fn.__func__
    if not is_a(fn, types.FunctionType):
        fn = inspect.getattr_static(type(fn), "forward", None) or inspect.getattr_static(type(fn), "__call__", None)
    code = attribute(fn, "__code__", None)
    return code is not None and not _RANDOM.isdisjoint(names_in(code))


def _positions(linked: RawSample) -> list[int]:
    """Return the link number of each call: calls of one transform, for several views, share a link.

    If a call is fed by a call of a later link, the same transform occurs at several places of one chain, and every call
    is a link of its own.
    """
    order: dict[int, int] = {}
    found = [order.setdefault(id(call.fn), len(order)) for call in linked.calls]
    for number, feeds in enumerate(linked.feeds):
        if any(found[earlier] > found[number] for _, earlier, _ in feeds):
            return list(range(len(linked.calls)))
    return found


@dataclass
class Chain:
    """The links that every sample passes through; without rungs, ``samples`` is empty and ``unsplit`` says why."""

    links: list[Link] = field(default_factory=list)
    samples: list[Apart] = field(default_factory=list)
    unsplit: str = ""

    def cuts(self) -> range:
        """Return the numbers of links after which the chain can be cut."""
        return range(1, len(self.links)) if self.samples else range(0)


def chain_of(apart: Sequence[Apart]) -> Chain:
    """Return the chain that these samples have in common, proven by replaying two of them link by link."""
    first = apart[0]
    _agree_on_mutation([one.outer for one in apart])
    _agree_on_mutation([one.linked for one in apart])
    if any(one.signature != first.signature for one in apart):
        return Chain(_links(first), unsplit=_VARIES)
    chain = Chain(_links(*apart), list(apart))
    if len(chain.links) > 1 and not all(_proven(one) for one in apart[:2]):
        return Chain(chain.links, unsplit="replayed link by link, the transforms give another result")
    return chain


def _agree_on_mutation(raws: Sequence[RawSample]) -> None:
    """Mark every transform that changed an input in any sample: it may do so again in the others."""
    changing = {id(call.fn) for raw in raws for call in raw.calls if call.mutates}
    for raw in raws:
        for call in raw.calls:
            call.mutates = call.mutates or id(call.fn) in changing


def _links(first: Apart, *others: Apart) -> list[Link]:
    numbers = [first.positions.index(position) for position in range(max(first.positions) + 1)]
    wholes = [next(filter(None, (one.wholes[n] for one in (first, *others))), "") for n in numbers]
    return [link_of(first.linked.calls[number].fn, why) for number, why in zip(numbers, wholes, strict=True)]


def _proven(apart: Apart) -> bool:
    """Return whether the links give the same result as the dataset's own calls, under the same random draws."""
    with randomness.undisturbed():
        drawn = randomness.state()
        whole, _ = apart.outer.replay()
        whole = private(whole)
        randomness.restore(drawn)
        by_links, _ = apart.linked.replay()
        if same(whole, by_links) is not False:
            return True
        # A transform with its own generator gives a different result at each call in any case.
        randomness.restore(drawn)
        again, _ = apart.outer.replay()
        return same(whole, again) is False


class CutSample:
    """A sample cut after its first links: their results are kept, the rest runs again at every replay.

    A later link may write into an earlier result, possibly through a view. Once that is seen, ``copies`` is set and
    every replay gets a copy.
    """

    def __init__(self, apart: Apart, links: int) -> None:
        self._raw = apart.linked
        self._before = [n for n, position in enumerate(apart.positions) if position < links]
        self._after = [n for n, position in enumerate(apart.positions) if position >= links]
        kept = self._first_results()
        self._results = private(kept)
        before = tree.versions(kept)
        self._raw.run(self._after, dict(kept))
        self.copies = tree.versions(kept) != before or same(kept, self._results) is not True

    def _first_results(self) -> dict[int, Any]:
        """Return those results of the first links that are needed afterwards."""
        raw = self._raw
        results, _ = raw.run(self._before, {})
        fed = {earlier for n in self._after for _, earlier, _ in raw.feeds[n]}
        return {n: results[n] for n in self._before if n in fed or raw.holes[n]}

    def replay(self) -> tuple[Any, float]:
        """Return the sample made again, and the seconds spent on copying the kept results."""
        copying = 0.0
        results = dict(self._results)
        before = tree.versions(results)
        if self.copies:
            started = time.perf_counter()
            results = private(results)
            copying = time.perf_counter() - started
        results, more = self._raw.run(self._after, results)
        sample = filled(self._raw.sample, self._raw.holes, results)
        if tree.versions(self._results) != before:  # a link that writes only sometimes
            self.copies = True
            self._results = private(self._first_results())
        return sample, copying + more

    def nbytes(self) -> int:
        return tree.nbytes(self._results)
