"""Watch a training from beside it: how long the loop waits for data in each step, without changing or caching anything.

It measures what an analysis calls *observed*. On a GPU a wait counts as far as the GPU idles in it, by the GPU's own
clock and without synchronising.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from statistics import fmean, median
from typing import Any

from .analysis.thresholds import GATE
from .analysis.words import number
from .clock import Clock, SystemClock
from .errors import UsageError, at_least
from .loop.iterators import IteratorHook, NativeIterator
from .measure.window import EventMaker, StepClock
from .usercode.attributes import has_attribute

#: Gets the figures of the last steps, and the number of steps seen so far.
Log = Callable[[dict[str, float], int], None]
#: A step is a pause, as for a validation, if the loop takes this many times the usual time after its batch came, and at
#: least these seconds.
_UNUSUAL, _PAUSE = 10.0, 1.0


class Monitor:
    """A loader whose loop is timed; otherwise it is the loader. :func:`monitor` makes it."""

    def __init__(self, loader: Iterable[Any], meter: Meter) -> None:
        self._loader, self._meter = loader, meter

    def __iter__(self) -> Iterator[Any]:
        return Timed(iter(self._loader), self._meter)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def monitor(loader: Iterable[Any], log: Log | None = None, *, every: int = 50) -> Monitor:
    """Return the loader, timed: ``for batch in pipediag.monitor(loader):``.

    Every ``every`` steps, ``log`` is called with the means of these steps and the number of steps so far:
    ``data/wait_ms``, for which the loop waits in a step, ``data/step_ms`` and ``data/share``, the one divided by the
    other. The first batch of an epoch and pauses, as for a validation, are left out. By default Python's logger
    ``pipediag`` gets a line, as a warning when data first costs 5 % of a step or more.

    Raises:
        UsageError: the loader cannot be iterated, or ``every`` is no positive whole number.
    """
    if not has_attribute(type(loader), "__iter__"):
        raise UsageError(f"monitor() needs an iterable of batches, not {type(loader).__name__}")
    return Monitor(loader, Meter(log or _Logged(), every))


@contextmanager
def monitored(trains: Callable[[Any], bool], log: Log, every: int) -> Iterator[None]:
    """Time the loop over the first torch ``DataLoader`` that is iterated within the context and for which ``trains``
    returns true, whoever iterates it.

    Raises:
        UsageError: ``every`` is no positive whole number.
    """
    meter, chosen = Meter(log, every), list[Any]()

    def build(loader: Any, native: NativeIterator) -> Any:
        if not chosen and trains(loader):
            chosen.append(loader)
        return Timed(native(loader), meter) if any(loader is one for one in chosen) else native(loader)

    try:
        with IteratorHook(build).installed():
            yield
    finally:
        meter.over = True  # a loader with persistent workers keeps its iterator


class Meter:
    """Collects the steps of a loop, and hands their means on."""

    def __init__(self, log: Log, every: int, clock: Clock | None = None) -> None:
        self._log, self._every = log, at_least(1, "every", every)
        self._clock = clock or SystemClock()
        self._steps: list[tuple[float, float]] = []
        self._seen = 0
        self._timer: StepClock | None = None
        self.over = False  # nothing is timed any more

    def asks(self) -> None:
        """Note that the loop asks for a batch; log the steps that are complete if they are enough."""
        if self._timer is None:
            self._timer = StepClock(self._clock, _device())
        self._timer.asks()
        steps = self._timer.take()
        self._seen += len(steps)
        self._steps += steps
        if len(self._steps) >= self._every:
            steps, self._steps = self._steps, []
            self._log(means(steps), self._seen)

    def gets(self) -> None:
        if self._timer is not None:
            self._timer.gets()

    def breaks(self) -> None:
        """Discard the step under way, as at the end of an epoch."""
        if self._timer is not None:
            self._timer.breaks()


class Timed:
    """An iterator that tells a meter when the loop asks for a batch and gets it."""

    def __init__(self, iterator: Any, meter: Meter) -> None:
        self._iterator, self._meter = iterator, meter
        self._begins = True
        meter.breaks()

    def __iter__(self) -> Timed:
        return self

    def __next__(self) -> Any:
        meter = self._meter
        if self._begins or meter.over:
            self._begins = False
            return next(self._iterator)
        meter.asks()
        try:
            batch = next(self._iterator)
        except BaseException:
            meter.breaks()
            self._begins = True
            raise
        meter.gets()
        return batch

    def _reset(self, *args: Any, **kwargs: Any) -> Any:
        """Begin another epoch with the same workers, as ``iter()`` of a loader that keeps them does."""
        self._begins = True
        self._meter.breaks()
        return self._iterator._reset(*args, **kwargs)

    def __len__(self) -> int:
        return len(self._iterator)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)


def means(steps: list[tuple[float, float]]) -> dict[str, float]:
    """Return the means of steps, given as seconds and waited seconds, without those in which the loop paused."""
    usual = median(seconds - waited for seconds, waited in steps)
    kept = [one for one in steps if one[0] - one[1] <= max(_PAUSE, _UNUSUAL * usual)] or steps
    step, wait = (1000 * fmean(column) for column in zip(*kept, strict=True))
    return {"data/wait_ms": wait, "data/step_ms": step, "data/share": wait / step if step else 0.0}


class _Logged:
    """Writes the figures to Python's logger ``pipediag``."""

    def __init__(self) -> None:
        self._warned = False

    def __call__(self, figures: dict[str, float], steps: int) -> None:
        wait, step, share = figures.values()
        words = "after %d steps: the loop waits %s of %s ms for data (%.0f %% of a step, observed)%s"
        warns = share >= GATE and not self._warned
        self._warned |= warns
        where = "; pipediag analyze says where it comes from" if warns else ""
        level = logging.WARNING if warns else logging.INFO
        logging.getLogger("pipediag").log(level, words, steps, number(wait), number(step), 100 * share, where)


def _device() -> EventMaker | None:
    """Return the GPU if this process uses one; nothing here may be the first to use it."""
    import torch

    if not torch.cuda.is_initialized():
        return None
    from .measure.device import Device

    return Device(torch.device("cuda"))
