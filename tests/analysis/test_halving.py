"""The race of loader settings with simulated rates: who stays, who wins, and that neither drift nor chance decides."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import pytest

from pipediag.analysis.trials.halving import FIRST_LOOK, arms, best, next_settings, rate, to_dict
from pipediag.measure.schedule import Schedule
from pipediag.measure.window import Stopwatch, window_steps
from pipediag.session import Knobs, LoaderSettings, Rung, Session, Window, settings_of, settings_rung

#: Milliseconds of a step on the loader as it is.
BASE = 100.0


def entered(workers: Sequence[int]) -> Session:
    """A session in which loaders with these numbers of workers are to be tried."""
    return Session(knobs=Knobs([LoaderSettings(count, 2) for count in workers]))


def raced(gains: Sequence[float], rounds: int, noise: float = 0.0, seed: int = 3, drift: float = 0.0) -> Session:
    """Add ``rounds`` in which settings with 2, 3, ... workers reach these speedups, and all stay to the end."""
    session, draw = entered(range(2, 2 + len(gains))), random.Random(seed)
    for round_ in range(7, 7 + rounds):
        machine = 1.0 + drift * (round_ - 7)
        for rung, gain in (("baseline", 1.0), *((settings_rung(k), gain) for k, gain in enumerate(gains, 1))):
            ms = BASE / gain * machine * (1 + draw.gauss(0, noise))
            session.windows.append(Window(rung, round_, 10, ms / 100))
    return session


def run(gains: Sequence[float], noise: float, seed: int, most: int = 20) -> Session:
    """Run a whole race, round by round as it asks for them."""
    session, draw = entered(range(2, 2 + len(gains))), random.Random(seed)
    for round_ in range(1, most):
        for rung in next_settings(session):
            number = settings_of(rung)
            ms = BASE / (1.0 if number is None else gains[number - 1]) * (1 + draw.gauss(0, noise))
            session.windows.append(Window(rung, round_, 10, ms / 100))
    return session


def names(*numbers: int) -> list[str]:
    return ["baseline", *map(settings_rung, numbers)]


class TestWhoStays:
    @pytest.mark.parametrize("rounds", range(FIRST_LOOK))
    def test_all_until_the_first_look(self, rounds: int) -> None:
        assert next_settings(raced([2.0, 1.0, 1.5], rounds)) == names(1, 2, 3)

    def test_the_better_half(self) -> None:
        assert next_settings(raced([1.2, 1.5, 1.3, 1.6], FIRST_LOOK, noise=0.1)) == names(2, 4)

    def test_who_has_left_does_not_come_back(self) -> None:
        session = raced([1.2, 1.5, 1.3, 1.6], FIRST_LOOK, noise=0.1)
        for round_ in range(20, 20 + FIRST_LOOK - 1):
            for rung, ms in (("baseline", 100.0), ("settings:2", 60.0), ("settings:4", 61.0)):
                session.windows.append(Window(rung, round_, 10, ms / 100))
                assert next_settings(session) == names(2, 4)
        session.windows += [Window(rung, 30, 10, 1.0 if rung == "baseline" else 0.6) for rung in names(2, 4)]
        assert next_settings(session) == [], "one is left, and it pays"

    def test_not_who_is_certainly_slower_than_the_first(self) -> None:
        session = raced([1.2, 2.0, 1.3, 1.0, 1.0, 1.0], FIRST_LOOK, noise=0.001)
        assert next_settings(session) == [], "half of six are three, but two of them cannot win any more"

    def test_not_who_certainly_gains_too_little(self) -> None:
        assert next_settings(raced([1.0, 1.02], FIRST_LOOK, noise=0.001)) == []

    def test_not_who_cannot_be_measured(self) -> None:
        session = raced([2.0, 1.5], 2)
        session.rungs["settings:1"] = Rung("settings:1", False, "no memory")
        assert next_settings(session) == names(2)
        session.rungs["settings:2"] = Rung("settings:2", False, "no memory")
        assert next_settings(session) == []

    def test_one_goes_on_until_it_is_decided(self) -> None:
        open_ = raced([1.1], FIRST_LOOK, noise=0.1)
        assert next_settings(open_) == names(1)
        assert next_settings(raced([1.1], FIRST_LOOK, noise=0.001)) == []

    def test_nothing_to_try(self) -> None:
        assert next_settings(Session()) == [] == arms(Session())
        assert best(Session()) is None and to_dict(Session()) is None


class TestWhoWins:
    def test_the_fastest(self) -> None:
        found = best(raced([1.5, 2.0, 1.2], FIRST_LOOK, noise=0.005))
        assert found is not None and found.rung == "settings:2"
        assert found.speedup is not None and found.speedup.low < 2.0 < found.speedup.high

    def test_the_cheaper_of_those_that_are_about_as_fast(self) -> None:
        """The gain of three more workers is not worth a change."""
        session = raced([1.98, 2.0, 2.02], FIRST_LOOK, noise=0.001)
        found = best(session)
        assert found is not None and found.settings.num_workers == 2

    @pytest.mark.parametrize(("gain", "verdict"), [(1.5, "pays"), (1.02, "pays"), (1.004, "no gain"), (0.8, "slower")])
    def test_only_what_clears_the_instruments_resolution(self, gain: float, verdict: str) -> None:
        session = raced([gain], FIRST_LOOK, noise=0.0005)
        assert arms(session)[0].verdict == verdict
        assert (best(session) is not None) is (verdict == "pays")

    def test_few_rounds_prove_nothing(self) -> None:
        session = raced([3.0], FIRST_LOOK - 1)
        assert best(session) is None and arms(session)[0].verdict == "open"

    def test_rounds_without_the_loader_as_it_is_do_not_count(self) -> None:
        session = raced([3.0], FIRST_LOOK)
        session.windows.remove(session.windows_of("baseline")[0])
        assert arms(session)[0].rounds == FIRST_LOOK - 1 and best(session) is None

    def beside_others(self, foreign: Sequence[float], gains: Sequence[float]) -> Session:
        """A race on two cores, in which other processes use ``foreign`` cores during the loader's own windows."""
        session = raced([1.0], len(gains))
        session.environment["cores"] = 2
        for window in session.windows:
            busy = foreign[window.round - 7] if window.rung == "baseline" else 0.0
            window.evidence = {"cores_busy": 1.0 + busy, "cores_used": 1.0}
            if window.rung != "baseline":
                window.seconds /= gains[window.round - 7]
        return session

    def test_rounds_under_unlike_load_do_not_count(self) -> None:
        """Two rounds say that it is slower; in three, another program slowed the loader, but not its rival."""
        session = self.beside_others([0.0, 0.0, 1.0, 1.0, 1.0], [0.8, 0.8, 2.0, 2.0, 2.0])
        (arm,) = arms(session)
        assert arm.rounds == 2 and arm.speedup is not None
        assert arm.speedup.value == pytest.approx(0.8)
        assert best(session) is None and next_settings(session) == names(1)

    def test_rounds_under_like_load_do(self) -> None:
        assert arms(self.beside_others([0.2] * 3, [1.5] * 3))[0].rounds == 3

    def test_windows_of_different_passes_are_no_round(self) -> None:
        session = raced([1.5], FIRST_LOOK)
        session.windows_of("settings:1")[0].attempt = 2
        assert arms(session)[0].rounds == FIRST_LOOK - 1

    def test_the_best_of_many_needs_a_clearer_lead(self) -> None:
        """The same windows of one setting, alone and among six."""
        alone = raced([1.15], FIRST_LOOK, noise=0.035, seed=9)
        assert arms(alone)[0].pays
        among = Session(windows=list(alone.windows), knobs=Knobs([LoaderSettings(2 + k, 2) for k in range(6)]))
        among.windows += [Window(settings_rung(k), 7, 10, 1.0) for k in range(2, 7)]
        assert not arms(among)[0].pays and arms(among)[0].speedup == arms(alone)[0].speedup

    def test_seldom_by_chance(self) -> None:
        fooled = [seed for seed in range(20) if best(run([1.0, 1.0, 1.0], 0.03, seed, most=10)) is not None]
        assert len(fooled) <= 1

    @pytest.mark.parametrize("seed", range(5))
    def test_in_spite_of_noise(self, seed: int) -> None:
        found = best(run([1.1, 1.6, 1.3], 0.03, seed))
        assert found is not None and found.rung == "settings:2"


class Machine:
    """Runs a race on a simulated clock and slows down all the time."""

    def __init__(self, session: Session, gains: Sequence[float], slowing: float) -> None:
        self.seconds = 0.0
        self.order: list[str] = []
        self._session, self._gains, self._slowing = session, gains, slowing

    def now(self) -> float:
        return self.seconds

    def step(self, rung: str) -> None:
        number = settings_of(rung)
        gain = 1.0 if number is None else self._gains[number - 1]
        self.seconds += BASE / 1000 / gain * (1 + self._slowing * self.seconds)

    def race(self) -> None:
        schedule = Schedule(names(*range(1, 1 + len(self._gains))), self._session, next_settings)
        schedule.round = 1
        while (rung := schedule.next_rung()) is not None:
            self.order.append(rung)
            watch = Stopwatch(self, lambda: None)
            watch.start()
            for _ in range(window_steps(BASE / 1000, 0.5, 2)):
                self.step(rung)
                watch.count()
            watch.stop()
            self._session.windows.append(Window(rung, schedule.round, watch.steps, watch.seconds))


@pytest.mark.parametrize("slowing", [0.0, 0.03])
def test_drift_does_not_decide(slowing: float) -> None:
    """The machine slows down by more than any setting gains."""
    session = entered([2, 4, 8])
    machine = Machine(session, [1.0, 1.3, 1.1], slowing)
    machine.race()
    found = best(session)
    assert found is not None and found.rung == "settings:2"
    assert found.speedup is not None and found.speedup.value == pytest.approx(1.3, rel=0.05)
    firsts = [window.ms_per_step for window in session.windows_of("baseline")]
    assert (firsts[-1] > 1.1 * firsts[0]) is bool(slowing)
    by_round: dict[int, list[str]] = {}
    for window in session.windows:
        by_round.setdefault(window.round, []).append(window.rung)
    assert all("baseline" in rungs for rungs in by_round.values())
    assert len({tuple(rungs) for rungs in by_round.values()}) > 1, "the order varies"


def test_as_published() -> None:
    session = raced([2.0, 1.0], FIRST_LOOK)
    assert session.knobs is not None
    session.knobs.tried.append(LoaderSettings(16, 2, True, startup=0.5))
    session.rungs["settings:3"] = Rung("settings:3", False, "no memory")
    told = to_dict(session)
    assert told is not None and json.loads(json.dumps(told)) == told
    assert told["best"] == "settings:1" and told["why_not"] is None
    assert [one["verdict"] for one in told["tried"]] == ["pays", "no gain", "failed"]
    assert told["tried"][0]["measured_speedup"]["value"] == pytest.approx(2.0)
    assert told["tried"][0]["steps_per_s"]["value"] == pytest.approx(20.0)
    assert told["tried"][2] == {
        "rung": "settings:3",
        "num_workers": 16,
        "prefetch_factor": 2,
        "pin_memory": True,
        "startup_s": 0.5,
        "steps_per_s": None,
        "measured_speedup": None,
        "rounds": 0,
        "verdict": "failed",
        "why_not": "no memory",
    }


def test_rates_are_those_of_the_race() -> None:
    session = raced([2.0], FIRST_LOOK)
    session.windows.append(Window("baseline", 0, 10, 5.0))
    steps = rate(session, "baseline")
    assert steps is not None and steps.value == pytest.approx(10.0)
