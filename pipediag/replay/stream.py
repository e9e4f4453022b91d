"""Record the samples that a worker draws from an iterable dataset.

Such a sample is made only once: the dataset's own code goes on from where it was. So code that needs pixels gets them,
and a batch that cannot be recorded is collated from the real images of its samples. The recording lasts from the first
sample of a batch until it is collated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from torch.utils.data import IterableDataset

from ..usercode import randomness
from ..usercode.objects import replaced
from .ops.op import NotRecordable
from .pack.packed_batch import Packed
from .pack.ring import Ring
from .plan import Plan
from .record.own_errors import is_users_own
from .record.tape import session
from .worker import PackedCollate, Unrecorded, real_leaf


class RecordedStream(IterableDataset):  # type: ignore[misc]
    """The user's iterable dataset, whose samples are recorded; :meth:`collate` is the loader's collate function."""

    def __init__(self, dataset: Any, collate: Callable[[Any], Any], plan: Plan, ring: Ring | None = None) -> None:
        self.dataset = dataset
        self._plan = plan
        self._packed = PackedCollate(collate, ring)
        self._real = collate if ring is None else self._packed
        self._recording: ExitStack | None = None
        self._records = False
        self._settled = self._raised = 0

    def __iter__(self) -> Iterator[Any]:
        return _Samples(self, iter(self.dataset))

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def ready(self) -> None:
        """Do nothing: no preparation is needed."""

    def begin(self) -> None:
        """Record from now on, for a batch. With other transforms than the plan's, make it with pixels."""
        if self._recording is not None:
            return
        self._settled = session.settled
        session.why = ""
        with ExitStack() as recording:
            try:
                recording.enter_context(self._plan.installed(self._plan.recorders(self.dataset)))
                recording.enter_context(session.going_on())
            except NotRecordable as error:
                session.why = str(error)
            self._records = not session.why
            self._recording = recording.pop_all()
        self._raised = NotRecordable.raised

    def end(self) -> None:
        recording, self._recording = self._recording, None
        if recording is not None:
            recording.close()

    def collate(self, samples: Any) -> Packed | Unrecorded:
        """Return the batch of the samples.

        Raises:
            NotRecordable: code has caught an error that only a recorded image raises. It may have left out a sample,
                which cannot be made again.
        """
        self.begin()
        drawn = randomness.state()
        try:
            hidden = NotRecordable.raised != self._raised
            if self._records and session.settled == self._settled and not hidden:
                return self._packed.recorded(samples, self._plan)
            reason = session.why
        except Exception as error:
            if is_users_own(error):
                raise
            reason = f"{type(error).__name__}: {error}"
        finally:
            self.end()
        if hidden:
            raise NotRecordable(
                "code of the dataset has caught an error that only a recorded image raises, and may have left out a "
                "sample: use this loader without the remedy"
            )
        randomness.restore(drawn)
        return Unrecorded(self._real(replaced(samples, real_leaf)), reason)


class _Samples:
    """Iterator over the user's samples."""

    def __init__(self, stream: RecordedStream, samples: Iterator[Any]) -> None:
        self._stream = stream
        self._samples = samples

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._stream.begin()
        try:
            return next(self._samples)
        except BaseException:  # also at the end
            self._stream.end()
            raise
