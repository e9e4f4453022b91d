"""What the parent makes of one pass over the script: another pass, for what is left to measure, or the end."""

from __future__ import annotations

from typing import Any

import pytest

from pipediag.host.passes import Outcome, _failed_under, _give_up_remedy, _give_up_settings, _next, _Watch
from pipediag.ladder.plan import Plan
from pipediag.session import REMEDIED, Rung, Session

LOADER = {"ordinal": 1, "where": "train.py:3", "draws": 50, "credits": 40}
STORY = {"loaders": [LOADER], "target": 1, "optimizer_steps": 40, "rung": "baseline", "horizon": None}


def ended(**values: Any) -> Outcome:
    return Outcome(**{"story": STORY, "seconds": 10.0, "batches": True, **values})


class TestNext:
    def test_the_ladder_goes_on_in_another_pass(self) -> None:
        plan = _next(Plan(budget=30.0, apply=20.0), ended(), Session())
        assert plan is not None
        assert (plan.budget, plan.apply, plan.attempt, plan.climbed) == (20.0, 20.0, 2, False)

    @pytest.mark.parametrize("reason", ["settled", "budget"])
    def test_what_the_child_ended_is_over(self, reason: str) -> None:
        assert _next(Plan(apply=20.0), ended(reason=reason), Session()) is None

    def test_the_remedy_goes_on_in_another_pass(self) -> None:
        plan = _next(Plan(budget=30.0, apply=20.0), ended(climbed=True, applied=5.0), Session())
        assert plan is not None and plan.climbed and plan.apply == plan.budget == 15.0
        assert _next(plan, ended(climbed=True, applied=14.5), Session()) is None

    def test_a_trial_of_settings_goes_on_in_another_pass(self) -> None:
        plan = _next(Plan(budget=30.0, knobs=10.0), ended(climbed=True, seconds=22.0, tried=4.0), Session())
        assert plan is not None and plan.climbed and (plan.knobs, plan.budget, plan.apply) == (6.0, 8.0, 0.0)
        assert _next(plan, ended(climbed=True, seconds=7.5, tried=2.0), Session()) is None

    def test_a_trial_of_settings_has_no_more_than_the_budget_leaves(self) -> None:
        plan = _next(Plan(budget=30.0, knobs=10.0, apply=20.0), ended(climbed=True, seconds=27.0), Session())
        assert plan is not None and (plan.knobs, plan.apply, plan.budget) == (3.0, 20.0, 20.0)
        plan = _next(Plan(budget=30.0, knobs=10.0, apply=20.0), ended(seconds=29.5), Session())
        assert plan is not None and (plan.climbed, plan.knobs, plan.budget) == (True, 0.0, 20.0)

    def test_a_spent_budget_leaves_the_remedys(self) -> None:
        plan = _next(Plan(budget=10.5, apply=20.0), ended(), Session())
        assert plan is not None and plan.climbed and plan.apply == plan.budget == 20.0

    def test_without_a_remedy_a_spent_budget_is_the_end(self) -> None:
        assert _next(Plan(budget=10.5), ended(), Session()) is None

    def test_a_rung_that_the_script_failed_under_is_left_out(self) -> None:
        failed = ended(exit_code=1, story={**STORY, "rung": "device", "error": "TypeError: no"})
        plan = _next(Plan(budget=30.0), failed, Session())
        assert plan is not None and "TypeError: no" in plan.excluded["device"]

    def test_a_failure_of_the_scripts_own_is_the_end(self) -> None:
        failed = ended(exit_code=1, story={**STORY, "error": "TypeError: no"})
        assert _failed_under(failed) is None and _next(Plan(budget=30.0), failed, Session()) is None


def test_a_script_that_fails_under_the_remedy_has_not_failed() -> None:
    outcome = ended(exit_code=1, climbed=True, story={**STORY, "rung": REMEDIED, "error": "TypeError: no"})
    session = Session(rungs={REMEDIED: Rung(REMEDIED)})
    assert _failed_under(outcome) == REMEDIED
    _give_up_remedy(outcome, session)
    assert outcome.exit_code == 0 and not session.rungs[REMEDIED].available
    assert session.rungs[REMEDIED].why_not.endswith("fed this way: TypeError: no")
    assert _next(Plan(apply=20.0), outcome, session) is None


def test_a_script_that_fails_under_other_settings_has_not_failed() -> None:
    """What is left to try, and the remedy, have their turn."""
    story = {**STORY, "rung": "settings:2", "error": "TypeError: no"}
    outcome = ended(exit_code=1, climbed=True, seconds=22.0, tried=4.0, story=story)
    session = Session()
    _give_up_settings(outcome, session)
    assert outcome.exit_code == 0
    assert session.rungs["settings:2"].why_not == "the script failed when it was fed this way: TypeError: no"
    plan = _next(Plan(budget=30.0, knobs=10.0), outcome, session)
    assert plan is not None and plan.climbed and plan.knobs == 6.0


class TestWatch:
    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        now = [0.0]
        monkeypatch.setattr("time.monotonic", lambda: now[0])
        return now

    def test_each_part_has_its_time(self, clock: list[float]) -> None:
        outcome = Outcome()
        watch = _Watch(Plan(budget=30.0, apply=20.0), Session(), outcome, lambda *event: None)
        steps: list[tuple[str, dict[str, Any], float]] = [
            ("first-batch", {}, 5.0),
            ("applying", {"ended": "settled"}, 40.0),
            ("applying", {"budget": 20.0}, 200.0),
            ("finished", {"reason": "settled"}, 230.0),
        ]
        for kind, data, at in steps:
            clock[0] = at
            assert not watch.overdue(), kind
            watch.take(kind, data)
        watch.close()
        assert outcome.climbed and (outcome.seconds, outcome.applied) == (35.0, 30.0)
        clock[0] = 300.0
        assert watch.overdue() and not watch.overdue() and outcome.reason == "settled"

    def test_trying_settings_is_a_part_of_the_budget(self, clock: list[float]) -> None:
        outcome = Outcome()
        watch = _Watch(Plan(budget=30.0, knobs=10.0, apply=20.0), Session(), outcome, lambda *event: None)
        steps: list[tuple[str, dict[str, Any], float]] = [
            ("first-batch", {}, 5.0),
            ("trying", {"budget": 10.0}, 40.0),
            ("applying", {"ended": "settled"}, 60.0),
            ("applying", {"budget": 20.0}, 80.0),
            ("finished", {"reason": "settled"}, 100.0),
        ]
        for kind, data, at in steps:
            clock[0] = at
            assert not watch.overdue(), kind
            watch.take(kind, data)
        watch.close()
        assert outcome.climbed and (outcome.seconds, outcome.tried, outcome.applied) == (55.0, 20.0, 20.0)

    @pytest.mark.parametrize(
        ("kind", "data", "late"), [("first-batch", {}, 46.0), ("applying", {"budget": 20.0}, 36.0)]
    )
    def test_what_takes_longer_hangs(self, clock: list[float], kind: str, data: dict[str, Any], late: float) -> None:
        session, outcome = Session(), Outcome()
        watch = _Watch(Plan(budget=30.0, apply=20.0), session, outcome, lambda *event: None)
        watch.take(kind, data)
        clock[0] = late - 2.0
        assert not watch.overdue()
        clock[0] = late
        assert watch.overdue() and outcome.reason == "budget"
        assert [warning.code for warning in session.warnings] == ["hung"]
