"""What other loaders cost that are started between the steps, from their single uses."""

from __future__ import annotations

import pytest

from pipediag.analysis import diagnose_session
from pipediag.analysis.amortised import other_loaders
from pipediag.analysis.numbers.ladder import LadderView
from pipediag.analysis.summary import summarise
from pipediag.report.evidence import evidence_lines
from pipediag.session import OtherStart, Place, Session

from ..made import FLAT, climbing, make


def run(*starts: OtherStart, ladder: dict[str, float] = FLAT) -> Session:
    session = make(ladder, noise=0.0)
    session.other_starts = [*starts]
    return session


def uses(
    count: int = 5, every: int = 10, seconds: float = 0.5, where: str = "eval.py:7", attempt: int = 1
) -> list[OtherStart]:
    """Uses every ``every`` steps, the first of which takes three seconds longer."""
    return [
        OtherStart(where, 5 + every * n, seconds + 3.0 * (n == 0), 0.8 * seconds, 2, False, attempt)
        for n in range(count)
    ]


class TestCost:
    def test_spread_over_the_steps_between_them(self) -> None:
        (one,) = other_loaders(LadderView(run(*uses())))
        assert (one.where, one.every, one.workers, one.persistent) == ("eval.py:7", 10.0, 2, False)
        assert one.seconds.value == pytest.approx(0.5), "the first of a process does not count"
        assert (one.per_step.value, one.kept) == (pytest.approx(50.0), pytest.approx(0.4))
        assert 0 < one.per_step.low < 50.0 < one.per_step.high

    def test_one_use_says_nothing_about_how_often(self) -> None:
        assert other_loaders(LadderView(run(*uses(1)))) == []
        assert other_loaders(LadderView(run(*uses(1), *uses(1, attempt=2)))) == [], "nor in another pass"

    def test_two_uses_in_one_step_are_not_apart(self) -> None:
        assert other_loaders(LadderView(run(*uses(3, every=0)))) == []

    def test_a_use_that_was_stopped_is_left_out(self) -> None:
        starts = uses()
        starts[2].seconds += 20.0
        (one,) = other_loaders(LadderView(run(*starts)))
        assert one.seconds.value == pytest.approx(0.5)

    def test_each_place_is_a_loader_of_its_own(self) -> None:
        mixed = [one for pair in zip(uses(), uses(every=20, where="probe.py:3"), strict=True) for one in pair]
        found = {one.where: one.per_step.value for one in other_loaders(LadderView(run(*mixed)))}
        assert found == {"eval.py:7": pytest.approx(50.0), "probe.py:3": pytest.approx(25.0)}

    def test_the_own_workers_go_on_meanwhile(self) -> None:
        """With 130 ms for a batch of each of the four, a step would take 130 ms without the other loader."""
        session = run(*uses())
        for window in session.windows:
            window.evidence = {"worker_ms": 520.0}
        (one,) = other_loaders(LadderView(session))
        assert one.per_step.value == pytest.approx(20.0)


class TestVerdict:
    def test_a_stage_of_its_own(self) -> None:
        found = diagnose_session(run(*uses()))
        assert [(one.stage, one.culprit) for one in found.amortised] == [
            ("other loaders", Place("DataLoader", "eval.py:7"))
        ]
        assert found.amortised[0].share == pytest.approx(1 / 3)
        assert found.verdict.bottleneck == "startup"
        assert found.verdict.culprit == Place("DataLoader", "eval.py:7")
        assert found.verdict.sentence == (
            "The loop starts another loader every 10 steps, at eval.py:7, and waits 0.5 s for it and its batches each "
            "time: 50 ms a step. persistent_workers=True there starts its workers only once."
        )
        assert [one.id for one in found.recommendations] == ["other-loaders"]

    def test_on_the_screen(self) -> None:
        found = summarise(diagnose_session(run(*uses())))
        assert [(one.name, one.where, round(one.share, 2)) for one in found.causes] == [
            ("starting another loader", "eval.py:7", 0.33)
        ]
        assert found.headline == "Data costs your training 33 % of every step"
        assert found.rates[0].steps_per_s == pytest.approx(1000 / 150)

    def test_beside_a_costlier_stage(self) -> None:
        found = diagnose_session(run(*uses(), ladder=climbing(raw=100.0)))
        assert found.verdict.bottleneck == "transform"
        assert [one.name for one in summarise(found).causes] == ["transforms", "starting another loader"]

    def test_below_the_gate(self) -> None:
        """5 ms of 105 are 4.8 %."""
        found = diagnose_session(run(*uses(seconds=0.05)))
        assert found.amortised == [] and found.verdict.bottleneck == "none"

    def test_just_above_the_gate(self) -> None:
        """99 ms in every 17 steps of 100 ms: 5.5 %."""
        found = diagnose_session(run(*uses(20, every=17, seconds=0.099)))
        assert found.amortised[0].share == pytest.approx(0.055, abs=0.001)
        assert found.verdict.bottleneck == "startup"

    def test_all_of_it_is_in_the_report(self) -> None:
        told = evidence_lines(diagnose_session(run(*uses(seconds=0.05))))
        assert "another loader is started at eval.py:7 every 10 steps and takes the loop 0.05 s: 5 ms a step" in told
