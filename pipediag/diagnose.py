"""The whole way on one page: a loop is measured, the measurements are judged, the judgement is reported.

    loop -> ladder (driven by the loop's own next()) -> Session -> analysis -> Diagnosis -> report

:func:`diagnose` does it for a loader and a step function in this process;
:func:`pipediag.host.passes.analyze_script` for an unmodified script in child interpreters.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from . import analysis
from ._version import __version__
from .analysis import diagnose_session
from .analysis.remedy import outcome
from .analysis.stopping import next_round
from .errors import AnalysisOver, NothingMeasured, UsageError
from .session import Session

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader

    from .remedy import OffloadedLoader


class Diagnosis(analysis.Diagnosis):
    """What is known of a training loop; made by :func:`diagnose`, or of a saved session by :meth:`of`."""

    @classmethod
    def of(cls, session: Session) -> Diagnosis:
        """Judge a session."""
        return cls(**vars(diagnose_session(session)))

    def apply(self, loader: DataLoader[Any]) -> DataLoader[Any] | OffloadedLoader:
        """Return the loader with its transforms on the device, or the loader itself if that was measured not to pay.

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
    """Find out what the input pipeline costs a training loop, stage by stage.

    Args:
        loader: the ``DataLoader`` the loop uses; it is left as it was.
        step_fn: does with one batch of the loader what the training loop does: copies it to the device and trains.
        device: where the model trains; found from the optimizer that steps, when there is one.
        budget: seconds to measure for, at most, from the first batch on.
        knobs: try other settings of the loader, on clones of it, with what the ladder leaves of the budget.
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
    session = Session(tool_version=__version__, environment={**environment(), "torch": torch.__version__})
    # Whatever steps inside step_fn, this loader is the one to measure.
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
    """What :func:`pipediag.offload` makes of a loader for the device that the diagnosed loop trains on.

    Where ``pipediag analyze --apply`` has measured that this does not pay, or where nothing can be moved, it is the
    loader itself, and a warning tells why. Where it was not measured, the remedy is applied all the same.

    Raises:
        UsageError: ``loader`` is no ``DataLoader``, torchvision is missing, or the device is not here.
    """
    from .remedy import offload

    came = outcome(diagnosis.session)
    if came is not None and not came.applied:
        return _as_it_is(loader, came.reverted or came.why_not)
    offloaded = offload(loader, diagnosis.session.device.get("type", "cpu"))
    if not offloaded.plan.pieces:
        return _as_it_is(loader, "; ".join(offloaded.plan.reasons) or "it has no transforms that could be moved")
    return offloaded


def _as_it_is(loader: DataLoader[Any], why: str) -> DataLoader[Any]:
    warnings.warn(f"the loader is left as it is: {why}", stacklevel=4)  # where Diagnosis.apply is called
    return loader


@contextmanager
def _set_aside_iterator(loader: DataLoader[Any]) -> Iterator[None]:
    """A loader with persistent workers that was iterated before keeps its iterator, and would not build another."""
    kept, loader._iterator = loader._iterator, None
    try:
        yield
    finally:
        loader._iterator = kept
