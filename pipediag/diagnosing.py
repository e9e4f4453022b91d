"""Measure a training loop, judge the measurements and return the diagnosis.

    loop -> ladder (driven by the loop's own next()) -> Session -> analysis -> Diagnosis -> report

:func:`diagnose` does this for a loader and a step function in this process; :func:`pipediag.host.passes.analyze_script`
does it for an unmodified script in child interpreters.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from . import analysis
from ._version import __version__
from .analysis import diagnose_session
from .analysis.remedy import best, remedy_of, why_none
from .analysis.stopping import next_round
from .errors import AnalysisOver, NothingMeasured, UsageError
from .session import DECODED, HANDED_OVER, LOADED_ONCE, REMEDIED, Session

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader

    from .remedy import OffloadedLoader


class Diagnosis(analysis.Diagnosis):
    """The diagnosis of a training loop; :func:`diagnose` makes it, or :meth:`of` from a saved session."""

    @classmethod
    def of(cls, session: Session) -> Diagnosis:
        """Judge a session."""
        return cls(**vars(diagnose_session(session)))

    def apply(self, loader: DataLoader[Any]) -> DataLoader[Any] | OffloadedLoader:
        """Return the loader with its transforms on the device, or the loader itself if a measurement shows no gain.

        See :func:`apply_remedy`.
        """
        return apply_remedy(self, loader)


def diagnose(
    loader: DataLoader[Any],
    step_fn: Callable[[Any], object],
    *,
    device: torch.device | str | None = None,
    budget: float = 60.0,
    knobs: bool = True,
    progress: Callable[[str, dict[str, Any]], None] | None = None,
) -> Diagnosis:
    """Measure what each stage of the input pipeline costs a training loop.

    Args:
        loader: the ``DataLoader`` that the loop uses; it stays unchanged.
        step_fn: processes one batch as the training loop does: copies it to the device and trains.
        device: where the model trains; by default it is taken from the optimizer that steps, if there is one.
        budget: maximum measuring time in seconds, counted from the first batch.
        knobs: try other loader settings, on clones of the loader, in the part of the budget that the ladder leaves.
        progress: called with each event of the measurement as it happens.

    Raises:
        UsageError: ``loader`` is not a ``torch.utils.data.DataLoader`` or ``budget`` is not positive.
        NothingMeasured: the loader gave no batches to measure with.
    """
    import torch
    from torch.utils.data import DataLoader

    from .ladder.measurement import Measurement
    from .ladder.plan import KNOBS_SHARE, Plan
    from .measure.device import default_device
    from .measure.machine import environment

    if not isinstance(loader, DataLoader):
        raise UsageError(f"diagnose() needs a torch DataLoader, not {type(loader).__name__}")
    if budget <= 0:
        raise UsageError(f"budget is in seconds and must be positive, not {budget}")
    facts = {**environment(), "torch": torch.__version__}
    session = Session(tool_version=__version__, began=time.perf_counter(), environment=facts)
    # Measure this loader, even if step_fn steps no optimizer.
    plan = Plan(budget=budget, inference=True, knobs=KNOBS_SHARE * budget if knobs else 0.0)
    measurement = Measurement(plan, session, progress or (lambda kind, data: None), next_round)
    with ExitStack() as stack:
        stack.enter_context(_set_aside_iterator(loader))
        stack.enter_context(measurement.installed())
        if device is not None:
            measurement.training.device = torch.device(device)
        try:
            empty = 0
            while empty < 2:
                empty += 1
                for batch in loader:
                    empty = 0
                    step_fn(batch)
        except AnalysisOver as over:
            session.ended = str(over)
        measurement.conclude()
    if measurement.training.device is None:
        session.device.setdefault("type", default_device().type)
    if not session.anything_seen:
        raise NothingMeasured("no step was seen: the loader is empty")
    return Diagnosis.of(session)


def apply_remedy(diagnosis: analysis.Diagnosis, loader: DataLoader[Any]) -> DataLoader[Any] | OffloadedLoader:
    """Return :func:`pipediag.offload` of the loader, for the device that the diagnosed loop trains on.

    Return the loader itself, with a warning that says why, if ``pipediag analyze --apply`` measured no gain or if no
    transform can move. If it measured a gain of the hand-off alone, no transform is moved. If samples that are loaded
    once gain most, the loader is given to :func:`pipediag.cache` first. If nothing was measured, the movable transforms
    are moved.

    Raises:
        UsageError: ``loader`` is not a ``DataLoader``, torchvision is missing, or the device is not on this machine.
    """
    from .remedy import offload

    came = best(diagnosis.session)
    if came is not None and not came.applied:
        return _as_it_is(loader, why_none(diagnosis.session))
    rung = REMEDIED if came is None else came.rung
    device = diagnosis.session.device.get("type", "cpu")
    transforms = rung != HANDED_OVER
    if rung == LOADED_ONCE:
        from .sample_cache.loader import cache

        loader = cache(loader)
        kept = remedy_of(diagnosis.session, rung)
        transforms = kept is not None and bool(kept.moved)
        if not transforms and device == "cpu":
            return loader
    offloaded = offload(loader, device, transforms=transforms, approximate=rung == DECODED)
    if transforms and not offloaded.plan.pieces:
        return _as_it_is(loader, "; ".join(offloaded.plan.reasons) or "it has no transforms that could be moved")
    return offloaded


def _as_it_is(loader: DataLoader[Any], why: str) -> DataLoader[Any]:
    warnings.warn(f"the loader is left as it is: {why}", stacklevel=4)  # the caller of Diagnosis.apply
    return loader


@contextmanager
def _set_aside_iterator(loader: DataLoader[Any]) -> Iterator[None]:
    """Remove the iterator kept by a loader with persistent workers, so that it builds a new one; restore it at exit."""
    kept, loader._iterator = loader._iterator, None
    try:
        yield
    finally:
        loader._iterator = kept
