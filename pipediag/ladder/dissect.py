"""Taking a sample apart: what went into the transforms, and where their results sit in the sample.

One ``__getitem__`` runs with every transform spied upon. Each call's result is then looked for, by identity, in the
sample that came back. The sample with holes where results were, together with the recorded inputs, is the raw
sample: replaying it means calling the transforms on the inputs again and filling the holes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from .. import marker
from . import tree
from .paths import DEPTH, Path, follow, has_identity, parts, private, replace, same, walk
from .slots import Slot

HELP = 'mark the call whose result goes into the sample: return pipediag.stage("augment")(prepare)(raw), label'


class NotSeparable(Exception):
    """The transforms cannot be told apart from the rest of the dataset's code; the message says why."""


@dataclass
class Call:
    """One recorded call of a transform, with inputs as they were before it ran."""

    name: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    mutates: bool = False


@dataclass
class _Seen:
    """A call while it is being linked to the sample: the objects that went in and came out, and how they looked."""

    call: Call
    inputs: list[tuple[Path, Any]]
    result: Any
    looked: Any  # a private copy of the result
    outputs: list[tuple[Path, Any]]  # the result's parts, whatever is done to the result later


@dataclass
class Recorder:
    """Collects the outermost calls of spied transforms while one sample is made."""

    seen: list[_Seen] = field(default_factory=list)
    _inside: bool = False

    def call(self, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._inside:  # a transform that calls another: the outer one is the stage
            return fn(*args, **kwargs)
        self._inside = True
        try:
            inputs = _identities((args, kwargs))
            kept = private((args, kwargs))
            result = fn(*args, **kwargs)
        finally:
            self._inside = False
        if _is_path(args):  # reads a file: that is loading
            return result
        mutates = same((args, kwargs), kept) is not True
        call = Call(name, fn, kept[0], kept[1], mutates)
        self.seen.append(_Seen(call, inputs, result, private(result), _identities(result)))
        return result


class Spy:
    """Stands in for a transform while a sample is dissected; everything but calling it goes to the original."""

    def __init__(self, name: str, fn: Callable[..., Any], recorder: Recorder) -> None:
        self.__dict__.update(_name=name, _fn=fn, _recorder=recorder)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._recorder.call(self._name, self._fn, args, kwargs)

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # a dataset may ask what its transform is
        return type(self._fn)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fn, name)

    def __bool__(self) -> bool:
        return bool(self._fn)

    def __len__(self) -> int:
        return len(self._fn)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._fn)

    def __getitem__(self, key: Any) -> Any:
        return self._fn[key]


@dataclass
class RawSample:
    """A sample as it was before its transforms: replay makes it again, with fresh random draws."""

    calls: list[Call]
    sample: Any
    #: For each call: (path inside its result, path inside the sample).
    holes: list[list[tuple[Path, Path]]]
    #: For each call, the earlier calls whose results are among its arguments, as
    #: (path in (args, kwargs), number of the earlier call, path in its result).
    feeds: list[list[tuple[Path, int, Path]]]

    def replay(self) -> tuple[Any, float]:
        """The sample made again, and the seconds that copying inputs took, which are not the transforms'."""
        sample, copying = self.sample, 0.0
        results: list[Any] = []
        for call, holes, feeds in zip(self.calls, self.holes, self.feeds, strict=True):
            inputs: Any = (call.args, call.kwargs)
            if call.mutates:
                started = time.perf_counter()
                inputs = private(inputs)
                copying += time.perf_counter() - started
            for where, earlier, path in feeds:
                inputs = replace(inputs, where, follow(results[earlier], path))
            result = call.fn(*inputs[0], **inputs[1])
            results.append(result)
            for path, where in holes:
                sample = replace(sample, where, follow(result, path))
        return sample, copying

    def nbytes(self) -> int:
        """Bytes kept: the recorded inputs, and the parts of the sample that no transform makes again."""
        return tree.nbytes(self.sample) + sum(tree.nbytes((c.args, c.kwargs)) for c in self.calls)


def take_apart(make: Callable[[], Any], slots: list[Slot]) -> RawSample:
    """Run ``make`` (one ``__getitem__``) with the transforms in ``slots`` and all marked calls recorded.

    Raises:
        NotSeparable: no transform was called, or a result is not part of the sample as it is.
    """
    recorder = Recorder()
    with spied(slots, recorder):
        sample = make()
    if not recorder.seen:
        raise NotSeparable(f"no transform was found that the dataset calls; {HELP}")
    return _linked(recorder.seen, sample)


@contextmanager
def spied(slots: list[Slot], recorder: Recorder) -> Iterator[None]:
    """Every slot's transform and every marked call reports to ``recorder`` meanwhile."""
    with ExitStack() as stack:
        for slot in slots:
            stack.enter_context(slot.replaced(Spy(slot.name, slot.get(), recorder)))
        before, marker.recorder = marker.recorder, recorder
        stack.callback(setattr, marker, "recorder", before)
        yield


def _linked(seen: list[_Seen], sample: Any) -> RawSample:
    feeds = _feeds(seen)
    holes = _holes(seen, sample)
    fed = {earlier for links in feeds for _, earlier, _ in links}
    for number, one in enumerate(seen):
        if feeds[number]:  # its input is made anew at every replay, so it may be changed freely
            one.call.mutates = False
        if one.outputs and not holes[number] and number not in fed:
            raise _changed(one)
    if not any(holes):
        raise NotSeparable(f"no transform's result is found in the sample; {HELP}")
    blank: list[Path] = []
    for where in sorted((where for found in holes for _, where in found), key=len):
        if not _covered(where, blank):
            sample = replace(sample, where, None)  # what stood there is not needed any more
            blank.append(where)
    return RawSample([one.call for one in seen], sample, holes, feeds)


def _feeds(seen: list[_Seen]) -> list[list[tuple[Path, int, Path]]]:
    """For each call, which of its inputs are results of earlier ones."""
    produced: dict[int, tuple[int, Path]] = {}
    feeds: list[list[tuple[Path, int, Path]]] = []
    for number, one in enumerate(seen):
        links: list[tuple[Path, int, Path]] = []
        for where, part in one.inputs:
            if id(part) in produced and not _covered(where, [link[0] for link in links]):
                links.append((where, *produced[id(part)]))
        feeds.append(links)
        produced.update({id(part): (number, path) for path, part in one.outputs})
    return feeds


def _holes(seen: list[_Seen], sample: Any) -> list[list[tuple[Path, Path]]]:
    """For each call, which places of the sample its result fills; the last call to fill a place has it."""
    places: dict[int, list[Path]] = {}
    for path, part in _identities(sample):
        places.setdefault(id(part), []).append(path)
    holes: list[list[tuple[Path, Path]]] = []
    taken: list[Path] = []
    later: set[int] = set()
    for one in reversed(seen):
        matches = _matches(one, one.result, one.looked, (), places, later)
        found = [(path, where) for path, where in matches if not _covered(where, taken)]
        taken += [where for _, where in found]
        later |= {id(part) for _, part in one.outputs}
        holes.insert(0, found)
    return holes


def _matches(
    one: _Seen, part: Any, looked: Any, path: Path, places: dict[int, list[Path]], later: set[int]
) -> Iterator[tuple[Path, Path]]:
    """Where a part of a result sits in the sample, provided that it still is as the transform left it."""
    if has_identity(part) and id(part) in places and same(part, looked) is not False:
        yield from ((path, where) for where in places[id(part)])
        return
    inside = parts(part)
    if not inside and id(part) in places and has_identity(part) and id(part) not in later:
        raise _changed(one)
    before = dict(parts(looked))
    for step, inner in inside:
        if step in before and len(path) < DEPTH:
            yield from _matches(one, inner, before[step], (*path, step), places, later)


def _changed(one: _Seen) -> NotSeparable:
    return NotSeparable(
        f"the result of {one.call.name} is changed after the call, so it is not found in the sample; {HELP}"
    )


def _identities(obj: Any) -> list[tuple[Path, Any]]:
    """The parts that can be recognised again, with the way to each; holding them keeps their identities unique."""
    return [(path, part) for path, part in walk(obj) if has_identity(part)]


def _covered(path: Path, outer: list[Path]) -> bool:
    """Whether ``path`` is, or lies inside, one of ``outer``."""
    return any(path[: len(o)] == o for o in outer)


def _is_path(args: tuple[Any, ...]) -> bool:
    return bool(args) and isinstance(args[0], (str, os.PathLike)) and os.path.exists(args[0])
