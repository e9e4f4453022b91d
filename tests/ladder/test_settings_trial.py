"""The rungs ``settings:k``: clones disturb nothing, and they are compared on a running loop with a fake clock."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from pipediag.analysis.stopping import next_round
from pipediag.analysis.trials.halving import FIRST_LOOK, best
from pipediag.analysis.trials.settings import Candidates
from pipediag.clock import SystemClock
from pipediag.errors import AnalysisOver
from pipediag.ladder import settings_trial
from pipediag.ladder.feed import Feed
from pipediag.ladder.measurement import Measurement
from pipediag.ladder.settings_trial import ClonedFeed, SettingsTrial, cloned, proposal
from pipediag.measure.schedule import Plan
from pipediag.session import Knobs, Loader, LoaderSettings, Rung, Session, Startup, Window, settings_rung

from ..clock import Clock
from ..things import Numbers

TWO, TWO_AHEAD, FOUR, SIXTEEN = LoaderSettings(2, 4), LoaderSettings(2, 2), LoaderSettings(4, 2), LoaderSettings(16, 2)


def make(workers: int = 0, **settings: Any) -> DataLoader[Any]:
    return DataLoader(Numbers(length=12), batch_size=4, shuffle=True, num_workers=workers, **settings)


def feed_of(loader: DataLoader[Any]) -> Feed:
    feed = Feed(loader, DataLoader._get_iterator, SystemClock(), looks_inside=False)
    feed.endless = True
    return feed


class TestClone:
    def test_has_other_settings(self) -> None:
        loader = make(pin_memory=False)
        kept = vars(loader).copy()
        twin = cloned(loader, LoaderSettings(2, 4, True), 7.5)
        assert (twin.num_workers, twin.prefetch_factor, twin.pin_memory, twin.timeout) == (2, 4, True, 7.5)
        assert twin.dataset is loader.dataset and twin.collate_fn is loader.collate_fn
        assert vars(loader) == kept

    @pytest.mark.parametrize("generator", [None, torch.Generator().manual_seed(1)], ids=["torch's own", "given"])
    def test_draws_from_its_own_generators(self, generator: torch.Generator | None) -> None:
        loader = make(generator=generator)
        before = (random.getstate(), torch.get_rng_state(), generator.get_state() if generator is not None else None)
        feed = ClonedFeed("settings:1", feed_of(loader), TWO, 30.0)
        for _ in range(7):  # more than two epochs
            assert feed.take() is not None
        feed.close()
        assert random.getstate() == before[0] and torch.equal(torch.get_rng_state(), before[1])
        if generator is not None:
            assert torch.equal(generator.get_state(), before[2])
        assert loader.sampler.generator is generator

    def test_batches_continue_beyond_the_epoch(self) -> None:
        loader = make()
        feed = ClonedFeed("settings:1", feed_of(loader), TWO, 30.0)
        assert feed.startup is None and feed.worker_pids == []
        seen: list[float] = []
        for _ in range(6):
            delivery = feed.take()
            assert delivery is not None and delivery.fits("settings:1") and delivery.cost.wall > 0
            seen += delivery.batch[:, 0].tolist()
        assert sorted(seen[:12]) == sorted(seen[12:]) == [float(n) for n in range(12)]
        assert (feed.workers, feed.backlog, len(feed.worker_pids)) == (2, 8, 2)
        assert feed.startup is not None and feed.startup > 0 and feed.waited > 0 and feed.stalled >= 0
        feed.close()
        feed.close()
        assert feed.worker_pids == []

    def test_its_workers_are_paused_separately(self) -> None:
        """The measured loader's workers have a switch of their own."""
        measured = feed_of(make())
        feed = ClonedFeed("settings:1", measured, TWO, 30.0)
        assert feed.at_work == 0
        feed.take()
        feed.pause()
        assert feed.rung_switch._is_paused() and not measured.rung_switch._is_paused()
        feed.take()
        assert not feed.rung_switch._is_paused()
        until = time.monotonic() + 10.0
        while feed.ready < feed.backlog and time.monotonic() < until:
            time.sleep(0.01)
        feed.rung_switch.begin(1)
        assert (feed.at_work, measured.at_work) == (1, 0)
        feed.close()
        assert feed.at_work == 0

    def test_no_warning_about_more_workers_than_cores(self, recwarn: pytest.WarningsRecorder) -> None:
        loader = make()
        feed = ClonedFeed("settings:1", feed_of(loader), LoaderSettings(6, 1), 30.0)
        feed.take()
        feed.close()
        assert not [one for one in recwarn if "worker processes" in str(one.message)]

    def test_an_error_makes_the_rung_unavailable_for_good(self) -> None:
        loader = DataLoader(Numbers(length=12), batch_size=4, sampler=[0, 1, 2, 3, 99])
        feed = ClonedFeed("settings:2", feed_of(loader), LoaderSettings(1, 2), 30.0)
        assert feed.take() is not None
        for _ in range(3):
            delivery = feed.take()
            assert delivery is not None and not delivery.fits("settings:2")
            assert (delivery.rung, delivery.why_not) == ("settings:2", "IndexError: no item 99")
            assert feed.worker_pids == []
            feed.renew()

    def test_a_worker_that_hangs_is_given_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.2)  # seconds until it is killed

        class Stuck(Numbers):
            def __getitem__(self, index: int) -> Tensor:
                signal.pause()
                return torch.zeros(1)

        loader = DataLoader(Stuck(), batch_size=4)
        feed = ClonedFeed("settings:1", feed_of(loader), LoaderSettings(1, 1), 0.3)
        delivery = feed.take()
        assert delivery is not None and "timed out after 0.3 seconds" in delivery.why_not


def known(*settings: LoaderSettings) -> Session:
    """Return a session with a finished ladder in which these settings are to be tried."""
    session = Session(loader=Loader(num_workers=0, batch_bytes=48), knobs=Knobs([*settings]) if settings else None)
    session.windows = [Window("baseline", round_, 10, 1.0) for round_ in range(3)]
    return session


class TestProposal:
    @pytest.mark.parametrize(
        ("settings", "options", "knobs", "refused"),
        [
            ([FOUR, TWO_AHEAD], {}, Knobs([FOUR, TWO_AHEAD]), {}),
            # The loop does not starve, or there is a reason why there are none.
            ([], {}, None, {}),
            ([], {"why_not": "a stream"}, Knobs(why_not="a stream"), {}),
            ([FOUR], {"seconds": -3.0}, Knobs(why_not="the ladder left no time for it; give a longer budget"), {}),
            # As many as there is time for. The first look takes 4 windows each: 4 x (1 + 4) steps of 100 ms, 4 x
            # (12 + 4) and 4 x (48 + 16) of 50 ms.
            (
                [FOUR, SIXTEEN],
                {"seconds": 8.0},
                Knobs([FOUR, SIXTEEN]),
                {"settings:2": "there was no time for it; give a longer budget"},
            ),
            (
                [FOUR, SIXTEEN],
                {"seconds": 3.0},
                Knobs(why_not="the ladder left no time for it; give a longer budget"),
                {},
            ),
            # As many as there is memory for.
            ([FOUR, SIXTEEN], {"free": 10 * 2**20}, Knobs([FOUR, SIXTEEN]), {"settings:2": "16 MiB"}),
        ],
    )
    def test_settings_to_try(
        self,
        monkeypatch: pytest.MonkeyPatch,
        settings: list[LoaderSettings],
        options: dict[str, Any],
        knobs: Knobs | None,
        refused: dict[str, str],
    ) -> None:
        """Steps take 100 ms now, and are predicted to take 50 ms."""
        found = Candidates(tuple(settings), 100.0, (50.0,) * len(settings), options.get("why_not", ""))
        monkeypatch.setattr(settings_trial, "candidates", lambda session: found)
        monkeypatch.setattr(settings_trial, "free_bytes", lambda: options.get("free", 2**40))
        monkeypatch.setattr(settings_trial, "own_bytes", lambda pids: 2**20)
        session = known()
        for kind, data in proposal(feed_of(make()), session, options.get("seconds", 40.0)):
            session.apply(kind, data)
        assert session.knobs == knobs and session.rungs.keys() == refused.keys()
        for rung, why in refused.items():
            assert not session.rungs[rung].available and why in session.rungs[rung].why_not


def test_startup_is_estimated_from_the_loaders_own_workers() -> None:
    session = known()
    assert session.loader is not None
    session.loader.num_workers = 2
    session.startups = [Startup(3.0), Startup(1.0, renewed=True)]
    assert settings_trial._startup(LoaderSettings(8, 2), session) == 12.0
    assert settings_trial._startup(LoaderSettings(1, 2), session) == 3.0


class TestTrial:
    def test_only_settings_that_are_still_compared(self) -> None:
        session = known(TWO, LoaderSettings(4, 2))
        session.rungs["settings:1"] = Rung("settings:1", False, "no memory")
        trial = SettingsTrial(feed_of(make()), session, 10.0)
        assert list(trial.feeds) == ["settings:2"] and trial.feeds["settings:2"].workers == 4
        assert trial.schedule().round == 3, "the first round follows the ladder's"

    def test_nothing(self) -> None:
        assert SettingsTrial(feed_of(make()), known(), 10.0).feeds == {}


class Comparison:
    """A loop of one process on a fake clock, compared with loaders whose items take ``items`` seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, items: Sequence[float], seconds: float, length: int) -> None:
        self.clock = Clock(100.0)
        self.session = known(*(LoaderSettings(n, 2) for n in range(1, 1 + len(items))))
        self.events: list[str] = []
        self.closed: list[str] = []
        self._length = length

        def clone(loader: Any, settings: LoaderSettings, patience: float) -> DataLoader[Any]:
            return self.loader(items[settings.num_workers - 1])

        close = ClonedFeed.close
        monkeypatch.setattr(settings_trial, "cloned", clone)
        monkeypatch.setattr(ClonedFeed, "close", lambda feed: (self.closed.append(feed._rung), close(feed))[1])
        self.plan = Plan(budget=seconds, climbed=True, knobs=seconds)

    def loader(self, seconds: float) -> DataLoader[Any]:
        return DataLoader(Numbers(self.clock, seconds, self._length), batch_size=1)

    def run(self, fails_under: str = "") -> None:
        """Train until the analysis is over; an item of the loader itself takes 0.09 s, a step 0.01 s."""
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        measurement = Measurement(
            self.plan, self.session, lambda kind, data: self.events.append(kind), next_round, self.clock
        )
        loader = self.loader(0.09)
        self.measurement = measurement
        with measurement.installed(), pytest.raises(AnalysisOver):
            while True:
                for batch in loader:
                    model(batch).sum().backward()
                    optimizer.step()
                    self.clock.seconds += 0.01
                    assert measurement.summary().rung != fails_under


@pytest.mark.parametrize("length", [100_000, 7], ids=["one epoch", "short epochs"])
def test_the_comparison_on_a_running_loop(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    """Steps of 100 ms, and of 60, 35 and 110 ms under the settings."""
    run = Comparison(monkeypatch, [0.05, 0.025, 0.1], 60.0, length)
    run.run()
    found = best(run.session)
    assert found is not None and found.rung == "settings:2"
    assert found.speedup is not None and found.speedup.value == pytest.approx(100 / 35, rel=1e-6)
    rounds = {rung: run.session.windows_of(rung) for rung in ("baseline", *map(settings_rung, (1, 2, 3)))}
    assert [len(rounds[settings_rung(n)]) for n in (1, 2, 3)] == [FIRST_LOOK] * 3, "there is no noise"
    for rung, ms in (("settings:1", 60.0), ("settings:2", 35.0), ("settings:3", 110.0)):
        assert [window.ms_per_step for window in rounds[rung]] == pytest.approx([ms] * FIRST_LOOK)
    assert [window.ms_per_step for window in rounds["baseline"][3:]] == pytest.approx([100.0] * FIRST_LOOK)
    assert {window.round for window in rounds["settings:1"]} == {*range(3, 3 + FIRST_LOOK)}
    recorded = {(stretch.rung, stretch.round) for stretch in run.session.stretches}
    assert {(window.rung, window.round) for windows in rounds.values() for window in windows[-FIRST_LOOK:]} <= recorded
    assert run.session.knobs is not None
    assert [one.startup for one in run.session.knobs.tried] == pytest.approx([0.05, 0.025, 0.1])
    assert {*run.closed} == {"settings:1", "settings:2", "settings:3"}, "all workers are ended"
    assert run.events.count("trying") == 1 and run.events[-1] == "finished"


def test_the_budget_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then nothing is decided, but the windows measured so far are kept."""
    run = Comparison(monkeypatch, [0.05], 2.0, 100_000)
    began = run.clock.now()
    run.run()
    assert run.clock.now() - began < 2.0 + 0.5
    assert best(run.session) is None and 0 < len(run.session.windows_of("settings:1")) < FIRST_LOOK
    assert {*run.closed} == {"settings:1"}


def test_a_later_pass_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round that one pass began and the other ended does not count: the machine may have changed in between."""
    run = Comparison(monkeypatch, [0.05], 2.0, 100_000)
    run.run()
    before = len(run.session.windows_of("settings:1"))
    run.plan = Plan(budget=60.0, climbed=True, knobs=60.0, attempt=2)
    run.run()
    attempts = [window.attempt for window in run.session.windows_of("settings:1")]
    assert 0 < before < FIRST_LOOK
    assert attempts == [1] * before + [2] * (FIRST_LOOK - before + 1)
    found = best(run.session)
    assert found is not None and found.rung == "settings:1"
    run.run()
    assert len(run.session.windows_of("settings:1")) == FIRST_LOOK + 1, "it is decided"


def test_nothing_is_tried_if_it_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Comparison(monkeypatch, [0.05], 60.0, 100_000)
    run.plan.knobs = 0.0
    run.run()
    assert run.session.windows_of("settings:1") == [] and run.closed == []


def test_a_failure_of_the_script_is_attributed_to_the_rung(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Comparison(monkeypatch, [0.05], 60.0, 100_000)
    with pytest.raises(AssertionError):
        run.run(fails_under="settings:1")
    assert {*run.closed} == {"settings:1"}
    assert run.measurement.summary().rung == "settings:1", "also afterwards"
