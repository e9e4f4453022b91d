"""Make samples twice from one random state, with pixels and recorded, as input for a certificate.

This half of the proof runs the user's code. Each of the two ways has its own process, which starts with the same
dataset and the same random state, so objects that keep state from sample to sample do the same in both.
:mod:`pipediag.replay.certify.certifying` is the device's half.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from torchvision.transforms import functional as older

from ...usercode import randomness
from ...usercode.attributes import attribute
from ...usercode.objects import leaves, replaced
from ...usercode.places import label
from ...usercode.transform_slots import Slot
from ..decode.undecoded import decoded
from ..ops.calls import arranged
from ..ops.op import NotRecordable, Op
from ..pack.packed_batch import Packed
from ..pack.packing import pack, pack_any
from ..plan import Plan
from ..record.batches import RealRows, assembled, batch_of, fetched, real_leaf
from ..record.call import Call
from ..record.images import RecordingStack, Unreadable
from ..record.recorder import Recorder, unhidden
from ..record.session import session
from ..record.substitutes import is_recording
from ..record.tape import Tape
from ..record.twins import Twins
from ..record.views import simplified


class Step(NamedTuple):
    """One functional call, and the ops that replay it."""

    call: Call
    ops: tuple[Op, ...]


class History:
    """Source of one image and the calls on it. Tree functions take it for a leaf, since it is not a container type."""

    def __init__(self, source: Any, steps: tuple[Step, ...]) -> None:
        self.source = source
        self.steps = steps


class Stacked:
    """Stack of :class:`History` or :class:`Stacked` parts. It is not a container type either."""

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts


class Arrangement:
    """Tensor that a call makes of such objects among its arguments. It is not a container type either."""

    def __init__(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.name, self.args, self.kwargs = name, args, kwargs


def tensor_made(of: Any, pixels: Callable[[History], Tensor]) -> Tensor:
    """Return the tensor that a history, stack or arrangement stands for, from the pixels of each history."""
    if isinstance(of, History):
        return pixels(of)
    if isinstance(of, Stacked):
        return torch.stack([tensor_made(part, pixels) for part in of.parts])
    kinds = (History, Stacked, Arrangement)
    made: Tensor = arranged(of.name, *tree_map_only(kinds, lambda one: tensor_made(one, pixels), (of.args, of.kwargs)))
    return made


class Real(NamedTuple):
    """Samples made with pixels, and their batch."""

    samples: Any
    batch: Any
    random_state: tuple[Any, ...]  # after the samples were made


class Recorded(NamedTuple):
    """The same samples, recorded."""

    number: int
    packed: Packed | None  # None if recording failed; ``why`` holds the reason
    samples: Any  # with histories in place of images
    random_state: tuple[Any, ...]
    why: str = ""
    by_chance: frozenset[str] = frozenset()  # names of the links that chance may skip
    of_batch: bool = False  # the histories are those of the batch, which has more calls than its samples


def real(dataset: Any, collate: Callable[[Any], Any], indices: Sequence[Any]) -> Real:
    samples = fetched(dataset, indices)
    return Real(samples, collate(samples), randomness.state())


def recorded(dataset: Any, collate: Callable[[Any], Any], indices: Sequence[Any], plan: Plan) -> Recorded:
    """Record the samples as a worker does. If that fails, make them with pixels, which draws the same."""
    drawn, samples = randomness.state(), None
    try:
        recorders = plan.recorders(dataset)
        with plan.installed(recorders):
            settled, stood = session.settled, session.stood
            session.why = ""
            with unhidden(), session.going_on():
                made = fetched(dataset, indices)
            samples, drawn = made, randomness.state()  # those of a stream cannot be made again
            if session.settled != settled:
                raise NotRecordable(session.why)
            with unhidden():
                batch = assembled(collate, samples)
                packed = pack_any(batch, stood, plan.fuse)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
    else:
        # A batch that has been mixed is not what its images' calls give.
        of_batch = bool(plan.begins) and not any(getattr(leaf, "mixes", ()) for leaf in leaves(batch))
        made = histories([batch] if of_batch else samples)
        chance = skipped_by_chance(recorders)
        return Recorded(len(indices), packed, made, randomness.state(), by_chance=chance, of_batch=of_batch)
    randomness.restore(drawn)
    collate(fetched(dataset, indices) if samples is None else replaced(samples, real_leaf))
    return Recorded(len(indices), None, None, randomness.state(), why)


def skipped_by_chance(recorders: Iterable[tuple[Any, Recorder]]) -> frozenset[str]:
    """Return the names of the recorded links that chance may skip."""
    links = [link for _, one in recorders for link in one.links[one.start :]]
    chances = ((link, attribute(link, "p", None)) for link in links)
    return frozenset(label(link) for link, p in chances if isinstance(p, float) and 0 < p < 1)


def histories(samples: Any) -> list[Any]:
    """Return recorded samples with histories in place of images."""

    def leaf(value: Any) -> Any:
        value = simplified(value)
        if isinstance(value, RecordingStack):
            return Stacked([leaf(part) for part in value.parts])
        if isinstance(value, tuple):
            return Arrangement(value[0], *tree_map_only(Unreadable, leaf, value[1:]))
        return _history(value.tape) if is_recording(value) else None

    return [list(map(leaf, leaves(sample))) for sample in samples]


def _history(tape: Tape) -> History:
    ops = iter(tape.ops)
    steps = [Step(call, tuple(next(ops) for _ in range(call.ops))) for call in tape.calls]
    return History(tape.source, tuple(steps))


def images(recorded: Any, real: Any) -> Iterator[tuple[History | Arrangement, Any]]:
    """Yield each history in the recorded samples with its image in the real ones, and each arrangement likewise."""
    for one, other in zip(leaves(recorded), leaves(real), strict=True):
        yield from _images(one, other)


def _images(leaf: Any, real: Any) -> Iterator[tuple[History | Arrangement, Any]]:
    if isinstance(leaf, (History, Arrangement)):
        yield leaf, real
    elif isinstance(leaf, Stacked):
        for part, image in zip(leaf.parts, real, strict=True):
            yield from _images(part, image)


def tensor_of(image: Any) -> Tensor:
    return image.as_subclass(Tensor) if isinstance(image, Tensor) else older.pil_to_tensor(image)


# ---- in one execution


#: Maximum bytes of a recording that is sent beside its batch; of a larger one, the compared samples only.
_MOST_BYTES = 1 << 26


class Made(NamedTuple):
    """A batch, and the pickled evidence."""

    batch: Any
    evidence: bytes


def executed(
    fetch: Callable[[Callable[[list[Any]], None]], Any],
    collate: Callable[[Any], Any],
    recorders: Sequence[tuple[Slot, Recorder]],
    plan: Plan,
    compared: int,
    batched: bool,
) -> Made:
    """Make a batch of the samples that ``fetch`` returns. It calls the function that it gets after each sample.

    ``recorders`` are the plan's, of kind :class:`.twins.Following`. ``compared`` is the number of samples whose calls
    are compared one by one. The evidence holds images and tensors only: a copy of a user's object would be one more.
    """
    twins = Twins()
    with plan.installed(recorders, twins):
        samples = fetch(twins.keep)
        recorded, real = _both(samples[:compared] if batched else [samples], twins)
        with RealRows(twins) as rows:
            batch = batch_of(samples, collate)
    state, number = randomness.state(), len(samples) if batched else 1
    drawn = state if twins.deviating is None else twins.deviating
    try:
        with plan.recording():
            twins_of = map(rows.twin_of, leaves(batch))
            packed = pack([leaf for leaf in twins_of if isinstance(leaf, Tensor) or is_recording(leaf)], plan.fuse)
            small = packed.memory.nbytes <= _MOST_BYTES
            if not small:
                packed = pack(recorded, plan.fuse)
        made = histories(recorded)
        if not batched:  # what the loader yields may be a batch already
            number = max((len(leaf.parts) for leaf in leaves(made) if isinstance(leaf, Stacked)), default=1)
        told = Recorded(number, packed, made, drawn, by_chance=skipped_by_chance(recorders))
        evidence = pickle.dumps((Real(real, None if small else real, state), told), pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        why = twins.why or f"{type(error).__name__}: {error}"
        evidence = pickle.dumps((Real(None, None, state), Recorded(number, None, None, drawn, why)))
    return Made(replaced(batch, decoded) if plan.decodes else batch, evidence)


def _both(samples: Any, twins: Twins) -> tuple[list[Any], list[Any]]:
    """Return the twins of the images in the samples, and copies of these images; nothing if that fails."""
    try:
        pairs = [(twin, leaf) for leaf in leaves(samples) if is_recording(twin := twins.of(leaf))]
        with torch._C.DisableTorchFunction():  # these copies are no calls of the user's
            return [twin for twin, _ in pairs], [tensor_of(image).clone() for _, image in pairs]
    except Exception as error:
        twins.lost(f"{type(error).__name__}: {error}")
        return [], []
