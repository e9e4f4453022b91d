"""Find where a dataset's samples can be cut, and prove it on samples of its own, in separate processes.

Some samples are made several times, under different random numbers, at different times and in two processes. Only what
is equal to the last bit each time is kept, and only if making it draws nothing from a random generator.
"""

from __future__ import annotations

import hashlib
import operator
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from ..loop.separate_process import Collate, TrialFailed, tried
from ..usercode import randomness
from ..usercode.links import Link, links_of, passed_on
from ..usercode.paths import same
from ..usercode.places import label
from ..usercode.slots import Slot, find_slots
from ..usercode.spying import identities
from .changes import contents, differing, makers
from .cut import Cut, Cutter, Kept, NotKept, is_number, standing_in
from .records import Record, RecordError, encode
from .suitable import fetches_together

_SEEDS = (11, 12, 13, 14)


class NoCut(Exception):
    """Error: no part of the samples can be kept; the message says why."""


class _Found(NamedTuple):
    cut: Cut
    indices: list[Any]
    digests: list[bytes]  # of what is kept of each sample


def find_cut(loader: DataLoader[Any], samples: int) -> Cut:
    """Return where the loader's samples are cut, as tried on the first samples that its sampler asks for.

    Raises:
        NoCut: nothing can be kept.
    """
    try:
        found: _Found = next(tried(loader, _find, samples, seed=_SEEDS[0], refusal=NoCut))
        again: _Found = next(tried(loader, partial(_again, found=found), samples, seed=_SEEDS[1], refusal=NoCut))
    except TrialFailed as error:
        raise NoCut(str(error)) from None
    if not found.cut.fits(loader.dataset):
        raise NoCut("in the workers it has other transforms than here")
    if again.digests != found.digests:
        raise NoCut("made in another process, its samples are different")
    return found.cut


def _find(dataset: Any, collate: Collate, indices: list[Any]) -> _Found:
    if not all(map(is_number, indices)):
        raise NoCut("its samples are asked for by something other than a number")
    slots = dict(enumerate(find_slots(dataset)))
    before = contents(makers(dataset))
    first = _traced(dataset, slots, indices, _SEEDS[0])
    between = contents(makers(dataset))
    second = _traced(dataset, slots, indices, _SEEDS[1])
    after = contents(makers(dataset))
    heads = _heads(first, second, {number: slot.get() for number, slot in slots.items()})
    kept = makers(dataset, heads)
    changing = differing(between, after, kept)
    if changing:
        raise NoCut(f"making a sample changes its {', '.join(map(repr, sorted(changing)))}")
    cut = Cut(heads, tuple(slot.name for slot in slots.values()), settling=differing(before, between, kept))
    return _proven(dataset, indices, cut)


def _again(dataset: Any, collate: Collate, indices: list[Any], found: _Found) -> _Found:
    return _proven(dataset, found.indices, found.cut)  # whatever this process's sampler asks for


# ---- the links of each transform


@dataclass
class _Trace:
    """A transform's call, link by link.

    Attributes:
        number: the number of its slot.
        fed: the slots whose results are among its arguments.
        values: digests of each link's input and of the last one's result; None for what cannot be stored.
        drew: number of the first link that drew from a generator; the number of links if none did.
    """

    number: int
    fed: set[int]
    values: list[bytes | None]
    drew: int

    def usable(self, other: _Trace) -> set[int]:
        """Return the links before which the call can be cut, as far as two runs of it show."""
        found = set()
        for k, (one, two) in enumerate(zip(self.values, other.values, strict=True)):
            if k > min(self.drew, other.drew) or one != two:
                break
            if one is not None:
                found.add(k)
        return found


class _Tracer:
    """Follows the calls of all transforms while one sample is made, or all samples of a batch together."""

    def __init__(self) -> None:
        self.traces: list[_Trace] = []
        self._made: list[tuple[int, list[Any]]] = []  # by which slot, with the objects
        self._state = randomness.glance()

    def called(self, number: int, fn: Link, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.look()
        links: list[Link] = [partial(fn, **kwargs)] if kwargs else links_of(fn)
        given = {id(part) for _, part in identities((args, kwargs))}
        fed = {maker for maker, parts in self._made if not given.isdisjoint(map(id, parts))}
        trace = _Trace(number, fed, [_digest((args, kwargs))], len(links))
        result: Any = args if len(args) > 1 or not args else args[0]  # of a chain without links
        for k, one in enumerate(links):
            result = one(*args)
            trace.values.append(_digest(result))
            if trace.drew == len(links) and randomness.drawn_from(self._state, randomness.glance()):
                trace.drew = k
            if k + 1 < len(links):
                args = passed_on(result, len(args) > 1)
        self.traces.append(trace)
        self._made.append((number, [part for _, part in identities(result)]))
        self._state = randomness.glance()
        return result

    def look(self) -> None:
        """Refuse draws since the last call of a transform."""
        which = randomness.drawn_from(self._state, randomness.glance())
        if which:
            raise NoCut(f"its samples draw from {which} generator outside its transforms")


def _traced(dataset: Any, slots: dict[int, Slot], indices: list[Any], seed: int) -> list[list[_Trace]]:
    """Return the calls of the transforms for each sample, or for all if they are made together."""
    traces: list[list[_Trace]] = []
    for fetch in _fetches(dataset, indices):
        _seed(seed + len(traces))
        tracer = _Tracer()
        with standing_in(slots, tracer.called):
            fetch()
        tracer.look()
        traces.append(tracer.traces)
    return traces


def _fetches(dataset: Any, indices: list[Any]) -> Iterator[Callable[[], Any]]:
    if fetches_together(dataset):
        yield partial(dataset.__getitems__, indices)
    else:
        yield from (partial(operator.getitem, dataset, index) for index in indices)


def _heads(first: list[list[_Trace]], second: list[list[_Trace]], transforms: dict[int, Link]) -> dict[int, int]:
    """Return, for each transform that is not deterministic throughout, the number of its first links that are."""
    pairs: dict[int, list[tuple[_Trace, _Trace]]] = {}
    for ones, others in zip(first, second, strict=True):
        if [trace.number for trace in ones] != [trace.number for trace in others]:
            raise NoCut("the same sample passes through different transforms from one time to the next")
        for one, other in zip(ones, others, strict=True):
            pairs.setdefault(one.number, []).append((one, other))
    usable = {number: set.intersection(*(one.usable(other) for one, other in both)) for number, both in pairs.items()}
    fed = {number: set[int]().union(*(one.fed for one, _ in both)) for number, both in pairs.items()}
    random_ones = {number for number, both in pairs.items() if len(both[-1][0].values) - 1 not in usable[number]}
    while later := {n for n in usable if n not in random_ones and not fed[n].isdisjoint(random_ones)}:
        random_ones |= later
    heads = {}
    for number in sorted(random_ones):
        if not fed[number].isdisjoint(random_ones):
            heads[number] = 0  # runs on another transform's result
        elif usable[number]:
            heads[number] = max(usable[number])
        else:
            what = f"what {label(transforms[number])} gets"
            raise NoCut(f"{what} differs from one time to the next, or cannot be stored")
    return heads


# ---- the proof


def _proven(dataset: Any, indices: list[Any], cut: Cut) -> _Found:
    """Cut the samples, and prove that completing them gives what the dataset makes.

    Raises:
        NoCut: it gives another sample.
    """
    if fetches_together(dataset):
        records = _made_together(dataset, indices, cut)
    else:
        tails = cut.tails(dataset)
        cutter = Cutter(dataset, cut, tails)
        fetches = list(_fetches(dataset, indices))
        records = [_made_twice(cutter, fetch) for fetch in fetches]
        for fetch, record in zip(fetches, records, strict=True):
            _prove_completed(fetch, record, tails)
    return _Found(cut, indices, list(map(_summed, records)))


def _made_twice(cutter: Cutter, fetch: Callable[[], Any]) -> Record:
    records = []
    for seed in _SEEDS[2:]:
        _seed(seed)
        _, kept = cutter.make(fetch)
        if isinstance(kept, NotKept):
            raise NoCut(str(kept))
        records.append(_encoded(kept))
    return _equal(*records)


def _made_together(dataset: Any, indices: list[Any], cut: Cut) -> list[Record]:
    """Return the records of samples made together, which must equal those of samples made alone."""
    if cut.heads:
        raise NoCut("it makes the samples of a batch together, and their transforms draw at random")
    _seed(_SEEDS[2])
    batch = [_encoded(Kept.whole(sample)) for sample in dataset.__getitems__(indices)]
    _seed(_SEEDS[3])
    alone = [_encoded(Kept.whole(sample)) for index in indices for sample in dataset.__getitems__([index])]
    if len(batch) != len(alone):
        raise NoCut("it does not make one sample for each index")
    return [_equal(one, other) for one, other in zip(batch, alone, strict=True)]


def _encoded(kept: Kept) -> Record:
    try:
        return kept.encoded().copied()
    except RecordError as error:
        raise NoCut(str(error)) from None


def _equal(one: Record, other: Record) -> Record:
    if _summed(one) != _summed(other):
        raise NoCut("made a second time, its samples are different")
    return one


def _prove_completed(fetch: Callable[[], Any], record: Record, tails: Sequence[Link]) -> None:
    made = []
    for complete in (fetch, partial(_complete, record, tails), partial(_complete, record, tails)):
        _seed(_SEEDS[3])
        made.append(complete())
    # A transform with a generator of its own gives another result at each call in any case.
    if not _alike(made[0], made[1]) and _alike(made[1], made[2]):
        raise NoCut("completed from what was kept, its samples are different")


def _complete(record: Record, tails: Sequence[Link]) -> Any:
    return Kept.decoded(record.copied()).completed(tails)


def _alike(one: Any, other: Any) -> bool:
    digest = _digest(one)
    return (digest is not None and digest == _digest(other)) or same(one, other) is True


def _digest(value: Any) -> bytes | None:
    try:
        return _summed(encode(value))
    except RecordError:
        return None


def _summed(record: Record) -> bytes:
    total = hashlib.blake2b(record.head, digest_size=16)
    for buffer in record.buffers:
        total.update(buffer)
    return total.digest()


def _seed(seed: int) -> None:
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)
