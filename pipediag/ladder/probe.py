"""What one sample costs a worker, call by call: timed while the dataset's own code runs, with nothing cached."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..session import Cost, Inside, Link
from . import tree
from .chain import Chain, decides_at_random
from .places import label, places_of
from .slots import Slot
from .spying import is_path, spied

#: Samples that are timed, and seconds that this may take.
TIMED, _SECONDS = 32, 2.0
#: A transform whose parts take at least this share of its time is shown by its parts, where no chain is proven.
_MADE_OF_PARTS = 0.8


@dataclass
class _Timed:
    """One call, its wall and CPU seconds, and the calls inside it."""

    fn: Any
    wall: float = 0.0
    cpu: float = 0.0
    inner: list[_Timed] = field(default_factory=list)


class Timer:
    """A recorder that only times. ``clock`` gives CPU seconds of the worker."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.calls: list[_Timed] = []

    def call(self, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        outer, timed = self.calls, _Timed(fn)
        self.calls = timed.inner
        cpu, wall = self._clock(), time.perf_counter()
        try:
            return fn(*args, **kwargs)
        finally:
            timed.wall, timed.cpu = time.perf_counter() - wall, self._clock() - cpu
            self.calls = outer
            outer.extend(timed.inner if is_path(args) else [timed])


@dataclass
class _Sample:
    whole: _Timed
    calls: list[_Timed]
    nbytes: int


class Probe:
    """Times samples one by one, as they are made, and sums the figures up."""

    def __init__(self, slots: list[Slot], clock: Callable[[], float], most: int = TIMED) -> None:
        self._most = most
        self._slots = slots
        self._clock = clock
        self._samples: list[_Sample] = []
        self._spent = 0.0

    @property
    def complete(self) -> bool:
        return len(self._samples) >= self._most or self._spent > _SECONDS

    def time(self, make: Callable[[], Any]) -> Any:
        """Make one sample, and take its times down."""
        timer = Timer(self._clock)
        with spied(self._slots, timer, deep=True):
            cpu, wall = self._clock(), time.perf_counter()
            sample = make()
            whole = _Timed(None, time.perf_counter() - wall, self._clock() - cpu)
        self._spent += whole.wall
        self._samples.append(_Sample(whole, timer.calls, tree.nbytes(sample)))
        return sample

    def figures(self, chain: Chain | None = None) -> Inside:
        """Averages for each sample, by the links of ``chain`` where it is proven, else by the calls as they came."""
        count = len(self._samples)
        if not count:
            return Inside(links=list(chain.links) if chain else [], unsplit=chain.unsplit if chain else "")
        proven = chain is not None and bool(chain.samples)
        found: dict[Hashable, list[_Timed]] = {}
        between: list[Cost] = []
        for sample in self._samples:
            inside = list(_by_link(sample.calls, chain) if chain and proven else _by_name(sample.calls))
            for key, call in inside:
                found.setdefault(key, []).append(call)
            between.append(_less(_mean(sample.calls, 1), [_mean([call for _, call in inside], 1)]))
        if chain and proven:
            links = [Link(link.name, link.where, whole=link.whole) for link in chain.links]
            costs = [_mean(found.get(number, []), count) for number in range(len(links))]
        else:
            places = places_of([calls[0].fn for calls in found.values()])
            links = [Link(place.name, place.where) for place in places]
            costs = [_mean(calls, count) for calls in found.values()]
        for link, cost in zip(links, costs, strict=True):
            link.cost = cost
        whole = _mean([s.whole for s in self._samples], count)
        outer = _mean([call for s in self._samples for call in s.calls], count)
        return Inside(
            samples=count,
            whole=whole,
            load=_less(whole, [outer]),
            # Code that only hands samples on takes the same each time, so the median keeps interruptions out.
            between=Cost(*(statistics.median(getattr(b, f) for b in between) for f in ("wall_ms", "cpu_ms"))),
            links=links,
            sizes=[[float(s.nbytes), round(1000 * s.whole.wall, 4)] for s in self._samples],
            unsplit=chain.unsplit if chain else "",
        )


def _by_link(calls: Iterable[_Timed], chain: Chain) -> Iterator[tuple[int, _Timed]]:
    """The calls that are links, each with the link's number; what such a call calls is inside its time."""
    numbers: dict[int, list[int]] = {}
    for apart in chain.samples:
        own: dict[int, list[int]] = {}
        for call, position in zip(apart.linked.calls, apart.positions, strict=True):
            own.setdefault(id(call.fn), []).append(position)
        numbers.update(own)
    turns: dict[int, int] = {}

    def search(calls: Iterable[_Timed]) -> Iterator[tuple[int, _Timed]]:
        for call in calls:
            places = numbers.get(id(call.fn))
            if places is None:
                yield from search(call.inner)
                continue
            turn = turns.get(id(call.fn), 0)
            turns[id(call.fn)] = turn + 1
            yield places[min(turn, len(places) - 1)], call

    yield from search(calls)


def _by_name(calls: Iterable[_Timed]) -> Iterator[tuple[str, _Timed]]:
    for call in calls:
        parts = sum(inner.wall for inner in call.inner)
        if call.inner and parts >= _MADE_OF_PARTS * call.wall and not decides_at_random(call.fn):
            yield from _by_name(call.inner)
        else:
            yield label(call.fn), call


def _mean(calls: list[_Timed], count: int) -> Cost:
    return Cost(
        round(1000 * sum(call.wall for call in calls) / count, 4),
        round(1000 * sum(call.cpu for call in calls) / count, 4),
    )


def _less(whole: Cost, parts: list[Cost]) -> Cost:
    """What is left of ``whole``; never below nothing, since clocks are read at slightly different moments."""
    return Cost(
        round(max(0.0, whole.wall_ms - sum(part.wall_ms for part in parts)), 4),
        round(max(0.0, whole.cpu_ms - sum(part.cpu_ms for part in parts)), 4),
    )
