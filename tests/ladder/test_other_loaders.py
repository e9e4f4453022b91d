"""What the loop spends on loaders that it starts between its steps, on a clock that the test moves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from pipediag.errors import AnalysisOver
from pipediag.ladder.findings import Findings
from pipediag.ladder.measurement import Measurement
from pipediag.ladder.other_loaders import OtherLoaders
from pipediag.measure.schedule import Plan
from pipediag.session import OtherStart, Session, Startup

from ..clock import Clock
from ..things import Numbers

#: Seconds to make a sample of the training data, and of other data; seconds of a step; samples of a batch.
SAMPLE, OTHER, STEP, BATCH = 1 / 64, 1 / 16, 1 / 4, 4


class Track:
    """A loader that is not the training loader."""

    def __init__(self, where: str = "eval.py:7", workers: int = 2, persistent: bool = False) -> None:
        loader = SimpleNamespace(num_workers=workers, persistent_workers=persistent)
        self.where, self.findings, self.loader = where, Findings(), lambda: loader


class Recorder:
    def __init__(self) -> None:
        self.clock = Clock(100.0)
        self.sent: list[OtherStart] = []
        self.others = OtherLoaders(self.clock, 1, self.sent.append)

    def uses(self, track: Any, step: int, seconds: float, starts: bool = False) -> None:
        with self.others.used(track, step, starts):
            self.clock.seconds += seconds
        self.clock.seconds += 10.0  # what is done with the batch


class TestRecorder:
    def test_from_its_start_until_the_loop_trains_again(self) -> None:
        told, track = Recorder(), Track()
        told.uses(track, 7, 2.0, starts=True)
        told.uses(track, 7, 0.5)
        told.uses(track, 7, 0.25)
        assert told.sent == [], "it may go on"
        told.others.trains(8)
        assert told.sent == [OtherStart("eval.py:7", 7, 2.75, 0.0, 2)]
        assert told.others.spent.seconds == 2.75

    def test_the_next_start_ends_the_last_one(self) -> None:
        told, track = Recorder(), Track(workers=0)
        for step in (7, 9):
            told.uses(track, step, 2.0, starts=True)
        assert told.sent == [OtherStart("eval.py:7", 7, 2.0)]

    def test_a_loader_that_goes_on_with_the_training_is_part_of_its_steps(self) -> None:
        """Such as unlabelled batches beside the labelled ones."""
        told, track = Recorder(), Track()
        told.uses(track, 7, 2.0, starts=True)
        for step in range(8, 20):
            told.uses(track, step, 1.0)
        assert told.sent == [OtherStart("eval.py:7", 7, 2.0, 0.0, 2)] and told.others.spent.seconds == 2.0
        assert told.others.beside == 12.0

    def test_two_loaders_in_one_step(self) -> None:
        told = Recorder()
        for track in (one := Track("a.py:1"), two := Track("b.py:2"), one, two):
            told.uses(track, 7, 2.0 if track is one else 1.0, starts=True)
        told.others.trains(8)
        assert told.sent == [OtherStart("a.py:1", 7, 4.0, 0.0, 2), OtherStart("b.py:2", 7, 2.0, 0.0, 2)]

    def test_what_kept_workers_would_save(self) -> None:
        """Launching them, 0.75 s until they are ready, and ending them; not their first batch."""
        told, track = Recorder(), Track()
        told.uses(track, 7, 2.0, starts=True)
        track.findings.startups.append(Startup(1.5, launch=0.5, ready=0.75))
        track.findings.shutdown = 0.25
        told.others.trains(8)
        assert told.sent[0].kept == 1.0

    def test_kept_workers_save_nothing(self) -> None:
        told, track = Recorder(), Track(persistent=True)
        track.findings.startups.append(Startup(1.5, launch=0.5, ready=0.75))
        told.uses(track, 7, 2.0, starts=True)
        track.findings.startups.append(Startup(0.5, renewed=True))
        told.others.trains(8)
        assert (told.sent[0].kept, told.sent[0].persistent_workers) == (0.0, True)

    def test_an_error_ends_the_use(self) -> None:
        told, track = Recorder(), Track()
        with pytest.raises(RuntimeError), told.others.used(track, 7, True):  # type: ignore[arg-type]
            told.clock.seconds += 2.0
            raise RuntimeError
        told.others.trains(8)
        assert told.sent[0].seconds == 2.0

    def test_not_without_limit(self) -> None:
        told, track = Recorder(), Track()
        for step in range(1000):
            told.uses(track, step, 2.0, starts=True)
        assert len(told.sent) == 200 and told.others.spent.seconds == 2000.0


class Script:
    """A training that calls ``between`` with its other loader every five steps."""

    def __init__(
        self, between: Callable[[DataLoader[Any]], None], data: Callable[[], Dataset[Any]] | None = None
    ) -> None:
        self.clock, self.session = Clock(100.0), Session()
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        other = DataLoader(Numbers(self.clock, OTHER, 2 * BATCH), BATCH)
        measurement = Measurement(
            Plan(budget=60.0, rungs=["device", "baseline"]),
            self.session,
            lambda kind, data: None,
            lambda session: [] if len(session.windows) >= 6 else ["device", "baseline"],
            self.clock,
        )
        with measurement.installed(), pytest.raises(AnalysisOver):
            training = DataLoader(data() if data is not None else Numbers(self.clock, SAMPLE, 4000), BATCH)
            steps = 0
            while True:
                for batch in training:
                    model(batch).sum().backward()
                    optimizer.step()
                    self.clock.seconds += STEP
                    steps += 1
                    if steps % 5 == 0:
                        between(other)

    def ms(self, rung: str) -> set[float]:
        """Milliseconds a step in the windows of a rung."""
        return {window.ms_per_step for window in self.session.windows_of(rung)}


class Nested(Dataset[Any]):
    """Samples of a loader that the dataset starts itself, again and again, as for patches of volumes."""

    def __init__(self, workers: int, early: bool) -> None:
        self.loader = DataLoader(Numbers(), None, num_workers=workers)
        self.samples: Iterator[Any] = iter(self.loader if early else ())

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        sample = next(self.samples, None)
        if sample is None:
            self.samples = iter(self.loader)
            sample = next(self.samples)
        return sample


class TestScript:
    @pytest.mark.parametrize(("workers", "early"), [(0, False), (1, False), (1, True)])
    def test_a_loader_inside_the_dataset_is_part_of_making_a_batch(self, workers: int, early: bool) -> None:
        """A worker process could not start it, if it has workers."""
        session = Script(lambda other: None, lambda: Nested(workers, early)).session
        assert session.other_starts == []
        assert session.loader is not None and session.loader.nests == bool(workers)

    def test_a_validation_in_every_fifth_step(self) -> None:
        def validate(loader: DataLoader[Any]) -> None:
            for _ in loader:
                pass

        script = Script(validate)
        starts = script.session.other_starts
        assert len(starts) > 5 and {one.seconds for one in starts} == {2 * BATCH * OTHER}
        assert {after.step - before.step for before, after in pairwise(starts)} == {5}
        line = validate.__code__.co_firstlineno + 1
        assert {one.where.rpartition("/")[2] for one in starts} == {f"test_other_loaders.py:{line}"}
        assert script.ms("device") == {1000 * STEP}, "no window includes it"
        assert script.ms("baseline") == {1000 * (STEP + BATCH * SAMPLE)}
        observed = [one.seconds / one.steps for one in script.session.observed]
        assert min(observed) > STEP and max(observed) <= STEP + BATCH * SAMPLE + 1e-9, "less what pipediag really took"

    def test_what_is_done_with_its_batches_is_part_of_the_step(self) -> None:
        """A quarter of a second for each of two batches, in every fifth step."""

        def validate(loader: DataLoader[Any]) -> None:
            for _ in loader:
                loader.dataset.clock.seconds += 0.25  # type: ignore[attr-defined]

        script = Script(validate)
        assert {one.seconds for one in script.session.other_starts} == {2 * BATCH * OTHER}
        assert max(script.ms("device")) > 1000 * STEP

    def test_a_second_loader_that_is_drawn_from_in_every_step(self) -> None:
        """Only starting it again counts."""
        drawing: list[Iterator[Any]] = []

        def draw(loader: DataLoader[Any]) -> None:
            if not drawing or next(drawing[0], None) is None:
                drawing[:] = [iter(loader)]
                next(drawing[0])

        script = Script(draw)
        starts = script.session.other_starts
        assert starts and {one.seconds for one in starts} == {BATCH * OTHER}
        assert {after.step - before.step for before, after in pairwise(starts)} == {10}

    def test_another_thread_does_not_hold_up_the_loop(self) -> None:
        def validate(loader: DataLoader[Any]) -> None:
            thread = threading.Thread(target=lambda: [*loader])
            thread.start()
            thread.join()

        assert Script(validate).session.other_starts == []
