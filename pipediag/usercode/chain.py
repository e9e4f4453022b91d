"""The links of a transform chain: found by watching which transforms call which, proven by replaying them.

A transform that holds others (a ``Compose``, an ``nn.Sequential``, any object or function with a list of callables) is
opened when its result consists of what its parts returned, handed on from one to the next untouched. What is not so
stays one link, with the reason.
"""

from __future__ import annotations

import inspect
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..session import Link
from . import randomness, tree
from .dissect import NotSeparable, RawSample, changed_between, link, link_what_counts
from .paths import private, same
from .places import label, origin, places_of
from .slots import Slot, names_in
from .spying import Recorder, Seen, spied

#: A function that uses one of these names draws at random; when it also calls transforms, which ones may vary.
_RANDOM = {
    *("random", "rand", "randint", "randrange", "randn", "randperm", "uniform", "bernoulli", "choice", "choices"),
    *("shuffle", "multinomial", "binomial", "permutation", "default_rng", "integers"),
}
#: How often a sample is taken apart before it is taken not to be separable.
_TRIES = 3
_VARIES = "samples pass through different transforms"


#: A call that is one link of the chain, and why it was not opened, where it calls further transforms.
_Leaf = tuple[Seen, str]


@dataclass
class Apart:
    """One sample taken apart twice: by the dataset's own calls, and by the links inside them."""

    outer: RawSample
    linked: RawSample
    wholes: list[str]  # for each call of ``linked``, why it was not opened
    positions: list[int]  # for each call of ``linked``, the number of the link that it is a call of

    @property
    def signature(self) -> tuple[Any, ...]:
        return tuple(label(call.fn) for call in self.linked.calls), tuple(self.positions)

    def nbytes(self) -> int:
        shared = {id(call.args) for call in self.outer.calls}
        own = [(call.args, call.kwargs) for call in self.linked.calls if id(call.args) not in shared]
        return self.outer.nbytes() + tree.nbytes(own)


def take_apart(make: Callable[[], Any], slots: list[Slot]) -> Apart:
    """Run ``make`` (one ``__getitem__``) with all transforms recorded, those inside other transforms included.

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
        calls = [one for one, _ in leaves]
        linked = link(calls, sample, any(call.mutates for call in outer.calls))
        if changed_between(calls, linked) is not None:
            raise NotSeparable("changed between two links")
    except NotSeparable:
        leaves, linked = [(one, _untraced(one)) for one in seen], outer
    _share_inputs(outer, linked)
    return Apart(outer, linked, [whole for _, whole in leaves], _positions(linked))


def _share_inputs(outer: RawSample, linked: RawSample) -> None:
    """What goes into a chain goes into its first link: kept once."""
    for call in linked.calls:
        for other in outer.calls:
            if call is not other and same((call.args, call.kwargs), (other.args, other.kwargs)) is True:
                call.args, call.kwargs = other.args, other.kwargs


def _watched(make: Callable[[], Any], slots: list[Slot]) -> tuple[list[Seen], Any]:
    recorder = Recorder()
    try:
        with spied(slots, recorder, deep=True):
            return recorder.seen, make()
    except Exception:
        # Some code minds its parts being replaced. Where it is the dataset that fails, it fails again.
        recorder = Recorder()
        with spied(slots, recorder):
            return recorder.seen, make()


def _leaves(one: Seen) -> Iterator[_Leaf]:
    """The links inside a call: itself, or those of the calls that it is made of."""
    whole = _why_whole(one) if one.inner else ""
    if whole or not one.inner:
        yield one, whole
        return
    for inner in one.inner:
        yield from _leaves(inner)


def _why_whole(one: Seen) -> str:
    """Why a call cannot be replaced by the calls inside it; empty when it can."""
    if decides_at_random(one.call.fn):
        return "it decides at random which of its parts run"
    try:
        made_of = link(one.inner, one.result, looked=one.looked)
    except NotSeparable:
        return _untraced(one)
    return _untraced(one) if changed_between(one.inner, made_of) is not None else ""


def _untraced(one: Seen) -> str:
    return "its own code changes what its parts return" if one.inner else ""


def decides_at_random(fn: Any) -> bool:
    """Whether a transform's own code draws at random. A user's own with ``p = 1`` has nothing to decide."""
    chance = getattr(fn, "p", None)
    if isinstance(chance, (int, float)) and chance == 1 and not type(fn).__module__.startswith("torchvision."):
        return False
    if isinstance(fn, types.MethodType):
        fn = fn.__func__
    if not isinstance(fn, types.FunctionType):
        fn = inspect.getattr_static(type(fn), "forward", None) or inspect.getattr_static(type(fn), "__call__", None)
    code = getattr(fn, "__code__", None)
    return code is not None and not _RANDOM.isdisjoint(names_in(code))


def _positions(linked: RawSample) -> list[int]:
    """Which link each call belongs to: calls of one transform, for several views, belong together.

    Unless a call is fed by that of a later link: then the same transform stands at several places of one chain, and
    every call is a link of its own.
    """
    order: dict[int, int] = {}
    found = [order.setdefault(id(call.fn), len(order)) for call in linked.calls]
    for number, feeds in enumerate(linked.feeds):
        if any(found[earlier] > found[number] for _, earlier, _ in feeds):
            return list(range(len(linked.calls)))
    return found


@dataclass
class Chain:
    """The links that every sample passes through; without samples when they have no rungs, ``unsplit`` saying why."""

    links: list[Link] = field(default_factory=list)
    samples: list[Apart] = field(default_factory=list)
    unsplit: str = ""

    def cuts(self) -> range:
        """After how many links the chain can be cut."""
        return range(1, len(self.links)) if self.samples else range(0)


def chain_of(apart: Sequence[Apart]) -> Chain:
    """The chain that these samples have in common, proven by replaying two of them link by link."""
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
    """A transform that was seen to change its input once may do so again, whatever it did to the other samples."""
    changing = {id(call.fn) for raw in raws for call in raw.calls if call.mutates}
    for raw in raws:
        for call in raw.calls:
            call.mutates = call.mutates or id(call.fn) in changing


def _links(first: Apart, *others: Apart) -> list[Link]:
    numbers = [first.positions.index(position) for position in range(max(first.positions) + 1)]
    links = [first.linked.calls[number].fn for number in numbers]
    places = places_of(links)
    wholes = [next(filter(None, (one.wholes[n] for one in (first, *others))), "") for n in numbers]
    return [
        Link(place.name, place.where, whole=why, origin=origin(fn))
        for fn, place, why in zip(links, places, wholes, strict=True)
    ]


def _proven(apart: Apart) -> bool:
    """Whether the links give what the dataset's own calls give, under the same random draws."""
    with randomness.undisturbed():
        drawn = randomness.state()
        whole, _ = apart.outer.replay()
        whole = private(whole)
        randomness.restore(drawn)
        by_links, _ = apart.linked.replay()
        if same(whole, by_links) is not False:
            return True
        # A transform with a generator of its own gives another result each time, however it is called.
        randomness.restore(drawn)
        again, _ = apart.outer.replay()
        return same(whole, again) is False


class CutSample:
    """A sample with its first links behind it: their results are kept, the rest is run anew at every replay.

    A later link may write into what an earlier one returned, be it through a view of it; then every replay gets a
    copy. ``copies`` is set when that was seen.
    """

    def __init__(self, apart: Apart, links: int) -> None:
        self._raw = apart.linked
        self._before = [n for n, position in enumerate(apart.positions) if position < links]
        self._after = [n for n, position in enumerate(apart.positions) if position >= links]
        kept = self._first_results()
        self._results = private(kept)
        before = _versions(kept)
        self._raw.run(self._after, dict(kept))
        self.copies = _versions(kept) != before or same(kept, self._results) is not True

    def _first_results(self) -> dict[int, Any]:
        """What the first links return, as far as it is needed afterwards."""
        raw = self._raw
        results, _ = raw.run(self._before, {})
        fed = {earlier for n in self._after for _, earlier, _ in raw.feeds[n]}
        return {n: results[n] for n in self._before if n in fed or raw.holes[n]}

    def replay(self) -> tuple[Any, float]:
        """The sample made again, and the seconds that copying the kept results took."""
        copying = 0.0
        results = dict(self._results)
        before = _versions(results)
        if self.copies:
            started = time.perf_counter()
            results = private(results)
            copying = time.perf_counter() - started
        results, more = self._raw.run(self._after, results)
        sample = self._raw.filled(results)
        if _versions(self._results) != before:  # a link that writes once in a while
            self.copies = True
            self._results = private(self._first_results())
        return sample, copying + more

    def nbytes(self) -> int:
        return tree.nbytes(list(self._results.values()))


def _versions(results: Mapping[int, Any]) -> tuple[int, ...]:
    """The change counters of all tensors among the results."""
    return tree.versions(list(results.values()))
