"""The time limit is kept: everything from the first batch on counts, also preparing a remedy."""

from __future__ import annotations

from dataclasses import asdict
from itertools import chain, repeat
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from pipediag.analysis.trials.remedy import can_be_judged
from pipediag.errors import AnalysisOver
from pipediag.ladder import remedy_trial
from pipediag.ladder.measurement import Measurement
from pipediag.ladder.remedy_trial import RemediedFeed
from pipediag.measure.schedule import Plan
from pipediag.session import LOADED_ONCE, REMEDIED, Place, Remedy, Session

from ..clock import Clock
from ..made import inside
from ..things import Numbers


class Run:
    """A loop of one process on a fake clock, measured until the time is over."""

    def __init__(self, plan: Plan, *first_steps: float) -> None:
        self.clock, self.session = Clock(100.0), Session()
        self.events: list[tuple[str, dict[str, Any], float]] = []
        self.plan, self._first_steps = plan, first_steps
        self.data = 0.09  # seconds for a batch; a step takes 0.01 s more

    def send(self, kind: str, data: dict[str, Any]) -> None:
        self.events.append((kind, data, self.clock.now()))

    def time_of(self, kind: str) -> float:
        return next(at for found, _, at in self.events if found == kind)

    def loader(self, seconds: float) -> DataLoader[Any]:
        return DataLoader(Numbers(self.clock, seconds, 1_000_000), batch_size=1)

    def train(self) -> None:
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        measurement = Measurement(
            self.plan,
            self.session,
            self.send,
            lambda session: ["device", "baseline"],
            self.clock,
            choose_trial=lambda session: ["baseline", REMEDIED],
        )
        steps = chain(self._first_steps, repeat(0.01))
        with measurement.installed(), pytest.raises(AnalysisOver, match="pipediag ends the script here"):
            for batch in self.loader(self.data):
                model(batch).sum().backward()
                optimizer.step()
                self.clock.seconds += next(steps)


@pytest.mark.parametrize(("first_step", "most"), [(0.01, 30.0), (10.0, 30.0), (25.0, 25.0 + 15.0)])
def test_the_budget_begins_with_the_first_batch(first_step: float, most: float) -> None:
    """A loop that compiles in its first step leaves less for the ladder, but at least half of the budget."""
    run = Run(Plan(budget=30.0, rungs=["device", "baseline"]), first_step)
    run.train()
    assert most - 1.0 < run.time_of("finished") - run.time_of("first-batch") < most + 1.5


@pytest.mark.parametrize("before", range(8))
def test_a_step_that_outlasts_the_budget_ends_the_measurement_not_the_script(before: int) -> None:
    run = Run(Plan(budget=30.0, rungs=["device", "baseline"]), *[0.01] * before, 60.0)
    run.train()
    assert run.time_of("finished") - run.time_of("first-batch") < 62.0 + 15.0


def remedied(monkeypatch: pytest.MonkeyPatch, preparing: float, later: list[str], pace: float = 0.01) -> Run:
    """Try a remedy for 20 s, with time reserved for the ``later`` ones.

    It takes ``preparing`` seconds to prepare; then it makes a batch in ``pace`` seconds.
    """
    run = Run(Plan(budget=10.0, apply=20.0, rungs=["device", "baseline"]))

    class Trial:
        def __init__(self, rung: str, loop_side: Any, peak_before: int | None, seconds: float) -> None:
            run.clock.seconds += preparing
            self.rung, self.remedy = rung, Remedy(device="cpu", moved=[Place("Flip", "")])
            offloaded: Any = run.loader(pace)
            self.feed = RemediedFeed(rung, offloaded, 1, loop_side.setting.aside, run.clock)
            assert seconds == pytest.approx(20.0 / (1 + len(later)), abs=0.5)

        def send(self, send: Any) -> None:
            send("remedy", asdict(self.remedy))

        def measured(self) -> None: ...

    monkeypatch.setattr("pipediag.ladder.driven.Trial", Trial)
    monkeypatch.setattr("pipediag.ladder.climb.reserved", lambda session, rung: later)  # it depends on the real clock
    monkeypatch.setattr("pipediag.ladder.climb.following", lambda session, rung: None)
    run.train()
    return run


@pytest.mark.parametrize(("preparing", "most"), [(0.0, 20.0), (12.0, 20.0), (50.0, 50.0 + 5.0)])
def test_preparing_a_remedy_is_a_part_of_its_time(
    monkeypatch: pytest.MonkeyPatch, preparing: float, most: float
) -> None:
    """At least a quarter of that time is left for measuring."""
    run = remedied(monkeypatch, preparing, [])
    assert run.session.windows_of(REMEDIED)
    assert most - 1.0 < run.time_of("finished") - run.time_of("applying") < most + 2.5


@pytest.mark.parametrize(("data", "apply", "took"), [(0.09, 20.0, 15.0), (0.09, 0.0, 30.0), (0.0, 20.0, 30.0)], ids=str)
def test_the_ladder_makes_way_for_remedies_once_it_is_certain_that_the_loop_starves(
    monkeypatch: pytest.MonkeyPatch, data: float, apply: float, took: float
) -> None:
    """From half of its budget on."""
    run = Run(Plan(budget=30.0, apply=apply, rungs=["device", "baseline"]))
    run.data = data
    monkeypatch.setattr("pipediag.ladder.climb.left_to_try", lambda *_: run.send("remedies", {}))
    run.train()
    assert run.time_of("remedies" if apply else "finished") - run.time_of("first-batch") == pytest.approx(took, abs=3.0)


@pytest.mark.parametrize(("preparing", "took"), [(0.0, 10.0), (9.0, 15.0)])
def test_a_remedy_is_looked_at_once_before_it_leaves_time_to_the_next(
    monkeypatch: pytest.MonkeyPatch, preparing: float, took: float
) -> None:
    """A trial that ends before its first look was for nothing."""
    run = remedied(monkeypatch, preparing, [LOADED_ONCE], pace=0.3)
    assert run.time_of("finished") - run.time_of("applying") == pytest.approx(took, abs=3.5)
    assert can_be_judged(run.session, REMEDIED)


def test_a_remedy_that_seems_to_pay_takes_the_time_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    run = remedied(monkeypatch, 0.0, [LOADED_ONCE], pace=0.03)
    assert run.time_of("finished") - run.time_of("applying") == pytest.approx(20.0, abs=3.5)


@pytest.mark.parametrize(("seconds", "samples"), [(60.0, 15), (20.0, 8), (1e9, 30)])
def test_certifying_takes_a_part_of_the_time(seconds: float, samples: int) -> None:
    """Each sample takes 0.5 s and is made twice."""
    session = Session(inside=inside(load=500.0))
    assert remedy_trial._samples(session, REMEDIED, seconds) == samples
