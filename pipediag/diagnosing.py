"""Measure a training loop, judge the measurements and return the diagnosis.

    loop -> ladder (driven by the loop's own next()) -> Session -> analysis -> Diagnosis -> report

:func:`diagnose` does this for a loader and a step function in this process; :func:`pipediag.host.passes.analyze_script`
does it for an unmodified script in child interpreters.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from traceback import format_exception_only
from typing import TYPE_CHECKING, Any

from . import analysis
from ._version import __version__
from .analysis import diagnose_session
from .analysis.ranks.merging import job_session
from .analysis.stopping import next_round
from .analysis.summary import StageCost, summarise
from .analysis.trials.remedy import best, remedy_of, why_none
from .analysis.words import few_of, number
from .clock import time
from .errors import AnalysisOver, NothingMeasured, UsageError, positive
from .frames import ended_in
from .session import DECODED, HANDED_OVER, LOADED_ONCE, REMEDIED, Session, received
from .session.events import unmeasurable
from .usercode.attributes import has_attribute

if TYPE_CHECKING:
    import pandas
    import torch
    from torch.utils.data import DataLoader

    from .ladder.measurement import Measurement
    from .loop.training_state import TrainingState
    from .remedy import OffloadedLoader


class Diagnosis(analysis.Diagnosis):
    """The diagnosis of a training loop; :func:`diagnose` makes it, or :meth:`of` from a saved session.

    ``print(diagnosis)`` shows it on one screen, and a notebook shows it as a page.
    """

    def __repr__(self) -> str:
        figures = [number(rate.steps_per_s) for rate in summarise(self).rates]  # as it is, and if data were free
        rates = [f"{figure} {word}" for figure, word in zip(figures, ("steps/s", "possible"), strict=False)]
        level = f" ({self.verdict.level})" if self.verdict.level else ""
        return f"<Diagnosis: {', '.join([self.verdict.bottleneck + level, *rates])}>"

    def __str__(self) -> str:
        from .report import screen

        return screen.write(summarise(self), more=screen.MORE_IN_CODE)

    def _repr_html_(self) -> str:
        from .report import page

        return page.first_part(self)

    @property
    def stages(self) -> list[StageCost]:
        """The cost of each stage, from the model's own step outwards; together they make up a step."""
        return [
            StageCost(_stage_name(piece), piece.ms.value, piece.share, piece.culprit.where if piece.culprit else "")
            for piece in self.waterfall
        ]

    def to_pandas(self) -> pandas.DataFrame:
        """Return :attr:`stages` as a DataFrame with the columns ``name``, ``ms``, ``share`` and ``where``.

        Raises:
            UsageError: pandas is not installed.
        """
        try:
            import pandas
        except ModuleNotFoundError:
            raise UsageError("to_pandas() needs pandas: pip install pandas") from None
        return pandas.DataFrame([asdict(stage) for stage in self.stages], columns=["name", "ms", "share", "where"])

    @property
    def advice(self) -> list[analysis.diagnosis.Recommendation]:
        """What would help, the best first: each with ``title``, ``gain``, ``how`` and ``risk``."""
        return self.recommendations

    def report(self, path: Path | str | None = None) -> None:
        """Print the whole report, or write it to a file; its ending chooses the format: .html, .json, .md or .txt.

        Raises:
            UsageError: no report has this ending, or the file cannot be written.
        """
        from .report import check_output, screen_for, write

        if path is None:
            print(screen_for(self, sys.stdout, 1), end="")
            return
        check_output(str(path))
        write(self, str(path))

    @classmethod
    def of(cls, session: Session) -> Diagnosis:
        """Return the diagnosis of a session."""
        return cls(**vars(diagnose_session(session)))

    def apply(self, loader: DataLoader[Any]) -> DataLoader[Any] | OffloadedLoader:
        """Return :func:`pipediag.offload` of the loader, for the device that the diagnosed loop trains on.

        Return the loader itself, with a warning that says why, if ``pipediag analyze --apply`` measured no gain, if it
        measured nothing and the loop trains on the CPU, or if no transform can move. If it measured a gain of the
        hand-off alone, no transform is moved. If samples that are loaded once gain most, the loader is given to
        :func:`pipediag.cache` first. If nothing was measured, the movable transforms are moved to the GPU.

        Raises:
            UsageError: ``loader`` is not a ``DataLoader``, torchvision is missing, or the device is not on this
                machine.
        """
        from .remedy.saved_plan import why_not_moved

        came, device = best(self.session), self.session.device_type
        if came is not None and not came.applied:
            return _as_it_is(loader, why_none(self.session))
        if came is None and (why := why_not_moved(device)):
            from torch.utils.data import DataLoader

            if not isinstance(loader, DataLoader):
                raise UsageError(f"apply() takes a torch DataLoader, not {type(loader).__name__}")
            return _as_it_is(loader, why)
        from .remedy import offload
        from .remedy.summary import why_nothing

        rung = REMEDIED if came is None else came.rung
        transforms = rung != HANDED_OVER
        if rung == LOADED_ONCE:
            from .memo.loader import cache

            loader = cache(loader)
            kept = remedy_of(self.session, rung)
            transforms = kept is not None and bool(kept.moved)
            if not transforms and device == "cpu":
                return loader
        offloaded = offload(loader, device, transforms=transforms, approximate=rung == DECODED)
        if transforms and not offloaded.plan.moves:
            return _as_it_is(loader, why_nothing(offloaded.plan))
        return offloaded


def diagnose(
    loader: DataLoader[Any] | Iterable[Any],
    step_fn: Callable[[Any], object],
    *,
    device: torch.device | str | None = None,
    budget: float = 60.0,
    knobs: bool = True,
    keep_training: bool = False,
    progress: Callable[[str, dict[str, Any]], None] | None = None,
) -> Diagnosis:
    """Measure what each stage of the input pipeline costs a training loop.

    ``step_fn`` runs some hundred times, often on the same batches. Afterwards the training is as it was before:
    parameters, buffers, gradients, optimizers, learning rate schedulers, gradient scalers, and the random generators of
    Python, numpy, torch and the devices. Other changes of ``step_fn`` stay, such as its own counters and logs.

    In a distributed job, call it in every rank. Rank 0 then returns the diagnosis of the job, and each other rank that
    of its own loop.

    An exception from ``step_fn`` or the loader propagates. Its attribute ``diagnosis`` then holds the diagnosis of what
    was measured before, and a note says so (Python 3.11 or later). Ctrl-C ends the measurement and returns the
    diagnosis of what was measured, if anything was.

    Args:
        loader: the ``DataLoader`` that the loop uses; it stays unchanged. Or any other iterable of batches, such as a
            generator, whose items are used up; how much the loop waits for it and its costly lines are then found.
        step_fn: processes one batch as the training loop does: copies it to the device and trains.
        device: where the model trains; by default it is taken from the optimizer that steps, if there is one.
        budget: maximum measuring time in seconds, counted from the first batch.
        knobs: try other loader settings, on clones of the loader, in the part of the budget that the ladder leaves.
        keep_training: keep what was learnt, and leave the random generators where they are.
        progress: called with each event of the measurement as it happens; by default a notebook shows a bar.

    Raises:
        UsageError: ``loader`` cannot be iterated, ``step_fn`` cannot be called, or ``budget`` is
            not a positive number.
        NothingMeasured: the loader gave no batches to measure with.
    """
    import torch
    from torch.utils.data import DataLoader

    from .ladder.measurement import Measurement
    from .loop.iterables import loader_over
    from .loop.training_state import TrainingState
    from .measure.device import default_device
    from .measure.machine import environment
    from .measure.schedule import KNOBS_SHARE, Plan
    from .report.progress import NotebookBar, in_notebook

    if not isinstance(loader, DataLoader):
        if not has_attribute(type(loader), "__iter__"):
            raise UsageError(f"diagnose() needs a DataLoader or an iterable of batches, not {type(loader).__name__}")
        loader = loader_over(loader)
    if not callable(step_fn):
        raise UsageError(f"diagnose() needs a function of a batch, not {type(step_fn).__name__}")
    budget = positive("budget", budget, "seconds")
    facts = {**environment(), "torch": torch.__version__}
    session = Session(tool_version=__version__, began=time.perf_counter(), environment=facts)
    # Measure this loader, even if step_fn steps no optimizer.
    plan = Plan(budget=budget, inference=True, knobs=KNOBS_SHARE * budget if knobs else 0.0)
    bar = NotebookBar(session, budget) if progress is None and in_notebook() else None
    send = progress or bar or (lambda kind, data: None)
    measurement = Measurement(plan, session, send, next_round, gathers=True)
    if device is not None:
        measurement.training.device = torch.device(device)
    state = TrainingState()
    try:
        with ExitStack() as stack:
            if bar is not None:
                stack.callback(bar.clear)
            if not keep_training:
                stack.callback(_note_restored, state, session)
                stack.enter_context(state.kept(step_fn, loader))
            stack.enter_context(_set_aside_iterator(loader))
            stack.enter_context(measurement.installed())
            ended_in(stack.pop_all(), partial(_train, loader, step_fn, measurement, session))
    except KeyboardInterrupt:
        if not session.anything_seen:
            raise
        session.ended = "interrupted"
    except Exception as error:
        _attach(error, measurement, session)
        raise
    if measurement.training.device is None:
        session.device.setdefault("type", default_device().type)
    if not session.anything_seen:
        too_short = f"the budget of {budget:g} s ended before a step was measured: give more" if session.ended else ""
        raise NothingMeasured(unmeasurable(session) or too_short or "no step was seen: the loader is empty")
    return Diagnosis.of(job_session({0: session, **measurement.ranks}))


def _train(
    loader: DataLoader[Any], step_fn: Callable[[Any], object], measurement: Measurement, session: Session
) -> None:
    """Run the loop until the measurement stops it, or until the loader is empty twice in a row."""
    try:
        empty = 0
        while empty < 2:
            empty += 1
            for batch in loader:
                empty = 0
                step_fn(batch)
    except AnalysisOver as over:
        session.ended = over.reason
    except BaseException:
        with suppress(Exception):  # as from a device that has failed: the loop's own exception says more
            measurement.conclude()
        raise
    measurement.conclude()


def _note_restored(state: TrainingState, session: Session) -> None:
    """Warn in the session of what was restored after the training steps, and of what could not be."""
    if state.lost:
        session.warn(
            "training-not-restored",
            f"the measurement trained, and could not restore {few_of(state.lost)}",
            "load a checkpoint before you train on",
        )
    if state.holders:
        session.warn(
            "training-restored",
            f"the measurement's training steps are undone: {', '.join(state.holders)} and the random generators are "
            "as before",
            "keep_training=True keeps what was learnt",
        )


def _attach(error: Exception, measurement: Measurement, session: Session) -> None:
    """Attach the diagnosis to the exception that ended the loop, and add a note with what the loop got then."""
    rung = measurement.summary().rung or "baseline"
    under = "" if rung == "baseline" else f" on {received(rung)}"
    session.ended = "script-failed"
    session.script.error = "".join(format_exception_only(error)).strip().splitlines()[-1]
    session.warn("script-failed", f"the loop failed{under}: {session.script.error}")
    if not session.anything_seen:
        return
    vars(error)["diagnosis"] = Diagnosis.of(session)
    with suppress(Exception):  # before Python 3.11, and of a frozen class
        error.add_note(
            f"It was raised while pipediag measured the loop{under or ' as it is'}. "
            "What was measured before is in this exception's attribute `diagnosis`."
        )


def _stage_name(piece: analysis.diagnosis.Stage) -> str:
    """Return the name of a piece of the step, with the other stages and the transforms in it."""
    name = f"{piece.stage} (with {', '.join(piece.others)})" if piece.others else piece.stage
    return f"{name}: {', '.join(piece.links)}" if piece.links else name


def _as_it_is(loader: DataLoader[Any], why: str) -> DataLoader[Any]:
    warnings.warn(f"the loader is left as it is: {why}", stacklevel=3)  # the caller of Diagnosis.apply
    return loader


@contextmanager
def _set_aside_iterator(loader: DataLoader[Any]) -> Iterator[None]:
    """Remove the iterator kept by a loader with persistent workers, so that it builds a new one; restore it at exit."""
    kept, loader._iterator = loader._iterator, None
    try:
        yield
    finally:
        loader._iterator = kept
