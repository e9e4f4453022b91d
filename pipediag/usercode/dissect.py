"""Take a sample apart: record the inputs of its transforms, and locate their results in the sample.

One ``__getitem__`` runs with every transform recorded. Each call's result is then searched for, by identity, in the
returned sample. The raw sample consists of the sample with holes in place of the results, and the recorded inputs: a
replay calls the transforms on the inputs again and fills the holes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..clock import time
from . import tree
from .attributes import is_a
from .paths import DEPTH, Path, follow, has_identity, parts, private, replace, same, walk
from .spying import Call, Seen, identities

HELP = 'mark the call whose result goes into the sample: return pipediag.stage("augment")(prepare)(raw), label'

#: A call shorter than this share of the transforms' time, or than these seconds, may count as loading.
_NEGLIGIBLE, _INSTANT = 0.02, 50e-6
#: Where a call's result is in the sample: (path inside the result, path inside the sample).
Hole = tuple[Path, Path]
#: Where an earlier call's result is among a call's arguments:
#: (path in (args, kwargs), number of the earlier call, path in its result).
Feed = tuple[Path, int, Path]
#: By the number of the call.
Results = Mapping[int, Any] | Sequence[Any]


class NotSeparable(Exception):
    """Error: the transforms cannot be separated from the dataset's other code; the message says why."""


@dataclass
class RawSample:
    """A sample before its transforms: a replay makes it again, with fresh random draws."""

    calls: list[Call]
    sample: Any
    holes: list[list[Hole]]  # for each call
    feeds: list[list[Feed]]  # for each call

    def replay(self) -> tuple[Any, float]:
        """Return the sample made again, and the seconds of copying inputs, which do not count for the transforms."""
        results, copying = self.run(range(len(self.calls)), {})
        return filled(self.sample, self.holes, results), copying

    def run(self, numbers: Collection[int], results: dict[int, Any]) -> tuple[dict[int, Any], float]:
        """Return ``results`` with those of the calls ``numbers`` added, and the seconds spent on copying inputs."""
        copying = 0.0
        for number in numbers:
            call = self.calls[number]
            inputs: Any = call.arguments
            if call.mutates:
                started = time.perf_counter()
                inputs = private(inputs)
                copying += time.perf_counter() - started
            args, kwargs = with_feeds(inputs, self.feeds[number], results)
            results[number] = call.fn(*args, **kwargs)
        return results, copying

    def nbytes(self) -> int:
        """Return the bytes kept: the recorded inputs, and the parts of the sample that no transform makes."""
        return tree.nbytes(self.sample) + sum(tree.nbytes(call.arguments) for call in self.calls)


def with_feeds(inputs: Any, feeds: Sequence[Feed], results: Results) -> Any:
    """Return a call's arguments with the results of earlier calls in their places."""
    for where, earlier, path in feeds:
        inputs = replace(inputs, where, follow(results[earlier], path))
    return inputs


def filled(sample: Any, holes: Sequence[Sequence[Hole]], results: Results) -> Any:
    """Return the sample with the results of all calls in its holes."""
    for number, found in enumerate(holes):
        for path, where in found:
            sample = replace(sample, where, follow(results[number], path))
    return sample


def link_what_counts(seen: list[Seen], sample: Any) -> tuple[list[Seen], RawSample]:
    """Return the linked calls and their :func:`link`; leave out negligible calls if it fails with them.

    One such call turns a label into a number: its result is often changed once more, and its time may count as loading.

    Raises:
        NotSeparable: as for :func:`link`.
    """
    try:
        return seen, link(seen, sample)
    except NotSeparable:
        least = max(_INSTANT, _NEGLIGIBLE * sum(one.seconds for one in seen))
        seen = [one for one in seen if one.seconds > least] or seen
        return seen, link(seen, sample)


def link(seen: Sequence[Seen], sample: Any, mutates: bool = False, looked: Any = None) -> RawSample:
    """Connect recorded calls with each other and with the sample made from them.

    ``mutates`` is True if some call changes its input, possibly through a view that another call made of it.
    ``looked`` is a copy of the sample as it was returned, if it has been written into since.

    Raises:
        NotSeparable: no transform was called, or a result is not part of the sample as it is.
    """
    if not seen:
        raise NotSeparable(f"no transform was found that the dataset calls; {HELP}")
    feeds = _feeds(seen)
    holes = _holes(seen, sample, sample if looked is None else looked)
    fed = {earlier for links in feeds for _, earlier, _ in links}
    for number, one in enumerate(seen):
        if one.outputs and not holes[number] and number not in fed:
            raise _changed(one)
    if not any(holes):
        raise NotSeparable(f"no transform's result is found in the sample; {HELP}")
    blank: list[Path] = []
    for where in sorted((where for found in holes for _, where in found), key=len):
        if not _covered(where, blank):
            sample = replace(sample, where, None)  # the removed part is no longer needed
            blank.append(where)
    calls = [_without_fed(one.call, fed, mutates) for one, fed in zip(seen, feeds, strict=True)]
    return RawSample(calls, sample, holes, feeds)


def link_unchanged(seen: Sequence[Seen], sample: Any, mutates: bool = False, looked: Any = None) -> RawSample:
    """Return :func:`link`, provided that no other code changes a result before a later call receives it.

    Raises:
        NotSeparable: as for :func:`link`, or other code does.
    """
    raw = link(seen, sample, mutates, looked)
    for one, feeds in zip(seen, raw.feeds, strict=True):
        for where, earlier, path in feeds:
            if same(follow(seen[earlier].looked, path), follow(one.call.arguments, where)) is False:
                raise _changed(seen[earlier])
    return raw


def _without_fed(call: Call, feeds: list[Feed], mutates: bool) -> Call:
    """Return the call without the inputs that earlier calls make again at every replay."""
    inputs: Any = call.arguments
    for where, _, _ in feeds:
        inputs = replace(inputs, where, None)
    kept = any(has_identity(p) and not parts(p) for _, p in walk(inputs) if not is_a(p, (list, dict)))
    return Call(call.name, call.fn, inputs[0], inputs[1], (call.mutates or mutates) and kept)


def _feeds(seen: Sequence[Seen]) -> list[list[Feed]]:
    """Return the inputs of each call that are results of earlier calls."""
    produced: dict[int, tuple[int, Path]] = {}
    feeds: list[list[Feed]] = []
    for number, one in enumerate(seen):
        links: list[Feed] = []
        for where, part in one.inputs:
            if id(part) in produced and not _covered(where, [link[0] for link in links]):
                links.append((where, *produced[id(part)]))
        feeds.append(links)
        produced.update({id(part): (number, path) for path, part in one.outputs})
    return feeds


def _holes(seen: Sequence[Seen], sample: Any, state: Any) -> list[list[Hole]]:
    """Return the places of the sample that each call's result fills; the last call to fill a place has it."""
    places: dict[int, list[Path]] = {}
    for path, part in identities(sample):
        places.setdefault(id(part), []).append(path)
    holes: list[list[Hole]] = []
    taken: list[Path] = []
    later: set[int] = set()
    for one in reversed(seen):
        matches = _matches(one, one.result, one.looked, (), places, later, state)
        found = [(path, where) for path, where in matches if not _covered(where, taken)]
        taken += [where for _, where in found]
        later |= {id(part) for _, part in one.outputs}
        holes.insert(0, found)
    return holes


def _matches(
    one: Seen, part: Any, looked: Any, path: Path, places: dict[int, list[Path]], later: set[int], state: Any
) -> Iterator[Hole]:
    """Yield where a part of a result is in the sample, provided that it is unchanged since the transform."""
    known = has_identity(part) and id(part) in places
    if known and same(follow(state, places[id(part)][0]), looked) is not False:
        yield from ((path, where) for where in places[id(part)])
        return
    inside = parts(part)
    if not inside and known and id(part) not in later:
        raise _changed(one)
    before = dict(parts(looked))
    for step, inner in inside:
        if step in before and len(path) < DEPTH:
            yield from _matches(one, inner, before[step], (*path, step), places, later, state)


def _changed(one: Seen) -> NotSeparable:
    return NotSeparable(
        f"the result of {one.call.name} is changed after the call, so it is not found in the sample; {HELP}"
    )


def _covered(path: Path, outer: list[Path]) -> bool:
    """Return whether ``path`` is, or lies inside, one of ``outer``."""
    return any(path[: len(o)] == o for o in outer)
