"""Launches of the workers to learn what an epoch's start costs, on a clock that moves with them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from pipediag.ladder.climb import start_again
from pipediag.ladder.feed import Feed
from pipediag.ladder.loop_side import Loop, LoopSide
from pipediag.ladder.ranks.lockstep import Lockstep
from pipediag.ladder.workers.delivery import NO_COST, Delivery, Notes
from pipediag.session import Loader, Observed, Session, Startup

from ..clock import Clock
from ..things import Transformed
from .simulated import steering

#: Seconds of a step; of launching the workers, first and later; of making the first batch; of ending the workers.
STEP, LAUNCHES, BATCH, END = 0.125, (4.0, 2.0), 0.5, 0.25
#: Batches that the workers are asked for ahead.
AHEAD = 4


class Iterator:
    """torch's iterator: workers that are launched, asked for some batches ahead, and ended when there are no more."""

    def __init__(self, clock: Clock, loader: Any, launch: float) -> None:
        self._clock = clock
        self._persistent = loader.persistent_workers
        self._sampler = loader.batch_sampler
        clock.seconds += launch
        self._reset(loader)

    def _reset(self, loader: Any) -> None:
        self._indices, self._asked, self._first = iter(self._sampler), 0, True
        self._launched = self._clock.seconds
        for _ in range(AHEAD):
            self._ask()

    def _ask(self) -> None:
        self._asked += next(self._indices, None) is not None

    def __next__(self) -> Delivery:
        if not self._asked:
            self._clock.seconds += 0.0 if self._persistent else END
            raise StopIteration
        notes = Notes(ready=self._launched) if self._first else None
        self._clock.seconds = max(self._clock.seconds, self._launched + BATCH)
        self._asked, self._first = self._asked - 1, False
        self._ask()
        return Delivery(torch.zeros(1), "baseline", True, NO_COST, 0, notes=notes, made=self._launched + BATCH)

    def _shutdown_workers(self) -> None:
        """They have ended already."""


class Script:
    """A script whose loader has epochs of ``length`` batches, after the first steps of its first one."""

    def __init__(self, length: int = 8, launches: Any = LAUNCHES, job: int = 1, **options: Any) -> None:
        self.clock = clock = Clock(100.0)
        loader = DataLoader(Transformed(), batch_size=2, num_workers=2, **options)
        later = iter(launches)
        self.launches, last = 0, launches[-1]

        def native(loader: Any) -> Iterator:
            self.launches += 1
            return Iterator(clock, loader, next(later, last))

        self.feed = Feed(loader, native, clock)
        self.feed.endless = True
        known = Loader(num_workers=2, length=length, persistent_workers=loader.persistent_workers)
        self.session = Session(loader=known, observed=[Observed(4, 4 * STEP, 0.0)])
        self.trained = 0
        training = SimpleNamespace(drew=lambda ordinal: None)
        setting = SimpleNamespace(clock=clock, training=training)
        lockstep = Lockstep()
        lockstep.world_size = job
        self.loop_side = LoopSide(
            Loop(self.feed, 1, setting, torch.device("cpu"), 0, False),  # type: ignore[arg-type]
            steering(clock),
            lockstep,
        )
        self.loop_side.epochs.length = 10**6  # ends of the loop's own epochs do not matter here
        self.feed.take()

    def run(self, budget: float = 100.0) -> list[Startup]:
        """Train until the launches have ended; return all startups."""

        def send() -> None:
            self.session.startups = [*self.feed.findings.startups]

        for _ in start_again(self.loop_side, self.session, budget, send):
            self.trained += 1
            self.clock.seconds += STEP
        return self.session.startups


def test_until_the_cost_is_known() -> None:
    """Three launches after the first; each begins when the batches that were requested are used up."""
    script = Script()
    found = script.run()
    assert found == [
        Startup(LAUNCHES[0] + BATCH, launch=LAUNCHES[0], ready=LAUNCHES[0]),
        *[Startup(LAUNCHES[1] + BATCH, launch=LAUNCHES[1], ready=LAUNCHES[1], shutdown=END)] * 3,
    ]
    assert script.trained == 3 * (AHEAD + 1), "every batch is trained on, the first of each launch among them"
    assert all(script.feed.take() is not None for _ in range(100)), "afterwards, their data does not end"


@pytest.mark.parametrize(
    "script",
    [
        lambda: Script(length=10_000),
        lambda: Script(launches=(0.0,), length=1000),
        lambda: Script(job=2),
    ],
    ids=["long epochs", "fast launches", "ranks of a job"],
)
def test_not_if_it_does_not_matter(script: Any) -> None:
    one = script()
    assert len(one.run()) == 1 and one.trained == 0


@pytest.mark.parametrize(
    ("length", "budget", "launches"),
    [
        # The first launch takes most of an epoch, so half of the budget may go. It took 4.5 s; the later ones take 2.5.
        (8, 8.0, 1),
        (8, 12.0, 2),
        (8, 16.0, 3),
        # An epoch that hardly suffers gets a tenth of the budget: 4.5 s of one of 75 s are 6 %.
        (600, 40.0, 1),
        (600, 60.0, 2),
    ],
)
def test_not_more_than_a_share_of_the_budget(length: int, budget: float, launches: int) -> None:
    assert len(Script(length=length).run(budget=budget)) == launches


def test_launches_that_were_disturbed_do_not_go_on_forever() -> None:
    script = Script(launches=(1.0, 60.0, 60.0, 60.0, 60.0, 60.0, 60.0, 60.0))
    assert len(script.run(budget=10_000.0)) == 6


def test_the_time_is_over() -> None:
    script = Script()
    script.loop_side.steering.limit(5.0)
    assert len(script.run()) == 2


def test_persistent_workers_begin_another_epoch() -> None:
    """They are not launched again, but make a first batch."""
    found = Script(length=2, persistent_workers=True).run()
    assert found == [
        Startup(LAUNCHES[0] + BATCH, launch=LAUNCHES[0], ready=LAUNCHES[0]),
        *[Startup(BATCH, renewed=True)] * 3,
    ]
