"""Cut samples in two: the part that is always the same, and the part that the transforms make anew.

The cut is inside the transforms, before the first link that draws at random. The input of that link is kept, with the
sample around the transforms' results. From then on only the remaining links run: they are the user's own objects, and
run in the calling process with its generators.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor
from torch.nn import Sequential

from ..usercode import randomness
from ..usercode.dissect import Feed, Hole, NotSeparable, filled, link, with_feeds
from ..usercode.links import Link, is_compose, links_of, run
from ..usercode.paths import private
from ..usercode.slots import Slot, find_slots
from ..usercode.spying import Call, Seen, Spy, identities
from .records import Record, RecordError, decode, encode

#: A function that makes a transform's call: it gets the number of its slot, the transform, and the arguments.
Called = Callable[[int, Link, tuple[Any, ...], dict[str, Any]], Any]
#: Types of parts of a sample that hold no further parts.
_LEAVES = {Tensor, np.ndarray, int, float, str, bytes, bool, type(None)}


@dataclass(frozen=True)
class Cut:
    """Where the samples of a dataset are cut.

    Attributes:
        heads: for each slot with a random transform, the number of first links whose result is kept. Slots are
            numbered as by :func:`find_slots`. Without such a slot, whole samples are kept.
        names: the names of all slots.
        settling: the attributes that the dataset sets when it makes its first samples, such as a file that it opens.
    """

    heads: Mapping[int, int]
    names: tuple[str, ...]
    settling: frozenset[str] = frozenset()

    def fits(self, dataset: Any) -> bool:
        """Return whether the dataset has the slots that the cut was found for."""
        return tuple(slot.name for slot in find_slots(dataset)) == self.names

    def tails(self, dataset: Any) -> list[Link]:
        """Return the remaining links of each random transform."""
        slots = find_slots(dataset)
        return [_tail(slots[number].get(), head) for number, head in self.heads.items()]


class Kept(NamedTuple):
    """The part of a sample that is kept; ``sample``, ``holes`` and ``feeds`` are as in :class:`RawSample`.

    Attributes:
        tails: for each call of a random transform, the number of its tail.
        inputs: the arguments of each call.
    """

    tails: tuple[int, ...]
    inputs: list[tuple[tuple[Any, ...], dict[str, Any]]]
    sample: Any
    holes: list[list[Hole]]
    feeds: list[list[Feed]]

    @classmethod
    def whole(cls, sample: Any) -> Kept:
        """Return a sample that is kept as it is."""
        return cls((), [], sample, [], [])

    @classmethod
    def decoded(cls, record: Record) -> Kept:
        """Raises RecordError: it was kept by another version of the user's classes."""
        return cls(*decode(record))

    def encoded(self) -> Record:
        """Raises RecordError: it cannot be stored."""
        return encode(tuple(self))  # the class would take longer than a small sample

    def completed(self, tails: Sequence[Link]) -> Any:
        """Return the sample: the ``tails`` run on what was kept for them."""
        results: list[Any] = []
        for tail, inputs, feeds in zip(self.tails, self.inputs, self.feeds, strict=True):
            args, kwargs = with_feeds(inputs, feeds, results)
            results.append(tails[tail](*args, **kwargs))
        return filled(self.sample, self.holes, results)


class NotKept(Exception):
    """Error: this sample has no part that could be kept; the message says why."""


class Cutter:
    """Maker of a dataset's samples in one process, which also returns the part to keep.

    ``tails`` is read at each call, so replacing one of its items takes effect.
    """

    def __init__(self, dataset: Any, cut: Cut, tails: Sequence[Link]) -> None:
        slots = find_slots(dataset)
        self._slots = {position: slots[number] for position, number in enumerate(cut.heads)}
        self._heads = list(cut.heads.values())
        self._tails = tails
        self._seen: list[tuple[int, Seen]] = []
        self._drew = ""  # the generator that the sample under way was drawn from outside its transforms

    def make(self, fetch: Callable[[], Any]) -> tuple[Any, Kept | NotKept]:
        """Return the sample that ``fetch`` makes, with the part of it to keep."""
        self._seen, self._drew = [], ""
        self._before = randomness.glance()
        with standing_in(self._slots, self._called):
            sample = fetch()
        self._look_for_draws()
        seen, self._seen = self._seen, []
        if self._drew:
            return sample, NotKept(f"it draws from {self._drew} generator outside its transforms")
        try:
            return sample, _kept(seen, sample)
        except NotSeparable as error:
            return sample, NotKept(str(error))

    def _called(self, position: int, fn: Link, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        head = self._heads[position]
        if head:
            args = run(links_of(fn)[:head], args)
        self._look_for_draws()
        inputs = identities((args, kwargs)) if self._seen else []  # only earlier results are looked for in them
        call = Call("", fn, *_as_now(args, kwargs))
        result = self._tails[position](*args, **kwargs)
        outputs = [((), result)] if type(result) is Tensor else identities(result)
        self._seen.append((position, Seen(call, inputs, result, result, outputs)))
        self._before = randomness.glance()
        return result

    def _look_for_draws(self) -> None:
        self._drew = self._drew or randomness.drawn_from(self._before, randomness.glance()) or ""


def _kept(seen: Sequence[tuple[int, Seen]], sample: Any) -> Kept:
    if not seen:
        return Kept.whole(sample)
    places = _places(seen[0][1], sample) if len(seen) == 1 else []
    if places:
        (position, one), around = seen[0], list(sample)
        for place in places:
            around[place] = None
        holes: list[Hole] = [((), (place,)) for place in places]
        return Kept((position,), [one.call.arguments], type(sample)(around), [holes], [[]])
    raw = link([one for _, one in seen], sample)
    inputs = [call.arguments for call in raw.calls]
    return Kept(tuple(position for position, _ in seen), inputs, raw.sample, raw.holes, raw.feeds)


def _places(one: Seen, sample: Any) -> list[int]:
    """Return where the result of the sample's only call is in a usual sample: this is faster than :func:`link`."""
    if type(one.result) is not Tensor or type(sample) not in (tuple, list):
        return []
    if not all(type(part) in _LEAVES for part in sample):
        return []
    return [place for place, part in enumerate(sample) if part is one.result]


def _as_now(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return arguments that keep their present content if the originals are written into."""
    if len(args) == 1 and not kwargs:
        if type(args[0]) is Tensor:
            return (args[0].clone(),), {}
        if hasattr(args[0], "getbands"):  # a Pillow image: encoding it now saves a copy
            try:
                return (_Encoded(args[0]),), {}
            except RecordError:
                pass
    return private((args, kwargs))


class _Encoded:
    """A Pillow image that is encoded already. Its record is the record of the image."""

    __slots__ = ("_record",)

    def __init__(self, image: Any) -> None:
        self._record = encode(image)

    def __reduce__(self) -> Any:
        return _decoded, (self._record.head, *map(pickle.PickleBuffer, self._record.buffers))


def _decoded(head: bytes, *buffers: Any) -> Any:
    return decode(Record(head, [*buffers]))


@contextmanager
def standing_in(slots: Mapping[int, Slot], called: Called) -> Iterator[None]:
    """Let ``called`` make the calls of the slots' transforms within the context, except those inside another call."""
    gate = _Gate(called)
    with ExitStack() as stack:
        for number, slot in slots.items():
            transform = slot.get()
            if type(transform) is not Spy:  # the same place may be found twice
                stack.enter_context(slot.replaced(Spy(slot.name, transform, _Calls(gate, number))))
        yield


class _Gate:
    """Hands the calls of the thread that makes the sample to ``called``, except those inside another such call."""

    def __init__(self, called: Called) -> None:
        self._called = called
        self._inside = False
        self._thread = threading.get_ident()

    def call(self, number: int, fn: Link, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._inside or threading.get_ident() != self._thread:
            return fn(*args, **kwargs)
        self._inside = True
        try:
            return self._called(number, fn, args, kwargs)
        finally:
            self._inside = False


class _Calls(NamedTuple):
    """The calls of one slot's transform, by the slot's number."""

    gate: _Gate
    number: int

    def call(self, name: str, fn: Link, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.gate.call(self.number, fn, args, kwargs)


def _tail(transform: Any, head: int) -> Any:
    """Return a chain of the same type without its first links; a transform that is no chain is its own tail."""
    if not head and not is_compose(transform):
        return transform
    links = links_of(transform)[head:]
    return Sequential(*links) if type(transform) is Sequential else type(transform)(links)


def is_number(index: Any) -> bool:
    """Return whether an index is an integer: only these have a place in a store."""
    return isinstance(index, (int, np.integer)) and not isinstance(index, bool)
