"""Make a batch exactly as without the remedy, and record it at once, as evidence for a certificate.

User code runs once, on real images (:mod:`.twins`), and the loop trains on what it makes. The process that trains
replays the recording and compares it with that batch (:mod:`.certifying`).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ...usercode import randomness, tree
from ...usercode.slots import Slot
from ..decode.undecoded_tensors import decoded
from ..pack.packing import pack
from ..plan import Plan
from ..record.assembling import RealRows
from ..record.images import is_recording
from ..record.recorder import Recorder
from ..record.twins import Twins
from .samples import Real, Recorded, histories, skipped_by_chance, tensor_of

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
    are compared one by one.
    """
    twins = Twins()
    with plan.installed(recorders, twins):
        samples = fetch(twins.keep)
        recorded, real = _both(samples[:compared] if batched else [samples], twins)
        with RealRows(twins) as rows:
            batch = collate(samples)
    state, number = randomness.state(), len(samples) if batched else 1
    drawn = state if twins.deviating is None else twins.deviating
    try:
        with plan.recording():
            packed = pack(tree.map_leaves(batch, rows.twin_of), plan.fuse)
            small = packed.memory.nbytes <= _MOST_BYTES
            if not small:
                packed = pack(recorded, plan.fuse)
        told = Recorded(number, packed, histories(recorded, plan), drawn, by_chance=skipped_by_chance(recorders))
        evidence = pickle.dumps((Real(real, None if small else real, state), told), pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        why = twins.why or f"{type(error).__name__}: {error}"
        evidence = pickle.dumps((Real(None, None, state), Recorded(number, None, None, drawn, why)))
    return Made(tree.map_leaves(batch, decoded), evidence)


def _both(samples: list[Any], twins: Twins) -> tuple[list[Any], list[Any]]:
    """Return the samples with twins in place of images, and copies of these images; nothing if that fails."""
    try:
        recorded = [tree.map_leaves(sample, twins.of) for sample in samples]
        return recorded, [tree.map_leaves(sample, lambda leaf: _pixels(leaf, twins)) for sample in samples]
    except Exception as error:
        twins.lost(f"{type(error).__name__}: {error}")
        return [], []


def _pixels(leaf: Any, twins: Twins) -> Any:
    """Return a copy of an image with a twin; None for anything else."""
    return tensor_of(leaf).clone() if is_recording(twins.of(leaf)) else None
