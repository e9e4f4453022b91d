"""What a sample costs a worker, call by call: calls are timed as they happen, and averaged by the chain's links."""

from __future__ import annotations

import functools
import inspect
import statistics
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any

import torch

from ...clock import time
from ...session import Cost, Inside, Part
from ...usercode import tree
from ...usercode.attributes import attribute, has_attribute, is_a, is_routine, unwrapped
from ...usercode.chain import Chain, decides_at_random
from ...usercode.places import code_of, link_of, origin
from ...usercode.spying import is_path

#: A transform is shown by the transforms that it runs if these take at least this share of its time.
_MADE_OF_PARTS = 0.8


@dataclass
class Timed:
    """One call: its wall and CPU seconds, its kind of input, the bytes of input and result, and its inner calls.

    ``listed`` is True if the caller holds the transform in a list.
    """

    fn: Any
    listed: bool = False
    wall: float = 0.0
    cpu: float = 0.0
    given: str = ""
    bytes_in: int = 0
    bytes_out: int = 0
    inner: list[Timed] = field(default_factory=list)


class Timer:
    """A recorder that times calls and measures data sizes outside of them. ``clock`` gives the worker's CPU seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.calls: list[Timed] = []
        self.own = 0.0  # seconds that the recorder itself took, which count for no call
        #: CPU seconds among them. Beside other processes they are fewer: reading a clock is a moment at which the
        #: system may run another process.
        self.own_cpu = 0.0

    def call(self, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        entered, entered_cpu = time.perf_counter(), self._clock()
        outer, timed = self.calls, Timed(fn, name.endswith("]") or name.isdigit())
        self.calls = timed.inner
        timed.given, timed.bytes_in = _kind(args[0]) if args else "", tree.nbytes([*args, *kwargs.values()])
        cpu, wall = self._clock(), time.perf_counter()
        self.own += wall - entered
        self.own_cpu += cpu - entered_cpu
        inside, inside_cpu = self.own, self.own_cpu
        try:
            result = fn(*args, **kwargs)
        finally:
            left, left_cpu = time.perf_counter(), self._clock()
            timed.wall = left - wall - (self.own - inside)
            timed.cpu = max(0.0, left_cpu - cpu - (self.own_cpu - inside_cpu))  # its clock may be coarser
            self.calls = outer
            outer.extend(timed.inner if is_path(args) else [timed])
        timed.bytes_out = tree.nbytes(result)
        self.own += time.perf_counter() - left
        self.own_cpu += self._clock() - left_cpu
        return result


def _kind(data: Any) -> str:
    """Return the kind of a transform's input, which determines where else the transform could run."""
    if isinstance(data, torch.Tensor):
        return "tensor"
    if has_attribute(data, "getbands"):  # Pillow's
        return "picture"
    return "array" if has_attribute(data, "__array_interface__") else type(data).__name__


@dataclass
class Sample:
    whole: Timed
    calls: list[Timed]
    nbytes: int
    count: int = 1


def costs(samples: Sequence[Sample], chain: Chain, waited: float) -> Inside:
    """Return averages per sample, by the links of ``chain`` if it is proven, else by the calls as recorded.

    The samples have waited ``waited`` seconds for a core, which depends on other processes. Of each piece of work, the
    same share of the time without a CPU is waiting for one; the rest is blocked.
    """
    count = sum(sample.count for sample in samples)
    if not count:
        return Inside(links=list(chain.links), unsplit=chain.unsplit)
    idle = sum(max(0.0, sample.whole.wall - sample.whole.cpu) for sample in samples)
    share = min(1.0, waited / idle) if idle > 0 else 0.0

    def running(cost: Cost) -> Cost:
        return Cost(round(cost.wall_ms - share * max(0.0, cost.wall_ms - cost.cpu_ms), 4), cost.cpu_ms)

    proven = bool(chain.samples)
    found: dict[Hashable, list[Timed]] = {}
    between: list[Cost] = []
    parts = _parts(call for sample in samples for call in sample.calls)
    for sample in samples:
        inside = list(_by_link(sample.calls, chain) if proven else _by_code(sample.calls, parts, _always_runs))
        for key, call in inside:
            found.setdefault(key, []).append(call)
        own, linked = _mean(sample.calls, sample.count), _mean([call for _, call in inside], sample.count)
        between.append(_less(own, linked))
    if proven:
        links = [replace(link) for link in chain.links]
        calls_of = [found.get(number, []) for number in range(len(links))]
    else:
        calls_of = list(found.values())
        links = [link_of(calls[0].fn) for calls in calls_of]
    for link, calls in zip(links, calls_of, strict=True):
        link.cost = running(_mean(calls, count))
        link.parts = _run_by(calls, parts, count)
        if calls:
            link.given = calls[0].given
            link.bytes_in = round(statistics.fmean(call.bytes_in for call in calls), 1)
            link.bytes_out = round(statistics.fmean(call.bytes_out for call in calls), 1)
    whole = _mean([s.whole for s in samples], count)
    outer = _mean([call for s in samples for call in s.calls], count)
    return Inside(
        samples=count,
        whole=running(whole),
        load=running(_less(whole, outer)),
        # Code that only passes samples on takes the same time each call, so the median excludes interruptions.
        between=running(Cost(*(statistics.median(getattr(b, f) for b in between) for f in ("wall_ms", "cpu_ms")))),
        links=links,
        sizes=[[s.nbytes / s.count, round(1000 * s.whole.wall / s.count, 4)] for s in samples],
        unsplit=chain.unsplit,
    )


def entry_of(fn: Any) -> CodeType | None:
    """Return the code that begins to run when a transform is called; None if it is no Python code."""
    while is_a(fn, functools.partial):
        fn = fn.func
    if not is_routine(fn):
        fn = type(fn).forward if is_a(fn, torch.nn.Module) else type(fn).__call__
    code: CodeType | None = attribute(unwrapped(attribute(fn, "__func__", fn)), "__code__")
    return code


def _by_link(calls: Iterable[Timed], chain: Chain) -> Iterator[tuple[int, Timed]]:
    """Yield the calls that are links, each with the link's number; inner calls of a link count for the link."""
    numbers: dict[int, list[int]] = {}
    for apart in chain.samples:
        own: dict[int, list[int]] = {}
        for call, position in zip(apart.linked.calls, apart.positions, strict=True):
            own.setdefault(id(call.fn), []).append(position)
        numbers.update(own)
    turns: dict[int, int] = {}

    def search(calls: Iterable[Timed]) -> Iterator[tuple[int, Timed]]:
        for call in calls:
            places = numbers.get(id(call.fn))
            if places is None:
                yield from search(call.inner)
                continue
            turn = turns.get(id(call.fn), 0)
            turns[id(call.fn)] = turn + 1
            yield places[min(turn, len(places) - 1)], call

    yield from search(calls)


def _run_by(calls: list[Timed], parts: Mapping[Hashable, float], count: int) -> list[Part]:
    """Return the transforms that these calls ran, if they took nearly all of the time; ``count`` samples were made.

    torch's own modules are how a transform works, not what it runs.
    """
    found: dict[Hashable, list[Timed]] = {}
    inner = [one for call in calls if _is_wrapper(call) for one in call.inner]
    for code, call in _by_code(inner, parts, opened=_is_wrapper):
        if call.inner or parts.get(code, 0.0) < _MADE_OF_PARTS:  # else a wrapper that ran nothing this time
            found.setdefault(code, []).append(call)
    taken = sum(call.wall for same in found.values() for call in same)
    if not taken or taken < _MADE_OF_PARTS * sum(call.wall for call in calls):
        return []
    if any(origin(same[0].fn).split(".")[0] == "torch" for same in found.values()):
        return []
    links = [(link_of(same[0].fn), _mean(same, count)) for same in found.values()]
    return [Part(link.name, link.where, link.origin, link.library, cost) for link, cost in links]


def _is_wrapper(call: Timed) -> bool:
    """Return whether somebody gave a transform the parts that it runs: a library's may have others as its means.

    Its functions are means, such as albumentations' ``apply``, and so is a transform that is no item of a list.
    """
    if not link_of(call.fn).library:
        return True
    given = (one for one in call.inner if one.listed and not inspect.isroutine(one.fn))
    return next(given, None) is not None or any(not link_of(one.fn).library for one in call.inner)


def _always_runs(call: Timed) -> bool:
    """Return whether a wrapper runs the same parts for every sample."""
    return _is_wrapper(call) and not decides_at_random(call.fn)


def _by_code(
    calls: Iterable[Timed], parts: Mapping[Hashable, float], opened: Callable[[Timed], bool]
) -> Iterator[tuple[Hashable, Timed]]:
    """Yield the calls with their code, or their inner calls if these take most of the time; see :func:`_parts`.

    ``opened`` says whether a call may be shown by its inner ones.
    """
    for call in calls:
        code = code_of(call.fn)
        if call.inner and parts.get(code, 0.0) >= _MADE_OF_PARTS and opened(call):
            yield from _by_code(call.inner, parts, opened)
        else:
            yield code, call


def _parts(calls: Iterable[Timed]) -> dict[Hashable, float]:
    """Return the share of the time that inner calls take, by code and over all calls: a single call may be atypical."""
    wholes: dict[Hashable, float] = {}
    inner: dict[Hashable, float] = {}
    left = list(calls)
    while left:
        call = left.pop()
        left += call.inner
        code = code_of(call.fn)
        wholes[code] = wholes.get(code, 0.0) + call.wall
        inner[code] = inner.get(code, 0.0) + sum(one.wall for one in call.inner)
    return {code: inner[code] / whole for code, whole in wholes.items() if whole > 0}


def _mean(calls: list[Timed], count: int) -> Cost:
    return Cost(
        round(1000 * sum(call.wall for call in calls) / count, 4),
        round(1000 * sum(call.cpu for call in calls) / count, 4),
    )


def _less(whole: Cost, part: Cost) -> Cost:
    """Return ``whole`` minus ``part``, at least 0, since clocks are read at slightly different moments."""
    return Cost(
        round(max(0.0, whole.wall_ms - part.wall_ms), 4),
        round(max(0.0, whole.cpu_ms - part.cpu_ms), 4),
    )
