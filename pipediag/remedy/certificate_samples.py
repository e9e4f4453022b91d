"""Make samples twice from one random state, with pixels and recorded, as input for a certificate.

This half of the proof runs the user's code. Each of the two ways has its own process, which starts with the same
dataset and the same random state, so objects that keep state from sample to sample keep the same state in both. The
device's half is in :mod:`pipediag.remedy.certifying`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torchvision.transforms import functional as older

from ..usercode import randomness, tree
from ..usercode.places import label
from .assembling import assembled
from .images import RecordingStack, is_recording
from .ops import Op
from .packed_batch import Packed
from .packing import pack
from .plan import Place, Plan
from .recorder import unhidden
from .tape import Call, Tape
from .worker import fetched


class Step(NamedTuple):
    """One functional call, and the ops that replay it."""

    call: Call | None  # None if the step is the user's own link at ``own``
    own: Place | None
    name: str
    ops: tuple[Op, ...]
    site: int  # index of the link of the user's chain


class Told:
    """Record of one image: its source and the steps called on it. It is not a container type, so that tree functions
    take it for a leaf."""

    def __init__(self, source: Any, steps: tuple[Step, ...]) -> None:
        self.source = source
        self.steps = steps


class Stacked:
    """Stack of :class:`Told` or :class:`Stacked` parts. It is not a container type either."""

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts


class Real(NamedTuple):
    """Samples made with pixels, and their batch."""

    samples: Any
    batch: Any
    random_state: tuple[Any, ...]  # after the samples were made


class Recorded(NamedTuple):
    """The same samples, recorded."""

    number: int
    packed: Packed | None  # None if recording failed; ``why`` holds the reason
    samples: Any  # with Told in place of images
    random_state: tuple[Any, ...]
    why: str = ""
    by_chance: frozenset[str] = frozenset()  # names of the links that chance may skip


def real(dataset: Any, collate: Callable[[Any], Any], indices: Sequence[Any]) -> Real:
    samples = fetched(dataset, indices)
    return Real(samples, collate(samples), randomness.state())


def recorded(dataset: Any, collate: Callable[[Any], Any], indices: Sequence[Any], plan: Plan) -> Recorded:
    """Record the samples as a worker does. If that fails, make them with pixels, so that the random state after them is
    right."""
    before = randomness.state()
    try:
        recorders = plan.recorders(dataset)
        by_chance = frozenset(
            label(link) for _, one in recorders for link in one.links[one.start :] if _may_be_skipped(link)
        )
        with plan.installed(recorders), unhidden():
            samples = fetched(dataset, indices)
            packed = pack(assembled(collate, samples), plan.fuse)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
    else:
        owners = {id(shapes.fn): place for place, shapes in plan.own.items()}
        told = [_told(sample, owners) for sample in samples]
        return Recorded(len(indices), packed, told, randomness.state(), by_chance=by_chance)
    randomness.restore(before)
    collate(fetched(dataset, indices))
    return Recorded(len(indices), None, None, randomness.state(), why)


def _may_be_skipped(link: Any) -> bool:
    probability = getattr(link, "p", None)
    return isinstance(probability, float) and 0 < probability < 1


def _told(sample: Any, owners: dict[int, Place]) -> Any:
    def leaf(value: Any) -> Any:
        if isinstance(value, RecordingStack):
            return Stacked([leaf(part) for part in value.parts])
        return _story(value.tape, owners) if is_recording(value) else None

    return tree.map_leaves(sample, leaf)


def _story(tape: Tape, owners: dict[int, Place]) -> Told:
    ops = iter(tape.ops)
    steps = []
    for call in tape.calls:
        place = owners.get(id(call.fn))
        mine = tuple(next(ops) for _ in range(call.ops))
        steps.append(Step(call if place is None else None, place, call.name, mine, call.site))
    return Told(tape.source, tuple(steps))


def images(told: Any, samples: Any) -> Iterator[tuple[Told, Any]]:
    """Yield each :class:`Told` with the real image that belongs to it."""
    for one, sample in zip(tree.leaves(told), tree.leaves(samples), strict=True):
        yield from _images(one, sample)


def _images(told: Any, sample: Any) -> Iterator[tuple[Told, Any]]:
    if isinstance(told, Told):
        yield told, sample
    elif isinstance(told, Stacked):
        for part, image in zip(told.parts, sample, strict=True):
            yield from _images(part, image)


def tensor_of(image: Any) -> Tensor:
    return image.as_subclass(Tensor) if isinstance(image, Tensor) else older.pil_to_tensor(image)
